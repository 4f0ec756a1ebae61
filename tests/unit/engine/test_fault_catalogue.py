"""The catalogue of faults: ways in which an explanation goes wrong without a word, each of them found out.

Found out means that the verdict is not AGREES, with the right cause, and with words that name the place. Beside each
fault stands the same question put to a sound model, or to Captum as it is: there the verdict is AGREES.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from cutaway.contract.requests import Attribution, CheckMode, CheckRequest
from cutaway.contract.results import Check, Verdict
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from tests.matrix.family_faults import FAMILY_KINDS
from tests.matrix.fault import Fault as FaultOfFamily
from tests.matrix.fault import answer, right_answer
from tests.support.checked_attributions import CHECKED, wired
from tests.support.faults import FAULTS, IMAGE, SMOOTH, STEPS, VECTOR, Fault, convolutions, layers, pooled
from tests.support.function_module import Through as Calling


class Doubled(torch.autograd.Function):
    """Twice its input, and twice the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2


RECTIFIED = convolutions(lambda m, x: pooled(m, m.r2(m.b(m.r1(m.a(x))))), r1=nn.ReLU, r2=nn.ReLU)


# Captum changed.


def found(fault: Fault, mode: CheckMode) -> Check:
    """The check that is to find ``fault``."""
    with fault.around():
        return answered(fault.build(), fault.asked, fault.inputs, mode)[fault.check]


def answered(model: nn.Module, asked: Attribution, inputs: dict[str, Tensor], mode: CheckMode) -> tuple[Check, ...]:
    """What the checks of one explanation say."""
    subject = InspectedModel(model, lambda tensors: model(*tensors.values()))
    request = ca.InspectRequest("m", attributions=(asked,), check=CheckRequest(mode))
    return inspect(subject, request, dict(inputs)).attributions[0].checks


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("name", list(FAULTS))
def test_every_fault_is_found_out_with_its_cause(name: str, mode: CheckMode) -> None:
    """Not AGREES, the right cause for programs, and words for people that name the place."""
    fault = FAULTS[name]
    check = found(fault, mode)
    assert check.verdict in (Verdict.DISAGREES, Verdict.INCONCLUSIVE), check
    assert check.cause is fault.cause, check
    assert fault.words in check.reason, check.reason


@cache
def family_faults() -> list[FaultOfFamily]:
    """Those of the families of healthy models; `make verdicts` asks them all, in two data types."""
    return [fault for kind in FAMILY_KINDS for fault in kind()]


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("number", range(0, 247, 13))
def test_every_thirteenth_fault_of_the_families_is_found(number: int, mode: CheckMode) -> None:
    """In the healthy models of every family: not AGREES, and one of the causes that are right."""
    fault = family_faults()[number]
    check = answer(fault, torch.float32, mode).checks[fault.check]
    assert check.verdict in (Verdict.DISAGREES, Verdict.INCONCLUSIVE), (fault.kind, check)
    assert check.cause in fault.causes, (fault.kind, check)


@pytest.mark.parametrize("number", range(0, 247, 26))
def test_the_families_without_the_fault_agree(number: int) -> None:
    """What makes the difference is the fault."""
    fault = family_faults()[number]
    check = right_answer(fault, torch.float32, CheckMode.SAME_PASS).checks[fault.check]
    assert check.verdict is Verdict.AGREES, (fault.kind, check)


@dataclasses.dataclass(frozen=True)
class Refused:
    """A way to be wrong that is not let in.

    Attributes:
        build: the model.
        asked: the explanation.
        reason: what the refusal is called.
        words: what it must say.
    """

    build: Callable[[], nn.Module]
    asked: Attribution
    reason: str
    words: str


def compiled() -> nn.Module:
    part: Any = torch.compile(nn.Linear(4, 3))
    return nn.Sequential(nn.Linear(8, 4), part)


def quantised() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 3)), {nn.Linear})


REFUSED: dict[str, Refused] = {
    "a part that is compiled": Refused(compiled, ca.Saliency(), "MODEL_COMPILED", "'1'"),
    "a part that is quantised": Refused(quantised, ca.Saliency(), "MODEL_QUANTISED", "'0'"),
    "a part that is scripted": Refused(
        lambda: nn.Sequential(torch.jit.script(nn.Linear(8, 3))), ca.Saliency(), "MODEL_SCRIPTED", "'0'"
    ),
    "a layer that never fires": Refused(
        layers(lambda m, x: m.b(m.a(x)), c=lambda: nn.Linear(2, 2)), ca.LayerActivation(layer="c"),
        "METHOD_INAPPLICABLE", "never called its module 'c'",
    ),
    "a layer whose weights are read and which is not called": Refused(
        layers(lambda m, x: m.b(F.linear(x, m.a.weight))), ca.LayerGradCam(layer="a"), "METHOD_INAPPLICABLE", "'a'"
    ),
    "a rectifier called twice under DeepLIFT": Refused(
        wired(lambda m, x: m.b(m.r(m.c(m.r(m.a(x))))), a=lambda: nn.Linear(8, 8), c=lambda: nn.Linear(8, 8),
              b=lambda: nn.Linear(8, 3), r=nn.ReLU),
        ca.DeepLift(), "METHOD_INAPPLICABLE", "'r' is called 2 times",
    ),
    "an activation that relevance has no rule for": Refused(
        layers(lambda m, x: m.b(m.act(m.a(x))), act=nn.GELU), ca.LRP(), "METHOD_INAPPLICABLE", "'act' is a GELU"
    ),
    "a layer that the target does not depend on": Refused(
        layers(lambda m, x: m.b(m.a(x)) + m.c(x).detach().sum(), c=lambda: nn.Linear(8, 2)),
        ca.LayerGradientXActivation(layer="c"), "NOT_DIFFERENTIABLE", "'c'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_cannot_be_explained_is_refused_by_name(name: str) -> None:
    """An error with its own reason and the place, and no attribution that looks like one."""
    fault = REFUSED[name]
    with pytest.raises(ca.CutawayError) as caught:
        answered(fault.build(), fault.asked, VECTOR, CheckMode.SAME_PASS)
    assert caught.value.reason == fault.reason
    assert fault.words in caught.value.message


SOUND: dict[str, tuple[Callable[[], nn.Module], Attribution, dict[str, Tensor]]] = {
    "guided backpropagation through modules": (RECTIFIED, ca.GuidedBackprop(), IMAGE),
    "deconvolution through modules": (RECTIFIED, ca.Deconvolution(), IMAGE),
    "DeepLIFT through modules": (layers(lambda m, x: m.b(m.r(m.a(x))), r=nn.ReLU), ca.DeepLift(), VECTOR),
    "relevance through modules": (layers(lambda m, x: m.b(m.r(m.a(x))), r=nn.ReLU), ca.LRP(), VECTOR),
    "dropout that is off": (layers(lambda m, x: m.b(m.d(m.a(x))), d=nn.Dropout), ca.Saliency(), VECTOR),
    "a batch norm that is off": (
        convolutions(lambda m, x: pooled(m, torch.tanh(m.n(m.a(x)))), n=lambda: nn.BatchNorm2d(8)), ca.Saliency(), IMAGE
    ),
    "a custom function with a right backward": (
        layers(lambda m, x: m.b(m.act(m.a(x))), act=lambda: Calling(Doubled.apply)), ca.Saliency(), VECTOR
    ),
    "a gradient": (SMOOTH, ca.Saliency(), VECTOR),
    "a path": (SMOOTH, STEPS, VECTOR),
}  # fmt: skip


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("name", list(SOUND))
def test_the_same_without_the_fault_agrees(name: str, mode: CheckMode) -> None:
    """The catalogue cries no wolf: what makes the difference is the fault."""
    build, asked, inputs = SOUND[name]
    identity, *sums = answered(build(), asked, inputs, mode)
    assert identity.verdict is Verdict.AGREES
    assert {check.verdict for check in sums} <= {Verdict.AGREES, Verdict.NOT_APPLICABLE}
