"""Requests to the mirror: operators between modules, modules called twice, tensors by path, parameters that are
frozen."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import cutaway as ca
from tests.support.adapters.mirror_adapter import MirrorAdapter
from tests.support.mixed.digits import POINTS, noise
from tests.support.mixed.kind import Kind

ROWS = 4
SHIFT = noise(ROWS, 32)


class Twin(nn.Module):
    """The same network, with a module wherever the mirror calls a function: a place for a hook by hand."""

    places: ClassVar = {
        ":relu#0": {"": "relu"},
        ":tanh#1": {"": "second_tanh"},
        "careful.inside": {"": "inside"},
        "halves": {'["low"]': "low", '["high"]': "high"},
    }

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


TWICE: dict[str, Any] = {"captures": [ca.Capture("twice", at=POINTS)], "input_gradients": True}

KINDS = (
    Kind("nothing but predictions", {}),
    Kind("both calls", TWICE),
    Kind("the second call scaled", {**TWICE, "edits": [ca.Scale("twice", factor=0.25, call=1)]}),
    Kind("an operator clamped", {"edits": [ca.Clamp(op=":relu#0", maximum=0.3)],
                                 "captures": [ca.Capture("norm", at=("output", "grad_output"))]}),
    Kind("tensors by path", {"captures": [ca.Capture("halves", at=("output", "grad_output"))]}),
    Kind("one path zeroed, compared", {"edits": [ca.Zero("halves", path='["low"]')], "compare": True,
                                       "captures": [ca.Capture("halves", path='["high"]')]}),
    Kind("one of two operators of a name", {
        "edits": [ca.Add(op=":tanh#1", at="input", addend=SHIFT),
                  ca.Scale(op=":tanh#1", at="grad_output", factor=2.0)],
        "captures": [ca.Capture(op=":tanh#1", at=POINTS)], "input_gradients": True}),
    Kind("rows mixed inside of what catches everything", {
        "edits": [ca.Mix("careful.inside", weight=0.5, permutation=(1, 0, 3, 2))],
        "captures": [ca.Capture("last", at="input")]}),
    Kind("parameters, one of them frozen", {
        "captures": [ca.Capture(parameter=name) for name in ("conv.weight", "twice.weight", "last.bias")]}),
    Kind("explained", {"attributions": [
        ca.IntegratedGradients(n_steps=8, quadrature=ca.Quadrature.RIEMANN_MIDDLE, baselines={"image": 0.5}),
        ca.LayerGradCam(layer="norm")]}),
    Kind("explained under an operator's edit", {
        "edits": [ca.Scale(op=":tanh#1", at="input", factor=0.5)], "attributions": [ca.InputXGradient()],
        "check": "independent"}),
    Kind("early stop", {"captures": [ca.Capture("norm", call=0)], "predictions": False}),
)  # fmt: skip
