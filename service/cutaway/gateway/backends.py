"""What stands behind the front door: something that takes a model's bytes and returns a worker's."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Protocol

import grpc.aio

from cutaway.errors import Reason, error
from cutaway.gateway.catalog import Catalog
from cutaway.results import ModelName
from cutaway.routes import TORCHSERVE_PREDICTIONS, prediction, predictions, torchserve_failure
from cutaway.worker import Worker


class Backend(Protocol):
    """Answers questions about the models of its catalog."""

    catalog: Catalog

    async def call(self, name: ModelName, kind: str, payload: bytes, timeout_s: float) -> bytes:
        """Ask model ``name``: ``inspect`` or ``describe`` with the question's bytes.

        Returns:
            A serialised `cutaway.v1.WorkerReply`.

        Raises:
            CutawayError: nothing came back.
        """

    async def close(self, grace_s: float) -> None:
        """Let go of what it holds; what still runs may go on for ``grace_s`` seconds."""


def _deadline(timeout_s: float) -> bytes:
    # Unix time: front door and workers share a machine, and so a clock.
    return f"{time.time() + timeout_s:.6f}".encode()


class Relay:
    """Hands calls on to a TorchServe over its gRPC port.

    Args:
        address: where TorchServe's inference service listens.
        catalog: what it serves.
    """

    def __init__(self, address: str, catalog: Catalog) -> None:
        self.catalog = catalog
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._channel = grpc.aio.insecure_channel(address, options=unlimited)
        self._predict: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(
            TORCHSERVE_PREDICTIONS
        )

    async def call(self, name: ModelName, kind: str, payload: bytes, timeout_s: float) -> bytes:
        """One Predictions call, with the deadline both on the call and inside it: TorchServe passes no metadata on."""
        request = predictions(name.model, name.version, {kind: payload, "deadline": _deadline(timeout_s)})
        try:
            return prediction(await self._predict(request, timeout=timeout_s))
        except grpc.aio.AioRpcError as failure:
            code, _ = failure.code().value
            raise torchserve_failure(code, failure.details() or "") from None

    async def close(self, grace_s: float = 0.0) -> None:
        """Hang up."""
        await self._channel.close(grace_s)


class Embedded:
    """Workers in this very process, one thread each: no Java, for notebooks, tests and a first try.

    Args:
        workers: the models.
        queue: calls that may wait for one model.
        catalog: what can be asked for.
    """

    def __init__(self, workers: Sequence[Worker], queue: int, catalog: Catalog) -> None:
        self.catalog = catalog
        self._desks: Mapping[ModelName, _Desk] = {worker.name: _Desk(worker, queue) for worker in workers}

    async def call(self, name: ModelName, kind: str, payload: bytes, timeout_s: float) -> bytes:
        """Wait for the model's turn, and ask."""
        return await self._desks[name].call({kind: payload, "deadline": _deadline(timeout_s)}, timeout_s)

    async def close(self, grace_s: float) -> None:
        """End the threads once they have answered, or leave them behind after ``grace_s``."""
        await asyncio.gather(*(asyncio.to_thread(desk.close, grace_s) for desk in self._desks.values()))


class _Desk:
    """One worker, its one thread and its queue."""

    def __init__(self, worker: Worker, queue: int) -> None:
        self._worker = worker
        self._places = threading.BoundedSemaphore(queue)
        self._jobs: SimpleQueue[tuple[Mapping[str, bytes], Future[bytes]] | None] = SimpleQueue()
        # A daemon: a model that never returns must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name=f"cutaway-{worker.name.model}", daemon=True)
        self._thread.start()

    async def call(self, row: Mapping[str, bytes], timeout_s: float) -> bytes:
        if not self._places.acquire(blocking=False):
            raise error(Reason.OVERLOADED, "too many calls are waiting for this model already; try again")
        answer: Future[bytes] = Future()
        answer.add_done_callback(lambda _: self._places.release())
        self._jobs.put((row, answer))
        try:
            # Whoever stops waiting, by deadline or by hanging up, takes a row that has not begun out of the queue.
            return await asyncio.wait_for(asyncio.wrap_future(answer), timeout_s)
        except asyncio.TimeoutError:
            raise error(Reason.DEADLINE_EXCEEDED, "the deadline passed before the model answered") from None

    def close(self, grace_s: float) -> None:
        self._jobs.put(None)
        self._thread.join(grace_s)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            row, answer = job
            if answer.set_running_or_notify_cancel():
                answer.set_result(self._worker.answer([row])[0])
