"""Files, pictures and tensors that are not what they say, and right ones to start from."""

from __future__ import annotations

import base64
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from PIL import Image

from cutaway.server.open_inference.datatypes import messages
from cutaway.v1 import inspection_pb2
from tests.hostile.doors import MODEL, Case

IMAGE = np.zeros((2, 1, 8, 8), np.float32)


def part(name: str, data: bytes, file: bool = False) -> bytes:
    named = '; filename="f.png"' if file else ""
    head = f'--XbX\r\nContent-Disposition: form-data; name="{name}"{named}\r\n'
    return (head + ("Content-Type: image/png\r\n\r\n" if file else "\r\n")).encode() + data + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--XbX--\r\n"


def png() -> bytes:
    file = io.BytesIO()
    Image.new("L", (8, 8)).save(file, "png")
    return file.getvalue()


def npy(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(image: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, image=image)
    return file.getvalue()


# Files of arrays.

NPY_HEADS = {
    "a trillion": "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}",
    "negative": "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4)}",
    "overflow": "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 4)}",
    "objects": "{'descr': '|O', 'fortran_order': False, 'shape': (2,)}",
    "texts": "{'descr': '<U100000', 'fortran_order': False, 'shape': (9,)}",
    "no bytes an element": "{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000,)}",
    "record": "{'descr': [('a', '<f4'), ('b', '|O')], 'fortran_order': False, 'shape': (2,)}",
    "times": "{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (2,)}",
    "surrogate": "{'descr': '\\ud800', 'fortran_order': False, 'shape': (2,)}",
    "nested": "{'descr': " + "(" * 5000 + ")" * 5000 + ", 'fortran_order': False, 'shape': (2,)}",
    "nested shape": "{'descr': '<f4', 'fortran_order': False, 'shape': " + "(" * 90 + "2" + ",)" * 90 + "}",
    "call": "{'descr': '<f4', 'fortran_order': False, 'shape': __import__('os').getpid()}",
    "many axes": "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1," * 100 + ")}",
    "no shape": "{'descr': '<f4', 'fortran_order': False}",
    "no dict": "[1, 2, 3]",
    "zero byte": "{'descr': '<f4', \0",
    "digits": "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 9000 + ",)}",
    "truth": "{'descr': '<f4', 'fortran_order': 2, 'shape': (True, True)}",
}


def _npy_with(head: str, version: int = 1, data: bytes = bytes(64)) -> bytes:
    text = head.encode("utf-8", "surrogatepass") + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + data


def _zipped(*members: tuple[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return file.getvalue()


def files() -> Iterator[Case]:
    for name, head in NPY_HEADS.items():
        for version in (1, 2, 3, 9):
            body = partial(_npy_with, head, version)
            yield Case(f"npy: {name}, version {version}", "npy", body)
            yield Case(f"npz: {name}, version {version}", "npz", partial(_in_npz, body))
    archives: dict[str, Callable[[], bytes]] = {
        "bomb": lambda: _zipped(("image.npy", bytes(300_000_000))),
        "bomb of an array": lambda: _zipped(("image.npy", _npy_with(NPY_HEADS["a trillion"], data=bytes(200_000_000)))),
        "lzma": lambda: _zipped(("image.npy", bytes(100_000_000)), compression=zipfile.ZIP_LZMA),
        "bzip2": lambda: _zipped(("image.npy", bytes(100_000_000)), compression=zipfile.ZIP_BZIP2),
        "in each other": lambda: _zipped(("image.npz", _zipped(("image.npz", _zipped(("image.npy", b"")))))),
        "members": lambda: _zipped(*((f"{number}.npy", b"") for number in range(20_000))),
        "a member twice": lambda: _zipped(("image.npy", npy(IMAGE)), ("image.npy", npy(IMAGE))),
        "paths": lambda: _zipped(("../../etc/image.npy", npy(IMAGE)), ("/image.npy", npy(IMAGE))),
        "no name": lambda: _zipped((".npy", npy(IMAGE))),
        "long name": lambda: _zipped(("a" * 60_000 + ".npy", npy(IMAGE))),
        "no end": lambda: npz(image=IMAGE)[:-30],
        "encrypted": lambda: npz(image=IMAGE).replace(
            b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01"
        ),
        "sizes that lie": lambda: _lying(npz(image=IMAGE)),
        "comment": lambda: npz(image=IMAGE)[:-2] + b"\xff\xff" + bytes(65535),
        "no arrays": lambda: _zipped(("readme.txt", b"text")),
        "empty": lambda: _zipped(),
    }
    for name, make in archives.items():
        yield Case(f"npz: {name}", "npz", make)


def _in_npz(make: Callable[[], bytes]) -> bytes:
    return _zipped(("image.npy", make()))


def _lying(data: bytes) -> bytes:
    """The directory says that the member has 4 GB."""
    at = data.rfind(b"PK\x01\x02")
    return data[: at + 24] + b"\xff\xff\xff\xfe" + data[at + 28 :]


# Pictures, at each door that takes them.


def pictures() -> Iterator[Case]:
    pictures: dict[str, Callable[[], bytes]] = {
        "PostScript": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\nshowpage\n",
        "no picture": lambda: b"GIF89a" + bytes(100),
        "head alone": lambda: png()[:20],
        "cut": lambda: png()[:-20],
        "pixels": lambda: _picture("png", (20_000, 20_000)),
        "many pixels of WebP": lambda: _picture("webp", (8000, 8000)),
        "JPEG by the name of PNG": lambda: _picture("jpeg", (8, 8)),
        "a size that lies": lambda: png()[:16] + struct.pack(">II", 2**31 - 1, 2**31 - 1) + png()[24:],
        "texts": lambda: png()[:-12] + _chunk(b"zTXt", b"k\0\0" + bytes(1000)) + png()[-12:],
        "chunks": lambda: png()[:33] + _chunk(b"tEXt", b"k\0v") * 200_000 + png()[33:],
        "empty": lambda: b"",
    }
    for (name, make), kind in product(
        pictures.items(), ("image/png", "image/webp", "image/jpeg", "text/plain", "", "image/" + "x" * 999)
    ):
        said = kind[:12]
        yield Case(f"predict: {name} as {said}", "predict", partial(_instance, make, kind))
        yield Case(f"grpc: {name} as {said}", "grpc", partial(_raw, make, kind))
        yield Case(f"connect: {name} as {said}", "connect", partial(_raw, make, kind))
    for name, make in pictures.items():
        yield Case(f"form: picture, {name}", "form", partial(_file, make))


def _picture(form: str, size: tuple[int, int]) -> bytes:
    file = io.BytesIO()
    Image.new("L", size).save(file, form)
    return file.getvalue()


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _instance(make: Callable[[], bytes], kind: str) -> bytes:
    return json.dumps({"instances": [{"b64": base64.b64encode(make()).decode(), "media_type": kind}]}).encode()


def _raw(make: Callable[[], bytes], kind: str) -> bytes:
    message = inspection_pb2.InspectRequest(model=MODEL)
    message.raw.examples.add(data=make(), media_type=kind)
    return message.SerializeToString()


def _file(make: Callable[[], bytes]) -> bytes:
    return form(part("instances", make(), file=True))


# Tensors that are not what they say.


def tensors() -> Iterator[Case]:
    shapes = {
        "nothing": (), "no rows": (0, 1, 8, 8), "negative": (-2, 1, 8, 8), "overflow": (2**62, 4, 8, 8),
        "much": (2**40, 1, 8, 8), "many axes": (1,) * 500, "other": (2, 64), "zeros": (0,) * 9,
        "rows without bytes": (2**50, 0),
    }  # fmt: skip
    types = (0, 1, 2, 10, 99)
    for (name, shape), number, size, door in product(shapes.items(), types, (0, 512), ("grpc", "connect", "grpc-web")):
        body = partial(_tensor, shape, number, size)
        yield Case(f"{door}: tensor, {name}, type {number}, {size} bytes", door, body)
    names = ("FP32", "BYTES", "BOOL", "FP16", "INT64", "", "X" * 999)
    for (name, shape), kind, size in product(shapes.items(), names, (0, 512)):
        body = partial(_v2_tensor, shape, kind, size)
        yield Case(f"v2 grpc: tensor, {name}, type {kind[:5]}, {size} bytes", "v2 grpc", body)


def _tensor(shape: tuple[int, ...], kind: int, size: int) -> bytes:
    message = inspection_pb2.InspectRequest(model=MODEL)
    tensor = message.tensors.by_name["image"]
    tensor.data_type, tensor.data = kind, bytes(size)  # type: ignore[assignment]
    tensor.shape.extend(shape)
    return message.SerializeToString()


def _v2_tensor(shape: tuple[int, ...], kind: str, size: int) -> bytes:
    message = messages.ModelInferRequest(model_name=MODEL)
    message.inputs.add(name="image", datatype=kind, shape=shape)
    message.raw_input_contents.append(bytes(size))
    return bytes(message.SerializeToString())
