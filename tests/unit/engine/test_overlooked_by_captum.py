"""What Captum overlooks without a word is found out and named: where it is, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from captum.attr._utils.custom_modules import Addition_Module
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import cutaway as ca
from cutaway.contract.requests import CheckMode, CheckRequest, Epsilon, Neuron
from cutaway.contract.results import Cause, Verdict
from tests.support.attribution_models import (
    IMAGE,
    MIXED,
    OVERRIDING,
    RECTIFIED,
    TWICE,
    In,
    X,
    end,
    expected_gradients,
    images,
    lifted,
    linear,
    net,
    of_neuron,
    of_units,
    one_after_another,
    paths,
    pooled,
)
from tests.support.checked_attributions import CHECKED, RANDOM, Build, ask, noise, to, verdict, wired
from tests.support.plain_captum import SEED, permutes_one_row
from tests.support.state_snapshot import nodes

DISAGREES, INCONCLUSIVE = Verdict.DISAGREES, Verdict.INCONCLUSIVE
FUNCTION, LOST, COUPLED = Cause.FUNCTIONAL_NONLINEARITY, Cause.OVERRIDE_LOST, Cause.ROWS_COUPLED
REUSED = Cause.MODULE_REUSED
UNIT = Neuron("b", (2,))
LRP, LAYER_LRP = ca.LRP(), ca.LayerLRP(layer="a")
GUIDED = (ca.NeuronGuidedBackprop(neuron=UNIT), ca.NeuronDeconvolution(neuron=UNIT))


class Row(NamedTuple):
    """A model, requests about it, and what must be found."""

    build: Build
    asked: tuple[Any, ...]
    cause: Cause | None
    words: tuple[str, ...] = ()
    verdict: Verdict = DISAGREES
    inputs: Mapping[str, Tensor] = X


class Lifted(NamedTuple):
    """A model that DeepLIFT overlooks something of, behind the layer ``a``."""

    build: Build
    cause: Cause
    words: str
    inputs: Mapping[str, Tensor] = X
    before: bool = True
    behind: bool = True


OFF_THE_WAY: dict[str, Lifted] = {
    "functions": Lifted(
        net(lambda m, x: m.head(torch.relu(m.b(F.softplus(m.a(x)))))), FUNCTION,
        "softplus, relu at :softplus#0, :relu#0"),
    "a method in place": Lifted(
        net(lambda m, x: m.head(m.b(m.a(x)).sigmoid_())), FUNCTION, "sigmoid_ at :sigmoid_#0"),
    "kinds that it does not know": Lifted(
        one_after_another(nn.GELU, nn.Hardtanh), FUNCTION, "gelu, hardtanh at r1:gelu#0, r2:hard"),
    "a kind of a known kind": Lifted(
        one_after_another(type("Rectifier", (nn.ReLU,), {}), nn.Tanh), FUNCTION, "relu at r1:relu"),
    "a softmax in the middle": Lifted(
        net(lambda m, x: m.head(m.b(m.a(x)).softmax(1))), FUNCTION, "softmax at :softmax#0"),
    "a pooling function": Lifted(
        images(lambda m, x: end(m, F.max_pool2d(m.b(m.a(x)), 2))), FUNCTION, "max_pool2d at :max_pool2d#0", IMAGE),
    "one right behind another": Lifted(
        net(lambda m, x: m.head(m.r2(m.r1(m.b(m.a(x))))), r1=nn.Tanh, r2=nn.Sigmoid), LOST,
        "'r2' takes the very tensor that 'r1' returns"),
    "a way around": Lifted(
        net(lambda m, x: m.head((lambda h: m.r(h) + h)(m.b(m.a(x)))), r=nn.Tanh), LOST,
        "the input of 'r' is also used elsewhere"),
    "windows that overlap": Lifted(
        pooled(lambda: nn.MaxPool2d(3, 1)), LOST, "windows of 'p' overlap and share a maximum", IMAGE),
    "rows that depend on each other": Lifted(
        net(lambda m, x: m.head(m.r(m.b(m.a(x) - m.a(x).mean(0, keepdim=True)))), r=nn.Tanh), COUPLED,
        "along axis 0; the values there are not those of inputs and baselines alone at 'r'", before=False,
        behind=False),
    "rows along another axis": Lifted(
        net(lambda m, x: m.head(m.r(m.b(m.a(x)).T).T), r=nn.Tanh), COUPLED, "alone at 'r'"),
}  # fmt: skip


def checkpointed(of: Callable[[Any], Callable[[Tensor], Tensor]]) -> Build:
    return net(lambda m, x: m.head(checkpoint(of(m), m.a(x), use_reentrant=False)), r=nn.Tanh)


def infinite(m: Any, x: Tensor) -> Tensor:
    return m.head(torch.nan_to_num(m.hot(x), nan=5.0, posinf=1.0, neginf=-1.0))


ONE_RECTIFIER = net(lambda m, x: m.head(m.r(m.b(m.r(m.a(x))))), r=nn.ReLU)
ONE_LAYER = net(lambda m, x: m.head(m.b(m.r(m.b(m.a(x))))), r=nn.Tanh)
DEAD = net(lambda m, x: m.head(torch.relu(m.a(x) - 1e6)))
SKIPPED = net(
    lambda m, x: (lambda h: m.head(m.add(h, m.b(m.r(h)))))(m.a(x)), r=nn.ReLU, add=Addition_Module
)  # fmt: skip
PRODUCT = net(lambda m, x: m.head(m.a(x) * m.b(x)))
PAST = net(lambda m, x: (lambda h: m.head(torch.tanh(h * 2) + m.id(h)))(m.a(x)), id=nn.Identity)
ONLY_MODULES = "which Captum differentiates as it is, because it overrides nn.ReLU modules only"
NOISE = ca.NoiseTunnel(n_samples=3, stdev=0.5)
DRAWN = expected_gradients(UNIT, {"x": (8,)})
ROWS: dict[str, Row] = {
    **{
        f"{name}, under DeepLIFT": Row(
            each.build, tuple(lifted("a", each.inputs["x"].shape[1:])[k] for k in (0, 1, 3, 4)), each.cause,
            (each.words,), inputs=each.inputs)
        for name, each in OFF_THE_WAY.items()
    },
    "a functional relu that lets everything pass, under DeepLIFT": Row(
        net(lambda m, x: F.relu(m.head(m.b(m.a(x))) + 1e3)), lifted()[:1], FUNCTION,
        ("relu at :relu#0", "for this input that makes no difference"), INCONCLUSIVE),
    "a product, under DeepLIFT": Row(PRODUCT, lifted()[:1], FUNCTION, (), INCONCLUSIVE),
    "a neuron between two calls of a rectifier, under DeepLIFT": Row(
        ONE_RECTIFIER, (lifted()[2], lifted()[5]), REUSED, ("the module 'r' is called 2 times in one forward",)),
    "a layer called twice, under DeepLIFT": Row(ONE_LAYER, (*lifted()[1:3], *lifted()[4:]), REUSED),
    "a function that is computed again for the gradient": Row(
        checkpointed(lambda m: lambda h: torch.tanh(m.b(h))), lifted("a")[:2], FUNCTION),
    "nought by nought in float16": Row(
        to(MIXED, torch.float16), (ca.DeepLift(),), Cause.NOT_FINITE, ("float16",),
        inputs={"x": noise(2, 8).index_fill(0, torch.tensor([0]), 0).half()}),
    "dropout left on": Row(
        net(lambda m, x: m.head(F.dropout(m.r(m.a(x)), 0.5, training=True)), r=nn.ReLU), lifted()[:1],
        Cause.RANDOM_FORWARD, (), INCONCLUSIVE),
    "dropout left on, and units ablated": Row(RANDOM, of_units("a"), Cause.RANDOM_FORWARD, (), INCONCLUSIVE),
    "an addition, under LRP": Row(
        net(lambda m, x: m.head(m.r(m.a(x)) + m.b(m.c(x))), r=nn.ReLU), (LRP,), FUNCTION, (":add#0",
        "Addition_Module")),
    "an addition in place, under LRP": Row(
        net(lambda m, x: m.head(m.b(m.r(m.a(x))).add_(m.c(x))), r=nn.ReLU), (LRP,), FUNCTION, (":add_#0",)),
    "a mean, under LRP": Row(
        wired(lambda m, x: m.head(m.r(m.a(x)).reshape(-1, 4, 2).mean(2)), a=linear(), head=linear(4, 3), r=nn.ReLU),
        (LRP,), FUNCTION, (":mean#0",)),
    "a factor, under LRP": Row(
        net(lambda m, x: m.head(m.t(m.a(x)) * 0.5), t=nn.Tanh), (LRP,), FUNCTION, (":mul#0",)),
    "a functional tanh, under LRP": Row(
        net(lambda m, x: m.head(torch.tanh(m.a(x)))), (LRP,), FUNCTION, (":tanh#0",)),
    "a softmax, under LRP": Row(
        net(lambda m, x: m.head(m.t(m.a(x))).softmax(1), t=nn.Tanh), (LRP,), FUNCTION, (":softmax#0",)),
    "a rectifier called with what was there before, under LRP": Row(
        net(lambda m, x: (lambda a, b: m.head(m.add(m.r(a), m.r(b))))(m.a(x), m.b(x)), r=nn.ReLU, add=Addition_Module),
        (LRP,), REUSED, ("'r' is called again", "a module for each call")),
    "a skip around a rectifier, under LRP": Row(SKIPPED, (LRP,), LOST, ("add, r", "copy")),
    "a layer beside what it takes, under LRP": Row(
        wired(lambda m, x: (lambda h: m.head(torch.cat([h, m.r(m.b(h))], 1)))(m.a(x)),
              a=linear(), b=linear(), head=linear(16, 3), r=nn.ReLU), (LRP,), LOST, (":cat#0", "b")),
    "dropout and tanh, under LRP": Row(
        net(lambda m, x: m.head(m.t(m.d(m.a(x)))), t=nn.Tanh, d=nn.Dropout), (LRP,), FUNCTION, ("'t' follows 'd'",)),
    "an identity rule behind a rectifier": Row(
        net(lambda m, x: m.head(m.b(m.r(m.a(x)))), r=nn.ReLU), (ca.LRP(rules={"b": ca.RelevanceIdentity()}),),
        FUNCTION, ("'b' follows 'r'",)),
    "a module that returns what it takes, under LRP": Row(
        net(lambda m, x: m.head(m.i(m.r(m.a(x)))), r=nn.ReLU, i=nn.Identity), (ca.LRP(rules={"i": Epsilon()}),),
        FUNCTION, ("'i' follows 'r'", "clone")),
    "the relevance of such a module": Row(
        net(lambda m, x: m.head(m.r(m.i(m.a(x)))), r=nn.ReLU, i=nn.Identity),
        (ca.LayerLRP(layer="i", rules={"i": Epsilon()}),), LOST, ("'i' returns the very tensor",)),
    "a rectifier that may stop relevance": Row(  # beside changed weights it masks by other numbers
        net(lambda m, x: m.head(torch.relu(m.b(torch.relu_(m.a(x)))))), (ca.LRP(rules={"head": ca.Gamma()}),),
        FUNCTION, ("relu#0", "no difference"), INCONCLUSIVE),
    "a function before, whose relevance does not reach the layer": Row(
        net(lambda m, x: m.head(m.t(m.a(x * 0.5))), t=nn.Tanh), (LRP,), FUNCTION),
    "an epsilon that is nothing in float16": Row(
        to(net(lambda m, x: m.head(m.add(m.r(m.a(x)), m.r(m.b(m.c(x))))), r=nn.ReLU, add=Addition_Module),
           torch.float16), (LRP,), Cause.NOT_FINITE, inputs={"x": X["x"].half()}),
    "a layer called twice, and its units ablated": Row(
        net(lambda m, x: m.head(m.a(x) * torch.tanh(m.a(x.flip(0))))), of_units("a"), REUSED,
        ("'a' was called 2 times", "build the model with a module for each call")),
    **{
        f"a layer changed in place behind, by {name}": Row(
            net(wiring, leaky=lambda: nn.LeakyReLU(0.5, inplace=True)), of_units("a"), Cause.OTHER_PASSES,
            ("changes in place what 'a' returns", "inplace=False"))
        for name, wiring in {
            "an addition": lambda m, x: m.head(torch.tanh(m.a(x).add_(1))),
            "a leaky ReLU": lambda m, x: m.head(m.leaky(m.a(x))),
        }.items()
    },
    "infinities that a product with 0 leaves": Row(
        net(infinite, hot=lambda: In(lambda each: each / (each > 0))), of_units("hot"), Cause.NOT_FINITE,
        ("'hot' returns NaN or infinities",)),
    "a target that nothing moves": Row(
        DEAD, (*of_units("a"), ca.FeatureAblation(), ca.Occlusion(windows={"x": (2,)}),
               ca.ShapleyValueSampling(n_samples=2)), Cause.NOTHING_CHANGED, (), INCONCLUSIVE),
    **{
        f"functional ReLUs, {places}": Row(
            build, OVERRIDING, FUNCTION, (f"functional relu at {places}, {ONLY_MODULES}{others}: ",), inputs=IMAGE)
        for build, places, others in (
            (images(lambda m, x: end(m, torch.relu(m.b(F.relu(m.a(x)))))), ":relu#0, :relu#1", " (none ran)"),
            (images(lambda m, x: end(m, m.b(F.relu(m.a(x), inplace=True)).relu_())), ":relu#0, :relu_#0",
        " (none ran)"),
            (images(lambda m, x: end(m, torch.relu(m.b(m.r(m.a(x))))), r=nn.ReLU), ":relu#0", ""))
    },
    "a functional ReLU that makes no difference": Row(
        images(lambda m, x: F.relu(end(m, m.r(m.b(m.a(x)))) + 1e3), r=nn.ReLU), OVERRIDING, FUNCTION,
        ("functional relu at :relu#0",), INCONCLUSIVE, IMAGE),
    "no ReLU at all": Row(
        images(lambda m, x: end(m, torch.tanh(m.b(F.gelu(m.a(x)))))), OVERRIDING, Cause.NOT_MOVED,
        ("no ReLU ran: with nothing to override, this is the gradient",), INCONCLUSIVE, IMAGE),
    "a way around a ReLU": Row(
        images(lambda m, x: (lambda h: end(m, m.b(m.r(h) + h)))(m.a(x)), r=nn.ReLU), OVERRIDING[:2], Cause.UNKNOWN,
        inputs=IMAGE),
    "a layer called twice, on a path": Row(
        images(lambda m, x: end(m, m.b(torch.relu(m.b(m.a(x)))))), paths()[:3], REUSED, ("called 2 times",),
        inputs=IMAGE),
    "a layer called twice, of draws": Row(TWICE, DRAWN[1:], REUSED, ("called 2 times",)),
    "a layer called twice, inside of a noise tunnel": Row(
        TWICE, (ca.LayerGradientXActivation(layer="b", noise=NOISE),), REUSED),
    "a functional ReLU, inside of a noise tunnel": Row(
        net(lambda m, x: m.head(torch.relu(m.a(x)))), (ca.GuidedBackprop(noise=NOISE),), FUNCTION, (":relu#0",)),
    "a neuron of a module called twice": Row(
        net(lambda m, x: m.head(m.b(m.r(m.b(m.r(m.a(x)))))), r=nn.ReLU), of_neuron(UNIT), REUSED,
        ("'b' was called 2 times", "build the model with a module for each")),
    "a neuron of a module called twice alike": Row(
        net(lambda m, x: m.head(m.b(x) + m.b(x))), (*of_neuron(UNIT)[:2], of_neuron(UNIT)[7]), REUSED, (),
        INCONCLUSIVE),
    **{
        f"a functional ReLU before the neuron, {place}": Row(
            net(wiring, r=nn.ReLU, inner=lambda: In(torch.relu)), GUIDED, FUNCTION,
            (f"functional relu at {place}, between the input and the neuron, which",))
        for place, wiring in {
            ":relu#0": lambda m, x: m.head(m.b(torch.relu(m.a(x)))),
            ":relu_#0": lambda m, x: m.head(F.relu(m.b(m.a(x).relu_()))),
            "inner:relu#0": lambda m, x: m.head(m.b(m.inner(m.r(m.a(x))))),
        }.items()
    },
    "no ReLU before the neuron": Row(
        RECTIFIED, tuple(replace(each, neuron=Neuron("a", (1,))) for each in GUIDED), Cause.NOT_MOVED, (),
        INCONCLUSIVE),
    "a target that does not listen to the neuron": Row(
        RECTIFIED, (ca.NeuronConductance(neuron=Neuron("head", (1,)), n_steps=6, target=ca.ClassIndex((0,))),),
        Cause.NO_GRADIENT, (), INCONCLUSIVE),
    "a way past an identity": Row(
        PAST, (ca.NeuronConductance(neuron=Neuron("id", (1,)), n_steps=6),), None),
    "more features than draws": Row(
        RECTIFIED, (ca.KernelShap(n_samples=6), ca.Lime(n_samples=5)), Cause.UNDERDETERMINED, ("more samples",),
        INCONCLUSIVE),
    "a Lime of nothing but zeros": Row(
        net(lambda m, x: m.head(x) / 1000), (ca.Lime(n_samples=30),), None, ("makes all coefficients of every row",),
        INCONCLUSIVE),
}  # fmt: skip


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("name", list(ROWS))
def test_what_captum_overlooks_is_found_out_and_named(name: str, mode: CheckMode) -> None:
    """The verdict, its cause as a word for programs, the place, and what to do."""
    row = ROWS[name]
    for asked in row.asked:
        (got,) = ask(row.build(), row.inputs, asked, check=CheckRequest(mode), seed=SEED).attributions
        check = got.checks[0]
        assert check.verdict is row.verdict, (asked, check)
        assert row.cause in (None, check.cause), check
        assert all(each in check.reason for each in row.words), check.reason


AGREEING: dict[str, Row] = {
    **{
        f"{name}, before it": Row(
            each.build, tuple(lifted("a", each.inputs["x"].shape[1:])[k] for k in (2, 5)), None, inputs=each.inputs)
        for name, each in OFF_THE_WAY.items() if each.before
    },
    **{
        f"{name}, behind it": Row(
            each.build, (lifted("head", each.inputs["x"].shape[1:])[1],), None, inputs=each.inputs)
        for name, each in OFF_THE_WAY.items() if each.behind
    },
    **{
        f"the layer {layer}, before, at or behind a nonlinearity": Row(MIXED, lifted(layer), None)
        for layer in ("a", "r1", "r2")
    },
    "a layer between two calls of a rectifier": Row(ONE_RECTIFIER, (lifted()[1], lifted()[4]), None),
    "a module that is computed again for the gradient": Row(
        checkpointed(lambda m: lambda h: m.r(m.b(h))), lifted("a")[:2], None),
    "rows that are merged with steps": Row(
        net(lambda m, x: m.head(m.r(m.a(x.reshape(-1, 8))).reshape(len(x), -1, 8).mean(1)), r=nn.ReLU),
        (ca.LayerDeepLift(layer="r"),), None, inputs={"x": noise(3, 4, 8)}),
    "relevance of a layer behind a function": Row(
        net(lambda m, x: m.head(m.t(m.a(x * 0.5))), t=nn.Tanh), (LAYER_LRP,), None),
    "an epsilon that is something in float16": Row(
        to(net(lambda m, x: m.head(m.add(m.r(m.a(x)), m.r(m.b(m.c(x))))), r=nn.ReLU, add=Addition_Module),
           torch.float16), (ca.LRP(rules={"add": Epsilon(1e-4)}),), None, inputs={"x": X["x"].half()}),
}  # fmt: skip


@pytest.mark.parametrize("name", list(AGREEING))
def test_what_lies_off_the_way_is_nothing_that_captum_overlooks(name: str) -> None:
    """Of a neuron before it, of a layer behind it, and where Captum has a rule: AGREES."""
    row = AGREEING[name]
    for got in ask(row.build(), row.inputs, *row.asked).attributions:
        assert verdict(got) is Verdict.AGREES, got.checks


def test_products_are_told_by_the_sum() -> None:
    """Captum differentiates a product, and so does the reference: the sum misses."""
    checks = ask(PRODUCT(), X, *lifted()[:1]).attributions[0].checks
    assert [check.verdict for check in checks] == [INCONCLUSIVE] * 2


@pytest.mark.parametrize("mode", list(CheckMode))
def test_a_rectifier_called_twice_cannot_explain_an_input(mode: CheckMode) -> None:
    for asked in (lifted()[0], lifted()[3]):
        with pytest.raises(ca.InvalidArgument, match="the module 'r' is called 2 times in one forward") as refused:
            ask(ONE_RECTIFIER(), X, asked, check=CheckRequest(mode))
        assert refused.value.reason == "METHOD_INAPPLICABLE"


def test_what_rounding_leaves_is_no_disagreement() -> None:
    """However closely the caller wants the two to match: what the terms' magnitudes explain is rounding, and Captum
    fits in float32."""
    exact = CheckRequest(CheckMode.INDEPENDENT, relative_tolerance=1e-15)
    loud = net(lambda m, x: 100 * m.head(m.t(m.b(m.r(m.a(x))))), r=nn.ReLU, t=nn.Tanh)
    for asked in (ca.LRP(rules={"b": ca.Gamma()}), ca.KernelShap(), ca.Lime()):
        model = (MIXED if isinstance(asked, ca.LRP) else loud)()
        check = ask(model, X, asked, seed=SEED, check=exact).attributions[0].checks[0]
        assert (check.verdict, check.cause) == (INCONCLUSIVE, Cause.CANCELLATION)


def test_one_row_cannot_be_permuted_and_the_reason_says_so() -> None:
    """No other row, nothing to exchange: zeros, and no verdict; or Captum's refusal, in its words."""
    one = {"x": X["x"][:1]}
    if not permutes_one_row():
        with pytest.raises(ca.InvalidArgument, match="cannot permute features with batch_size = 1"):
            ask(MIXED(), one, ca.FeaturePermutation())
        return
    (got,) = ask(MIXED(), one, ca.FeaturePermutation()).attributions
    assert not got.values["x"].any()
    assert (verdict(got), "send several rows" in got.checks[0].reason) == (INCONCLUSIVE, True)


def test_an_output_that_goes_on_is_named_under_lrp() -> None:
    """Of passes of our own; whoever listens sees that Captum differentiates another scalar."""
    goes_on = net(lambda m, x: (lambda h: {"h": h, "logits": m.head(h)})(m.t(m.a(x))), t=nn.Tanh)
    asked = ca.LRP(target=ca.ClassIndex((1,), output="h"))
    for mode, cause in ((CheckMode.INDEPENDENT, LOST), (CheckMode.SAME_PASS, Cause.OTHER_PASSES)):
        check = ask(goes_on(), X, asked, check=CheckRequest(mode)).attributions[0].checks[0]
        assert (check.verdict, check.cause) == (DISAGREES, cause)
        assert cause is not LOST or "goes on to head" in check.reason


def test_nought_by_nought_is_a_number_in_bfloat16() -> None:
    """Captum's threshold is 0 in float16 alone."""
    row = ROWS["nought by nought in float16"]
    for dtype in (torch.float16, torch.bfloat16):
        inputs = {"x": row.inputs["x"].to(dtype)}
        values = ask(to(MIXED, dtype)(), inputs, *row.asked).attributions[0].values["x"]
        assert np.isnan(values.astype(float)).any() == (dtype is torch.float16)


@pytest.mark.slow
def test_no_graph_outlives_its_request() -> None:
    """Neither of operators that are listened to, nor of layers in whose place Captum puts values of its own."""
    for name in ("functions", "a pooling function", "a way around"):
        row = ROWS[f"{name}, under DeepLIFT"]
        counts = []
        for _ in range(2):
            for asked in row.asked:
                ask(row.build(), row.inputs, asked)
            counts.append(nodes())
        assert counts[1] <= counts[0], name


def test_a_way_around_a_layer_is_named_where_the_sum_misses() -> None:
    """The identity AGREES, and the sum need not be the target's change: the check does not apply, and says why."""
    around = net(lambda m, x: m.head(m.b(m.a(x)) + 3 * m.a(x)))
    checks = ask(around(), X, paths()[2]).attributions[0].checks
    assert [check.verdict for check in checks] == [Verdict.AGREES, Verdict.NOT_APPLICABLE]
    assert "lead around 'b'" in checks[1].reason


def test_an_analysed_layer_of_tokens_has_ends_and_no_path() -> None:
    """Between token ids there is no path: only between what a layer makes of them, from ids as a baseline."""
    words = wired(lambda m, ids: m.head(torch.tanh(m.words(ids)).mean(1)), words=lambda: nn.Embedding(9, 4),
                  head=linear(4, 3))  # fmt: skip
    ids = {"ids": torch.arange(6).reshape(2, 3)}
    with pytest.raises(ca.InvalidArgument) as refused:
        ask(words(), ids, ca.LayerConductance(layer="words"))
    assert refused.value.reason == "INPUT_NOT_DIFFERENTIABLE"
    asked = ca.LayerIntegratedGradients(layer="words", baselines={"ids": np.full((1, 3), 3)}, n_steps=8)
    assert [check.verdict for check in ask(words(), ids, asked).attributions[0].checks] == [Verdict.AGREES] * 2
