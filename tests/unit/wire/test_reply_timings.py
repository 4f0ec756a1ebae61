"""Timings beside a serialised reply, and in it."""

from __future__ import annotations

from hypothesis import given, settings

from cutaway.contract.results import InspectResult
from cutaway.contract.wire import results as wire_results
from cutaway.contract.wire.message_walk import as_worker_reply, complete_response
from cutaway.v1 import inspection_pb2
from tests.support.wire_strategies import answers
from tests.support.wire_walk import ambiguities

KIND = inspection_pb2.InspectResponse


@settings(deadline=None, max_examples=30)
@given(result=answers)
def test_timings_are_added_once(result: InspectResult) -> None:
    """Whatever a reply holds, and where its timings are in it."""
    message = wire_results.encode(result)
    written = message.SerializeToString()
    reply = as_worker_reply(message)
    assert not KIND.FromString(reply.response).HasField("timings")
    completed = complete_response(reply)
    assert list(ambiguities(KIND.DESCRIPTOR, completed)) == []
    assert KIND.FromString(completed).SerializeToString() == written
