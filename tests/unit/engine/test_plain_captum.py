"""Every method's answer is Captum's own, and the raw hooks agree with it, on networks of many kinds."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401  (NumPy knows bfloat16 then)
import numpy as np
import pytest
import torch
from captum.attr._utils.custom_modules import Addition_Module
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from cutaway.contract.requests import CheckMode, CheckRequest, Combination, Epsilon, Neuron
from cutaway.contract.results import Cause, Verdict
from tests.support.attribution_models import (
    CONVOLUTIONS,
    GAINED,
    GAINED_IMAGES,
    IMAGE,
    MIXED,
    OF_TOKENS,
    ONE_NUMBER,
    OVERRIDING,
    RECTIFIED,
    SEVERAL,
    TOKENS,
    TWICE,
    XY,
    In,
    X,
    convolution,
    end,
    expected_gradients,
    images,
    in_place,
    lifted,
    linear,
    loud,
    net,
    of_neuron,
    of_units,
    one_after_another,
    paths,
    pooled,
)
from tests.support.checked_attributions import BATCHES, CNN, MLP, Build, ask, noise, to, verdict, wired
from tests.support.plain_captum import SEED, ablates_across_inputs, by_hand, permutes_one_row
from tests.support.rounding import SMALL, close
from tests.support.state_snapshot import untouched

UNIT = Neuron("b", (2,))
GAIN = {**X, "gain": noise(4, seed=3)}
PAIRS = {"x": np.array([[0, 0, 1, 1, 2, 2, 3, 3]])}
QUARTERS = {"x": np.broadcast_to(np.repeat(np.repeat(np.arange(4).reshape(2, 2), 4, 0), 4, 1), (1, 3, 8, 8))}
RULES = {"a": ca.Gamma(), "norm": ca.RelevanceIdentity(), "b": ca.AlphaOneBetaZero(), "pool": Epsilon(0.5)}
FLAT = {"flat": Epsilon()}
COPIES = {"one": Epsilon(), "two": Epsilon()}


class Copy(nn.Module):
    """Returns what it takes, in another tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clone()


class Sum(nn.Module):
    """An addition that LRP knows."""

    def __new__(cls) -> Any:
        return Addition_Module()


def spread(norm: nn.BatchNorm2d) -> nn.BatchNorm2d:
    """``norm`` as if it had been trained."""
    for each in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        assert each is not None
        nn.init.uniform_(each, 0.2, 1.5)
    return norm


def skipped(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.head(m.add(m.one(h), m.b(m.r(m.two(h)))))


def noisy(combination: Combination, *asked: Any) -> tuple[Any, ...]:
    return tuple(replace(each, noise=ca.NoiseTunnel(combination, 4, 1.5)) for each in asked)


class Case(NamedTuple):
    """A network, four rows of its inputs, and the requests that fit it."""

    build: Build
    inputs: Mapping[str, Tensor]
    asked: tuple[Any, ...]


def lifting(first: Any, second: Any) -> Case:
    return Case(one_after_another(first, second), X, lifted())


CASES: dict[str, Case] = {
    "ReLU, tanh": Case(MIXED, X, (
        *lifted(), ca.LRP(), ca.LRP(rules={"a": Epsilon(0.25), "b": ca.Gamma(0.5), "head": ca.AlphaOneBetaZero()}),
        ca.LRP(rules={"a": ca.RelevanceIdentity()}), ca.LayerLRP(layer="a"), ca.LayerLRP(layer="head"))),
    "ELU, sigmoid": lifting(nn.ELU, nn.Sigmoid),
    "leaky ReLU, softplus": lifting(lambda: nn.LeakyReLU(0.2), nn.Softplus),
    "ReLU and ELU in place": lifting(in_place, lambda: nn.ELU(inplace=True)),
    "a linear layer called twice": Case(
        net(lambda m, x: m.head(m.r2(m.c(m.b(m.r1(m.c(m.a(x))))))), r1=nn.ReLU, r2=nn.Tanh), X, lifted()),
    "normalised and dropped out": Case(
        net(lambda m, x: m.head(m.drop(m.r(m.norm(m.b(m.a(x)))))), r=nn.ReLU, norm=lambda: nn.BatchNorm1d(8),
            drop=nn.Dropout), X, lifted()),
    "pooled": Case(pooled(lambda: nn.MaxPool2d(2)), IMAGE, lifted(shape=(3, 8, 8))),
    "pooled, a window beyond the edge": Case(
        pooled(lambda: nn.MaxPool2d(3, ceil_mode=True)), IMAGE, lifted(shape=(3, 8, 8))),
    "DeepLIFT of one of two inputs": Case(
        net(lambda m, x, y: m.head(m.r2(m.b(m.r1(m.a(x))) * y)), r1=nn.Sigmoid, r2=nn.ELU), XY, lifted()),
    "ReLUs": Case(
        RECTIFIED, X, (*of_neuron(UNIT), *of_neuron(Neuron("r2", (5,))), *of_neuron(Neuron("head", (1,)))[:5])),
    "relevance of convolutions": Case(
        wired(lambda m, x: m.head(m.flat(m.pool(m.r2(m.b(m.r(m.norm(m.a(x)))))))),
              a=convolution(3, 6), norm=lambda: spread(nn.BatchNorm2d(6)), b=convolution(6, 6, padding=0),
              r=in_place, r2=nn.ReLU, pool=lambda: nn.MaxPool2d(2), flat=nn.Flatten, head=linear(54, 3)), IMAGE,
        (ca.LRP(rules=FLAT), ca.LRP(rules={**RULES, **FLAT}), ca.LayerLRP(layer="norm", rules={**RULES, **FLAT}),
         ca.LayerLRP(layer="b", rules=FLAT))),
    "branches of one rectifier": Case(
        net(lambda m, x: m.head(m.add(m.r(m.a(x)), m.r(m.b(m.c(x))))), r=nn.ReLU, add=Sum), X,
        (ca.LRP(), ca.LayerLRP(layer="add"), ca.LayerLRP(layer="c"))),
    "branches that begin with copies": Case(
        net(skipped, one=Copy, two=Copy, r=nn.ReLU, add=Sum), X,
        (ca.LRP(rules=COPIES), ca.LayerLRP(layer="a", rules=COPIES))),
    "functions that only stop what is 0": Case(
        net(lambda m, x: m.head(torch.relu(m.b(torch.relu_(m.a(x)).reshape(-1, 2, 4).flatten(1))))), X,
        (ca.LRP(), ca.LayerLRP(layer="a"))),
    "a rule on a module without weights, and a layer without bias": Case(
        wired(lambda m, x: m.head(m.flat(m.pool(m.r(m.a(x))))), a=lambda: nn.Conv2d(3, 6, 3, bias=False), r=nn.ReLU,
              pool=lambda: nn.MaxPool2d(2), flat=nn.Flatten, head=linear(54, 3)), IMAGE,
        (ca.LRP(rules={"pool": ca.Gamma(), **FLAT}),)),
    "functions elsewhere": Case(
        net(lambda m, x: {"unused": torch.softmax(x, 1), "logits": m.head(m.r(m.a(x)))}["logits"], r=nn.ReLU), X,
        (ca.LRP(),)),
    "relevance of two inputs": Case(
        net(lambda m, x, y: m.head(m.r(m.add(m.a(x), m.b(y)))), r=nn.ReLU, add=Sum), XY,
        (ca.LRP(), ca.LRP(inputs=("y",)), ca.LRP(inputs=("x",)), ca.LayerLRP(layer="b"))),
    "a rectifier called twice": Case(
        net(lambda m, x: m.head(m.r(m.b(m.r(m.a(x))))), r=nn.ReLU), X,
        (*of_neuron(UNIT), ca.LRP(), ca.LayerLRP(layer="a"), ca.LRP(rules={"b": ca.Gamma()}))),
    "a function behind": Case(net(lambda m, x: m.head(F.relu(m.b(m.r(m.a(x))))), r=nn.ReLU), X, of_neuron(UNIT)),
    "in place": Case(one_after_another(in_place, in_place), X, (*of_neuron(UNIT), *of_units("a"), *of_units("r1"))),
    "changed in place behind": Case(
        net(lambda m, x: m.head(m.b(m.r(m.a(x))).add_(1).tanh()), r=nn.ReLU), X, of_neuron(UNIT)),
    "in a tuple": Case(
        net(lambda m, x: m.head(torch.tanh(m.t(m.r(m.a(x)))[0])), r=nn.ReLU, t=lambda: In(lambda each: (each,))), X,
        (*of_neuron(Neuron("t", (2,))), *of_units("t"), *expected_gradients(Neuron("t", (2,)), {"x": (8,)}))),
    "a neuron of an image": Case(
        images(lambda m, x: end(m, m.s(m.b(m.r(m.a(x))))), r=nn.ReLU, s=nn.Tanh), IMAGE,
        of_neuron(Neuron("b", (0, 1, 1)), mask=False)),
    "a neuron and two inputs": Case(
        net(lambda m, x, gain: m.head(m.s(m.b(m.r(m.a(x)) * gain.unsqueeze(1)))) * gain.unsqueeze(1), r=nn.ReLU,
            s=nn.ReLU), GAIN, (*of_neuron(UNIT), *of_neuron(UNIT, inputs=("x",)))),
    "one neuron an example": Case(
        net(lambda m, x: m.n(m.r(m.a(x)).sum(1)), r=nn.ReLU, n=nn.Tanh), X,
        (*of_neuron(Neuron("n", ())), *of_units("n"))),
    "perceptron": Case(MLP, X, (
        *of_units("a"), *of_units("head"), ca.FeatureAblation(), ca.FeaturePermutation(), ca.ShapleyValues(masks=PAIRS),
        ca.FeatureAblation(baselines={"x": 0.5}, masks={"x": np.array([[7, 7, -1, -1, 3, 3, 3, 9]])}),
        ca.Occlusion(windows={"x": (3,)}, strides={"x": (2,)}, baselines={"x": -0.5}),
        ca.ShapleyValueSampling(n_samples=4, baselines={"x": 0.25}))),
    "units of an image": Case(
        wired(lambda m, x: end(m, torch.relu(m.conv(x))), conv=convolution(3, 4, padding=0), head=linear(4, 3)),
        {"x": noise(4, 3, 5, 5)}, of_units("conv")),
    "units of an embedding": Case(OF_TOKENS, TOKENS, of_units("words")),
    "units in a tuple of two": Case(
        net(lambda m, x: (lambda h: m.head(torch.tanh(h[0] * 2) + h[1][:, :8] ** 2))(m.t(x)),
            t=lambda: In(lambda each: (each, torch.cat([each, each.sin()], dim=1)))), X, of_units("t")),
    "units beside a module called twice": Case(
        net(lambda m, x: m.head(m.r(m.a(m.r(x)))), r=nn.ReLU), X, of_units("a")),
    "a way past an identity": Case(
        net(lambda m, x: (lambda h: m.head(torch.relu(h * 2) + m.id(h)))(m.a(x)), id=nn.Identity), X, of_units("id")),
    "frozen": Case(lambda: MLP().requires_grad_(False), X, of_units("a")),
    "rectified convolutions": Case(CONVOLUTIONS, IMAGE, (*paths(), *OVERRIDING)),
    "convolutions, one rectifier called twice": Case(
        images(lambda m, x: end(m, m.r(m.b(m.r(m.a(x))))), r=nn.ReLU), IMAGE, (*paths(), *OVERRIDING)),
    "one rectifier, in three branches": Case(
        images(lambda m, x: end(m, m.r(m.a(x)) + m.r(m.b(m.r(m.a(x * 2))))), r=nn.ReLU), IMAGE,
        (*paths(), *OVERRIDING[:2])),
    "convolutions, in place": Case(
        images(lambda m, x: end(m, m.r2(m.b(m.r1(m.a(x))))), r1=in_place, r2=in_place), IMAGE,
        (*paths()[:2], *paths()[3:5], *OVERRIDING)),
    "convolutions, functions": Case(images(lambda m, x: end(m, torch.relu(m.b(F.relu(m.a(x)))))), IMAGE, paths()),
    "convolutions, functions in place": Case(
        images(lambda m, x: end(m, m.b(F.relu(m.a(x), inplace=True)).relu_())), IMAGE, (*paths()[:2], *paths()[3:5])),
    "images and their gain": Case(
        GAINED_IMAGES, {**IMAGE, "gain": noise(4) + 2},
        (*paths(), *OVERRIDING[:2], *(replace(each, inputs=("x",)) for each in (*paths(), *OVERRIDING)))),
    "convolutions": Case(CNN, IMAGE, (
        ca.FeatureAblation(masks=QUARTERS), ca.Occlusion(windows={"x": (3, 3, 5)}, strides={"x": (3, 2, 4)}),
        ca.FeaturePermutation(masks=QUARTERS), ca.ShapleyValues(masks=QUARTERS),
        ca.ShapleyValueSampling(n_samples=3, masks=QUARTERS),
        *expected_gradients(Neuron("conv", (2, 1, 3)), {"x": (3, 8, 8)}))),
    "token ids": Case(OF_TOKENS, TOKENS, (
        ca.FeatureAblation(inputs=("ids",)), ca.FeatureAblation(inputs=("ids", "weight"), baselines={"ids": 3}),
        ca.Occlusion(inputs=("ids",), windows={"ids": (2,)}), ca.FeaturePermutation(inputs=("ids",)),
        ca.ShapleyValues(inputs=("ids",)),
        ca.ShapleyValueSampling(inputs=("ids",), n_samples=4, baselines={"ids": np.full((1, 5), 7)}),
        expected_gradients(UNIT, {"weight": (5,)})[0])),
    "several inputs": Case(GAINED, SEVERAL, (  # "gain" has no mask, and is one feature
        ca.FeatureAblation(), ca.FeatureAblation(masks={"y": np.array([[5, 5, 6]]), "x": np.array([[6, 0, 0, 5]])}),
        ca.Occlusion(inputs=("x", "y"), windows={"x": (2,), "y": (2,)}), ca.FeaturePermutation(),
        ca.ShapleyValues(inputs=("y", "gain")), ca.ShapleyValueSampling(n_samples=3),
        *expected_gradients(Neuron("a", (2,)), {"x": (4,), "y": (3,), "gain": ()})[:2],
        expected_gradients(UNIT, {"y": (3,), "x": (4,)})[0], *expected_gradients(Neuron("a", (2,)), {"x": (4,)}))),
    "three inputs": Case(
        wired(lambda m, x, y, z: m.head(torch.tanh(x * y)) * z.mean(1, keepdim=True), head=linear(4, 3)),
        {"x": noise(4, 4), "y": noise(4, 4, seed=2), "z": noise(4, 5, seed=3)},
        (ca.Occlusion(windows={"x": (2,), "y": (3,), "z": (2,)}),)),  # Captum 0.8 and 0.9 count the third's otherwise
    "one number an example": Case(ONE_NUMBER, X, (
        ca.FeatureAblation(baselines={"x": 1.0}), ca.Occlusion(windows={"x": (8,)}), ca.FeaturePermutation(),
        ca.ShapleyValues(masks=PAIRS), ca.ShapleyValueSampling(n_samples=2), *of_units("a"),
        *expected_gradients(Neuron("a", (2,)), {"x": (8,)}))),
    "fits": Case(loud(MLP), X, (
        ca.KernelShap(), ca.KernelShap(n_samples=24, baselines={"x": 0.5}, masks=PAIRS), ca.Lime(),
        ca.Lime(n_samples=30, baselines={"x": -0.5}, masks=PAIRS))),
    "fits to modules called twice": Case(
        loud(net(lambda m, x: m.head(m.r(m.a(m.r(m.a(x))))), r=in_place)), X, (ca.KernelShap(), ca.Lime())),
    "fits to token ids": Case(
        loud(OF_TOKENS), TOKENS,
        (ca.KernelShap(inputs=("ids",)), ca.Lime(inputs=("ids", "weight"), n_samples=50, baselines={"ids": 3}))),
    "fits to several inputs": Case(loud(GAINED), SEVERAL, (
        ca.KernelShap(inputs=("y", "gain")), ca.Lime(n_samples=40), ca.Lime(inputs=("x",), n_samples=30),
        ca.KernelShap(masks={"y": np.array([[5, 5, 6]]), "x": np.array([[6, 0, 0, 5]])}))),
    "fits to one number an example": Case(loud(ONE_NUMBER), X, (ca.KernelShap(), ca.Lime())),
    "draws, in place": Case(
        net(lambda m, x: m.head(m.r(m.b(m.r(m.a(x))))), r=in_place), X,
        (*expected_gradients(Neuron("a", (2,)), {"x": (8,)}, stdev=0.0),
         *expected_gradients(Neuron("a", (2,)), {"x": (8,)}, count=1, n_samples=1))),
    "draws, a module called twice": Case(TWICE, X, expected_gradients(Neuron("a", (2,)), {"x": (8,)})),
}  # fmt: skip

ONES = {"x": 1.0}
HALVES = {"x": np.array([[0, 0, 0, 0, 1, 1, 1, 1]])}
TUNNELS: dict[str, Case] = {
    "gradients": Case(RECTIFIED, X, (
        ca.Saliency(), ca.InputXGradient(), ca.GuidedBackprop(), ca.Deconvolution(), ca.LRP(),
        ca.DeepLift(baselines=ONES), ca.DeepLiftShap(baselines={"x": noise(4, 8, seed=5).numpy()}))),
    "layers": Case(RECTIFIED, X, (
        ca.LayerActivation(layer="b"), ca.LayerGradientXActivation(layer="b"), ca.LayerFeatureAblation(layer="head"),
        ca.LayerDeepLift(layer="b"), *paths(n_steps=4)[:3])),
    "neurons": Case(RECTIFIED, X, (
        ca.NeuronGradient(neuron=UNIT), ca.NeuronGuidedBackprop(neuron=UNIT),
        ca.NeuronIntegratedGradients(neuron=UNIT, n_steps=4))),
    "perturbations": Case(RECTIFIED, X, (
        ca.FeatureAblation(masks=HALVES, baselines=ONES), ca.Occlusion(windows={"x": (4,)}, strides={"x": (2,)}),
        ca.ShapleyValues(masks=HALVES))),
    "one of two inputs": Case(GAINED, SEVERAL, (
        ca.Saliency(inputs=("x",), absolute=False), ca.IntegratedGradients(inputs=("x",), n_steps=4),
        ca.IntegratedGradients(inputs=("y", "x"), n_steps=40))),
    "in place": Case(
        net(lambda m, x: m.head(m.r(m.b(m.r(m.a(x))))), r=in_place), X,
        (ca.InputXGradient(), ca.LayerGradientXActivation(layer="a"))),
    "a module called twice": Case(TWICE, X, (ca.InputXGradient(), ca.LayerActivation(layer="a"))),
}  # fmt: skip
CASES |= {
    f"{name}, {combination}": case._replace(asked=noisy(combination, *case.asked))
    for (name, case), combination in product(TUNNELS.items(), Combination)
}

LISTENED = (
    ca.FeatureAblation, ca.FeaturePermutation, ca.GradientShap, ca.InputXGradient, ca.IntegratedGradients,
    ca.InternalInfluence, ca.LayerActivation, ca.LayerConductance, ca.LayerGradCam, ca.LayerGradientXActivation,
    ca.LayerIntegratedGradients, ca.NeuronFeatureAblation, ca.Occlusion, ca.Saliency, ca.ShapleyValueSampling,
    ca.ShapleyValues,
)  # fmt: skip
"""Methods whose very passes are listened to; under all others Captum changes what flows, or runs too many."""

SUMMED = (*map(type, lifted()), ca.KernelShap, ca.ShapleyValues, ca.ShapleyValueSampling)
"""Methods that have a second check, which agrees with whatever steps and draws."""


def cast(asked: Any, dtype: torch.dtype) -> Any:
    """Returns ``asked`` with its baselines of floats in ``dtype``."""
    given = getattr(asked, "baselines", {})
    changed = {
        name: each.astype(str(dtype).removeprefix("torch."))
        for name, each in given.items()
        if isinstance(each, np.ndarray) and each.dtype.kind == "f"
    }
    return replace(asked, baselines={**given, **changed}) if changed else asked


def at(case: Case, rows: int, dtype: torch.dtype) -> tuple[dict[str, Tensor], list[Any]]:
    """Returns so many rows of the inputs in ``dtype``, and the requests that Captum can answer about them."""
    inputs = {
        name: tensor[:rows].to(dtype) if tensor.is_floating_point() else tensor[:rows]
        for name, tensor in case.inputs.items()
    }
    answered = [each for each in case.asked if not (each.noise and isinstance(each, ca.DeepLiftShap) and rows == 1)]
    if rows == 1 and not permutes_one_row():
        answered = [each for each in answered if not isinstance(each, EXCHANGING)]
    return inputs, [cast(each, dtype) for each in answered]


EXCHANGING = (ca.FeaturePermutation, ca.LayerFeaturePermutation)


def generators() -> tuple[Any, ...]:
    """Where the generators of the process stand."""
    numpy = str(np.random.get_state(legacy=False)["state"])
    return torch.get_rng_state().numpy().tobytes(), numpy, random.getstate()


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: f"{batch[0]}-{batch[1]}")
@pytest.mark.parametrize("name", list(CASES))
def test_the_answer_is_plain_captums_in_every_mode_and_agrees(name: str, batch: tuple[int, torch.dtype]) -> None:
    """Whatever is checked, the reply is Captum's but for rounding; the raw hooks say AGREES, from passes of their own
    where Captum changes what flows; what must add up does; model and generators are afterwards as they were."""
    case, (rows, dtype) = CASES[name], batch
    inputs, questions = at(case, rows, dtype)
    build = to(case.build, dtype)
    expected, model = [by_hand(build(), inputs, each) for each in questions], build()
    for mode in CheckMode:
        before = generators()
        with untouched(model):
            result = ask(model, inputs, *questions, check=CheckRequest(mode), seed=SEED)
        assert generators() == before
        for asked, wanted, got in zip(questions, expected, result.attributions, strict=True):
            for theirs, ours in zip(wanted, got.values.values(), strict=True):
                assert close(ours, theirs, SMALL), (mode, asked)
            if mode is CheckMode.OFF:
                assert not got.checks
                continue
            first, *further = got.checks
            assert (first.verdict, first.cause) == right(asked, rows), (mode, asked, got.checks)
            assert first.mode is (mode if isinstance(asked, LISTENED) else CheckMode.INDEPENDENT), asked
            assert Verdict.DISAGREES not in {check.verdict for check in further}
            if not asked.noise and isinstance(asked, SUMMED):
                assert [check.verdict for check in further] == [Verdict.AGREES], (asked, further)
            if asked.noise:
                assert (further, got.convergence_delta) == ([], None)


def right(asked: Any, rows: int) -> tuple[Verdict, Cause | None]:
    """Returns what must be found: one row cannot be exchanged, and Captum 0.8 ablates a shared feature wrongly."""
    if rows == 1 and isinstance(asked, EXCHANGING):
        return Verdict.INCONCLUSIVE, Cause.NOT_MOVED
    if isinstance(asked, ca.FeatureAblation) and len(asked.masks) > 1 and not ablates_across_inputs():
        return Verdict.DISAGREES, Cause.OTHER_PASSES
    return Verdict.AGREES, None


COARSE = {"perceptron": 0.8, "fits": 1.0, "ReLU, tanh": 1.0}
"""What share of the requests must agree; of differences of forward values little is left but rounding."""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", list(COARSE))
def test_an_answer_in_a_coarse_data_type_is_never_called_wrong(name: str, dtype: torch.dtype) -> None:
    """What rounding does to it is no disagreement."""
    case = CASES[name]
    inputs, questions = at(case, 4, dtype)
    for mode in (CheckMode.SAME_PASS, CheckMode.INDEPENDENT):
        found = ask(to(case.build, dtype)(), inputs, *questions, check=CheckRequest(mode), seed=SEED).attributions
        assert Verdict.DISAGREES not in {check.verdict for got in found for check in got.checks}
        assert sum(verdict(got) is Verdict.AGREES for got in found) >= COARSE[name] * len(questions)
