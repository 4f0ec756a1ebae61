"""The backward pass of a model that is edited at an operator: tested as it is edited, whatever operator that is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function, forward_ad
from torch.nn import functional as F

import cutaway as ca
from cutaway.contract.results import Cause, Verdict
from cutaway.engine.checks.forward_mode import tangents_pass
from tests.matrix.healthy_models.parts import Swish
from tests.support.checked_attributions import Build, ask, noise, wired
from tests.support.wrong_parts import Part, changed

IMAGE, VECTOR = {"x": noise(3, 2, 4, 4)}, {"x": noise(3, 4)}
AGREES = (Verdict.AGREES, None)
WRONG = (Verdict.INCONCLUSIVE, Cause.WRONG_BACKWARD)


class Float32Swish(Function):
    """Swish for float32 alone, of which only its operators show the derivative."""

    @staticmethod
    def forward(ctx: Function, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.float().sigmoid()

    backward = staticmethod(Swish.backward)


class Separate(Function):
    """The same, with a context of its own, where an operator runs for the backward, and a number leaves PyTorch."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x.float().sigmoid()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.largest = float((inputs[0] * 2.0).max())

    backward = staticmethod(Swish.backward)


class Applied(Function):
    """A module that is Tanh, called by a function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: nn.Module) -> Tensor:
        y: Tensor = module(x)
        ctx.save_for_backward(y)
        return y.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return gradient * (1 - y * y), None


class AppliedFloat32(Applied):
    """The same, for float32 alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: nn.Module) -> Tensor:
        y: Tensor = module(x.float())
        ctx.save_for_backward(y)
        return y.clone()


def functional(through: Part) -> Build:
    return wired(
        lambda m, x: F.linear(torch.tanh(F.linear(through(torch.tanh(F.linear(x, m.v))), m.w)), m.u),
        v=lambda: nn.Parameter(noise(4, 4)),
        w=lambda: nn.Parameter(noise(4, 4, seed=2)),
        u=lambda: nn.Parameter(noise(3, 4, seed=3)),
    )


def modules(through: Part) -> Build:
    return wired(
        lambda m, x: m.b(torch.tanh(m.n(m.a(through(x))))),
        a=lambda: nn.Linear(4, 6), n=lambda: nn.BatchNorm1d(6), b=lambda: nn.Linear(6, 3),
    )  # fmt: skip


def convolution(through: Part) -> Build:
    return wired(
        lambda m, x: m.b(torch.tanh(m.a(through(x))).flatten(1)),
        a=lambda: nn.Conv2d(2, 3, 3), b=lambda: nn.Linear(12, 3),
    )  # fmt: skip


def behind(function: type[Function]) -> Build:
    return wired(
        lambda m, x: m.b(torch.tanh(function.apply(m.a(x)) * 1.5)), a=lambda: nn.Linear(4, 6), b=lambda: nn.Linear(6, 3)
    )


def unchanged(h: Tensor) -> Tensor:
    return h


AT = {
    "a linear module": (modules, "a:linear#0"),
    "the last linear module": (modules, "b:linear#0"),
    "a batch norm": (modules, "n:batch_norm#0"),
    "a convolution": (convolution, "a:conv2d#0"),
    "the first of several": (functional, ":linear#0"),
    "the second of several": (functional, ":linear#1"),
    "an operator behind several": (functional, ":tanh#1"),
}
EDITS = {
    "scale": lambda op: ca.Scale(op=op, factor=2.0),
    "add": lambda op: ca.Add(op=op, addend=0.5),
    "clamp": lambda op: ca.Clamp(op=op, minimum=-1.5, maximum=1.5),
    "its first call": lambda op: ca.Scale(op=op, factor=2.0, call=0),
}


def outcome(build: Build, edit: ca.Edit, x: dict[str, Tensor]) -> tuple[Verdict, Cause | None]:
    (check,) = ask(build(), x, ca.Saliency(), edits=(edit,), target=ca.OutputSum()).attributions[0].checks
    return check.verdict, check.cause


@pytest.mark.parametrize("edit", list(EDITS))
@pytest.mark.parametrize("at", list(AT))
def test_an_edited_operator_raises_no_doubt_and_ends_none(at: str, edit: str) -> None:
    """A right gradient of the edited model is not doubted; a reversed one is, beside the same edit."""
    model, op = AT[at]
    x = IMAGE if model is convolution else VECTOR
    made = EDITS[edit](op)
    assert outcome(model(unchanged), made, x) == AGREES
    assert outcome(model(changed(torch.neg)), made, x) == WRONG


@pytest.mark.parametrize("edit", list(EDITS))
@pytest.mark.parametrize("function", [Swish, Float32Swish])
def test_an_operator_behind_a_custom_function_has_its_own_number(function: type[Function], edit: str) -> None:
    """The test calls the function several times: the product behind it stays the second of the model."""
    assert outcome(behind(function), EDITS[edit](":mul#1"), VECTOR) == AGREES


@pytest.mark.parametrize("edit", ["scale", "its first call"])
@pytest.mark.parametrize("function", [Swish, Float32Swish])
def test_an_edit_inside_a_custom_function_is_unknown_to_its_backward(function: type[Function], edit: str) -> None:
    """The gradient is that of the function without the edit, and the model computes another one."""
    assert outcome(behind(function), EDITS[edit](":mul#0"), VECTOR) == WRONG


def test_a_number_that_is_added_inside_changes_no_derivative() -> None:
    """There the function's own backward is right."""
    assert outcome(behind(Swish), EDITS["add"](":mul#0"), VECTOR) == AGREES


@pytest.mark.parametrize("edit", list(EDITS))
def test_an_operator_of_a_context_has_its_number_too(edit: str) -> None:
    """It runs beside ``forward``, also where the test runs the operators of that."""
    assert outcome(behind(Separate), EDITS[edit](":mul#2"), VECTOR) == AGREES


def test_a_number_that_a_context_takes_hides_no_derivative() -> None:
    """It is for the backward pass: the outputs have their tangents."""
    x, along = VECTOR["x"], torch.ones_like(VECTOR["x"])
    with tangents_pass([]) as left:
        output = forward_ad.unpack_dual(Separate.apply(forward_ad.make_dual(x, along)))
    assert left == []
    sigmoid = x.sigmoid()
    torch.testing.assert_close(output.tangent, sigmoid + x * sigmoid * (1 - sigmoid))


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize("function", [Applied, AppliedFloat32])
def test_a_module_that_a_custom_function_calls_keeps_its_numbers(
    function: type[Function], call: int, inside: bool
) -> None:
    """The test calls the function several times: the call behind it stays the second of the module."""
    build = wired(
        lambda m, x: m.b(m.t(m.t(function.apply(m.a(x), m.t)) * 1.5)),
        a=lambda: nn.Linear(4, 6), t=nn.Tanh, b=lambda: nn.Linear(6, 3),
    )  # fmt: skip
    edits = [ca.Scale(module="t", factor=2.0, call=call), *([ca.Scale(op="a:linear#0", factor=2.0)] if inside else [])]
    (check,) = ask(build(), VECTOR, ca.Saliency(), edits=tuple(edits), target=ca.OutputSum()).attributions[0].checks
    assert (check.verdict, check.cause) == AGREES
