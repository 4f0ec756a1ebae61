"""Grad-CAM sums over the axis of a layer's channels, wherever that is, and weighs by the mean over its positions.

The expected values are equations 1 and 2 of Selvaraju et al. 2017, arXiv:1610.02391, written as loops over channels.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from captum import attr
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from cutaway.contract.requests import CheckMode, CheckRequest
from cutaway.contract.results import Verdict
from cutaway.engine.cost.estimate import estimate
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.planning.plan import plan_request
from tests.support.checked_attributions import CHECKED, Build, ask, noise, wired

F64 = torch.float64
IMAGE = {"x": noise(2, 3, 8, 8, dtype=F64)}
SEQUENCE = {"x": noise(2, 5, 6, dtype=F64)}
SQUARE = {"x": noise(2, 6, 6, dtype=F64)}
TARGET = ca.ClassIndex((1,))


class Permuted(nn.LayerNorm):
    """A layer norm of ``[batch, channels, height, width]``, as torchvision's ConvNeXt has it."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalises the channels."""
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class Turned(nn.Module):
    """Moves one axis to the place of another."""

    def __init__(self, source: int, destination: int) -> None:
        super().__init__()
        self.axes = source, destination

    def forward(self, x: Tensor) -> Tensor:
        """Returns the same numbers."""
        return x.movedim(*self.axes)


class Residual(nn.Module):
    """Tokens and what layers make of them, in a tuple by themselves as in transformers."""

    def __init__(self, *parts: nn.Module, wrapped: bool = False) -> None:
        super().__init__()
        self.parts, self.wrapped = nn.Sequential(*parts), wrapped

    def forward(self, x: Tensor) -> Any:
        """Returns the sum."""
        y = x + self.parts(x)
        return (y,) if self.wrapped else y


class Mixing(nn.Module):
    """A product with a weight of its own, which is no layer of PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(noise(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        """Returns other channels of each token."""
        return torch.tanh(x @ self.weight)


def layers(*parts: nn.Module, axis: int) -> Build:
    """Layers of which the last one is explained, with 6 channels along ``axis``."""
    return wired(
        lambda m, x: _head(m, m.layer(m.before(x)), axis),
        before=lambda: nn.Sequential(*parts[:-1]), layer=lambda: parts[-1], head=linear,
    )  # fmt: skip


image, tokens = partial(layers, axis=1), partial(layers, axis=-1)


def _head(m: Any, y: Any, axis: int) -> Tensor:
    y = torch.tanh((y[0] if isinstance(y, tuple) else y).movedim(axis, -1)).flatten(1, -2)
    places = torch.linspace(-1, 2, y.shape[1], dtype=y.dtype)[:, None]
    scores: Tensor = m.head((y * places).sum(1))
    return scores


def linear(features: int = 6) -> nn.Module:
    return nn.Linear(features, 6)


def conv(kind: Any = nn.Conv2d, channels: int = 3) -> nn.Module:
    made: nn.Module = kind(channels, 6, 3, padding=1)
    return made


def of_relu() -> nn.Module:
    return nn.Sequential(conv(), nn.ReLU())


LAYERS: dict[str, tuple[Build, dict[str, Tensor], int]] = {
    "a convolution": (image(conv()), IMAGE, 1),
    "a convolution of a series": (tokens(conv(nn.Conv1d, 5), axis=1), SEQUENCE, 1),
    "a batch norm": (image(conv(), nn.BatchNorm2d(6)), IMAGE, 1),
    "a pool": (image(conv(), nn.MaxPool2d(2)), IMAGE, 1),
    "an activation behind a convolution": (image(conv(), nn.ReLU()), IMAGE, 1),
    "layers with a convolution": (image(of_relu()), IMAGE, 1),
    "a layer norm with its axes moved": (image(conv(), Permuted(6)), IMAGE, 1),
    "a linear layer": (tokens(linear()), SEQUENCE, -1),
    "a layer norm": (tokens(nn.LayerNorm(6)), SEQUENCE, -1),
    "an activation behind a linear layer": (tokens(linear(), nn.GELU()), SEQUENCE, -1),
    "a residual block": (tokens(Residual(nn.LayerNorm(6), linear(), nn.GELU(), linear())), SEQUENCE, -1),
    "a block in a tuple": (tokens(Residual(nn.LayerNorm(6), linear(), wrapped=True)), SEQUENCE, -1),
    "as many tokens as channels": (tokens(Residual(linear())), SQUARE, -1),
    "as many tokens as channels, turned": (tokens(linear(), Turned(-1, 1), axis=1), SQUARE, 1),
    "a product of its own": (tokens(nn.LayerNorm(6), Mixing()), SEQUENCE, -1),
    "a transformer's layer": (
        tokens(nn.TransformerEncoderLayer(6, 2, 12, dropout=0.0, batch_first=True)), SEQUENCE, -1),
    "patches": (tokens(conv(), nn.Flatten(2), Turned(1, 2)), IMAGE, -1),
    "a linear layer of an image": (image(Turned(1, -1), linear(3), axis=-1), IMAGE, -1),
    "a Swin block": (image(Turned(1, -1), linear(3), Residual(nn.LayerNorm(6), linear()), axis=-1), IMAGE, -1),
    "Swin's axes moved back": (image(Turned(1, -1), linear(3), Turned(-1, 1)), IMAGE, 1),
    "one channel of one row": (
        wired(lambda m, x: m.layer(m.before(x)).flatten(1), before=lambda: nn.Conv2d(3, 1, 3), layer=nn.Softplus),
        {"x": IMAGE["x"][:1]}, 1),
    "a product of its own without positions": (
        wired(lambda m, x: m.head(m.layer(x.flatten(1)[:, :6])), layer=Mixing, head=linear), SEQUENCE, 1),
    "one token": (tokens(linear(), nn.GELU()), {"x": SEQUENCE["x"][:, :1]}, -1),
    "a linear layer without positions": (
        wired(lambda m, x: m.head(m.layer(x.flatten(1))), layer=lambda: nn.Linear(30, 6), head=linear), SEQUENCE, 1),
}  # fmt: skip


def by_hand(model: nn.Module, inputs: dict[str, Tensor], axis: int) -> Tensor:
    """Grad-CAM from a hook of the test: the sum over channels of a channel's mean gradient times the channel."""
    kept: list[Tensor] = []
    layer: Any = model.layer

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        kept.append(output[0] if isinstance(output, tuple) else output)

    handle = layer.register_forward_hook(keep)
    score = model(**inputs)[:, 1].sum()
    handle.remove()
    (gradient,) = torch.autograd.grad(score, kept)
    channels, weights = kept[0].detach().movedim(axis, 1), gradient.movedim(axis, 1)
    maps = torch.zeros_like(channels[:, :1])
    for row in range(len(maps)):
        for channel in range(channels.shape[1]):
            maps[row, 0] += weights[row, channel].mean() * channels[row, channel]
    return maps.movedim(1, axis)


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("name", list(LAYERS))
def test_grad_cam_sums_over_channels_wherever_they_are(name: str, mode: CheckMode) -> None:
    """Without an option, for layers of every kind: the values of the paper's equations, and AGREES."""
    build, inputs, axis = LAYERS[name]
    model = build().double()
    got = ask(model, inputs, ca.LayerGradCam(layer="layer"), target=TARGET, check=CheckRequest(mode)).attributions[0]
    np.testing.assert_allclose(got.values["layer"], by_hand(model, inputs, axis).numpy(), rtol=1e-9, atol=1e-12)
    assert got.checks[0].verdict is Verdict.AGREES, got.checks[0]


@pytest.mark.parametrize("name", list(LAYERS))
def test_the_estimate_has_one_channel_where_the_reply_has_it(name: str) -> None:
    """The values that are estimated have the names and the shapes of those that come."""
    build, inputs, axis = LAYERS[name]
    model = build().double()
    subject = InspectedModel(model, lambda tensors: model(**tensors))
    asked = ca.InspectRequest("m", attributions=(ca.LayerGradCam(layer="layer"),), target=TARGET)
    (got,) = estimate(plan_request(subject, asked, inputs)).attributions
    expected = by_hand(model, inputs, axis)
    assert {name: values.shape for name, values in got.values.items()} == {"layer": tuple(expected.shape)}


def test_three_tokens_of_two_channels_by_hand() -> None:
    """``f = sum of v * a``: channels weigh (1 + 3 + 5) / 3 and (2 - 1 + 2) / 3, so token t has 3 a_t0 + a_t1."""
    v = torch.tensor([[1.0, 2.0], [3.0, -1.0], [5.0, 2.0]])
    model = wired(lambda m, x: (m.layer(x) * v).sum((1, 2))[:, None], layer=lambda: nn.Linear(2, 2, bias=False))()
    with torch.no_grad():
        model.layer.weight.copy_(torch.eye(2))  # type: ignore[union-attr, operator]
    x = torch.tensor([[[1.0, 1.0], [2.0, 0.0], [0.0, -1.0]]])
    (got,) = ask(model, {"x": x}, ca.LayerGradCam(layer="layer"), target=ca.ClassIndex((0,))).attributions
    np.testing.assert_allclose(got.values["layer"], [[[4.0], [6.0], [-1.0]]], rtol=1e-6)


@pytest.mark.parametrize("axis", [1, 2, 3, -1, -2, -3])
@pytest.mark.parametrize("mode", CHECKED)
def test_the_request_may_name_the_axis(axis: int, mode: CheckMode) -> None:
    """Also another one than a test would find."""
    model = image(conv())().double()
    asked = ca.LayerGradCam(layer="layer", channel_axis=axis)
    got = ask(model, IMAGE, asked, target=TARGET, check=CheckRequest(mode)).attributions[0]
    np.testing.assert_allclose(got.values["layer"], by_hand(model, IMAGE, axis).numpy(), rtol=1e-9, atol=1e-12)
    assert got.checks[0].verdict is Verdict.AGREES


def test_guided_grad_cam_of_channels_last() -> None:
    """The map of a Swin block has the positions of the image: it is scaled to them, and not to height and channels."""
    model = wired(
        lambda m, x: _head(m, m.layer(m.r(m.stem(x)).movedim(1, -1)), -1), stem=lambda: nn.Conv2d(3, 6, 2, stride=2),
        r=nn.ReLU, layer=lambda: Residual(nn.LayerNorm(6), linear()), head=linear,
    )().double()  # fmt: skip
    guided = attr.GuidedBackprop(model).attribute(IMAGE["x"], target=1)
    cam = by_hand(model, IMAGE, -1).movedim(-1, 1).clamp(min=0)
    expected = guided * F.interpolate(cam, (8, 8), mode="nearest")
    (got,) = ask(model, IMAGE, ca.GuidedGradCam(layer="layer"), target=TARGET).attributions
    np.testing.assert_allclose(got.values["x"], expected.detach().numpy(), rtol=1e-9, atol=1e-12)
    assert got.checks[0].verdict is Verdict.AGREES


def test_what_belongs_to_a_request_reaches_channels_that_are_last() -> None:
    """An edit before the layer, noisy copies, relu, a metric and a change in place behind it."""
    model = wired(
        lambda m, x: _head(m, m.layer(m.before(x)).mul_(3), -1), before=linear, layer=linear, head=linear
    )().double()
    edits = (ca.Scale("layer", factor=2.0), ca.Add("before", addend=0.5))
    half = wired(
        lambda m, x: _head(m, m.layer(m.scaled(m.before(x) + 0.5)).mul(3), -1), before=linear,
        scaled=nn.Identity, layer=linear, head=linear,
    )().double()  # fmt: skip
    half.load_state_dict(model.state_dict())
    with torch.no_grad():
        half.layer.weight.mul_(2), half.layer.bias.mul_(2)  # type: ignore[union-attr, operator]
    asked = ca.LayerGradCam(layer="layer", relu=True)
    (got,) = ask(model, SEQUENCE, asked, target=TARGET, edits=edits).attributions
    expected = by_hand(half, SEQUENCE, -1).clamp(min=0)
    np.testing.assert_allclose(got.values["layer"], expected.numpy(), rtol=1e-9, atol=1e-12)
    assert got.checks[0].verdict is Verdict.AGREES, got.checks[0]
    noisy = ca.LayerGradCam(
        layer="layer", noise=ca.NoiseTunnel(n_samples=3, stdev=0.0), metrics=(ca.SensitivityMax(n_samples=2),)
    )
    (got,) = ask(model, SEQUENCE, noisy, target=TARGET, seed=1).attributions
    np.testing.assert_allclose(got.values["layer"], by_hand(model, SEQUENCE, -1).numpy(), rtol=1e-9, atol=1e-12)
    assert got.checks[0].verdict is Verdict.AGREES, got.checks[0]
    assert got.metrics[0].values.shape == (2,)


HEADS = wired(
    lambda m, x: _head(m, m.layer(m.before(x)).flatten(2), -1), before=linear, layer=lambda: nn.Unflatten(-1, (2, 3)),
    head=linear,
)  # fmt: skip


class OwnNorm(nn.Module):
    """A norm along an axis, as a language model's code brings it."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        """Divides by the root of the mean square."""
        return x * torch.rsqrt(x.pow(2).mean(self.axis, keepdim=True) + 1e-6)


REFUSED: dict[str, tuple[Build, dict[str, Tensor], ca.Attribution, str, str]] = {
    "channels split into heads": (
        HEADS, SEQUENCE, ca.LayerGradCam(layer="layer"), "METHOD_INAPPLICABLE", "name the axis"),
    "no layer whose channels are known": (
        wired(lambda m, x: _head(m, m.layer(x), -1), layer=Mixing, head=linear), SEQUENCE,
        ca.LayerGradCam(layer="layer"), "METHOD_INAPPLICABLE", "name the axis"),
    "a norm of channels and positions": (
        image(conv(), nn.LayerNorm((6, 8, 8))), IMAGE, ca.LayerGradCam(layer="layer"), "METHOD_INAPPLICABLE",
        "name the axis"),
    "mixed channels of one token": (
        tokens(linear(), OwnNorm(-1)), {"x": SEQUENCE["x"][:, :1]}, ca.LayerGradCam(layer="layer"),
        "METHOD_INAPPLICABLE", "name the axis"),
    "mixed channels of pictures of one line": (
        image(conv(), OwnNorm(1)), {"x": IMAGE["x"][:, :, :1]}, ca.LayerGradCam(layer="layer"),
        "METHOD_INAPPLICABLE", "name the axis"),
    "the batch": (
        tokens(linear()), SEQUENCE, ca.LayerGradCam(layer="layer", channel_axis=-3), "INVALID_VALUE",
        "batch along axis 0"),
    "no such axis": (
        tokens(linear()), SEQUENCE, ca.LayerGradCam(layer="layer", channel_axis=3), "INVALID_VALUE",
        "one of these 3 axes"),
    "a rectifier whose own gradient is replaced": (
        wired(lambda m, x: _head(m, m.layer(m.before(x.movedim(1, -1))), -1), before=lambda: linear(3), layer=nn.ReLU,
              head=linear), IMAGE, ca.GuidedGradCam(layer="layer"), "METHOD_INAPPLICABLE", "GuidedBackprop"),
    "positions that the input does not have": (
        wired(lambda m, x: _head(m, m.layer(m.r(x)), -1), r=nn.ReLU, layer=linear, head=linear), SEQUENCE,
        ca.GuidedGradCam(layer="layer"), "METHOD_INAPPLICABLE", "GuidedBackprop"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(REFUSED))
def test_an_axis_that_cannot_be_known_is_asked_for(name: str) -> None:
    """An error at the option, in words that say what to do."""
    build, inputs, asked, reason, words = REFUSED[name]
    with pytest.raises(ca.CutawayError) as caught:
        ask(build().double(), inputs, asked, target=TARGET)
    assert (caught.value.reason, words in caught.value.message) == (reason, True), caught.value
    assert caught.value.field.endswith("channel_axis")


def test_each_attribution_that_is_refused_names_its_own_field() -> None:
    """Also where the same test refuses several."""
    build, inputs, asked, _, _ = REFUSED["channels split into heads"]
    model = build().double()
    subject = InspectedModel(model, lambda tensors: model(**tensors))
    request = ca.InspectRequest("m", attributions=(asked, asked), target=TARGET, attribution_errors_in_place=True)
    errors = [result.error for result in inspect(subject, request, inputs).attributions]
    assert [error.field for error in errors if error] == [
        f"attributions[{number}].layer_grad_cam.channel_axis" for number in range(2)
    ]


def test_a_layer_is_tested_once_for_a_kind_of_inputs() -> None:
    """Later requests run no pass more than those that name the axis."""
    runs: list[int] = []

    def counted(m: Any, x: Tensor) -> Tensor:
        runs.append(1)
        return _head(m, m.layer(m.before(x)), -1)

    model = wired(counted, before=linear, layer=nn.GELU, head=linear)().double()
    subject, counts = InspectedModel(model, lambda tensors: model(**tensors)), []
    for asked in (ca.LayerGradCam(layer="layer"), ca.LayerGradCam(layer="layer", channel_axis=-1)) * 3:
        runs.clear()
        check = CheckRequest(CheckMode.OFF)
        inspect(subject, ca.InspectRequest("m", attributions=(asked,), target=TARGET, check=check), SEQUENCE)
        counts.append(len(runs))
    assert counts[2:] == [2] * 4
    assert counts[0] > 2
