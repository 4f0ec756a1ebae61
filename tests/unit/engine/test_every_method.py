"""What every method promises: edits and targets of rows, seeds, and a model that is afterwards as it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import cutaway as ca
from cutaway.contract.requests import CheckMode, CheckRequest, ExpectedGradient
from cutaway.contract.results import Cause, Verdict
from tests.support.attribution_models import CONVOLUTIONS, IMAGE, OVERRIDING, X, expected_gradients, of_units
from tests.support.checked_attributions import MLP, RANDOM, Build, ask, verdict
from tests.support.plain_captum import SAMPLED, SEED
from tests.support.state_snapshot import State
from tests.unit.engine.test_captum_gone_wrong import ASKED, FITTED, RELEVANCE, TARGET, named, network, targeted
from tests.unit.engine.test_plain_captum import generators

OFF = CheckRequest(CheckMode.OFF)
MODES = (CheckMode.INDEPENDENT, pytest.param(CheckMode.SAME_PASS, marks=pytest.mark.slow))
ROW_BY_ROW = tuple(
    replace(each, n_samples=1) if isinstance(each, ExpectedGradient) else each
    for each in ASKED
    if not isinstance(each, (*SAMPLED[:3], ca.DeepLift, ca.LayerDeepLift, ca.NeuronDeepLift, ca.LayerConductance))
    and each not in (*FITTED, *RELEVANCE)
)
"""Methods under which each row has numbers of its own, also in edits and targets."""


def edited(asked: Any, factor: float, **more: Any) -> dict[str, Any]:
    return {"edits": (ca.Scale("net.a" if asked in FITTED else "a", factor=factor, **more),)}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("asked", ASKED, ids=named)
def test_an_edit_of_all_rows_alike_is_explained(asked: Any, mode: CheckMode) -> None:
    """It holds in every pass, and changes what is explained; what Captum overrides is the edited model."""
    build, inputs = network(asked)
    more: dict[str, Any] = {**targeted(asked), "seed": SEED}
    (got,) = ask(build(), inputs, asked, check=CheckRequest(mode), **edited(asked, -2.0), **more).attributions
    (plain,) = ask(build(), inputs, asked, check=OFF, **more).attributions
    assert verdict(got) is Verdict.AGREES, got.checks
    assert not any(np.allclose(values, plain.values[name]) for name, values in got.values.items())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("asked", ROW_BY_ROW, ids=named)
def test_rows_keep_their_places(asked: Any, mode: CheckMode) -> None:
    """An edit of one row is in force in every pass and copy, and changes that row alone; a loss has its row's own
    label."""
    build, inputs = network(asked)
    more: dict[str, Any] = {"check": CheckRequest(mode), "seed": SEED}
    if targeted(asked):
        more["target"] = ca.CrossEntropy(labels=(0, 1, 2, 0))
    (plain,) = ask(build(), inputs, asked, **more).attributions
    (got,) = ask(build(), inputs, asked, **edited(asked, -2.0, rows=(1,)), **more).attributions
    assert verdict(plain) is verdict(got) is Verdict.AGREES, got.checks
    for name, values in got.values.items():
        assert not np.array_equal(values[1], plain.values[name][1])
        if not isinstance(asked, ca.FeaturePermutation | ca.LayerFeaturePermutation):  # they exchange rows
            assert np.allclose(values[0], plain.values[name][0], rtol=1e-4, atol=1e-6)


def test_gradients_are_edited_beside_a_rectifier_that_captum_overrides() -> None:
    """At the rectifier itself only its values can be."""
    edits = (ca.Scale("r1", factor=2.0), ca.Scale("b", "grad_input", factor=2.0))
    for got in ask(CONVOLUTIONS(), IMAGE, *OVERRIDING, edits=edits).attributions:
        assert verdict(got) is Verdict.AGREES


TARGETS: tuple[ca.Target, ...] = (ca.OutputSum(), ca.Neuron("b", (1, 1, 1)), ca.MultiIndex(((2,), (0,), (1,), (1,))))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: type(target).__name__)
def test_any_target_is_explained(target: ca.Target) -> None:
    """A sum of the output, a neuron, and an element for each row, whose values tell it from another class."""
    for asked in ASKED:
        if asked in RELEVANCE or not targeted(asked) or asked in FITTED or getattr(asked, "layer", "") == "b":
            continue  # of one class, of one example, or of the neuron's own layer
        if isinstance(target, ca.Neuron) and hasattr(asked, "neuron"):
            continue  # a neuron beside it
        build, inputs = network(asked)
        model = build()
        (got,) = ask(model, inputs, asked, target=target, seed=SEED).attributions
        (other,) = ask(model, inputs, asked, target=TARGET, seed=SEED, check=OFF).attributions
        assert verdict(got) is Verdict.AGREES, (asked, got.checks)
        assert not any(np.allclose(values, other.values[name]) for name, values in got.values.items())


DRAWING: tuple[Any, ...] = (
    ca.FeaturePermutation(), ca.ShapleyValueSampling(n_samples=2), of_units("head")[2], ca.KernelShap(n_samples=30),
    expected_gradients(ca.Neuron("a", (2,)), {"x": (8,)})[0], ca.Saliency(noise=ca.NoiseTunnel(n_samples=3, stdev=0.5)),
)  # fmt: skip


@pytest.mark.parametrize("build", [MLP, RANDOM], ids=["fixed", "random"])
def test_the_same_seed_gives_the_same_attribution_bit_for_bit(build: Build) -> None:
    """Whatever the generators did before, and whatever the model itself draws; another seed gives another answer, and
    without one a seed is drawn, and stated, that gives the answer again."""
    answers, stated = [], SEED
    for seed, before in ((SEED, 1), (SEED, 2), (SEED + 1, 2), (None, 3), (None, 4)):
        torch.manual_seed(before)
        np.random.seed(before)
        result = ask(build(), X, *DRAWING, seed=seed, target=ca.ClassIndex((0,)), check=OFF)
        assert seed in (None, result.provenance.seed)
        stated = result.provenance.seed
        answers.append([next(iter(got.values.values())) for got in result.attributions])
    again = ask(build(), X, *DRAWING, seed=stated, target=ca.ClassIndex((0,)), check=OFF).attributions
    answers.append([next(iter(got.values.values())) for got in again])
    for each in zip(*answers, strict=True):
        alike = {(one, other) for one in range(6) for other in range(one) if np.array_equal(each[one], each[other])}
        assert alike >= {(1, 0), (5, 4)}
        assert (2, 0) not in alike
    assert 0 <= stated < 2**63
    assert ask(MLP(), X, ca.FeatureAblation()).provenance.seed == 0


def test_a_model_that_draws_does_not_disturb_what_captum_draws() -> None:
    """The hooks see Captum's very orders, though the model draws between them: the same pass matches, and is doubtful
    for no other reason than that the model draws."""
    for got in ask(RANDOM(), X, *DRAWING[:2], seed=SEED).attributions:
        check = got.checks[0]
        assert check.max_relative_error <= check.tolerance
        assert (check.verdict, check.cause) == (Verdict.INCONCLUSIVE, Cause.RANDOM_FORWARD)


@pytest.mark.parametrize("mode", [CheckMode.OFF, *MODES])
@pytest.mark.parametrize("asked", ASKED, ids=named)
def test_a_model_that_raises_half_way_is_left_as_it_was(asked: Any, mode: CheckMode) -> None:
    """Whichever pass fails: no hook, flag, gradient or attribute is left, the owner's own attributes are there, and no
    generator has moved."""
    build, inputs = network(asked)
    model: Any = build().train()
    inner, passes, fails = model.wiring, [], 0

    def failing(m: Any, **given: Tensor) -> Tensor:
        passes.append(1)
        output: Tensor = inner(m, **given)
        if len(passes) == fails:
            raise ValueError("half-way")
        return output

    model.wiring = failing
    first = next(iter(model.parameters()))
    first.grad = torch.ones_like(first)
    holder = model.net if asked in FITTED else model
    for name in ("input", "output", "activation", "further"):
        setattr(holder.head, name, "the owner's")
    before, numbers = State.of(model), generators()
    raised = 0
    for number in (1, 2, 3, 5, 1):  # the first time, a test of the model takes the first pass
        fails = number
        passes.clear()
        try:
            ask(model, inputs, asked, check=CheckRequest(mode), seed=SEED, **targeted(asked))
        except ca.InvalidArgument as failure:
            raised += "half-way" in failure.message
        assert not before.changes(State.of(model))
        assert generators() == numbers
    assert raised
    assert holder.head.input == holder.head.output == holder.head.activation == holder.head.further == "the owner's"
