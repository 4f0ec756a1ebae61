"""The model in this process, one shard after the other."""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from cutaway import archive
from cutaway.adapters import find, make, mount
from cutaway.archive import Manifest
from cutaway.errors import Reason, at, error
from cutaway.jobs.shards import Shards
from cutaway.jobs.spec import Job
from cutaway.jobs.task import Model, Task, Tick, Written, source_of
from cutaway.limits import Limits
from cutaway.requests import InspectRequest
from cutaway.results import InspectResult, ModelDetail, ModelName
from cutaway.settings import MEBIBYTE, Settings
from cutaway.v1 import inspection_pb2, inspection_service_pb2, worker_pb2
from cutaway.wire import models as wire_models
from cutaway.wire import requests as wire_requests
from cutaway.wire import results as wire_results
from cutaway.wire.status import from_failure
from cutaway.worker import Worker

_MOST_BYTES = 2**31 - MEBIBYTE
"""Of one message: what protobuf can hold, which no network narrows here."""


@contextmanager
def opened(job: Job) -> Iterator[Model]:
    """The job's model, loaded.

    Raises:
        CutawayError: there is none, or it cannot be loaded.
    """
    with tempfile.TemporaryDirectory(prefix="cutaway-") as scratch:  # adapters may read their files at any time
        with at("model"):
            _refuse_device(job.model.device)
            model = Loaded(_worker(job, Path(scratch)))
        yield model


def work(task: Task, model: Model, shards: Sequence[int], tick: Tick) -> Iterator[Written]:
    """Write ``shards`` one after the other."""
    reading = Shards(task, model, source_of(task.job))
    for shard in shards:
        yield reading.write(shard, tick)


class Loaded:
    """A model that answers in this process, by the same bytes as anywhere else.

    Attributes:
        detail: what it takes and where it comes from.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        described = self._answer("describe", wire_models.encode_question(worker.name.model, False))
        self.detail: ModelDetail = wire_models.decode(
            inspection_service_pb2.GetModelResponse.FromString(described).model
        )

    def ask(self, request: InspectRequest) -> InspectResult:
        """Its answer to one question.

        Raises:
            CutawayError: the question has none.
        """
        reply = self._answer("inspect", wire_requests.encode(request).SerializeToString())
        return wire_results.decode(inspection_pb2.InspectResponse.FromString(reply))

    def _answer(self, kind: str, question: bytes) -> bytes:
        with _undisturbed():
            reply = worker_pb2.WorkerReply.FromString(self._worker.answer([{kind: question}])[0])
        if reply.HasField("failure"):
            raise from_failure(reply.failure)
        return reply.response


def _refuse_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as failure:  # PyTorch raises either
        what = f"there is no device {device!r} here: {str(failure).splitlines()[0]}"
        raise error(Reason.INVALID_VALUE, what, "device") from None


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C and its kin wait until the block ends: a worker takes what is raised in a pass for its model's doing."""
    handlers: dict[int, Any] = {}
    came: list[tuple[int, FrameType | None]] = []
    if threading.current_thread() is threading.main_thread():  # signals reach no other
        for number in map(int, (signal.SIGINT, signal.SIGTERM)):
            handler = signal.getsignal(number)
            if callable(handler):  # what ends the process at once does so
                handlers[number] = handler
                signal.signal(number, lambda *arguments: came.append(arguments))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for number, frame in came:
        handlers[number](number, frame)


def _worker(job: Job, scratch: Path) -> Worker:
    manifest, directory, weights = _unpacked(job, scratch) if job.model.archive else _named(job)
    adapter = make(find(manifest.adapter, directory), manifest.options, directory, weights)
    return Worker(
        mount(adapter, job.model.device),
        adapter,
        ModelName(manifest.model, manifest.version),
        _MOST_BYTES,
        Limits.of(Settings.load()),
    )


def _unpacked(job: Job, scratch: Path) -> tuple[Manifest, Path, Path | None]:
    path = Path(job.model.archive or "")
    archive.read(path)  # every byte is checked
    archive.unpack(path, scratch)
    manifest = archive.unpacked(scratch)
    return manifest, scratch, scratch / manifest.weights if manifest.weights else None


def _named(job: Job) -> tuple[Manifest, Path, Path | None]:
    file, _, name = job.model.adapter.rpartition(":")
    path, weights = Path(file), job.model.weights
    for each in [path if file.endswith(".py") else None, weights]:
        if each is not None and not each.is_file():
            raise error(Reason.MODEL_NOT_FOUND, f"{each}: there is no such file")
    adapter = f"{path.name}:{name}" if file.endswith(".py") else job.model.adapter
    manifest = Manifest(path.stem.removesuffix("_adapter"), "1.0", adapter, options=job.model.options)
    return manifest, path.resolve().parent, weights
