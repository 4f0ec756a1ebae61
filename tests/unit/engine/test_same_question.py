"""Requests that ask the same are one request for all their rows, and each gets what it would get alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.engine import batching
from cutaway.engine.execution.main_pass import run_main_pass
from cutaway.engine.planning.plan import MOST_RECENT
from cutaway.server.worker.call import Call
from cutaway.server.worker.worker import Worker
from tests.support.reply_equality import differences
from tests.support.worker_calls import in_parts, outcome, parts_of, row, worker

ROUNDING = 1e-6
CLASSES = 4


class Joins(nn.Module):
    """Two outputs, and a module whose output does not have the batch on axis 0."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first, self.second = nn.Linear(3, 5), nn.Linear(5, CLASSES)
        self.turn = nn.Flatten(0)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.first(x).tanh()
        return {"logits": self.second(hidden), "flat": self.turn(hidden).reshape(len(x), -1)}


@pytest.fixture(scope="module")
def subject() -> Worker:
    return worker(Joins())


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests each main pass has, those that were joined counted once; 0 for one that ran alone."""
    seen: list[int] = []
    run_alone = batching._run_alone

    def counted(plans: Any) -> Any:
        seen.append(len(plans))
        return run_main_pass(plans)

    def counted_alone(plan: Any) -> Any:
        seen.append(0)
        return run_alone(plan)

    monkeypatch.setattr(batching, "run_main_pass", counted)
    monkeypatch.setattr(batching, "_run_alone", counted_alone)
    return seen


def inputs(rows: int, seed: int) -> dict[str, Tensor]:
    return {"x": torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed))}


JOINED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "captures and gradients": {
        "captures": [ca.Capture("first", at=tuple(ca.Point)), ca.Capture("second")], "input_gradients": True},
    "a part of each row": {"captures": [ca.Capture("first", slices=(ca.Slice(1, 1, 3),), reduce=ca.Norm((1,)))]},
    "the largest of each row": {"captures": [ca.Capture("first", reduce=ca.TopElements(2, axis=1))]},
    "one class for all": {"target": 2, "input_gradients": True},
    "a sum": {"target": ca.OutputSum(), "input_gradients": True},
    "float16": {"captures": [ca.Capture("first")], "reply_data_type": "float16"},
    "a pass that stops": {"captures": [ca.Capture("first", call=0)], "predictions": False},
    "gradients explained": {
        "attributions": [ca.Saliency(), ca.InputXGradient(target=ca.ClassIndex((1,)))], "check": "off"},
    "a verdict": {"attributions": [ca.Saliency()]},
    "a verdict on a path": {
        "attributions": [ca.IntegratedGradients(n_steps=8), ca.LayerConductance(layer="first", n_steps=8)]},
    "a path from a baseline": {
        "attributions": [ca.IntegratedGradients(n_steps=8, baselines={"x": np.ones((1, 3), np.float32)})],
        "captures": ["first"], "check": "off"},
    "layers explained": {
        "attributions": [ca.LayerActivation(layer="first"), ca.LayerConductance(layer="second", n_steps=4)],
        "check": "off"},
    "features replaced": {
        "attributions": [ca.FeatureAblation(), ca.Occlusion(windows={"x": (2,)})], "check": "off"},
}  # fmt: skip

NOT_JOINED: dict[str, dict[str, Any]] = {
    "rows by number": {"captures": [ca.Capture("first", slices=(ca.Slice(0, 0, 1),))]},
    "an axis from the end": {"captures": [ca.Capture("first", slices=(ca.Slice(-2, 0, 1),))]},
    "a class for each row": {"target": [0, 3], "input_gradients": True},
    "no batch on axis 0": {"captures": [ca.Capture("turn")]},
    "a neuron explained": {"attributions": [ca.NeuronGradient(neuron=ca.Neuron("first", (1,)))], "check": "off"},
    "noise": {"attributions": [ca.Saliency(noise=ca.NoiseTunnel(n_samples=2))], "check": "off", "seed": 1},
    "a mask for each row": {
        "attributions": [ca.FeatureAblation(masks={"x": np.array([[0, 1, 1], [0, 0, 1]])})], "check": "off"},
    "a class for each row explained": {"attributions": [ca.Saliency(target=ca.ClassIndex((0, 3)))], "check": "off"},
    "a layer without the batch on axis 0": {"attributions": [ca.LayerActivation(layer="turn")], "check": "off"},
    "a condition on rows": {"explain_if": ca.ExplainIf(probability_at_least=0.5)},
}  # fmt: skip


def together(subject: Worker, calls: list[Call]) -> list[Any]:
    return [outcome(reply) for reply in subject.answer(calls)]


def alone(subject: Worker, calls: list[Call]) -> list[Any]:
    return [outcome(reply) for call in calls for reply in subject.answer([call])]


def same(subject: Worker, calls: list[Call]) -> None:
    found = list(differences(together(subject, calls), alone(subject, calls), ROUNDING))
    assert found == []


@pytest.mark.parametrize("asked", JOINED.values(), ids=JOINED)
def test_each_gets_its_rows(subject: Worker, passes: list[int], asked: dict[str, Any]) -> None:
    """Requests of one, two and three rows."""
    calls = [row(inputs(1 + seed % 3, seed), **asked) for seed in range(5)]
    same(subject, calls)
    assert passes == [1, *[0] * 5]


def test_tables_with_other_columns_are_joined(subject: Worker, passes: list[int]) -> None:
    """Names of columns are checked before, and ask for nothing; also where the requests have other classes."""
    tables = [pandas.DataFrame(inputs(2, 1)["x"].numpy(), columns=list(columns)) for columns in ("abc", "cab", "abc")]
    given = [*tables, inputs(1, 2)]
    same(subject, [row(each, target=target, input_gradients=True) for target, each in enumerate(given)])
    assert passes == [1, *[0] * 4]


@pytest.mark.parametrize("asked", NOT_JOINED.values(), ids=NOT_JOINED)
def test_what_is_about_rows_is_not_joined(subject: Worker, passes: list[int], asked: dict[str, Any]) -> None:
    """Errors too are those of each alone."""
    same(subject, [row(inputs(2, seed), **asked) for seed in range(3)])
    assert 1 not in passes


ANSWERED = {name: asked for name, asked in {**JOINED, **NOT_JOINED}.items() if "explain_if" not in asked}


@pytest.mark.parametrize("asked", ANSWERED.values(), ids=ANSWERED)
def test_parts_are_of_each_requests_own_rows(subject: Worker, asked: dict[str, Any]) -> None:
    """Put together, they are what each gets alone; what is sent first is not sent again."""
    calls = [row(inputs(2, seed), **asked) for seed in range(3)]
    replies = subject.answer([in_parts(call) for call in calls])
    for call, reply in zip(calls, replies, strict=True):
        *so_far, whole = parts_of(subject, reply)
        assert list(differences(whole, alone(subject, [call])[0], ROUNDING)) == []
        assert [len(each.attributions) for each in so_far] == list(range(len(whole.attributions) + 1))
        assert all(list(differences(each.predictions, whole.predictions, 0.0)) == [] for each in so_far)


def test_all_that_share_a_pass_get_its_predictions_before_any_explanation() -> None:
    """Whatever each of them asks."""
    order: list[str] = []

    class Noted(Joins):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            order.append("pass")
            return super().forward(x)

    def note(asked: str, _: bytes) -> None:
        order.append(asked)

    questions = ("a verdict", "layers explained", "nothing", "a verdict on a path")
    calls = [
        in_parts(row(inputs(1, seed), **JOINED[asked]))._replace(begun=partial(note, asked))
        for seed, asked in enumerate(questions)
    ]
    list(worker(Noted()).answer(calls))
    first = min(map(order.index, questions))
    assert {*order[first : first + 4]} == {*questions}
    assert "pass" in order[first + 4 :]


def test_parts_that_were_sent_are_not_sent_again(passes: list[int]) -> None:
    """Three requests are joined, until the second explanation of one of them fails: each then runs alone."""

    class Fails(Joins):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return super().forward(_Fails.apply(x))

    subject = worker(Fails())
    asked: dict[str, Any] = {
        "attributions": [ca.LayerActivation(layer="second"), ca.Saliency()],
        "check": "off",
        "attribution_errors_in_place": True,
    }
    calls = [row({"x": torch.full((1, 3), value)}, **asked) for value in (1.0, 1000.0, 2.0)]
    list(subject.answer([row(inputs(1, 0), **asked)]))
    passes.clear()
    for call, reply in zip(calls, subject.answer([in_parts(call) for call in calls]), strict=True):
        *so_far, whole = parts_of(subject, reply)
        assert [len(each.attributions) for each in so_far] == [0, 1, 2]
        assert list(differences(whole, alone(subject, [call])[0], ROUNDING)) == []
    assert passes[:4] == [1, 0, 0, 0]


def test_other_questions_share_the_pass(subject: Worker, passes: list[int]) -> None:
    """In any order."""
    asked = [JOINED["captures and gradients"], JOINED["a part of each row"], JOINED["captures and gradients"]]
    same(subject, [row(inputs(2, seed), **what) for seed, what in enumerate(asked)])
    assert passes == [2, *[0] * 3]


def test_one_that_has_gone_takes_nobody_along(subject: Worker) -> None:
    calls = [row(inputs(1, seed), deadline_s=-1 if seed == 1 else 60) for seed in range(3)]
    results = together(subject, calls)
    assert [getattr(result, "reason", "") for result in results] == ["", "DEADLINE_EXCEEDED", ""]


def test_an_error_of_one_question_is_that_of_each(subject: Worker) -> None:
    """A class that there is not: each is told alone."""
    calls = [row(inputs(1, seed), target=CLASSES, input_gradients=True) for seed in range(3)]
    assert [result.reason for result in together(subject, calls)] == ["TARGET_RANGE"] * 3


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        context.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        if (context.saved_tensors[0] > 100).any():
            raise ValueError("too large")
        return gradient


def test_an_error_of_one_row_is_not_that_of_others(passes: list[int]) -> None:
    """A backward pass that fails for one of three requests, which take errors in their places."""

    class Fails(Joins):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return super().forward(_Fails.apply(x))

    subject = worker(Fails())
    asked: dict[str, Any] = {"attributions": [ca.Saliency()], "check": "off", "attribution_errors_in_place": True}
    together(subject, [row(inputs(1, seed), **asked) for seed in range(2)])
    assert passes == [1]
    calls = [row({"x": torch.full((1, 3), value)}, **asked) for value in (1.0, 1000.0, 2.0)]
    same(subject, calls)
    assert [bool(result.attributions[0].error) for result in together(subject, calls)] == [False, True, False]


def test_an_error_in_its_place_is_that_of_each(subject: Worker) -> None:
    """The other explanation of each is there."""
    wrong = ca.Saliency(target=ca.ClassIndex((CLASSES,)))
    asked: dict[str, Any] = {
        "attributions": [ca.Saliency(), wrong],
        "check": "off",
        "attribution_errors_in_place": True,
    }
    calls = [row(inputs(1 + seed, seed), **asked) for seed in range(3)]
    same(subject, calls)
    for result in together(subject, calls):
        found, failed = result.attributions
        assert (found.error, failed.error.reason) == (None, "TARGET_RANGE")


def test_what_is_remembered_of_captures_is_bounded(subject: Worker) -> None:
    """Whatever callers ask: each other question takes the place of old ones."""
    for call in range(2 * MOST_RECENT):
        together(subject, [row(inputs(1, 0), captures=[ca.Capture("first", call=call)])])
        assert len(subject._model.recent) <= MOST_RECENT
    asked = JOINED["captures and gradients"]
    same(subject, [row(inputs(1, seed), **asked) for seed in range(3)])
