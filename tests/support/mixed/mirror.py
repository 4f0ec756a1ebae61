"""Requests to the mirror: operators between modules, modules called twice, tensors by path, parameters that are
frozen."""

from __future__ import annotations

from typing import Any

import torch
from captum import attr
from torch import Tensor, nn

import cutaway as ca
from tests.support.adapters.mirror_adapter import MirrorAdapter
from tests.support.mixed.by_hand import Answer, ByHand
from tests.support.mixed.digits import POINTS, noise
from tests.support.mixed.kind import Kind

ROWS = 4
SHIFT = noise(ROWS, 32)


class Twin(nn.Module):
    """The same network, with a module wherever the mirror calls a function: a place for a hook by hand."""

    def __init__(self) -> None:
        super().__init__()
        mirror: Any = MirrorAdapter().build().eval()
        self.conv, self.norm, self.twice, self.last = mirror.conv, mirror.norm, mirror.twice, mirror.last
        self.inside = mirror.careful.inside
        self.relu, self.low, self.high = nn.ReLU(), nn.Identity(), nn.Identity()
        self.first_tanh, self.second_tanh = nn.Tanh(), nn.Tanh()

    def forward(self, image: Tensor) -> Tensor:
        low, high = self.relu(self.norm(self.conv(image))).chunk(2, dim=1)
        h = self.first_tanh(self.twice(self.low(low).flatten(1)))
        h = self.second_tanh(self.twice(h + self.high(high).flatten(1)))
        return self.last(self.inside(h))


def inputs() -> dict[str, Tensor]:
    """Seeded noise with some light in it."""
    return {"image": torch.rand(ROWS, 1, 6, 6, generator=torch.Generator().manual_seed(3))}


def _plain(hand: ByHand) -> Answer:
    return hand.answer()


def _twice(hand: ByHand) -> Answer:
    hand.see("twice", "input", "output", "grad_input", "grad_output")
    hand.gradients("image")
    return hand.answer()


def _second_call(hand: ByHand) -> Answer:
    hand.after("twice", lambda value: value * 0.25, call=1)
    return _twice(hand)


def _relu(hand: ByHand) -> Answer:
    hand.after("relu", lambda value: value.clamp(max=0.3))
    hand.see("norm", "output", "grad_output")
    return hand.answer()


def _halves(hand: ByHand) -> Answer:
    hand.see("low", "output", "grad_output", name="halves", path='["low"]')
    hand.see("high", "output", "grad_output", name="halves", path='["high"]')
    return hand.answer()


def _one_half(hand: ByHand) -> Answer:
    unedited = hand.forward(*hand.inputs.values()).detach().numpy()
    hand.after("low", torch.zeros_like)
    hand.see("high", "output", name="halves", path='["high"]')
    return {**hand.answer(), "unedited.output": unedited}


def _second_tanh(hand: ByHand) -> Answer:
    hand.before("second_tanh", lambda value: value + torch.from_numpy(SHIFT))
    hand.backward_after("second_tanh", lambda gradient: gradient * 2.0)
    hand.see("second_tanh", "input", "output", "grad_input", "grad_output", name=":tanh#1")
    hand.gradients("image")
    return hand.answer()


def _careful(hand: ByHand) -> Answer:
    hand.after("inside", lambda value: value[[1, 0, 3, 2]] * (1 - 0.5) + value * 0.5)
    hand.see("last", "input")
    return hand.answer()


def _parameters(hand: ByHand) -> Answer:
    same = {name: lambda gradient: gradient for name in ("conv.weight", "twice.weight", "last.bias")}
    hand.gradients(parameters=same)
    return hand.answer()


def _explained(hand: ByHand) -> Answer:
    hand.of_predicted_classes()
    layer: Any = hand.model.get_submodule("norm")
    return hand.answer(
        lambda forward, classes: attr.IntegratedGradients(forward).attribute(
            _leaf(hand), target=classes, n_steps=8, method="riemann_middle", baselines=0.5
        ),
        lambda forward, classes: attr.LayerGradCam(forward, layer).attribute(_leaf(hand), target=classes),
    )


def _explained_edited(hand: ByHand) -> Answer:
    hand.before("second_tanh", lambda value: value * 0.5)
    hand.of_predicted_classes()
    return hand.answer(
        lambda forward, classes: attr.InputXGradient(forward).attribute(_leaf(hand), target=classes),
    )


def _early(hand: ByHand) -> Answer:
    hand.silent()
    hand.see("norm", "output")
    return hand.answer()


def _leaf(hand: ByHand) -> Tensor:
    return hand.inputs["image"].clone().requires_grad_()


TWICE: dict[str, Any] = {"captures": [ca.Capture("twice", at=POINTS)], "input_gradients": True}

KINDS = (
    Kind("nothing but predictions", {}, _plain),
    Kind("both calls", TWICE, _twice),
    Kind("the second call scaled", {**TWICE, "edits": [ca.Scale("twice", factor=0.25, call=1)]}, _second_call),
    Kind(
        "an operator clamped",
        {
            "edits": [ca.Clamp(op=":relu#0", maximum=0.3)],
            "captures": [ca.Capture("norm", at=("output", "grad_output"))],
        },
        _relu,
    ),
    Kind("tensors by path", {"captures": [ca.Capture("halves", at=("output", "grad_output"))]}, _halves),
    Kind(
        "one path zeroed, compared",
        {
            "edits": [ca.Zero("halves", path='["low"]')],
            "captures": [ca.Capture("halves", path='["high"]')],
            "compare": True,
        },
        _one_half,
    ),
    Kind(
        "one of two operators of a name",
        {
            "edits": [
                ca.Add(op=":tanh#1", at="input", addend=SHIFT),
                ca.Scale(op=":tanh#1", at="grad_output", factor=2.0),
            ],
            "captures": [ca.Capture(op=":tanh#1", at=POINTS)],
            "input_gradients": True,
        },
        _second_tanh,
    ),
    Kind(
        "rows mixed inside of what catches everything",
        {
            "edits": [ca.Mix("careful.inside", weight=0.5, permutation=(1, 0, 3, 2))],
            "captures": [ca.Capture("last", at="input")],
        },
        _careful,
    ),
    Kind(
        "parameters, one of them frozen",
        {"captures": [ca.Capture(parameter=name) for name in ("conv.weight", "twice.weight", "last.bias")]},
        _parameters,
    ),
    Kind(
        "explained",
        {
            "attributions": [
                ca.IntegratedGradients(n_steps=8, quadrature=ca.Quadrature.RIEMANN_MIDDLE, baselines={"image": 0.5}),
                ca.LayerGradCam(layer="norm"),
            ]
        },
        _explained,
    ),
    Kind(
        "explained under an operator's edit",
        {
            "edits": [ca.Scale(op=":tanh#1", at="input", factor=0.5)],
            "attributions": [ca.InputXGradient()],
            "check": "independent",
        },
        _explained_edited,
    ),
    Kind("early stop", {"captures": [ca.Capture("norm", call=0)], "predictions": False}, _early),
)
