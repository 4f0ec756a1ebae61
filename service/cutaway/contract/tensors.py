"""Arrays as bytes and in files, their compression, and the data types of the contract; without torch and protobuf."""

from __future__ import annotations

import io
import math
import os
import sys
import zipfile
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from itertools import chain
from types import ModuleType
from typing import IO, Any, TypeAlias

import ml_dtypes
import numpy as np

from cutaway.contract.errors import CutawayError, Reason, error

# Neighbouring numbers often have equal signs and exponents. Byte shuffling (the first byte of every element, then the
# second, ...) puts these side by side, where Zstandard compresses them.

Buffer: TypeAlias = bytes | bytearray | memoryview

COMPRESSIONS = ("zstd",)
"""The compressions by their names in requests; ``""`` is none."""

_LEVEL = 1


def check_compression(compression: str) -> None:
    """Checks a name, and that its library is installed.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, for an unknown name, or a missing library.
    """
    if compression and compression not in COMPRESSIONS:
        raise error(Reason.INVALID_VALUE, f"{compression!r:.80} is none of {', '.join(COMPRESSIONS)}")
    if compression:
        _zstandard()


def compress(data: Buffer, itemsize: int, compression: str) -> bytes:
    """Returns ``data``, whole elements of ``itemsize`` bytes each, compressed; unchanged if that makes it no smaller.

    The caller must note which: the bytes are compressed if they are fewer than those of ``data``.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, for an unknown compression, or a missing library.
    """
    check_compression(compression)
    if not compression:
        return bytes(data)
    compressed: bytes = _zstandard().ZstdCompressor(level=_LEVEL).compress(_shuffle(data, itemsize))
    return compressed if len(compressed) < len(data) else bytes(data)


def decompress(data: Buffer, itemsize: int, size: int, compression: str) -> bytes:
    """Returns the ``size`` bytes that were compressed to ``data``; never more, whatever size ``data`` states.

    Raises:
        InvalidArgument: ``TENSOR_SIZE``, if ``data`` is damaged or has another number of bytes; ``INVALID_VALUE`` for
            an unknown compression, or a missing library.
    """
    check_compression(compression)
    if size % itemsize:
        raise error(Reason.TENSOR_SIZE, f"{size} bytes are no whole number of elements of {itemsize} bytes")
    plain = _decompress_frame(data, size) if compression else bytes(data)
    if len(plain) != size:
        raise _wrong_size(len(plain), size)
    return _unshuffle(plain, itemsize) if compression else plain


def stated_size(data: Buffer) -> int:
    """Returns the number of bytes that compressed ``data`` states to have.

    Raises:
        InvalidArgument: ``TENSOR_SIZE``, if it states none; ``INVALID_VALUE`` for a missing library.
    """
    zstandard = _zstandard()
    try:
        stated = int(zstandard.get_frame_parameters(data).content_size)
    except zstandard.ZstdError as failure:
        raise error(Reason.TENSOR_SIZE, f"the packed bytes cannot be read: {failure}") from None
    if stated == zstandard.CONTENTSIZE_UNKNOWN:
        raise error(Reason.TENSOR_SIZE, "the packed bytes do not state their size")
    return stated


def _decompress_frame(data: Buffer, size: int) -> bytes:
    """Returns the content of a Zstandard frame. Refuses a frame that states another size before it allocates memory."""
    zstandard = _zstandard()
    try:
        stated = zstandard.get_frame_parameters(data).content_size
        if stated not in (size, zstandard.CONTENTSIZE_UNKNOWN):  # zstandard allocates what is stated, at once
            raise _wrong_size(stated, size)
        plain: bytes = zstandard.ZstdDecompressor().decompress(data, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as failure:
        raise error(Reason.TENSOR_SIZE, f"the packed bytes are no Zstandard frame of {size} bytes: {failure}") from None
    return plain


def _wrong_size(size: int, expected: int) -> CutawayError:
    return error(Reason.TENSOR_SIZE, f"the packed bytes hold {size} bytes, and {expected} are needed")


def _shuffle(data: Buffer, itemsize: int) -> bytes:
    if itemsize == 1:
        return bytes(data)
    shuffled: bytes = np.frombuffer(data, np.uint8).reshape(-1, itemsize).T.tobytes()
    return shuffled


def _unshuffle(data: bytes, itemsize: int) -> bytes:
    """Returns the bytes of elements that were compressed in planes: the first byte of each, then the second, ..."""
    if itemsize == 1:
        return data
    planes = np.frombuffer(data, np.uint8).reshape(itemsize, -1)
    elements = np.empty(planes.shape[::-1], np.uint8)
    for number, plane in enumerate(planes):  # twice as fast as a transposed copy
        elements[:, number] = plane
    plain: bytes = elements.tobytes()
    return plain


def _zstandard() -> ModuleType:
    try:
        import zstandard
    except ImportError:
        raise error(
            Reason.INVALID_VALUE,
            "zstd needs the library zstandard, which is not installed: pip install 'cutaway[zstd]'",
        ) from None
    return zstandard


Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]  # from NumPy 2.5 on, NDArray is no class for those who read types

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


def by_value(value: Any) -> Hashable:
    """Returns a hashable key that is equal for equal contents. Arrays are compared by data type, shape and bytes."""
    if is_dataclass(value):
        return type(value), *(by_value(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, Mapping):
        return frozenset((name, by_value(element)) for name, element in value.items())
    if isinstance(value, (tuple, list)):
        return tuple(map(by_value, value))
    if hasattr(value, "dtype"):
        array = as_array(value)
        return array.dtype.name, array.shape, array.tobytes()
    return type(value), value


def holds_texts(value: Any) -> bool:
    """Returns whether nested lists hold a text, which is no number.

    numpy would make an array of all texts, each as long as the longest: 260 kB become 6 GiB.
    """
    level = [value]
    for _ in range(MAX_RANK + 1):
        kinds = set(map(type, level))
        if kinds & {str, bytes}:
            return True
        if not kinds & {list, tuple}:
            break
        level = list(chain.from_iterable(item for item in level if type(item) in (list, tuple)))
    return False


def dtype_name(array: Array) -> str:
    """Returns the contract's name of the data type of ``array``.

    Raises:
        InvalidArgument: ``INPUT_DTYPE``, for a data type that the contract does not have (complex, strings, ...).
    """
    name = _name(array.dtype)
    if name not in DTYPES:
        parts = "; send its real and imaginary parts, as torch.view_as_real has them" if "complex" in name else ""
        raise error(Reason.INPUT_DTYPE, f"{name} cannot be sent; the contract has {', '.join(DTYPES)}{parts}")
    return name


@lru_cache
def _name(dtype: np.dtype[Any]) -> str:
    return str(dtype.name)  # numpy computes the name at each access


def to_bytes(array: Array) -> bytes:
    """Returns the elements of ``array``, row-major and little-endian."""
    return bytes(bytes_in(array))


def bytes_in(array: Array) -> memoryview:
    """Returns the elements of ``array`` as `to_bytes` does, without a copy where they are so in memory."""
    plain: Any = np.ascontiguousarray(array, dtype=DTYPES[dtype_name(array)])
    return memoryview(plain.reshape(-1).view(np.uint8))


def from_bytes(name: str, shape: Sequence[int], data: Buffer) -> Array:
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


def converted(array: Array, data_type: str) -> Array:
    """Returns numbers that came without a data type, such as JSON's, as ``data_type``; floating ones are rounded.

    Raises:
        InvalidArgument: ``INPUT_DTYPE`` for a fraction where integers are; ``INVALID_VALUE`` for a number that
            ``data_type`` cannot hold.
    """
    result, misfits = fitted(array, data_type)
    if misfits.any():
        number = array[misfits][0]
        reason = Reason.INPUT_DTYPE if data_type not in FLOATING and number % 1 else Reason.INVALID_VALUE
        raise error(reason, f"holds {number!s}, which {data_type} cannot hold")
    return result


def fitted(array: Array, data_type: str) -> tuple[Array, Array]:
    """Returns ``array`` as ``data_type``, and a mask of the numbers that ``data_type`` cannot hold. The converted value
    of such a number is meaningless.

    A floating type rounds, but makes no finite number infinite. Other types hold whole numbers in their range: of
    floating numbers, those that stand for one whole number only.
    """
    dtype = DTYPES[data_type]
    if np.can_cast(array.dtype, dtype):
        return array.astype(dtype, copy=False), np.zeros(array.shape, bool)
    with np.errstate(all="ignore"):
        if data_type in FLOATING:
            result = array.astype(dtype)
            infinite = np.isinf(result)
            return result, infinite & np.isfinite(array) if infinite.any() else infinite
        low, high = whole_numbers(data_type)
        if array.dtype.kind not in "iubO":
            array, low, high = array.astype(np.float64), max(low, -MOST_WHOLE), min(high, MOST_WHOLE)
        held: Array = (array >= low) & (array <= high)
        if array.dtype.kind in "fO":
            held &= array % 1 == 0
    return np.where(held, array, 0).astype(dtype), ~held


MOST_WHOLE = 2**53 - 1
"""The largest number up to which a floating number stands for one whole number only."""


def whole_numbers(data_type: str) -> tuple[int, int]:
    """Returns the least and the largest whole number of ``data_type``, which is not floating."""
    dtype = DTYPES[data_type]
    return (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))


def cast(array: Array, data_type: str, place: str) -> Array:
    """Returns ``array``, the tensor at ``place``, as ``data_type``, if it is floating and ``data_type`` is not ``""``.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, where a finite number would become infinite.
    """
    if not data_type or dtype_name(array) not in FLOATING:
        return array
    result, misfits = fitted(array, data_type)
    if misfits.any():
        raise too_large(float(array[misfits][0]), data_type, place)
    return result


def too_large(number: float, data_type: str, place: str) -> CutawayError:
    """Returns the error for a tensor that ``data_type`` cannot hold."""
    wider = "bfloat16, which has the range of float32 with fewer digits" if data_type == "float16" else "float64"
    return error(Reason.INVALID_VALUE, f"{place} holds {number:g}, which {data_type} cannot hold: request {wider}")


# NPY and NPZ files that others have written: no header makes an array larger than its file.

_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def check_npy(file: IO[bytes]) -> None:
    """Reads the header of an NPY file, and leaves the file at its begin.

    Raises:
        ValueError: there is no header that numpy can read, or it states other bytes than follow.
    """
    begin = file.tell()
    try:
        shape, _, dtype = _READERS[np.lib.format.read_magic(file)](file)
        stated = math.prod(shape) * dtype.itemsize
    except ValueError:
        raise
    except Exception as failure:  # numpy's parser raises what Python's raises: MemoryError, TokenError and others
        raise ValueError(f"its header cannot be read ({type(failure).__name__})") from None
    header = file.tell()
    left = file.seek(0, os.SEEK_END) - header
    file.seek(begin)
    if any(isinstance(size, bool) or size < 0 for size in shape) or not dtype.itemsize:
        raise ValueError(f"its header states an array {shape} of {dtype}, which does not exist")
    if stated != left and not dtype.hasobject:  # a second array may follow
        raise ValueError(f"its header states {stated} bytes, and {left} follow")


def read_npy(file: IO[bytes]) -> Array:
    """Returns the array in an NPY file.

    Raises:
        ValueError: it cannot be read, or has Python objects.
    """
    check_npy(file)
    array: Array = np.lib.format.read_array(file, allow_pickle=False)
    return array


MAX_ARRAYS = 1000
"""The most arrays of an NPZ file."""


def read_npz(file: IO[bytes], max_bytes: int) -> dict[str, Array] | None:
    """Returns the arrays in an NPZ file by name; None if they have more than ``max_bytes`` together.

    Raises:
        ValueError: it cannot be read, has too many arrays, or Python objects.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if len(members) > MAX_ARRAYS:
                raise ValueError(f"it has {len(members)} arrays, {MAX_ARRAYS} are the most")
            if sum(member.file_size for member in members) > max_bytes:
                return None
            arrays: dict[str, Array] = {}
            for member in members:
                name = member.filename.removesuffix(".npy")
                if name in arrays:
                    raise ValueError(f"it has two arrays {name!r:.80}")
                arrays[name] = read_npy(io.BytesIO(archive.read(member)))
            return arrays
    except (OSError, EOFError, zipfile.BadZipFile, RuntimeError) as failure:
        # zipfile raises the last one for members that are compressed in other ways, or encrypted.
        raise ValueError(str(failure)) from None
