"""What the front door and a worker add to a reply that is serialised already."""

from __future__ import annotations

from cutaway.v1 import worker_pb2


def supplement(**timings: float) -> bytes:
    """Bytes that, appended to a serialised InspectResponse, set further timings in it: protobuf merges what is
    concatenated."""
    message = worker_pb2.ReplySupplement()
    for stage, milliseconds in timings.items():
        setattr(message.timings, stage, milliseconds)
    return message.SerializeToString()


def stream_supplement(**timings: float) -> bytes:
    """The same for a serialised InspectStreamResponse that holds a header."""
    found = worker_pb2.StreamSupplement()
    found.piece.header.response.MergeFromString(supplement(**timings))
    return found.SerializeToString()
