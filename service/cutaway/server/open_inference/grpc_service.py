"""The protocol by gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

import grpc

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.wire.message_walk import parse
from cutaway.server.http.http_call import HttpCall
from cutaway.server.open_inference.datatypes import (
    POOL,
    SERVICE,
    ModelInferRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelReadyResponse,
    ModelStreamInferResponse,
    ServerLiveResponse,
    ServerReadyResponse,
)
from cutaway.server.open_inference.methods import Form, OpenInference
from cutaway.server.rpc.guard import Handler, receiving, refusing_handler, time_limited
from cutaway.server.rpc.server import GrpcService
from cutaway.server.rpc.status import abort_with
from cutaway.server.settings import Settings

Method: TypeAlias = Callable[[bytes, HttpCall], Awaitable[Any]]

_MEMORY = "shared memory is not served: send the bytes"
_REPOSITORY = "models are those of the server's model store; cutaway.v1.InspectionService/ListModels lists them"
_METRICS = "the server's metrics are Prometheus'; its settings are those it was started with"
UNSERVED = {
    "ModelConfig": "a model has no configuration; ModelMetadata has what it takes and returns",
    **dict.fromkeys(("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"), _REPOSITORY),
    **dict.fromkeys(("ModelStatistics", "TraceSetting", "LogSettings"), _METRICS),
    **{f"{kind}SharedMemory{verb}": _MEMORY for kind in ("System", "Cuda") for verb in ("Status", "Register")},
    **{f"{kind}SharedMemoryUnregister": _MEMORY for kind in ("System", "Cuda")},
}
"""The methods of Triton that are not served, and the alternative to each."""


def grpc_service(methods: OpenInference, settings: Settings) -> GrpcService:
    """Returns the service. Whether the server lives and is ready is told to everybody, as by health checks."""
    servicer = methods.servicer
    open_to_all: dict[str, Method] = {"ServerLive": _live, "ServerReady": partial(_ready, methods)}
    guarded = {
        "ServerMetadata": partial(_server_metadata, methods),
        "ModelReady": partial(_model_ready, methods),
        "ModelMetadata": partial(_model_metadata, methods),
        "ModelInfer": partial(_infer, methods),
    }
    ours = {name: "Inspect" if "Infer" in name else "GetModel" for name in (*open_to_all, *guarded, _STREAM)}

    def handler(name: str, method: Method) -> Handler:
        refuse = partial(servicer.refuse, ours[name])
        return receiving(partial(_answer, method), refuse, settings.receive_timeout_s, streams=False)

    handlers = {_path(name): handler(name, method) for name, method in guarded.items()}
    stream: Any = partial(_stream, methods)
    handlers[_path(_STREAM)] = time_limited(grpc.stream_stream_rpc_method_handler(stream), settings.idle_timeout_s)
    others: dict[str, Handler] = {name: handler(name, method) for name, method in open_to_all.items()}
    others |= {name: refusing_handler(error(Reason.NOT_IMPLEMENTED, what)) for name, what in UNSERVED.items()}
    names = {_path(name): known for name, known in ours.items()}
    return GrpcService(
        SERVICE,
        [servicer.authenticating(handlers, names), grpc.method_handlers_generic_handler(SERVICE, others)],
        POOL,
    )


_STREAM = "ModelStreamInfer"
_FORM = Form[Any](partial(parse, ModelInferRequest), lambda _, response: response)


def _path(name: str) -> str:
    return f"/{SERVICE}/{name}"


class _GrpcCall(HttpCall):
    """A call by gRPC whose errors are raised: they end the call later, or one request of a stream."""

    def peer(self) -> str:
        """Returns the caller's address."""
        return self._peer


def _call(context: Any) -> _GrpcCall:
    call = _GrpcCall(context.invocation_metadata() or (), context.peer())
    call.limit(context.time_remaining())
    return call


async def _answer(method: Method, data: bytes, context: Any) -> bytes | None:
    call = _call(context)
    try:
        reply: bytes = (await method(data, call)).SerializeToString()
        context.set_trailing_metadata(call.reply_headers)
    except Exception as failure:
        context.set_trailing_metadata(call.reply_headers)
        await abort_with(context, failure)
        return None
    return reply


async def _stream(methods: OpenInference, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    """Answers one request after the other; an error is that of its request."""
    async for data in requests:
        response = ModelStreamInferResponse()
        try:
            response.infer_response.CopyFrom(await _infer(methods, data, _call(context)))
        except CutawayError as failure:
            response.error_message = str(failure)
            response.infer_response.id = _id(data)
        except Exception as failure:
            await abort_with(context, failure)
        yield response.SerializeToString()


def _id(data: bytes) -> str:
    try:
        name: str = parse(ModelInferRequest, data).id
    except CutawayError:
        return ""
    return name


async def _live(_: bytes, __: HttpCall) -> Any:
    return ServerLiveResponse(live=True)


async def _ready(methods: OpenInference, _: bytes, __: HttpCall) -> Any:
    return ServerReadyResponse(ready=methods.server_ready())


async def _server_metadata(methods: OpenInference, _: bytes, __: HttpCall) -> Any:
    return methods.server_metadata()


async def _model_ready(methods: OpenInference, data: bytes, call: HttpCall) -> Any:
    request = parse(ModelReadyRequest, data)
    return ModelReadyResponse(ready=await methods.model_ready(request.name, request.version, call))


async def _model_metadata(methods: OpenInference, data: bytes, call: HttpCall) -> Any:
    request = parse(ModelMetadataRequest, data)
    return await methods.model_metadata(request.name, request.version, call)


async def _infer(methods: OpenInference, data: bytes, call: HttpCall) -> Any:
    return await methods.infer(data, _FORM, call)
