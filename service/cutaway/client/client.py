"""The blocking client: numpy in, numpy out, no torch and no Captum.

import cutaway as ca

with ca.Client("127.0.0.1:50051") as client:
    result = client.inspect("digits", {"image": image}, captures=[ca.Capture("conv*")])
result.captures["conv1"].output        # [batch, channels, height, width]
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Coroutine, Generator
from typing import Any, TypeVar, cast

import grpc
import grpc.aio

from cutaway.client.base_client import BaseClient, Steps
from cutaway.client.connect_channel import AsyncConnectChannel, ConnectChannel
from cutaway.client.transport import AsyncReplyStream, Call, ReplyStream
from cutaway.contract.errors import CutawayError
from cutaway.contract.results import ModelDetail, ModelName, UnservedArchive
from cutaway.views.inspection import Inspection

T = TypeVar("T")

_FORKED = "Wrong file descriptor generation"
"""gRPC's text for a connection that it could not make in a process that was forked; another attempt succeeds."""


class Client(BaseClient[Inspection, ReplyStream]):
    """A connection to a server; threads may share it. See `BaseClient` for its arguments."""

    _grpc = grpc
    _connect = ConnectChannel
    _reply_stream = ReplyStream

    def get_model(
        self,
        model: str,
        *,
        operators: bool = False,
        example: bool = False,
        data_flow: bool = False,
        timeout: float | None = None,
    ) -> ModelDetail:
        """Returns the inputs, outputs and module tree of a model.

        Args:
            model: its name, or with its version: ``digits/versions/1.0``.
            operators: whether the operators inside modules are listed too.
            example: whether the model's own example comes too.
            data_flow: whether the flow of data comes too, which takes two more passes of the example.
            timeout: seconds to wait.
        """
        return self._run(self._call(self._transport.get_model(model, operators, example, data_flow), timeout))

    def list_models(self, *, timeout: float | None = None) -> list[ModelName]:
        """Returns every model that is served, by name and version."""
        return self._run(self._list_models(timeout))

    def list_unserved(self, *, timeout: float | None = None) -> list[UnservedArchive]:
        """Returns the archives in the server's model store that are not served: half copied, broken, still loading."""
        return self._run(self._call(self._transport.list_unserved(), timeout))

    def close(self) -> None:
        """Closes the connection."""
        self._is_closed = True
        if channel := self._channels.pop(os.getpid(), None):
            channel.close()

    @property
    def _channel(self) -> Any:
        return self._channel_of(os.getpid())  # no channel works in a process that was forked after it was made

    def _run(self, steps: Steps[T]) -> T:
        """Drives the generator to its end. Each yielded value is a result already, and goes straight back."""
        value: Any = None
        try:
            while True:
                value = steps.send(value)
        except StopIteration as end:
            return cast(T, end.value)

    def _send(self, call: Call[Any], timeout: float | None) -> bytes:
        """Returns the reply to a call. Sends again with a new channel if gRPC reports a fork of the process."""
        deadline = time.monotonic() + self._seconds(timeout)
        while True:
            send: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(call.path)
            try:
                return send(call.payload, timeout=deadline - time.monotonic(), metadata=self._trust.metadata)
            except grpc.RpcError as failure:
                if _FORKED not in (failure.details() or ""):
                    raise self._error_of(failure) from None
                self._channels.pop(os.getpid()).close()

    def _messages(self, call: Call[bytes], timeout: float) -> Generator[bytes, None, None]:
        send: grpc.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(call.path)
        messages = send(call.payload, timeout=timeout, metadata=self._trust.metadata)
        try:
            yield from map(call.read, messages)
        except grpc.RpcError as failure:
            raise self._error_of(failure) from None
        finally:
            messages.cancel()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


class AsyncClient(BaseClient[Coroutine[Any, Any, Inspection], AsyncReplyStream]):
    """`Client` for asyncio: its verbs are awaited. See `BaseClient` for its arguments."""

    _grpc = grpc.aio
    _connect = AsyncConnectChannel
    _reply_stream = AsyncReplyStream

    async def get_model(
        self,
        model: str,
        *,
        operators: bool = False,
        example: bool = False,
        data_flow: bool = False,
        timeout: float | None = None,
    ) -> ModelDetail:
        """Does what `Client.get_model` does."""
        return await self._run(self._call(self._transport.get_model(model, operators, example, data_flow), timeout))

    async def list_models(self, *, timeout: float | None = None) -> list[ModelName]:
        """Does what `Client.list_models` does."""
        return await self._run(self._list_models(timeout))

    async def list_unserved(self, *, timeout: float | None = None) -> list[UnservedArchive]:
        """Does what `Client.list_unserved` does."""
        return await self._run(self._call(self._transport.list_unserved(), timeout))

    async def close(self) -> None:
        """Closes the connection."""
        self._is_closed = True
        if channel := self._channels.pop(asyncio.get_running_loop(), None):
            await channel.close()

    @property
    def _channel(self) -> Any:
        for ended in [loop for loop in self._channels if loop.is_closed()]:
            del self._channels[ended]
        return self._channel_of(asyncio.get_running_loop())  # a channel belongs to the loop in which it is made

    async def _run(self, steps: Steps[T]) -> T:
        """Drives the generator to its end. Awaits each yielded value, and passes back the result or the error."""
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
            return cast(T, end.value)
        finally:
            steps.close()  # after a cancellation, it has not ended

    async def _send(self, call: Call[Any], timeout: float | None) -> bytes:
        send: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(call.path)
        try:
            return await send(call.payload, timeout=self._seconds(timeout), metadata=self._trust.metadata)
        except grpc.RpcError as failure:
            raise await asyncio.to_thread(self._error_of, failure) from None

    async def _messages(self, call: Call[bytes], timeout: float) -> AsyncGenerator[bytes, None]:
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
