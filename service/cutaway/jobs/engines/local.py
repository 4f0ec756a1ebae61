"""Runs the model in this process, and writes one shard after the other."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from cutaway.adapter_modules import plain_names
from cutaway.adapters import Adapter, create_adapter, find_adapter
from cutaway.contract.errors import Reason, at, error
from cutaway.contract.requests import InspectRequest
from cutaway.contract.results import InspectResult, ModelDetail
from cutaway.jobs.shards import JobModel, ShardWriter, Task, Tick, Written, source_of
from cutaway.jobs.spec import Job
from cutaway.server.archive import reader
from cutaway.server.worker.call import raising_errors
from cutaway.server.worker.worker import Worker
from cutaway.server.worker_protocol import ScratchDirectory


@contextmanager
def opened(job: Job) -> Iterator[JobModel]:
    """Loads the job's model for as long as the block runs.

    Raises:
        CutawayError: the model does not exist or cannot be loaded.
    """
    with ScratchDirectory() as scratch:  # adapters may read their files at any time
        with at("model"):
            _refuse_device(job.model.device)
            if job.model.archive is not None:
                reader.read(job.model.archive)  # verifies every checksum
                reader.unpack(job.model.archive, Path(scratch))
        with plain_names(Path(scratch)):
            with at("model"):
                model = LocalModel(_worker(job, Path(scratch)))
            yield model


def work(task: Task, model: JobModel, shards: Sequence[int], tick: Tick) -> Iterator[Written]:
    """Writes ``shards`` one after the other."""
    writer = ShardWriter(task, model, source_of(task.job))
    for shard in shards:
        yield writer.write(shard, tick)


class LocalModel:
    """A model in this process.

    Args:
        worker: the worker that runs the model.

    Attributes:
        detail: the model's inputs, outputs and provenance.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        with _signals_deferred(), raising_errors():
            self.detail: ModelDetail = worker.describe()

    def inspect(self, request: InspectRequest) -> InspectResult:
        """Returns the result of ``request``.

        Raises:
            CutawayError: the request cannot be run.
        """
        with _signals_deferred():
            return self._worker.inspect(request)


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Delays SIGINT and SIGTERM to the end of the block: in a pass, their exception would seem the model's error."""
    handlers: dict[int, Any] = {}
    received: list[tuple[int, FrameType | None]] = []
    process = os.getpid()

    def defer(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process:
            received.append((number, frame))
        else:  # in a process that the model's code has forked
            handlers[number](number, frame)

    if threading.current_thread() is threading.main_thread():  # signals reach no other
        for number in map(int, (signal.SIGINT, signal.SIGTERM)):
            handler = signal.getsignal(number)
            if callable(handler):  # SIG_DFL, which ends the process at once, stays
                handlers[number] = handler
                signal.signal(number, defer)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for number, frame in received:
        handlers[number](number, frame)


def _refuse_device(device: str) -> None:
    """Raises an error if PyTorch has no ``device`` on this machine."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as failure:  # PyTorch raises either
        what = f"there is no device {device!r} on this machine: {str(failure).splitlines()[0]}"
        raise error(Reason.INVALID_VALUE, what, "device") from None


def _worker(job: Job, scratch: Path) -> Worker:
    if job.model.archive is None:
        return Worker.of(*_named(job), device=job.model.device)
    return Worker.load(scratch, device=job.model.device, batches_calls=False)


def _named(job: Job) -> tuple[Adapter, str]:
    """Returns the adapter that the job names, and a name for its model."""
    file, _, name = job.model.adapter.rpartition(":")
    path, weights = Path(file), job.model.weights
    for required in [path if file.endswith(".py") else None, weights]:
        if required is not None and not required.is_file():
            raise error(Reason.MODEL_NOT_FOUND, f"there is no file {required}")
    spec = f"{path.name}:{name}" if file.endswith(".py") else job.model.adapter
    directory = path.resolve().parent
    adapter = create_adapter(find_adapter(spec, directory), job.model.options, directory, weights)
    return adapter, path.stem.removesuffix("_adapter")
