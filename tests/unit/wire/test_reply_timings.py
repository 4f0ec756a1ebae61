"""Timings beside a serialised reply, and in it."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given

from cutaway.results import InspectResult
from cutaway.v1 import inspection_pb2
from cutaway.wire import results as wire_results
from cutaway.wire.reply_timings import as_worker_reply, complete_response, split_response
from tests.support.wire_strategies import answers
from tests.support.wire_walk import ambiguities

KIND = inspection_pb2.InspectResponse


@given(result=answers)
def test_timings_are_added_once_and_taken_out_again(result: InspectResult) -> None:
    """Whatever a reply holds, and where its timings are in it."""
    message = wire_results.encode(result)
    written = message.SerializeToString()
    reply = as_worker_reply(message)
    assert not KIND.FromString(reply.response).HasField("timings")
    completed = complete_response(reply)
    assert list(ambiguities(KIND.DESCRIPTOR, completed)) == []
    assert KIND.FromString(completed).SerializeToString() == written
    for data in (completed, written):
        assert split_response(data).SerializeToString() == reply.SerializeToString()


@pytest.mark.parametrize("length", [1, 7, 100])
def test_bytes_that_are_no_reply(length: int) -> None:
    """They raise what a parser raises, or pass as unknown fields."""
    noise = np.random.default_rng(length)
    raised = 0
    for _ in range(200):
        try:
            split_response(noise.bytes(length))
        except DecodeError:
            raised += 1
    assert raised > 100
