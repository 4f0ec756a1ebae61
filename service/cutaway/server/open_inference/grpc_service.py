"""The protocol by gRPC."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import grpc

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.tensors import Buffer
from cutaway.contract.wire.message_walk import (
    check_entries,
    check_structure,
    field_of,
    has_few_entries,
    malformed,
    parse,
    read_fields,
    without_fields,
)
from cutaway.server.open_inference.datatypes import POOL, SERVICE, messages
from cutaway.server.open_inference.infer import Form, Inference, OpenInference, Sent, versioned
from cutaway.server.rpc.guard import Handler, RequestReader, refusing_handler, time_limited
from cutaway.server.rpc.server import GrpcService
from cutaway.server.rpc.status import TranslatedCall, abort_with

Method: TypeAlias = Callable[[bytes, TranslatedCall], Awaitable[bytes]]

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
        "ServerMetadata": handler("GetModel", lambda _, __: _serialized(methods.server_metadata())),
        "ModelReady": handler(
            "GetModel", lambda data, _: _serialized(methods.model_ready(_model(messages.ModelReadyRequest, data)))
        ),
        "ModelMetadata": handler(
            "GetModel",
            lambda data, call: _serialized(methods.model_metadata(_model(messages.ModelMetadataRequest, data), call)),
        ),
        "ModelInfer": handler("Inspect", partial(_infer, methods)),
    }
    stream: Any = partial(_stream, methods)
    limited = time_limited(
        grpc.stream_stream_rpc_method_handler(stream), RequestReader(servicer.settings.idle_timeout_s)
    )
    guarded["ModelStreamInfer"] = "Inspect", limited
    others = {
        "ServerLive": handler("GetModel", lambda _, __: _serialized(methods.server_live()))[1],
        "ServerReady": handler("GetModel", lambda _, __: _serialized(methods.server_ready()))[1],
        **{name: refusing_handler(error(Reason.NOT_IMPLEMENTED, what)) for name, what in UNSERVED.items()},
    }
    by_path = {f"/{SERVICE}/{name}": item for name, item in guarded.items()}
    handlers = [servicer.authenticating(by_path), grpc.method_handlers_generic_handler(SERVICE, others)]
    return GrpcService(SERVICE, handlers, POOL)


_REQUEST, _REPLY = messages.ModelInferRequest, messages.ModelInferResponse
_ID, _RAW = _REQUEST.ID_FIELD_NUMBER, _REQUEST.RAW_INPUT_CONTENTS_FIELD_NUMBER
_NAMES = (_REQUEST.MODEL_NAME_FIELD_NUMBER, _REQUEST.MODEL_VERSION_FIELD_NUMBER)


_MAX_FIELD_BYTES = 8 << 20
"""The most bytes outside of raw contents: parsing makes sixteen of one while a list grows."""


def _sent(methods: OpenInference, data: bytes) -> Sent:
    """Reads a ModelInferRequest of a caller who may call its model; its raw contents are stepped over.

    Raises:
        CutawayError: the model is not known to the caller; ``MALFORMED_REQUEST``; ``UNKNOWN_FIELD``;
            ``INVALID_VALUE``, for too many entries; ``REQUEST_TOO_LARGE``.
    """
    check_entries(_REQUEST, data, _REQUEST.DESCRIPTOR.full_name)
    try:
        texts = {number: value for number, value in read_fields(memoryview(data)) if number in _NAMES}
        methods.servicer.allow(versioned(*(str(texts.get(name, b""), "utf-8", "replace") for name in _NAMES)), "model")
        raw = [memoryview(value) for number, value in read_fields(memoryview(data)) if number == _RAW]
        rest = without_fields(data, (_RAW,))
    except (LookupError, TypeError):  # a text or bytes may be a number there
        raise malformed(data, _REQUEST.DESCRIPTOR.full_name) from None
    if len(rest) > _MAX_FIELD_BYTES:
        what = f"the request has {len(rest)} bytes in fields, {_MAX_FIELD_BYTES} are the most: send raw_input_contents"
        raise error(Reason.REQUEST_TOO_LARGE, what, "inputs")
    message = parse(_REQUEST, rest)
    check_structure(message, longest=math.inf)  # a parameter may be a request in JSON
    return Sent(message, raw)


def _written(_: Inference, response: Any, data: list[Buffer]) -> list[Buffer]:
    """Returns the parts of a serialised ModelInferResponse."""
    parts = [part for each in data for part in field_of(_REPLY.RAW_OUTPUT_CONTENTS_FIELD_NUMBER, each)]
    return [response.SerializeToString(), *parts]


def _model(kind: Any, data: bytes) -> str:
    """Returns the model that a request of the type ``kind`` names."""
    request = parse(kind, data)
    return versioned(request.name, request.version)


def _call(context: Any) -> TranslatedCall:
    call = TranslatedCall(context.invocation_metadata() or (), context.peer())
    call.limit(context.time_remaining())
    return call


async def _serialized(message: Awaitable[Any]) -> bytes:
    data: bytes = (await message).SerializeToString()
    return data


async def _infer(methods: OpenInference, data: bytes, call: TranslatedCall) -> bytes:
    with methods.servicer.arriving() as held:
        held.add(len(data))
        left, cost = [data], _cost(data)
        del data
        return b"".join(await methods.infer(left.pop(), Form(partial(_sent, methods), _written), call, cost))


def _cost(data: bytes) -> int:
    """Returns how many bytes are parsed of a request; of one with many fields, all."""
    if not has_few_entries(_REQUEST, data):
        return len(data)
    raw = (value for number, value in read_fields(memoryview(data)) if number == _RAW)
    return len(data) - sum(len(value) for value in raw if isinstance(value, memoryview))


async def _answer(methods: OpenInference, name: str, method: Method, data: bytes, context: Any) -> bytes | None:
    call, reply = _call(context), None
    left = [data]
    del data
    try:
        async with methods.servicer.reporting(name, call):
            reply = await method(left.pop(), call)
        context.set_trailing_metadata(call.reply_headers)
    except Exception as failure:
        context.set_trailing_metadata(call.reply_headers)
        await abort_with(context, failure)
    return reply


async def _stream(methods: OpenInference, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    """Answers the requests of a stream in order. A known error is the reply to its request; others end the stream."""
    kind = messages.ModelStreamInferResponse
    async for data in requests:
        call = _call(context)
        try:
            async with methods.servicer.reporting("Inspect", call):
                reply = b"".join(field_of(kind.INFER_RESPONSE_FIELD_NUMBER, await _infer(methods, data, call)))
        except CutawayError as failure:
            response = kind(error_message=str(failure))
            response.infer_response.id = _id(data)
            reply = response.SerializeToString()
        except Exception as failure:
            await abort_with(context, failure)
        yield reply


_FIRST = 1000


def _id(data: bytes) -> str:
    """Returns the id of a request, if it is among its first fields; the request may be anything."""
    with suppress(LookupError, TypeError):
        for number, value in islice(read_fields(memoryview(data)), _FIRST):
            if number == _ID:
                return str(value, "utf-8", "replace")
    return ""
