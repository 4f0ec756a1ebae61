"""Arrays as bytes, and the data types of the contract; without torch and protobuf."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from cutaway.contract.errors import CutawayError, Reason, error

Array: TypeAlias = npt.NDArray[Any]

ArrayLike: TypeAlias = Any
"""A numpy array, a torch tensor, or what ``numpy.asarray`` takes."""

DTYPES: dict[str, np.dtype[Any]] = {
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype("<f4"),
    "float64": np.dtype("<f8"),
    "int8": np.dtype("i1"),
    "int16": np.dtype("<i2"),
    "int32": np.dtype("<i4"),
    "int64": np.dtype("<i8"),
    "uint8": np.dtype("u1"),
    "bool": np.dtype("?"),
}
"""Every data type of the contract by its name in torch and numpy; all are little-endian."""

FLOATING = ("float16", "bfloat16", "float32", "float64")
"""The names of the floating data types."""

MAX_RANK = 32
MAX_ELEMENTS = 2**40
"""More than any memory holds; a hostile shape must not overflow before it is compared with the bytes."""


def as_array(array: ArrayLike) -> Array:
    """Returns ``array`` as numpy; a torch tensor is detached and copied to the host."""
    if not hasattr(array, "detach"):
        return np.asarray(array)
    tensor = array.detach().cpu().contiguous()
    if str(tensor.dtype) == "torch.bfloat16":  # numpy itself has no bfloat16
        bits: Array = tensor.view(sys.modules["torch"].int16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    return np.asarray(tensor)


def dtype_name(array: Array) -> str:
    """Returns the contract's name of the data type of ``array``.

    Raises:
        InvalidArgument: ``INPUT_DTYPE``, for a data type that the contract does not have (complex, strings, ...).
    """
    name = _name(array.dtype)
    if name not in DTYPES:
        raise error(Reason.INPUT_DTYPE, f"{name} cannot be sent; the contract has {', '.join(DTYPES)}")
    return name


@lru_cache
def _name(dtype: np.dtype[Any]) -> str:
    return str(dtype.name)  # numpy computes the name at each access


def to_bytes(array: Array) -> bytes:
    """Returns the elements of ``array``, row-major and little-endian."""
    return np.ascontiguousarray(array, dtype=DTYPES[dtype_name(array)]).tobytes()


def from_bytes(name: str, shape: Sequence[int], data: bytes) -> Array:
    """Returns a read-only array over ``data``, without a copy.

    Raises:
        InvalidArgument: ``INPUT_SHAPE`` for a negative size, too many elements or too many axes; ``TENSOR_SIZE`` if the
            shape and data type need another number of bytes; ``INPUT_DTYPE`` for a boolean that is neither 0 nor 1.
    """
    dtype = DTYPES[name]
    expected = bytes_of(name, shape)
    if len(data) != expected:
        raise error(
            Reason.TENSOR_SIZE,
            f"{name}{list(shape)} needs {expected} bytes, got {len(data)}",
            "data",
        )
    if name == "bool" and np.frombuffer(data, np.uint8).max(initial=0) > 1:
        raise error(Reason.INPUT_DTYPE, "a boolean is one byte, 0 or 1", "data")
    return np.frombuffer(data, dtype).reshape(tuple(shape))


def bytes_of(name: str, shape: Sequence[int]) -> int:
    """Returns the number of bytes of a tensor with data type ``name``.

    Raises:
        InvalidArgument: ``INPUT_SHAPE`` for a negative size, too many elements or too many axes.
    """
    if len(shape) > MAX_RANK:
        raise error(Reason.INPUT_SHAPE, f"{len(shape)} axes; at most {MAX_RANK} are allowed", "shape")
    if any(size < 0 for size in shape):
        raise error(Reason.INPUT_SHAPE, f"{list(shape)} has a negative size", "shape")
    if math.prod(size for size in shape if size) > MAX_ELEMENTS:
        raise error(Reason.INPUT_SHAPE, f"{list(shape)} has more than {MAX_ELEMENTS} elements", "shape")
    return math.prod(shape) * DTYPES[name].itemsize


def cast(array: Array, data_type: str, place: str) -> Array:
    """Returns ``array``, the tensor at ``place``, as ``data_type``, if it is floating and ``data_type`` is not ``""``.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, where a finite number would become infinite.
    """
    if not data_type or dtype_name(array) not in FLOATING:
        return array
    with np.errstate(over="ignore"):
        result = array.astype(DTYPES[data_type], copy=False)
    overflowed = np.isinf(result)
    if overflowed.any() and (overflowed := overflowed & np.isfinite(array)).any():
        raise too_large(float(array[overflowed][0]), data_type, place)
    return result


def too_large(number: float, data_type: str, place: str) -> CutawayError:
    """Returns the error for a tensor that ``data_type`` cannot hold."""
    wider = "bfloat16, which has the range of float32 with fewer digits" if data_type == "float16" else "float64"
    return error(Reason.INVALID_VALUE, f"{place} holds {number:g}, which {data_type} cannot hold: request {wider}")
