"""Requests that write tokens together: each gets what it gets alone, whatever the others ask."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from torch import Tensor

import cutaway as ca
from cutaway.adapters import load_model
from cutaway.adapters.causal_lm import CausalLMAdapter
from cutaway.contract.errors import CutawayError
from cutaway.contract.results import InspectResult, Verdict
from cutaway.engine.batching import Others, Outcome, answer_batch, inspect_batch
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.hooks import hook_site
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.model.session import Cancellation
from cutaway.engine.planning.plan import RequestPlan, plan_request
from tests.support import worker_calls
from tests.support.causal_lms import ARCHITECTURES, BLOCKS, ENCODERS, PATHS, Watched, saved

TEXTS = ("the hooks see layers of the layers", "hooks", "see the hooks", "the", "see see see the hooks")
SCHEDULES = int(os.environ.get("CUTAWAY_SCHEDULES", "10"))
Question = tuple[Sequence[str], ca.InspectRequest]


class Served:
    """A model, and what it says to requests alone and together."""

    def __init__(self, directory: Path) -> None:
        self.adapter = CausalLMAdapter(directory=directory)
        self.model: InspectedModel = load_model(self.adapter, "cpu")

    def inputs(self, texts: Sequence[str]) -> dict[str, Tensor]:
        return dict(self.adapter.collate([self.adapter.preprocess(text.encode(), "text/plain") for text in texts]))

    def alone(self, question: Question) -> Outcome:
        try:
            return inspect(self.model, question[1], self.inputs(question[0]))
        except CutawayError as failure:
            return failure

    def together(self, questions: Sequence[Question]) -> list[Outcome]:
        return inspect_batch([plan_request(self.model, asked, self.inputs(texts)) for texts, asked in questions])


def questions(draw: random.Random, blocks: str, path: str) -> Iterator[Question]:
    """Some requests, of any options, captures and edits."""
    for number in range(draw.randint(2, 5)):
        steps = draw.randint(1, 8)
        options: dict[str, Any] = {"alternatives": draw.choice([0, 0, 3])}
        if draw.random() < 0.6:
            penalty = draw.choice([None, 1.3])
            options |= {
                "temperature": draw.choice([0.7, 1.2]),
                "top_k": draw.choice([0, 5]),
                "repetition_penalty": penalty,
            }
        vector = np.random.default_rng(number).normal(size=16).astype(np.float32)
        some = tuple(sorted(draw.sample(range(steps), draw.randint(1, steps))))
        edits = [
            ca.AddVector(f"{blocks}.0", vector, norm=ca.VectorNorm.MATCH, path=path, steps=some),
            ca.Scale(f"{blocks}.1", path=path, factor=1.2, position=draw.choice([None, (-1,)])),
            ca.Zero(f"{blocks}.*", path=path, slices=(ca.Slice(-1, 3, 5),)),
        ]
        captures = [
            ca.Capture(f"{blocks}.*", path=path, position=-1),
            ca.Capture(f"{blocks}.1", path=path, steps=(0,), position=0),
            ca.Capture(f"{blocks}.0", path=path),
        ]
        request = ca.InspectRequest(
            "gpt",
            generate=ca.Generate(steps, **options),
            seed=draw.randrange(1000),
            edits=tuple(draw.sample(edits, draw.randint(0, 2))),
            captures=tuple(draw.sample(captures, draw.randint(0, 1))),
        )
        yield draw.sample(TEXTS, draw.randint(1, 2)), request


def assert_same(found: Outcome, alone: Outcome, texts: Sequence[str]) -> None:
    if not isinstance(alone, InspectResult):
        assert str(found) == str(alone)
        return
    assert isinstance(found, InspectResult)
    assert (found.texts, found.finish_reasons) == (alone.texts, alone.finish_reasons)
    assert found.predictions.keys() == alone.predictions.keys()
    for name, array in alone.predictions.items():
        np.testing.assert_allclose(found.predictions[name], array, rtol=0, atol=1e-5)
    assert [receipt.steps for receipt in found.receipts] == [receipt.steps for receipt in alone.receipts]
    assert [receipt.tensors for receipt in found.receipts] == [receipt.tensors for receipt in alone.receipts]
    for name, capture in alone.captures.items():
        assert len(found.captures[name].calls) == len(capture.calls)
        for own, other in zip(found.captures[name].calls, capture.calls):
            assert own.output.shape == other.output.shape
            if len(texts) == 1:  # padding has any values
                np.testing.assert_allclose(own.output, other.output, rtol=0, atol=1e-5)
    assert found.replay is not None
    assert found.replay.verdict is Verdict.AGREES


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_writes_what_it_writes_alone(architecture: str, tmp_path: Path) -> None:
    served, draw = Served(saved(tmp_path, architecture)), random.Random(0)
    path = PATHS.get(architecture, "")
    shared = asked = 0
    for _ in range(12):
        several = list(questions(draw, BLOCKS[architecture], path))
        alone = [served.alone(question) for question in several]
        for question, found, own in zip(several, served.together(several), alone):
            assert_same(found, own, question[0])
            asked += 1
            shared += isinstance(found, InspectResult) and found.provenance.companions > 0
    assert shared > (0.3 if architecture == "t5" else 0.7) * asked  # a bias that its blocks return has no rows


class Waiting(Others):
    """Requests that come while others are written: each after so many steps."""

    def __init__(self, plans: Sequence[RequestPlan], steps: Sequence[int]) -> None:
        self.plans, self.due = dict(enumerate(plans)), dict(enumerate(steps))
        self.outcomes: dict[int, Outcome] = {}
        self._step = 0

    def first(self) -> RequestPlan | None:
        self._step += 1
        number = next((number for number in self.plans if self.due[number] <= self._step), None)
        return None if number is None else self.plans[number]

    def take(self) -> Callable[[Outcome], None]:
        number = next(number for number in self.plans if self.due[number] <= self._step)
        del self.plans[number]
        return partial(self.outcomes.__setitem__, number)

    def pass_over(self) -> None:
        self.take()(RuntimeError("left to itself"))


def scheduled(served: Served, several: Sequence[Question], steps: Sequence[int]) -> list[Outcome]:
    """The outcomes of requests of which the first is there, and others come after so many steps."""
    plans = [plan_request(served.model, request, served.inputs(texts)) for texts, request in several]
    others = Waiting(plans[1:], steps)
    found: list[Outcome] = []
    answer_batch(plans[:1], lambda _, outcome: found.append(outcome), others)
    while others.plans:  # what came too late begins by itself
        number = next(iter(others.plans))
        plan = others.plans.pop(number)
        late: dict[int, Outcome] = {}
        answer_batch([plan], late.__setitem__, others)
        others.outcomes[number] = late[0]
    return [*found, *(others.outcomes[number] for number in range(len(plans) - 1))]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_writes_what_it_writes_alone_whenever_it_joins(architecture: str, tmp_path: Path) -> None:
    """Requests join a running batch behind any step, and leave it when their text has ended."""
    served, draw = Served(saved(tmp_path, architecture)), random.Random(1)
    path = PATHS.get(architecture, "")
    shared = asked = 0
    for _ in range(SCHEDULES):
        several = list(questions(draw, BLOCKS[architecture], path))
        alone = [served.alone(question) for question in several]
        found = scheduled(served, several, [draw.randint(0, 9) for _ in several[1:]])
        for question, outcome, own in zip(several, found, alone):
            assert_same(outcome, own, question[0])
            asked += 1
            shared += isinstance(outcome, InspectResult) and outcome.provenance.companions > 0
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in served.model.module.modules())
    assert shared > (0 if architecture in ("mamba", *ENCODERS) else 0.3) * asked - 1


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(saved(tmp_path_factory.mktemp("gpt2")))


def test_one_that_fails_or_leaves_harms_no_other(gpt2: Served) -> None:
    """A bad edit, a text that is too long, and a caller that hangs up after three tokens; listeners hear their own."""
    listeners = [Watched() for _ in range(4)]
    requests = [
        ca.InspectRequest("gpt", generate=ca.Generate(6), captures=(ca.Capture("transformer.h.1", position=-1),)),
        ca.InspectRequest("gpt", generate=ca.Generate(9)),
        ca.InspectRequest("gpt", generate=ca.Generate(6), edits=(ca.AddVector("transformer.h.0", np.ones(3)),)),
        ca.InspectRequest("gpt", generate=ca.Generate(64)),
    ]
    gone = Cancellation(hung_up=lambda: len(listeners[1].heard) >= 3)
    alone = [gpt2.alone(([text], request)) for text, request in zip(TEXTS, requests)]
    plans = []
    for text, request, listener in zip(TEXTS, requests, listeners):
        plan = plan_request(
            gpt2.model, request, gpt2.inputs([text]), gone if request is requests[1] else Cancellation()
        )
        plan.__dict__["listener"] = listener
        plans.append(plan)
    first, left, bad, long = inspect_batch(plans)
    assert_same(first, alone[0], TEXTS[:1])
    assert "DEADLINE_EXCEEDED" in str(left)
    assert (str(bad), str(long)) == (str(alone[2]), str(alone[3]))
    assert isinstance(first, InspectResult)
    assert listeners[0].heard[-1].generated == first.generated
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in gpt2.model.module.modules())


def test_a_caller_that_leaves_ends_its_own_rows_only(gpt2: Served) -> None:
    listeners = [Watched(), Watched()]
    request = ca.InspectRequest("gpt", generate=ca.Generate(8))
    gone = Cancellation(hung_up=lambda: len(listeners[1].heard) >= 3)
    alone = gpt2.alone((TEXTS[:1], request))
    plans = [
        replace(plan_request(gpt2.model, request, gpt2.inputs([text]), cancellation), listener=listener)
        for text, cancellation, listener in zip(TEXTS, (Cancellation(), gone), listeners)
    ]
    stays, left = inspect_batch(plans)
    assert_same(stays, alone, TEXTS[:1])
    assert isinstance(stays, InspectResult)
    assert stays.provenance.companions == 1
    assert "DEADLINE_EXCEEDED" in str(left)
    assert [len(part.generated) for part in listeners[0].heard] == [*range(1, 9)]
    assert len(listeners[1].heard) == 3


def test_calls_of_one_turn_write_together(gpt2: Served) -> None:
    """In one message, and streamed; beside a call that writes nothing."""
    served = worker_calls.worker(gpt2.adapter)
    asked: dict[str, Any] = {"generate": 5, "captures": "transformer.h.1", "seed": 3}
    calls = [worker_calls.row(text, **asked) for text in TEXTS[:3]]
    streamed = worker_calls.in_parts(worker_calls.row(TEXTS[3], **asked))
    *written, parts, plain = served.answer([*calls, streamed, worker_calls.row(TEXTS[0])])
    request = ca.InspectRequest("gpt", generate=ca.Generate(5), captures=(ca.Capture("transformer.h.1"),), seed=3)
    *_, whole = worker_calls.parts_of(served, parts)
    for text, found in zip(TEXTS, [*map(worker_calls.read, written), whole]):
        assert_same(found, gpt2.alone(([text], request)), [text])
        assert found.provenance.companions == 3
    assert "next" in worker_calls.read(plain).predictions


def test_every_call_is_answered_where_the_worker_has_a_fault(gpt2: Served) -> None:
    served = worker_calls.worker(gpt2.adapter)
    calls = [worker_calls.row(text, generate=3) for text in TEXTS[:3]]

    def fails(plans: Sequence[RequestPlan], *_: object) -> None:
        if plans:
            raise RuntimeError("a fault")

    with patch("cutaway.server.worker.worker.answer_batch", fails):
        replies = [*served.answer(calls)]
    assert all(b"a fault" in reply for reply in replies)
    assert [worker_calls.read(reply).texts for reply in served.answer(calls)] != [(), (), ()]


def test_one_whose_rows_depend_on_others_is_left_to_itself(gpt2: Served) -> None:
    """It does not join, and holds up nobody."""
    request = ca.InspectRequest("gpt", generate=ca.Generate(6))
    several = [([text], request) for text in TEXTS[:3]]
    dependent = gpt2.inputs([TEXTS[1]])["input_ids"].shape

    def independent(plan: RequestPlan, beside: object = ()) -> bool:
        return plan.inputs["input_ids"].shape != dependent

    with patch("cutaway.engine.batching.plan_rows_independent", independent):
        first, left, joined = scheduled(gpt2, several, [1, 1])
    assert str(left) == "left to itself"
    for outcome, question in ((first, several[0]), (joined, several[2])):
        assert_same(outcome, gpt2.alone(question), question[0])
        assert isinstance(outcome, InspectResult)
        assert outcome.provenance.companions == 1


def mixed_up(site: Any, share: Any, tensor: Tensor, step: int) -> Any:
    """The rows of the next request."""
    rows = slice((share.rows.start + 1) % tensor.shape[0], (share.rows.start + 1) % tensor.shape[0] + 1)
    return (rows, *PLACE(site, share, tensor, step)[1:])


PLACE = hook_site.SharedSite._place


@pytest.mark.parametrize("mode", [ca.CheckMode.SAME_PASS, ca.CheckMode.INDEPENDENT])
def test_rows_of_others_show_in_the_replay(mode: ca.CheckMode, gpt2: Served) -> None:
    """Though replays run together too: in another order, or each by itself."""
    vectors = np.random.default_rng(0).normal(size=(3, 16)).astype(np.float32)
    several = [
        (
            ["see the hooks"],
            ca.InspectRequest(
                "gpt",
                generate=ca.Generate(4),
                edits=(ca.AddVector("transformer.h.0", vector, scale=3.0),),
                check=ca.CheckRequest(mode),
            ),
        )
        for vector in vectors
    ]
    for found in gpt2.together(several):
        assert isinstance(found, InspectResult)
        assert found.replay is not None
        assert found.replay.verdict is Verdict.AGREES
    with patch.object(hook_site.SharedSite, "_place", mixed_up):
        outcomes = gpt2.together(several)
    for found in outcomes:
        assert isinstance(found, InspectResult)
        assert found.provenance.companions == 2
        assert found.replay is not None
        assert found.replay.verdict is Verdict.DISAGREES
