"""A response of the contract as a response to a request for inference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import json_format

from cutaway.errors import Reason, error
from cutaway.gateway.open_inference.datatypes import NAMES
from cutaway.gateway.open_inference.infer_request import CUTAWAY, Inference
from cutaway.gateway.open_inference.messages import ModelInferResponse
from cutaway.results.named_arrays import NamedArray, named_tensors
from cutaway.schema.tensors import dtype_name, to_bytes
from cutaway.v1 import inspection_pb2
from cutaway.wire import results as wire_results

VERDICT = "verdict"
"""The parameter of an output that is part of an attribution."""


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
    for output in _selected({output.name: output for output in named_tensors(result)}, asked.outputs):
        tensor = response.outputs.add(
            name=output.name, datatype=NAMES[dtype_name(output.array)], shape=output.array.shape
        )
        if output.verdict:
            tensor.parameters[VERDICT].string_param = output.verdict
        response.raw_output_contents.append(to_bytes(output.array))
    if asked.inspects:
        response.parameters[CUTAWAY].string_param = json_format.MessageToJson(_without_tensors(message), indent=None)
    return response


def _selected(outputs: Mapping[str, NamedArray], names: tuple[str, ...]) -> Iterator[NamedArray]:
    """Yields the outputs that are asked for, in that order."""
    for number, name in enumerate(names or outputs):
        if name not in outputs:
            what = f"the reply has no {name!r:.80}, but {', '.join(outputs)}"
            raise error(Reason.OUTPUT_NOT_FOUND, what[:500], f"outputs[{number}].name")
        yield outputs[name]


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
