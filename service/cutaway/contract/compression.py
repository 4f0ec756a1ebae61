"""Compression of the bytes of tensors: Zstandard over byte-shuffled elements.

Neighbouring numbers often have the same signs and exponents, and nothing else in common. Shuffled bytes (the first byte
of every element, then the second byte of every element, ...) put these side by side, where Zstandard finds them.
"""

from __future__ import annotations

from types import ModuleType
from typing import TypeAlias

import numpy as np

from cutaway.contract.errors import CutawayError, Reason, error

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
    """Returns at most ``size`` bytes."""
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
