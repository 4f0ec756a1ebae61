"""Serves `cutaway.v1.InspectionService` on serialised messages; inputs are never parsed."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from cutaway.client.transport import SERVICE
from cutaway.contract.errors import CutawayError, Reason, changed, error, of_exception
from cutaway.contract.results import ModelName
from cutaway.contract.torchserve_messages import decode_stream_opening, decode_worker_reply
from cutaway.contract.wire import chunks
from cutaway.contract.wire import models as wire_models
from cutaway.contract.wire import requests as wire_requests
from cutaway.contract.wire.message_walk import (
    COUNTED_BYTES,
    MAX_TEXT,
    check_entries,
    check_structure,
    has_few_entries,
    parse,
)
from cutaway.contract.wire.worker_reply import Reply
from cutaway.server import batching
from cutaway.server.auth.tokens import REQUIRED_SCOPES, Authenticator, Caller, Permissions, Scope
from cutaway.server.backends.backend import Backend
from cutaway.server.batching import ByteBudget, HeldBytes, within
from cutaway.server.memory import share_of_requests
from cutaway.server.observability.call_watch import CallWatch, current_call
from cutaway.server.observability.call_watch import Method as ObservedMethod
from cutaway.server.rpc.guard import AuthenticatingHandler, Handler, receiving
from cutaway.server.rpc.status import Context, Metadata, TranslatedCall, Translator, abort, abort_with
from cutaway.server.settings import Settings
from cutaway.v1 import inspection_pb2, inspection_service_pb2, model_pb2, worker_pb2

Method: TypeAlias = Callable[[bytes, Context, Caller], Awaitable[bytes | None]]

_current_caller: ContextVar[Caller] = ContextVar("cutaway_caller")
"""The caller of the current task's call."""

_arrived: ContextVar[HeldBytes | None] = ContextVar("cutaway_arrived", default=None)
"""Holds the bytes that have arrived of the current task's request by another protocol."""

T = TypeVar("T")

_REQUEST = inspection_pb2.InspectRequest
_REQUEST_NAME = _REQUEST.DESCRIPTOR.full_name

_PAGE_SIZE = 100
_MAX_PAGE_SIZE = 1000
_PATIENCE_S = 10.0
"""Seconds that a message of a streamed reply may take to be sent."""


class Servicer:
    """The methods of the service.

    Args:
        backend: runs the models.
        settings: the largest request, and the default deadline.
        authenticator: returns the caller.
        watch: reports the calls to observers.

    Attributes:
        settings: the settings.
    """

    def __init__(self, backend: Backend, settings: Settings, authenticator: Authenticator, watch: CallWatch) -> None:
        self._backend = backend
        self.settings = settings
        self._authenticator = authenticator
        self._watch = watch
        self._budget = ByteBudget(settings.max_queue_bytes or share_of_requests(2 * settings.max_message_bytes))
        self._translator = Translator()
        self._descriptions: dict[Hashable, bytes] = {}
        self._described = backend.catalog

        methods: dict[str, Method] = {
            "ListModels": self._list_models,
            "GetModel": self._get_model,
            "Inspect": self._inspect,
            "InspectStream": self._inspect_stream,
        }
        self._methods = {name: self._with_status(method) for name, method in methods.items()}

    def handler(self) -> grpc.GenericRpcHandler:
        """Returns all methods for a gRPC server; gRPC parses neither requests nor replies."""
        return self.authenticating(
            {
                f"/{SERVICE}/{name}": self.receiving(name, self._watch.wrap(name, method), name == "InspectStream")
                for name, method in self._methods.items()
            }
        )

    def receiving(self, name: str, method: ObservedMethod, streams: bool = False) -> tuple[str, Handler]:
        """Returns the handler of ``method``, which observers know as ``name``; its request may not take too long."""
        refuse = partial(self.refuse, name)
        return name, receiving(method, refuse, self.settings.receive_timeout_s, streams=streams)

    def authenticating(self, handlers: Mapping[str, tuple[str, Handler]]) -> grpc.GenericRpcHandler:
        """Returns ``handlers`` for callers who may call; see `AuthenticatingHandler`."""
        return AuthenticatingHandler(handlers, self.admit, self.refuse)

    # The guard of all protocols, in this order: who calls, which model, room for its bytes as they arrive, and then
    # counts and conversion, in threads. gRPC needs the first alone: its methods count and read what arrived as it is.

    def admit(self, metadata: Metadata, peer: str = "") -> None:
        """Authenticates the caller of the current task's call, before its request is read.

        Raises:
            CutawayError: the caller is not known, or there is no room for a request.
        """
        caller = self._authenticator(metadata)
        _current_caller.set(caller)
        batching.caller_id.set(caller.name or peer)
        self._budget.require_room()

    def allow(self, model: str, *fields: str) -> ModelName:
        """Returns the name and the version of a model that the admitted caller may call, before its request is read.

        Args:
            model: the name in the request.
            fields: of `cutaway.v1.InspectRequest`, which the request has.

        Raises:
            CutawayError: the model is not known to the caller, or a scope is missing.
        """
        name, permissions = self._resolve(model, _current_caller.get())
        for field in fields:
            permissions.require(REQUIRED_SCOPES[field], field)
        return name

    def require_scopes(self) -> None:
        """Refuses an admitted caller who may call no model, before a request is read that names one.

        Raises:
            CutawayError: as `allow` for any model.
        """
        _current_caller.get().require_model()

    @contextmanager
    def arriving(self) -> Iterator[HeldBytes]:
        """Counts the bytes of the admitted caller's request until the block ends, or its call begins."""
        with self._budget.hold() as held:
            token = _arrived.set(held)
            try:
                yield held
            finally:
                _arrived.reset(token)

    async def convert(
        self, function: Callable[[bytes], T], data: bytes, context: Context, cost: int | None = None
    ) -> T:
        """Returns what ``function`` makes of a request or a reply; see `Translator.convert`."""
        try:
            return await self._translator.convert(function, data, self._timeout(context), cost)
        except Exception:
            self._budget.refused()
            raise

    @asynccontextmanager
    async def reporting(self, name: str, call: TranslatedCall) -> AsyncIterator[None]:
        """Reports an error of the block to observers as that of a call of the method ``name``.

        An error of a call that they know is reported already.
        """
        try:
            yield
        except Exception as exception:
            if (failure := of_exception(exception)) is None:
                raise
            if not call.trailing_metadata():
                await self.refuse(name, failure, call)
            raise failure from None

    async def call(self, name: str, data: bytes, context: Context) -> bytes | None:
        """Runs the method ``name`` for a serialised request of an admitted caller, as a call by gRPC does.

        The caller's permissions, limits, metrics and log apply. Returns None after the messages of a stream.

        Raises:
            Exception: what ``context.abort`` raises.
        """
        return await self._watch.wrap(name, self._methods[name])(data, context)

    async def stream(self, name: str, data: bytes, call: TranslatedCall) -> AsyncGenerator[bytes, None]:
        """Runs the method ``name`` as `call` does, and yields its messages as fast as they are taken.

        Ends the call when the generator is closed.
        """
        messages: asyncio.Queue[bytes] = asyncio.Queue(1)
        call.send_by(messages.put)
        running = asyncio.ensure_future(self.call(name, data, call))
        try:
            async for message in _until_done(messages, running):
                yield message
        finally:
            running.cancel()
            await asyncio.wait([running])

    async def describe(self, model: str, context: Context) -> model_pb2.ModelDetail:
        """Returns a model that the admitted caller may call, modules included: to read a request that does not say of
        what type its inputs are.

        Raises:
            CutawayError: the model is not known to the caller, or does not answer.
        """
        reply = await self._description(self.allow(model), wire_models.encode_model_request(model), context)
        return inspection_service_pb2.GetModelResponse.FromString(reply).model

    async def refuse(self, name: str, failure: CutawayError, context: Context) -> None:
        """Ends a call of the method ``name``, whose request could not be read, with ``failure``.

        Raises:
            Exception: what ``context.abort`` raises.
        """
        await self._watch.wrap(name, lambda _, context: abort(failure, context))(b"", context)

    def _with_status(self, method: Method) -> Callable[[bytes, Context], Awaitable[bytes | None]]:
        """Returns ``method`` for the current caller, with counted request bytes, and every error as a gRPC status."""

        async def guarded(data: bytes, context: Context) -> bytes | None:
            try:
                caller = _current_caller.get()
                batching.caller_id.set(caller.name or current_call().peer)
                if arrived := _arrived.get():
                    arrived.release()  # the request of our own form takes its place
                with self._budget.hold(len(data)):
                    return await method(data, context, caller)
            except Exception as failure:
                await abort_with(context, failure)
            return None

        return guarded

    async def _list_models(self, data: bytes, context: Context, caller: Caller) -> bytes:
        request = parse(inspection_service_pb2.ListModelsRequest, data)
        check_structure(request)
        catalog = self._backend.catalog
        page, token = _page(caller.visible_models(catalog), request.page_size, request.page_token)
        unserved = () if request.page_token else caller.visible_archives(catalog)
        return inspection_service_pb2.ListModelsResponse(
            models=[wire_models.encode_name(name) for name in page],
            next_page_token=token,
            unserved=[wire_models.encode_unserved(item) for item in unserved],
        ).SerializeToString()

    async def _get_model(self, data: bytes, context: Context, caller: Caller) -> bytes:
        request = wire_models.decode_model_request(data)
        name, permissions = self._resolve(request.model, caller)
        with changed(permissions.redact):
            for field in wire_models.DETAILS:
                if getattr(request, field):
                    permissions.require(Scope.INSPECT, field)
            reply = await self._description(name, data, context)
        return reply if Scope.INSPECT in permissions.scopes else _without_modules(reply)

    async def _description(self, name: ModelName, data: bytes, context: Context) -> bytes:
        """Returns a serialised GetModelResponse; a worker is asked once, until the model store changes."""
        request, catalog = wire_models.decode_model_request(data), self._backend.catalog
        if catalog is not self._described:
            self._described, self._descriptions = catalog, {}
        asked = name, *(getattr(request, field) for field in wire_models.DETAILS)
        if asked not in self._descriptions:
            response = (await self._call("describe", name, data, context)).complete()
            if catalog is not self._described:  # the store has changed meanwhile
                return response
            self._descriptions[asked] = response
        return self._descriptions[asked]

    async def _inspect(self, data: bytes, context: Context, caller: Caller) -> bytes:
        start = time.perf_counter()
        self._check_size(data)
        name, permissions = await self._read(_REQUEST, partial(self._authorize, caller), data, context)
        with changed(permissions.redact):
            return _response(await self._call("inspect", name, data, context), start)

    async def _inspect_stream(self, data: bytes, context: Context, caller: Caller) -> None:
        """Forwards the messages of a reply; reads the next one after gRPC has accepted the one before."""
        start = time.perf_counter()
        self._check_size(data)
        kind = inspection_service_pb2.InspectStreamRequest
        asked = await self._read(kind, chunks.decode_stream_request, data, context)
        name, permissions = await self._read(_REQUEST, partial(self._authorize, caller), asked.request, context)
        with changed(permissions.redact), _TimeLimit(context, self.settings) as timeout_s:
            stream = self._backend.stream(name, data, timeout_s)
            async with aclosing(stream) as messages:
                async for message in messages:
                    opening = decode_stream_opening(message)
                    if opening is not None:
                        message = chunks.header_message(_response(opening, start))
                    current_call().reply_bytes += len(message)
                    await _write(context, message)

    async def _call(self, kind: str, name: ModelName, data: bytes, context: Context) -> Reply:
        with _TimeLimit(context, self.settings) as timeout_s:
            return decode_worker_reply((await self._backend.call(name, kind, data, timeout_s)).reply)

    async def _read(self, kind: type[Message], function: Callable[[bytes], T], data: bytes, context: Context) -> T:
        """Returns what ``function`` reads in a request of the type ``kind``; in a thread, if it has many fields."""
        if len(data) <= COUNTED_BYTES or has_few_entries(kind, data):
            return function(data)
        return await self.convert(function, data, context)

    def _authorize(self, caller: Caller, data: bytes) -> tuple[ModelName, Permissions]:
        """Returns the model of a serialised InspectRequest, and the caller's permissions for it. The request without
        its input is parsed only if something in it may be refused."""
        check_entries(_REQUEST, data, _REQUEST_NAME)  # RoutedRequest has one of its fields
        routed = parse(worker_pb2.RoutedRequest, data, _REQUEST_NAME)
        name, permissions = self._resolve(routed.model, caller)
        if not permissions.unrestricted:
            message = parse(_REQUEST, wire_requests.without_input(data))
            check_structure(message)
            permissions.check(message)
        return name, permissions

    def _resolve(self, model: str, caller: Caller) -> tuple[ModelName, Permissions]:
        if not model or len(model) > MAX_TEXT:
            raise error(Reason.INVALID_VALUE, f"set the model's name, of at most {MAX_TEXT} characters", "model")
        name, permissions = caller.resolve(model, self._backend.catalog)
        current_call().model = name
        return name, permissions

    def _check_size(self, data: bytes) -> None:
        limit = self.settings.max_message_bytes
        if len(data) > limit:
            raise error(Reason.REQUEST_TOO_LARGE, f"the request has {len(data)} bytes, {limit} are allowed")

    def _timeout(self, context: Context) -> float:
        return _TimeLimit(context, self.settings).seconds


class _TimeLimit:
    """A context that adds the server's time limit to the message of a ``DEADLINE_EXCEEDED`` if this limit ended a call.

    Attributes:
        seconds: left for the call: its deadline, or the default, and at most `Settings.max_deadline_s`.
    """

    def __init__(self, context: Context, settings: Settings) -> None:
        self._left: float | None = context.time_remaining()  # None without a deadline, unlike in the stubs
        self.seconds = min(settings.default_deadline_s if self._left is None else self._left, settings.max_deadline_s)

    def __enter__(self) -> float:
        return self.seconds

    def __exit__(self, kind: object, failure: object, trace: object) -> None:
        is_least = self._left is None or self._left > self.seconds
        if is_least and isinstance(failure, CutawayError) and failure.reason == Reason.DEADLINE_EXCEEDED:
            why = "a call without a deadline" if self._left is None else "a call"
            failure.message += f"; {why} may take {self.seconds:g} s here"


async def _until_done(messages: asyncio.Queue[bytes], running: asyncio.Future[Any]) -> AsyncIterator[bytes]:
    """Yields what is put into ``messages`` until ``running`` is done, and raises what it raised."""
    while True:
        waiting = asyncio.ensure_future(messages.get())
        try:
            await asyncio.wait([waiting, running], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()  # of no effect if it is done
        if waiting.done():
            yield waiting.result()
            continue
        while not messages.empty():
            yield messages.get_nowait()
        await running
        return


async def _write(context: Context, message: bytes) -> None:
    """Sends a message of a streamed reply; returns when the connection has room for the next one. Cancels the call if
    its caller no longer receives."""
    try:
        await within(_PATIENCE_S, context.write(message))
    except asyncio.TimeoutError:
        what = f"the caller did not read {len(message)} bytes of the reply within {_PATIENCE_S:g} s"
        raise error(Reason.DEADLINE_EXCEEDED, f"{what}; ask for smaller chunks") from None
    except grpc.aio.InternalError:  # comes before gRPC's own cancellation, if a message was on its way
        raise asyncio.CancelledError from None


def _without_modules(data: bytes) -> bytes:
    """Returns a serialised GetModelResponse without the model's modules and operators."""
    response = inspection_service_pb2.GetModelResponse.FromString(data)
    response.model.ClearField("modules")
    response.model.ClearField("operators")
    return response.SerializeToString()


def _response(reply: Reply, start: float) -> bytes:
    """Returns the serialised InspectResponse of a worker's reply, or of one part of a streamed reply.

    Keeps the values beside the response for observers. Timings, which only the last part has, get the time in the
    queue.
    """
    beside = reply.beside  # of this, observers take what they want
    if beside.HasField("timings"):
        beside.timings.queue_ms = (time.perf_counter() - start) * 1000 - beside.worker_ms
    if (earlier := current_call().reply) is None:
        current_call().reply = beside
    else:
        earlier.MergeFrom(beside)
    return reply.complete()


def _page(names: list[ModelName], size: int, token: str) -> tuple[list[ModelName], str]:
    """Returns one page of ``names``, and the token of the next page."""
    if size < 0 or (token and not re.fullmatch("[0-9]{1,18}", token)):
        field = "page_size" if size < 0 else "page_token"
        raise error(Reason.INVALID_VALUE, "page_size is 0 to 1000, page_token is from the previous reply", field)
    start = int(token or 0)
    end = start + (min(size, _MAX_PAGE_SIZE) or _PAGE_SIZE)
    return names[start:end], str(end) if end < len(names) else ""


async def listed_models(servicer: Servicer, context: Context) -> list[ModelName]:
    """Returns all models that the admitted caller may call.

    Raises:
        Exception: what ``context.abort`` raises.
    """
    names: list[ModelName] = []
    token = ""
    while True:
        page = inspection_service_pb2.ListModelsRequest(page_size=1000, page_token=token).SerializeToString()
        reply = inspection_service_pb2.ListModelsResponse.FromString(
            await servicer.call("ListModels", page, context) or b""
        )
        names += [wire_models.decode_name(model) for model in reply.models]
        token = reply.next_page_token
        if not token:
            return names
