"""The backend that forwards calls to gateways on other machines, each with its own models.

gRPC between gateways carries large replies and cancellations, which bypass TorchServe on one machine, and deadlines as
durations, so that clocks may differ. TorchServe's own port can do none of that.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from types import MappingProxyType
from typing import Any

import grpc.aio
import structlog
from grpc_health.v1 import health_pb2

from cutaway.client.transport import SERVICE
from cutaway.errors import Code, CutawayError, Reason, error
from cutaway.gateway.backends.load_balancing import CHECK_INTERVAL_S, CHECK_TIMEOUT_S, MAX_FAILED_CHECKS, OPTIONS, pick
from cutaway.gateway.batching.batcher import Batcher
from cutaway.gateway.models.catalog import Catalog
from cutaway.gateway.observability.call_watch import trace_part
from cutaway.results import ModelName
from cutaway.trust import Trust
from cutaway.v1 import inspection_service_pb2, worker_pb2
from cutaway.wire import chunks, grpc_status
from cutaway.wire import models as wire_models
from cutaway.wire.reply_timings import split_response
from cutaway.worker_protocol import visible_layers
from cutaway.worker_protocol.torchserve_messages import decoding
from cutaway.worker_protocol.visible_layers import LayerLists

log = structlog.get_logger(__name__)

_METHODS = {"inspect": "Inspect", "describe": "GetModel"}
_PAGE = 1000
_RETRYABLE = (Reason.BACKEND_UNAVAILABLE, Reason.OVERLOADED)
"""Errors that another gateway may not have."""


class UpstreamGateway:
    """One gateway on another machine; checked until `close`.

    Args:
        address: ``host:port``.
        trust: credentials and token for it.

    Attributes:
        available: whether it replies, and reports that it serves.
        under_way: its running calls by model.
        models: its models, as of its last reply.
        why: why it is not available.
    """

    def __init__(self, address: str, trust: Trust) -> None:
        self.available = False
        self.under_way: Counter[ModelName] = Counter()
        self.models: frozenset[ModelName] = frozenset()
        self.why = f"{address} has not replied yet"
        self._address = address
        self._metadata = trust.metadata
        self._channel: grpc.aio.Channel = trust.channel(grpc.aio, address, OPTIONS)
        self._failed_checks = 0
        self._checks = asyncio.ensure_future(self._check_forever())

    async def call(self, method: str, payload: bytes, layers: LayerLists, timeout_s: float, name: ModelName) -> bytes:
        """Makes one call of `cutaway.v1.InspectionService`.

        Raises:
            CutawayError: ``BACKEND_UNAVAILABLE``, if it is not reachable or rejects our token; or its error.
        """
        self.under_way[name] += 1
        try:
            return await self._call(f"/{SERVICE}/{method}", payload, timeout_s, layers)
        finally:
            self.under_way[name] -= 1

    async def _call(self, path: str, payload: bytes, timeout_s: float, layers: LayerLists = ()) -> bytes:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(path)
        with self._translated():
            return await call(payload, timeout=timeout_s, metadata=(*self._metadata, *_call_metadata(layers)))

    async def stream(
        self, payload: bytes, layers: LayerLists, timeout_s: float, name: ModelName
    ) -> AsyncGenerator[bytes, None]:
        """Yields the messages of a streamed reply, as fast as they are read; raises as `call`."""
        method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes]
        method = self._channel.unary_stream(f"/{SERVICE}/InspectStream")
        call = method(payload, timeout=timeout_s, metadata=(*self._metadata, *_call_metadata(layers)))
        self.under_way[name] += 1
        try:
            with self._translated():
                async for message in call:
                    yield message
        finally:
            self.under_way[name] -= 1
            call.cancel()

    async def close(self) -> None:
        """Closes the connections."""
        self._checks.cancel()
        await self._channel.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turns every failed call in the block into a `CutawayError`."""
        try:
            yield
        except grpc.aio.AioRpcError as failed:
            code, _ = failed.code().value
            trailers: Any = failed.trailing_metadata() or ()
            failure = grpc_status.decode(code, failed.details() or "", trailers)
            if failure.reason == Reason.SERVER_UNREACHABLE:
                self._mark_unavailable(failure.message)
            elif failure.code != Code.UNAUTHENTICATED:
                raise failure from None
            raise error(Reason.BACKEND_UNAVAILABLE, f"upstream gateway: {failure.message}") from None

    def _mark_unavailable(self, why: str) -> None:
        if self.available:
            log.warning("an upstream gateway is no longer available", address=self._address, why=why)
        self.available = False
        self.why = f"{self._address}: {why}"

    async def _check_forever(self) -> None:
        while True:
            try:
                await self._check()
            except CutawayError as failure:
                self._failed_checks += 1
                if failure.reason != Reason.DEADLINE_EXCEEDED or self._failed_checks >= MAX_FAILED_CHECKS:
                    self._mark_unavailable(failure.message)
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def _check(self) -> None:
        request = health_pb2.HealthCheckRequest(service=SERVICE).SerializeToString()
        reply = await self._call("/grpc.health.v1.Health/Check", request, CHECK_TIMEOUT_S)
        if health_pb2.HealthCheckResponse.FromString(reply).status != health_pb2.HealthCheckResponse.SERVING:
            raise error(Reason.BACKEND_UNAVAILABLE, "it reports that it does not serve")
        self.models = frozenset([name async for name in self._list_models()])
        self._failed_checks = 0
        if not self.available:
            log.info("an upstream gateway is available", address=self._address)
        self.available = True

    async def _list_models(self) -> AsyncIterator[ModelName]:
        token = ""
        while True:
            request = inspection_service_pb2.ListModelsRequest(page_size=_PAGE, page_token=token)
            reply = await self._call(f"/{SERVICE}/ListModels", request.SerializeToString(), CHECK_TIMEOUT_S)
            page = inspection_service_pb2.ListModelsResponse.FromString(reply)
            for model in page.models:
                yield wire_models.decode_name(model)
            if not (token := page.next_page_token):
                return


class UpstreamBackend:
    """Forwards calls to gateways on other machines, which share the calls.

    Args:
        trusts: credentials by ``host:port``.
    """

    def __init__(self, trusts: Mapping[str, Trust]) -> None:
        self._all = [UpstreamGateway(address, trust) for address, trust in trusts.items()]
        self.catalog = Catalog(())
        self.batchers: Mapping[ModelName, Batcher] = MappingProxyType({})  # the other gateways have the queues

    @property
    def available(self) -> bool:
        """Whether any gateway is available."""
        return any(gateway.available for gateway in self._all)

    @property
    def why(self) -> str:
        """Why the others are not available."""
        return "; ".join(gateway.why for gateway in self._all if not gateway.available)

    def update_catalog(self) -> None:
        """Updates the catalog with what the gateways have listed last."""
        self.catalog = Catalog(frozenset[ModelName]().union(*(gateway.models for gateway in self._all)))

    async def call(self, name: ModelName, kind: str, payload: bytes, layers: LayerLists, timeout_s: float) -> bytes:
        """Forwards a request; retries once on another gateway if one cannot take it."""
        until = time.monotonic() + timeout_s
        since = time.perf_counter()
        request = payload + _with_version(name)
        gateway = self._next(name)
        try:
            response = await gateway.call(_METHODS[kind], request, layers, timeout_s, name)
        except CutawayError as failure:
            gateway = self._retry_on(name, gateway, failure)
            left_s = max(until - time.monotonic(), 0.0)
            response = await gateway.call(_METHODS[kind], request, layers, left_s, name)
        reply = _worker_reply(response, since) if kind == "inspect" else worker_pb2.WorkerReply(response=response)
        return reply.SerializeToString()

    async def stream(
        self, name: ModelName, payload: bytes, layers: LayerLists, timeout_s: float
    ) -> AsyncGenerator[bytes, None]:
        """Forwards a request with a streamed reply; retries once on another gateway before the first message."""
        until = time.monotonic() + timeout_s
        since = time.perf_counter()
        question = chunks.decode_stream_request(payload)
        question.request += _with_version(name)
        request = question.SerializeToString()
        gateway, begun = self._next(name), False
        try:
            async with aclosing(gateway.stream(request, layers, timeout_s, name)) as messages:
                async for message in messages:
                    begun = True
                    yield _worker_message(message, since)
            return
        except CutawayError as failure:
            if begun:
                raise
            gateway = self._retry_on(name, gateway, failure)
        left_s = max(until - time.monotonic(), 0.0)
        async with aclosing(gateway.stream(request, layers, left_s, name)) as messages:
            async for message in messages:
                yield _worker_message(message, since)

    async def close(self, grace_s: float) -> None:
        """Closes the connections."""
        await asyncio.gather(*(gateway.close() for gateway in self._all))

    def _next(self, name: ModelName) -> UpstreamGateway:
        gateway = pick(self._all, name, lambda gateway: gateway.available and name in gateway.models)
        if gateway is None:
            raise error(Reason.BACKEND_UNAVAILABLE, f"no upstream gateway is available: {self.why}")
        return gateway

    def _retry_on(self, name: ModelName, gateway: UpstreamGateway, failure: CutawayError) -> UpstreamGateway:
        """Returns another gateway; raises ``failure`` if a retry cannot help, or there is no other gateway."""
        other = pick(self._all, name, lambda other: other.available and name in other.models and other is not gateway)
        if failure.reason not in _RETRYABLE or other is None:
            raise failure
        return other


def _worker_reply(response: bytes, since: float) -> worker_pb2.WorkerReply:
    """Returns an InspectResponse of another gateway as a worker would send it; what it waited there is no work."""
    with decoding():
        reply = split_response(response)
    reply.worker_ms = (time.perf_counter() - since) * 1000 - reply.timings.queue_ms
    return reply


def _worker_message(message: bytes, since: float) -> bytes:
    """Returns an InspectStreamResponse of another gateway as a worker would send it."""
    response = chunks.decode_header(message)
    if response is None:
        return message
    return chunks.as_message(chunks.worker_piece(_worker_reply(response, since))).joined()


def _with_version(name: ModelName) -> bytes:
    """Returns bytes that, appended to a request, set the version that this gateway resolved and authorized: the last
    occurrence of a protobuf field counts."""
    return worker_pb2.RoutedRequest(model=f"{name.model}/versions/{name.version}").SerializeToString()


def _call_metadata(layers: LayerLists) -> Iterator[tuple[str, str | bytes]]:
    """Yields the current call's span, and the layers that it may name, as any caller may send them."""
    yield from ((name, value.decode()) for name, value in trace_part().items())
    if layers:
        yield visible_layers.METADATA, visible_layers.encode(layers)
