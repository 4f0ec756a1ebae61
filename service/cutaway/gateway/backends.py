"""What stands behind the front door: something that takes a model's bytes and returns a worker's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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

    async def close(self) -> None:
        """Let go of what it holds."""


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

    async def close(self) -> None:
        """Hang up."""
        await self._channel.close()


class Embedded:
    """Workers in this very process, one thread each: no Java, for notebooks, tests and a first try.

    Args:
        workers: the models.
        queue: calls that may wait for one model.
        broken: models that could not be loaded, and why.
    """

    def __init__(self, workers: Sequence[Worker], queue: int, broken: Mapping[str, str] | None = None) -> None:
        self.catalog = Catalog([worker.name for worker in workers], broken)
        self._desks: Mapping[ModelName, _Desk] = {worker.name: _Desk(worker, queue) for worker in workers}

    async def call(self, name: ModelName, kind: str, payload: bytes, timeout_s: float) -> bytes:
        """Wait for the model's turn, and ask."""
        return await self._desks[name].call({kind: payload, "deadline": _deadline(timeout_s)}, timeout_s)

    async def close(self) -> None:
        """End the threads, once they have answered."""
        for desk in self._desks.values():
            desk.close()


class _Desk:
    """One worker, its one thread and its queue."""

    def __init__(self, worker: Worker, queue: int) -> None:
        self._worker = worker
        self._queue = queue
        self._waiting = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"cutaway-{worker.name.model}")

    async def call(self, row: Mapping[str, bytes], timeout_s: float) -> bytes:
        if self._waiting >= self._queue:
            raise error(Reason.OVERLOADED, f"{self._waiting} calls are waiting for this model already; try again")
        self._waiting += 1
        # The count follows the thread's work, not the caller's patience: a call that was given up still holds its
        # place until the thread has seen, and skipped, its row.
        answer = asyncio.get_running_loop().run_in_executor(self._thread, self._worker.answer, [row])
        answer.add_done_callback(self._served)
        try:
            replies = await asyncio.wait_for(asyncio.shield(answer), timeout_s)
        except asyncio.TimeoutError:
            raise error(Reason.DEADLINE_EXCEEDED, "the deadline passed before the model answered") from None
        return replies[0]

    def _served(self, _: asyncio.Future[list[bytes]]) -> None:
        self._waiting -= 1

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
