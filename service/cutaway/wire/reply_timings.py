"""What a worker sends beside a serialised response: its timings, until all of them are known, and a summary.

The worker knows how long it encoded, and the gateway how long the call waited, only when the reply is serialised. Both
set these times beside it, and whoever sends it to the caller adds all of them at once: not every decoder merges a
message field that occurs twice.
"""

from __future__ import annotations

from cutaway.v1 import inspection_pb2, worker_pb2
from cutaway.wire.framing import prefix

_TIMINGS = inspection_pb2.InspectResponse.TIMINGS_FIELD_NUMBER


def as_worker_reply(response: inspection_pb2.InspectResponse) -> worker_pb2.WorkerReply:
    """Serialises ``response`` without its timings, which the reply has beside it; clears them in ``response``."""
    reply = worker_pb2.WorkerReply(timings=response.timings)
    for attribution in response.attributions:
        for check in attribution.checks:
            reply.checks.add(method=attribution.method, verdict=check.verdict)
    response.ClearField("timings")
    reply.response = response.SerializeToString()
    return reply


def complete_response(reply: worker_pb2.WorkerReply) -> bytes:
    """Returns the serialised response in ``reply``, with the timings beside it, if there are any."""
    if not reply.HasField("timings"):
        return reply.response
    timings = reply.timings.SerializeToString()
    return b"".join((reply.response, prefix(_TIMINGS, len(timings)), timings))
