"""The readers, by name, and the errors that each may raise."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from starlette.datastructures import Headers

from cutaway.client.request_builder import build_request
from cutaway.client.transport import read_piece
from cutaway.contract.errors import CutawayError, Reason
from cutaway.contract.pictures import ANY, opened
from cutaway.contract.request_reader.files import parse_yaml
from cutaway.contract.results import InspectResult, Provenance
from cutaway.contract.wire import requests, stored_file
from cutaway.contract.wire.chunks import ReplyAssembler, as_message
from cutaway.jobs.spec import Job
from cutaway.server.archive import reader as archives
from cutaway.server.auth import tokens
from cutaway.server.http import replies, rest
from cutaway.server.open_inference import grpc_service, infer
from cutaway.server.open_inference import rest as open_rest
from cutaway.server.open_inference.datatypes import messages, with_lengths
from tests.support.serving import package
from tests.support.worker_calls import pieces_of

CORPUS = Path(__file__).parent / "corpus"

MOST_BYTES = 1 << 20
"""What one tensor, array or file may unpack to."""


class Reader(NamedTuple):
    """A reader of bytes, and the first bytes to try."""

    read: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    own: Reason = Reason.INVALID_VALUE  # the reason for which it may refuse, beside those of requests


def checked(name: str, data: bytes) -> None:
    """Reads ``data``; raises what the reader may not."""
    try:
        READERS[name].read(data)
    except CutawayError as failure:
        if failure.reason in (Reason.INTERNAL, Reason.OUT_OF_MEMORY) and failure.reason != READERS[name].own:
            raise


@contextlib.contextmanager
def _file(data: bytes, name: str) -> Iterator[Path]:
    with TemporaryDirectory() as directory:
        path = Path(directory) / name
        path.write_bytes(data)
        yield path


def _rest(verb: str, content_type: str) -> Callable[[bytes], object]:
    headers = Headers({"content-type": content_type})

    def read(data: bytes) -> object:
        form = rest._form(headers, MOST_BYTES)
        return requests.decode(rest._serialized(form.read, verb, "net", {}, {"x": "float32"}, data))

    return read


def _query(data: bytes) -> object:
    pairs = [tuple(part.split("=", 1)) for part in data.decode("latin-1").split("&") if "=" in part]
    given = rest._query("explain", pairs)  # type: ignore[arg-type]
    return rest._serialized(lambda _: ({}, {"tensors": {}}), "explain", "net", given, {}, b"")


def _open_inference(data: bytes) -> object:
    allows = SimpleNamespace(servicer=SimpleNamespace(allow=lambda *_: None))
    sent: Any = grpc_service._sent(allows, data)  # type: ignore[arg-type]
    return requests.decode(infer._read(sent).request)


def _open_inference_json(data: bytes) -> object:
    head, _, rest_of_it = data.partition(b"\n\n")
    return requests.decode(infer._read(open_rest.read("net", "", len(head), head + rest_of_it)).request)


def _stored(data: bytes) -> object:
    with _file(data, "explanation.cutaway") as path:
        return stored_file.read(path)


def _archive(data: bytes) -> None:
    with _file(data, "net.mar") as path, TemporaryDirectory() as directory:
        archives.read(path)
        archives.unpack(path, Path(directory))


def _tokens(data: bytes) -> object:
    with _file(data, "tokens.toml") as path:
        return tokens.read(path)


def _job(data: bytes) -> object:
    with _file(data, "job.yaml") as path:
        return Job.load(path)


def _yaml(data: bytes) -> object:
    return parse_yaml(data.decode("utf-8", "replace"), "request.yaml")


def _picture(data: bytes) -> object:
    with opened(data, ANY, most_pixels=1 << 16) as picture:
        return picture.convert("RGB")


_BETWEEN = b"\xff\xfe\xfd"


def _pieces(data: bytes) -> object:
    assembler = ReplyAssembler()
    for piece in data.split(_BETWEEN):
        assembler.add(read_piece(piece))
    return assembler.result()


def _seed_pieces() -> bytes:
    result = InspectResult({"output": np.ones((1, 2), np.float32)}, provenance=Provenance(model="net"))
    return _BETWEEN.join(as_message(piece).joined() for piece in pieces_of(result))


def _pictures() -> Iterator[bytes]:
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"):
        file = io.BytesIO()
        Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).save(file, kind)
        yield file.getvalue()


def _seed_request() -> bytes:
    asked = build_request("net", {"x": np.ones((1, 3), np.float32)}, captures=["**"], attributions=["saliency"])
    return requests.serialize(asked)


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _seed_form() -> bytes:
    parts = [
        ('name="x"; filename="x.npy"', _npy(np.ones((1, 3), np.float32))),
        ('name="request"', b'{"target": 1, "captures": ["**"]}'),
        ('name="seed"', b"7"),
    ]
    head = "--B\r\nContent-Disposition: form-data; {}\r\n\r\n"
    return b"".join(head.format(name).encode() + data + b"\r\n" for name, data in parts) + b"--B--\r\n"


def _seed_open_inference() -> bytes:
    message = messages.ModelInferRequest(model_name="net")
    message.inputs.add(name="x", datatype="BYTES", shape=[2])
    message.raw_input_contents.append(with_lengths([b"ab", b""]))
    message.parameters["cutaway"].string_param = '{"captures": [{"module": "**"}]}'
    return bytes(message.SerializeToString())


def _seed_stored() -> bytes:
    with _file(b"", "explanation.cutaway") as path:
        request = build_request("net", {"x": np.ones((1, 3), np.float32)})
        stored_file.write(
            path, request, InspectResult({"output": np.ones((1, 2), np.float32)}, provenance=Provenance(model="net"))
        )
        return path.read_bytes()


def _seed_archive() -> bytes:
    with TemporaryDirectory() as directory:
        adapter = Path(directory) / "adapter.py"
        adapter.write_text("class Net: ...")
        return package(Path(directory), "net", f"{adapter}:Net").read_bytes()


_JSON = rb"""{"instances": [[1.0, 2.0, 3.0]], "captures": ["**", {"module": "fc", "at": ["grad_output"]}],
 "attributions": [{"method": "integrated_gradients", "n_steps": 4, "baselines": {"x": [[0.5, 0, 1]]}}], "seed": 7,
 "edits": [{"edit": "scale", "module": "fc", "factor": 0.5}], "target": {"top_k": 2}}"""
_OPEN_JSON = rb"""{"id": "1", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]},
 {"name": "y", "datatype": "INT64", "shape": [1], "parameters": {"binary_data_size": 8}}],
 "outputs": [{"name": "output", "parameters": {"binary_data": true}}], "parameters": {"timeout": 5000000}}

12345678"""
_JOB = rb"""model: {archive: net.mar}
data: {path: rows.csv}
inputs: {x: {columns: [a, b], scale: 0.5}}
id: {column: name}
request: {attributions: [{method: integrated_gradients, n_steps: 8}], captures: ["**"]}
output: {folder: results}
"""
_TOKENS = b"""[tokens.ada]
sha256 = "%s"
expires = 2030-01-01T00:00:00Z
models = {net = ["predict"], "*" = ["inspect"]}
""" % (b"0" * 64)

READERS = {
    "message": Reader(requests.decode, (_seed_request(),)),
    "contract-json": Reader(
        lambda data: requests.decode(rest._contract_request("net", replies.JSON, data)),
        (b'{"tensors": {"byName": {"x": {"dataType": "DATA_TYPE_FLOAT32", "shape": ["1"], "data": "AACAPw=="}}}}',),
    ),
    "predict": Reader(_rest("predict", replies.JSON), (_JSON,)),
    "explain": Reader(_rest("explain", replies.JSON), (_JSON,)),
    "form": Reader(_rest("explain", f"{rest.FORM}; boundary=B"), (_seed_form(),)),
    "npy": Reader(_rest("predict", replies.NPY), (_npy(np.ones((2, 3), np.float32)), _npy(np.ones(2, np.int64)))),
    "npz": Reader(_rest("predict", replies.NPZ), (_npz(x=np.ones((2, 3), np.float32), y=np.zeros(4, np.int64)),)),
    "query": Reader(_query, (b'method=saliency&target=3&options={"absolute": false}&seed=7',)),
    "open-inference": Reader(_open_inference, (_seed_open_inference(),)),
    "open-inference-json": Reader(_open_inference_json, (_OPEN_JSON,)),
    "stored-file": Reader(_stored, (_seed_stored(),)),
    "archive": Reader(_archive, (_seed_archive(),)),
    "job": Reader(_job, (_JOB,)),
    "request-yaml": Reader(
        _yaml, (b"captures: ['**']\ntarget: {top_k: 2}\nedits:\n- scale: {module: fc, factor: 0.5}\n",)
    ),
    "tokens": Reader(_tokens, (_TOKENS,)),
    "picture": Reader(_picture, tuple(_pictures())),
    "reply": Reader(_pieces, (_seed_pieces(),), Reason.INTERNAL),
}
