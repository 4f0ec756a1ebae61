"""Layer-wise relevance propagation: the answer is Captum's own, a verdict on it can be believed, and what Captum does
to a model meanwhile is undone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from captum.attr._utils import lrp_rules
from captum.attr._utils.custom_modules import Addition_Module
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import ClassIndex, Epsilon, LrpRule, MultiIndex
from cutaway.contract.results import Verdict
from tests.support.attribution_models import XY, X, net
from tests.support.checked_attributions import ask, noise, verdict
from tests.support.rounding import within
from tests.support.state_snapshot import untouched

SEQUENCE = net(lambda m, x: m.head(m.t(m.b(m.d(m.r(m.a(x)))))), r=nn.ReLU, t=nn.Tanh, d=nn.Dropout)
TWO_INPUTS = net(lambda m, x, y: m.head(m.r(m.add(m.a(x), m.b(y)))), r=nn.ReLU, add=Addition_Module)


def test_targets_of_each_example_are_followed() -> None:
    """A class an example, an element of a larger output, and one number an example are handed back; and agree."""
    inputs = {"x": X["x"][:3]}
    for target in (ClassIndex((2, 0, 1)), MultiIndex(((2,), (0,), (1,)))):
        result = ask(SEQUENCE(), inputs, ca.LRP(), ca.LayerLRP(layer="a"), target=target).attributions
        assert {verdict(got) for got in result} == {Verdict.AGREES}
        one = ask(SEQUENCE(), {"x": inputs["x"][:1]}, ca.LRP(), target=ClassIndex((2,))).attributions[0]
        assert within(result[0].values["x"][:1], torch.from_numpy(one.values["x"]), 1e-5)
    scalar = net(lambda m, x: m.head(m.r(m.a(x)))[:, 0], r=nn.ReLU)
    assert verdict(ask(scalar(), inputs, ca.LRP()).attributions[0]) is Verdict.AGREES


# What it must be.


def shares(weights: Tensor, bias: Tensor, activation: Tensor, relevance: Tensor, epsilon: float) -> Tensor:
    """``R_j = a_j * sum over k of w_kj R_k / (z_k + epsilon sign z_k)``, one neuron after the other."""
    found = torch.zeros_like(activation)
    for k in range(len(bias)):
        terms = weights[k] * activation
        z = terms.sum() + bias[k]
        found += terms * relevance[k] / (z + (epsilon if z >= 0 else -epsilon))
    return found


TEXTBOOK: dict[str, tuple[LrpRule, Callable[[Tensor], Tensor], float]] = {
    "epsilon": (Epsilon(0.3), lambda w: w, 0.3),
    "gamma": (ca.Gamma(0.7), lambda w: w + 0.7 * w.clamp(min=0), 1e-9),
    "alpha": (ca.AlphaOneBetaZero(), lambda w: w.clamp(min=0), 1e-9),
}


@pytest.mark.parametrize("name", list(TEXTBOOK))
def test_relevance_is_the_formula_of_the_rule(name: str) -> None:
    """Neuron by neuron, in plain loops, through two layers and a rectifier."""
    rule, weighed, epsilon = TEXTBOOK[name]
    model: Any = net(lambda m, x: m.head(m.r(m.a(x))), r=nn.ReLU)().double()
    x = noise(1, 8, dtype=torch.float64)
    got = ask(model, {"x": x}, ca.LRP(rules={"a": rule, "head": rule}), target=ClassIndex((1,))).attributions[0]
    with torch.no_grad():
        hidden, logits = torch.relu(model.a(x))[0], model(x)[0]
        start = torch.zeros(3, dtype=torch.float64).index_fill(0, torch.tensor([1]), float(logits[1]))
        back = shares(weighed(model.head.weight), model.head.bias, hidden, start, epsilon)
        expected = shares(weighed(model.a.weight), model.a.bias, x[0], back, epsilon)
    assert within(got.values["x"][0], expected, 1e-9)


# Edits.


def test_relevance_of_an_edited_model_agrees() -> None:
    """Values may be edited anywhere between layers: relevance passes the edit as it passes everything else."""
    edits = (
        ca.Zero("a", slices=(ca.Slice(1, 0, 2),)),
        ca.Scale("head", factor=2.0),
        ca.Add("b", "input", addend=0.5),
        ca.Clamp("t", minimum=-0.2),
    )
    inputs = {"x": X["x"][:3]}
    edited = ask(SEQUENCE(), inputs, ca.LRP(), ca.LayerLRP(layer="b"), edits=edits).attributions
    plain = ask(SEQUENCE(), inputs, ca.LRP()).attributions[0]
    assert {verdict(got) for got in edited} == {Verdict.AGREES}
    assert not np.allclose(edited[0].values["x"], plain.values["x"])


def test_what_the_owner_left_on_modules_is_there_afterwards() -> None:
    """Rules for Captum, which the request overrides, and attributes of a name that Captum deletes; in their order."""
    model: Any = SEQUENCE()
    rule = lrp_rules.GammaRule()
    model.a.rule, model.a.further = rule, 1
    model.b.activation, model.b.further = "tanh", 2
    with untouched(model):
        got = ask(model, {"x": X["x"][:3]}, ca.LRP()).attributions[0]
    assert (model.a.rule, model.b.activation) == (rule, "tanh")
    assert verdict(got) is Verdict.AGREES
    plain = ask(SEQUENCE(), {"x": X["x"][:3]}, ca.LRP()).attributions[0]
    assert np.array_equal(got.values["x"], plain.values["x"])


def test_a_parameter_that_a_layer_takes_can_be_hooked_again() -> None:
    """Captum marks what it hooked: a parameter keeps no mark, and the second answer is the first."""
    model = net(
        lambda m, x: m.head(m.add(m.t(m.a(x)), m.position)), t=nn.Tanh, add=Addition_Module,
        position=lambda: nn.Parameter(torch.ones(1, 8)),
    )()  # fmt: skip
    first, second = (ask(model, {"x": X["x"][:3]}, ca.LRP()).attributions[0] for _ in range(2))
    assert verdict(second) is Verdict.AGREES
    assert np.array_equal(first.values["x"], second.values["x"])
    assert not vars(model.position)


def test_further_inputs_want_no_gradient_afterwards() -> None:
    """A layer that has a rule may take an input that is not explained; the caller's tensor is as it was sent."""
    inputs = dict(XY)
    got = ask(TWO_INPUTS(), inputs, replace(ca.LRP(), inputs=("x",))).attributions[0]
    assert verdict(got) is Verdict.AGREES
    assert not inputs["y"].requires_grad
