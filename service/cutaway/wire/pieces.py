"""A reply cut into pieces: the header, chunks straight from the arrays' memory, the trailer.

Chunks are framed by hand: protobuf would copy a tensor's bytes three times on their way, and be most of the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
from google.protobuf.message import DecodeError, Message

from cutaway.errors import InvalidArgument, Reason, error
from cutaway.packing import packed
from cutaway.results import InspectResult
from cutaway.results.places import swapped
from cutaway.tensors import DTYPES, Array
from cutaway.v1 import inspection_pb2, inspection_service_pb2, tensor_pb2, worker_pb2
from cutaway.wire import results as wire_results
from cutaway.wire.enums import DATA_TYPE_NAMES, decode_compression, encode_compression
from cutaway.wire.strict import refuse_unserved

MIN_CHUNK_BYTES = 256 << 10
MAX_CHUNK_BYTES = 1 << 20

_PIECE, _CHUNK = 1, 2  # field numbers of InspectStreamResponse.piece and StreamPiece.chunk
_TENSOR, _OFFSET, _DATA, _COMPRESSION = 1, 2, 3, 4  # of StreamChunk
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types


class Piece(NamedTuple):
    """A serialised `cutaway.v1.StreamPiece`, or the message around it: its head, and what follows, uncopied."""

    head: bytes
    data: memoryview = memoryview(b"")

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.head) + len(self.data)

    def joined(self) -> bytes:
        """All of it; one copy."""
        return b"".join(self)


class Cut:
    """A result, ready to be sent in pieces.

    Args:
        result: the whole reply; its arrays are held, and not copied.
        compression: how chunks are packed that get smaller by it; ``""`` for not at all.

    Attributes:
        header_bytes: the size of the header.
        reply_bytes: how much there is to send in all, unpacked, but for the frames around the pieces.
    """

    def __init__(self, result: InspectResult, compression: str = "") -> None:
        self._compression = compression
        self._arrays: list[Array] = []
        self._response = wire_results.encode(swapped(result, self._held))
        self._tensors = list(tensors(self._response))
        for tensor, array in zip(self._tensors, self._arrays):
            tensor.shape[:] = array.shape
        self.header_bytes = self._response.ByteSize()
        self.reply_bytes = self.header_bytes + sum(size for _, size in map(extent, self._tensors))

    def note(self, **timings: float) -> None:
        """Put milliseconds by stage into the header, as `cutaway.results.Timings` names them."""
        for stage, milliseconds in timings.items():
            setattr(self._response.timings, stage, milliseconds)

    def pieces(self, chunk_bytes: int, worker_ms: float) -> Iterator[Piece]:
        """The header, chunks of at most ``chunk_bytes``, and the trailer.

        Args:
            chunk_bytes: from `MIN_CHUNK_BYTES` to `MAX_CHUNK_BYTES`.
            worker_ms: how long the worker has held the call.
        """
        yield self._opening(worker_ms)
        yield from self._rest(chunk_bytes)

    def _opening(self, worker_ms: float) -> Piece:
        """A serialised `cutaway.v1.StreamOpening`."""
        header = inspection_service_pb2.StreamHeader(response=self._response).SerializeToString()
        return Piece(worker_pb2.StreamOpening(header=header, worker_ms=worker_ms).SerializeToString())

    def _rest(self, chunk_bytes: int) -> Iterator[Piece]:
        checksums = []
        for index, (tensor, array) in enumerate(zip(self._tensors, self._arrays)):
            dtype, _ = extent(tensor)
            data = np.ascontiguousarray(array, dtype).reshape(-1).view(np.uint8)
            step = chunk_bytes - chunk_bytes % dtype.itemsize  # no element lies in two chunks
            checksums.append(0)
            for offset in range(0, data.size, step):
                part = data[offset : offset + step]
                checksums[index] = checksum(part, checksums[index])  # now, while it is near
                yield self._chunk(index, offset, part, dtype.itemsize)
        trailer = inspection_service_pb2.StreamTrailer(crc32c=checksums)
        yield Piece(inspection_service_pb2.StreamPiece(trailer=trailer).SerializeToString())

    def _chunk(self, index: int, offset: int, part: Array, itemsize: int) -> Piece:
        if self._compression:
            smaller = packed(part.data, itemsize, self._compression)
            if len(smaller) < part.size:
                return chunk_piece(index, offset, memoryview(smaller), self._compression)
        return chunk_piece(index, offset, part.data)

    def _held(self, _: str, array: Array) -> Array:
        """An empty stand-in, so that what is encoded is a header."""
        self._arrays.append(array)
        return np.empty(0, array.dtype)


def tensors(response: inspection_pb2.InspectResponse) -> Iterator[tensor_pb2.Tensor]:
    """The tensors of a reply, in the order in which chunks count them."""
    for field, value in response.ListFields():
        if field.message_type is not None and field.name != "estimate":  # which says what would be sent, and is not
            for message in value if field.is_repeated else [value]:
                yield from _below(message)


def _below(message: Message) -> Iterator[tensor_pb2.Tensor]:
    if isinstance(message, tensor_pb2.Tensor):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for child in value if field.is_repeated else [value]:
                yield from _below(child)


def extent(tensor: tensor_pb2.Tensor) -> tuple[np.dtype[np.generic], int]:
    """The data type of a tensor without data, and how many bytes it will have."""
    dtype = DTYPES[DATA_TYPE_NAMES[tensor.data_type]]
    size = dtype.itemsize
    for axis in tensor.shape:
        size *= axis
    return dtype, size


def checksum(data: Array, before: int = 0) -> int:
    """CRC-32C of bytes, going on from that of those before them."""
    return int(google_crc32c.extend(before, data))


def question(data: bytes) -> worker_pb2.RoutedStreamRequest:
    """What a serialised `cutaway.v1.InspectStreamRequest` asks for, its ``chunk_bytes`` set.

    Raises:
        InvalidArgument: ``MALFORMED_REQUEST``, or ``INVALID_VALUE`` for a size of chunks that is out of range.
    """
    try:
        found = worker_pb2.RoutedStreamRequest.FromString(data)
    except DecodeError:
        raise error(Reason.MALFORMED_REQUEST, f"the {len(data)} bytes are no InspectStreamRequest") from None
    refuse_unserved(found)
    found.chunk_bytes = found.chunk_bytes or MAX_CHUNK_BYTES
    if not MIN_CHUNK_BYTES <= found.chunk_bytes <= MAX_CHUNK_BYTES:
        raise error(
            Reason.INVALID_VALUE,
            f"{found.chunk_bytes} bytes; a chunk has from {MIN_CHUNK_BYTES} to {MAX_CHUNK_BYTES}",
            "chunk_bytes",
        )
    return found


def failure_piece(failure: worker_pb2.Failure) -> Piece:
    """What a worker sends in place of the header, or of whatever should come next."""
    return Piece(worker_pb2.StreamOpening(failure=failure).SerializeToString())


def chunk_piece(tensor: int, offset: int, data: memoryview, compression: str = "") -> Piece:
    """A chunk, whose ``data`` is packed with ``compression``."""
    packing = encode_compression(compression)
    head = inspection_service_pb2.StreamChunk(tensor=tensor, offset=offset, compression=packing).SerializeToString()
    head += _prefix(_DATA, len(data))
    return Piece(_prefix(_CHUNK, len(head) + len(data)) + head, data)


def as_message(piece: Piece) -> Piece:
    """A serialised `cutaway.v1.InspectStreamResponse` with ``piece``."""
    return Piece(_prefix(_PIECE, piece.size) + piece.head, piece.data)


class Chunk(NamedTuple):
    """A piece of a tensor: which, where in it, its bytes, and how they are packed."""

    tensor: int
    offset: int
    data: memoryview
    compression: str


def chunk_in(message: bytes) -> Chunk | None:
    """The chunk in a serialised `cutaway.v1.InspectStreamResponse`, its data not copied; None for any other piece.

    Raises:
        Internal: the bytes are no such message, or a chunk of a kind that is newer than this code.
    """
    try:
        piece = dict(fields(memoryview(message))).get(_PIECE, memoryview(b""))
        chunk = dict(fields(piece)).get(_CHUNK)
        if chunk is None:
            return None
        found = dict(fields(chunk))
        if found.keys() - {_TENSOR, _OFFSET, _DATA, _COMPRESSION}:
            raise error(Reason.INTERNAL, "a piece of the reply has a field unknown here; is the server newer?")
        compression = decode_compression(found.get(_COMPRESSION, 0), "compression")
        return Chunk(found.get(_TENSOR, 0), found.get(_OFFSET, 0), found.get(_DATA, memoryview(b"")), compression)
    except InvalidArgument:
        raise error(Reason.INTERNAL, "a piece is packed in a way unknown here; is the server newer?") from None
    except (IndexError, TypeError, ValueError):
        raise error(Reason.INTERNAL, "a piece of the reply cannot be read") from None


def fields(view: Any) -> Iterator[tuple[int, Any]]:
    """The fields of a serialised message with their numbers; one that holds bytes is a view of them.

    Raises:
        IndexError, KeyError: the bytes are no message.
    """
    at = 0
    while at < len(view):
        tag, at = _varint(view, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _varint(view, at)
            yield number, value
            continue
        size, at = _varint(view, at) if kind == _BYTES else ({_FIXED32: 4, _FIXED64: 8}[kind], at)
        if at + size > len(view):
            raise IndexError
        yield number, view[at : at + size]
        at += size


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """The number that begins at ``at``, and where it ends."""
    value = shift = 0
    while view[at] & 0x80:
        value |= (view[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | view[at] << shift, at + 1


def _prefix(field: int, size: int) -> bytes:
    """What comes before ``size`` bytes in a field."""
    prefix = [field << 3 | _BYTES]
    while size > 0x7F:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*prefix, size])
