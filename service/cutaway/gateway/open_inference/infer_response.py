"""A response of the contract as a response to a request for inference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from google.protobuf import json_format

from cutaway.errors import Reason, error
from cutaway.gateway.open_inference.datatypes import NAMES
from cutaway.gateway.open_inference.infer_request import CUTAWAY, Inference
from cutaway.gateway.open_inference.messages import ModelInferResponse
from cutaway.results import AttributionResult, CapturedCall, InspectResult
from cutaway.schema.tensors import Array, dtype_name, to_bytes
from cutaway.v1 import inspection_pb2
from cutaway.wire import results as wire_results
from cutaway.wire.methods import METHODS

VERDICT = "verdict"
"""The parameter of an output that is part of an attribution."""

_METHOD_FIELDS = {kind.__name__: field for field, kind in METHODS.kinds.items()}
"""The contract's fields for methods, by the names that attributions have."""


class _Output(NamedTuple):
    """A tensor of a response.

    Attributes:
        name: unique in the response after `_numbered`.
        array: its elements.
        verdict: of the attribution that it belongs to; empty for any other tensor.
    """

    name: str
    array: Array
    verdict: str = ""


def write(asked: Inference, reply: bytes) -> Any:
    """Returns the ModelInferResponse for a serialised InspectResponse.

    Raises:
        InvalidArgument: ``OUTPUT_NOT_FOUND``.
    """
    message = inspection_pb2.InspectResponse.FromString(reply)
    result = wire_results.decode(message)
    response = ModelInferResponse(
        model_name=result.provenance.model, model_version=result.provenance.version, id=asked.id
    )
    for output in _selected({output.name: output for output in _numbered(_outputs(result))}, asked.outputs):
        tensor = response.outputs.add(
            name=output.name, datatype=NAMES[dtype_name(output.array)], shape=output.array.shape
        )
        if output.verdict:
            tensor.parameters[VERDICT].string_param = output.verdict
        response.raw_output_contents.append(to_bytes(output.array))
    if asked.inspects:
        response.parameters[CUTAWAY].string_param = json_format.MessageToJson(_without_tensors(message), indent=None)
    return response


def _selected(outputs: Mapping[str, _Output], names: tuple[str, ...]) -> Iterator[_Output]:
    """Yields the outputs that are asked for, in that order."""
    for number, name in enumerate(names or outputs):
        if name not in outputs:
            what = f"the reply has no {name!r:.80}, but {', '.join(outputs)}"
            raise error(Reason.OUTPUT_NOT_FOUND, what[:500], f"outputs[{number}].name")
        yield outputs[name]


def _numbered(outputs: Iterator[_Output]) -> Iterator[_Output]:
    """Yields the outputs; the second one of a name has ``#1`` behind it, the third one ``#2``."""
    seen: Counter[str] = Counter()
    for output in outputs:
        before = seen[output.name]
        seen[output.name] += 1
        yield output._replace(name=f"{output.name}#{before}") if before else output


def _outputs(result: InspectResult) -> Iterator[_Output]:
    yield from _named("", result.predictions)
    yield from _named("unedited:", result.unedited)
    for module, capture in result.captures.items():
        for call in capture.calls:
            yield from _captured(module, call)
    yield from _named("gradient:", result.input_gradients)
    yield from _named("parameter_gradient:", result.parameter_gradients)
    for attribution in result.attributions:
        yield from _attributed(attribution)


def _named(prefix: str, arrays: Mapping[str, Array], verdict: str = "") -> Iterator[_Output]:
    for name, array in arrays.items():
        yield _Output(f"{prefix}{name}", array, verdict)


def _captured(module: str, call: CapturedCall) -> Iterator[_Output]:
    for kind, by_point in (("capture", call.leaves), ("positions", call.positions)):
        for point, leaves in by_point.items():
            for path, array in leaves.items():
                yield _Output(f"{kind}:{module}@{point.value}{path and ':'}{path}", array)


def _attributed(attribution: AttributionResult) -> Iterator[_Output]:
    method = _METHOD_FIELDS[attribution.method]
    verdict = str(attribution.verdict or "")
    yield from _named(f"attribution:{method}:", attribution.values, verdict)
    yield from _named(f"standard_error:{method}:", attribution.standard_errors, verdict)
    if attribution.tokens is not None:
        tokens = {"ids": attribution.tokens.ids, "values": attribution.tokens.values}
        yield from _named(f"tokens:{method}:", tokens, verdict)


def _without_tensors(message: inspection_pb2.InspectResponse) -> inspection_pb2.InspectResponse:
    """Clears the tensors of ``message``, which are outputs, and returns it."""
    for name in ("captures", "input_gradients", "parameter_gradients"):
        message.ClearField(name)
    message.predictions.ClearField("outputs")
    if message.HasField("unedited_predictions"):
        message.unedited_predictions.ClearField("outputs")
    for attribution in message.attributions:
        attribution.ClearField("values")
        attribution.ClearField("standard_errors")
        if attribution.HasField("tokens"):
            attribution.tokens.ClearField("ids")
            attribution.tokens.ClearField("values")
    return message
