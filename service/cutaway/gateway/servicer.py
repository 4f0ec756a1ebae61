"""`cutaway.v1.InspectionService`: bytes in, bytes out. Tensors pass through unread."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TypeAlias, TypeVar

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError, Message

from cutaway.errors import CutawayError, Reason, error
from cutaway.gateway import fair, withheld
from cutaway.gateway.access import Caller, Grant, Scope
from cutaway.gateway.backends import Backend
from cutaway.gateway.threshold import Threshold, calling
from cutaway.gateway.tokens import Doorkeeper
from cutaway.gateway.watched import Watch, observed
from cutaway.results import ModelName
from cutaway.routes import SERVICE, answered, passed
from cutaway.v1 import inspection_pb2, inspection_service_pb2, worker_pb2
from cutaway.wire import models as wire_models
from cutaway.wire import pieces, status
from cutaway.wire.glance import glance, glance_at_opening
from cutaway.wire.strict import refuse_unserved
from cutaway.wire.supplements import stream_supplement, supplement

log = structlog.get_logger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
Handler: TypeAlias = Callable[[bytes, float, Caller], Awaitable[bytes]]
StreamHandler: TypeAlias = Callable[[bytes, float, Caller], AsyncGenerator[bytes, None]]

M = TypeVar("M", bound=Message)

_PATH = f"/{SERVICE}/"
_PAGE = 100
_LONGEST_CALL_S = 24 * 3600.0
_LONGEST_PAGE = 1000
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class Servicer:
    """The front door's methods.

    Args:
        backend: what answers.
        max_message_bytes: the largest request.
        default_deadline_s: for calls that come without one.
        doorkeeper: tells who calls.
        watch: sees every call from outside.
    """

    def __init__(
        self,
        backend: Backend,
        max_message_bytes: int,
        default_deadline_s: float,
        doorkeeper: Doorkeeper,
        watch: Watch,
    ) -> None:
        self._backend = backend
        self._max_message_bytes = max_message_bytes
        self._default_deadline_s = default_deadline_s
        self._doorkeeper = doorkeeper
        self._watch = watch

    def handler(self) -> grpc.GenericRpcHandler:
        """All methods, for a gRPC server; neither requests nor replies are parsed on the way."""
        methods: dict[str, Handler] = {
            "ListModels": self._list_models,
            "GetModel": self._get_model,
            "Inspect": self._inspect,
        }
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            _PATH + name: grpc.unary_unary_rpc_method_handler(self._watch.around(name, self._guarded(method)))
            for name, method in methods.items()
        }
        stream = self._watch.around("InspectStream", self._guarded_stream(self._inspect_stream))
        handlers[f"{_PATH}InspectStream"] = grpc.unary_stream_rpc_method_handler(stream)
        return Threshold(handlers, self._doorkeeper, self._refusing)

    def _refusing(self, path: str, failure: CutawayError) -> grpc.RpcMethodHandler[bytes, bytes]:
        """A method for a caller who is nobody. One whose requests are a stream need not read any."""

        async def refuse(_: bytes, context: Context) -> None:
            await _abort(context, failure)

        watched = self._watch.around(path.removeprefix(_PATH), refuse)

        async def unread(_: object, context: Context) -> None:
            await watched(b"", context)

        return grpc.stream_stream_rpc_method_handler(unread)

    async def _list_models(self, data: bytes, timeout_s: float, caller: Caller) -> bytes:
        request = _parsed(inspection_service_pb2.ListModelsRequest, data)
        refuse_unserved(request)
        page, token = _page(caller.listed(self._backend.catalog), request.page_size, request.page_token)
        return inspection_service_pb2.ListModelsResponse(
            models=[wire_models.encode_name(name) for name in page], next_page_token=token
        ).SerializeToString()

    async def _get_model(self, data: bytes, timeout_s: float, caller: Caller) -> bytes:
        request = _parsed(inspection_service_pb2.GetModelRequest, data)
        refuse_unserved(request)
        name, grant = self._named(request.model, caller)
        with withheld.words(grant):
            if request.operators:
                grant.refuse(Scope.INSPECT, "operators")
            return withheld.detail(grant, (await self._ask("describe", name, data, timeout_s)).response)

    async def _inspect(self, data: bytes, timeout_s: float, caller: Caller) -> bytes:
        start = time.perf_counter()
        self._refuse_large(data)
        name, grant = self._admitted(data, caller)
        with withheld.words(grant):
            reply = await self._ask("inspect", name, data, timeout_s)
            response = withheld.response(grant, reply.response)
        elsewhere_ms = (time.perf_counter() - start) * 1000 - reply.worker_ms
        response += supplement(queue_ms=elsewhere_ms)
        observed().seen = glance(response)
        return response

    async def _inspect_stream(self, data: bytes, timeout_s: float, caller: Caller) -> AsyncGenerator[bytes, None]:
        """Hand on piece by piece: what the caller has not taken is not fetched."""
        start = time.perf_counter()
        self._refuse_large(data)
        name, grant = self._admitted(pieces.question(data).request, caller)
        with withheld.words(grant):
            async with aclosing(self._backend.stream(name, data, timeout_s)) as messages:
                async for message in messages:
                    opening = passed(message)
                    if opening is not None:
                        message = withheld.opening(grant, message)
                        if opening.worker_ms:
                            elsewhere_ms = (time.perf_counter() - start) * 1000 - opening.worker_ms
                            message += stream_supplement(queue_ms=elsewhere_ms)
                            observed().seen = glance_at_opening(message)
                    observed().reply_bytes += len(message)
                    yield message

    async def _ask(self, kind: str, name: ModelName, data: bytes, timeout_s: float) -> worker_pb2.WorkerReply:
        return answered(await self._backend.call(name, kind, data, timeout_s))

    def _admitted(self, data: bytes, caller: Caller) -> tuple[ModelName, Grant]:
        """The model of a serialised InspectRequest, which ``caller`` may ask. All of it is read only where something
        may be refused."""
        name, grant = self._named(_parsed(worker_pb2.RoutedRequest, data).model, caller)
        if not grant.whole:
            grant.refuse_question(_parsed(inspection_pb2.InspectRequest, data))
        return name, grant

    def _named(self, wanted: str, caller: Caller) -> tuple[ModelName, Grant]:
        if not wanted:
            raise error(Reason.INVALID_VALUE, "name the model", "model")
        name, grant = caller.resolve(wanted, self._backend.catalog)
        observed().model = name
        return name, grant

    def _refuse_large(self, data: bytes) -> None:
        if len(data) > self._max_message_bytes:
            raise error(
                Reason.REQUEST_TOO_LARGE, f"the request has {len(data)} bytes, {self._max_message_bytes} are allowed"
            )

    def _guarded(self, method: Handler) -> Callable[[bytes, Context], Awaitable[bytes]]:
        """``method`` with every error as a gRPC status."""

        async def guarded(data: bytes, context: Context) -> bytes:
            async with _statuses(context):
                return await method(data, self._remaining(context), self._caller(context))
            raise AssertionError("abort() always raises")

        return guarded

    def _guarded_stream(self, method: StreamHandler) -> Callable[[bytes, Context], Awaitable[None]]:
        """The same for a reply in pieces. The next piece is asked for when gRPC has taken the one before."""

        async def guarded(data: bytes, context: Context) -> None:
            async with _statuses(context):
                answer = method(data, self._remaining(context), self._caller(context))
                async with aclosing(answer) as messages:
                    async for message in messages:
                        await context.write(message)

        return guarded

    def _caller(self, context: Context) -> Caller:
        """Who calls; from here on, this task waits in their lane."""
        found = calling.get()
        fair.caller.set(found.name or context.peer())
        return found

    def _remaining(self, context: Context) -> float:
        left: float | None = context.time_remaining()  # None without a deadline, whatever the stubs say
        return self._default_deadline_s if left is None else min(left, _LONGEST_CALL_S)


@asynccontextmanager
async def _statuses(context: Context) -> AsyncIterator[None]:
    """Every error that leaves the block becomes a gRPC status: the one place where that happens."""
    try:
        yield
    except CutawayError as failure:
        await _abort(context, failure)
    except Exception as failure:
        log.exception("call failed in a way that nobody foresaw")
        await _abort(context, error(Reason.INTERNAL, type(failure).__name__))


async def _abort(context: Context, failure: CutawayError) -> None:
    details = (status.DETAILS_KEY, status.encode(failure))
    await context.abort(_CODES[failure.code], status.text(failure), (*context.trailing_metadata(), details))


def _parsed(kind: type[M], data: bytes) -> M:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise error(
            Reason.MALFORMED_REQUEST, f"the {len(data)} bytes are not the request message of this method"
        ) from None


def _page(names: list[ModelName], size: int, token: str) -> tuple[list[ModelName], str]:
    if size < 0 or (token and not token.isdecimal()):
        field = "page_size" if size < 0 else "page_token"
        raise error(Reason.INVALID_VALUE, "page_size is from 0 to 1000, page_token is from the reply before", field)
    start = int(token or 0)
    end = start + (min(size, _LONGEST_PAGE) or _PAGE)
    return names[start:end], str(end) if end < len(names) else ""
