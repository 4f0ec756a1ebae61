"""Verdicts that can be believed: a right attribution is never called wrong, on networks of many kinds; and what Captum
overlooks is found out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from captum import attr
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from cutaway.contract.requests import Attribution, CheckMode, CheckRequest, Combination, Quadrature
from cutaway.contract.results import Cause, Verdict
from cutaway.engine.model.inspected_model import InspectedModel
from tests.support.broken_captum import spoiled
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
    model = sound.build()
    for mode in CheckMode:
        result = ask(model, sound.inputs, *sound.all, check=CheckRequest(mode)).attributions
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
    with spoiled(attr.Saliency, values=lambda values: values * 1.5):
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
    assert result.checks[0].cause is Cause.QUADRATURE_WEIGHTS


@pytest.mark.parametrize("combination", Combination)
def test_the_weights_of_trapezoids_are_found_in_noisy_copies(combination: Combination) -> None:
    """The squares of smoothgrad_sq and vargrad are too small by the square of the factor."""
    noisy = ca.NoiseTunnel(n_samples=3, stdev=0.1, combination=combination)
    asked = ca.IntegratedGradients(n_steps=9, quadrature=Quadrature.RIEMANN_TRAPEZOID, noise=noisy)
    result = ask(MLP(), {"x": noise(3, 8)}, asked, seed=0).attributions[0]
    assert (verdict(result), result.checks[0].cause) == (Verdict.DISAGREES, Cause.QUADRATURE_WEIGHTS)


def test_another_fault_is_not_put_down_to_the_weights_of_trapezoids() -> None:
    asked = ca.IntegratedGradients(n_steps=9, quadrature=Quadrature.RIEMANN_TRAPEZOID)
    with spoiled(attr.IntegratedGradients, lambda values: values * 0.9):
        result = ask(MLP(), {"x": noise(3, 8)}, asked).attributions[0]
    assert (verdict(result), result.checks[0].cause) == (Verdict.DISAGREES, Cause.UNKNOWN)


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


def test_no_check_is_made_where_none_is_asked_for() -> None:
    """OFF is off: no verdict, and no pass beyond Captum's own and the prediction's."""
    result = ask(MLP(), ROW, ca.Saliency(), check=CheckRequest(CheckMode.OFF))
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


@pytest.mark.parametrize("mode", CHECKED)
def test_each_tensor_of_a_layer_is_explained_and_checked(mode: CheckMode) -> None:
    """Where it returns two, also by methods that sum over passes."""

    class Halves(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x).split(4, dim=1)

    def forward(m: Any, x: Tensor) -> Tensor:
        first, second = m.halves(x)
        output: Tensor = m.b(m.relu(first)) + second
        return output

    build = wired(forward, halves=lambda: Halves(8, 8), relu=nn.ReLU, b=lambda: nn.Linear(4, 4))
    asked = [
        ca.LayerActivation(layer="halves"), ca.LayerConductance(layer="halves"), ca.InternalInfluence(layer="halves"),
        ca.LayerIntegratedGradients(layer="halves"), ca.LayerDeepLift(layer="halves"),
        ca.LayerFeatureAblation(layer="halves"), ca.LayerGradientXActivation(layer="halves"),
    ]  # fmt: skip
    for found in ask(build(), ROW, *asked, check=CheckRequest(mode)).attributions:
        assert list(found.values) == ["halves[0]", "halves[1]"]
        assert verdict(found) is Verdict.AGREES, (found, found.checks)


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
