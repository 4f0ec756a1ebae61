"""What is asked, by name: the same question as a client writes it, and as the bytes that callers send."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

import cutaway as ca
from cutaway.client import question
from cutaway.routes import FrontDoor
from examples.digits.data import held_out

Question: TypeAlias = tuple[str, dict[str, Any], dict[str, Any]]

STEPS = 64
"""Of integrated gradients, in every row."""

STAGES = tuple(f"resnet.encoder.stages.{stage}" for stage in range(3))
"""What is captured of ResNet-50."""

IMAGE_SHAPE = (1, 3, 224, 224)


def resnet() -> Question:
    """Three captures and the input's gradient."""
    pixels = np.random.default_rng(0).standard_normal(IMAGE_SHAPE).astype(np.float32)
    return "resnet", {"pixel_values": pixels}, {"captures": STAGES, "input_gradients": True, "target": 0}


DIGITS_LAYERS = ("conv1", "conv2", "fc1", "relu1", "relu2", "pool", "flatten", "relu3", "fc2")


def inside(captures: int = 3, rows: int = 1) -> Question:
    """``captures`` of the layers, three as a rule, and the input's gradient, of ``rows`` digits."""
    options = {"captures": DIGITS_LAYERS[:captures], "input_gradients": True}
    return "digits", {"image": held_out().images[:rows]}, options


def explained(check: str = "off", steps: int = STEPS) -> Question:
    """Integrated gradients of the score of class 0, from black: what TorchServe's stock handler explains."""
    method = ca.IntegratedGradients(n_steps=steps)
    return "digits", {"image": held_out().images[:1]}, {"attributions": (method,), "target": 0, "check": check}


def wall(mebibytes: int, stream: bool | None = None) -> Question:
    """So much of the one large tensor, and nothing else."""
    part = ca.Slice(axis=1, start=0, stop=mebibytes << 18)
    options = {"captures": (ca.Capture("wall", call=0, slices=(part,)),), "predictions": False, "stream": stream}
    return "wall", {"height": np.zeros((1, 1), np.float32)}, options


def mixed(number: int) -> Question:
    """One of sixteen questions, each another method at another layer."""
    images = {"image": np.zeros((4, 1, 8, 8), np.float32)}
    methods = (
        ca.Saliency(),
        ca.InputXGradient(),
        ca.IntegratedGradients(n_steps=16),
        ca.GuidedBackprop(),
        ca.Deconvolution(),
        ca.GradientShap(baselines=images, n_samples=4),
        ca.DeepLift(),
        ca.LayerActivation(layer="relu1"),
        ca.LayerActivation(layer="fc1"),
        ca.LayerGradientXActivation(layer="conv1"),
        ca.LayerGradientXActivation(layer="conv2"),
        ca.LayerGradientXActivation(layer="relu3"),
        ca.LayerGradCam(layer="conv2"),
        ca.LayerGradCam(layer="relu2"),
        ca.LayerConductance(layer="relu1", n_steps=16),
        ca.LayerIntegratedGradients(layer="conv2", n_steps=16),
    )
    image = {"image": held_out().images[number : number + 1]}
    return "digits", image, {"attributions": (methods[number],), "seed": 1}


MIXED = 16

QUESTIONS: dict[str, Callable[..., Question]] = {
    "resnet": resnet,
    "inside": inside,
    "explained": explained,
    "wall": wall,
    "mixed": mixed,
}


def payload(asked: Question) -> str:
    """The bytes of a question, as base64."""
    model, inputs, options = asked
    return base64.b64encode(FrontDoor().inspect(question(model, inputs, **options)).payload).decode()
