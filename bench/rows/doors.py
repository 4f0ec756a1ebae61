"""Rows of the protocols beside gRPC: the same calls by each, against gRPC, in the same run."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

from google.protobuf import json_format

from bench import requests, servers
from bench.pipe import Pipe
from bench.requests import payload
from bench.row import Bench, Found
from bench.rows.loads import CALLERS, Door, Load, inspect_door, over
from cutaway.client.transport import SERVICE
from cutaway.v1 import inspection_pb2

_CONNECT = f"/{SERVICE}/Inspect"
_MODEL = "/v1/models/digits"


def connect(asked: str) -> tuple[str, str]:
    """Returns what follows ``http`` in the endpoint of Connect, and the same request for it."""
    return f"application/proto {_CONNECT}", asked


def connect_json(asked: str) -> tuple[str, str]:
    """Returns the same in JSON, tensors in base64."""
    message = inspection_pb2.InspectRequest.FromString(base64.b64decode(asked))
    return f"application/json {_CONNECT}", _coded(json_format.MessageToJson(message, indent=None))


def rest(_: str) -> tuple[str, str]:
    """Returns the same for KServe's ``:predict``, tensors in lists."""
    _, inputs, options = requests.inside()
    asked = {"instances": inputs["image"].tolist(), **options}
    return f"application/json {_MODEL}:predict", _coded(json.dumps(asked))


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def rate(bench: Bench, door: Callable[[str], tuple[str, str]]) -> Found:
    """Measures calls per second by ``door`` against gRPC."""
    return _measured(bench, door, CALLERS)


def lone(bench: Bench, door: Callable[[str], tuple[str, str]]) -> Found:
    """Measures the latency of a lone caller by ``door`` against gRPC."""
    return _measured(bench, door, 1)


def _measured(bench: Bench, door: Callable[[str], tuple[str, str]], callers: int) -> Found:
    asked = payload(requests.inside())
    store = bench.store.of("digits")
    with servers.cutaway(store, CUTAWAY_HTTP_ADDRESS="127.0.0.1:0") as server, Pipe("bench.parts.load") as pipe:
        load = Load(pipe)
        path, other = door(asked)
        sides = {"by HTTP": (Door("http", server.http_address, path), [other])}
        sides["by gRPC"] = (inspect_door(server.address), [asked])
        if callers == 1:
            return over({name: load.middle(*side) for name, side in sides.items()}, bench.rounds, "s")
        return over({name: load.rate(*side, callers) for name, side in sides.items()}, bench.rounds, "calls/s")
