"""The doors of the Open Inference Protocol: any question of the contract, as its parameter `cutaway`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import grpc
import numpy as np
from google.protobuf import json_format

import cutaway as ca
from cutaway.contract.results.arrays import by_name, tensors, text_entries
from cutaway.contract.tensors import from_bytes
from cutaway.contract.wire import grpc_status, scalars
from cutaway.contract.wire import results as wire_results
from cutaway.server.open_inference.datatypes import (
    BYTES,
    DATATYPES,
    NAMES,
    SERVICE,
    byte_strings,
    messages,
    with_lengths,
)
from cutaway.server.open_inference.infer import BINARY_OUTPUTS, CUTAWAY, SIZE
from cutaway.v1 import inspection_pb2
from tests.support.doors import message, of_problem, post
from tests.support.mixed.mix import Request

HEAD = "inference-header-content-length"


class Inferred(NamedTuple):
    """A reply: its outputs by name, and the result without them."""

    outputs: Mapping[str, np.ndarray[Any, Any]]
    result: ca.InspectResult


Infer: TypeAlias = Callable[[Request], "Inferred | ca.CutawayError"]


@contextmanager
def infer_doors(address: str, http_address: str) -> Iterator[dict[str, Infer]]:
    """The two of them, by name."""
    with grpc.insecure_channel(address) as channel:
        call: Any = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        yield {"v2 by gRPC": lambda request: _grpc(call, request), "v2 by REST": lambda r: _rest(http_address, r)}


def as_inferred(result: ca.InspectResult) -> Inferred:
    """What an outcome of the contract's own protocol must be here."""
    outputs = {name: entry.array for name, entry in by_name([*tensors(result), *text_entries(result)]).items()}
    bare = tuple(replace(each, values={}, standard_errors={}, tokens=None) for each in result.attributions)
    return Inferred(
        outputs,
        replace(
            result,
            predictions={},
            unedited={},
            captures={},
            input_gradients={},
            parameter_gradients={},
            attributions=bare,
        ),
    )


def _grpc(call: Any, request: Request) -> Inferred | ca.CutawayError:
    try:
        reply = messages.ModelInferResponse.FromString(call(_asked(request).SerializeToString()))
    except grpc.RpcError as failure:
        told: Any = failure
        return grpc_status.decode(told.code().value[0], told.details(), told.trailing_metadata())
    outputs = {
        each.name: _array(each.datatype, each.shape, raw) for each, raw in zip(reply.outputs, reply.raw_output_contents)
    }
    return Inferred(outputs, _result(reply.parameters[CUTAWAY].string_param))


def _array(datatype: str, shape: Sequence[int], raw: bytes) -> np.ndarray[Any, Any]:
    if datatype == BYTES:
        return np.array([bytes(text).decode() for text in byte_strings(raw)]).reshape(shape)
    return from_bytes(DATATYPES[datatype], shape, raw)


def _rest(http_address: str, request: Request) -> Inferred | ca.CutawayError:
    asked = _asked(request)
    inputs = [
        {"name": each.name, "datatype": each.datatype, "shape": list(each.shape), "parameters": {SIZE: len(raw)}}
        for each, raw in zip(asked.inputs, asked.raw_input_contents)
    ]
    parameters = {CUTAWAY: asked.parameters[CUTAWAY].string_param, BINARY_OUTPUTS: True}
    head = json.dumps({"parameters": parameters, "inputs": inputs}).encode()
    url = f"http://{http_address}/v2/models/{asked.model_name}/infer"
    body = b"".join([head, *asked.raw_input_contents])
    status, headers, reply = post(url, body, {"content-type": "application/octet-stream", HEAD: str(len(head))})
    if status != 200:
        return of_problem(reply)
    at = int(headers.get(HEAD, len(reply)))
    told, outputs = json.loads(reply[:at]), {}
    for each in told["outputs"]:
        size = each["parameters"][SIZE]
        outputs[each["name"]] = _array(each["datatype"], each["shape"], reply[at : at + size])
        at += size
    return Inferred(outputs, _result(told["parameters"][CUTAWAY]))


def _asked(request: Request) -> Any:
    """A ModelInferRequest: the inputs as its own, all else of the question in the parameter."""
    rest = message(request)
    asked = messages.ModelInferRequest(model_name=rest.model)
    for name, tensor in rest.tensors.by_name.items():
        array = scalars.read(tensor)
        asked.inputs.add(name=name, datatype=NAMES[scalars.data_type_of(tensor)], shape=array.shape)
        asked.raw_input_contents.append(array.tobytes())
    if rest.HasField("raw"):
        examples = [each.data for each in rest.raw.examples]
        bytes_input = asked.inputs.add(name="examples", datatype="BYTES", shape=[len(examples)])
        bytes_input.parameters["content_type"].string_param = rest.raw.examples[0].media_type
        asked.raw_input_contents.append(with_lengths(examples))
    for name in ("model", "tensors", "raw"):
        rest.ClearField(name)  # type: ignore[arg-type]
    asked.parameters[CUTAWAY].string_param = json_format.MessageToJson(rest, indent=None)
    return asked


def _result(text: str) -> ca.InspectResult:
    found = json_format.Parse(text, inspection_pb2.InspectResponse())
    for attribution in found.attributions:
        attribution.ClearField("tokens")
    return wire_results.decode(found)
