"""Explanations that replace units of a layer: Captum's own answers, held against raw outputs of forward passes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import CheckMode, CheckRequest, ClassIndex, LayerAttribution
from cutaway.contract.results import Verdict
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.methods.captum_call import method_of
from cutaway.engine.model.inspected_model import InspectedModel
from tests.support.checked_attributions import CHECKED, MLP, RANDOM, Build, ask, noise, verdict, wired
from tests.support.state_snapshot import State

SEED = 11
X = {"x": noise(4, 8)}


def asked(layer: str) -> tuple[LayerAttribution, ...]:
    """Every method, of ``layer``."""
    return (
        ca.LayerFeatureAblation(layer=layer),
        ca.LayerFeatureAblation(layer=layer, baseline=-0.5),
        ca.LayerFeaturePermutation(layer=layer),
    )


def net(wiring: Callable[..., Any], **parts: Callable[[], Any]) -> Build:
    """A layer before a head, and whatever else."""
    return wired(wiring, a=lambda: nn.Linear(8, 6), head=lambda: nn.Linear(6, 3), **parts)


def test_ablation_is_the_drop_of_the_target_by_hand() -> None:
    """Each unit's attribution is the target's value less that of the network whose unit is the baseline, computed
    without a hook."""
    model: Any = MLP().double()
    x = noise(3, 8, dtype=torch.float64)
    got = ask(model, {"x": x}, ca.LayerFeatureAblation(layer="a", baseline=0.25), target=ClassIndex((0, 1, 2)))
    for unit in range(16):
        hidden = model.a(x)
        hidden[:, unit] = 0.25
        drop = model(x) - model.head(torch.relu(hidden))
        expected = drop[range(3), range(3)].detach().numpy()
        assert got.attributions[0].values["a"][:, unit] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize(
    "edit",
    [ca.Scale("a", factor=-2.0), ca.Scale("a", factor=3.0, rows=(1,)), ca.Scale("head", at="input", factor=0.5)],
    ids=["the layer", "a row of it", "behind it"],
)
def test_units_of_an_edited_model_are_replaced(edit: ca.Scale, mode: CheckMode) -> None:
    """Edits are in force in every pass, those of the layer before its units are replaced: the reply is that of the
    edited network, and the check agrees."""
    edited = ask(MLP(), X, *asked("a"), edits=(edit,), seed=SEED, check=CheckRequest(mode)).attributions
    plain = ask(MLP(), X, *asked("a"), seed=SEED).attributions
    assert {verdict(got) for got in edited} == {Verdict.AGREES}
    assert not any(np.allclose(one.values["a"], other.values["a"]) for one, other in zip(edited, plain))


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize(
    "target",
    [ca.CrossEntropy(labels=(0, 1, 2, 0)), ca.OutputSum(), ca.Neuron("head", (0,)), ClassIndex((2, 0, 1, 1))],
    ids=lambda target: type(target).__name__,
)
def test_any_target_can_be_explained(target: ca.Target, mode: CheckMode) -> None:
    """Losses with labels of their own a row, sums and neurons too; the values tell them from another class."""
    for each in asked("a"):
        more: dict[str, Any] = {"check": CheckRequest(mode), "seed": SEED}
        got, beside = (ask(MLP(), X, each, target=one, **more).attributions[0] for one in (target, ClassIndex((1,))))
        assert verdict(got) is verdict(beside) is Verdict.AGREES
        assert not np.allclose(got.values["a"], beside.values["a"])


# Seeds.


@pytest.mark.parametrize("build", [MLP, RANDOM], ids=["fixed", "random"])
def test_the_same_seed_gives_the_same_permutation_bit_for_bit(build: Build) -> None:
    """Whatever the generators did before, and whatever the model itself draws; another seed gives another answer."""
    answers = []
    for seed, before in ((SEED, 1), (SEED, 2), (SEED + 1, 2)):
        torch.manual_seed(before)
        more: dict[str, Any] = {"seed": seed, "check": CheckRequest(CheckMode.OFF)}
        result = ask(build(), X, ca.LayerFeaturePermutation(layer="head"), **more)
        assert result.provenance.seed == seed
        answers.append(result.attributions[0].values["head"])
    assert np.array_equal(answers[0], answers[1])
    assert not np.array_equal(answers[0], answers[2])


def test_two_rows_change_places_and_never_stay() -> None:
    """Of two rows there is one other order: each unit's attribution is what the other row's value does, by hand."""
    model: Any = MLP().double()
    x = noise(2, 8, dtype=torch.float64)
    got = ask(model, {"x": x}, ca.LayerFeaturePermutation(layer="a"), target=ClassIndex((1,)), seed=SEED).attributions[
        0
    ]
    for unit in range(16):
        hidden = model.a(x)
        hidden[:, unit] = hidden[:, unit].flip(0)
        drop = (model(x) - model.head(torch.relu(hidden)))[:, 1].detach().numpy()
        assert got.values["a"][:, unit] == pytest.approx(drop, abs=1e-12)
    assert verdict(got) is Verdict.AGREES


def test_a_permutation_keeps_the_batch_together() -> None:
    """Rows are exchanged with each other: a request that explains some of them only must not leave the others out."""
    assert [method_of(each).uses_randomness for each in asked("a")] == [False, False, True]


# Captum gone wrong.


# What Captum overlooks.


def test_many_passes_at_one_input_hold_it_once() -> None:
    """Thousands of units of a large image would otherwise need a copy of it each."""
    from cutaway.engine.passes.pass_recorder import PassRecorder
    from cutaway.engine.passes.targets import ResolvedTarget
    from cutaway.engine.planning.attribution_setup import resolve_attribution

    model = MLP()
    subject = InspectedModel(model, lambda tensors: model(**tensors))
    chosen = ResolvedTarget("output", lambda output: output[:, 0])
    about = resolve_attribution(subject, asked("a")[0], dict(X), {}).at_target(chosen)
    witness = PassRecorder(about, at_layer=False)
    for _ in range(3):
        witness.forward(X["x"])
    witness.forward(X["x"] + 1)
    first, second, third, other = (each.points["x"] for each in witness.passes)
    assert first is second is third
    assert torch.equal(other, X["x"] + 1)
    own = method_of(about.request).passes(about)
    assert len(own) == 17
    assert len({id(each.points["x"]) for each in own}) == 1


# What cannot be asked.


# Nothing is left behind.


@pytest.mark.parametrize("mode", list(CheckMode))
@pytest.mark.parametrize("fails", range(6))
def test_the_model_and_the_generators_are_as_they_were(fails: int, mode: CheckMode) -> None:
    """After an answer, and after a failure in whichever pass: no hook, flag, gradient or attribute is left, no graph
    was built, and no generator has moved."""
    passes: list[int] = []

    def wiring(m: Any, x: Tensor) -> Tensor:
        h = torch.relu(m.a(x))
        passes.append(1)
        if len(passes) == fails:
            raise ValueError("half-way")
        return m.head(h)

    model: Any = net(wiring)().train()
    model.a.weight.requires_grad_(False)
    model.a.weight.grad = torch.ones(6, 8)
    subject = InspectedModel(model, lambda tensors: model(**tensors))
    before, dice, numbers = State.of(model), torch.get_rng_state(), np.random.get_state(legacy=False)
    for each in asked("a"):
        passes.clear()
        request = ca.InspectRequest("m", attributions=(each,), check=CheckRequest(mode), seed=SEED)
        with pytest.raises(ca.InvalidArgument, match="half-way") if fails else nullcontext():
            assert inspect(subject, request, dict(X)).provenance.backwards == 0
        assert not before.changes(State.of(model)), each
        assert torch.equal(torch.get_rng_state(), dice)
        assert str(np.random.get_state(legacy=False)) == str(numbers)
