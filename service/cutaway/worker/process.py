"""A worker in a process of its own: limited in memory, and called by the gateway over its socket."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cutaway.config.settings import Settings
from cutaway.wire.chunks import Piece
from cutaway.worker.call import Call
from cutaway.worker.memory_limit import limit_request_memory
from cutaway.worker.model_thread import ModelThread
from cutaway.worker.server import WorkerServer
from cutaway.worker.worker import Worker
from cutaway.worker_protocol.socket_directory import WORKERS


class WorkerProcess:
    """This process as a worker, which TorchServe or the gateway has started.

    Args:
        worker: the worker.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._thread = ModelThread(worker.name.model)
        if directory := os.environ.get(WORKERS):
            self._server = WorkerServer(worker, self._thread, Path(directory) / str(os.getpid()))

    @classmethod
    def load(cls, model_dir: Path, device: str) -> WorkerProcess:
        """Loads the model of an unpacked archive onto ``device``: ``cpu`` or ``cuda:NUMBER``.

        Raises:
            CutawayError: as `Worker.load`.
        """
        worker = Worker.load(model_dir, device=device)
        if device == "cpu":
            limit_request_memory(Settings.load().request_memory_bytes)
        return cls(worker)

    def answer(self, calls: Sequence[Mapping[str, bytes]]) -> list[bytes]:
        """Runs calls that came as TorchServe's parts; returns a serialised `cutaway.v1.WorkerReply` for each."""
        parsed = [Call.of_parts(parts) for parts in calls]
        return self._thread.submit(lambda: list(self._worker.answer(parsed))).result() if parsed else []

    def stream(self, parts: Mapping[str, bytes]) -> Iterator[Piece]:
        """Runs a streamed call that came as TorchServe's parts; yields the pieces of its reply, one at least."""
        pieces = self._worker.stream(Call.of_parts(parts))
        yield self._thread.submit(lambda: next(pieces)).result()  # the others need no model
        yield from pieces
