"""Calls by HTTP/1.1 instead of gRPC's HTTP/2, for proxies that pass nothing else: channels as grpc has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import status_pb2

from cutaway.client.trust import Metadata, Tls, content_of, is_loopback
from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.wire import grpc_status
from cutaway.contract.wire.grpc_status import BytesCodec

if TYPE_CHECKING:
    from connectrpc.errors import ConnectError

_DIRECT = "*"
"""The pattern of hosts that are called without a proxy: all."""


class _BaseChannel:
    """The base of the blocking and the asynchronous channel; their calls raise `CutawayError`.

    Args:
        target: ``host:port``.
        tls: as of `cutaway.Client`.
    """

    _client: Any
    """The client of connectrpc that makes the calls."""

    _target: str

    _stream: Callable[..., Any]
    """`_Messages` or `_AsyncMessages`."""

    _unary: Callable[..., Any]
    """Makes the call of a method; returns the reply, or an awaitable of it."""

    def unary_unary(self, path: str) -> Callable[..., Any]:
        """Returns the function that makes the call of a method."""
        return partial(self._unary, _method(path, streams=False))

    def unary_stream(self, path: str) -> Callable[..., Any]:
        """Returns the function that makes the call of a method with a stream of replies."""
        method = _method(path, streams=True)

        def call(payload: bytes, **options: Any) -> Any:
            return self._stream(self._client.execute_server_stream(request=payload, method=method, **_sent(**options)))

        return call


class ConnectChannel(_BaseChannel):
    """The blocking channel."""

    def __init__(self, target: str, tls: bool | Tls) -> None:
        from connectrpc.client import ConnectClientSync
        from pyqwest import SyncClient, SyncHTTPTransport

        self._transport = SyncHTTPTransport(**_options(target, tls))
        self._client = ConnectClientSync(**_arguments(target, tls), http_client=SyncClient(self._transport))
        self._target, self._stream = target, partial(_Messages, target)

    def _unary(self, method: Any, payload: bytes, **options: Any) -> bytes:
        with _as_errors(self._target):
            return cast(bytes, self._client.execute_unary(request=payload, method=method, **_sent(**options)))

    def close(self) -> None:
        """Closes the connections."""
        self._transport.close()


class AsyncConnectChannel(_BaseChannel):
    """`ConnectChannel` for asyncio."""

    def __init__(self, target: str, tls: bool | Tls) -> None:
        from connectrpc.client import ConnectClient
        from pyqwest import Client, HTTPTransport

        self._transport = HTTPTransport(**_options(target, tls))
        self._client = ConnectClient(**_arguments(target, tls), http_client=Client(self._transport))
        self._target, self._stream = target, partial(_AsyncMessages, target)

    async def _unary(self, method: Any, payload: bytes, **options: Any) -> bytes:
        with _as_errors(self._target):
            return cast(bytes, await self._client.execute_unary(request=payload, method=method, **_sent(**options)))

    async def close(self) -> None:
        """Closes the connections."""
        await self._transport.aclose()


class _Messages:
    """A stream of replies, which may be cancelled."""

    def __init__(self, target: str, messages: Any) -> None:
        self._target = target
        self._messages: Generator[bytes, None, None] = messages

    def __iter__(self) -> Iterator[bytes]:
        with _as_errors(self._target):
            yield from self._messages

    def cancel(self) -> None:
        self._messages.close()


class _AsyncMessages:
    """`_Messages` for asyncio."""

    def __init__(self, target: str, messages: Any) -> None:
        self._target = target
        self._messages: AsyncGenerator[bytes, None] = messages
        self._closing: asyncio.Future[None] | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_errors(self._target):
            async for message in self._messages:
                yield message

    def cancel(self) -> None:
        self._closing = asyncio.ensure_future(self._messages.aclose())


def _arguments(target: str, tls: bool | Tls) -> dict[str, Any]:
    """Returns the arguments of a client of connectrpc."""
    address = f"{'https' if tls else 'http'}://{target}"
    # Tensors have a compression of their own.
    return {"address": address, "codec": BytesCodec("proto"), "accept_compression": (), "send_compression": None}


def _options(target: str, tls: bool | Tls) -> dict[str, Any]:
    """Returns the arguments of a transport of pyqwest."""
    from pyqwest import HTTPVersion, Proxy

    options: dict[str, Any] = {"http_version": HTTPVersion.HTTP1, "follow_redirects": False, "enable_otel": False}
    if tls:
        own = Tls() if tls is True else tls
        options |= {"tls_ca_cert": content_of(own.ca), "tls_include_system_certs": own.ca is None}
        options |= {"tls_cert": content_of(own.certificate), "tls_key": content_of(own.key)}
    elif is_loopback(target):  # else a token for this machine would go to the proxy of an environment variable
        options["proxy"] = Proxy(f"http://{target}", no_proxy=_DIRECT)
    return options


def _method(path: str, *, streams: bool) -> Any:
    from connectrpc.method import IdempotencyLevel, MethodInfo, StreamType

    _, service, name = path.split("/")
    kind, level = StreamType.SERVER_STREAM if streams else StreamType.UNARY, IdempotencyLevel.UNKNOWN
    return MethodInfo(
        name=name, service_name=service, input=bytes, output=bytes, idempotency_level=level, stream_type=kind
    )


def _sent(timeout: float, metadata: Metadata) -> dict[str, Any]:
    return {"headers": dict(metadata), "timeout_ms": round(1000 * timeout)}


@contextmanager
def _as_errors(target: str) -> Iterator[None]:
    from connectrpc.errors import ConnectError

    try:
        yield
    except ConnectError as failure:
        raise grpc_status.with_address(_error(failure), target) from None


def _error(failure: ConnectError) -> CutawayError:
    name = failure.code.name
    code: int = grpc.StatusCode["CANCELLED" if name == "CANCELED" else name].value[0]
    details = [
        AnyMessage(type_url=f"type.googleapis.com/{detail.type_name}", value=detail.message_bytes)
        for detail in failure.details
    ]
    status = status_pb2.Status(code=code, message=failure.message, details=details)
    return grpc_status.decode(code, failure.message, [(grpc_status.DETAILS_KEY, status.SerializeToString())])


def require_connect() -> None:
    """Raises ``PACKAGE_MISSING`` where the packages for these channels are not installed."""
    try:
        import connectrpc  # noqa: F401
        import pyqwest  # noqa: F401
    except ImportError:
        what = "calls by Connect need Python 3.11 and: pip install 'cutaway[connect]'"
        raise error(Reason.PACKAGE_MISSING, what, "transport") from None
