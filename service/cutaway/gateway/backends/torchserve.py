"""The backend that runs models in TorchServe."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from types import MappingProxyType

from cutaway.config.settings import Settings
from cutaway.errors import Reason, error
from cutaway.gateway.backends.base import MAX_BATCH_BYTES, with_context
from cutaway.gateway.backends.replica_pool import ReplicaPool
from cutaway.gateway.batching.batcher import Batcher
from cutaway.gateway.batching.fair_slots import FairSlots
from cutaway.gateway.models.catalog import Catalog
from cutaway.gateway.torchserve.server_process import Endpoint
from cutaway.results import ModelName
from cutaway.worker_protocol import cancellation, visible_layers
from cutaway.worker_protocol.reply_socket import ReplyReceiver
from cutaway.worker_protocol.torchserve_messages import (
    CallParts,
    decode_batch_reply,
    decode_reply,
    decode_worker_reply,
    encode_batch,
    encode_call,
)
from cutaway.worker_protocol.visible_layers import LayerLists

_MAX_STREAMS = 8
"""How many streamed replies of one model may be unfinished: its workers hold them in memory."""


class TorchServeBackend:
    """Sends calls to one or more TorchServe processes over their gRPC ports.

    Args:
        endpoints: the processes; all of them serve the same models.
        catalog: their models.
        settings: sizes of queues, batches and messages.
        workers: number of workers of each model in each process; default: one.

    Attributes:
        replicas: the processes.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        catalog: Catalog,
        settings: Settings,
        workers: Mapping[ModelName, int] = MappingProxyType({}),
    ) -> None:
        self.catalog = catalog
        self._settings = settings
        self._workers = workers
        self.batchers: dict[ModelName, Batcher] = {}
        self.replicas = ReplicaPool(endpoints, settings.hang_s)
        self._count = len(endpoints)
        self._streams: defaultdict[ModelName, FairSlots] = defaultdict(lambda: FairSlots(_MAX_STREAMS))
        self._cancellations = cancellation.Cancellations()

    async def switch(
        self, endpoints: Sequence[Endpoint], catalog: Catalog, workers: Mapping[ModelName, int], grace_s: float
    ) -> None:
        """Switches to other TorchServe processes and their catalog. Running calls get ``grace_s`` seconds to finish
        where they are, and are then retried on the new processes."""
        self.catalog, self._workers = catalog, workers
        await self.replicas.replace(endpoints, grace_s)

    async def call(self, name: ModelName, kind: str, payload: bytes, layers: LayerLists, timeout_s: float) -> bytes:
        """Queues a request, and returns the worker's reply."""
        return await self._queue(name, {kind: payload, **visible_layers.part(layers)}, timeout_s)

    async def _queue(self, name: ModelName, parts: CallParts, timeout_s: float) -> bytes:
        if name not in self.batchers:
            self.batchers[name] = Batcher(
                partial(self._send, name),
                workers=self._workers.get(name, 1) * self._count,
                ahead=self._count,  # a worker that is done finds its next batch in TorchServe
                max_calls=self._settings.max_batch_size,
                max_bytes=min(self._settings.max_message_bytes, MAX_BATCH_BYTES),
                max_pending=self._settings.max_queue_length,
            )
        with self._cancellations.path(timeout_s) as cancel_path:
            return await self.batchers[name].call(with_context(parts, timeout_s, cancel_path), timeout_s)

    async def _send(self, name: ModelName, calls: Sequence[CallParts], timeout_s: float) -> Sequence[bytes]:
        """Sends a batch. TorchServe forwards no metadata, so deadlines are both on the call and inside it."""
        parts = calls[0] if len(calls) == 1 else {"batch": encode_batch(calls)}
        request = encode_call(name.model, name.version, parts)
        reply = decode_reply(await self.replicas.predict(name, request, timeout_s))
        return [reply] if len(calls) == 1 else decode_batch_reply(reply)

    def latest_deadline(self, name: ModelName) -> float:
        """Returns the latest deadline of the calls that were sent to a model, in Unix seconds; a time that has passed
        if there are none."""
        latest = self.batchers[name].latest_deadline if name in self.batchers else 0.0
        return time.time() + latest - asyncio.get_running_loop().time()

    async def stream(
        self, name: ModelName, payload: bytes, layers: LayerLists, timeout_s: float
    ) -> AsyncGenerator[bytes, None]:
        """Queues a request, and yields the messages of its reply from a socket that bypasses TorchServe; the model runs
        other requests meanwhile. A caller may have half of the unfinished replies, and waits for its turn."""
        until = time.time() + timeout_s
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._streams[name].slot(timeout_s))
            except asyncio.TimeoutError:
                why = "the deadline passed while other streamed replies of this model were being sent"
                raise error(Reason.DEADLINE_EXCEEDED, why) from None
            receiver = stack.enter_context(ReplyReceiver())
            parts = {"stream": payload, "pipe": bytes(receiver.path), **visible_layers.part(layers)}
            decode_worker_reply(await self._queue(name, parts, until - time.time()))
            receiver.accept()
            messages = await stack.enter_async_context(aclosing(receiver.messages(until)))
            async for message in messages:
                yield message

    async def close(self, grace_s: float = 0.0) -> None:
        """Closes all connections; running calls get ``grace_s`` seconds to finish."""
        await self.replicas.replace((), grace_s)
        self._cancellations.close()
