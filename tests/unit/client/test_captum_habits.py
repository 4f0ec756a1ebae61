"""What people who know Captum write by habit has an error that says what would be right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch import nn

import cutaway as ca
from cutaway.client.request_builder import build_request
from tests.support.made_results import image

X = {"image": np.ones((2, 1, 8, 8), np.float32)}
MASK = np.zeros((1, 1, 8, 8), np.int64)


def ask(*attributions: Any, **more: Any) -> Any:
    return build_request("digits", X, attributions=list(attributions), **more)


def inspect(*attributions: Any, **more: Any) -> Any:
    with ca.Client("127.0.0.1:1") as client:
        return client.inspect("digits", X, attributions=list(attributions), **more)


UNTYPED: Any = ca  # types that a type checker refuses are what these tests are about
HABITS: dict[str, tuple[Callable[[], Any], str]] = {
    "sliding_window_shapes": (
        lambda: UNTYPED.Occlusion(sliding_window_shapes=(1, 3, 3)), "did you mean 'windows'"),
    "no windows": (lambda: UNTYPED.Occlusion(), "Occlusion(windows=...): by input name, the window's size"),
    "windows without a name": (lambda: UNTYPED.Occlusion((1, 3, 3)), "such as Occlusion(windows=...)"),
    "a side for a window": (lambda: ask(UNTYPED.Occlusion(windows={"image": 3})), "such as [3]"),
    "strides as a number": (
        lambda: ask(UNTYPED.Occlusion(windows={"image": (1, 3, 3)}, strides=2)), "must be a list, such as [2]"),
    "the model": (
        lambda: UNTYPED.IntegratedGradients(nn.Linear(2, 2)), "have names; the call names the model"),
    "the model and the layer": (
        lambda: UNTYPED.LayerGradCam(nn.Linear(2, 2), "conv2"), "such as LayerGradCam(layer=...)"),
    "the layer as a module": (
        lambda: ask(UNTYPED.LayerGradCam(layer=nn.Linear(2, 2))), "as model.named_modules() has it"),
    "the layer without a name": (lambda: UNTYPED.LayerGradCam("conv2"), "such as LayerGradCam(layer=...)"),
    "the layer as module": (lambda: UNTYPED.LayerGradCam(module="conv2"), "did you mean 'layer'"),
    "relu_attributions": (
        lambda: UNTYPED.LayerGradCam(layer="conv2", relu_attributions=True), "did you mean 'relu'"),
    "baselines that nobody draws": (
        lambda: inspect(UNTYPED.FeatureAblation(baselines={"image": ca.ProductBaselines([[0.0, 1.0]])})),
        "call it to draw samples: ProductBaselines(...)(samples=20)"),
    "n_steps as a text": (lambda: ask(UNTYPED.IntegratedGradients(n_steps="50")), "must be a whole number"),
    "half a step": (lambda: ask(UNTYPED.IntegratedGradients(n_steps=50.5)), "must be a whole number"),
    "method of a quadrature": (
        lambda: UNTYPED.IntegratedGradients(method="riemann_trapezoid"), "did you mean 'quadrature'"),
    "internal_batch_size": (lambda: UNTYPED.IntegratedGradients(internal_batch_size=8), "leave it out"),
    "return_convergence_delta": (
        lambda: UNTYPED.IntegratedGradients(return_convergence_delta=True), "the result has convergence_delta"),
    "nt_samples of a method": (
        lambda: UNTYPED.IntegratedGradients(nt_samples=5), "noise=NoiseTunnel(n_samples=5, stdev=0.1)"),
    "nt_samples of the tunnel": (lambda: UNTYPED.NoiseTunnel(nt_samples=5), "did you mean 'n_samples'"),
    "nt_type": (lambda: UNTYPED.NoiseTunnel(nt_type="vargrad"), "did you mean 'combination'"),
    "stdevs": (lambda: UNTYPED.NoiseTunnel(stdevs=0.1), "did you mean 'stdev'"),
    "the tunnel around a method": (
        lambda: ask(UNTYPED.NoiseTunnel(ca.Saliency())), "Saliency(noise=NoiseTunnel())"),
    "a class": (lambda: ask(ca.Saliency), "send Saliency(...)"),
    "abs": (lambda: UNTYPED.Saliency(abs=False), "did you mean 'absolute'"),
    "a baseline as a text": (
        lambda: ask(UNTYPED.IntegratedGradients(baselines={"image": "zero"})), "must be a number, a .npy file"),
    "no baselines": (lambda: UNTYPED.DeepLiftShap(), "samples of a distribution"),
    "masks of a method without": (
        lambda: UNTYPED.Occlusion(masks=ca.Superpixels(20)), "features are grouped by FeatureAblation"),
    "feature_mask of a method without": (
        lambda: UNTYPED.IntegratedGradients(feature_mask=MASK), "features are grouped by FeatureAblation"),
    "feature_mask": (lambda: UNTYPED.FeatureAblation(feature_mask=MASK), "did you mean 'masks'"),
    "perturbations_per_eval": (
        lambda: UNTYPED.ShapleyValueSampling(perturbations_per_eval=4), "leave it out"),
    "a function": (lambda: UNTYPED.Lime(similarity_func=abs), "a request holds no functions"),
    "neuron_selector": (
        lambda: UNTYPED.NeuronConductance(neuron_selector=(1, 2)), "did you mean 'neuron'"),
    "a neuron without a module": (
        lambda: ask(UNTYPED.NeuronConductance(neuron=3)), "must be Neuron(module=..., index=...)"),
    "the layer of a neuron": (
        lambda: UNTYPED.NeuronGradient(layer="fc1", neuron=3), "Neuron('fc1', (3,))"),
    "a metric as a method": (lambda: ask(ca.Infidelity()), "Saliency(metrics=(Infidelity(),))"),
    "n_perturb_samples": (lambda: UNTYPED.Infidelity(n_perturb_samples=5), "did you mean 'n_samples'"),
    "perturb_radius": (lambda: UNTYPED.SensitivityMax(perturb_radius=1), "did you mean 'radius'"),
    "baselines of the call": (lambda: inspect("saliency", baselines=0), "IntegratedGradients(baselines=...)"),
    "a mask of the call": (lambda: inspect("saliency", feature_mask=MASK), "FeatureAblation(masks=...)"),
    "a layer of the call": (lambda: inspect("saliency", layer="conv2"), "'layer_grad_cam:conv2'"),
    "a method of the call": (lambda: inspect(method="saliency"), "attributions='saliency'"),
    "additional_forward_args": (
        lambda: inspect("saliency", additional_forward_args=(1,)), "all other values are its arguments"),
    "attribution": (lambda: inspect(attribution="saliency"), "did you mean 'attributions'"),
    "the model in place of its name": (
        lambda: build_request(nn.Linear(2, 2), X), "got Linear; name a model that the server has"),  # type: ignore[arg-type]
    "several inputs without names": (
        lambda: build_request("digits", (np.ones((1, 4)), np.ones((1, 2)))), "several inputs have names: {'x': array"),
    "a category as a text": (
        lambda: build_request("bank", {"job": np.array(["clerk"])}), "send numbers, of a category its number"),
    "a fraction as a class": (lambda: ask("saliency", target=3.0), "send a class index or label"),
    "a misspelt method": (lambda: ask("IntegratedGrads"), "did you mean 'integrated_gradients'"),
    "outlier_perc": (lambda: drawn(outlier_perc=2), "did you mean 'outlier_percent'"),
    "a method of drawing": (lambda: drawn(method="heat_map"), "blend=1 is a heat map"),
    "a sign of Captum's": (lambda: drawn(sign="absolute_value"), "did you mean 'absolute'"),
    "alpha_overlay": (lambda: drawn(alpha_overlay=0.5), "did you mean 'blend'"),
    "a blend as a text": (lambda: drawn(blend="0.5"), "is a number from 0 to 1"),
    "a row as a text": (lambda: drawn(row="0"), "the batch has the rows 0 to"),
}  # fmt: skip


def drawn(**look: Any) -> Any:
    return image(rows=1).plot(**look)


@pytest.mark.parametrize("habit", HABITS)
def test_a_habit_is_answered_with_what_would_be_right(habit: str) -> None:
    """In the constructor as a `TypeError`, as Python's own; elsewhere with a reason."""
    call, right = HABITS[habit]
    with pytest.raises((TypeError, ca.InvalidArgument)) as caught:
        call()
    assert right in str(caught.value)


@pytest.mark.parametrize("kind", [Path, str], ids=["Path", "str"])
def test_the_path_of_a_file_by_name_is_answered_with_what_works(kind: Callable[[Path], Any], tmp_path: Path) -> None:
    """Once: what is advised is taken."""
    path = tmp_path / "seven.png"
    Image.new("L", (2, 2)).save(path)
    with pytest.raises(ca.InvalidArgument, match="alone, without the name of an input: ") as caught:
        build_request("digits", {"image": kind(path)})
    assert caught.value.field == "inputs.image"
    advised = str(caught.value).partition("of an input: ")[2].partition("; or")[0]
    (raw,) = build_request("digits", eval(advised, {"ca": ca, "Path": Path})).raw
    assert (raw.data, raw.media_type) == (path.read_bytes(), "image/png")
    np.save(tmp_path / "x.npy", np.ones(2))
    with pytest.raises(ca.InvalidArgument, match=r"send its array: np.load\('.*x.npy'\)"):
        build_request("digits", {"image": kind(tmp_path / "x.npy")})


def test_a_text_by_name_that_is_no_file_is_answered_as_a_text() -> None:
    with pytest.raises(ca.InvalidArgument, match="the model decodes it into its inputs: send it alone"):
        build_request("mood", {"ids": "no file.png"})


def test_other_type_errors_stay_as_they_are() -> None:
    """What nothing is known of is Python's own."""
    keywords: Any = {3: 4}
    with pytest.raises(TypeError, match="keywords must be strings"):
        ca.Saliency(**keywords)
