"""Explanations of a neuron, and of what goes through it: Captum's own answers, held against raw hook outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from captum import attr
from torch import nn

import cutaway as ca
from cutaway.contract.requests import (
    CheckMode,
    CheckRequest,
    ClassIndex,
    Neuron,
    NeuronAttribution,
    Quadrature,
)
from cutaway.contract.results import Verdict
from tests.support.checked_attributions import CHECKED, Build, ask, noise, verdict, wired
from tests.support.rounding import SMALL, close

STEPS = 6
CLASS = 1
UNIT = Neuron("b", (2,))
BLOCKS = np.repeat(np.arange(4), 2).reshape(1, 8)

ASKED: tuple[NeuronAttribution, ...] = (
    ca.NeuronGradient(neuron=UNIT),
    ca.NeuronIntegratedGradients(neuron=UNIT, n_steps=STEPS),
    ca.NeuronIntegratedGradients(
        neuron=UNIT, n_steps=STEPS, quadrature=Quadrature.RIEMANN_MIDDLE, baselines={"x": 0.5}
    ),
    ca.NeuronConductance(neuron=UNIT, n_steps=STEPS),
    ca.NeuronConductance(neuron=UNIT, n_steps=STEPS, quadrature=Quadrature.RIEMANN_LEFT, baselines={"x": -0.5}),
    ca.NeuronGuidedBackprop(neuron=UNIT),
    ca.NeuronDeconvolution(neuron=UNIT),
    ca.NeuronFeatureAblation(neuron=UNIT),
    ca.NeuronFeatureAblation(neuron=UNIT, baselines={"x": 0.5}, masks={"x": BLOCKS}),
)


def net(wiring: Callable[..., Any], **parts: Callable[[], Any]) -> Build:
    """Two layers before a head, and whatever else."""
    return wired(
        wiring, a=lambda: nn.Linear(8, 8), b=lambda: nn.Linear(8, 8), head=lambda: nn.Linear(8, 3), **parts
    )  # fmt: skip


MODULES = net(lambda m, x: m.head(m.s(m.b(m.r(m.a(x))))), r=nn.ReLU, s=nn.ReLU)

X = {"x": noise(4, 8)}


def test_what_a_neuron_is_integrated_to_adds_up_to_its_change() -> None:
    """The attributions sum to the neuron's value at the input less that at the baseline, and the reply has both."""
    asked = ca.NeuronIntegratedGradients(neuron=UNIT, n_steps=300)
    model: Any = MODULES().double()
    inputs = {"x": noise(4, 8, dtype=torch.float64)}
    got = ask(model, inputs, asked).attributions[0]
    values = [model.b(model.r(model.a(x)))[:, 2].detach().numpy() for x in (inputs["x"], torch.zeros_like(inputs["x"]))]
    assert got.value_at_input == pytest.approx(values[0])
    assert got.value_at_baseline == pytest.approx(values[1])
    assert got.values["x"].sum(1) == pytest.approx(values[0] - values[1], rel=1e-2)
    assert [check.verdict for check in got.checks] == [Verdict.AGREES] * 2


def test_conductances_of_a_whole_layer_add_up_to_the_targets_change() -> None:
    """All of the target's change goes through the layer's neurons: summed over them, conductances are what integrated
    gradients of the target are."""
    neurons = tuple(ca.NeuronConductance(neuron=Neuron("b", (unit,)), n_steps=50) for unit in range(8))
    *through, whole = ask(MODULES(), X, *neurons, ca.IntegratedGradients(n_steps=50)).attributions
    assert {verdict(got) for got in through} <= {Verdict.AGREES, Verdict.INCONCLUSIVE}  # a unit may be dead
    assert np.sum([got.values["x"] for got in through], axis=0) == pytest.approx(whole.values["x"], abs=1e-5)
    assert through[0].convergence_delta is None


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize(
    "edit",
    [
        ca.Scale("a", factor=-2.0, rows=(1,)),
        ca.Scale("b", factor=3.0),
        ca.Scale("a", at="grad_output", factor=3.0),
        ca.Scale("b", at="grad_output", factor=-2.0),
        ca.Scale("head", at="grad_input", factor=-2.0),
    ],
    ids=lambda edit: f"{edit.module} {edit.at}",
)
def test_a_neuron_of_an_edited_model_is_explained(edit: ca.Scale, mode: CheckMode) -> None:
    """Edits are in force in every pass, upstream of the neuron, at it and behind it: answer and reference agree. Only a
    gradient edited right before a rectifier Captum's deconvolution throws away, and is found out."""
    for asked in ASKED:
        got = ask(MODULES(), X, asked, edits=(edit,), check=CheckRequest(mode)).attributions[0]
        lost = isinstance(asked, ca.NeuronDeconvolution) and (edit.module, edit.at) == ("a", "grad_output")
        rows = [row for row in range(len(X["x"])) if got.values["x"][row].any()]  # in others a ReLU behind it is off
        verdicts = {got.checks[0].of_row(row).verdict for row in rows}
        assert verdicts == {Verdict.DISAGREES if lost else Verdict.AGREES}, (asked, got.checks)


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize(
    "target",
    [ca.CrossEntropy(labels=(0, 1, 2, 0)), ca.OutputSum(), Neuron("head", (0,)), ClassIndex((2, 0, 1, 1))],
    ids=lambda target: type(target).__name__,
)
def test_any_target_can_go_through_the_neuron(target: ca.Target, mode: CheckMode) -> None:
    """A conductance is of whatever target is asked for, also another neuron: the values tell them apart."""
    asked = ca.NeuronConductance(neuron=UNIT, n_steps=STEPS, target=target)
    other = replace(asked, target=ClassIndex((CLASS,)))
    got, beside = ask(MODULES(), X, asked, other, check=CheckRequest(mode)).attributions
    assert verdict(got) is verdict(beside) is Verdict.AGREES
    assert not np.allclose(got.values["x"], beside.values["x"])


# What Captum overlooks.


# Nothing is left behind.


# Blocks.

BLOCK = (ca.Slice(1, 0, 2), ca.Slice(2, 1, 3))
PICTURES = {"x": noise(3, 2, 5, 5)}


def imaged() -> nn.Module:
    model: nn.Module = wired(
        lambda m, x: m.fc(m.r(m.conv(x)).mean((2, 3))),
        conv=lambda: nn.Conv2d(2, 4, 3), r=nn.ReLU, fc=lambda: nn.Linear(4, 3),
    )()  # fmt: skip
    return model


@pytest.mark.parametrize("mode", [CheckMode.SAME_PASS, CheckMode.INDEPENDENT])
def test_a_block_is_the_sum_of_its_elements(mode: CheckMode) -> None:
    """As Captum has it, in every method that explains a neuron by itself, and in a target."""
    model: Any = imaged()
    neuron = Neuron("conv", slices=BLOCK)
    asked = (ca.NeuronGradient(neuron=neuron), ca.NeuronIntegratedGradients(neuron=neuron, n_steps=8),
             ca.NeuronFeatureAblation(neuron=neuron))  # fmt: skip
    found = ask(model, PICTURES, *asked, check=CheckRequest(mode)).attributions
    selector, x = (slice(0, 2), slice(1, 3), slice(None)), PICTURES["x"]
    expected = (
        attr.NeuronGradient(model, model.conv).attribute(x.clone().requires_grad_(), selector),
        attr.NeuronIntegratedGradients(model, model.conv).attribute(x, selector, n_steps=8),
        attr.NeuronFeatureAblation(model, model.conv).attribute(x, selector),
    )
    for got, theirs in zip(found, expected):
        assert verdict(got) is Verdict.AGREES, got.checks
        assert close(got.values["x"], theirs.detach(), SMALL)
    (through,) = ask(model, PICTURES, ca.Saliency(absolute=False), target=neuron).attributions
    assert close(through.values["x"], expected[0].detach(), SMALL)


@pytest.mark.parametrize(
    ("asked", "reason", "field"),
    [
        (ca.NeuronGradient(neuron=Neuron("conv", slices=(ca.Slice(0, 0, 1),))), "AXIS_RANGE", "neuron_gradient.slices"),
        (
            ca.NeuronGradient(neuron=Neuron("conv", slices=(ca.Slice(1, 0, 9),))),
            "SLICE_RANGE",
            "neuron_gradient.slices[0]",
        ),
        (
            ca.NeuronGradient(neuron=Neuron("conv", slices=(ca.Slice(1, indices=(0, 2)),))),
            "TARGET_MISMATCH",
            "neuron_gradient.slices",
        ),
        (ca.NeuronGradient(neuron=Neuron("conv", (1, 1, 1), BLOCK)), "TARGET_MISMATCH", "neuron_gradient.index"),
        (
            ca.NeuronConductance(neuron=Neuron("conv", slices=BLOCK)),
            "METHOD_INAPPLICABLE",
            "neuron_conductance.neuron.slices",
        ),
    ],
)
def test_what_is_no_block_is_refused(asked: ca.Attribution, reason: str, field: str) -> None:
    with pytest.raises(ca.InvalidArgument) as refused:
        ask(imaged(), PICTURES, asked)
    assert refused.value.reason == reason
    assert refused.value.field.startswith("attributions[0].")
    assert field.rpartition(".")[2] in refused.value.field
