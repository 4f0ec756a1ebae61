"""Models and requests that tests of several promises about attributions have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import Attribution, ExpectedGradient, Neuron
from tests.support.checked_attributions import Build, noise, wired

X = {"x": noise(4, 8)}
XY = {**X, "y": noise(4, 8, seed=4)}
IMAGE = {"x": noise(4, 3, 8, 8)}
SEVERAL = {"x": noise(4, 4), "y": noise(4, 3, seed=2), "gain": noise(4, seed=3)}
TOKENS = {"ids": torch.randint(1, 20, (4, 5), generator=torch.Generator().manual_seed(2)), "weight": noise(4, 5)}


def linear(inputs: int = 8, outputs: int = 8, bias: bool = True) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(inputs, outputs, bias=bias)


def convolution(inputs: int, outputs: int, padding: int = 1) -> Callable[[], nn.Module]:
    return lambda: nn.Conv2d(inputs, outputs, 3, padding=padding)


def net(wiring: Callable[..., Any], **parts: Callable[[], Any]) -> Build:
    """Linear layers of vectors, ``a``, ``b``, ``c`` and ``head``, and whatever nonlinearities."""
    return wired(wiring, **{"a": linear(), "b": linear(), "c": linear(), "head": linear(8, 3), **parts})


def images(wiring: Callable[..., Any], **parts: Callable[[], Any]) -> Build:
    """Convolutions ``a`` and ``b`` of the same shape and ``head``, of one vector an image."""
    return wired(wiring, a=convolution(3, 4), b=convolution(4, 4), head=linear(4, 3), **parts)


def end(m: Any, h: Tensor) -> Tensor:
    return m.head(h.mean((2, 3)))


def in_place() -> nn.Module:
    return nn.ReLU(inplace=True)


def one_after_another(first: Callable[[], nn.Module], second: Callable[[], nn.Module]) -> Build:
    return net(lambda m, x: m.head(m.r2(m.b(m.r1(m.a(x))))), r1=first, r2=second)


def pooled(pool: Callable[[], nn.Module]) -> Build:
    return images(lambda m, x: end(m, m.p(m.b(torch.clone(m.r(m.a(x)))))), r=nn.ReLU, p=pool)


class In(nn.Module):
    """A linear layer that returns its tensor in something."""

    def __init__(self, box: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.box = box

    def forward(self, x: Tensor) -> Any:
        return self.box(self.linear(x))


def loud(build: Build) -> Build:
    """A network whose outputs move enough for Lime's penalty, which is the same for all."""
    return wired(lambda m, **inputs: 100 * m.net(**inputs), net=build)


RECTIFIED = one_after_another(nn.ReLU, nn.ReLU)
MIXED = one_after_another(nn.ReLU, nn.Tanh)
CONVOLUTIONS = images(lambda m, x: end(m, m.r2(m.b(m.r1(m.a(x))))), r1=nn.ReLU, r2=nn.ReLU)
GAINED_IMAGES = images(
    lambda m, x, gain: end(m, m.r2(m.b(m.r1(m.a(x)) * gain.reshape(-1, 1, 1, 1)))), r1=nn.ReLU, r2=nn.ReLU
)
GAINED = wired(
    lambda m, x, y, gain: m.head(torch.relu(m.a(x)) * m.b(y).sigmoid() * gain.unsqueeze(1)),
    a=linear(4, 6), b=linear(3, 6), head=linear(6, 3),
)  # fmt: skip
OF_TOKENS = wired(
    lambda m, ids, weight: m.head(torch.tanh(m.words(ids) * weight.unsqueeze(-1)).sum(1)),
    words=lambda: nn.Embedding(20, 6), head=linear(6, 3),
)  # fmt: skip
TWICE = net(lambda m, x: m.head(torch.tanh(m.b(torch.tanh(m.b(m.a(x)))))))
ONE_NUMBER = net(lambda m, x: torch.tanh(m.a(x))[:, :3].prod(1))


def samples(*shape: int, count: int = 3, seed: int = 3) -> Any:
    return noise(count, *shape, seed=seed).numpy()


def lifted(layer: str = "b", shape: tuple[int, ...] = (8,)) -> tuple[Attribution, ...]:
    """DeepLIFT of the input "x", of a layer and of a neuron of its, from a baseline and from a distribution."""
    base: dict[str, Any] = {"inputs": ("x",), "baselines": {"x": samples(*shape, count=1, seed=2)}}
    several: dict[str, Any] = {"inputs": ("x",), "baselines": {"x": samples(*shape)}}
    neuron = Neuron(layer, (1,) * len(shape))
    return (
        ca.DeepLift(**base), ca.LayerDeepLift(layer=layer, **base), ca.NeuronDeepLift(neuron=neuron, **base),
        ca.DeepLiftShap(**several), ca.LayerDeepLiftShap(layer=layer, **several),
        ca.NeuronDeepLiftShap(neuron=neuron, **several),
    )  # fmt: skip


def expected_gradients(
    neuron: Neuron, shapes: dict[str, tuple[int, ...]], count: int = 5, **more: Any
) -> tuple[ExpectedGradient, ...]:
    """Expected gradients of the inputs ``shapes``, of the layer of ``neuron`` and of it."""
    baselines = {name: samples(*shape, count=count, seed=40 + k) for k, (name, shape) in enumerate(shapes.items())}
    asked: dict[str, Any] = {"inputs": tuple(shapes), "baselines": baselines, "n_samples": 6, "stdev": 0.3, **more}
    return (
        ca.GradientShap(**asked),
        ca.LayerGradientShap(layer=neuron.module, **asked),
        ca.NeuronGradientShap(neuron=neuron, **asked),
    )


def of_neuron(neuron: Neuron, inputs: tuple[str, ...] = (), mask: bool = True) -> tuple[Any, ...]:
    """Every method that explains a neuron, and what goes through it."""
    asked = (
        ca.NeuronGradient(neuron=neuron),
        ca.NeuronIntegratedGradients(neuron=neuron, n_steps=6),
        ca.NeuronIntegratedGradients(
            neuron=neuron, n_steps=6, quadrature=ca.Quadrature.RIEMANN_MIDDLE, baselines={"x": 0.5}),
        ca.NeuronConductance(neuron=neuron, n_steps=6),
        ca.NeuronConductance(neuron=neuron, n_steps=6, quadrature=ca.Quadrature.RIEMANN_LEFT, baselines={"x": -0.5}),
        ca.NeuronGuidedBackprop(neuron=neuron),
        ca.NeuronDeconvolution(neuron=neuron),
        ca.NeuronFeatureAblation(neuron=neuron),
        ca.NeuronFeatureAblation(
            neuron=neuron, baselines={"x": 0.5}, masks={"x": np.repeat(np.arange(4), 2).reshape(1, 8)} if mask else {}),
    )  # fmt: skip
    return tuple(replace(each, inputs=inputs) for each in asked)


def of_units(layer: str) -> tuple[Any, ...]:
    """Every method that replaces units of a layer."""
    return (
        ca.LayerFeatureAblation(layer=layer),
        ca.LayerFeatureAblation(layer=layer, baseline=-0.5),
        ca.LayerFeaturePermutation(layer=layer),
    )


def paths(layer: str = "b", n_steps: int = 6) -> tuple[Any, ...]:
    """Every method that walks a path at a layer, with two quadratures."""
    more: dict[str, Any] = {"layer": layer, "n_steps": n_steps}
    start: dict[str, Any] = {**more, "baselines": {"x": 0.5}}
    return (
        ca.LayerConductance(**more), ca.InternalInfluence(**more), ca.LayerIntegratedGradients(**more),
        ca.LayerConductance(**start, quadrature=ca.Quadrature.RIEMANN_MIDDLE),
        ca.InternalInfluence(**start, quadrature=ca.Quadrature.RIEMANN_LEFT),
        ca.LayerIntegratedGradients(**start, quadrature=ca.Quadrature.RIEMANN_RIGHT),
    )  # fmt: skip


OVERRIDING: tuple[Any, ...] = (ca.GuidedBackprop(), ca.Deconvolution(), ca.GuidedGradCam(layer="b"))
