"""The protocol's methods, which gRPC and REST share: translates requests to the contract's, and replies back."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

from cutaway.contract.errors import Reason, at, error
from cutaway.contract.results import ModelName
from cutaway.contract.results.arrays import Entry, by_name, tensors, text_entries
from cutaway.contract.tensors import Buffer, bytes_in, dtype_name
from cutaway.contract.values import __version__
from cutaway.contract.wire import models as wire_models
from cutaway.contract.wire import requests as wire_requests
from cutaway.contract.wire import results as wire_results
from cutaway.contract.wire.message_walk import children
from cutaway.contract.wire.requests import SentTensor
from cutaway.server.http import json_messages
from cutaway.server.open_inference.datatypes import (
    BYTES,
    NAMES,
    byte_strings,
    data_type,
    elements,
    messages,
    packed,
    with_lengths,
)
from cutaway.server.rpc.servicer import Servicer, listed_models
from cutaway.server.rpc.status import TranslatedCall
from cutaway.v1 import capture_pb2, inspection_pb2, inspection_service_pb2, tensor_pb2

T = TypeVar("T")

CUTAWAY = "cutaway"
"""The parameter that holds an InspectRequest in JSON; in a response, the InspectResponse without its tensors."""

BINARY_OUTPUTS, BINARY_OUTPUT = "binary_data_output", "binary_data"
"""The parameters of a request and of an output that ask for bytes; by gRPC, outputs are bytes anyway."""

SIZE = "binary_data_size"
"""The parameter of an input by HTTP with the number of its bytes; KServe's client sends it by gRPC too."""

_TEXT, _FLAG, _NUMBER = ("string_param",), ("bool_param",), ("int64_param", "uint64_param")
_KNOWN = {CUTAWAY: _TEXT, "timeout": _NUMBER, BINARY_OUTPUTS: _FLAG}
_KNOWN_OF_INPUT = {SIZE: _NUMBER}
_KNOWN_OF_BYTES = {"content_type": _TEXT, SIZE: _NUMBER}


class Sent(NamedTuple):
    """A request for inference as it was sent.

    Attributes:
        message: a ModelInferRequest without its raw contents.
        raw: the raw contents of the inputs, without a copy; empty where the elements are in fields.
    """

    message: Any
    raw: Sequence[Buffer]


class Inference(NamedTuple):
    """A request for inference, translated.

    Attributes:
        request: a serialised InspectRequest.
        id: the request's id, which its response repeats.
        outputs: for each requested output, whether it is sent as bytes; empty for all outputs.
        as_bytes: whether an output that is not named is sent as bytes.
        inspects: whether the request has the parameter `CUTAWAY`.
        timeout_s: how long the call may take; None for the server's default.
    """

    request: bytes
    id: str
    outputs: Mapping[str, bool]
    as_bytes: bool
    inspects: bool
    timeout_s: float | None


def _read(sent: Sent) -> Inference:
    """Translates a ModelInferRequest.

    Raises:
        CutawayError: the request cannot be read, or needs what is not served.
    """
    message = sent.message
    _check_parameters(message.parameters, _KNOWN)
    as_bytes = BINARY_OUTPUTS in message.parameters and message.parameters[BINARY_OUTPUTS].bool_param
    outputs = _outputs(message, as_bytes=as_bytes)
    request = _inside(message)
    request.model = versioned(message.model_name, message.model_version)
    inputs = list(_inputs(sent))
    if any(tensor.datatype == BYTES for tensor, _ in inputs):
        data = wire_requests.with_examples(request, _examples(inputs))
    else:
        data = wire_requests.with_tensors(request, _tensors(inputs))
    return Inference(data, message.id, outputs, as_bytes, CUTAWAY in message.parameters, _timeout_s(message.parameters))


def _outputs(message: Any, *, as_bytes: bool) -> dict[str, bool]:
    """Returns the requested outputs, and whether each is sent as bytes."""
    outputs: dict[str, bool] = {}
    for number, output in enumerate(message.outputs):
        with at(f"outputs[{number}]"):
            _check_parameters(output.parameters, {BINARY_OUTPUT: _FLAG})
            if output.name in outputs:  # its bytes would be sent again
                raise error(Reason.INVALID_VALUE, f"{output.name!r:.80} is there already", "name")
        own = output.parameters[BINARY_OUTPUT].bool_param if BINARY_OUTPUT in output.parameters else as_bytes
        outputs[output.name] = own
    return outputs


def versioned(model: str, version: str) -> str:
    """Returns a model's name as the contract has it."""
    return f"{model}/versions/{version}" if version else model


def _inside(message: Any) -> inspection_pb2.InspectRequest:
    """Returns the request that the parameter `CUTAWAY` holds."""
    if CUTAWAY not in message.parameters:
        return inspection_pb2.InspectRequest()
    with at(f"parameters.{CUTAWAY}"):
        text = message.parameters[CUTAWAY].string_param.encode()
        request = inspection_pb2.InspectRequest.FromString(
            json_messages.binary_of(inspection_pb2.InspectRequest, text or b"{}")
        )
        for name in ("model", "tensors", "raw"):
            if request.model if name == "model" else request.HasField(name):  # type: ignore[arg-type]
                raise error(Reason.INVALID_VALUE, "is set by the request itself; leave it out", name)
    return request


_Inputs: TypeAlias = "Iterable[tuple[Any, Buffer | None]]"


def _inputs(sent: Sent) -> _Inputs:
    """Yields the inputs with their raw contents, or None where the elements are in fields."""
    raw, inputs = sent.raw, sent.message.inputs
    if raw and len(raw) != len(inputs):
        what = f"has {len(raw)} elements, and there are {len(inputs)} inputs: send one for each"
        raise error(Reason.INVALID_VALUE, what, "raw_input_contents")
    names: set[str] = set()
    for number, tensor in enumerate(inputs):
        with at(f"inputs[{number}]"):
            check_input(tensor)
            if raw and tensor.HasField("contents"):
                raise error(Reason.INVALID_VALUE, "cannot be mixed with raw_input_contents", "contents")
            if tensor.name in names:
                raise error(Reason.INVALID_VALUE, f"{tensor.name!r:.80} is there already", "name")
        names.add(tensor.name)
        yield tensor, raw[number] if raw else None


def _tensors(inputs: _Inputs) -> Iterator[tuple[str, SentTensor]]:
    for number, (tensor, raw) in enumerate(inputs):
        with at(f"inputs[{number}]"):
            name = data_type(tensor.datatype)
            data = packed(tensor.datatype, elements(tensor.datatype, tensor.contents)) if raw is None else raw
            yield tensor.name, SentTensor(name, tensor.shape, data)


def _examples(inputs: Sequence[tuple[Any, Buffer | None]]) -> Iterator[tuple[Buffer, str]]:
    """Yields the examples in the only input, of BYTES; the model's adapter decodes its elements."""
    if len(inputs) > 1:
        what = "examples of BYTES are the only input, for the model's adapter to decode; or send tensors alone"
        raise error(Reason.INVALID_VALUE, what, "inputs")
    ((tensor, raw),) = inputs
    with at("inputs[0]"):
        examples = elements(BYTES, tensor.contents) if raw is None else byte_strings(raw)
        if math.prod(tensor.shape) != len(examples):
            what = f"{list(tensor.shape)} is not the shape of {len(examples)} elements"
            raise error(Reason.TENSOR_SIZE, what, "shape")
    media_type = tensor.parameters["content_type"].string_param if "content_type" in tensor.parameters else ""
    return ((example, media_type) for example in examples)


def check_input(tensor: Any) -> None:
    """Refuses an input with parameters that are not served.

    Raises:
        CutawayError: ``NOT_IMPLEMENTED`` for shared memory, ``UNKNOWN_FIELD`` for others.
    """
    _check_parameters(tensor.parameters, _KNOWN_OF_BYTES if tensor.datatype == BYTES else _KNOWN_OF_INPUT)


def _check_parameters(parameters: Any, known: Mapping[str, Sequence[str]]) -> None:
    """Refuses parameters that are unknown or of another type, which would otherwise have no effect."""
    for name in sorted(parameters):
        if name.startswith("shared_memory"):
            raise error(Reason.NOT_IMPLEMENTED, "shared memory is not served: send the bytes", f"parameters.{name}")
        if name not in known:
            served = f"; these are: {', '.join(known)}" if known else ""
            raise error(Reason.UNKNOWN_FIELD, f"is not served{served}", f"parameters.{name:.80}")
        if (kind := parameters[name].WhichOneof("parameter_choice")) not in known[name]:
            what = f"is {kind or 'empty'}, and must be {' or '.join(known[name])}"
            raise error(Reason.INVALID_VALUE, what, f"parameters.{name}")


def _timeout_s(parameters: Any) -> float | None:
    if "timeout" not in parameters:
        return None
    microseconds: int = parameters["timeout"].int64_param or parameters["timeout"].uint64_param
    if microseconds <= 0:
        raise error(Reason.INVALID_VALUE, "is a whole number of microseconds, at least 1", "parameters.timeout")
    return microseconds / 1e6


VERDICT = "verdict"
"""The parameter of an output that is part of an attribution."""


def _response(inference: Inference, reply: bytes) -> tuple[Any, list[Buffer]]:
    """Returns the ModelInferResponse for a serialised InspectResponse, and the bytes of each output.

    Raises:
        InvalidArgument: ``OUTPUT_NOT_FOUND``.
    """
    message = inspection_pb2.InspectResponse.FromString(reply)
    del reply  # the largest reply may be here once, and twice while it is converted
    result = wire_results.decode(message)
    response = messages.ModelInferResponse(
        model_name=result.provenance.model, model_version=result.provenance.version, id=inference.id
    )
    if inference.inspects:
        _clear_tensors(message)
        response.parameters[CUTAWAY].string_param = json_format.MessageToJson(message, indent=None)
    del message
    data: list[Buffer] = []
    for name, entry in _selected(by_name([*tensors(result), *text_entries(result)]), [*inference.outputs]):
        is_text = entry.array.dtype.kind == "U"
        datatype = BYTES if is_text else NAMES[dtype_name(entry.array)]
        tensor = response.outputs.add(name=name, datatype=datatype, shape=entry.array.shape)
        if entry.attribution is not None and entry.attribution.result.checks:
            tensor.parameters[VERDICT].string_param = str(entry.attribution.result.verdict)
        data.append(with_lengths([text.encode() for text in entry.array]) if is_text else bytes_in(entry.array))
    return response, data


def _selected(outputs: Mapping[str, Entry], names: Sequence[str]) -> Iterator[tuple[str, Entry]]:
    """Yields the requested outputs by name, in the order of the request."""
    for number, name in enumerate(names or outputs):
        if name not in outputs:
            what = f"the reply has no {name!r:.80}, but {', '.join(outputs)}"
            raise error(Reason.OUTPUT_NOT_FOUND, what[:500], f"outputs[{number}].name")
        yield name, outputs[name]


_TENSORS = (tensor_pb2.Tensor.DESCRIPTOR, tensor_pb2.NamedTensor.DESCRIPTOR, capture_pb2.Capture.DESCRIPTOR)


def _clear_tensors(message: Message) -> None:
    """Clears the tensors in ``message``, which are outputs; those of an estimate are none."""
    for field, value in message.ListFields():
        if field.message_type in _TENSORS:
            message.ClearField(field.name)
        elif field.message_type is not inspection_pb2.Estimate.DESCRIPTOR:
            for _, child in children(field, value, ""):
                _clear_tensors(child)


_PLATFORM = "pytorch_eager"
_EXTENSIONS = ("binary_tensor_data", "parameters")


@dataclass(frozen=True)
class Form(Generic[T]):
    """The form of requests for inference: protobuf or JSON.

    Attributes:
        read: returns what was sent in a request.
        write: returns the reply, from the request, the ModelInferResponse and the bytes of its outputs.
    """

    read: Callable[[bytes], Sent]
    write: Callable[[Inference, Any, list[Buffer]], T]


class OpenInference:
    """The methods of the protocol, which become calls of a servicer.

    Args:
        servicer: answers the calls.
        serving: the models that answer; changes with them.

    Attributes:
        servicer: the servicer.
    """

    def __init__(self, servicer: Servicer, serving: Collection[ModelName]) -> None:
        self.servicer = servicer
        self._serving = serving

    async def server_live(self) -> Any:
        """Returns a ServerLiveResponse."""
        return messages.ServerLiveResponse(live=True)

    async def server_ready(self) -> Any:
        """Returns a ServerReadyResponse: ready if any model answers."""
        return messages.ServerReadyResponse(ready=bool(self._serving))

    async def server_metadata(self) -> Any:
        """Returns a ServerMetadataResponse."""
        return messages.ServerMetadataResponse(name="cutaway", version=__version__, extensions=_EXTENSIONS)

    async def model_ready(self, model: str) -> Any:
        """Returns a ModelReadyResponse.

        Raises:
            CutawayError: the model is not known to the caller.
        """
        return messages.ModelReadyResponse(ready=self.servicer.allow(model) in self._serving)

    async def model_metadata(self, model: str, call: TranslatedCall) -> Any:
        """Returns a ModelMetadataResponse.

        Raises:
            CutawayError: the model is not known to the caller, or does not answer.
        """
        data = wire_models.encode_model_request(model)
        reply = await self.servicer.call("GetModel", data, call) or b""
        detail = wire_models.decode(inspection_service_pb2.GetModelResponse.FromString(reply).model)
        names = await listed_models(self.servicer, call)
        response = messages.ModelMetadataResponse(
            name=detail.model.model,
            versions=[name.version for name in names if name.model == detail.model.model],
            platform=_PLATFORM,
        )
        for spec in detail.inputs:
            response.inputs.add(name=spec.name, datatype=NAMES.get(spec.data_type, ""), shape=spec.shape)
        for out in detail.outputs:
            response.outputs.add(name=out.name, datatype=NAMES[out.data_type], shape=(-1, *out.shape[1:]))
        return response

    async def infer(self, data: bytes, form: Form[T], call: TranslatedCall, cost: int) -> T:
        """Runs a model.

        Args:
            data: the request.
            form: how it is read, and its response written.
            call: may take the request's own time at most.
            cost: the bytes that are parsed.

        Raises:
            CutawayError: the request cannot be read or run, or the reply has no such output.
        """
        left = [data]
        del data
        inference = await self.servicer.convert(lambda data: _read(form.read(data)), left.pop(), call, cost)
        if inference.timeout_s is not None:
            remaining = call.time_remaining()
            call.limit(inference.timeout_s if remaining is None else min(remaining, inference.timeout_s))
        running = self.servicer.call("Inspect", inference.request, call)
        rest = inference._replace(request=b"")
        del inference
        return await self.servicer.convert(
            lambda reply: form.write(rest, *_response(rest, reply)), await running or b"", call
        )
