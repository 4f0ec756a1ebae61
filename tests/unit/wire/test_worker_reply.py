"""A worker's reply in parts: what it says, where its timings are, and whose memory its tensors are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.results import InspectResult
from cutaway.contract.tensors import COMPRESSIONS
from cutaway.contract.wire import results as wire_results
from cutaway.contract.wire import worker_reply
from cutaway.contract.wire.worker_reply import Parts, Reply
from cutaway.v1 import inspection_pb2, worker_pb2
from tests.support.wire_strategies import answers, canonical
from tests.support.wire_walk import ambiguities
from tests.support.worker_calls import read, row, worker

KIND = inspection_pb2.InspectResponse


@settings(deadline=None, max_examples=60)
@given(result=answers, small_bytes=st.sampled_from([0, 1 << 20]), compression=st.sampled_from(["", *COMPRESSIONS]))
def test_a_reply_says_what_protobuf_would(result: InspectResult, small_bytes: int, compression: str) -> None:
    """Whatever a reply holds, in parts or not: the same message, and its timings once, wherever they are in it."""
    written = wire_results.encode(result, compression)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_reply, "_SMALL_BYTES", small_bytes)
        reply = Reply.read(b"".join(Reply.of(result, compression).serialized()))
    assert not KIND.FromString(b"".join(reply.response)).HasField("timings")
    completed = reply.complete()
    assert reply.size == len(completed)
    assert list(ambiguities(KIND.DESCRIPTOR, completed)) == []
    assert KIND.FromString(completed).SerializeToString() == written.SerializeToString()
    assert canonical(wire_results.decode(KIND.FromString(completed))) == canonical(wire_results.decode(written))


@pytest.mark.parametrize("damaged", [b"\x0a\x05abc", b"\x0a", b"\x0b", b"\x19abc"])
def test_a_damaged_reply_is_refused(damaged: bytes) -> None:
    """A response that ends too early, a field without a length, a group, a short number."""
    with pytest.raises(DecodeError):
        Reply.read(damaged)


def test_a_large_reply_is_not_copied() -> None:
    """Its parts are the memory of its arrays."""
    array = np.arange(1 << 16, dtype=np.float32)
    parts = Reply.of(InspectResult({"output": array})).response
    assert any(np.shares_memory(np.frombuffer(part, np.uint8), array) for part in parts if len(part) == array.nbytes)


class Own(nn.Module):
    """Returns memory of its own, which its next pass overwrites."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(1, 64))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.get_buffer("kept").copy_(x)


class Reuses(nn.Module):
    """Its output, and those of its layers, lie in memory that the next pass overwrites."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.own, self.last = nn.Linear(64, 64), Own(), Own()

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.last(self.own(x) + self.lift(x) * 0)
        return output


def test_later_passes_change_no_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply may be sent while the model runs on."""
    monkeypatch.setattr(worker_reply, "_SMALL_BYTES", 0)
    served = worker(Reuses())
    replies: dict[int, Parts] = {}

    def ask(value: float) -> Parts:
        x = {"x": torch.full((1, 64), value)}
        layers = [ca.LayerActivation(layer=name) for name in ("own", "last")]
        asked = row(x, captures=["own", "last"], attributions=[*layers, ca.Occlusion(windows={"x": (8,)})])
        served.run([asked], replies.__setitem__, _now)
        return replies[0]

    first = ask(1.0)
    before = b"".join(first)
    second = ask(2.0)
    assert b"".join(first) == before != b"".join(second)
    result = read(before)
    assert result.predictions["output"].tolist() == [[1.0] * 64]
    assert result.captures["own"].output.tolist() == [[1.0] * 64]
    assert result.attributions[0].values["own"].tolist() == [[1.0] * 64]


def _now(run: object, positions: Sequence[int]) -> None:
    raise AssertionError("no call of these is long")


def test_a_failure_is_a_reply_without_a_response() -> None:
    """And so is the number of a streamed reply."""
    failure = worker_pb2.Failure(code=3, reason="INVALID_VALUE", message="what")
    reply = Reply.read(b"".join(Reply.failed(failure).serialized()))
    assert reply.beside.failure == failure
    assert not reply.response
    assert Reply.read(worker_pb2.WorkerReply(pieces=7).SerializeToString()).pieces == 7
