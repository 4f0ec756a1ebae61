"""What cannot be explained is refused, with the reason, the field at fault and words that say what would do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from captum.attr._utils.custom_modules import Addition_Module
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import CheckMode, CheckRequest, Epsilon, Infidelity, Neuron, SensitivityMax, field_name
from cutaway.contract.wire import requests as wire_requests
from cutaway.engine.passes.features import MAX_EVALUATIONS
from tests.support.attribution_models import (
    GAINED_IMAGES,
    IMAGE,
    MIXED,
    RECTIFIED,
    In,
    X,
    expected_gradients,
    images,
    in_place,
    linear,
    net,
    of_neuron,
    of_units,
    paths,
    pooled,
    samples,
)
from tests.support.checked_attributions import MLP, Build, ask, noise, wired
from tests.support.plain_captum import reads_lists
from tests.support.state_snapshot import untouched

VALUE, SHAPE, UNKNOWN, UNFIT = "INVALID_VALUE", "INPUT_SHAPE", "INPUT_UNKNOWN", "METHOD_INAPPLICABLE"
UNIT = Neuron("b", (2,))
NAN, INF = float("nan"), float("inf")
TUNNEL = ca.NoiseTunnel(n_samples=3, stdev=0.5)
DRAWN = expected_gradients(Neuron("a", (2,)), {"x": (8,)})[0]
INPUTS = {"x": noise(2, 8), "ids": torch.ones(2, 3, dtype=torch.int64), "gain": torch.ones(2), "wide": noise(2, 5000)}


def mask(*shape: int, dtype: Any = np.int64) -> Any:
    return {"x": np.zeros(shape, dtype)}


def zeros(*shape: int, dtype: Any = np.float32) -> Any:
    return {"x": np.zeros(shape, dtype)}


def drawn(**changes: Any) -> Any:
    return replace(DRAWN, **changes)


def relevance(name: str = "a", rule: Any = None) -> Any:
    return ca.LRP(rules={"gelu": ca.RelevanceIdentity(), "norm": Epsilon(), **({name: rule} if rule else {})})


def noisy(asked: Any, **changes: Any) -> Any:
    return replace(asked, noise=replace(TUNNEL, **changes))


def windows(*window: int, **more: Any) -> Any:
    return ca.Occlusion(windows={"x": window}, **more)


def judged(asked: Any, metric: Any) -> Any:
    return replace(asked, metrics=(SensitivityMax(), metric))


SALIENCY = ca.Saliency(inputs=("x",))
OF_IDS = ca.FeatureAblation(inputs=("ids",))
EARLY: dict[str, tuple[Any, str, str, str]] = {
    "an unknown input": (ca.DeepLift(inputs=("z",)), UNKNOWN, "inputs", "no input 'z'"),
    "a baseline of another shape": (
        ca.DeepLift(baselines=zeros(3, 8)), SHAPE, "deep_lift.baselines.by_input.x", "[1, 8]"),
    "a baseline of another shape, of a neuron": (
        ca.NeuronConductance(neuron=UNIT, baselines=zeros(1, 7)), SHAPE, "neuron_conductance.path.baselines.by_input.x",
        "[1, 8]"),
    "a baseline of another shape, on a path": (
        ca.InternalInfluence(layer="b", inputs=("x",), baselines=zeros(1, 2)), SHAPE,
        "internal_influence.path.baselines.by_input.x", "[1, 8]"),
    "a baseline of another shape, of a perturbation": (
        ca.FeatureAblation(baselines=zeros(1, 7)), SHAPE, "feature_ablation.baselines.by_input.x", "[1, 8]"),
    "a baseline of another type": (
        windows(2, baselines=zeros(1, 8, dtype=bool)), "INPUT_DTYPE", "occlusion.baselines.by_input.x", "bool"),
    "a baseline that float32 cannot hold": (
        windows(2, baselines={"x": np.full((1, 8), 1e300)}), "INVALID_VALUE", "occlusion.baselines.by_input.x",
        "holds 1e+300, which float32 cannot hold"),
    "a number that float32 cannot hold": (
        windows(2, baselines={"": 1e300}), "INVALID_VALUE", "occlusion.baselines.by_input.x",
        "which float32 cannot hold"),
    "a baseline for nothing": (
        ca.ShapleyValues(baselines={"z": 0.0}), UNKNOWN, "shapley_values.baselines.by_input.z", "not explained"),
    "a baseline for nothing, of a fit": (
        ca.KernelShap(baselines={"z": 0.0}), UNKNOWN, "kernel_shap.baselines.by_input.z", "not explained"),
    "a baseline for nothing, on a path": (
        ca.LayerConductance(layer="b", inputs=("x",), baselines={"y": 1.0}), UNKNOWN,
        "layer_conductance.path.baselines.by_input.y", "not explained"),
    "half a token": (
        replace(OF_IDS, baselines={"ids": 0.5}), "INPUT_DTYPE", "feature_ablation.baselines.by_input.ids", "0.5"),
    "one sample": (
        ca.DeepLiftShap(baselines=zeros(1, 8)), VALUE, "deep_lift_shap.baselines.by_input.x",
        "send two or more, or ask DeepLift"),
    "one sample, of a layer": (
        ca.LayerDeepLiftShap(layer="a", inputs=("x",), baselines=zeros(1, 8)), VALUE,
        "layer_deep_lift_shap.baselines.by_input.x", "send two or more, or ask LayerDeepLift"),
    "no distribution": (drawn(baselines={}), VALUE, "gradient_shap.baselines.by_input.x", "no distribution"),
    "samples of another shape": (drawn(baselines=zeros(5, 7)), SHAPE, "gradient_shap.baselines.by_input.x", "[5, 7]"),
    "no draw": (drawn(n_samples=0), VALUE, "gradient_shap.n_samples", "from 1 to 4096"),
    "too many draws": (drawn(n_samples=10**6), VALUE, "gradient_shap.n_samples", "from 1 to 4096"),
    "noise below nothing": (drawn(stdev=-1.0), VALUE, "gradient_shap.stdev", "from 0 up"),
    "noise that is no number": (drawn(stdev=NAN), VALUE, "gradient_shap.stdev", "from 0 up"),
    "no such layer, of draws": (
        expected_gradients(Neuron("z", ()), {"x": (8,)})[1], "MODULE_NOT_FOUND", "layer_gradient_shap.layer", "'z'"),
    "no such layer, on a path": (
        ca.LayerConductance(layer="z", inputs=("x",)), "MODULE_NOT_FOUND", "layer_conductance.layer", "'z'"),
    "no such layer, of Grad-CAM": (ca.GuidedGradCam(layer="z"), "MODULE_NOT_FOUND", "guided_grad_cam.layer", "'z'"),
    "no steps": (ca.LayerConductance(layer="b", n_steps=0), VALUE, "layer_conductance.path.n_steps", "takes 1"),
    "no steps, to a neuron": (
        ca.NeuronIntegratedGradients(neuron=UNIT, n_steps=0), VALUE, "neuron_integrated_gradients.path.n_steps",
        "takes 1"),
    "too many steps": (
        ca.NeuronConductance(neuron=UNIT, n_steps=10_001), VALUE, "neuron_conductance.path.n_steps", "1 to 10000"),
    "too many steps, at a layer": (
        ca.InternalInfluence(layer="b", n_steps=20_000), VALUE, "internal_influence.path.n_steps", "1 to 10000"),
    "one step between two ends": (
        ca.LayerIntegratedGradients(layer="b", n_steps=1, quadrature=ca.Quadrature.RIEMANN_LEFT), VALUE,
        "layer_integrated_gradients.path.n_steps", "2"),
    "a neuron and a target": (
        ca.NeuronGradient(neuron=UNIT, target=ca.ClassIndex((0,))), VALUE, "target", "leave the target out"),
    "a layer and inputs": (ca.LayerFeatureAblation(layer="a", inputs=("x",)), VALUE, "inputs", "leave the inputs out"),
    "a layer and inputs, exchanged": (
        ca.LayerFeaturePermutation(layer="a", inputs=("x",)), VALUE, "inputs", "leave the inputs out"),
    "a baseline of units that is no number": (
        ca.LayerFeatureAblation(layer="a", baseline=NAN), VALUE, "layer_feature_ablation.baseline", "a finite number"),
    "an endless baseline of units": (
        ca.LayerFeatureAblation(layer="a", baseline=-INF), VALUE, "layer_feature_ablation.baseline", "a finite number"),
    "a mask of another shape": (
        ca.FeatureAblation(masks=mask(1, 7)), SHAPE, "feature_ablation.masks.by_input.x", "[1, 8]"),
    "a mask of another shape, of a neuron": (
        ca.NeuronFeatureAblation(neuron=UNIT, masks=mask(1, 7)), SHAPE, "neuron_feature_ablation.masks.by_input.x",
        "[1, 8]"),
    "a mask of another shape, of a fit": (ca.Lime(masks=mask(1, 7)), SHAPE, "lime.masks.by_input.x", "[1, 8]"),
    "a mask of another batch": (ca.ShapleyValues(masks=mask(3, 8)), SHAPE, "shapley_values.masks.by_input.x", "[2, 8]"),
    "a mask of floats": (
        ca.FeatureAblation(masks=mask(1, 8, dtype=np.float32)), "INPUT_DTYPE", "feature_ablation.masks.by_input.x",
        "integers"),
    "a mask for nothing": (
        ca.FeatureAblation(masks={"z": np.zeros((1, 8), np.int64)}), UNKNOWN, "feature_ablation.masks.by_input.z",
        "explained"),
    "a mask for each row, exchanged between rows": (
        ca.FeaturePermutation(masks=mask(2, 8)), SHAPE, "feature_permutation.masks.by_input.x", "one row"),
    "a window too large": (windows(9), SHAPE, "occlusion.windows.x", "does not fit"),
    "a window of nothing": (windows(0), SHAPE, "occlusion.windows.x", "does not fit"),
    "a window of two axes": (windows(2, 2), SHAPE, "occlusion.windows.x", "one for each axis"),
    "no window": (ca.Occlusion(windows={}), SHAPE, "occlusion.windows.x", "one for each axis"),
    "a window for nothing": (
        ca.Occlusion(windows={"x": (1,), "z": (1,)}), UNKNOWN, "occlusion.windows.z", "not explained"),
    "a window where there is no axis": (
        ca.Occlusion(inputs=("gain",), windows={"gain": ()}), SHAPE, "occlusion.windows.gain", "no axis"),
    "a stride of 0": (windows(2, strides={"x": (0,)}), VALUE, "occlusion.strides.x", "from 1 up"),
    "a stride that leaves gaps": (windows(2, strides={"x": (3,)}), VALUE, "occlusion.strides.x", "gaps"),
    "strides of two axes": (windows(2, strides={"x": (1, 1)}), SHAPE, "occlusion.strides.x", "one for each axis"),
    "too many orders": (ca.ShapleyValues(), VALUE, "shapley_values.masks", f"at most {MAX_EVALUATIONS}"),
    "too many samples": (
        ca.ShapleyValueSampling(n_samples=2000), VALUE, "shapley_value_sampling.n_samples",
        f"at most {MAX_EVALUATIONS}"),
    "no sample": (ca.ShapleyValueSampling(n_samples=0), VALUE, "shapley_value_sampling.n_samples", "from 1 up"),
    "no sample of a fit": (ca.KernelShap(n_samples=0), VALUE, "kernel_shap.n_samples", "from 1 up"),
    "too many samples of a fit": (ca.Lime(n_samples=10_000), VALUE, "lime.n_samples", "take fewer samples"),
    "one feature to fit": (ca.KernelShap(masks=mask(1, 8)), VALUE, "kernel_shap.masks", "FeatureAblation"),
    "too many features to fit": (ca.Lime(inputs=("wide",)), VALUE, "lime.masks", "group elements"),
    "no rule": (ca.LRP(rules={"norm": Epsilon()}), UNFIT, "lrp.rules", "'gelu' is a GELU"),
    "no rule, at a layer": (ca.LayerLRP(layer="a"), UNFIT, "layer_lrp.rules", "rules['"),
    "a rule for an unknown module": (
        relevance("aa", Epsilon()), "MODULE_NOT_FOUND", "lrp.rules.aa", "no module is named 'aa'"),
    "a rule for a container": (relevance("box", Epsilon()), VALUE, "lrp.rules.box", "made of other modules"),
    "a negative gamma": (relevance("a", ca.Gamma(-0.1)), VALUE, "lrp.rules.a.gamma", "from 0"),
    "a gamma that is no number": (relevance("a", ca.Gamma(NAN)), VALUE, "lrp.rules.a.gamma", "from 0"),
    "no epsilon": (relevance("a", Epsilon(0.0)), VALUE, "lrp.rules.a.epsilon", "above 0"),
    "an infinite epsilon": (relevance("a", Epsilon(INF)), VALUE, "lrp.rules.a.epsilon", "above 0"),
    "a rule that Captum would ignore": (relevance("r", Epsilon()), VALUE, "lrp.rules.r", "unchanged"),
    "a rule that does not fit": (relevance("norm", ca.AlphaOneBetaZero()), VALUE, "lrp.rules.norm", "BatchNorm1d"),
    "a layer without relevance": (
        ca.LayerLRP(layer="r", rules=relevance().rules), UNFIT, "layer_lrp.layer", "have a rule"),
    "relevance of a container": (
        ca.LayerLRP(layer="box", rules=relevance().rules), UNFIT, "layer_lrp.layer", "'box' is a Sequential"),
    "noise on draws": (noisy(DRAWN), UNFIT, "noise_tunnel", "GradientShap draws random numbers"),
    "noise on exchanged rows": (
        noisy(ca.FeaturePermutation()), UNFIT, "noise_tunnel", "FeaturePermutation draws random numbers"),
    "noise on exchanged units": (
        noisy(ca.LayerFeaturePermutation(layer="a")), UNFIT, "noise_tunnel", "draws random numbers"),
    "noise on a fit": (noisy(ca.KernelShap()), UNFIT, "noise_tunnel", "KernelShap draws random numbers"),
    "noise on whole numbers": (noisy(OF_IDS), UNFIT, "noise_tunnel", "'ids', which is int64"),
    "noise on whole numbers at a layer's ends": (
        noisy(ca.LayerIntegratedGradients(layer="a", inputs=("ids",))), UNFIT, "noise_tunnel", "'ids', which is int64"),
    "other samples than rows, and noise": (
        noisy(ca.DeepLiftShap(baselines=zeros(3, 8))), UNFIT, "noise_tunnel", "3 for 2"),
    "no copy": (noisy(SALIENCY, n_samples=0), VALUE, "noise_tunnel.n_samples", "from 1 to 4096"),
    "too many copies": (noisy(SALIENCY, n_samples=5000), VALUE, "noise_tunnel.n_samples", "from 1 to 4096"),
    "copies' noise below nothing": (noisy(SALIENCY, stdev=-0.1), VALUE, "noise_tunnel.stdev", "from 0 up"),
    "copies' endless noise": (noisy(SALIENCY, stdev=INF), VALUE, "noise_tunnel.stdev", "from 0 up"),
    "a layer's infidelity": (
        judged(ca.LayerActivation(layer="a"), Infidelity()), UNFIT, "metrics[1]", "use sensitivity_max"),
    "the sensitivity of whole numbers": (
        judged(OF_IDS, SensitivityMax()), UNFIT, "metrics[0]", "'ids', which is int64"),
    "the infidelity of whole numbers": (
        replace(OF_IDS, metrics=(Infidelity(),)), UNFIT, "metrics[0]", "'ids', which is int64"),
    "a metric without samples": (
        judged(SALIENCY, Infidelity(n_samples=0)), VALUE, "metrics[1].infidelity.n_samples", "from 1 to 4096"),
    "a metric of too many samples": (
        judged(SALIENCY, SensitivityMax(n_samples=9999)), VALUE, "metrics[1].sensitivity_max.n_samples",
        "from 1 to 4096"),
    "a metric without noise": (
        judged(SALIENCY, Infidelity(stdev=0.0)), VALUE, "metrics[1].infidelity.stdev", "above 0"),
    "a metric without a ball": (
        judged(SALIENCY, SensitivityMax(radius=NAN)), VALUE, "metrics[1].sensitivity_max.radius", "above 0"),
}  # fmt: skip
ROWS = (ca.Scale("a", factor=2.0, rows=(0,)),)
EDITED: dict[str, tuple[Any, tuple[ca.Edit, ...], str, str, str]] = {
    "one row's edit": (ca.DeepLift(), ROWS, UNFIT, "deep_lift", "edit all rows alike"),
    "a tensor": (ca.DeepLift(), (ca.Replace("a", tensor=np.zeros((1, 8), np.float32)),), UNFIT, "deep_lift",
        "edit all rows alike"),
    "exchanged rows": (
        ca.DeepLift(), (ca.Mix("a", weight=0.5, permutation=(1, 0)),), UNFIT, "deep_lift", "edit all rows alike"),
    "the gradient that is overridden": (
        ca.DeepLift(), (ca.Scale("r", "grad_input", factor=2.0),), "EDIT_INAPPLICABLE", "deep_lift",
        "it can do one only"),
    "one row's edit, of draws": (DRAWN, ROWS, UNFIT, "gradient_shap", "edit all rows alike"),
    "one row's edit, of a layer's draws": (
        expected_gradients(UNIT, {"x": (8,)})[1], ROWS, UNFIT, "layer_gradient_shap", "edit all rows alike"),
    "one row's edit, of a neuron's draws": (
        expected_gradients(UNIT, {"x": (8,)})[2], ROWS, UNFIT, "neuron_gradient_shap", "edit all rows alike"),
    "the gradient that guided backpropagation overrides": (
        ca.GuidedBackprop(), (ca.Scale("r", "grad_input", factor=2.0),), "EDIT_INAPPLICABLE", "guided_backprop",
        "it can do one only"),
    "the gradient that a neuron's guided backpropagation overrides": (
        ca.NeuronGuidedBackprop(neuron=UNIT), (ca.Scale("r", "grad_input", factor=2.0),), "EDIT_INAPPLICABLE",
        "neuron_guided_backprop", "it can do one only"),
    "the gradient that a neuron's deconvolution overrides": (
        ca.NeuronDeconvolution(neuron=UNIT), (ca.Scale("r", "grad_input", factor=2.0),), "EDIT_INAPPLICABLE",
        "neuron_deconvolution", "it can do one only"),
    "a gradient that is relevance": (
        relevance(), (ca.Zero("a", "grad_output"),), "EDIT_INAPPLICABLE", "lrp", "what flows back here is relevance"),
    "an edit beside changed weights": (
        relevance("a", ca.Gamma()), (ca.Zero("norm"),), "EDIT_INAPPLICABLE", "lrp", "other weights"),
}  # fmt: skip
LABELS = ca.CrossEntropy((0, 1))
NUMBERS: dict[str, tuple[Any, ca.Target, str, str]] = {
    "labels": (ca.DeepLift(), LABELS, UNFIT, "the target's rows have other numbers"),
    "a cotangent": (
        ca.DeepLift(), ca.Cotangent(np.ones((2, 3), np.float32)), UNFIT, "the target's rows have other numbers"),
    "labels, and draws": (DRAWN, LABELS, UNFIT, "ask for a class"),
    "labels, and a layer's draws": (expected_gradients(UNIT, {"x": (8,)})[1], LABELS, UNFIT, "ask for a class"),
    "labels, and a conductance": (
        ca.LayerConductance(layer="b", inputs=("x",)), LABELS, UNFIT, "ask InternalInfluence"),
    "labels, and a fit": (ca.KernelShap(), LABELS, UNFIT, "one example a request"),
}  # fmt: skip


def silent() -> nn.Module:
    """A model of many kinds of modules that must not run."""
    return net(
        lambda m, **given: pytest.fail("the model ran"), r=nn.ReLU, gelu=nn.GELU, norm=lambda: nn.BatchNorm1d(8),
        box=lambda: nn.Sequential(nn.Tanh()),
    )()  # fmt: skip


def refused(model: nn.Module, inputs: dict[str, Tensor], asked: Any, **more: Any) -> ca.CutawayError:
    """Returns the error; the model is as before."""
    with untouched(model), pytest.raises(ca.CutawayError) as failure:
        ask(model, inputs, asked, **more)
    return failure.value


def about_x(asked: Any) -> Any:
    return asked if asked.inputs or hasattr(asked, "layer") else replace(asked, inputs=("x",))


def early(asked: Any, reason: str, field: str, words: str, **more: Any) -> None:
    failure = refused(silent(), INPUTS, about_x(asked), **more)
    assert isinstance(failure, ca.InvalidArgument)
    assert (failure.reason, failure.field) == (reason, f"attributions[0].{field}")
    assert words in failure.message


@pytest.mark.parametrize("name", list(EARLY))
def test_what_cannot_be_asked_is_refused_before_anything_runs(name: str) -> None:
    early(*EARLY[name])


@pytest.mark.parametrize("name", list(EDITED))
def test_an_edit_that_captum_cannot_keep_is_refused_before_anything_runs(name: str) -> None:
    """Inputs, baselines and steps are one batch: rows have no numbers of their own there."""
    asked, edits, *expected = EDITED[name]
    early(asked, *expected, edits=edits)


@pytest.mark.parametrize("name", list(NUMBERS))
def test_a_target_with_numbers_of_its_own_for_each_row_is_refused(name: str) -> None:
    """Such a target would be read from other rows."""
    asked, target, reason, words = NUMBERS[name]
    failure = refused(MIXED(), {"x": INPUTS["x"]}, asked, target=target)
    assert failure.reason == reason
    assert words in failure.message


class Keyword(nn.Module):
    """Calls what it holds by keyword."""

    def __init__(self, held: nn.Module) -> None:
        super().__init__()
        self.held = held

    def forward(self, x: Tensor) -> Tensor:
        return self.held(input=x)


def shared_weight() -> nn.Module:
    model: Any = MIXED()
    model.b.weight = model.a.weight
    return model


def with_attribute() -> nn.Module:
    model: Any = MIXED()
    model.b.rule = "sum"
    return model


def doubly(each: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Sequential(each), nn.Sequential(each))


PLAIN = net(lambda m, x: m.head(m.a(x)))
TIME_FIRST = wired(lambda m, x: m.head(m.a(x.transpose(0, 1)).mean(0)), a=linear(), head=linear(8, 3))
MERGED = wired(
    lambda m, x: m.head(m.a(x.flatten(0, 1)).unflatten(0, (len(x), -1)).mean(1)), a=linear(), head=linear(8, 3)
)
TIMES: Any = {"x": noise(2, 6, 8)}
DISTRIBUTION = {"x": samples(6, 8)}
IN_PLACE = images(lambda m, x: m.head(m.r(m.b(m.r(m.a(x)))).mean((2, 3))), r=in_place)
HALF = {"x": X["x"].half()}
TWO = {**X, "y": noise(4, 8, seed=2)}
JUST_LIFT = ca.DeepLift(baselines={"x": 0.5})
LATE: dict[str, tuple[Build, dict[str, Tensor], Any, str, str]] = {
    "a nonlinearity called by keyword": (
        net(lambda m, x: m.head(m.k(m.a(x))), k=lambda: Keyword(nn.ReLU())), X, JUST_LIFT, UNFIT,
        "'k.held' takes something else"),
    "a pool that returns indices": (
        images(lambda m, x: m.head(m.p(m.a(x))[0].mean((2, 3))), p=lambda: nn.MaxPool2d(2, return_indices=True)),
        IMAGE, JUST_LIFT, UNFIT, "'p' returns something else than one tensor"),
    "a pool with dilated windows": (
        pooled(lambda: nn.MaxPool2d(2, dilation=2)), IMAGE, JUST_LIFT, UNFIT, "the windows of 'p' are dilated"),
    "one nonlinearity in two places": (
        net(lambda m, x: m.head(m.two[0](m.a(x))), two=lambda: doubly(nn.ReLU())), X, JUST_LIFT, UNFIT,
        "the module 'two.0.0' is registered as 'two.1.0' too"),
    "a batch of one size": (
        net(lambda m, x: m.head(m.a(x).reshape(4, 8))), X, JUST_LIFT, UNFIT, "of 8 rows, and the model's forward"),
    "no row for each example": (
        net(lambda m, x: m.head(m.a(x))[:4]), X, JUST_LIFT, UNFIT,
        "for 8 rows 'output' has shape [4, 3]: axis 0 must be the batch"),
    "a nonlinearity that no explained input leads to": (
        net(lambda m, x, y: m.head(x * m.g(y)), g=nn.Sigmoid), TWO, ca.DeepLift(inputs=("x",)), UNFIT,
        "explain y as well"),
    "steps before rows, from a distribution": (
        TIME_FIRST, TIMES, ca.LayerDeepLiftShap(layer="a", baselines=DISTRIBUTION), UNFIT,
        "axis 0 of what the layer 'a' returns is not the batch"),
    "a recurrent layer": (
        wired(lambda m, x: m.head(m.a(x)[0].mean(1)), a=lambda: nn.LSTM(8, 8, batch_first=True), head=linear(8, 3)),
        TIMES, ca.LayerDeepLift(layer="a"), UNFIT, "the layer 'a' returns tensors inside of a tuple"),
    "steps before rows": (
        TIME_FIRST, TIMES, ca.LayerDeepLift(layer="a"), UNFIT, "is not the batch, but axis 1 is"),
    "draws at a layer without rows": (
        MERGED, TIMES, ca.LayerGradientShap(layer="a", baselines=DISTRIBUTION, n_samples=3), UNFIT,
        "axis 0 is not the batch of 2"),
    "the sensitivity of a layer without rows": (
        MERGED, TIMES, ca.LayerActivation(layer="a", metrics=(SensitivityMax(),)), UNFIT,
        "axis 0 is not the batch of 2"),
    "draws, in coarse floats": (
        lambda: PLAIN().half(), HALF, drawn(baselines=zeros(2, 8, dtype=np.float16)), UNFIT, "float16"),
    "noise, in coarse floats": (lambda: RECTIFIED().half(), HALF, noisy(SALIENCY), UNFIT, "float16"),
    "noise on a model of ids alone": (
        wired(lambda m, ids: m.head(m.words(ids).mean(1)), words=lambda: nn.Embedding(5, 4), head=linear(4, 3)),
        {"ids": INPUTS["ids"]}, noisy(ca.LayerActivation(layer="words")), UNFIT, "int64"),
    "inputs without floats that are not named": (
        wired(lambda m, x: m.head(x.float()), head=linear(5, 3)), {"x": torch.ones(2, 5, dtype=torch.int64)},
        ca.FeatureAblation(), VALUE, "no input is a float or the ids of an embedding"),
    "a baseline of units beyond the data type": (
        lambda: MLP().half(), HALF, ca.LayerFeatureAblation(layer="a", baseline=1e5), VALUE, "no number of float16"),
    "a map that fits no input": (
        GAINED_IMAGES, {**IMAGE, "gain": noise(4)}, ca.GuidedGradCam(layer="b"), UNFIT,
        "cannot be scaled to the input 'gain', of shape [4]"),
    "a layer changed in place behind, replaced by leaves": (
        IN_PLACE, IMAGE, paths()[2], UNFIT, "changes in place: explain the module that does so"),
    "a layer called twice, under relevance": (
        net(lambda m, x: m.head(m.r(m.a(m.r(m.a(x))))), r=nn.ReLU), X, ca.LRP(), UNFIT, "'a' is called 2 times"),
    "a layer in two places, under relevance": (
        net(lambda m, x: m.head(m.box(m.a(x))), box=lambda: doubly(nn.Linear(8, 8))), X, ca.LRP(), UNFIT, "box.0.0"),
    "a weight in two layers": (shared_weight, X, ca.LRP(rules={"a": ca.Gamma()}), UNFIT, "'b' shares"),
    "an attribute in the way": (with_attribute, X, ca.LRP(), UNFIT, "'b' has an attribute 'rule'"),
    "an identity that changes the shape": (
        MIXED, X, ca.LRP(rules={"head": ca.RelevanceIdentity()}), UNFIT, "same shape, and one of these does not: head"),
    "the relevance of a loss": (MIXED, {"x": X["x"][:1]}, ca.LRP(target=ca.CrossEntropy((0,))), UNFIT, "one element"),
    "the relevance of a sum": (MIXED, X, ca.LRP(target=ca.OutputSum()), UNFIT, "one element"),
    "the relevance of a neuron": (
        MIXED, X, ca.LRP(target=Neuron("a", (1,))), UNFIT, "a neuron is none: explain a class"),
    "a constant with relevance": (
        net(lambda m, x: m.head(m.add(m.a(x), torch.ones(1, 8))), add=Addition_Module), X, ca.LRP(), UNFIT,
        "on no input"),
    "a layer beside the target": (
        net(lambda m, x: {"y": m.head(x), "z": m.a(x)}), X, ca.LayerLRP(layer="a"), "NOT_DIFFERENTIABLE",
        "does not depend on 'a'"),
    **{
        f"{asked.layer_path or 'a layer'} of which a state is not read, {type(asked).__name__}": (
            net(lambda m, x: m.head(m.cells(x)[0]), cells=lambda: nn.GRU(8, 8)), X, asked, "NOT_DIFFERENTIABLE", words)
        for asked, words in (
            (ca.LayerGradientXActivation(layer="cells"), "each tensor that the layer 'cells' returns"),
            (ca.LayerGradCam(layer="cells"), "name one that it depends on by layer_path, of [0], [1]"),
            (ca.InternalInfluence(layer="cells", layer_path="[1]"), "does not depend on [1] of the layer 'cells'"),
        )
    },
    "relevance of token ids": (
        wired(lambda m, ids: m.head(m.flat(m.words(ids))), words=lambda: nn.Embedding(9, 2), head=linear(6, 3),
              flat=nn.Flatten),
        {"ids": INPUTS["ids"]}, ca.LayerLRP(layer="head", rules={"flat": Epsilon()}), UNFIT, "'words' is a Embedding"),
    "relevance of a model of one custom module": (wired(lambda m, x: x * 2), X, ca.LRP(), UNFIT, "without modules"),
    **{
        f"an input that the neuron does not depend on, {type(asked).__name__}": (
            net(lambda m, x, y: m.head(m.b(x)) + m.head(m.a(y))), TWO, asked, "NOT_DIFFERENTIABLE",
            "neuron [2] of 'b'")
        for asked in of_neuron(UNIT)[:7]
    },
}  # fmt: skip


@pytest.mark.parametrize("name", list(LATE))
def test_what_captum_cannot_do_is_said_of_the_model(name: str) -> None:
    """In every mode, with the place and what is the matter with it; Captum's own words, which name no module, reach
    nobody."""
    build, inputs, asked, reason, words = LATE[name]
    for mode in CheckMode:
        failure = refused(build(), inputs, asked, check=CheckRequest(mode))
        assert (failure.reason, failure.field[:15]) == (reason, "attributions[0]")
        assert words in failure.message


CONDUCTANCE = ca.LayerConductance(layer="b", inputs=("x",))
LATE_EDITS: dict[str, tuple[Any, ca.Edit, str]] = {
    "a row's, under a conductance": (CONDUCTANCE, ca.Mix("a", weight=0.5, permutation=(1, 0, 3, 2)), "ask Internal"),
    "a row's, under a fit": (ca.KernelShap(), ca.Zero("a", rows=(1,)), "one example a request"),
    "a tensor, under a fit": (
        ca.KernelShap(), ca.Add("a", addend=np.ones((4, 8), np.float32)), "one example a request"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(LATE_EDITS))
def test_rows_that_differ_by_more_than_their_inputs_are_sent_one_by_one(name: str) -> None:
    asked, edit, words = LATE_EDITS[name]
    failure = refused(MIXED(), X, asked, edits=(edit,))
    assert (failure.reason, words in failure.message) == (UNFIT, True)


BOXES: dict[str, Any] = {
    "dict": lambda each: {"h": each},
    "nested": lambda each: ((each,),),
    "two": lambda each: (each, each),
    "none": lambda each: (each, None),
    "list": lambda each: [each],
    "ints": lambda each: (each > 0).long(),
    "rows behind": lambda each: each.T,
    "merged": lambda each: each.reshape(-1, 2),
    "large": lambda each: each.repeat(1, 1 + MAX_EVALUATIONS // 8),
}


def boxed(m: Any, x: Tensor) -> Tensor:
    for name in BOXES:
        m.get_submodule(name)(x)
    (_,) = m.list(x)
    m.r(m.a(x))
    m.r(m.a(x)[:, :5])
    return m.head(m.b(x))


BOXED = net(boxed, r=nn.ReLU, silent=nn.Identity, **{name: lambda box=box: In(box) for name, box in BOXES.items()})
LAYERS: dict[str, tuple[str, str]] = {
    "z": ("MODULE_NOT_FOUND", "no module is named 'z'"),
    "silent": (UNFIT, "never called its module 'silent'"),
    "dict": (UNFIT, "needs one that returns"),
    "nested": (UNFIT, "needs one that returns"),
    "none": (UNFIT, "returns something besides a tensor"),
    "list": (UNFIT, "by a bare tensor, on which the model fails"),
    "ints": (UNFIT, "returns a tensor of int64"),
    "merged": (UNFIT, "axis 0 is not the batch of 4"),
    "r": (UNFIT, "called 2 times and returns the shapes [4, 8], [4, 5]"),
    "large": (VALUE, f"units, and a forward pass is run for each, at most {MAX_EVALUATIONS}"),
}


@pytest.mark.parametrize("layer", list(LAYERS))
def test_a_layer_without_units_is_refused_with_the_field_at_fault(layer: str) -> None:
    """Every method refuses it in the same words; a Captum that cannot read a list needs no trial."""
    reason, words = LAYERS["none" if layer == "list" and not reads_lists() else layer]
    for asked in of_units(layer):
        failure = refused(BOXED(), X, asked)
        assert (failure.reason, failure.field) == (reason, f"attributions[0].{field_name(type(asked))}.layer")
        assert words in failure.message


NEURONS: dict[str, tuple[Neuron, str, str, str]] = {
    "no such module": (Neuron("z", (0,)), "MODULE_NOT_FOUND", ".neuron.module", "no module is named 'z'"),
    "never called": (Neuron("silent", (0,)), UNFIT, ".neuron.module", "never called its module 'silent'"),
    "outside": (Neuron("b", (8,)), "TARGET_RANGE", ".neuron.index", "outside of the axes [8]"),
    "from the end": (Neuron("b", (-1,)), "TARGET_RANGE", ".neuron.index", "outside of the axes [8]"),
    "an axis too few": (Neuron("b", ()), "TARGET_SHAPE", ".neuron.index", "0 indices for the 1 axes"),
    "an axis too many": (Neuron("b", (1, 1)), "TARGET_SHAPE", ".neuron.index", "2 indices for the 1 axes"),
    "in a dict": (Neuron("dict", (0,)), UNFIT, ".neuron.module", "one that returns one tensor"),
    "in a tuple in a tuple": (Neuron("nested", (0,)), UNFIT, ".neuron.module", "one that returns one tensor"),
    "of several tensors": (Neuron("two", (0,)), UNFIT, ".neuron.module", "returns the tensors [0], [1]"),
    "beside None": (Neuron("none", (0,)), UNFIT, ".neuron.module", "returns something besides a tensor"),
    "a whole number": (Neuron("ints", (0,)), "TARGET_SHAPE", "", "only floats"),
    "not of an example": (Neuron("rows behind", (0,)), "TARGET_SHAPE", "", "axis 0 is not the batch"),
    "not in the last call": (
        Neuron("r", (5,)), UNFIT, ".neuron.module",
        "called 2 times, and one call returns [5] for each example, without this neuron ([5] is outside"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(NEURONS))
def test_what_is_no_neuron_is_refused_with_the_field_at_fault(name: str) -> None:
    """Every method refuses it in the same words, that say what would do."""
    neuron, reason, field, words = NEURONS[name]
    for asked in of_neuron(neuron, mask=False):
        failure = refused(BOXED(), X, asked)
        assert (failure.reason, failure.field) == (reason, f"attributions[0].{field_name(type(asked))}{field}")
        assert words in failure.message, asked


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_out_of_range_is_refused(seed: int) -> None:
    """Seeds are from 0 to 2**63 - 1."""
    with pytest.raises(ca.InvalidArgument, match="2\\*\\*63") as failure:
        wire_requests.encode(ca.InspectRequest("m", seed=seed))
    assert failure.value.field == "options.seed"
