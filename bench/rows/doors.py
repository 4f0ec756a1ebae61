"""Rows of the protocols beside gRPC: the same calls by each, against gRPC, in the same run."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from typing import Any, TypeAlias

from google.protobuf import json_format

from bench import requests, servers
from bench.pipe import Pipe
from bench.requests import payload
from bench.row import Bench, Found
from bench.rows.loads import CALLERS, Door, Load, inspect_door, over
from cutaway.client.transport import SERVICE
from cutaway.server.open_inference.datatypes import messages
from cutaway.v1 import inspection_pb2

_CONNECT = f"/{SERVICE}/Inspect"
_MODEL = "digits"

Asked: TypeAlias = tuple[str, str, bytes]
"""``grpc`` or ``http``, the path of a `bench.rows.loads.Door`, and a request."""

Ask: TypeAlias = Callable[[bytes], Asked]
"""Returns a request of the contract as a protocol has it."""


def connect(asked: bytes) -> Asked:
    """Returns the request by Connect."""
    return "http", f"application/proto {_CONNECT}", asked


def connect_json(asked: bytes) -> Asked:
    """Returns the same in JSON, tensors in base64."""
    message = inspection_pb2.InspectRequest.FromString(asked)
    return "http", f"application/json {_CONNECT}", json_format.MessageToJson(message, indent=None).encode()


def grpc_web(asked: bytes) -> Asked:
    """Returns the same by gRPC-Web: one frame, with its length before it."""
    return "http", f"application/grpc-web+proto {_CONNECT}", struct.pack(">BI", 0, len(asked)) + asked


def rest(__: bytes) -> Asked:
    """Returns the same for KServe's ``:predict``, tensors in lists."""
    _, inputs, options = requests.inside()
    text = json.dumps({"instances": inputs["image"].tolist(), **options})
    return "http", f"application/json /v1/models/{_MODEL}:predict", text.encode()


def v2(asked: bytes) -> Asked:
    """Returns the same for the Open Inference Protocol by gRPC."""
    return "grpc", "/inference.GRPCInferenceService/ModelInfer", _inference(asked).SerializeToString()


def v2_rest(asked: bytes) -> Asked:
    """Returns the same by REST, bytes behind JSON."""
    message = _inference(asked)
    ((tensor, raw),) = zip(message.inputs, message.raw_input_contents)
    size = {"binary_data_size": len(raw)}
    head = json.dumps(
        {
            "parameters": {"cutaway": message.parameters["cutaway"].string_param, "binary_data_output": True},
            "inputs": [{"name": tensor.name, "datatype": "FP32", "shape": [*tensor.shape], "parameters": size}],
        }
    ).encode()
    length = f"Inference-Header-Content-Length:{len(head)}"
    return "http", f"application/octet-stream /v2/models/{_MODEL}/infer {length}", head + raw


def _inference(asked: bytes) -> Any:
    """Returns a ModelInferRequest: the input as its own, all else in the parameter ``cutaway``."""
    rest = inspection_pb2.InspectRequest.FromString(asked)
    message = messages.ModelInferRequest(model_name=_MODEL)
    for name, tensor in rest.tensors.by_name.items():
        message.inputs.add(name=name, datatype="FP32", shape=tensor.shape)
        message.raw_input_contents.append(tensor.data)
    rest.ClearField("model")
    rest.ClearField("tensors")
    message.parameters["cutaway"].string_param = json_format.MessageToJson(rest, indent=None)
    return message


PROTOCOLS: tuple[tuple[str, str, Ask, float, float], ...] = (
    ("connect", "by Connect", connect, 0.6, 2),
    ("connect_json", "by Connect in JSON", connect_json, 0, 0),
    ("grpc_web", "by gRPC-Web", grpc_web, 0, 0),
    ("rest", "by REST, numbers in lists", rest, 0, 0),
    ("v2", "by the Open Inference Protocol, in gRPC", v2, 0, 0),
    ("v2_rest", "by the Open Inference Protocol, by REST", v2_rest, 0, 0),
)
"""Each protocol beside gRPC: name, words, requests, and the bounds of its rate and its latency; 0 for none."""


def rate(bench: Bench, ask: Ask) -> Found:
    """Measures calls per second by ``ask`` against gRPC."""
    return _measured(bench, ask, CALLERS)


def lone(bench: Bench, ask: Ask) -> Found:
    """Measures the latency of a lone caller by ``ask`` against gRPC."""
    return _measured(bench, ask, 1)


def _measured(bench: Bench, ask: Ask, callers: int) -> Found:
    asked = payload(requests.inside())
    store = bench.store.of(_MODEL)
    with servers.cutaway(store, CUTAWAY_HTTP_ADDRESS="127.0.0.1:0") as server, Pipe("bench.parts.load") as pipe:
        load = Load(pipe)
        kind, path, other = ask(base64.b64decode(asked))
        address = server.address if kind == "grpc" else server.http_address
        sides = {"other": (Door(kind, address, path), [base64.b64encode(other).decode()])}
        sides["by gRPC"] = (inspect_door(server.address), [asked])
        if callers == 1:
            return over({name: load.middle(*side) for name, side in sides.items()}, bench.rounds, "s")
        return over({name: load.rate(*side, callers) for name, side in sides.items()}, bench.rounds, "calls/s")
