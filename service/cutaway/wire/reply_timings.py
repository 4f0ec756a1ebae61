"""Timings of a reply, kept apart from its serialised rest until all of them are known.

The worker knows how long it encoded, and the gateway how long the call waited, only when the reply is serialised. Both
set these times beside it, and whoever sends it to the caller adds all of them at once: not every decoder merges a
message field that occurs twice.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from cutaway.v1 import inspection_pb2, worker_pb2
from cutaway.wire.framing import read_fields_with_ends

_TIMINGS = inspection_pb2.InspectResponse.TIMINGS_FIELD_NUMBER


def as_worker_reply(response: inspection_pb2.InspectResponse) -> worker_pb2.WorkerReply:
    """Serialises ``response`` without its timings, which the reply has beside it; clears them in ``response``."""
    reply = worker_pb2.WorkerReply(timings=response.timings)
    response.ClearField("timings")
    reply.response = response.SerializeToString()
    return reply


def complete_response(reply: worker_pb2.WorkerReply) -> bytes:
    """Returns the serialised response in ``reply``, with the timings beside it, if there are any."""
    if not reply.HasField("timings"):
        return reply.response
    return reply.response + inspection_pb2.InspectResponse(timings=reply.timings).SerializeToString()


def split_response(response: bytes) -> worker_pb2.WorkerReply:
    """Takes the timings out of a serialised InspectResponse, and parses nothing else; inverse of `complete_response`.

    Raises:
        DecodeError: the bytes are no such message.
    """
    view = memoryview(response)
    timings = inspection_pb2.Timings()
    rest, start = [], 0
    try:
        for number, value, end in read_fields_with_ends(view):
            if number == _TIMINGS:
                timings.MergeFromString(value)
            else:
                rest.append(view[start:end])
            start = end
    except (LookupError, TypeError) as failure:
        raise DecodeError(str(failure)) from None
    return worker_pb2.WorkerReply(response=b"".join(rest), timings=timings)
