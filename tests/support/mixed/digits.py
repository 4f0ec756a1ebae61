"""Requests about three handwritten digits: captures, targets, edits, explanations of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

import cutaway as ca
from cutaway.contract.requests import PointName
from examples.digits.data import as_png, held_out
from tests.support.mixed.kind import Kind

ROWS = 3
POINTS: tuple[PointName, ...] = ("input", "output", "grad_input", "grad_output")


def inputs() -> dict[str, Tensor]:
    """Three handwritten digits."""
    return {"image": torch.from_numpy(held_out().images[:ROWS].copy())}


def noise(*shape: int) -> np.ndarray:
    """Seeded, float32."""
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def _whole(**asked: Any) -> dict[str, Any]:
    """All points of some modules and the gradient at the image, with whatever else is asked."""
    captures = [ca.Capture(module, at=POINTS) for module in ("relu1", "conv2", "fc1")]
    return {"captures": captures, "input_gradients": True, **asked}


CHANNELS, HIDDEN, STEER, WISHED = noise(16, 1, 1), noise(32), noise(ROWS, 32), noise(ROWS, 10)

LOOKS = (
    Kind("nothing but predictions", {}),
    Kind("image files", {}, inputs=[ca.Raw(as_png(pixels)) for pixels in held_out().pixels[:ROWS]]),
    Kind("values", {"captures": ["conv?", ca.Capture("fc1", at=("input", "output"))]}),
    Kind("all points", _whole()),
    Kind("operator", {"captures": [ca.Capture(op="conv2:conv2d#0", at=("output", "grad_output"))]}),
    Kind("operator's input", {"captures": [ca.Capture(op="conv2:conv2d#0", at="input", path="[0]")]}),
    Kind("operators by glob", {"captures": [ca.Capture(op="*:relu#0")]}),
    Kind("class", _whole(target=4)),
    Kind("top classes", {"target": ca.TopK(3), "input_gradients": True, "captures": [
        ca.Capture("fc1", at=("output", "grad_output")), ca.Capture(parameter="fc2.bias")]}),
    Kind("elements", _whole(target=ca.MultiIndex(((1,), (9,), (0,))))),
    Kind("cross entropy", _whole(target=ca.CrossEntropy((8, 1, 1)))),
    Kind("mean cross entropy", _whole(target=ca.CrossEntropy((8,), ca.LossReduction.MEAN))),
    Kind("squared error", _whole(target=ca.MeanSquaredError(WISHED))),
    Kind("cotangent", _whole(target=ca.Cotangent(WISHED))),
    Kind("sum", _whole(target=ca.OutputSum())),
    Kind("norm", _whole(target=ca.OutputNorm(3.0))),
    Kind("neuron", {"target": ca.Neuron("conv2", (3, 2, 2)), "input_gradients": True,
                    "captures": [ca.Capture("relu1", at=("output", "grad_output"))]}),
    Kind("reductions", {"captures": [
        ca.Capture("conv1", reduce=ca.Mean((2, 3))), ca.Capture("conv2", reduce=ca.Max((-1, -2))),
        ca.Capture("fc1", at="grad_output", reduce=ca.Norm((1,))), ca.Capture("fc2", reduce=ca.TopElements(2))]}),
    Kind("slices and half numbers", {"captures": [
        ca.Capture("conv2", at=("output", "grad_output"),
                   slices=(ca.Slice(0, 0, 2), ca.Slice(1, 1, None, 2), ca.Slice(2, -3))),
        ca.Capture("fc1", data_type="float16")]}),
    Kind("parameters", {"captures": [
        ca.Capture(parameter="conv1.weight", reduce=ca.Norm((1, 2, 3))), ca.Capture(parameter="fc2.bias")]}),
    Kind("early stop", {"captures": [ca.Capture("conv1", call=0)], "predictions": False}),
    Kind("early stop behind an edit", {"edits": [ca.Scale("conv1", factor=-1.0)], "predictions": False,
                                       "captures": [ca.Capture("relu1", at=("input", "output"), call=0)]}),
    Kind("no predictions", {"captures": "conv1", "predictions": False}),
)  # fmt: skip

EDITS = (
    Kind("scale", _whole(edits=[ca.Scale("relu1", factor=0.5)])),
    Kind("add", {"edits": [ca.Add("conv1", addend=CHANNELS)], "captures": "conv1"}),
    Kind("replace a row", _whole(edits=[ca.Replace("fc1", tensor=HIDDEN, rows=(1,))])),
    Kind("zero channels", _whole(edits=[ca.Zero("conv2", slices=(ca.Slice(1, 0, 4),))])),
    Kind("clamp", {"edits": [ca.Clamp("relu2", minimum=0.1, maximum=0.4)],
                   "captures": [ca.Capture("pool", ("input", "output"))]}),
    Kind("mix", _whole(edits=[ca.Mix("conv1", weight=0.75, permutation=(2, 0, 1))])),
    Kind("steer", {"edits": [ca.Add("fc2", "input", addend=STEER)],
                   "captures": [ca.Capture("fc2", ("input", "output", "grad_input"))]}),
    Kind("rows and slices", _whole(edits=[
        ca.Scale("conv2", factor=3.0, rows=(2, 0), slices=(ca.Slice(1, 3, 9, 2), ca.Slice(-1, indices=(-1, 0))))])),
    Kind("edits in order, compared", {"captures": "fc1", "compare": True, "edits": [
        ca.Scale("relu2", factor=2.0), ca.Clamp("fc1", maximum=1.0), ca.Add("relu2", addend=0.25)]}),
    Kind("mute a row's gradient", _whole(edits=[ca.Zero("conv2", "grad_output", rows=(0,))])),
    Kind("louder gradient", _whole(edits=[ca.Scale("fc1", "grad_input", factor=3.0)])),
    Kind("clamped gradient", {
        "edits": [ca.Clamp("relu1", "grad_output", minimum=-0.01, maximum=0.01)], "input_gradients": True,
        "captures": [ca.Capture("relu1", "grad_output"), ca.Capture(parameter="conv1.weight")]}),
    Kind("scale an operator", {"edits": [ca.Scale(op="relu1:relu#0", factor=1.5)],
                               "captures": [ca.Capture("conv2", at=("input", "output"))]}),
    Kind("scale an operator's gradient", _whole(edits=[ca.Scale(op="relu2:relu#0", at="grad_output", factor=0.5)])),
)  # fmt: skip

EXPLAINED = (
    Kind("explained", {"attributions": [ca.Saliency(), ca.IntegratedGradients(n_steps=50)]}),
    Kind("explained, checked in passes of their own", {
        "attributions": [ca.InputXGradient(), ca.LayerGradCam(layer="conv2")], "check": "independent"}),
    Kind("explained, unchecked", {"check": "off", "attributions": [
        ca.LayerActivation(layer="fc1"), ca.LayerGradientXActivation(layer="fc1", target=ca.ClassIndex((2,)))]}),
    Kind("top classes explained", {"attributions": [ca.Saliency(target=ca.TopK(2))]}),
    Kind("explained under an edit", {
        "edits": [ca.Scale("relu1", factor=0.5)],
        "attributions": [ca.IntegratedGradients(n_steps=50, baselines={"image": 0.5})]}),
    Kind("explained under an edit of gradients", {
        "edits": [ca.Clamp("relu2", "grad_output", minimum=0.0)], "attributions": [ca.Saliency(absolute=False)]}),
)  # fmt: skip

KINDS = (*EDITS, *LOOKS, *EXPLAINED)
