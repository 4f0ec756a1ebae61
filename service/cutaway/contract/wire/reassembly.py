"""Decoding of a streamed reply: each chunk is copied into an array that is allocated from the header."""

from __future__ import annotations

import numpy as np
from google.protobuf.message import DecodeError

from cutaway.contract.compression import decompress, stated_size
from cutaway.contract.errors import CutawayError, InvalidArgument, Reason, error
from cutaway.contract.results import InspectResult
from cutaway.contract.results.arrays import by_name, tensors
from cutaway.contract.tensors import Array, bytes_of
from cutaway.contract.wire import results as wire_results
from cutaway.contract.wire.chunks import MAX_CHUNK_BYTES, Chunk, checksum, decode_chunk, reply_tensors
from cutaway.contract.wire.scalars import data_type_of
from cutaway.v1 import inspection_pb2, inspection_service_pb2

# The most memory that a client gives to one reply, whatever a server says.


MAX_REPLY_BYTES = 4 << 30
"""Bytes of the tensors of one reply, unpacked, unless the caller allows more."""


def check_reply_memory(response: inspection_pb2.InspectResponse, allowed_bytes: int = 0) -> None:
    """Checks the size that the tensors of a reply have by their shapes, before memory is allocated for them.

    Args:
        response: the reply, with or without the bytes of its tensors.
        allowed_bytes: what the caller allows; counts if it is more than `MAX_REPLY_BYTES`.

    Raises:
        ResourceExhausted: ``REPLY_TOO_LARGE``.
        InvalidArgument: ``INPUT_DTYPE`` or ``INPUT_SHAPE``: a tensor cannot exist.
    """
    limit = max(allowed_bytes, MAX_REPLY_BYTES)
    size = sum(bytes_of(data_type_of(tensor), tensor.shape) for tensor in reply_tensors(response))
    if size > limit:
        what = f"the reply has tensors of {size} bytes, of which this client accepts {limit}"
        raise error(Reason.REPLY_TOO_LARGE, what, "max_reply_bytes")


class ReplyAssembler:
    """Assembles one reply from its pieces, in their order.

    Args:
        allowed_bytes: of the reply's tensors, if the caller allows more than the client's own limit.

    Attributes:
        reply_bytes: how many bytes have arrived.
    """

    def __init__(self, allowed_bytes: int = 0) -> None:
        self.reply_bytes = 0
        self._allowed_bytes = allowed_bytes
        self._result: InspectResult | None = None  # whose arrays are filled in place
        self._names: list[str] = []
        self._arrays: list[Array] = []
        self._checksums: list[int] = []  # of the arrays that are complete
        self._filled = 0  # bytes of the next array
        self._checksum = 0  # of these bytes
        self._is_complete = False

    def add(self, message: bytes) -> list[tuple[str, Array]]:
        """Adds a serialised `cutaway.v1.InspectStreamResponse`.

        Returns:
            The tensors that it completes, read-only, each with its name. Their checksums are compared only at the end.

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
        if not piece.HasField("trailer"):
            raise _damaged("a piece of it is empty")
        self._compare_checksums(piece.trailer)
        return []

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

    def _add_header(self, header: inspection_service_pb2.StreamHeader) -> list[tuple[str, Array]]:
        if self._result is not None:
            raise _damaged("it has two headers")
        try:
            check_reply_memory(header.response, self._allowed_bytes)
            self._result = wire_results.decode(header.response, wire_results.NO_DATA)
        except (InvalidArgument, KeyError, ValueError) as failure:
            raise error(Reason.INTERNAL, f"the reply cannot be read; is the server newer? ({failure})") from None
        except MemoryError:
            raise error(Reason.OUT_OF_MEMORY, "the reply is larger than the memory that the client has") from None
        found = by_name(tensors(self._result))
        self._names, self._arrays = list(found), [entry.array for entry in found.values()]
        return self._completed()

    def _add_chunk(self, chunk: Chunk) -> list[tuple[str, Array]]:
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

    def _completed(self) -> list[tuple[str, Array]]:
        """Returns the current tensor, if it is complete, and the empty ones after it."""
        first = len(self._checksums)
        while len(self._checksums) < len(self._arrays) and self._filled == self._arrays[len(self._checksums)].nbytes:
            array = self._arrays[len(self._checksums)]
            array.flags.writeable = False
            self._checksums.append(self._checksum)
            self._filled = self._checksum = 0
        return list(zip(self._names[first : len(self._checksums)], self._arrays[first:]))

    def _compare_checksums(self, trailer: inspection_service_pb2.StreamTrailer) -> None:
        if self._result is None or len(self._checksums) < len(self._arrays):
            raise _damaged(f"it ends at tensor {len(self._checksums)} of {len(self._arrays)}")
        if len(trailer.crc32c) != len(self._checksums):
            raise _damaged(f"it has {len(self._checksums)} tensors and {len(trailer.crc32c)} checksums")
        for name, arrived, sent in zip(self._names, self._checksums, trailer.crc32c):
            if arrived != sent:
                raise _damaged(f"{name} has CRC-32C {arrived:08x}, but was sent with {sent:08x}")
        self._is_complete = True


def _damaged(problem: str) -> CutawayError:
    return error(Reason.INTERNAL, f"the reply did not arrive as it was sent: {problem}")
