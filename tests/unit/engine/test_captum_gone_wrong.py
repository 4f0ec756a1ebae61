"""A wrong attribution is never called right: Captum is made wrong on purpose, in ways that libraries go wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from captum import attr
from captum.attr._utils import lrp_rules
from captum.attr._utils.custom_modules import Addition_Module
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import CheckMode, CheckRequest, Combination, ExpectedGradient, Neuron, PathAttribution
from cutaway.contract.results import AttributionResult, Cause, Verdict
from tests.support.attribution_models import (
    GAINED_IMAGES,
    MIXED,
    OVERRIDING,
    XY,
    X,
    expected_gradients,
    lifted,
    loud,
    net,
    of_neuron,
    of_units,
    paths,
)
from tests.support.broken_captum import spoiled, stale
from tests.support.checked_attributions import CHECKED, Build, ask, noise, verdict
from tests.support.plain_captum import SEED

INPUTS = {"x": noise(4, 3, 4, 5), "gain": torch.tensor([0.5, 1.0, 2.0, 1.5])}
TARGET = ca.ClassIndex((0, 1, 2, 0))
SUM = net(lambda m, x, y: m.head(m.r(m.add(m.a(x), m.b(y)))), r=nn.ReLU, add=Addition_Module)

NEURON = Neuron("b", (3, 3, 0))
QUARTERS: Any = {"x": np.broadcast_to(np.repeat(np.repeat(np.arange(4).reshape(2, 2), 2, 0), [2, 3], 1), (1, 3, 4, 5))}
HALF: Any = {"inputs": ("x",), "baselines": {"x": 0.5}}
FITTED = tuple(kind(**HALF, masks=QUARTERS, n_samples=16) for kind in (ca.KernelShap, ca.Lime))
RELEVANCE = (ca.LRP(inputs=("x",)), ca.LayerLRP(layer="add"))
TUNNELS = tuple(
    ca.Saliency(inputs=("x",), absolute=False, noise=ca.NoiseTunnel(combination, 4, 0.5)) for combination in Combination
)
ASKED: tuple[Any, ...] = (
    ca.Saliency(inputs=("x",)), ca.InputXGradient(inputs=("x",)), ca.IntegratedGradients(inputs=("x",), n_steps=20),
    ca.IntegratedGradients(inputs=("x",), n_steps=20, quadrature=ca.Quadrature.RIEMANN_MIDDLE),
    ca.LayerActivation(layer="b"), ca.LayerGradientXActivation(layer="b"), ca.LayerGradCam(layer="b"),
    ca.LayerGradCam(layer="b", relu=True), *of_units("b")[1:],
    *(replace(each, inputs=("x",)) for each in (*paths()[:3], *OVERRIDING)),
    *lifted("b", (3, 4, 5)), *expected_gradients(NEURON, {"x": (3, 4, 5)}),
    *of_neuron(NEURON, ("x",), mask=False)[:8],
    ca.FeatureAblation(**HALF), ca.Occlusion(**HALF, windows={"x": (1, 2, 2)}), ca.FeaturePermutation(inputs=("x",)),
    ca.ShapleyValues(**HALF, masks=QUARTERS), ca.ShapleyValueSampling(**HALF, masks=QUARTERS, n_samples=4),
    *FITTED, *RELEVANCE, *TUNNELS,
)  # fmt: skip
GRADIENTS = ASKED[:8]


def named(asked: Any) -> str:
    return f"{type(asked).__name__}{f', {asked.noise.combination}' if asked.noise else ''}"


def network(asked: Any) -> tuple[Build, Mapping[str, Tensor]]:
    if asked in RELEVANCE:
        return SUM, XY
    return loud(GAINED_IMAGES) if asked in FITTED else GAINED_IMAGES, INPUTS


def spoilt(asked: Any) -> type:
    """Returns the class that is made wrong."""
    return attr.NoiseTunnel if asked.noise else type(asked)


def is_targeted(asked: Any) -> bool:
    is_neuron = hasattr(asked, "neuron") and not isinstance(asked, ca.NeuronConductance)
    return not is_neuron and not isinstance(asked, ca.LayerActivation | ca.LayerFeaturePermutation)


OTHER: list[Any] = []
"""The model's other layer, and its first rectifier."""


def option(name: str, change: Callable[[Any], Any]) -> dict[str, Any]:
    """Change one keyword argument."""
    return {"arguments": lambda method, options: options.update({name: change(options.get(name))})}


def method(change: Callable[[Any], Any]) -> dict[str, Any]:
    """Change Captum's object."""
    return {"arguments": lambda method, options: change(method)}


def other_layer(method: Any) -> None:
    getattr(method, "grad_cam", method).layer = OTHER[0]


def forward(change: Callable[[Tensor], Tensor]) -> Callable[[Any], None]:
    def changed(method: Any) -> None:
        function = method.forward_func
        method.forward_func = lambda *tensors: change(function(*tensors))

    return changed


def steps(change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """Change what Captum puts in the layer's place."""

    def changed(method: Any) -> None:
        make = method._make_gradient_func

        def made(*given: Any) -> Any:
            gradients = make(*given)

            def at_other_steps(inputs: tuple[Tensor, ...], **named: Any) -> Any:
                return gradients(inputs=tuple(change(each).detach().requires_grad_() for each in inputs), **named)

            return at_other_steps

        method._make_gradient_func = made

    return method(changed)


def rectifiers(change: Callable[[Any], None]) -> dict[str, Any]:
    """Change what overrides rectifiers."""
    return method(lambda each: change(getattr(each, "deconv", None) or getattr(each, "guided_backprop", each)))


def only_the_first(holder: Any) -> None:
    whole = holder._register_hooks
    holder._register_hooks = lambda module: whole(module) if module is OTHER[1] else None


def values(change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    return {"values": change}


def one_element(values: Tensor) -> Tensor:
    changed = values.clone()
    changed.view(-1)[changed.abs().argmax()] *= 1.01
    return changed


def of(*kinds: Any) -> Callable[[Any], bool]:
    return lambda asked: isinstance(asked, kinds) and not asked.noise


def every(asked: Any) -> bool:
    return True


class Fault(NamedTuple):
    """What is wrong with Captum, as `spoiled` takes it, and to which requests it can happen."""

    how: dict[str, Any]
    of: Callable[[Any], bool] = every


OVERRIDES = of(ca.GuidedBackprop, ca.Deconvolution, ca.GuidedGradCam, ca.NeuronGuidedBackprop, ca.NeuronDeconvolution)
FITS = of(ca.KernelShap, ca.Lime)
OTHER_COMBINATION = {"smoothgrad": "smoothgrad_sq", "smoothgrad_sq": "vargrad", "vargrad": "smoothgrad"}
FAULTS: dict[str, Fault] = {
    "a hundredth too large": Fault(values(lambda values: values * 1.01)),
    "a constant more": Fault(values(lambda values: values + 0.05 * values.abs().max())),
    "the sign of one row": Fault(values(lambda values: torch.cat([values[:1], -values[1:2], values[2:]]))),
    "rows exchanged": Fault(values(lambda values: values.roll(1, 0))),
    "elements exchanged": Fault(values(lambda values: values.roll(1, -1))),
    "one element off": Fault(values(one_element)),
    "one element not a number": Fault(values(lambda values: values.index_fill(1, torch.tensor([0]), torch.nan))),
    "nothing but zeros": Fault(values(torch.zeros_like)),
    "another shape": Fault(values(lambda values: values.flatten(1)), lambda asked: asked in GRADIENTS),
    "another input": Fault(
        {"inputs": lambda x: (x + 1).detach().requires_grad_()},
        lambda asked: not isinstance(asked, ca.Deconvolution | ca.NeuronDeconvolution)),  # they depend on no input
    "another target": Fault(option("target", lambda target: (target + 1) % 3), is_targeted),
    "targets exchanged between rows": Fault(option("target", lambda target: target.flip(0)), is_targeted),
    "another number of the output": Fault(
        method(forward(lambda output: output.roll(1, -1))), of(ca.LayerFeaturePermutation)),
    "probabilities for logits": Fault(
        method(forward(lambda output: output.softmax(1))),
        of(ca.Saliency, ca.InputXGradient, ca.IntegratedGradients, ca.LayerGradientXActivation, ca.LayerGradCam)),
    "another baseline": Fault(
        option("baselines", lambda given: tuple(each + 0.1 for each in given)),
        lambda asked: hasattr(asked, "baselines")),
    "another baseline of units": Fault(option("layer_baselines", lambda given: 0.1), of(ca.LayerFeatureAblation)),
    "half the steps": Fault(option("n_steps", lambda steps: steps // 2), of(PathAttribution)),
    "a step too many": Fault(option("n_steps", lambda steps: steps + 1), of(PathAttribution)),
    "another quadrature": Fault(
        option("method", lambda rule: "riemann_right" if rule == "riemann_left" else "riemann_left"),
        of(PathAttribution)),
    "steps exchanged": Fault(
        steps(lambda points: points.roll(1, 0)), of(ca.LayerIntegratedGradients)),
    "steps of the other sign": Fault(steps(torch.neg), of(ca.LayerIntegratedGradients)),
    "without the factor": Fault(
        method(lambda each: setattr(each, "_multiply_by_inputs", False)), of(ca.IntegratedGradients)),
    "the other magnitude": Fault(option("abs", lambda absolute: not absolute), of(ca.Saliency)),
    "the other relu": Fault(option("relu_attributions", lambda relu: not relu), of(ca.LayerGradCam)),
    "another layer": Fault(
        method(other_layer), lambda asked: hasattr(asked, "neuron") or hasattr(asked, "layer")),
    "the layer's input": Fault(
        option("attribute_to_layer_input", lambda _: True),
        lambda asked: hasattr(asked, "layer") and not isinstance(asked, ca.LayerFeaturePermutation)),
    "the neuron's input": Fault(
        option("attribute_to_neuron_input", lambda _: True), lambda asked: hasattr(asked, "neuron")),
    "another neuron": Fault(option("neuron_selector", lambda _: (1, 1, 2)), lambda asked: hasattr(asked, "neuron")),
    "further inputs exchanged": Fault(
        option("additional_forward_args", lambda given: tuple(
            each.detach().flip(0).requires_grad_(each.requires_grad) for each in given)),
        lambda asked: bool(asked.inputs)),
    "hooks not installed": Fault(rectifiers(lambda each: setattr(each, "_register_hooks", lambda _: None)), OVERRIDES),
    "one hook not installed": Fault(
        rectifiers(only_the_first), of(ca.GuidedBackprop, ca.Deconvolution, ca.GuidedGradCam)),
    "the other override": Fault(
        rectifiers(lambda each: setattr(each, "use_relu_grad_output", not each.use_relu_grad_output)), OVERRIDES),
    "units joined": Fault(
        option("layer_mask", lambda _: torch.arange(80).clamp(max=77).reshape(1, 4, 4, 5)),
        of(ca.LayerFeatureAblation, ca.LayerFeaturePermutation)),
    "features joined": Fault(
        option("feature_mask", lambda given: tuple(each.clamp(max=2) for each in given)),
        lambda asked: bool(getattr(asked, "masks", {}))),
    "another stride": Fault(option("strides", lambda _: ((1, 2, 2),)), of(ca.Occlusion)),
    "another window": Fault(option("sliding_window_shapes", lambda _: ((1, 2, 3),)), of(ca.Occlusion)),
    "a draw fewer": Fault(
        option("n_samples", lambda samples: samples - 1), lambda asked: hasattr(asked, "n_samples")),
    "other draws from PyTorch": Fault(
        {"arguments": lambda *_: torch.rand(())},
        lambda asked: isinstance(asked, ca.KernelShap | ca.Lime | ExpectedGradient) or bool(asked.noise)),
    "other draws from NumPy": Fault({"arguments": lambda *_: np.random.uniform()}, of(ExpectedGradient)),
    "another noise": Fault(
        option("stdevs", lambda stdev: 0.4), lambda asked: isinstance(asked, ExpectedGradient) or bool(asked.noise)),
    "other weights": Fault(method(lambda each: setattr(each, "similarity_func", lambda *_, **__: 1.0)), FITS),
    "another penalty": Fault(
        method(lambda each: each.interpretable_model._model.construct_kwargs.update(positive=True)), FITS),
    "another combination": Fault(
        option("nt_type", lambda kind: OTHER_COMBINATION[kind]), lambda asked: bool(asked.noise)),
    "a copy more": Fault(option("nt_samples", lambda samples: samples + 1), lambda asked: bool(asked.noise)),
}  # fmt: skip


def built(asked: Any, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The model of a request; one answers many, since proofs of a model take longer than a check."""
    model: Any = network(asked)[0]().to(dtype)
    inner = model.net if asked in FITTED else model
    OTHER[:] = [inner.a, getattr(inner, "r1", None)]
    return model


def answer(asked: Any, mode: CheckMode, model: nn.Module | None = None, shift: float = 0) -> AttributionResult:
    model = model or built(asked)
    dtype = next(model.parameters()).dtype
    inputs = {name: (tensor + shift).to(dtype) for name, tensor in network(asked)[1].items()}
    return ask(model, inputs, asked, check=CheckRequest(mode), seed=SEED, **targeted(asked)).attributions[0]


def targeted(asked: Any) -> dict[str, Any]:
    of_neuron = hasattr(asked, "neuron") and not isinstance(asked, ca.NeuronConductance)
    return {} if of_neuron else {"target": TARGET}


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("asked", ASKED, ids=named)
def test_a_wrong_answer_is_never_missed(asked: Any, mode: CheckMode) -> None:
    """Whatever is wrong with Captum's answer, or with the passes that it comes from: DISAGREES, with a reason; so is an
    answer to the previous call's inputs, of the right shape and type."""
    found, model = {}, built(asked)
    for what, fault in FAULTS.items():
        if fault.of(asked):
            with spoiled(spoilt(asked), **fault.how):
                got = answer(asked, mode, model)
            assert got.checks[0].reason or verdict(got) is Verdict.AGREES
            found[what] = verdict(got)
    with stale(spoilt(asked)):
        assert verdict(answer(asked, mode, model, shift=1)) is Verdict.AGREES
        found["stale"] = verdict(answer(asked, mode, model))
    assert not [what for what, each in found.items() if each is not Verdict.DISAGREES]
    assert verdict(answer(asked, mode, model)) is Verdict.AGREES


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("asked", TUNNELS, ids=named)
def test_a_fault_inside_of_a_noise_tunnel_is_never_missed(asked: Any, mode: CheckMode) -> None:
    """Each copy's explanation is a hundredth too large, or has its rows exchanged."""
    for what in ("a hundredth too large", "rows exchanged"):
        with spoiled(attr.Saliency, **FAULTS[what].how):
            assert verdict(answer(asked, mode)) is Verdict.DISAGREES


@pytest.mark.parametrize("mode", CHECKED)
def test_the_mean_over_a_wrong_axis_is_never_missed(mode: CheckMode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Grad-CAM's channel weights, averaged over one of the two axes of the image only."""

    class Torch:
        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        @staticmethod
        def mean(values: Tensor, dim: tuple[int, ...], keepdim: bool) -> Tensor:
            return torch.mean(values, dim=dim[:1], keepdim=keepdim)

    monkeypatch.setattr("captum.attr._core.layer.grad_cam.torch", Torch())
    assert verdict(answer(ca.LayerGradCam(layer="b"), mode)) is Verdict.DISAGREES


def test_an_override_that_is_not_installed_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A nonlinearity that Captum differentiates as it is, without a word: DISAGREES."""
    monkeypatch.setattr(attr.DeepLift, "_is_non_linear", lambda self, module: isinstance(module, nn.Tanh))
    assert verdict(ask(MIXED(), X, ca.DeepLift()).attributions[0]) is Verdict.DISAGREES


def half(self: Any, module: Any, inputs: Any, outputs: Any) -> None:
    module.weight.data = module.weight.data + 0.5 * self.gamma * module.weight.data.clamp(min=0)


RULES_GONE_WRONG: dict[str, tuple[type, str, Any, ca.requests.LrpRule]] = {
    "gamma that changes nothing": (lrp_rules.GammaRule, "_manipulate_weights", lambda *_: None, ca.Gamma()),
    "half of gamma": (lrp_rules.GammaRule, "_manipulate_weights", half, ca.Gamma()),
    "alpha that changes nothing": (
        lrp_rules.Alpha1_Beta0_Rule, "_manipulate_weights", lambda *_: None, ca.AlphaOneBetaZero()),
    "epsilon that is not read": (
        lrp_rules.EpsilonRule, "__init__", lambda self, epsilon=1e-9: None, ca.requests.Epsilon(0.5)),
}  # fmt: skip


@pytest.mark.parametrize("fault", list(RULES_GONE_WRONG))
def test_a_rule_gone_wrong_is_never_missed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that Captum applies otherwise than its formula says gives relevance that disagrees."""
    kind, name, change, rule = RULES_GONE_WRONG[fault]
    monkeypatch.setattr(kind, name, change)
    assert verdict(ask(MIXED(), X, ca.LRP(rules={"b": rule, "head": rule})).attributions[0]) is Verdict.DISAGREES


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_a_wrong_attribution_is_not_missed_in_other_data_types(dtype: torch.dtype, mode: CheckMode) -> None:
    """A tolerance for a coarse data type is no licence: a fifth too large is seen in all of them, and a row's sign."""
    model = built(GRADIENTS[0], dtype)
    for asked in GRADIENTS:
        for how in (FAULTS["the sign of one row"].how, values(lambda values: values * 1.2)):
            with spoiled(type(asked), **how):
                assert verdict(answer(asked, mode, model)) is Verdict.DISAGREES, asked


@pytest.mark.parametrize("mode", CHECKED)
def test_a_faint_rows_fault_is_not_hidden_by_a_bright_one(mode: CheckMode) -> None:
    """Each row is measured against itself: a fault in a row a thousand times fainter is a fault."""
    inputs = {**INPUTS, "gain": torch.tensor([1.0, 1e-3, 1.0, 1.0])}
    asked = ca.LayerGradientXActivation(layer="a")
    with spoiled(type(asked), **FAULTS["the sign of one row"].how):
        got = ask(GAINED_IMAGES(), inputs, asked, target=TARGET, check=CheckRequest(mode)).attributions[0]
    assert verdict(got) is Verdict.DISAGREES


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("asked", GRADIENTS, ids=named)
def test_a_row_has_its_own_outcome(asked: Any, mode: CheckMode) -> None:
    """One wrong row of a batch is wrong alone; the others have the verdict that they would have without it."""
    lost = values(lambda values: values.index_put((torch.tensor([1]), torch.tensor([0])), torch.tensor(torch.nan)))
    for how, cause in ((FAULTS["the sign of one row"].how, Cause.UNKNOWN), (lost, Cause.NOT_FINITE)):
        with spoiled(type(asked), **how):
            first, *further = answer(asked, mode).checks
        assert (first.verdict, first.cause) == (Verdict.DISAGREES, cause)
        assert len(first.rows) == 4
        for row, found in enumerate(first.rows):
            wrong = row == 1
            assert (found.verdict, found.cause) == ((Verdict.DISAGREES, cause) if wrong else (Verdict.AGREES, None))
            assert bool(found.reason) == wrong
            assert (found.max_relative_error <= first.tolerance) != wrong
        for check in further:  # whether the sums are what they must be: not of a row whose sum is wrong
            assert [row.verdict is Verdict.AGREES for row in check.rows] == [True, False, True, True]


def test_where_the_fault_is_the_models_no_row_is_excepted() -> None:
    """A batch that agrees, a single row, and a model that couples its rows have one outcome for all."""
    assert not any(check.rows for asked in GRADIENTS for check in answer(asked, CheckMode.SAME_PASS).checks)
    alone = {name: tensor[:1] for name, tensor in INPUTS.items()}
    saliency = GRADIENTS[0]
    with spoiled(attr.Saliency, values=torch.neg):
        found = ask(GAINED_IMAGES(), alone, saliency, target=ca.ClassIndex((0,))).attributions[0].checks[0]
        assert (found.verdict, found.rows) == (Verdict.DISAGREES, ())
    with spoiled(attr.Saliency, **FAULTS["the sign of one row"].how):
        coupled = net(lambda m, x: m.head(x - x.mean(0, keepdim=True)))()
        found = ask(coupled, X, ca.Saliency(), target=TARGET).attributions[0].checks[0]
    assert (found.verdict, found.rows) == (Verdict.DISAGREES, ())


def test_rows_whose_targets_are_exchanged_are_named() -> None:
    """The others were explained by the passes of the method."""
    with spoiled(attr.Saliency, **FAULTS["targets exchanged between rows"].how):
        found = answer(GRADIENTS[0], CheckMode.SAME_PASS).checks[0]
    other = Cause.OTHER_PASSES
    assert (found.cause, [row.cause for row in found.rows]) == (other, [None, other, other, None])


@pytest.mark.parametrize("mode", CHECKED)
def test_the_callers_tolerance_holds_and_is_stated(mode: CheckMode) -> None:
    """A tolerance of the caller's decides and comes back; a fault below it agrees, one above it does not; the numbers
    beside the verdict are those of the comparison."""
    verdicts = []
    for tolerance in (0.05, 0.001):
        check = CheckRequest(mode, relative_tolerance=tolerance)
        with spoiled(attr.LayerGradCam, **FAULTS["a hundredth too large"].how):
            (got,) = ask(GAINED_IMAGES(), INPUTS, ca.LayerGradCam(layer="b"), target=TARGET, check=check).attributions
        assert got.checks[0].tolerance == tolerance
        assert got.checks[0].max_relative_error == pytest.approx(0.01, rel=1e-3)
        assert got.checks[0].cosine == pytest.approx(1.0)
        verdicts.append(verdict(got))
    assert verdicts == [Verdict.AGREES, Verdict.DISAGREES]


def test_passes_that_captum_runs_elsewhere_are_told() -> None:
    """Where Captum runs more or fewer passes than the method is made of, or on other inputs, that is the cause."""
    for asked, what in (
        (of_units("b")[0], "units joined"),
        (of_units("b")[0], "another input"),
        (ASKED[1], "another input"),
    ):
        with spoiled(type(asked), **FAULTS[what].how):
            check = answer(asked, CheckMode.SAME_PASS).checks[0]
        assert (check.verdict, check.cause) == (Verdict.DISAGREES, Cause.OTHER_PASSES)


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("asked", [ASKED[1], ca.LayerGradCam(layer="b")], ids=named)
def test_the_reference_is_what_captum_should_have_returned(asked: Any, mode: CheckMode) -> None:
    """Whatever a fault makes of the values, and also where Captum runs other passes; in float64, and only if asked."""
    right = answer(asked, CheckMode.OFF)
    assert not answer(asked, mode).references
    two_rows: Any = {"inputs": lambda x: torch.cat([x[:1], x[1:3] + 1, x[3:]])}
    for how in (FAULTS["a hundredth too large"].how, FAULTS["another input"].how, two_rows):
        check = CheckRequest(mode, references=True)
        with spoiled(type(asked), **how):
            (got,) = ask(GAINED_IMAGES(), INPUTS, asked, target=TARGET, check=check).attributions
        assert verdict(got) is Verdict.DISAGREES
        assert got.references.keys() == right.values.keys()
        for name, values in right.values.items():
            assert got.references[name].dtype == np.float64
            np.testing.assert_allclose(got.references[name], values, rtol=1e-4, atol=1e-5 * np.abs(values).max())
            assert not np.allclose(got.values[name], values, rtol=1e-3)


def test_references_need_a_check() -> None:
    """What cannot be given is refused."""
    check = CheckRequest(CheckMode.OFF, references=True)
    with pytest.raises(ca.CutawayError, match="there is no reference") as refused:
        ask(GAINED_IMAGES(), INPUTS, ASKED[0], target=TARGET, check=check)
    assert refused.value.field == "check.references"
