"""A worker in a process of its own, which TorchServe starts: limited in memory, watched by the gateway."""

from __future__ import annotations

from pathlib import Path

from cutaway.config.settings import Settings
from cutaway.worker.memory_limit import limit_request_memory
from cutaway.worker.worker import Worker
from cutaway.worker_protocol.heartbeat import send_heartbeats


def start_worker(model_dir: Path, device: str) -> Worker:
    """Loads the model of an unpacked archive, and makes this process its worker.

    Raises:
        InvalidArgument: as `Worker.load`.
    """
    worker = Worker.load(model_dir, device=device)
    if device == "cpu":
        limit_request_memory(Settings.load().request_memory_bytes)
    send_heartbeats(worker.name, lambda: worker.busy_until)
    return worker
