"""Layer-wise relevance propagation: the answer is Captum's own, a verdict on it can be believed, and what Captum does
to a model meanwhile is undone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from captum.attr._utils import lrp_rules
from captum.attr._utils.custom_modules import Addition_Module
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import CheckMode, CheckRequest, ClassIndex, Epsilon, LrpRule, MultiIndex, Propagation
from cutaway.contract.results import Cause, Verdict
from tests.support.checked_attributions import Build, ask, noise, to, verdict, wired
from tests.support.lrp_models import FLAT, SEQUENCE, given, linear, net
from tests.support.rounding import within
from tests.support.state_snapshot import untouched


class Copy(nn.Module):
    """Returns what it takes, in another tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clone()


def images(wiring: Callable[..., Any], **parts: Callable[[], Any]) -> Build:
    return wired(
        wiring,
        a=lambda: nn.Conv2d(3, 6, 3, padding=1), norm=lambda: spread(nn.BatchNorm2d(6)), b=lambda: nn.Conv2d(6, 6, 3),
        flat=nn.Flatten, head=linear(54, 3), **parts,
    )  # fmt: skip


def spread(norm: nn.BatchNorm2d) -> nn.BatchNorm2d:
    """``norm`` as if it had been trained."""
    for each in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        assert each is not None
        nn.init.uniform_(each, 0.2, 1.5)
    return norm


def skipped(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.head(m.add(m.one(h), m.b(m.r(m.two(h)))))


CONVOLUTIONS = images(
    lambda m, x: m.head(m.flat(m.pool(m.r2(m.b(m.r(m.norm(m.a(x)))))))),
    r=lambda: nn.ReLU(inplace=True), r2=nn.ReLU, pool=lambda: nn.MaxPool2d(2),
)  # fmt: skip
REUSED = net(lambda m, x: m.head(m.r(m.b(m.r(m.a(x))))), r=nn.ReLU)
BRANCHES = net(lambda m, x: m.head(m.add(m.r(m.a(x)), m.r(m.b(m.c(x))))), r=nn.ReLU, add=Addition_Module)
COPIED = net(skipped, one=Copy, two=Copy, r=nn.ReLU, add=Addition_Module)
FUNCTIONS = net(lambda m, x: m.head(torch.relu(m.b(torch.relu_(m.a(x)).reshape(-1, 2, 3).flatten(1)))))
TWO_INPUTS = net(lambda m, x, y: m.head(m.r(m.add(m.a(x), m.b(y)))), r=nn.ReLU, add=Addition_Module)
UNBIASED = wired(
    lambda m, x: m.head(m.flat(m.pool(m.r(m.a(x))))),
    a=lambda: nn.Conv2d(3, 6, 3, bias=False), r=nn.ReLU, pool=lambda: nn.MaxPool2d(2), flat=nn.Flatten,
    head=linear(54, 3),
)  # fmt: skip
CALLS_OTHERS = net(lambda m, x: {"unused": torch.softmax(x, 1), "logits": m.head(m.r(m.a(x)))}["logits"], r=nn.ReLU)

ODD = {"a": ca.Gamma(), "norm": ca.RelevanceIdentity(), "b": ca.AlphaOneBetaZero(), "pool": Epsilon(0.5), **FLAT}
COPIES = {"one": Epsilon(), "two": Epsilon()}


class Sound(NamedTuple):
    build: Build
    asked: tuple[Propagation, ...]


SOUND: dict[str, Sound] = {
    "convolutions": Sound(
        CONVOLUTIONS,
        (
            ca.LRP(rules=FLAT),
            ca.LRP(rules=ODD),
            ca.LayerLRP(layer="norm", rules=ODD),
            ca.LayerLRP(layer="b", rules=FLAT),
        ),
    ),
    "a sequence": Sound(
        SEQUENCE,
        (
            ca.LRP(),
            ca.LRP(rules={"a": Epsilon(0.25), "b": ca.Gamma(0.5), "head": ca.AlphaOneBetaZero()}),
            ca.LRP(rules={"a": ca.RelevanceIdentity()}),
            ca.LayerLRP(layer="a"),
            ca.LayerLRP(layer="head"),
        ),
    ),
    "one rectifier, called twice": Sound(REUSED, (ca.LRP(), ca.LayerLRP(layer="a"), ca.LRP(rules={"b": ca.Gamma()}))),
    "one rectifier, in two branches": Sound(BRANCHES, (ca.LRP(), ca.LayerLRP(layer="add"), ca.LayerLRP(layer="c"))),
    "branches that begin with copies": Sound(COPIED, (ca.LRP(rules=COPIES), ca.LayerLRP(layer="a", rules=COPIES))),
    "functions that only stop what is 0": Sound(FUNCTIONS, (ca.LRP(), ca.LayerLRP(layer="a"))),
    "a rule on a module without weights, and a layer without bias": Sound(
        UNBIASED, (ca.LRP(rules={"pool": ca.Gamma(), **FLAT}),)
    ),
    "functions elsewhere": Sound(CALLS_OTHERS, (ca.LRP(),)),
    "two inputs": Sound(TWO_INPUTS, (ca.LRP(), ca.LRP(inputs=("y",)), ca.LRP(inputs=("x",)), ca.LayerLRP(layer="b"))),
}


def test_an_epsilon_that_is_nothing_in_float16_is_found_out() -> None:
    """Captum's 1e-9 rounds to 0 there, and 0 / 0 is not a number where a neuron is silent; a larger epsilon agrees."""
    for rules, right in (({}, Verdict.DISAGREES), ({"add": Epsilon(1e-4)}, Verdict.AGREES)):
        got = ask(to(BRANCHES, torch.float16)(), given("", 4, torch.float16), ca.LRP(rules=rules)).attributions[0]
        assert verdict(got) is right
    assert np.isfinite(got.values["x"]).all()


def test_targets_of_each_example_are_followed() -> None:
    """A class an example, an element of a larger output, and one number an example are handed back; and agree."""
    inputs = given("a sequence", 3)
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
    x = noise(1, 6, dtype=torch.float64)
    got = ask(model, {"x": x}, ca.LRP(rules={"a": rule, "head": rule}), target=ClassIndex((1,))).attributions[0]
    with torch.no_grad():
        hidden, logits = torch.relu(model.a(x))[0], model(x)[0]
        start = torch.zeros(3, dtype=torch.float64).index_fill(0, torch.tensor([1]), float(logits[1]))
        back = shares(weighed(model.head.weight), model.head.bias, hidden, start, epsilon)
        expected = shares(weighed(model.a.weight), model.a.bias, x[0], back, epsilon)
    assert within(got.values["x"][0], expected, 1e-9)


def test_without_biases_relevance_adds_up_to_the_target() -> None:
    """Bach et al. 2015: what the target is made of is all of it."""
    model = wired(
        lambda m, x: m.b(m.r(m.a(x))), a=linear(6, 6, bias=False), b=linear(6, 3, bias=False), r=nn.ReLU
    )().double()
    x = noise(4, 6, dtype=torch.float64)
    got = ask(model, {"x": x}, ca.LRP(), target=ClassIndex((0,))).attributions[0]
    assert np.allclose(got.values["x"].sum(1), model(x)[:, 0].detach().numpy(), rtol=1e-6)


def test_what_rounding_leaves_is_no_disagreement() -> None:
    """However closely the caller wants the two to match: what the terms' magnitudes explain is rounding."""
    exact = CheckRequest(CheckMode.INDEPENDENT, relative_tolerance=1e-15)
    for name, asked in (("convolutions", ca.LRP(rules=FLAT)), ("a sequence", ca.LRP(rules={"b": ca.Gamma()}))):
        got = ask(SOUND[name].build(), given(name, 4), asked, check=exact).attributions[0]
        assert verdict(got) is Verdict.INCONCLUSIVE
        assert got.checks[0].cause is Cause.CANCELLATION


# Captum gone wrong.


class Wrong(NamedTuple):
    """Where Captum is wrong and does not say so."""

    build: Build
    asked: Propagation
    cause: Cause
    words: tuple[str, ...]


FUNCTIONAL = Cause.FUNCTIONAL_NONLINEARITY
SILENT: dict[str, Wrong] = {
    "an addition": Wrong(
        net(lambda m, x: m.head(m.r(m.a(x)) + m.b(m.c(x))), r=nn.ReLU), ca.LRP(), FUNCTIONAL,
        (":add#0", "Addition_Module")),
    "an addition in place": Wrong(
        net(lambda m, x: m.head(m.b(m.r(m.a(x))).add_(m.c(x))), r=nn.ReLU), ca.LRP(), FUNCTIONAL, (":add_#0",)),
    "a mean": Wrong(
        wired(lambda m, x: m.head(m.r(m.a(x)).reshape(-1, 3, 2).mean(2)), a=linear(), head=linear(3, 3), r=nn.ReLU),
        ca.LRP(), FUNCTIONAL, (":mean#0",)),
    "a factor": Wrong(net(lambda m, x: m.head(m.t(m.a(x)) * 0.5), t=nn.Tanh), ca.LRP(), FUNCTIONAL, (":mul#0",)),
    "a functional tanh": Wrong(net(lambda m, x: m.head(torch.tanh(m.a(x)))), ca.LRP(), FUNCTIONAL, (":tanh#0",)),
    "a softmax": Wrong(
        net(lambda m, x: m.head(m.t(m.a(x))).softmax(1), t=nn.Tanh), ca.LRP(), FUNCTIONAL, (":softmax#0",)),
    "a rectifier called with what was there before": Wrong(
        net(lambda m, x: (lambda a, b: m.head(m.add(m.r(a), m.r(b))))(m.a(x), m.b(x)), r=nn.ReLU, add=Addition_Module),
        ca.LRP(), Cause.MODULE_REUSED, ("'r' is called again", "a module for each call")),
    "a skip around a rectifier": Wrong(
        net(lambda m, x: (lambda h: m.head(m.add(h, m.b(m.r(h)))))(m.a(x)), r=nn.ReLU, add=Addition_Module),
        ca.LRP(), Cause.OVERRIDE_LOST, ("add, r", "copy")),
    "a layer beside what it takes": Wrong(
        wired(
            lambda m, x: (lambda h: m.head(torch.cat([h, m.r(m.b(h))], 1)))(m.a(x)),
            a=linear(), b=linear(), head=linear(12, 3), r=nn.ReLU,
        ),
        ca.LRP(), Cause.OVERRIDE_LOST, (":cat#0", "b")),
    "dropout and tanh": Wrong(
        net(lambda m, x: m.head(m.t(m.d(m.a(x)))), t=nn.Tanh, d=nn.Dropout), ca.LRP(), FUNCTIONAL,
        ("'t' follows 'd'",)),
    "an identity rule behind a rectifier": Wrong(
        net(lambda m, x: m.head(m.b(m.r(m.a(x)))), r=nn.ReLU), ca.LRP(rules={"b": ca.RelevanceIdentity()}), FUNCTIONAL,
        ("'b' follows 'r'",)),
    "a module that returns what it takes": Wrong(
        net(lambda m, x: m.head(m.i(m.r(m.a(x)))), r=nn.ReLU, i=nn.Identity), ca.LRP(rules={"i": Epsilon()}),
        FUNCTIONAL, ("'i' follows 'r'", "clone")),
    "the relevance of such a module": Wrong(
        net(lambda m, x: m.head(m.r(m.i(m.a(x)))), r=nn.ReLU, i=nn.Identity),
        ca.LayerLRP(layer="i", rules={"i": Epsilon()}), Cause.OVERRIDE_LOST, ("'i' returns the very tensor",)),
    "an output that goes on": Wrong(
        net(lambda m, x: (lambda h: {"h": h, "logits": m.head(h)})(m.t(m.a(x))), t=nn.Tanh),
        ca.LRP(target=ClassIndex((1,), output="h")), Cause.OVERRIDE_LOST, ("goes on to head",)),
}  # fmt: skip


@pytest.mark.parametrize("name", list(SILENT))
def test_where_captum_is_silently_wrong_the_place_is_named(name: str) -> None:
    """The verdict is DISAGREES, with the cause as a word, the place, and what to do."""
    build, asked, cause, words = SILENT[name]
    got = ask(build(), given("", 3), asked, check=CheckRequest(CheckMode.INDEPENDENT)).attributions[0]
    assert verdict(got) is Verdict.DISAGREES
    assert got.checks[0].cause is cause, got.checks
    assert all(each in got.checks[0].reason for each in words), got.checks[0].reason
    assert verdict(ask(build(), given("", 3), asked).attributions[0]) is Verdict.DISAGREES


def test_what_lies_before_the_layer_is_no_doubt_about_its_relevance() -> None:
    """A function that relevance does not pass on its way to the layer leaves the verdict alone."""
    build = net(lambda m, x: m.head(m.t(m.a(x * 0.5))), t=nn.Tanh)
    layer, whole = ask(build(), given("", 3), ca.LayerLRP(layer="a"), ca.LRP()).attributions
    assert (verdict(layer), verdict(whole)) == (Verdict.AGREES, Verdict.DISAGREES)


def test_a_rectifier_that_may_stop_relevance_leaves_a_doubt() -> None:
    """Beside a rule that changes weights a functional relu masks by other numbers: where it makes no difference here,
    the answer is right and the doubt is said."""
    got = ask(FUNCTIONS(), given("", 3), ca.LRP(rules={"head": ca.Gamma()})).attributions[0]
    assert verdict(got) is Verdict.INCONCLUSIVE
    assert got.checks[0].cause is FUNCTIONAL
    assert "relu#0" in got.checks[0].reason
    assert "no difference" in got.checks[0].reason


# Edits.


def test_relevance_of_an_edited_model_agrees() -> None:
    """Values may be edited anywhere between layers: relevance passes the edit as it passes everything else."""
    edits = (
        ca.Zero("a", slices=(ca.Slice(1, 0, 2),)),
        ca.Scale("head", factor=2.0),
        ca.Add("b", "input", addend=0.5),
        ca.Clamp("t", minimum=-0.2),
    )
    inputs = given("a sequence", 3)
    edited = ask(SEQUENCE(), inputs, ca.LRP(), ca.LayerLRP(layer="b"), edits=edits).attributions
    plain = ask(SEQUENCE(), inputs, ca.LRP()).attributions[0]
    assert {verdict(got) for got in edited} == {Verdict.AGREES}
    assert not np.allclose(edited[0].values["x"], plain.values["x"])


# The model afterwards.


def test_a_model_that_raises_on_the_way_is_left_as_it_was() -> None:
    """Whichever of Captum's passes fails, and in whatever mode."""
    rules = {"b": ca.Gamma(), "a": ca.AlphaOneBetaZero()}
    failed = 0
    for fails in range(1, 9):
        runs: list[int] = []

        def wiring(m: Any, x: Tensor, runs: list[int] = runs, fails: int = fails) -> Tensor:
            h = m.r(m.a(x))
            runs.append(1)
            if len(runs) == fails:
                raise ValueError("no more")
            return m.head(m.b(h))

        model = net(wiring, r=nn.ReLU)()
        with untouched(model), suppress(ca.InvalidArgument):
            ask(model, given("", 3), ca.LRP(rules=rules))
        failed += len(runs) == fails
    assert failed >= 3


def test_what_the_owner_left_on_modules_is_there_afterwards() -> None:
    """Rules for Captum, which the request overrides, and attributes of a name that Captum deletes; in their order."""
    model: Any = SEQUENCE()
    rule = lrp_rules.GammaRule()
    model.a.rule, model.a.further = rule, 1
    model.b.activation, model.b.further = "tanh", 2
    with untouched(model):
        got = ask(model, given("a sequence", 3), ca.LRP()).attributions[0]
    assert (model.a.rule, model.b.activation) == (rule, "tanh")
    assert verdict(got) is Verdict.AGREES
    plain = ask(SEQUENCE(), given("a sequence", 3), ca.LRP()).attributions[0]
    assert np.array_equal(got.values["x"], plain.values["x"])


def test_a_parameter_that_a_layer_takes_can_be_hooked_again() -> None:
    """Captum marks what it hooked: a parameter keeps no mark, and the second answer is the first."""
    model = net(
        lambda m, x: m.head(m.add(m.t(m.a(x)), m.position)), t=nn.Tanh, add=Addition_Module,
        position=lambda: nn.Parameter(torch.ones(1, 6)),
    )()  # fmt: skip
    first, second = (ask(model, given("", 3), ca.LRP()).attributions[0] for _ in range(2))
    assert verdict(second) is Verdict.AGREES
    assert np.array_equal(first.values["x"], second.values["x"])
    assert not vars(model.position)


def test_further_inputs_want_no_gradient_afterwards() -> None:
    """A layer that has a rule may take an input that is not explained; the caller's tensor is as it was sent."""
    inputs = given("two inputs", 3)
    got = ask(TWO_INPUTS(), inputs, replace(ca.LRP(), inputs=("x",))).attributions[0]
    assert verdict(got) is Verdict.AGREES
    assert not inputs["y"].requires_grad
