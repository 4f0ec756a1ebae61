"""Layer-wise relevance propagation: the answer is Captum's own, a verdict on it can be believed, and what Captum does
to a model meanwhile is undone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from captum.attr import LRP as CaptumLRP
from captum.attr._utils import lrp_rules
from captum.attr._utils.custom_modules import Addition_Module
from torch import Tensor, nn
from torch.nn.utils import prune, spectral_norm, weight_norm

import cutaway as ca
from cutaway.contract.requests import ClassIndex, Epsilon, LrpRule, MultiIndex
from cutaway.contract.results import AttributionResult, Verdict
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
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
    assert verdict(got) is Verdict.AGREES


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


# Weights that are made of others.


def relevance(
    model: nn.Module, inputs: dict[str, Tensor], rules: dict[str, LrpRule] | None = None
) -> AttributionResult:
    """The answer to one question; the model may have hooks of its own."""
    subject = InspectedModel(model, lambda tensors: model(**tensors))
    request = ca.InspectRequest("m", attributions=(ca.LRP(rules=rules or {}),), target=ClassIndex((1,)))
    return inspect(subject, request, inputs).attributions[0]


def pruned(layer: nn.Module) -> nn.Module:
    """Sets the smallest weights to 0, by a hook."""
    return prune.l1_unstructured(layer, "weight", amount=0.3)


MADE: dict[str, Callable[[nn.Module], nn.Module]] = {
    "weight norm": weight_norm, "spectral norm": spectral_norm, "pruning": pruned
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("name", MADE)
def test_relevance_passes_weights_that_a_hook_makes_before_each_pass(name: str) -> None:
    """It is that of a model with the weights themselves; a rule that changes them is refused: the hook undoes that."""

    def build(change: Callable[[nn.Module], nn.Module]) -> Any:
        model: Any = net(lambda m, x: m.head(m.r(m.a(x))), r=nn.ReLU)()
        model.a, model.head = change(model.a), change(model.head)
        return model.eval()

    made, plain, inputs = build(MADE[name]), build(lambda layer: layer), {"x": X["x"][:3]}
    made(inputs["x"])
    with torch.no_grad():
        plain.a.weight.copy_(made.a.weight)
        plain.head.weight.copy_(made.head.weight)
    ours, theirs = relevance(made, inputs), relevance(plain, inputs)
    assert verdict(ours) is Verdict.AGREES
    assert within(ours.values["x"], torch.from_numpy(theirs.values["x"]), 1e-5)
    for rule in (ca.Gamma(0.5), ca.AlphaOneBetaZero()):
        with pytest.raises(ca.InvalidArgument, match=r"a hook makes the weight anew.*use Epsilon") as refused:
            relevance(made, inputs, {"a": rule})
        assert (refused.value.reason, refused.value.field) == ("METHOD_INAPPLICABLE", "attributions[0].lrp.rules.a")
    for layer in (made.a, made.head):
        layer._forward_pre_hooks.clear()  # the owner's


def test_a_layer_with_parametrizations_is_refused_with_what_to_do() -> None:
    """Captum would give rules to the modules that make its weight, whatever rules the request has."""
    model: Any = net(lambda m, x: m.head(m.r(m.a(x))), r=nn.ReLU)()
    torch.nn.utils.parametrizations.weight_norm(model.a)
    inner: dict[str, LrpRule] = {"a.parametrizations.weight.0": Epsilon(1e-9)}
    for rules in ({}, inner):
        with pytest.raises(ca.InvalidArgument, match=r"'a' has parametrizations.*remove_parametrizations") as refused:
            relevance(model, X, rules)
        assert refused.value.reason == "METHOD_INAPPLICABLE"
    torch.nn.utils.parametrize.remove_parametrizations(model.a, "weight")
    assert verdict(relevance(model, X)) is Verdict.AGREES


def test_a_model_that_captum_explained_before_is_explained() -> None:
    """Captum leaves activations on modules, of PyTorch and of others; an attribute of the owner's is no such thing."""

    class Doubled(nn.Linear):
        """A module of the owner's."""

    model: Any = net(lambda m, x: m.head(m.r(m.a(x))), r=nn.ReLU)()
    model.head = Doubled(8, 3)
    model.head.rule = lrp_rules.EpsilonRule()
    x = X["x"][:3]
    expected = CaptumLRP(model).attribute(x, target=1).detach()
    left = dict(vars(model.a)["activations"])
    got = ask(model, {"x": x}, ca.LRP(rules={"head": Epsilon(1e-9)}), target=ClassIndex((1,))).attributions[0]
    assert verdict(got) is Verdict.AGREES
    assert within(got.values["x"], expected, 1e-5)
    assert vars(model.a)["activations"].keys() == left.keys()
    gamma = ask(model, {"x": x}, ca.LRP(rules={"head": ca.Gamma(0.5)})).attributions[0]
    assert verdict(gamma) is Verdict.AGREES
    model.head.activations = {}
    with pytest.raises(ca.InvalidArgument, match="'head' has an attribute 'activations', which Captum overwrites"):
        ask(model, {"x": x}, ca.LRP(rules={"head": Epsilon(1e-9)}))
