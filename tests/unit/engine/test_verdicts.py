"""Verdicts that can be believed: a wrong attribution is never called right, a right one never wrong.

Captum is made wrong on purpose, in ways that libraries go wrong; and it is left alone on networks of many kinds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from captum import attr
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from cutaway.contract.requests import Attribution, CheckMode, CheckRequest, ClassIndex, Quadrature
from cutaway.contract.results import AttributionResult, Cause, Verdict
from cutaway.engine.model.inspected_model import InspectedModel
from tests.support.checked_attributions import (
    CHECKED,
    CNN,
    IDS,
    MLP,
    RANDOM,
    Build,
    LogitsOf,
    ask,
    bert,
    noise,
    to,
    verdict,
    wired,
)
from tests.support.plain_captum import by_hand
from tests.support.rounding import SMALL, close, rounding, within


class Small(nn.Module):
    """An image to three logits, with kinks; its two convolutions return the same shape."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv1 = nn.Conv2d(4, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1)
        self.fc = nn.Linear(4 * 20, 3)

    def forward(self, x: Tensor, gain: Tensor) -> Tensor:
        h = torch.relu(self.conv1(x)) * gain.reshape(-1, 1, 1, 1)
        return self.fc(torch.relu(self.conv2(h)).flatten(1))


INPUTS = {"x": noise(3, 4, 4, 5), "gain": torch.tensor([0.5, 1.0, 2.0])}
TARGET = ClassIndex((0, 1, 2))

METHODS: dict[str, Attribution] = {
    "Saliency": ca.Saliency(inputs=("x",)),
    "InputXGradient": ca.InputXGradient(inputs=("x",)),
    "IntegratedGradients": ca.IntegratedGradients(inputs=("x",), n_steps=20),
    "IntegratedGradients, midpoints": ca.IntegratedGradients(
        inputs=("x",), n_steps=20, quadrature=Quadrature.RIEMANN_MIDDLE
    ),
    "LayerActivation": ca.LayerActivation(layer="conv2"),
    "LayerGradientXActivation": ca.LayerGradientXActivation(layer="conv2"),
    "LayerGradCam": ca.LayerGradCam(layer="conv2"),
    "LayerGradCam, relu": ca.LayerGradCam(layer="conv2", relu=True),
}


def answer(method: str, mode: CheckMode, inputs: Mapping[str, Tensor] = INPUTS) -> AttributionResult:
    """One explanation of `Small`, checked."""
    return ask(Small(), inputs, METHODS[method], target=TARGET, check=CheckRequest(mode)).attributions[0]


# Captum gone wrong.


@dataclasses.dataclass(frozen=True)
class Fault:
    """One way in which an explanation can be wrong.

    Attributes:
        methods: the explanations it spoils.
        arguments: changes the arguments of ``attribute``; gets Captum's object and the keyword arguments.
        values: changes what ``attribute`` returned.
    """

    methods: tuple[str, ...] = tuple(METHODS)
    arguments: Callable[[Any, dict[str, Any]], Any] = lambda method, options: None
    values: Callable[[Tensor], Tensor] = lambda values: values


PATHS = ("IntegratedGradients", "IntegratedGradients, midpoints")
LAYERS = ("LayerActivation", "LayerGradientXActivation", "LayerGradCam", "LayerGradCam, relu")
TARGETED = tuple(name for name in METHODS if name != "LayerActivation")


def flip_a_row(values: Tensor) -> Tensor:
    changed = values.clone()
    changed[1] = -changed[1]
    return changed


def spoil_an_element(values: Tensor) -> Tensor:
    changed = values.clone()
    changed.view(-1)[changed.abs().argmax()] *= 1.01
    return changed


def lose_an_element(values: Tensor) -> Tensor:
    changed = values.clone()
    changed.view(-1)[0] = float("nan")
    return changed


def option(name: str, change: Callable[[Any], Any]) -> Callable[[Any, dict[str, Any]], None]:
    """Change one keyword argument."""

    def arguments(method: Any, options: dict[str, Any]) -> None:
        options[name] = change(options.get(name))

    return arguments


def other_layer(method: Any, options: dict[str, Any]) -> None:
    method.layer = LAYER_OF_ANOTHER[0]


LAYER_OF_ANOTHER: list[nn.Module] = []


def probabilities(method: Any, options: dict[str, Any]) -> None:
    logits = method.forward_func
    method.forward_func = lambda *tensors: logits(*tensors).softmax(1)


FAULTS: dict[str, Fault] = {
    "a hundredth too large": Fault(values=lambda values: values * 1.01),
    "the sign of one row": Fault(values=flip_a_row),
    "rows exchanged": Fault(values=lambda values: values.flip(0)),
    "one element off": Fault(values=spoil_an_element),
    "one element not a number": Fault(values=lose_an_element),
    "shifted by a pixel": Fault(values=lambda values: values.roll(1, -1)),
    "nothing but zeros": Fault(values=torch.zeros_like),
    "another shape": Fault(values=lambda values: values.flatten(1)),
    "another target": Fault(TARGETED, option("target", lambda target: (target + 1) % 3)),
    "targets exchanged between rows": Fault(TARGETED, option("target", lambda target: target.flip(0))),
    "probabilities for logits": Fault(TARGETED, probabilities),
    "another baseline": Fault(PATHS, option("baselines", lambda given: tuple(each + 0.1 for each in given))),
    "half the steps": Fault(PATHS, option("n_steps", lambda steps: steps // 2)),
    "a step too many": Fault(PATHS, option("n_steps", lambda steps: steps + 1)),
    "another quadrature": Fault(PATHS, option("method", lambda method: "riemann_left")),
    "without the factor": Fault(PATHS, lambda method, options: setattr(method, "_multiply_by_inputs", False)),
    "without the magnitude": Fault(("Saliency",), option("abs", lambda absolute: False)),
    "without the relu": Fault(("LayerGradCam, relu",), option("relu_attributions", lambda relu: False)),
    "with a relu": Fault(("LayerGradCam",), option("relu_attributions", lambda relu: True)),
    "another layer": Fault(LAYERS, other_layer),
    "the layer's input": Fault(LAYERS, option("attribute_to_layer_input", lambda given: True)),
    "further inputs exchanged": Fault(
        tuple(name for name in METHODS if name not in LAYERS),
        option("additional_forward_args", lambda given: (given[0].flip(0),)),
    ),
}


@contextmanager
def faulty(method: str, fault: Fault) -> Iterator[None]:
    """Captum with ``fault`` in the class that answers ``method``."""
    kind: Any = getattr(attr, type(METHODS[method]).__name__)

    def attribute(self: Any, inputs: Any, **options: Any) -> Any:
        fault.arguments(self, options)
        found = intact(self, inputs, **options)
        return tuple(map(fault.values, found)) if isinstance(found, tuple) else fault.values(found)

    with pytest.MonkeyPatch.context() as patch:
        intact = kind.attribute
        patch.setattr(kind, "attribute", attribute)
        yield


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("name", list(FAULTS))
def test_a_wrong_attribution_is_never_missed(name: str, mode: CheckMode) -> None:
    """Whatever is wrong with Captum's answer, the verdict is DISAGREES, with a reason, for every method concerned."""
    fault = FAULTS[name]
    model = Small()
    LAYER_OF_ANOTHER[:] = [model.conv1]
    verdicts = {}
    for method in fault.methods:
        with faulty(method, fault):
            result = ask(model, INPUTS, METHODS[method], target=TARGET, check=CheckRequest(mode)).attributions[0]
        assert result.checks[0].reason or verdict(result) is Verdict.AGREES
        verdicts[method] = verdict(result)
    assert set(verdicts.values()) == {Verdict.DISAGREES}, verdicts


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("method", list(METHODS))
def test_a_stale_answer_is_never_missed(method: str, mode: CheckMode) -> None:
    """The answer to the previous call's input, of the right shape and type, is found out."""
    kept: list[Any] = []
    kind: Any = getattr(attr, type(METHODS[method]).__name__)
    intact = kind.attribute

    def stale(self: Any, inputs: Any, **options: Any) -> Any:
        kept.append(intact(self, inputs, **options))
        return kept[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "attribute", stale)
        first = answer(method, mode, {**INPUTS, "x": INPUTS["x"] + 1})
        second = answer(method, mode)
    assert verdict(first) is Verdict.AGREES
    assert verdict(second) is Verdict.DISAGREES


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
    assert verdict(answer("LayerGradCam", mode)) is Verdict.DISAGREES


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_a_wrong_attribution_is_not_missed_in_other_data_types(dtype: torch.dtype, mode: CheckMode) -> None:
    """A tolerance for a coarse data type is no licence: a fifth too large is seen in all of them, and a row's sign."""
    inputs = {name: tensor.to(dtype) for name, tensor in INPUTS.items()}
    for method in METHODS:
        for change in (flip_a_row, lambda values: values * 1.2):
            with faulty(method, Fault(values=change)):
                result = ask(Small().to(dtype), inputs, METHODS[method], target=TARGET, check=CheckRequest(mode))
            assert verdict(result.attributions[0]) is Verdict.DISAGREES, method


@pytest.mark.parametrize("mode", CHECKED)
def test_a_faint_rows_fault_is_not_hidden_by_a_bright_one(mode: CheckMode) -> None:
    """Each row is measured against itself: a fault in a row a thousand times fainter is a fault."""
    inputs = {**INPUTS, "gain": torch.tensor([1.0, 1e-3, 1.0])}
    with faulty("LayerGradientXActivation", Fault(values=lambda v: torch.cat([v[:1], -v[1:2], v[2:]]))):
        assert verdict(answer("LayerGradientXActivation", mode, inputs)) is Verdict.DISAGREES


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("method", list(METHODS))
def test_a_row_has_its_own_outcome(method: str, mode: CheckMode) -> None:
    """One wrong row of a batch is wrong alone; the others have the verdict that they would have without it."""
    for change, cause in {flip_a_row: Cause.UNKNOWN, lose_an_element: Cause.NOT_FINITE}.items():
        with faulty(method, Fault(values=change)):
            checks = answer(method, mode).checks
        wrong = 1 if change is flip_a_row else 0
        first = checks[0]
        assert (first.verdict, first.cause) == (Verdict.DISAGREES, cause)
        for row, found in enumerate(first.rows):
            expected = (Verdict.DISAGREES, cause) if row == wrong else (Verdict.AGREES, None)
            assert (found.verdict, found.cause) == expected
            assert bool(found.reason) == (row == wrong)
            assert (found.max_relative_error <= first.tolerance) == (row != wrong)
        assert len(first.rows) == 3
        for further in checks[1:]:  # whether the sums are what they must be: not of a row whose sum is wrong
            assert [row.verdict is Verdict.AGREES for row in further.rows] == [row != wrong for row in range(3)]


def test_where_the_fault_is_the_models_no_row_is_excepted() -> None:
    """A batch that agrees, a single row, a model that couples its rows, and wrong passes have one outcome for all."""
    assert not any(check.rows for method in METHODS for check in answer(method, CheckMode.SAME_PASS).checks)
    alone = {name: tensor[:1] for name, tensor in INPUTS.items()}
    with faulty("Saliency", Fault(values=lambda values: -values)):
        found = ask(Small(), alone, METHODS["Saliency"], target=ClassIndex((0,))).attributions[0].checks[0]
        assert (found.verdict, found.rows) == (Verdict.DISAGREES, ())
    coupled = wired(lambda m, x: m.fc(x - x.mean(0, keepdim=True)), fc=lambda: nn.Linear(4, 3))()
    with faulty("Saliency", Fault(values=flip_a_row)):
        found = ask(coupled, {"x": noise(3, 4)}, ca.Saliency(), target=TARGET).attributions[0].checks[0]
    assert (found.verdict, found.rows) == (Verdict.DISAGREES, ())
    with faulty("Saliency", FAULTS["targets exchanged between rows"]):
        found = answer("Saliency", CheckMode.SAME_PASS).checks[0]
    assert (found.cause, found.rows) == (Cause.OTHER_PASSES, ())


# Captum left alone.


@dataclasses.dataclass(frozen=True)
class Sound:
    """A network, and the explanations that fit it.

    Attributes:
        build: makes it; seeded.
        inputs: what goes in.
        layer: where layers are explained.
        asked: explanations besides those of the layer.
        relative: how closely the reply must equal Captum called by hand; None: but for rounding.
    """

    build: Build
    inputs: Mapping[str, Tensor]
    layer: str
    asked: tuple[Attribution, ...] = (ca.Saliency(), ca.InputXGradient(), ca.IntegratedGradients(n_steps=12))
    relative: float | None = None

    @property
    def all(self) -> tuple[Attribution, ...]:
        """Every explanation."""
        layer = self.layer
        return (
            *self.asked, ca.LayerActivation(layer=layer), ca.LayerGradientXActivation(layer=layer),
            ca.LayerGradCam(layer=layer), ca.LayerGradCam(layer=layer, relu=True),
        )  # fmt: skip


def resnet() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    config = ResNetConfig(num_channels=3, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    config.num_labels = 3
    return LogitsOf(ResNetForImageClassification(config)).eval()


def attend(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    scores = m.query(x) @ x.transpose(1, 2) + mask.unsqueeze(1)
    return m.head((scores.softmax(-1) @ x).mean(1))


def half(m: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return m.head(torch.relu(m.b(torch.relu(m.a(x)))).mean((2, 3))).float()


def half_way(m: Any, x: Tensor) -> Tensor:
    return m.head(torch.relu(m.b(torch.relu(m.a(x)).bfloat16()).float()))


def cosines(m: Any, x: Tensor) -> Tensor:
    return F.normalize(m.pool(torch.relu(m.conv(x))).flatten(1)) @ F.normalize(m.prototypes).T


def undefined_below_zero(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.head(torch.where(h > 0, h.sqrt(), torch.zeros_like(h)))


WIDE = wired(
    lambda m, x: m.head(torch.relu(m.b(torch.relu(m.a(x)))).mean((2, 3))),
    a=lambda: nn.Conv2d(3, 64, 3), b=lambda: nn.Conv2d(64, 256, 3), head=lambda: nn.Linear(256, 3),
)  # fmt: skip
IMAGE = {"x": noise(2, 3, 8, 8)}
ROW = {"x": noise(3, 8)}
SEQUENCE = {"x": noise(3, 5, 8)}

SOUND: dict[str, Sound] = {
    "perceptron": Sound(MLP, ROW, "a"),
    "perceptron, float64": Sound(to(MLP, torch.float64), {"x": noise(3, 8, dtype=torch.float64)}, "a"),
    "perceptron, bfloat16": Sound(
        to(MLP, torch.bfloat16), {"x": noise(3, 8, dtype=torch.bfloat16)}, "a", relative=0.02),
    "perceptron, float16": Sound(to(MLP, torch.float16), {"x": noise(3, 8, dtype=torch.float16)}, "a", relative=0.01),
    "convolutions with batch norm": Sound(CNN, IMAGE, "conv"),
    "wide convolutions, bfloat16": Sound(
        to(WIDE, torch.bfloat16), {"x": noise(2, 3, 8, 8, dtype=torch.bfloat16)}, "b", relative=0.02),
    "ResNet": Sound(resnet, {"pixel_values": noise(2, 3, 24, 24)}, "network.resnet.encoder.stages.0"),
    "BERT": Sound(bert, IDS, "network.bert.encoder.layer.0.output", asked=()),
    "BERT, at its embedding": Sound(bert, IDS, "network.bert.embeddings.word_embeddings", asked=()),
    "GRU": Sound(
        wired(lambda m, x: m.head(m.pick(m.rnn(x)[0])), rnn=lambda: nn.GRU(8, 6, batch_first=True),
              pick=lambda: nn.Flatten(), head=lambda: nn.Linear(30, 3)), SEQUENCE, "pick"),
    "LSTM": Sound(
        wired(lambda m, x: m.head(m.rnn(m.a(x))[0].mean(1)), a=lambda: nn.Linear(8, 8),
              rnn=lambda: nn.LSTM(8, 6, batch_first=True), head=lambda: nn.Linear(6, 3)), SEQUENCE, "a"),
    "transformer": Sound(
        wired(lambda m, x: m.head(m.layer(x).mean(1)),
              layer=lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), head=lambda: nn.Linear(8, 3)),
        SEQUENCE, "layer.linear1"),
    "attention with a mask of minus infinities": Sound(
        wired(attend, query=lambda: nn.Linear(8, 8), head=lambda: nn.Linear(8, 3)),
        {**SEQUENCE, "mask": torch.zeros(3, 5).index_fill(1, torch.tensor([4]), -torch.inf)}, "query",
        asked=(ca.Saliency(), ca.Saliency(inputs=("x",)), ca.IntegratedGradients(inputs=("x",), n_steps=12))),
    "autocast": Sound(
        wired(half, a=lambda: nn.Conv2d(3, 16, 3), b=lambda: nn.Conv2d(16, 64, 3), head=lambda: nn.Linear(64, 3)),
        IMAGE, "b", relative=0.05),
    "one layer in bfloat16": Sound(
        wired(half_way, a=lambda: nn.Linear(8, 32), b=lambda: nn.Linear(32, 32).bfloat16(),
              head=lambda: nn.Linear(32, 3)), ROW, "b", relative=0.02),
    "a first parameter in float64": Sound(
        wired(lambda m, x: m.head(torch.relu(m.a(x))) * m.scale.float(),
              scale=lambda: nn.Parameter(torch.ones(1, dtype=torch.float64)), a=lambda: nn.Linear(8, 16),
              head=lambda: nn.Linear(16, 3)), ROW, "a"),
    "no parameters, bfloat16": Sound(
        wired(lambda m, x: m.id(x.tanh()) * x.sigmoid().mean(1, keepdim=True), id=nn.Identity),
        {"x": noise(3, 8, dtype=torch.bfloat16)}, "id", relative=0.02),
    "no parameters, float64": Sound(
        wired(lambda m, x: m.id(x.tanh()) * x.sigmoid().mean(1, keepdim=True), id=nn.Identity),
        {"x": noise(3, 8, dtype=torch.float64)}, "id"),
    "cosines, where Grad-CAM's sum is nought": Sound(
        wired(cosines, conv=lambda: nn.Conv2d(3, 16, 3), pool=lambda: nn.AdaptiveAvgPool2d(1),
              prototypes=lambda: nn.Parameter(noise(3, 16))), IMAGE, "pool", relative=3.0),
    "an even function from -x to x": Sound(
        wired(lambda m, x: m.head(m.id(x) ** 2), id=nn.Identity, head=lambda: nn.Linear(8, 3, bias=False)),
        ROW, "id", asked=(ca.IntegratedGradients(baselines={"x": -ROW["x"].numpy()}, n_steps=12),), relative=3.0),
    "baseline and input the same": Sound(
        MLP, ROW, "a", asked=(ca.IntegratedGradients(baselines={"x": ROW["x"].numpy()}, n_steps=12),)),
    "gradients that are not numbers": Sound(
        wired(undefined_below_zero, a=lambda: nn.Linear(8, 16), head=lambda: nn.Linear(16, 3)), ROW, "a"),
    "one row": Sound(CNN, {"x": noise(1, 3, 8, 8)}, "conv"),
    "seventy rows": Sound(MLP, {"x": noise(70, 8)}, "a"),
    "one number an example": Sound(
        wired(lambda m, x: m.head(torch.relu(m.a(x))).sum(1), a=lambda: nn.Linear(8, 16),
              head=lambda: nn.Linear(16, 3)), ROW, "a"),
    "one column": Sound(
        wired(lambda m, x: m.head(torch.relu(m.a(x))), a=lambda: nn.Linear(8, 16), head=lambda: nn.Linear(16, 1)),
        ROW, "a"),
    "frozen": Sound(lambda: MLP().requires_grad_(False), ROW, "a"),
}  # fmt: skip

NO_NUMBERS = {"gradients that are not numbers"}


@pytest.mark.parametrize("name", list(SOUND))
def test_a_right_attribution_is_captums_and_never_called_wrong(name: str) -> None:
    """Captum as it is, on networks and numbers of many kinds: in all modes the reply is what Captum says when called by
    hand, and no verdict is DISAGREES."""
    sound = SOUND[name]
    expected = [by_hand(sound.build(), sound.inputs, each) for each in sound.all]
    for mode in CheckMode:
        result = ask(sound.build(), sound.inputs, *sound.all, check=CheckRequest(mode)).attributions
        wrong = [got for got in result if Verdict.DISAGREES in {check.verdict for check in got.checks}]
        assert not wrong
        if name in NO_NUMBERS:
            continue
        for wanted, got in zip(expected, result, strict=True):
            for theirs, ours in zip(wanted, got.values.values(), strict=True):
                assert within(ours, theirs, sound.relative or rounding(theirs.dtype, SMALL)), (mode, got.method)
        if mode is not CheckMode.OFF:
            found = [verdict(got) for got in result]
            assert set(found) <= {Verdict.AGREES, Verdict.INCONCLUSIVE}
            assert found.count(Verdict.AGREES) >= len(sound.all) / 2


# Where Captum itself is wrong, and where nobody can tell.


def shortcut(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.head(torch.relu(h * 2) + m.id(h))


SHORTCUT = wired(shortcut, a=lambda: nn.Linear(8, 8), id=nn.Identity, head=lambda: nn.Linear(8, 3))


@pytest.mark.parametrize("mode", list(CheckMode))
def test_an_identity_beside_its_input_is_captums_error_and_found_out(mode: CheckMode) -> None:
    """Captum differentiates at the tensor that nn.Identity passes on, which also flows past it; a full backward hook
    sees what flows through it. The reply is Captum's answer in every mode, and no check calls it right."""
    asked = ca.LayerGradientXActivation(layer="id")
    result = ask(SHORTCUT(), ROW, asked, check=CheckRequest(mode)).attributions[0]
    assert close(result.values["id"], by_hand(SHORTCUT(), ROW, asked)[0], SMALL)
    if mode is not CheckMode.OFF:
        assert verdict(result) is not Verdict.AGREES


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("kind", [ca.LayerActivation, ca.LayerGradientXActivation, ca.LayerGradCam])
def test_a_layer_called_twice_is_explained_once_and_found_out(kind: type[ca.LayerActivation], mode: CheckMode) -> None:
    """Captum explains one call of a layer that is called twice: DISAGREES, and the reason says so."""
    twice = wired(lambda m, x: m.head(m.a(torch.relu(m.a(x)))), a=lambda: nn.Linear(8, 8), head=lambda: nn.Linear(8, 3))
    result = ask(twice(), ROW, kind(layer="a"), check=CheckRequest(mode)).attributions[0]
    assert verdict(result) is Verdict.DISAGREES
    assert "called 2 times" in result.checks[0].reason


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("kind", [ca.LayerActivation, ca.LayerGradientXActivation, ca.LayerGradCam])
def test_an_operation_in_place_after_the_layer_does_not_fool_the_check(
    kind: type[ca.LayerActivation], mode: CheckMode
) -> None:
    """Where the activation after a convolution overwrites its output: AGREES means the value before it was
    overwritten, as in the same network without operations in place."""

    def net(inplace: bool) -> Build:
        return wired(
            lambda m, x: m.head(m.act(m.conv(x)).mean((2, 3))),
            conv=lambda: nn.Conv2d(3, 8, 3), act=lambda: nn.ReLU(inplace), head=lambda: nn.Linear(8, 3),
        )  # fmt: skip

    result = ask(net(True)(), IMAGE, kind(layer="conv"), check=CheckRequest(mode)).attributions[0]
    right = close(result.values["conv"], by_hand(net(False)(), IMAGE, kind(layer="conv"))[0], SMALL)
    assert verdict(result) is (Verdict.AGREES if right else Verdict.DISAGREES)


def change_what_came_out(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    m.id(h).add_(1)
    return m.head(torch.tanh(h))


@pytest.mark.parametrize("mode", list(CheckMode))
def test_listening_does_not_change_what_the_model_computes(mode: CheckMode) -> None:
    """A module that passes its input on, changed in place under its new name and used under the old: Captum's answer
    is the same with hooks listening and without, and a copy that a hook made is not mistaken for the model."""
    alias = wired(change_what_came_out, a=lambda: nn.Linear(8, 8), id=nn.Identity, head=lambda: nn.Linear(8, 3))
    for asked in (ca.LayerGradCam(layer="id"), ca.LayerGradientXActivation(layer="id")):
        result = ask(alias(), ROW, asked, check=CheckRequest(mode)).attributions[0]
        assert close(result.values["id"], by_hand(alias(), ROW, asked)[0], SMALL)


def test_randomness_is_named_where_two_passes_differ() -> None:
    """Dropout that ignores evaluation: the same pass agrees with itself, and still no explanation of such a model can
    be relied on; the reason says where the two runs part."""
    asked = (ca.Saliency(), ca.LayerGradientXActivation(layer="a"))
    for mode in CHECKED:
        for each in ask(RANDOM(), ROW, *asked, check=CheckRequest(mode)).attributions:
            check = each.checks[0]
            assert (check.verdict, check.cause) == (Verdict.INCONCLUSIVE, Cause.RANDOM_FORWARD)
            assert "':dropout#0'" in check.reason


def test_randomness_excuses_nothing_that_was_heard_in_the_same_pass() -> None:
    """The hooks listened to the very pass that Captum ran: what differs from it is wrong, however random the model."""
    with faulty("Saliency", Fault(values=lambda values: values * 1.5)):
        result = ask(RANDOM(), ROW, ca.Saliency(), check=CheckRequest(CheckMode.SAME_PASS)).attributions[0]
    assert verdict(result) is Verdict.DISAGREES


@pytest.mark.parametrize("mode", CHECKED)
def test_a_gradient_of_nought_is_inconclusive(mode: CheckMode) -> None:
    """Where everything is zero, agreement says nothing."""
    dead = wired(lambda m, x: m.head(torch.relu(m.a(x) - 1e6)), a=lambda: nn.Linear(8, 8), head=lambda: nn.Linear(8, 3))
    for asked in (ca.Saliency(), ca.IntegratedGradients(n_steps=4), ca.LayerGradCam(layer="a")):
        result = ask(dead(), ROW, asked, check=CheckRequest(mode)).attributions[0]
        assert verdict(result) is Verdict.INCONCLUSIVE
        assert "zero" in result.checks[0].reason


@pytest.mark.parametrize("mode", CHECKED)
def test_what_is_not_a_number_on_both_sides_is_no_disagreement(mode: CheckMode) -> None:
    """Captum and the hooks both see NaN: neither right nor wrong, and the reason says what is there."""
    sound = SOUND["gradients that are not numbers"]
    result = ask(sound.build(), sound.inputs, ca.Saliency(), check=CheckRequest(mode)).attributions[0]
    assert np.isnan(result.values["x"]).any()
    assert verdict(result) is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("mode", CHECKED)
def test_the_weights_of_captums_trapezoids_are_found_out(mode: CheckMode) -> None:
    """The weights of Captum 0.9's ``riemann_trapezoid`` sum to (n - 1) / n: for 20 steps the answer is 5 % small."""
    asked = ca.IntegratedGradients(n_steps=20, quadrature=Quadrature.RIEMANN_TRAPEZOID)
    linear = wired(lambda m, x: m.head(x), head=lambda: nn.Linear(8, 3))
    result = ask(linear(), ROW, asked, check=CheckRequest(mode)).attributions[0]
    assert verdict(result) is Verdict.DISAGREES
    assert result.checks[0].max_relative_error == pytest.approx(1 / 20, rel=1e-3)


@pytest.mark.parametrize("mode", CHECKED)
def test_too_few_steps_are_told_by_completeness_and_not_by_the_identity(mode: CheckMode) -> None:
    """Two steps through a network with kinks: Captum did what it was asked (AGREES), but the sum misses the target's
    change (INCONCLUSIVE), and more steps mend that."""
    kinked = {"x": noise(3, 8) * 5}
    few, many = (
        ask(MLP(), kinked, ca.IntegratedGradients(n_steps=steps), check=CheckRequest(mode)).attributions[0]
        for steps in (2, 500)
    )
    assert [check.verdict for check in few.checks] == [Verdict.AGREES, Verdict.INCONCLUSIVE]
    assert few.checks[1].cause is Cause.TOO_FEW_STEPS
    assert "n_steps=16" in few.checks[1].reason
    assert [check.verdict for check in many.checks] == [Verdict.AGREES, Verdict.AGREES]


@pytest.mark.parametrize("mode", CHECKED)
def test_the_callers_tolerance_holds_and_is_stated(mode: CheckMode) -> None:
    """A tolerance of the caller's decides and comes back; a fault below it agrees, one above it does not."""
    verdicts = []
    for tolerance in (0.05, 0.001):
        with faulty("LayerGradCam", FAULTS["a hundredth too large"]):
            check = CheckRequest(mode, relative_tolerance=tolerance)
            result = ask(Small(), INPUTS, METHODS["LayerGradCam"], target=TARGET, check=check).attributions[0]
        assert result.checks[0].tolerance == tolerance
        verdicts.append(verdict(result))
    assert verdicts == [Verdict.AGREES, Verdict.DISAGREES]


def test_a_check_that_disagrees_states_how_far() -> None:
    """The numbers beside a verdict are those of the comparison: 1 % too large is an error of 0.01."""
    with faulty("LayerActivation", FAULTS["a hundredth too large"]):
        check = answer("LayerActivation", CheckMode.SAME_PASS).checks[0]
    assert check.max_relative_error == pytest.approx(0.01, rel=1e-3)
    assert check.cosine == pytest.approx(1.0)


def test_no_check_is_made_where_none_is_asked_for() -> None:
    """OFF is off: no verdict, and no pass beyond Captum's own and the prediction's."""
    result = ask(Small(), INPUTS, METHODS["Saliency"], target=TARGET, check=CheckRequest(CheckMode.OFF))
    assert result.attributions[0].checks == ()
    assert (result.provenance.forwards, result.provenance.backwards) == (2, 1)


@pytest.mark.parametrize("mode", CHECKED)
def test_a_layer_that_returns_a_tuple_of_one_is_explained_like_any_other(mode: CheckMode) -> None:
    """Captum explains what is in it; the hooks' tensor is the same one, and not another by its place in the tuple."""

    class Wrapped(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return (super().forward(x),)

    build = wired(lambda m, x: m.b(torch.tanh(m.a(x)[0])), a=lambda: Wrapped(8, 4), b=lambda: nn.Linear(4, 3))
    for asked in (ca.LayerActivation(layer="a"), ca.LayerGradientXActivation(layer="a")):
        assert verdict(ask(build(), ROW, asked, check=CheckRequest(mode)).attributions[0]) is Verdict.AGREES


def test_an_earlier_pass_can_be_differentiated_after_a_later_one() -> None:
    """Captum runs several passes before it goes back through them: what is renewed before each is still what the graph
    of an earlier one needs."""
    model = wired(lambda m, x: m.b(m.n(m.a(x))), a=lambda: nn.Linear(8, 4), n=lambda: nn.BatchNorm1d(4),
                  b=lambda: nn.Linear(4, 3))()  # fmt: skip
    subject = InspectedModel(model, lambda tensors: model(**tensors))
    leaf = noise(3, 8).requires_grad_()
    with subject.guard.restoring():
        first, _ = (subject.run({"x": leaf})["output"] for _ in range(2))
        (gradient,) = torch.autograd.grad(first.sum(), leaf)
    assert bool(gradient.any())
