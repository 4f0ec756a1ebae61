"""Layer-wise relevance propagation that cannot be had: refused by field and by name, the model left as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from captum.attr._utils.custom_modules import Addition_Module
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import CheckMode, CheckRequest, Epsilon, LrpRule, Propagation
from tests.support.checked_attributions import Build, ask, wired
from tests.support.lrp_models import FLAT, SEQUENCE, given, linear, net
from tests.support.state_snapshot import untouched


def refused(build: Build, asked: Propagation, **more: Any) -> ca.CutawayError:
    model = build()
    inputs = more.pop("inputs", None) or given("", 3)
    with untouched(model), pytest.raises(ca.CutawayError) as failure:
        ask(model, inputs, asked, **more)
    return failure.value


def counting(ran: list[int]) -> Build:
    def wiring(m: Any, x: Tensor) -> Tensor:
        ran.append(1)
        return m.head(m.r(m.box(m.norm(m.gelu(m.a(x))))))

    return net(wiring, r=nn.ReLU, gelu=nn.GELU, norm=lambda: nn.BatchNorm1d(6), box=lambda: nn.Sequential(nn.Tanh()))


BASE: dict[str, LrpRule] = {"gelu": ca.RelevanceIdentity(), "norm": Epsilon()}
BAD: dict[str, tuple[Propagation, dict[str, Any], str, str]] = {
    "no rule": (ca.LRP(rules={"norm": Epsilon()}), {}, "lrp.rules", "'gelu' is a GELU"),
    "no rule, at a layer": (ca.LayerLRP(layer="a"), {}, "layer_lrp.rules", "rules['"),
    "an unknown module": (ca.LRP(rules={**BASE, "aa": Epsilon()}), {}, "lrp.rules.aa", "no module is named 'aa'"),
    "a container": (ca.LRP(rules={**BASE, "box": Epsilon()}), {}, "lrp.rules.box", "made of other modules"),
    "a negative gamma": (ca.LRP(rules={**BASE, "a": ca.Gamma(-0.1)}), {}, "lrp.rules.a.gamma", "from 0"),
    "gamma not a number": (ca.LRP(rules={**BASE, "a": ca.Gamma(float("nan"))}), {}, "lrp.rules.a.gamma", "from 0"),
    "no epsilon": (ca.LRP(rules={**BASE, "a": Epsilon(0.0)}), {}, "lrp.rules.a.epsilon", "above 0"),
    "an infinite epsilon": (ca.LRP(rules={**BASE, "a": Epsilon(float("inf"))}), {}, "lrp.rules.a.epsilon", "above 0"),
    "a rule that Captum would ignore": (ca.LRP(rules={**BASE, "r": Epsilon()}), {}, "lrp.rules.r", "unchanged"),
    "a rule that does not fit": (
        ca.LRP(rules={**BASE, "norm": ca.AlphaOneBetaZero()}), {}, "lrp.rules.norm", "BatchNorm1d"),
    "a layer without relevance": (ca.LayerLRP(layer="r", rules=BASE), {}, "layer_lrp.layer", "have a rule"),
    "a container as a layer": (ca.LayerLRP(layer="box", rules=BASE), {}, "layer_lrp.layer", "'box' is a Sequential"),
    "an edited gradient": (
        ca.LRP(rules=BASE), {"edits": (ca.Zero("a", "grad_output"),)}, "lrp", "what flows back here is relevance"),
    "an edit beside changed weights": (
        ca.LRP(rules={**BASE, "a": ca.Gamma()}), {"edits": (ca.Zero("norm"),)}, "lrp", "other weights"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(BAD))
def test_what_cannot_be_asked_is_refused_before_anything_runs(name: str) -> None:
    """The error names the field of the contract and says what would do; the model has not run."""
    asked, more, field, words = BAD[name]
    ran: list[int] = []
    failure = refused(counting(ran), asked, **more)
    assert failure.field == f"attributions[0].{field}"
    assert words in failure.message
    assert isinstance(failure, ca.InvalidArgument)
    assert not ran


def shared_weight() -> nn.Module:
    model: Any = SEQUENCE()
    model.b.weight = model.a.weight
    return model


def with_attribute() -> nn.Module:
    model: Any = SEQUENCE()
    model.b.rule = "sum"
    return model


TOKENS = wired(lambda m, ids: m.head(m.flat(m.words(ids))), words=lambda: nn.Embedding(9, 2), head=linear(6, 3),
               flat=nn.Flatten)  # fmt: skip
UNFIT: dict[str, tuple[Build, Propagation, dict[str, Any], str]] = {
    "a layer called twice": (
        net(lambda m, x: m.head(m.r(m.a(m.r(m.a(x))))), r=nn.ReLU), ca.LRP(), {}, "'a' is called 2 times"),
    "a layer in two places": (
        net(lambda m, x: m.head(m.box(m.a(x))), box=lambda: (lambda each: nn.Sequential(nn.Sequential(each),
            nn.Sequential(each)))(nn.Linear(6, 6))), ca.LRP(), {}, "box.0.0"),
    "a weight in two layers": (
        shared_weight, ca.LRP(rules={"a": ca.Gamma()}), {}, "'b' shares"),
    "an attribute in the way": (with_attribute, ca.LRP(), {}, "'b' has an attribute 'rule'"),
    "an identity that changes the shape": (
        SEQUENCE, ca.LRP(rules={"head": ca.RelevanceIdentity()}), {}, "same shape, and one of these does not: head"),
    "a loss": (SEQUENCE, ca.LRP(target=ca.CrossEntropy((0,))), {}, "one element"),
    "a sum": (SEQUENCE, ca.LRP(target=ca.OutputSum()), {}, "one element"),
    "a neuron": (SEQUENCE, ca.LRP(target=ca.Neuron("a", (1,))), {}, "a neuron is none: explain a class"),
    "a constant": (
        net(lambda m, x: m.head(m.add(m.a(x), torch.ones(1, 6))), add=Addition_Module), ca.LRP(), {}, "on no input"),
    "a layer beside the target": (
        net(lambda m, x: {"y": m.head(x), "z": m.a(x)}), ca.LayerLRP(layer="a"), {}, "does not depend on 'a'"),
    "token ids": (
        TOKENS, ca.LayerLRP(layer="head", rules=FLAT), {"inputs": {"ids": torch.ones(2, 3, dtype=torch.int64)}},
        "'words' is a Embedding"),
    "a model of one custom module": (
        wired(lambda m, x: x * 2), ca.LRP(), {}, "without modules"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(UNFIT))
def test_what_captum_cannot_do_is_said_by_name(name: str) -> None:
    """Captum's own words, which name no module, reach nobody; and the model is as it was."""
    build, asked, more, words = UNFIT[name]
    for mode in CheckMode:
        failure = refused(build, asked, check=CheckRequest(mode), **more)
        assert words in failure.message, failure
        assert failure.field.startswith("attributions[0]")
