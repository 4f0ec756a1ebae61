"""The Python client, awaited."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import grpc.aio

from cutaway.client import OPTIONS, Inputs, question, routes_of, translated
from cutaway.errors import CutawayError
from cutaway.requests import InspectRequest
from cutaway.results import InspectResult, ModelDetail, ModelName
from cutaway.routes import Call, StreamCall
from cutaway.sizes import Sizes, too_large_for_one
from cutaway.streams import AsyncReplyStream
from cutaway.trust import Tls, trust

T = TypeVar("T")


class AsyncClient:
    """`Client`, awaited.

    Args:
        address: ``host:port`` of a front door, or ``torchserve://host:port`` of TorchServe's own gRPC port.
        timeout: seconds a call may take, where the call itself does not say.
        token: as in `Client`.
        tls: as in `Client`.
    """

    def __init__(
        self, address: str, *, timeout: float = 60.0, token: str | None = None, tls: bool | Tls = False
    ) -> None:
        self._routes, where = routes_of(address)
        self._trust = trust(where, token, tls)
        self._timeout = timeout
        self._sizes = Sizes()
        options = (*OPTIONS, *self._trust.options)
        self._channel = (
            grpc.aio.secure_channel(where, self._trust.credentials, options)
            if self._trust.credentials
            else grpc.aio.insecure_channel(where, options)
        )

    async def inspect(
        self,
        model: str,
        inputs: Inputs,
        *,
        stream: bool | None = None,
        timeout: float | None = None,
        **asked: Any,
    ) -> InspectResult:
        """Ask one question; takes what `question` takes.

        Args:
            model: as in `question`.
            inputs: as in `question`.
            stream: True has the answer sent in pieces, which large ones need; False in one message; None in whichever
                way is the better one. The answer is the same.
            timeout: seconds the call may take.
            asked: as in `question`.

        Raises:
            CutawayError: with a stable reason, and the field at fault.
        """
        return await self.ask(question(model, inputs, **asked), stream=stream, timeout=timeout)

    async def ask(
        self, request: InspectRequest, *, stream: bool | None = None, timeout: float | None = None
    ) -> InspectResult:
        """Ask one question that is made already."""
        until = time.monotonic() + (self._timeout if timeout is None else timeout)
        if not (await self._streams(request, timeout) if stream is None else stream):
            try:
                return await self._asked(request, timeout)
            except CutawayError as failure:
                if stream is not None or not too_large_for_one(failure):
                    raise
        reply = self.ask_stream(request, timeout=max(until - time.monotonic(), 0.0))
        result = await reply.result()
        self._sizes.note(request, reply.reply_bytes)
        return result

    def inspect_stream(
        self, model: str, inputs: Inputs, *, timeout: float | None = None, **asked: Any
    ) -> AsyncReplyStream:
        """Ask one question whose answer comes in pieces, tensor by tensor, as it comes; takes what `question` takes.

        The question is sent when the first tensor is asked for, and that is where an error is raised.
        """
        return self.ask_stream(question(model, inputs, **asked), timeout=timeout)

    def ask_stream(self, request: InspectRequest, *, timeout: float | None = None) -> AsyncReplyStream:
        """Ask one question that is made already, in the same way."""
        call = self._routes.inspect_stream(request)
        return AsyncReplyStream(partial(self._messages, call), self._timeout if timeout is None else timeout)

    async def _streams(self, request: InspectRequest, timeout: float | None) -> bool:
        """Whether the reply should come in pieces, where the caller does not say."""
        if not request.dry_run and self._sizes.unsure(request):
            try:
                estimate = (await self._call(self._routes.inspect(replace(request, dry_run=True)), timeout)).estimate
            except CutawayError:
                return False  # what is wrong, if anything is, the question itself is told
            if estimate is not None:
                self._sizes.note(request, estimate.reply_bytes)
        return self._sizes.large(request)

    async def get_model(self, model: str, *, operators: bool = False, timeout: float | None = None) -> ModelDetail:
        """One model: what goes in, what comes out, and its module tree; on request also the operators inside."""
        return await self._call(self._routes.get_model(model, operators), timeout)

    async def list_models(self, *, timeout: float | None = None) -> list[ModelName]:
        """Every model served, by name and version."""
        models, token = await self._call(self._routes.list_models(""), timeout)
        while token:
            more, token = await self._call(self._routes.list_models(token), timeout)
            models += more
        return models

    async def close(self) -> None:
        """Hang up."""
        await self._channel.close()

    async def _asked(self, request: InspectRequest, timeout: float | None) -> InspectResult:
        call = self._routes.inspect(request)
        reply = await self._reply(call, timeout)
        if not request.dry_run:
            self._sizes.note(request, len(reply))
        return call.read(reply)

    async def _call(self, call: Call[T], timeout: float | None) -> T:
        return call.read(await self._reply(call, timeout))

    async def _reply(self, call: Call[Any], timeout: float | None) -> bytes:
        with translated(self._routes):
            send: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(call.path)
            wait = self._timeout if timeout is None else timeout
            return await send(call.payload, timeout=wait, metadata=self._trust.metadata)

    async def _messages(self, call: StreamCall, timeout: float) -> AsyncGenerator[bytes, None]:
        with translated(self._routes):
            send: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(call.path)
            messages = send(call.payload, timeout=timeout, metadata=self._trust.metadata)
            try:
                async for message in messages:
                    yield message
            finally:
                messages.cancel()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
