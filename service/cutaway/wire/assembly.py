"""A reply in pieces, put together: each chunk goes straight to its place in an array that is there already."""

from __future__ import annotations

import numpy as np
from google.protobuf.message import DecodeError

from cutaway.errors import CutawayError, InvalidArgument, Reason, error
from cutaway.packing import stated_bytes, unpacked
from cutaway.results import InspectResult
from cutaway.results.places import swapped
from cutaway.tensors import Array
from cutaway.v1 import inspection_service_pb2, worker_pb2
from cutaway.wire import results as wire_results
from cutaway.wire import status
from cutaway.wire.pieces import Chunk, checksum, chunk_in, extent, tensors


class Assembly:
    """One reply, as its pieces arrive in order.

    Attributes:
        reply_bytes: how much has arrived, in bytes.
    """

    def __init__(self) -> None:
        self.reply_bytes = 0
        self._hollow: InspectResult | None = None
        self._places: list[str] = []
        self._arrays: list[Array] = []
        self._checksums: list[int] = []
        self._filled = 0  # bytes of the tensor that comes next
        self._checksum = 0  # of these bytes
        self._whole = False

    def take(self, message: bytes) -> list[tuple[str, Array]]:
        """Put one `cutaway.v1.InspectStreamResponse` in its place.

        Returns:
            The tensors that are complete by it, read-only, each with its place in the result. That they arrived
            unharmed is known at the end only.

        Raises:
            CutawayError: the failure that the worker sent instead, or ``INTERNAL``, where the reply is damaged.
        """
        self.reply_bytes += len(message)
        if self._whole:
            raise _damaged("something follows its end")
        chunk = chunk_in(message)
        if chunk is not None:
            return self._place(chunk)
        try:
            piece = inspection_service_pb2.InspectStreamResponse.FromString(message).piece
        except DecodeError:
            raise _damaged("a piece of it cannot be read") from None
        if piece.HasField("header"):
            return self._open(piece.header)
        if not piece.HasField("trailer"):
            raise _instead(piece)
        self._compare(piece.trailer)
        return []

    def result(self) -> InspectResult:
        """The whole reply.

        Raises:
            Internal: it did not arrive whole.
        """
        if self._hollow is None:
            raise _damaged("it never began")
        if not self._whole:
            raise _damaged(f"it broke off at tensor {len(self._checksums)} of {len(self._arrays)}")
        arrays = iter(self._arrays)
        return swapped(self._hollow, lambda place, hollow: next(arrays))

    def _open(self, header: inspection_service_pb2.StreamHeader) -> list[tuple[str, Array]]:
        if self._hollow is not None:
            raise _damaged("it begins twice")
        try:
            for tensor in tensors(header.response):
                self._arrays.append(np.empty(tuple(tensor.shape), extent(tensor)[0]))
                tensor.shape[:] = [0]
            self._hollow = swapped(wire_results.decode(header.response), self._noted)
        except (InvalidArgument, KeyError, ValueError) as failure:
            raise error(Reason.INTERNAL, f"the reply cannot be read; is the server newer? ({failure})") from None
        except MemoryError:
            raise error(Reason.OUT_OF_MEMORY, "the reply is larger than the memory that is left here") from None
        return self._completed()

    def _noted(self, place: str, hollow: Array) -> Array:
        self._places.append(place)
        return hollow

    def _place(self, chunk: Chunk) -> list[tuple[str, Array]]:
        now = len(self._checksums)
        if (chunk.tensor, chunk.offset) != (now, self._filled) or now == len(self._arrays):
            raise _damaged(f"byte {chunk.offset} of tensor {chunk.tensor} came, where {self._filled} of {now} was due")
        data = self._plain(chunk, self._arrays[now])
        space = self._arrays[now].reshape(-1).view(np.uint8)[self._filled : self._filled + len(data)]
        if len(data) > len(space):
            raise _damaged(f"tensor {now} is larger than its header says")
        space[:] = data
        self._checksum = checksum(space, self._checksum)  # now, while it is near
        self._filled += len(data)
        return self._completed()

    def _plain(self, chunk: Chunk, array: Array) -> memoryview:
        """The chunk's bytes, unpacked."""
        if not chunk.compression:
            return chunk.data
        try:
            size = min(stated_bytes(chunk.data), array.nbytes - self._filled)
            return np.frombuffer(unpacked(chunk.data, array.itemsize, size, chunk.compression), np.uint8).data
        except InvalidArgument as failure:
            raise _damaged(f"a chunk of tensor {chunk.tensor}: {failure.message}") from None

    def _completed(self) -> list[tuple[str, Array]]:
        """The tensor at hand, if nothing of it is missing any more, and the empty ones behind it."""
        begin = len(self._checksums)
        while len(self._checksums) < len(self._arrays) and self._filled == self._arrays[len(self._checksums)].nbytes:
            array = self._arrays[len(self._checksums)]
            array.flags.writeable = False
            self._checksums.append(self._checksum)
            self._filled = self._checksum = 0
        return list(zip(self._places[begin : len(self._checksums)], self._arrays[begin:]))

    def _compare(self, trailer: inspection_service_pb2.StreamTrailer) -> None:
        if self._hollow is None or len(self._checksums) < len(self._arrays):
            raise _damaged(f"it ends at tensor {len(self._checksums)} of {len(self._arrays)}")
        if len(trailer.crc32c) != len(self._checksums):
            raise _damaged(f"it has {len(self._checksums)} tensors and {len(trailer.crc32c)} checksums")
        for place, arrived, sent in zip(self._places, self._checksums, trailer.crc32c):
            if arrived != sent:
                raise _damaged(f"{place} has CRC-32C {arrived:08x}, and {sent:08x} when it was sent")
        self._whole = True


def _damaged(what: str) -> CutawayError:
    return error(Reason.INTERNAL, f"the reply did not arrive as it was sent: {what}")


def _instead(piece: inspection_service_pb2.StreamPiece) -> CutawayError:
    """What a worker says in place of a header or a chunk."""
    opening = worker_pb2.StreamOpening.FromString(piece.SerializeToString())
    return status.from_failure(opening.failure) if opening.HasField("failure") else _damaged("a piece of it is empty")
