"""The asynchronous client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from functools import partial
from typing import Any, TypeVar

import grpc.aio

from cutaway.client.base_client import BaseClient, Steps
from cutaway.client.connect_channel import AsyncConnectChannel
from cutaway.client.reply_stream import AsyncReplyStream
from cutaway.client.transport import Call, StreamCall
from cutaway.display.inspection import Inspection
from cutaway.errors import CutawayError
from cutaway.requests import InspectRequest
from cutaway.results import ModelDetail, ModelName

T = TypeVar("T")


class AsyncClient(BaseClient[Coroutine[Any, Any, Inspection], AsyncReplyStream]):
    """`Client` for asyncio: its verbs are awaited. See `BaseClient` for its arguments."""

    _grpc = grpc.aio
    _connect = AsyncConnectChannel

    def ask_stream(self, request: InspectRequest, *, timeout: float | None = None) -> AsyncReplyStream:
        """Does what `inspect_stream` does, for a complete request."""
        call = self._transport.inspect_stream(request)
        return AsyncReplyStream(partial(self._messages, call), self._seconds(timeout), request)

    async def get_model(
        self, model: str, *, operators: bool = False, example: bool = False, timeout: float | None = None
    ) -> ModelDetail:
        """Does what `Client.get_model` does."""
        return await self._run(self._call(self._transport.get_model(model, operators, example), timeout))

    async def list_models(self, *, timeout: float | None = None) -> list[ModelName]:
        """Does what `Client.list_models` does."""
        return await self._run(self._list_models(timeout))

    async def close(self) -> None:
        """Closes the connection."""
        await self._channel.close()

    async def _run(self, steps: Steps[T]) -> T:
        resume: Any = steps.send
        value: Any = None
        try:
            while True:
                awaitable = resume(value)
                try:
                    resume, value = steps.send, await awaitable
                except CutawayError as failure:
                    resume, value = steps.throw, failure
        except StopIteration as end:
            result: T = end.value
            return result

    async def _send(self, call: Call[Any], timeout: float | None) -> bytes:
        send: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(call.path)
        try:
            return await send(call.payload, timeout=self._seconds(timeout), metadata=self._trust.metadata)
        except grpc.RpcError as failure:
            raise await asyncio.to_thread(self._error_of, failure) from None

    async def _messages(self, call: StreamCall, timeout: float) -> AsyncGenerator[bytes, None]:
        send: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(call.path)
        messages = send(call.payload, timeout=timeout, metadata=self._trust.metadata)
        try:
            async for message in messages:
                yield call.read(message)
        except grpc.RpcError as failure:
            raise await asyncio.to_thread(self._error_of, failure) from None
        finally:
            messages.cancel()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()
