"""Streamed replies: a header with everything but the bytes of tensors, chunks of these bytes, and a trailer.

Chunks are framed by hand, straight from the memory of the arrays. Protobuf would copy the bytes of a tensor three
times, which would be most of the work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from operator import index
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
from google.protobuf.message import DecodeError

from cutaway.contract.errors import CutawayError, InvalidArgument, Reason, at, error
from cutaway.contract.requests import InspectRequest
from cutaway.contract.results import Estimate, InspectResult, ModuleCapture, Outline, Progress, Timings
from cutaway.contract.results.arrays import Entry, by_name, tensors, with_arrays
from cutaway.contract.tensors import DTYPES, Array, bytes_of, cast, compress, decompress, dtype_name, stated_size
from cutaway.contract.wire import results as wire_results
from cutaway.contract.wire.message_walk import (
    check_structure,
    children,
    parse,
    prefix,
    read_fields,
    tensors_in,
)
from cutaway.contract.wire.scalars import COMPRESSION, DATA_TYPE_NAMES, data_type_of
from cutaway.v1 import inspection_pb2, inspection_service_pb2, tensor_pb2, worker_pb2

MIN_CHUNK_BYTES = 256 << 10
MAX_CHUNK_BYTES = 1 << 20

_PIECE = inspection_service_pb2.InspectStreamResponse.PIECE_FIELD_NUMBER
_HEADER, _CHUNK = 1, 2  # field numbers of StreamPiece
_RESPONSE = inspection_service_pb2.StreamHeader.RESPONSE_FIELD_NUMBER
_TENSOR, _OFFSET, _DATA, _COMPRESSION = 1, 2, 3, 4  # of StreamChunk


class Piece(NamedTuple):
    """A serialised `cutaway.v1.StreamPiece`, or the message around it: ``head``, then ``data``, which is not copied."""

    head: bytes
    data: memoryview = memoryview(b"")

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.head) + len(self.data)

    def joined(self) -> bytes:
        """Returns head and data in one copy."""
        return b"".join(self)


class StreamEncoder:
    """An encoder of a result, or of its parts one after the other, as the pieces of a streamed reply.

    Args:
        compression: of the chunks that it makes smaller; ``""`` for none.

    Attributes:
        reply_bytes: the size of the parts so far without compression, and without the frames around the pieces.
    """

    def __init__(self, compression: str = "") -> None:
        self.reply_bytes = 0
        self._compression = compression
        self._checksums: list[int] = []

    def header(self, part: InspectResult) -> inspection_pb2.InspectResponse:
        """Returns the message of the next part without tensor data, and adds the part's size to ``reply_bytes``."""
        header = wire_results.encode_part(part, wire_results.NO_DATA, is_first=not self.reply_bytes)
        self.reply_bytes += header.ByteSize() + sum(size for _, size in map(dtype_and_size, reply_tensors(header)))
        return header

    def chunks(self, part: InspectResult, chunk_bytes: int) -> Iterator[Piece]:
        """Yields the chunks of the next part, whose arrays are not copied.

        Args:
            part: the part.
            chunk_bytes: the largest size of a chunk, from `MIN_CHUNK_BYTES` to `MAX_CHUNK_BYTES`.
        """
        for entry in tensors(part):
            dtype = DTYPES[dtype_name(entry.array)]
            data = np.ascontiguousarray(entry.array, dtype).reshape(-1).view(np.uint8)
            step = chunk_bytes - chunk_bytes % dtype.itemsize  # no element is split between two chunks
            index = len(self._checksums)
            self._checksums.append(0)
            for offset in range(0, data.size, step):
                block = data[offset : offset + step]
                self._checksums[index] = checksum(block, self._checksums[index])  # now, while it is in the CPU's cache
                yield self._chunk(index, offset, block, dtype.itemsize)

    def trailer(self) -> Iterator[Piece]:
        """Yields the trailer, after the chunks of all parts."""
        trailer = inspection_service_pb2.StreamTrailer(crc32c=self._checksums)
        yield Piece(inspection_service_pb2.StreamPiece(trailer=trailer).SerializeToString())

    def _chunk(self, index: int, offset: int, part: Array, itemsize: int) -> Piece:
        if self._compression:
            compressed = compress(part.data, itemsize, self._compression)
            if len(compressed) < part.size:
                return chunk_piece(index, offset, memoryview(compressed), self._compression)
        return chunk_piece(index, offset, part.data)


def reply_tensors(response: inspection_pb2.InspectResponse) -> Iterator[tensor_pb2.Tensor]:
    """Yields the tensors of a reply, in the order in which chunks number them."""
    for field, value in response.ListFields():
        if field.message_type is not inspection_pb2.Estimate.DESCRIPTOR:  # whose tensors only have a shape
            for _, message in children(field, value, ""):
                yield from tensors_in(message)


def dtype_and_size(tensor: tensor_pb2.Tensor) -> tuple[np.dtype[np.generic], int]:
    """Returns the data type of a tensor without data, and the bytes that its data will have."""
    dtype = DTYPES[DATA_TYPE_NAMES[tensor.data_type]]
    size = dtype.itemsize
    for axis in tensor.shape:
        size *= axis
    return dtype, size


def checksum(data: Array, previous: int = 0) -> int:
    """Returns the CRC-32C of bytes; ``previous`` is that of the bytes before them."""
    return int(google_crc32c.extend(previous, data))


def decode_stream_request(data: bytes) -> worker_pb2.RoutedStreamRequest:
    """Decodes a `cutaway.v1.InspectStreamRequest`, without the request in it, and sets its ``chunk_bytes``.

    Raises:
        InvalidArgument: ``MALFORMED_REQUEST``, or ``INVALID_VALUE`` for a chunk size that is not allowed.
    """
    request = parse(worker_pb2.RoutedStreamRequest, data, "cutaway.v1.InspectStreamRequest")
    check_structure(request)
    request.chunk_bytes = request.chunk_bytes or MAX_CHUNK_BYTES
    if not MIN_CHUNK_BYTES <= request.chunk_bytes <= MAX_CHUNK_BYTES:
        raise error(
            Reason.INVALID_VALUE,
            f"{request.chunk_bytes} bytes; a chunk has from {MIN_CHUNK_BYTES} to {MAX_CHUNK_BYTES}",
            "chunk_bytes",
        )
    return request


def worker_piece(reply: worker_pb2.WorkerReply) -> Piece:
    """Returns the piece that a worker sends in place of a header, or, after an error, of the next piece."""
    return Piece(worker_pb2.WorkerPiece(reply=reply).SerializeToString())


def progress_piece(progress: Progress) -> Piece:
    """Returns the piece that says how far the attributions are."""
    piece = inspection_service_pb2.StreamPiece()
    wire_results.PROGRESS.write(progress, piece.progress)
    return Piece(piece.SerializeToString())


def chunk_piece(tensor: int, offset: int, data: memoryview, compression: str = "") -> Piece:
    """Returns a chunk whose ``data`` is compressed with ``compression``."""
    number = COMPRESSION.encode(compression)
    head = inspection_service_pb2.StreamChunk(tensor=tensor, offset=offset, compression=number).SerializeToString()
    head += prefix(_DATA, len(data))
    return Piece(prefix(_CHUNK, len(head) + len(data)) + head, data)


def as_message(piece: Piece) -> Piece:
    """Returns a serialised `cutaway.v1.InspectStreamResponse` with ``piece``."""
    return Piece(prefix(_PIECE, piece.size) + piece.head, piece.data)


def header_message(response: bytes) -> bytes:
    """Returns a serialised `cutaway.v1.InspectStreamResponse` with the header of a serialised InspectResponse."""
    head = b""
    for number in (_RESPONSE, _HEADER, _PIECE):
        head = prefix(number, len(head) + len(response)) + head
    return head + response


class Chunk(NamedTuple):
    """A part of a tensor's bytes: its number, the offset of the bytes, the bytes, and how they are compressed."""

    tensor: int
    offset: int
    data: memoryview
    compression: str


def decode_chunk(message: bytes) -> Chunk | None:
    """Returns the chunk in a serialised `cutaway.v1.InspectStreamResponse` without a copy; None for any other piece.

    Raises:
        Internal: the bytes are no such message, or have a chunk that this version does not know.
    """
    with _reading():
        chunk = _piece(message).get(_CHUNK)
        if chunk is None:
            return None
        values = dict(read_fields(chunk))
        if values.keys() - {_TENSOR, _OFFSET, _DATA, _COMPRESSION}:
            raise error(Reason.INTERNAL, "a piece of the reply has an unknown field; is the server newer?")
        tensor, offset = index(values.get(_TENSOR, 0)), index(values.get(_OFFSET, 0))  # no bytes
        compression = COMPRESSION.decode(index(values.get(_COMPRESSION, 0)))
        return Chunk(tensor, offset, memoryview(values.get(_DATA, b"")), compression)


def _piece(message: bytes) -> dict[int, Any]:
    """Returns the fields of the piece in a serialised `cutaway.v1.InspectStreamResponse`."""
    return dict(read_fields(dict(read_fields(memoryview(message))).get(_PIECE, memoryview(b""))))


@contextmanager
def _reading() -> Iterator[None]:
    """Turns every error of reading a piece in the block into ``INTERNAL``."""
    try:
        yield
    except InvalidArgument:
        raise error(Reason.INTERNAL, "a piece of the reply has an unknown compression; is the server newer?") from None
    except (LookupError, TypeError, ValueError):
        raise error(Reason.INTERNAL, "a piece of the reply cannot be read") from None


# Dry runs and changes of the data type of floating tensors.

_EVERY_STAGE = Timings(*[1.0] * 8)  # a time of 0 takes no bytes


def apply_reply_options(result: InspectResult, request: InspectRequest) -> InspectResult:
    """Returns an estimate for a dry run; otherwise ``result`` in the ``reply_data_type`` of ``request``.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, if the requested data type cannot hold a number of the result.
    """
    if request.dry_run:
        return _estimate(result)
    data_type = request.reply_data_type
    if not data_type:
        return result

    def cast_tensor(*parts: Any) -> Array:
        entry = Entry(*parts)
        # Captures were cast in their hook, perhaps to a data type of their own.
        stays = not entry.is_tensor or entry.kind in ("capture", "parameter_gradient")
        return entry.array if stays else cast(entry.array, data_type, entry.name)

    with at("options.reply_data_type"):
        return with_arrays(result, cast_tensor)


def _estimate(result: InspectResult) -> InspectResult:
    """Returns the reply to a dry run: the size and the tensor shapes that ``result`` would have. Reads no array."""
    outlines = {
        name: Outline(dtype_name(entry.array), entry.array.shape) for name, entry in by_name(tensors(result)).items()
    }
    encoder = StreamEncoder()
    encoder.header(replace(result, timings=_EVERY_STAGE))
    return InspectResult(
        {},
        warnings=result.warnings,
        feature_names=result.feature_names,
        example_axes=result.example_axes,
        provenance=result.provenance,
        timings=result.timings,
        estimate=Estimate(encoder.reply_bytes, outlines, result.estimate.passes if result.estimate else 0),
    )


# Decoding of a streamed reply: each chunk is copied into an array that is allocated from the header.

MAX_REPLY_BYTES = 4 << 30
"""The most bytes of tensors that a client unpacks for one reply, unless the caller allows more."""


def check_reply_memory(response: inspection_pb2.InspectResponse, allowed_bytes: int = 0, earlier_bytes: int = 0) -> int:
    """Checks the size that the tensors of a reply have by their shapes, before memory is allocated for them.

    Args:
        response: the reply, with or without the bytes of its tensors.
        allowed_bytes: what the caller allows; counts if it is more than `MAX_REPLY_BYTES`.
        earlier_bytes: the size of the parts before.

    Returns:
        The size with that of the parts before.

    Raises:
        ResourceExhausted: ``REPLY_TOO_LARGE``.
        InvalidArgument: ``INPUT_DTYPE`` or ``INPUT_SHAPE``: a tensor cannot exist.
    """
    limit = max(allowed_bytes, MAX_REPLY_BYTES)
    size = earlier_bytes + sum(bytes_of(data_type_of(tensor), tensor.shape) for tensor in reply_tensors(response))
    if size > limit:
        what = f"the reply has tensors of {size} bytes, of which this client accepts {limit}"
        raise error(Reason.REPLY_TOO_LARGE, what, "max_reply_bytes")
    return size


class ReplyAssembler:
    """An assembler of one reply from its pieces, in their order.

    Args:
        allowed_bytes: of the reply's tensors, if the caller allows more than the client's own limit.
        in_parts: whether the reply may have several parts.

    Attributes:
        reply_bytes: how many bytes have arrived.
        so_far: the parts that are complete, as one result; None before the first is.
        progress: how far the attributions are; None if nothing was told.
    """

    def __init__(self, allowed_bytes: int = 0, in_parts: bool = False) -> None:
        self.reply_bytes = 0
        self.so_far: InspectResult | None = None
        self.progress: Progress | None = None
        self._allowed_bytes = allowed_bytes
        self._in_parts = in_parts
        self._size = 0  # of all tensors, by their shapes
        self._result: InspectResult | None = None  # whose arrays are filled in place
        self._arrays: list[Array] = []
        self._checksums: list[int] = []  # of the arrays that are complete
        self._filled = 0  # bytes of the next array
        self._checksum = 0  # of these bytes
        self._is_complete = False

    def add(self, message: bytes) -> list[Array]:
        """Adds a serialised `cutaway.v1.InspectStreamResponse`.

        Returns:
            The tensors that it completes, read-only. Their checksums are compared only at the end.

        Raises:
            CutawayError: ``REPLY_TOO_LARGE``, before memory is allocated for it; ``INTERNAL``, if the reply is damaged.
        """
        self.reply_bytes += len(message)
        if self._is_complete:
            raise _damaged("a piece follows its end")
        chunk = decode_chunk(message)
        if chunk is not None:
            return self._add_chunk(chunk)
        try:
            piece = inspection_service_pb2.InspectStreamResponse.FromString(message).piece
        except DecodeError:
            raise _damaged("a piece of it cannot be read") from None
        if piece.HasField("header"):
            return self._add_header(piece.header)
        if piece.HasField("progress"):
            self.progress = wire_results.PROGRESS.read(piece.progress)
            return []
        if not piece.HasField("trailer"):
            raise _damaged("a piece of it is empty")
        self._finish(piece.trailer)
        return []

    def named(self, arrays: Sequence[Array]) -> list[tuple[str, Array]]:
        """Returns completed tensors with their names; reads the whole result so far."""
        named = by_name(tensors(self._result)) if arrays and self._result is not None else {}
        names = {id(entry.array): name for name, entry in named.items()}
        return [(names[id(array)], array) for array in arrays]

    def result(self) -> InspectResult:
        """Returns the whole result.

        Raises:
            Internal: the reply is not complete.
        """
        if self._result is None:
            raise _damaged("it has no header")
        if not self._is_complete:
            raise _damaged(f"it stopped at tensor {len(self._checksums)} of {len(self._arrays)}")
        return self._result

    def _add_header(self, header: inspection_service_pb2.StreamHeader) -> list[Array]:
        """Allocates the arrays that a header describes. Returns the empty tensors, for which no chunk follows."""
        if self._result is not None and (self.so_far is not self._result or not self._in_parts):
            raise _damaged("it has two headers")
        try:
            self._size = check_reply_memory(header.response, self._allowed_bytes, self._size)
            part = wire_results.decode(header.response, wire_results.NO_DATA)
        except (InvalidArgument, KeyError, ValueError) as failure:
            raise error(Reason.INTERNAL, f"the reply cannot be read; is the server newer? ({failure})") from None
        except MemoryError:
            raise error(Reason.OUT_OF_MEMORY, "the reply is larger than the memory that the client has") from None
        self._result = part if self._result is None else joined(self._result, part)
        self._arrays += [entry.array for entry in tensors(part)]
        return self._completed()

    def _add_chunk(self, chunk: Chunk) -> list[Array]:
        """Copies a chunk into its array; returns the tensors that are now complete. Refuses chunks out of order."""
        index = len(self._checksums)
        if (chunk.tensor, chunk.offset) != (index, self._filled) or index == len(self._arrays):
            expected = f"byte {self._filled} of tensor {index}"
            raise _damaged(f"byte {chunk.offset} of tensor {chunk.tensor} arrived instead of {expected}")
        data = self._decompress(chunk, self._arrays[index])
        space = self._arrays[index].reshape(-1).view(np.uint8)[self._filled : self._filled + len(data)]
        if len(data) > len(space):
            raise _damaged(f"tensor {index} is larger than its header says")
        space[:] = data
        self._checksum = checksum(space, self._checksum)  # now, while it is in the CPU's cache
        self._filled += len(data)
        return self._completed()

    def _decompress(self, chunk: Chunk, array: Array) -> memoryview:
        if not chunk.compression:
            return chunk.data
        try:
            size = min(stated_size(chunk.data), array.nbytes - self._filled, MAX_CHUNK_BYTES)
            return np.frombuffer(decompress(chunk.data, array.itemsize, size, chunk.compression), np.uint8).data
        except InvalidArgument as failure:
            raise _damaged(f"a chunk of tensor {chunk.tensor}: {failure.message}") from None

    def _completed(self) -> list[Array]:
        """Returns the current tensor, if it is complete, and the empty ones after it."""
        first = len(self._checksums)
        while len(self._checksums) < len(self._arrays) and self._filled == self._arrays[len(self._checksums)].nbytes:
            array = self._arrays[len(self._checksums)]
            array.flags.writeable = False
            self._checksums.append(self._checksum)
            self._filled = self._checksum = 0
        if len(self._checksums) == len(self._arrays):
            self.so_far = self._result
        return self._arrays[first : len(self._checksums)]

    def _finish(self, trailer: inspection_service_pb2.StreamTrailer) -> None:
        """Ends the reply. Raises ``INTERNAL`` if a tensor is incomplete or differs from its checksum."""
        if self._result is None or len(self._checksums) < len(self._arrays):
            raise _damaged(f"it ends at tensor {len(self._checksums)} of {len(self._arrays)}")
        if len(trailer.crc32c) != len(self._checksums):
            raise _damaged(f"it has {len(self._checksums)} tensors and {len(trailer.crc32c)} checksums")
        for array, arrived, sent in zip(self._arrays, self._checksums, trailer.crc32c):
            if arrived != sent:
                ((name, _),) = self.named([array])
                raise _damaged(f"{name} has CRC-32C {arrived:08x}, but was sent with {sent:08x}")
        self._is_complete = True


def _damaged(problem: str) -> CutawayError:
    return error(Reason.INTERNAL, f"the reply did not arrive as it was sent: {problem}")


# A result in parts: each has what exists of it and no part before has.

_EMPTY = InspectResult({})


def joined(result: InspectResult, part: InspectResult) -> InspectResult:
    """Returns ``result`` with the next ``part`` of it."""
    return _by_field(result, part, _with)


def rest(result: InspectResult, sent: InspectResult) -> InspectResult:
    """Returns the part of ``result`` that ``sent``, the result at an earlier time, does not have."""
    return _by_field(result, sent, _without)


def _by_field(result: InspectResult, other: InspectResult, function: Any) -> InspectResult:
    pairs = ((field.name, getattr(result, field.name), getattr(other, field.name)) for field in fields(InspectResult))
    return InspectResult(**{name: function(value, other, getattr(_EMPTY, name)) for name, value, other in pairs})


def _with(value: Any, added: Any, empty: Any) -> Any:
    """Returns a field's value after the next part arrived: mappings and tuples grow, any other value is replaced,
    unless the part has none."""
    if isinstance(empty, Mapping):
        return {**value, **{key: _longer(value.get(key), element) for key, element in added.items()}}
    if isinstance(empty, tuple):
        return value + added
    return value if _is_empty(added, empty) else added


def _without(value: Any, sent: Any, empty: Any) -> Any:
    """Returns the part of a field's value that is not in ``sent``; ``empty`` if all was sent. Reverses `_with`."""
    if isinstance(empty, Mapping):
        new = {key: _later(element, sent[key]) if key in sent else element for key, element in value.items()}
        return {key: element for key, element in new.items() if key not in sent or element is not None}
    if isinstance(empty, tuple):
        return value[len(sent) :]
    return value if _is_empty(sent, empty) else empty


def _longer(value: Any, added: Any) -> Any:
    """Returns what a mapping has under a key after ``added`` came: a capture has the calls of both."""
    return ModuleCapture(value.calls + added.calls) if isinstance(value, ModuleCapture) else added


def _later(value: Any, sent: Any) -> Any:
    """Returns what ``sent`` has not under its key: the later calls of a capture, else None."""
    calls = value.calls[len(sent.calls) :] if isinstance(value, ModuleCapture) else ()
    return ModuleCapture(calls) if calls else None


def _is_empty(value: Any, empty: Any) -> bool:
    return value is None if empty is None else bool(value == empty)
