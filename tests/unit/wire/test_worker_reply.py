"""A worker's reply in parts: what it says, where its timings are, and whose memory its tensors are."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.results import ClassPrediction, InspectResult
from cutaway.contract.tensors import COMPRESSIONS
from cutaway.contract.wire import results as wire_results
from cutaway.contract.wire import worker_reply
from cutaway.contract.wire.worker_reply import Parts, Reply
from cutaway.v1 import inspection_pb2, worker_pb2
from tests.support.wire_strategies import answers, canonical, with_arrays
from tests.support.wire_walk import ambiguities
from tests.support.worker_calls import read, row, worker

KIND = inspection_pb2.InspectResponse


@settings(deadline=None, max_examples=30)
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


def _plain(result: InspectResult) -> InspectResult:
    """What ``result`` has of a main pass: predictions, captures, gradients of inputs."""
    main = ("predictions", "classes", "targets", "target_values", "captures", "input_gradients", "labels", "timings")
    also = ("warnings", "provenance", "feature_names", "example_axes")
    return InspectResult(**{name: getattr(result, name) for name in (*main, *also)})


@settings(deadline=None, max_examples=15)
@given(results=st.lists(answers, min_size=2, max_size=3), small_bytes=st.sampled_from([0, 1 << 20]))
def test_a_reply_of_a_known_form_says_what_protobuf_would(results: list[InspectResult], small_bytes: int) -> None:
    """Answers come again with other numbers, classes and labels, and with each other's warnings and provenance."""
    first = [_plain(result) for result in results]
    others = [
        dataclasses.replace(
            with_arrays(lambda array: array[..., ::-1] if array.ndim else array, one),
            classes=other.classes,
            labels=other.labels,
            timings=other.timings,
            provenance=other.provenance if number % 2 else one.provenance,
            warnings=other.warnings if number % 2 else one.warnings,
        )
        for number, (one, other) in enumerate(zip(first, first[1:] + first[:1]))
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_reply, "_SMALL_BYTES", small_bytes)
        patch.setattr(worker_reply, "_forms", {})
        for result in (*first, *first, *others, *first, *others):
            completed = Reply.read(b"".join(Reply.of(result).serialized())).complete()
            assert list(ambiguities(KIND.DESCRIPTOR, completed)) == []
            assert KIND.FromString(completed).SerializeToString() == wire_results.encode(result).SerializeToString()


def test_the_third_answer_to_a_question_has_the_form_of_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protobuf writes its classes alone; two answers about other tensors have forms of their own."""
    monkeypatch.setattr(worker_reply, "_forms", {})
    results = [
        InspectResult({"output": np.full((1, 10), number, np.float32)}, (ClassPrediction(number, "", 0.5),))
        for number in range(3)
    ]
    for result in results[:2]:
        Reply.of(result)
    monkeypatch.setattr(wire_results, "encode", None)
    reply = wire_results.decode(KIND.FromString(Reply.of(results[2]).complete()))
    assert reply.predictions["output"].tolist() == [[2] * 10]
    assert reply.classes == results[2].classes
    with pytest.raises(TypeError):
        Reply.of(InspectResult({"output": np.zeros((1, 9), np.float32)}))


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
