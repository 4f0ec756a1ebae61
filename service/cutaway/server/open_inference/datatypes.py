"""Messages and data types of the protocol, and the elements of tensors as bytes."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClassesForFiles

from cutaway.contract.errors import Reason, at, error
from cutaway.contract.tensors import DTYPES, Array, Buffer, converted, holds_texts
from cutaway.contract.wire.message_walk import MAX_ENTRIES

SERVICE = "inference.GRPCInferenceService"

# The protocol's messages need a descriptor pool of their own: other clients register these names in Python's default.
POOL = DescriptorPool()
for _file in FileDescriptorSet.FromString((Path(__file__).parent / "open_inference.binpb").read_bytes()).file:
    POOL.AddSerializedFile(_file.SerializeToString())  # type: ignore[no-untyped-call]


messages: Any = SimpleNamespace(
    **{
        name.rpartition(".")[2]: kind
        for name, kind in GetMessageClassesForFiles(["inference/open_inference.proto"], POOL).items()
    }
)
"""The protocol's messages by name."""

BYTES = "BYTES"

DATATYPES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "BF16": "bfloat16",
    "FP32": "float32",
    "FP64": "float64",
}
"""The contract's data types by the protocol's names."""

NAMES = {name: datatype for datatype, name in DATATYPES.items()}

_CONTENTS = {
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}
"""The fields of `InferTensorContents` by data type; the other two data types have none."""


MAX_ELEMENTS = 1 << 20
"""The most elements of a tensor in fields; each becomes an object of Python, as in JSON."""


def data_type(datatype: str) -> str:
    """Returns the contract's name of a data type.

    Raises:
        InvalidArgument: ``INPUT_DTYPE``.
    """
    if datatype not in DATATYPES:
        raise error(Reason.INPUT_DTYPE, f"{datatype!r:.40} is none of {', '.join(DATATYPES)}", "datatype")
    return DATATYPES[datatype]


def elements(datatype: str, contents: Any) -> Any:
    """Returns the elements in an `InferTensorContents`.

    Raises:
        InvalidArgument: ``INVALID_VALUE`` if they are in another field than that of the data type, or too many.
    """
    field = _CONTENTS.get(datatype)
    if field is None:
        raise error(Reason.INVALID_VALUE, f"{datatype} has no contents: send raw_input_contents", "contents")
    others = [descriptor.name for descriptor, _ in contents.ListFields() if descriptor.name != field]
    if others:
        raise error(Reason.INVALID_VALUE, f"{datatype} has its elements in {field}, not in {others[0]}", "contents")
    found = getattr(contents, field)
    if len(found) > MAX_ELEMENTS:
        what = f"{len(found)} elements in fields, {MAX_ELEMENTS} are the most: send raw_input_contents"
        raise error(Reason.REQUEST_TOO_LARGE, what, "contents")
    return found


def packed(datatype: str, numbers: Any) -> bytes:
    """Returns numbers, in lists or not, as the bytes of a tensor.

    Raises:
        InvalidArgument: ``INVALID_VALUE`` for what is no number, or none of the data type.
    """
    dtype = DTYPES[data_type(datatype)]
    try:
        array = np.array(None if holds_texts(numbers) else numbers)
    except (ValueError, OverflowError):  # lists of different lengths
        array = np.array([None])
    if array.size and not _holds(dtype, array):
        raise error(Reason.INVALID_VALUE, f"are no numbers that {datatype} holds", "data")
    with at("data"):
        return converted(array, data_type(datatype)).tobytes()


def _holds(dtype: np.dtype[Any], array: Array) -> bool:
    """Returns whether the data type holds such elements; a floating one holds any number, if not exactly."""
    return array.dtype.kind in ("b" if dtype.kind == "b" else "iu" if dtype.kind in "iu" else "iuf")


def byte_strings(raw: Buffer) -> list[memoryview]:
    """Returns the elements of a tensor of BYTES, whose lengths precede them as four bytes, little-endian.

    Raises:
        InvalidArgument: ``TENSOR_SIZE``; ``INVALID_VALUE``, for more elements than a message has.
    """
    strings: list[memoryview] = []
    start, view = 0, memoryview(raw)
    while start < len(view):
        end = start + 4 + (struct.unpack_from("<I", view, start)[0] if start + 4 <= len(view) else len(view))
        if end > len(view):
            raise error(Reason.TENSOR_SIZE, "the bytes end inside an element; its length is in four bytes before it")
        if len(strings) == MAX_ENTRIES:
            raise error(Reason.INVALID_VALUE, f"there are more than {MAX_ENTRIES} elements of {BYTES}")
        strings.append(view[start + 4 : end])
        start = end
    return strings


def with_lengths(elements: list[bytes]) -> bytes:
    """Returns the elements of a tensor of BYTES with their lengths; the inverse of `byte_strings`."""
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)
