"""Adds timings of a worker or the gateway to a serialised reply, without decoding it."""

from __future__ import annotations

from cutaway.v1 import worker_pb2


def timing_patch(**timings: float) -> bytes:
    """Returns bytes that set further timings when they are appended to a serialised InspectResponse: protobuf merges
    the parts of a message."""
    message = worker_pb2.ReplySupplement()
    for stage, milliseconds in timings.items():
        setattr(message.timings, stage, milliseconds)
    return message.SerializeToString()


def stream_timing_patch(**timings: float) -> bytes:
    """Does what `timing_patch` does, for a serialised InspectStreamResponse with a header."""
    message = worker_pb2.StreamSupplement()
    message.piece.header.response.MergeFromString(timing_patch(**timings))
    return message.SerializeToString()
