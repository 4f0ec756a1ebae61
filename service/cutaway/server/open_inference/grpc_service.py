"""The protocol by gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import grpc

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.wire.message_walk import parse
from cutaway.server.open_inference.datatypes import POOL, SERVICE, messages
from cutaway.server.open_inference.infer import Form, OpenInference, versioned
from cutaway.server.rpc.guard import Handler, refusing_handler, time_limited
from cutaway.server.rpc.server import GrpcService
from cutaway.server.rpc.status import TranslatedCall, abort_with

Method: TypeAlias = Callable[[bytes, TranslatedCall], Awaitable[Any]]

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


def grpc_service(methods: OpenInference) -> GrpcService:
    """Returns the service. Whether the server lives and is ready is told to everybody, as by health checks."""
    servicer = methods.servicer

    def handler(name: str, method: Method) -> tuple[str, Handler]:
        return servicer.receiving(name, partial(_answer, methods, name, method))

    guarded = {
        "ServerMetadata": handler("GetModel", lambda _, __: methods.server_metadata()),
        "ModelReady": handler(
            "GetModel", lambda data, _: methods.model_ready(_model(messages.ModelReadyRequest, data))
        ),
        "ModelMetadata": handler(
            "GetModel", lambda data, call: methods.model_metadata(_model(messages.ModelMetadataRequest, data), call)
        ),
        "ModelInfer": handler("Inspect", lambda data, call: methods.infer(data, _FORM, call)),
    }
    stream: Any = partial(_stream, methods)
    limited = time_limited(grpc.stream_stream_rpc_method_handler(stream), servicer.settings.idle_timeout_s)
    guarded["ModelStreamInfer"] = "Inspect", limited
    others = {
        "ServerLive": handler("GetModel", lambda _, __: methods.server_live())[1],
        "ServerReady": handler("GetModel", lambda _, __: methods.server_ready())[1],
        **{name: refusing_handler(error(Reason.NOT_IMPLEMENTED, what)) for name, what in UNSERVED.items()},
    }
    by_path = {f"/{SERVICE}/{name}": item for name, item in guarded.items()}
    handlers = [servicer.authenticating(by_path), grpc.method_handlers_generic_handler(SERVICE, others)]
    return GrpcService(SERVICE, handlers, POOL)


_FORM = Form[Any](partial(parse, messages.ModelInferRequest), lambda _, response: response)


def _model(kind: Any, data: bytes) -> str:
    """Returns the model that a request of the type ``kind`` names."""
    request = parse(kind, data)
    return versioned(request.name, request.version)


def _call(context: Any) -> TranslatedCall:
    call = TranslatedCall(context.invocation_metadata() or (), context.peer())
    call.limit(context.time_remaining())
    return call


async def _answer(methods: OpenInference, name: str, method: Method, data: bytes, context: Any) -> bytes | None:
    call, reply = _call(context), None
    try:
        async with methods.servicer.reporting(name, call):
            reply = (await method(data, call)).SerializeToString()
        context.set_trailing_metadata(call.reply_headers)
    except Exception as failure:
        context.set_trailing_metadata(call.reply_headers)
        await abort_with(context, failure)
    return reply


async def _stream(methods: OpenInference, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    """Answers one request after the other; an error is that of its request."""
    async for data in requests:
        call, response = _call(context), messages.ModelStreamInferResponse()
        try:
            async with methods.servicer.reporting("Inspect", call):
                response.infer_response.CopyFrom(await methods.infer(data, _FORM, call))
        except CutawayError as failure:
            response.error_message = str(failure)
            with suppress(CutawayError):
                response.infer_response.id = parse(messages.ModelInferRequest, data).id
        except Exception as failure:
            await abort_with(context, failure)
        yield response.SerializeToString()
