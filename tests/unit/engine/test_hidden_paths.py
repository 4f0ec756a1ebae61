"""Paths through a model that the test of its backward pass could lose, or take for wrong: a value that is cut off from
the gradient is found out however that is done, and a sound model is not doubted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.dlpack import from_dlpack

import cutaway as ca
from cutaway.contract.results import Cause
from tests.support.checked_attributions import ask, noise
from tests.support.function_module import Through
from tests.support.wrong_parts import changed

Function: TypeAlias = Callable[[Tensor], Tensor]

X, CONSTANT, MATRIX = noise(3, 8), noise(3, 16, seed=5), noise(16, 16)


def cause(function: Function, target: ca.Target | None = None) -> Cause | None:
    """Of the first doubt about a network whose hidden layer goes through ``function``."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), Through(function))
    more: Any = {"target": target} if target else {}
    (got,) = ask(network.eval(), {"input": X}, ca.Saliency(absolute=False), **more).attributions
    return got.checks[0].cause


def written(change: Callable[[Tensor, Tensor], object]) -> Function:
    """A tensor that ``change`` writes values to, past the gradient."""

    def write(h: Tensor) -> Tensor:
        empty = torch.zeros_like(h)
        change(empty, h)
        return empty

    return write


def set_data(empty: Tensor, h: Tensor) -> None:
    empty.data = h


def by_row(function: Function) -> Function:
    return lambda h: torch.stack([function(row) for row in h])


CUTS: dict[str, Function] = {
    "detach": torch.detach,
    "exported": torch.ops.aten.detach.default,
    "new tensor": lambda h: h.new_tensor(h),
    "tensor": torch.tensor,
    "array": lambda h: torch.asarray(h, requires_grad=False),
    "into data": written(lambda empty, h: empty.data.copy_(h)),
    "into what is detached": written(lambda empty, h: empty.detach().__setitem__(slice(None), h)),
    "as data": written(set_data),
    "text": by_row(lambda row: row * float(f"{row.sum():.9f}")),
    "complex number": by_row(lambda row: row * complex(row.sum()).real),
    "exported item": by_row(lambda row: row * torch.ops.aten.item.default(row.sum())),
}


@pytest.mark.filterwarnings("ignore:To copy construct")
@pytest.mark.parametrize("cut", list(CUTS))
def test_what_is_cut_off_is_missed(cut: str) -> None:
    """The other half of the value has its gradient."""
    assert cause(lambda h: h / 2 + CUTS[cut](h).sin()) is Cause.WRONG_BACKWARD


@torch.jit.script
def rounded_in_a_script(h: Tensor) -> Tensor:
    return h + ((h * 4).round() / 4 - h).detach()


@torch.jit.script
def detached_in_a_script(h: Tensor) -> Tensor:
    return h.detach()


def detached_in_a_thread(h: Tensor) -> Tensor:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(torch.detach, h).result()


class Detaching(Tensor):
    """A class of tensors whose functions take values without their gradient."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            plain = [each.as_subclass(Tensor).detach() if isinstance(each, cls) else each for each in args]
            return func(*plain, **(kwargs or {}))


UNSEEN: dict[str, Function] = {
    "rounded in a script": rounded_in_a_script,
    "detached in a script": detached_in_a_script,
    "detached in a thread": detached_in_a_thread,
    "seen as integers": lambda h: h.data.view(torch.int32).clone().view(torch.float32),
    "through DLPack": lambda h: from_dlpack(h.detach()),
    "a class of tensors": lambda h: torch.clone(h.as_subclass(Detaching)),
}
"""Forward mode does not see that the gradient ends there."""


@pytest.mark.parametrize("unseen", list(UNSEEN))
def test_differences_find_what_forward_mode_does_not_see(unseen: str) -> None:
    assert cause(lambda h: h / 2 + UNSEEN[unseen](h).sin()) is Cause.WRONG_BACKWARD


def test_rounding_for_training_has_another_gradient_on_purpose() -> None:
    assert cause(lambda h: torch.fake_quantize_per_tensor_affine(h, 0.1, 0, -128, 127)) is None


@pytest.mark.parametrize("layer", ["0", "3"])
def test_what_is_cut_off_before_a_layer_is_no_fault_of_its_gradient(layer: str) -> None:
    torch.manual_seed(0)
    cut = Through(lambda h: h / 2 + detached_in_a_script(h).sin())
    network = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), cut, nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3))
    (got,) = ask(network.eval(), {"input": X}, ca.LayerGradientXActivation(layer=layer)).attributions
    assert got.checks[0].cause is (Cause.WRONG_BACKWARD if layer == "0" else None)


class Pair(nn.Module):
    """A layer of two outputs."""

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        return h.tanh(), h.sigmoid()


class Paired(nn.Module):
    """Takes both outputs of a layer; a part of the first is cut off, or not."""

    def __init__(self, cuts: bool) -> None:
        super().__init__()
        self.first, self.pair, self.last, self.cuts = nn.Linear(8, 16), Pair(), nn.Linear(16, 3), cuts

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.pair(self.first(x))
        result: Tensor = self.last((detached_in_a_script(one) if self.cuts else one).sin() + one + other)
        return result


@pytest.mark.parametrize("cuts", [False, True])
def test_differences_look_behind_a_layer_of_several_outputs(cuts: bool) -> None:
    torch.manual_seed(0)
    (got,) = ask(Paired(cuts).eval(), {"x": X}, ca.LayerGradientXActivation(layer="pair")).attributions
    assert got.checks[0].cause is (Cause.WRONG_BACKWARD if cuts else None)


def test_differences_know_how_coarsely_a_model_computes() -> None:
    """Autocast rounds values by more than a step of float32 changes them."""

    def coarse(h: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return (h @ MATRIX).tanh().float()

    assert cause(coarse, ca.ClassIndex((0,))) is None


@pytest.mark.parametrize("limit", [0.05, 1e6])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_a_gradient_is_tested_at_the_size_that_targets_have(limit: float, size: float) -> None:
    """A clip that the gradient of a target reaches is found, however large outputs are; one that it does not is not."""
    clip = changed(lambda gradient: gradient.clamp(-limit, limit))
    found = cause(lambda h: clip(h) * 0.5 + size, ca.ClassIndex((0,)))
    assert (found is Cause.WRONG_BACKWARD) == (limit < 0.5)


def of_inner_gradient(creates_graph: bool) -> Function:
    """One step of gradient descent inside of the model, whose second derivative counts."""

    def function(h: Tensor) -> Tensor:
        with torch.enable_grad():
            z = torch.zeros_like(h).requires_grad_()
            energy = (z**2).sum() - (h * torch.tanh(z + 0.3)).sum()
            (gradient,) = torch.autograd.grad(energy, z, create_graph=creates_graph)
        return h / 2 + gradient.sin()

    return function


class Logarithm(Tensor):
    """A tensor of logarithms, whose product is a sum."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        chosen = torch.add if func in (torch.mul, Tensor.mul) else func
        return super().__torch_function__(chosen, types, args, kwargs or {})


def on_no_grad(h: Tensor) -> Tensor:
    with torch.no_grad():
        constant = functional.linear(h.detach() * 0, torch.ones(16, 16))
    constant += h
    return constant


def normalised(h: Tensor) -> Tensor:
    return functional.layer_norm(h, (16,), torch.tensor(1.5).expand(16), torch.zeros(16))


def attending(h: Tensor) -> Tensor:
    torch.manual_seed(1)
    tokens = h.reshape(len(h), 4, 4)
    attention = nn.MultiheadAttention(4, 2, batch_first=True).eval().requires_grad_(False)
    mixed: Tensor = attention(tokens, tokens, tokens, need_weights=False)[0]
    return mixed.flatten(1)


old: Any = torch
"""Its signatures with a factor before the last operand, which no stub has."""

SOUND: dict[str, Function] = {
    "sum with a factor": lambda h: old.add(CONSTANT, 2, h),
    "difference with a factor": lambda h: old.sub(CONSTANT, 2, h),
    "product with a factor": lambda h: old.addmm(2, h, CONSTANT, MATRIX),
    "inner gradient": of_inner_gradient(True),
    "a class of tensors": lambda h: (h.as_subclass(Logarithm) * CONSTANT).as_subclass(Tensor).sin(),
    "on what has no gradient": on_no_grad,
    "expanded scale": normalised,
    "vmap": torch.vmap(lambda row: functional.linear(row, MATRIX) * 2),
    "attention": attending,
}


@pytest.mark.filterwarnings("ignore:This overload")
@pytest.mark.parametrize("name", list(SOUND))
def test_a_sound_model_is_not_doubted_and_one_that_is_cut_off_is(name: str) -> None:
    """The gradient of the second is a little too small."""
    assert cause(SOUND[name]) is None
    assert cause(lambda h: SOUND[name](0.9 * h + 0.1 * h.detach())) is Cause.WRONG_BACKWARD


def test_a_gradient_inside_of_the_model_counts_itself() -> None:
    """Without ``create_graph`` it is a constant for the backward pass, and is none."""
    assert cause(of_inner_gradient(False)) is Cause.WRONG_BACKWARD


@contextlib.contextmanager
def attention_is(replaced: Any) -> Iterator[None]:
    intact = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = replaced
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = intact


@pytest.mark.parametrize(("cuts", "expected"), [(False, None), (True, Cause.WRONG_BACKWARD)])
def test_attention_may_be_another_packages(cuts: bool, expected: Cause | None) -> None:
    """It is tested as it is, in a module of PyTorch too, and not in place of it PyTorch's."""

    def sigmoid(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        scores = query @ key.mT
        return torch.sigmoid(scores.detach() if cuts else scores) @ value

    with attention_is(sigmoid):
        assert cause(attending) is expected


@pytest.mark.parametrize(
    "sizes", [(40.0, 6e4), (1.0, 1e6), (1e6, 1.0), (1.0, 1e-6), (1e-6, 1.0), (1.0, 5e3), (1.0, 1e-5, 1.0)], ids=str
)
@pytest.mark.parametrize("wrong", [0, 1])
@pytest.mark.parametrize("factor", [1.0, 1.5, -1.0])
def test_outputs_of_different_sizes_are_all_tested(sizes: tuple[float, ...], wrong: int, factor: float) -> None:
    """Such as an age and an income: the larger one is no mask, and the smaller one is no rounding error of it."""

    def outputs(h: Tensor) -> Tensor:
        bad = factor * h + ((1 - factor) * h).detach()
        parts = [(bad if number == wrong else h).mean(1, keepdim=True) for number in range(len(sizes))]
        return torch.cat([size * (2 + part.sin()) for size, part in zip(sizes, parts)], 1)

    assert (cause(outputs, ca.ClassIndex((wrong,))) is Cause.WRONG_BACKWARD) == (factor != 1.0)
