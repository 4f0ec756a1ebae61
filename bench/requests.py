"""The measured requests by name, as client arguments and as serialized bytes."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

import cutaway as ca
from bench.real import MODELS
from cutaway.client.request_builder import build_request
from cutaway.client.transport import GatewayTransport
from examples.digits.data import held_out

Request: TypeAlias = tuple[str, dict[str, Any], dict[str, Any]]

STEPS = 64
"""Steps of integrated gradients in every row."""

STAGES = tuple(f"resnet.encoder.stages.{stage}" for stage in range(3))
"""The captured layers of ResNet-50."""

IMAGE_SHAPE = (1, 3, 224, 224)


def resnet() -> Request:
    """Returns a ResNet-50 request: three captures and the input gradient."""
    pixels = np.random.default_rng(0).standard_normal(IMAGE_SHAPE).astype(np.float32)
    return "resnet", {"pixel_values": pixels}, {"captures": STAGES, "input_gradients": True, "target": 0}


def slow() -> Request:
    """Returns a ResNet-50 request with three explanations, which take a hundred times as long as the prediction."""
    model, inputs, _ = resnet()
    ((name, pixels),) = inputs.items()
    squares = np.arange(16).reshape(4, 4).repeat(56, 0).repeat(56, 1)
    windows = {name: (3, 56, 56)}
    methods = (
        ca.IntegratedGradients(n_steps=32),
        ca.Occlusion(windows=windows, strides=windows),
        ca.KernelShap(n_samples=64, masks={name: np.broadcast_to(squares, pixels.shape)}),
    )
    return model, inputs, {"attributions": methods}


DIGITS_LAYERS = ("conv1", "conv2", "fc1", "relu1", "relu2", "pool", "flatten", "relu3", "fc2")


def inside(captures: int = 3, rows: int = 1) -> Request:
    """Returns a digits request for ``rows`` images: ``captures`` layers and the input gradient."""
    options = {"captures": DIGITS_LAYERS[:captures], "input_gradients": True}
    return "digits", {"image": held_out().images[:rows]}, options


def explained(check: str = "off", steps: int = STEPS) -> Request:
    """Returns a request for integrated gradients of class 0 from zero, as TorchServe's stock handler computes."""
    method = ca.IntegratedGradients(n_steps=steps)
    return "digits", {"image": held_out().images[:1]}, {"attributions": (method,), "target": 0, "check": check}


def wall(mebibytes: int, stream: bool | None = None) -> Request:
    """Returns a request for the given number of mebibytes of one large tensor."""
    part = ca.Slice(axis=1, start=0, stop=mebibytes << 18)
    options = {"captures": (ca.Capture("wall", call=0, slices=(part,)),), "predictions": False, "stream": stream}
    return "wall", {"height": np.zeros((1, 1), np.float32)}, options


def mixed(number: int) -> Request:
    """Returns one of sixteen requests, each with another method and layer."""
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

REAL_STEPS = 32
"""Steps of integrated gradients for the networks of `bench.real`."""

QUESTIONS = {
    "predict": "prediction",
    "inside": "5 captures, 1 gradient",
    "ig": "IG, 32 steps",
    "ig_checked": "IG, 32 steps, checked",
    "occlusion": "Occlusion",
    "cam": "Grad-CAM, or gradient × activation",
}
"""The questions about a network of `bench.real`, in words."""


def real(network: str, question: str, seed: int = 0) -> Request:
    """Returns a question of `QUESTIONS` about one row."""
    of = MODELS[network]
    inputs = {name: tensor.numpy() for name, tensor in of.rows(seed).items()}
    target = ca.ClassIndex(of.target) if len(of.target) == 1 else ca.MultiIndex((of.target,))
    options: dict[str, Any] = {"target": target, "check": "off"}
    if question == "predict":
        return network, inputs, {}
    if question == "inside":
        gradient = ca.Capture(of.embedding, "grad_output") if of.embedding else None
        captures = (*of.layers, *([gradient] if gradient else []))
        return network, inputs, {"target": target, "captures": captures, "input_gradients": not gradient}
    explained: Any = (of.explained,)
    if question.startswith("ig"):
        steps: Any = {"n_steps": REAL_STEPS, "inputs": explained}
        method: ca.Attribution = ca.IntegratedGradients(**steps)
        if of.embedding:
            method = ca.LayerIntegratedGradients(layer=of.embedding, baselines={of.explained: ca.TokenId(0)}, **steps)
        options["check"] = "same_pass" if question == "ig_checked" else "off"
    elif question == "occlusion":
        zero: Any = {of.explained: ca.TokenId(0)} if of.embedding else {}
        window = {of.explained: of.window}
        method = ca.Occlusion(windows=window, strides=window, inputs=explained, baselines=zero)
    else:
        method = (ca.LayerGradientXActivation if of.cam_is_product else ca.LayerGradCam)(layer=of.cam)
    return network, inputs, {**options, "attributions": (method,)}


REQUESTS: dict[str, Callable[..., Request]] = {
    "resnet": resnet,
    "inside": inside,
    "explained": explained,
    "wall": wall,
    "mixed": mixed,
    "real": real,
}


def payload(asked: Request) -> str:
    """Returns a serialized request as base64."""
    model, inputs, options = asked
    return base64.b64encode(GatewayTransport().inspect(build_request(model, inputs, **options)).payload).decode()
