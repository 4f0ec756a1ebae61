"""Hostile requests, generated: right ones of every door in which something is nested, repeated, oversized or broken."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

from google.protobuf.json_format import MessageToDict

import cutaway as ca
from cutaway.client.request_builder import build_request
from cutaway.client.transport import GatewayTransport
from cutaway.contract.wire.message_walk import prefix
from cutaway.server.open_inference.datatypes import messages
from cutaway.v1 import inspection_pb2
from tests.hostile.doors import DOORS, MANNERS, MODEL, Case, delimited
from tests.hostile.files import IMAGE, files, form, npy, npz, part, pictures, png, tensors
from tests.support.mixed import digits

SEED = 39
PLACES = 5
"""Values of a seed that each hostile value takes the place of, at each door."""


def cases() -> list[Case]:
    """Returns all of them, always the same, in an order of no meaning."""
    dice = random.Random(SEED)
    made = [*_values(dice), *_broken_bytes(dice), *_fields(dice), *_manners(), *files(), *pictures(), *tensors()]
    assert len({case.name for case in made}) == len(made)
    dice.shuffle(made)
    return made


# Right requests, by language.


def _asked(kind: str, **asked: Any) -> bytes:
    kinds = {each.name: each for each in digits.KINDS}
    inputs = kinds[kind].inputs if kind else None
    return (
        GatewayTransport()
        .inspect(build_request(MODEL, inputs or {"image": IMAGE}, **(kinds[kind].asked if kind else asked)))
        .payload
    )


ASKED = (
    "image files", "all points", "operator's input", "elements", "squared error", "cotangent", "reductions", "add",
    "slices and half numbers", "replace a row", "mix", "rows and slices", "explained under an edit",
)  # fmt: skip
METHODS = [ca.FeatureAblation(baselines={"image": 0.5}), ca.Saliency(target=ca.TopK(2))]
PROTO = (*map(_asked, ASKED), _asked("", attributions=METHODS))

V1: tuple[dict[str, Any], ...] = (
    {"instances": IMAGE.tolist()},
    {"instances": IMAGE.tolist(), "captures": ["conv2", {"module": "fc1", "at": ["input"], "reduce": {"mean": [1]}}]},
    {"instances": [{"image": IMAGE[0].tolist()}], "target": 3, "input_gradients": True, "seed": 7},
    {"instances": IMAGE.tolist(), "edits": [
        {"edit": "scale", "module": "conv1", "factor": 2, "rows": [0]},
        {"edit": "replace", "module": "fc1", "tensor": [0.5] * 32, "slices": [{"axis": 1, "start": 0, "stop": 9}]}]},
    {"instances": IMAGE.tolist(), "check": "independent", "attributions": [
        {"method": "integrated_gradients", "n_steps": 3, "baselines": {"image": 0.5}},
        {"method": "occlusion", "windows": {"image": [1, 4, 4]}, "target": {"top_k": 2}}]},
    {"instances": [{"b64": "iVBORw0KGgo=", "media_type": "image/png"}], "compare": True},
)  # fmt: skip

_TENSOR: dict[str, Any] = {"name": "image", "shape": [2, 1, 8, 8], "datatype": "FP32", "data": IMAGE.ravel().tolist()}
V2: tuple[dict[str, Any], ...] = (
    {"id": "1", "inputs": [_TENSOR], "outputs": [{"name": "output", "parameters": {"binary_data": True}}]},
    {"inputs": [_TENSOR], "parameters": {"cutaway": json.dumps({"captures": ["conv2"]}), "binary_data_output": True}},
    {"inputs": [{**_TENSOR, "datatype": "BYTES", "shape": [2], "data": ["a", "b"]}]},
)


def _v2_messages() -> Iterator[bytes]:
    for parameters in ({}, {"cutaway": json.dumps({"captures": ["fc1"]})}):
        message = messages.ModelInferRequest(model_name=MODEL)
        message.inputs.add(name="image", datatype="FP32", shape=IMAGE.shape)
        message.raw_input_contents.append(IMAGE.tobytes())
        message.outputs.add(name="output")
        for name, text in parameters.items():
            message.parameters[name].string_param = text
        yield message.SerializeToString()


JSON_OF = {
    "json": [MessageToDict(inspection_pb2.InspectRequest.FromString(payload)) for payload in PROTO],
    "v1": list(V1),
    "v2": list(V2),
}
BYTES_OF: dict[str, list[bytes]] = {
    **{language: [json.dumps(document).encode() for document in seeds] for language, seeds in JSON_OF.items()},
    "proto": list(PROTO),
    "v2 proto": list(_v2_messages()),
    "form": [form(part("instances", png(), file=True), part("captures", b'["conv2"]'), part("seed", b"3"))],
    "npy": [npy(IMAGE)],
    "npz": [npz(image=IMAGE)],
}


# Values of JSON in each other's place.

VALUES: dict[str, Callable[[], bytes]] = {
    "null": lambda: b"null",
    "true": lambda: b"true",
    "minus one": lambda: b"-1",
    "huge": lambda: b"1e400",
    "half": lambda: b"0.5",
    "not a number": lambda: b"NaN",
    "infinite": lambda: b"-Infinity",
    "2^63": lambda: b"9223372036854775808",
    "2^31": lambda: b"2147483648",
    "digits": lambda: b"9" * 300_000,
    "fraction": lambda: b"0." + b"1" * 300_000,
    "empty text": lambda: b'""',
    "text": lambda: b'"text"',
    "number as text": lambda: b'"1"',
    "surrogate": lambda: rb'"\ud800"',
    "zero byte": lambda: rb'"\u0000"',
    "escape": lambda: rb'"\u001b[31m"',
    "glob": lambda: b'"' + b"*?[" * 100_000 + b'"',
    "long text": lambda: b'"' + b"a" * 3_000_000 + b'"',
    "two bytes a letter": lambda: b'"' + "\u00e4".encode() * 1_000_000 + b'"',
    "no UTF-8": lambda: b'"\xff\xfe"',
    "empty list": lambda: b"[]",
    "empty object": lambda: b"{}",
    "list of null": lambda: b"[null]",
    "101 deep": lambda: b"[" * 101 + b"]" * 101,
    "objects deep": lambda: b'{"a":' * 99 + b"1" + b"}" * 99,
    "50,000 deep": lambda: b"[" * 50_000 + b"]" * 50_000,
    "never closed": lambda: b"[" * 1_000_000,
    "values": lambda: b"[" + b"0," * 1_000_000 + b"0]",
    "more values": lambda: b"[" + b"0," * 6_000_000 + b"0]",
    "objects": lambda: b"[" + b"{}," * 90_000 + b"{}]",
    "more objects": lambda: b"[" + b"{}," * 3_000_000 + b"{}]",
    "texts": lambda: b"[" + b'"a",' * 90_000 + b'"b"]',
    "long and short texts": lambda: b'["' + b"a" * 100_000 + b'"' + b',""' * 90_000 + b"]",
    "names": lambda: b"{" + b",".join(b'"%d":1' % number for number in range(90_000)) + b"}",
    "a name twice": lambda: b'{"name":"a","name":"b"}',
    "ragged": lambda: b"[[1,2],[3],4,[[5]]]",
    "base64": lambda: b'"' + b"AAAA" * 700_000 + b'"',
    "no base64": lambda: b'"===="',
    "comment": lambda: b"1/*c*/",
}
_HERE = "\ue000here\ue001"


def _values(dice: random.Random) -> Iterator[Case]:
    for door, (value, make) in product(
        ("connect json", "predict", "explain", "inspect", "program", "v2"), VALUES.items()
    ):
        for number in range(PLACES):
            seed = dice.choice(JSON_OF[DOORS[door].language])
            place = dice.choice([*_paths(seed)])
            yield Case(f"{door}: {value} at {_shown(place)} ({number})", door, partial(_with_value, seed, place, make))
    for (value, make), door in product(VALUES.items(), ("form", "v2 request", "v2 grpc request")):
        for number in range(2):
            seed = {key: own for key, own in dice.choice(V1[1:5]).items() if key != "instances"}
            place = dice.choice([*_paths(seed)])
            body = partial(_enclosed, door, partial(_with_value, seed, place, make))
            yield Case(f"{door}: {value} at {_shown(place)} ({number})", door.removesuffix(" request"), body)


def _enclosed(door: str, make: Callable[[], bytes]) -> bytes:
    """A request in JSON, inside a field of another."""
    request = make()
    if door == "form":
        return form(part("instances", png(), file=True), part("request", request))
    text = request.decode(errors="replace")
    if door == "v2 request":
        return json.dumps({"inputs": [_TENSOR], "parameters": {"cutaway": text}}).encode()
    message = messages.ModelInferRequest.FromString(next(_v2_messages()))
    message.parameters["cutaway"].string_param = text
    return bytes(message.SerializeToString())


def _paths(document: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The places of all values, the first few of each list."""
    if path:
        yield path
    if isinstance(document, dict):
        for key, value in document.items():
            yield from _paths(value, (*path, key))
    elif isinstance(document, list):
        for number, value in enumerate(document[:2]):
            yield from _paths(value, (*path, number))


def _shown(path: Sequence[str | int]) -> str:
    return ".".join(map(str, path))


def _with_value(seed: Any, place: Sequence[str | int], make: Callable[[], bytes]) -> bytes:
    document = json.loads(json.dumps(seed))
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = _HERE
    return json.dumps(document, ensure_ascii=False).encode().replace(f'"{_HERE}"'.encode(), make())


# Bytes that are cut, changed and repeated.

Broken = Callable[[random.Random, bytes], bytes]

BROKEN: dict[str, Broken] = {
    "empty": lambda dice, data: b"",
    "cut": lambda dice, data: data[: dice.randrange(len(data))],
    "cut at the end": lambda dice, data: data[:-1],
    "twice": lambda dice, data: data * 2,
    "a thousand times": lambda dice, data: data * 1000,
    "backwards": lambda dice, data: data[::-1],
    "more behind": lambda dice, data: data + dice.randbytes(100),
    "zeros behind": lambda dice, data: data + bytes(30_000_000),
    "noise": lambda dice, data: dice.randbytes(len(data)),
    "a bit": lambda dice, data: _flipped(dice, data, 1),
    "bits": lambda dice, data: _flipped(dice, data, 16),
    "a piece less": lambda dice, data: _less(dice, data),
    "a piece twice": lambda dice, data: _again(dice, data, 1),
    "a piece often": lambda dice, data: _again(dice, data, 10_000),
    "in UTF-16": lambda dice, data: data.decode("latin-1").encode("utf-16"),
    "with a mark": lambda dice, data: b"\xef\xbb\xbf" + data,
}


def _flipped(dice: random.Random, data: bytes, count: int) -> bytes:
    changed = bytearray(data)
    for _ in range(count):
        changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def _less(dice: random.Random, data: bytes) -> bytes:
    at = dice.randrange(len(data))
    return data[:at] + data[at + dice.randrange(1, 40) :]


def _again(dice: random.Random, data: bytes, times: int) -> bytes:
    at = dice.randrange(len(data))
    end = at + dice.randrange(1, 40)
    return data[:end] + data[at:end] * times + data[end:]


def _broken_bytes(dice: random.Random) -> Iterator[Case]:
    for door, (name, breaks), number in product(DOORS, BROKEN.items(), range(3)):
        seed = dice.choice(BYTES_OF[DOORS[door].language])
        own = random.Random(dice.random())
        headers = {"inference-header-content-length": str(len(seed))} if door == "v2 binary" else {}
        yield Case(f"{door}: {name} ({number})", door, partial(breaks, own, seed), headers)


# Fields of protobuf that lie.

FIELDS: dict[str, Callable[[int], bytes]] = {
    "empty messages": lambda number: prefix(number, 0) * 5_000_000,
    "fewer empty messages": lambda number: prefix(number, 0) * 90_000,
    "deep": lambda number: _nested(number, 20_000),
    "short of bytes": lambda number: prefix(number, 1 << 40),
    "short by one": lambda number: prefix(number, 9) + b"abcdefgh",
    "as a number": lambda number: bytes([number << 3, 1]),
    "as 64 bits": lambda number: bytes([number << 3 | 1]) + bytes(8),
    "as a group": lambda number: bytes([number << 3 | 3]),
    "group's end": lambda number: bytes([number << 3 | 4]),
    "unknown type": lambda number: bytes([number << 3 | 6]),
    "long number": lambda number: bytes([number << 3]) + b"\xff" * 20,
    "text of 8 MB": lambda number: delimited(number, b"a" * 8_000_000),
    "no UTF-8": lambda number: delimited(number, b"\xff\xfe\xfd"),
    "numbers": lambda number: delimited(number, b"\x01" * 8_000_000),
}


def _nested(number: int, depth: int) -> bytes:
    data = b""
    for _ in range(depth):
        data = delimited(number, data)
        if len(data) > 100_000:
            break
    return data


def _fields(dice: random.Random) -> Iterator[Case]:
    doors = [name for name, door in DOORS.items() if "proto" in door.language]
    for door, (name, make) in product(doors, FIELDS.items()):
        seeds = BYTES_OF[DOORS[door].language]
        for number in dice.sample(range(1, 16), 4):
            yield Case(f"{door}: {name} in field {number}", door, partial(_added, dice.choice(seeds), make, number))


def _added(seed: bytes, make: Callable[[int], bytes], number: int) -> bytes:
    return seed + make(number)


# How bytes arrive, and what headers say.

HEADERS: dict[str, dict[str, str]] = {
    "gzip that is none": {"content-encoding": "gzip"},
    "zstd that is none": {"content-encoding": "zstd"},
    "unknown encoding": {"content-encoding": "rot13"},
    "no media type": {"content-type": ""},
    "other media type": {"content-type": "application/x-python-pickle"},
    "form without a boundary": {"content-type": "multipart/form-data"},
    "form of a long boundary": {"content-type": "multipart/form-data; boundary=" + "x" * 5000},
    "unknown charset": {"content-type": "application/json; charset=utf-32"},
    "accepts nothing": {"accept": "image/png"},
    "accepts much": {"accept": ",".join(["application/json;q=0.1"] * 500)},
    "deadline of no number": {"connect-timeout-ms": "soon", "grpc-timeout": "soon"},
    "deadline of ages": {"connect-timeout-ms": "9" * 10, "grpc-timeout": "99999999H"},
    "negative header length": {"inference-header-content-length": "-5"},
    "long header length": {"inference-header-content-length": "9" * 30},
    "trace of noise": {"traceparent": "00-" + "z" * 3000},
    "other origin": {"origin": "https://evil.example"},
    "other host": {"host": "evil.example"},
    "token of letters": {"authorization": "Bearer \u00e4\u00f6"},
}


def _manners() -> Iterator[Case]:
    doors = {name: door for name, door in DOORS.items() if door.kind}
    for name, door in doors.items():
        seed = BYTES_OF[door.language][0]
        for manner in MANNERS:
            yield Case(f"{name}: {manner}", name, partial(bytes, seed), manner=manner)
        for header, headers in HEADERS.items():
            yield Case(f"{name}: {header}", name, partial(bytes, seed), headers)
