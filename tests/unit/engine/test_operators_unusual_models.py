"""Operators of models that do odd things with PyTorch's own machinery."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

import cutaway as ca
from tests.oracles.hooks import equal
from tests.oracles.operators import EVERY, POINTS, ROW, Block, Probe, Twin, Wired, addresses, ask, by_hand


def halved(m: Any, x: Tensor, p: Probe | None = None) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        given = [m.a(x), m.b(x).t()]
        one, other = given if p is None else p.given(given)
        h = one @ other
        return m.head((h if p is None else p.returned(h)) @ m.a.weight[:3])


def test_autocast_shows_what_it_casts_to() -> None:
    """Values and gradients in bfloat16, as a probe sees them."""
    probe = Probe()
    prediction, _ = by_hand(Twin(halved, probe), ROW)
    result = ask(Wired(halved), ROW, captures=(ca.Capture(op=":matmul#0", at=POINTS),))
    assert prediction.dtype is torch.bfloat16
    assert equal(result.predictions["output"], prediction)
    for point in POINTS:
        ours = list(result.captures[":matmul#0"].calls[0].leaves[point].values())
        assert len(ours) == len(probe.seen[point])
        assert all(map(equal, ours, probe.seen[point])), point


class Smooth(TorchFunctionMode):
    """A mode of the model's own, which puts one function in place of another."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (F.gelu if func is torch.relu else func)(*args, **(kwargs or {}))


def test_a_mode_of_the_models_own_has_the_first_word() -> None:
    """What is seen is what runs: the function that the model's mode calls, and not the one that its forward names."""

    def wiring(m: Any, x: Tensor) -> Tensor:
        with Smooth():
            return m.head(torch.relu(m.a(x)))

    made = Wired(wiring)
    result = ask(Wired(wiring), ROW, captures=(ca.Capture(op=":gelu#0", at=POINTS),))
    assert equal(result.captures[":gelu#0"].output, F.gelu(made.a(ROW["x"])))
    assert equal(result.predictions["output"], by_hand(Wired(wiring), ROW)[0])
    with pytest.raises(ca.InvalidArgument, match="OP_NOT_FOUND"):
        ask(Wired(wiring), ROW, captures=(ca.Capture(op=":relu#0"),))


class Tagged(torch.Tensor):
    """A tensor subclass of the usual kind."""


def test_a_tensor_subclass_stays_what_it_is() -> None:
    """Through captures and edits the model gets back tensors of its own class."""

    def wiring(m: Any, x: Tensor) -> Tensor:
        h = torch.relu(m.a(x).as_subclass(Tagged)) * 2
        h += 1
        kinds.append(type(h))
        return m.head(h).as_subclass(torch.Tensor)

    kinds: list[type] = []
    made = Wired(wiring)
    expected = made.head(torch.relu(made.a(ROW["x"])) * 2 * 2 + 1)
    ops = (":relu#0", ":add_#0")
    edit = ca.Scale(op=":relu#0", factor=2.0)
    result = ask(Wired(wiring), ROW, edits=(edit,), captures=tuple(ca.Capture(op=op, at=POINTS) for op in ops))
    assert equal(result.predictions["output"], expected)
    assert set(kinds) == {Tagged}
    assert all(set(result.captures[op].calls[0].leaves) == set(POINTS) for op in ops)


class Square(torch.autograd.Function):
    """A function with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.square(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return torch.square(gradients[0]) * ctx.saved_tensors[0]


def test_a_function_with_its_own_backward_is_seen_inside_and_without_gradients() -> None:
    """Its forward's operators have values; its backward, which the graph knows nothing of, is none of the model's
    operators, and its gradient is not touched."""

    def wiring(m: Any, x: Tensor) -> Tensor:
        return m.head(Square.apply(m.a(x)))

    made = Wired(wiring)
    _, gradient = by_hand(Wired(wiring), ROW)
    result = ask(Wired(wiring), ROW, captures=(EVERY,), input_gradients=())
    assert addresses(result) == {"a:linear#0": 1, ":square#0": 1, "head:linear#0": 1}
    assert equal(result.captures[":square#0"].output, torch.square(made.a(ROW["x"])))
    assert equal(result.input_gradients["x"], gradient)


def test_what_stands_for_single_examples_is_not_there_and_not_edited_with_a_word_on_it() -> None:
    """Inside torch.func.vmap a tensor has no array behind it: warnings say that nothing was seen or changed."""

    def wiring(m: Any, x: Tensor) -> Tensor:
        return m.head(torch.func.vmap(lambda row: torch.relu(m.a(row)))(x))

    plain, _ = by_hand(Wired(wiring), ROW)
    seen = ask(Wired(wiring), ROW, captures=(ca.Capture(op=":relu#0", at=POINTS),))
    assert equal(seen.predictions["output"], plain)
    assert seen.captures[":relu#0"].calls[0].leaves == {}
    assert [str(warning.code) for warning in seen.warnings] == ["NOT_A_TENSOR"] * len(POINTS)
    edited = ask(Wired(wiring), ROW, edits=(ca.Zero(op=":relu#0"),))
    assert equal(edited.predictions["output"], plain)
    assert [(str(each.code), each.subject) for each in edited.warnings] == [("EDIT_WITHOUT_EFFECT", "edits[0]")]


def in_threads(m: Any, x: Tensor) -> Tensor:
    with ThreadPoolExecutor(2) as pool:
        halves = [pool.submit(m.block, torch.tanh(half)) for half in (x, x + 1)]
        here = m.block(torch.relu(x))
        return m.head(halves[0].result() + halves[1].result() + here)


def test_a_thread_of_the_models_own_is_not_followed_which_is_said() -> None:
    """PyTorch shows operators in the thread that asked. Those of the other threads shift no number and are nobody
    else's; where one was named, in a module that runs in such a thread, the answer is an error and no half-truth."""
    made: Any = Wired(in_threads, block=Block())
    for _ in range(10):
        ran = ask(Wired(in_threads, block=Block()), ROW, captures=(EVERY,)).captures
        assert set(ran) == {
            *(":tanh#0", ":tanh#1", ":add#0", ":add#1", ":add#2", ":relu#0", "head:linear#0"),
            *("block:relu#0", "block.inner:linear#0", "block:relu#1", "block:add#0"),
        }
        assert equal(ran["block:relu#0"].output, torch.relu(torch.relu(ROW["x"])))
        assert equal(ran["block:add#0"].output, made.block(torch.relu(ROW["x"])))
        assert len(ran["block:add#0"].calls) == 1
    for asked in ({"captures": (ca.Capture(op="block:add#0"),)}, {"edits": (ca.Zero(op="block:add#0"),)}):
        with pytest.raises(ca.InvalidArgument, match="in a thread of its own") as caught:
            ask(Wired(in_threads, block=Block()), ROW, **asked)
        assert (caught.value.reason, caught.value.field) == ("OP_NOT_FOUND", f"{next(iter(asked))}[0].op")


class Lazily(nn.Module):
    """A forward that has not begun when it has returned."""

    def forward(self, x: Tensor) -> Any:
        yield torch.relu(x)
        yield torch.tanh(x)


def test_what_a_generator_runs_belongs_to_whoever_runs_it() -> None:
    """A module whose forward is a generator has returned before its operators run: they are its caller's."""
    model = Wired(lambda m, x: m.head(sum(m.lazily(m.a(x)))), lazily=Lazily())
    assert list(addresses(ask(model, ROW, captures=(EVERY,)))) == [
        "a:linear#0", ":relu#0", ":add#0", ":tanh#0", ":add#1", "head:linear#0",
    ]  # fmt: skip


def test_no_mode_is_left_behind() -> None:
    """After an answer, after a model that raises, and after an edit that does not fit inside one that catches."""

    def catching(m: Any, x: Tensor) -> Tensor:
        try:
            return m.head(torch.relu(m.a(x)))
        except Exception:
            return m.head(m.a(x))

    def raising(m: Any, x: Tensor) -> Tensor:
        raise ValueError(torch.relu(m.a(x)).shape)

    ask(Wired(catching), ROW, captures=(EVERY,))
    with pytest.raises(ca.InvalidArgument, match="EDIT_SHAPE"):
        ask(Wired(catching), ROW, edits=(ca.Replace(op=":relu#0", tensor=np.ones(5, np.float32)),))
    with pytest.raises(ca.InvalidArgument, match="MODEL_FAILED"):
        ask(Wired(raising), ROW, captures=(EVERY,))
    assert torch.overrides._get_current_function_mode_stack() == []


def test_an_edit_of_what_stands_for_single_examples_says_why_it_changed_nothing() -> None:
    """It is no matter of gradients."""
    model = Wired(lambda m, x: m.head(torch.func.vmap(lambda row: torch.relu(m.a(row)))(x)))
    (warning,) = ask(model, ROW, edits=(ca.Zero(op=":relu#0"),)).warnings
    assert "gradient" not in warning.message


def test_a_module_that_writes_into_a_tensor_subclass_has_its_gradient() -> None:
    """A copy of such a tensor is a view, whose own gradient ends where it is written to."""

    def wiring(m: Any, x: Tensor) -> Tensor:
        return m.head(m.act(m.a(x).as_subclass(Tagged))).as_subclass(torch.Tensor)

    result = ask(Wired(wiring, act=nn.ReLU(inplace=True)), ROW, captures=(ca.Capture("act", at=POINTS),))
    assert set(result.captures["act"].calls[0].leaves) == set(POINTS)
