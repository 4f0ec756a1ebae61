"""Bytes of tensors, packed: Zstandard over byte-shuffled elements.

Neighbouring numbers have their signs and exponents in common, and nothing else. Shuffled (the first byte of every
element, then the second byte of every element, ...) these stand side by side, where a compressor finds them.
"""

from __future__ import annotations

from types import ModuleType
from typing import TypeAlias

import numpy as np

from cutaway.errors import Reason, error

Buffer: TypeAlias = bytes | bytearray | memoryview

COMPRESSIONS = ("zstd",)
"""What tensors can be packed with, by its name in the contract; ``""`` is as they are."""

_LEVEL = 1


def refuse_unknown(compression: str) -> None:
    """Refuse what this installation cannot pack and unpack, before anybody asks for it.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, for an unknown name, or a library that is missing.
    """
    if compression and compression not in COMPRESSIONS:
        raise error(Reason.INVALID_VALUE, f"{compression!r:.80} is none of {', '.join(COMPRESSIONS)}")
    if compression:
        _zstandard()


def packed(data: Buffer, itemsize: int, compression: str) -> bytes:
    """``data``, whole elements of ``itemsize`` bytes each, packed; as it is where that makes it no smaller.

    Whoever reads it must be told which: it is packed if it is shorter than ``data``.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, for an unknown compression, or a library that is missing.
    """
    refuse_unknown(compression)
    if not compression:
        return bytes(data)
    smaller: bytes = _zstandard().ZstdCompressor(level=_LEVEL).compress(_shuffled(data, itemsize))
    return smaller if len(smaller) < len(data) else bytes(data)


def unpacked(data: Buffer, itemsize: int, size: int, compression: str) -> bytes:
    """What was packed: ``size`` bytes. Never makes more of ``data`` than that, whatever it says of itself.

    Raises:
        InvalidArgument: ``TENSOR_SIZE``, where ``data`` is damaged or holds another number of bytes; ``INVALID_VALUE``
            for an unknown compression, or a library that is missing.
    """
    refuse_unknown(compression)
    if size % itemsize:
        raise error(Reason.TENSOR_SIZE, f"{size} bytes are no whole number of elements of {itemsize}")
    plain = _opened(data, size) if compression else bytes(data)
    if len(plain) != size:
        raise error(Reason.TENSOR_SIZE, f"the packed bytes hold {len(plain)}, and {size} are needed")
    return _unshuffled(plain, itemsize) if compression else plain


def stated_bytes(data: Buffer) -> int:
    """How many bytes packed ``data`` says that it holds.

    Raises:
        InvalidArgument: ``TENSOR_SIZE``, where it does not say; ``INVALID_VALUE`` for a library that is missing.
    """
    zstandard = _zstandard()
    try:
        stated = int(zstandard.get_frame_parameters(data).content_size)
    except zstandard.ZstdError as failure:
        raise error(Reason.TENSOR_SIZE, f"the packed bytes cannot be read: {failure}") from None
    if stated == zstandard.CONTENTSIZE_UNKNOWN:
        raise error(Reason.TENSOR_SIZE, "the packed bytes do not say how many they are")
    return stated


def _opened(data: Buffer, size: int) -> bytes:
    """At most ``size`` bytes."""
    zstandard = _zstandard()
    try:
        stated = zstandard.get_frame_parameters(data).content_size
        if stated not in (size, zstandard.CONTENTSIZE_UNKNOWN):  # memory for as much as it states is taken at once
            raise error(Reason.TENSOR_SIZE, f"the packed bytes hold {stated}, and {size} are needed")
        plain: bytes = zstandard.ZstdDecompressor().decompress(data, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as failure:
        raise error(Reason.TENSOR_SIZE, f"the packed bytes are no Zstandard frame of {size} bytes: {failure}") from None
    return plain


def _shuffled(data: Buffer, itemsize: int) -> bytes:
    if itemsize == 1:
        return bytes(data)
    shuffled: bytes = np.frombuffer(data, np.uint8).reshape(-1, itemsize).T.tobytes()
    return shuffled


def _unshuffled(data: bytes, itemsize: int) -> bytes:
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
