"""Edits of models that do what hooks cannot stand: in-place operations, activation checkpointing, dice."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import cutaway as ca
from cutaway.adapters import Adapter
from cutaway.contract.requests import Point
from cutaway.gateway import serve
from tests.oracles.edits import (
    EDIT_KINDS,
    IN_PLACE,
    NAMES,
    PLACES,
    POINTS,
    TIMES,
    Block,
    Hook,
    InPlace,
    Net,
    Spelt,
    Thrifty,
    ask,
    assert_same,
    by_hand,
    place,
)
from tests.support.function_module import Through
from tests.support.rounding import close

OPERATIONS = 64
"""Rounded operations on the way to one gradient: sums of 4 to 6 products, forward and backward, in each of 4 layers."""


class Dice(nn.Module):
    """Drops half of the numbers, in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(self.body(x), training=True)


class Squeezed(Block):
    """A layer, and an axis that is taken away in place."""

    def forward(self, h: Tensor) -> Tensor:
        h = self.inner(h).unsqueeze(1)
        h.squeeze_(1)
        return h * h


class SqueezedSpelt(Block):
    """The same; the operator is a module."""

    def __init__(self) -> None:
        super().__init__()
        self.squeeze = Through(lambda h: h.squeeze(1))

    def forward(self, h: Tensor) -> Tensor:
        h = self.squeeze(self.inner(h).unsqueeze(1))
        return h * h


class Slope(Block):
    """A layer, and the gradient of what it returns, taken inside forward."""

    def forward(self, h: Tensor) -> Tensor:
        with torch.enable_grad():
            h = h if h.requires_grad else h.detach().requires_grad_()
            g = self.inner(h)
            (slope,) = torch.autograd.grad((g * g).sum(), h, retain_graph=True)
        return g + slope


class Tied(Block):
    """A layer whose result has two names; it is changed under the one, and used under the other."""

    def __init__(self) -> None:
        super().__init__()
        self.same = nn.Identity()

    def forward(self, h: Tensor) -> Tensor:
        g = self.inner(h)
        other = self.same(g)
        g *= 2
        return other


@pytest.fixture(scope="module")
def client() -> Iterator[ca.Client]:
    """A gateway over such models."""
    models: dict[str, nn.Module | Adapter] = {
        "in_place": Net(InPlace),
        "squeezed": Net(Squeezed),
        "thrifty": Net(Thrifty),
        "thrifty_thrice": Net(Thrifty, TIMES),
        "slope": Net(Slope),
        "tied": Net(Tied),
        "dice": Dice(),
    }
    with serve(models) as server, ca.Client(server.address) as connected:
        yield connected


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("where", ["block:relu#0", "block:add_#0", "block.inner", "block"])
@pytest.mark.parametrize("verb", EDIT_KINDS)
def test_operators_that_work_in_place(client: ca.Client, verb: str, where: str, point: Point) -> None:
    """Operators that write into their own input, under whose old name the model goes on: the same for edits of them,
    and of modules around them."""
    edit, change = EDIT_KINDS[verb]
    result = ask(client, "in_place", edit(**place(where), at=point), names=IN_PLACE)
    record = by_hand(Net(Spelt), [Hook(IN_PLACE[where], point, change)], IN_PLACE.values())
    assert_same(result, record, IN_PLACE, zero_is_none=True)  # zero is the gradient of what was written over
    uncaptured = ask(client, "in_place", edit(**place(where), at=point), names={})
    assert_same(uncaptured, record, {}, zero_is_none=True)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("verb", ["scale", "zero", "clamp"])
def test_an_operator_that_changes_a_shape_in_place(client: ca.Client, verb: str, point: Point) -> None:
    """An operator that changes nothing but the shape of the tensor that it gets, with and without a capture of it."""
    edit, change = EDIT_KINDS[verb]
    names = {"first": "first", "block.inner": "block.inner", "last": "last"}
    record = by_hand(Net(SqueezedSpelt), [Hook("block.squeeze", point, change)], names.values())
    result = ask(client, "squeezed", edit(op="block:squeeze_#0", at=point), names=names)
    assert_same(result, record, names, zero_is_none=True)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("verb", ["scale", "replace", "mix"])
def test_activation_checkpointing(client: ca.Client, verb: str, where: str, point: Point) -> None:
    """Where the model computes activations again during the backward pass, they are edited again: the gradients are
    those of a model that keeps them."""
    edit, change = EDIT_KINDS[verb]
    result = ask(client, "thrifty", edit(**place(where), at=point))
    assert_same(result, by_hand(Net(Spelt), [Hook(NAMES[where], point, change)]))


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("verb", ["scale", "clamp"])
def test_one_call_of_what_is_computed_again(client: ca.Client, verb: str, where: str, point: Point) -> None:
    """Of several calls that are made again during the backward pass nobody can tell which is which: where that matters
    the edit is refused, and else it is the hand-written hook's."""
    edit, change = EDIT_KINDS[verb]
    try:
        result = ask(client, "thrifty_thrice", edit(**place(where), at=point, call=1))
    except ca.InvalidArgument as failure:
        if failure.reason != "EDIT_INAPPLICABLE":
            raise
        return
    assert_same(result, by_hand(Net(Spelt, TIMES), [Hook(NAMES[where], point, change, 1)]))


@pytest.mark.parametrize("point", [Point.GRAD_OUTPUT, Point.GRAD_INPUT])
@pytest.mark.parametrize("captured", [True, False])
def test_a_gradient_that_the_model_takes_itself(client: ca.Client, captured: bool, point: Point) -> None:
    """What the model differentiates inside its forward is no target: an edit of gradients leaves the prediction be."""
    names = {"block.inner": "block.inner"} if captured else {}
    plain = ask(client, "slope", names=names)
    edited = ask(client, "slope", ca.Scale("block.inner", at=point, factor=3), names=names)
    assert np.array_equal(edited.predictions["output"], plain.predictions["output"])
    assert np.array_equal(edited.parameter_gradients["last.weight"], plain.parameter_gradients["last.weight"])
    assert close(edited.input_gradients["x"], 3 * plain.input_gradients["x"], OPERATIONS)


@pytest.mark.parametrize("point", [Point.GRAD_OUTPUT, Point.GRAD_INPUT])
def test_a_gradient_that_cannot_be_edited_without_harm(client: ca.Client, point: Point) -> None:
    """Where an edit of a gradient would change what the model computes, it is refused, and not answered wrongly."""
    plain = ask(client, "tied", names={})
    edit = ca.Scale("block.same", at=point, factor=3)
    with pytest.raises(ca.CutawayError, match="changes in place a tensor"):
        ask(client, "tied", edit, names={})
    assert np.array_equal(ask(client, "tied", names={}).predictions["output"], plain.predictions["output"])


def test_compare_throws_the_same_dice(client: ca.Client) -> None:
    """Of a model that is random, the two predictions differ by the edit and not by the dice."""
    x = {"x": np.ones((2, 50), np.float32)}
    edited = client.inspect("dice", x, edits=[ca.Scale("body", factor=2)], compare=True)
    idle = client.inspect("dice", x, edits=[ca.Scale("body", factor=1)], compare=True)
    assert np.array_equal(edited.predictions["output"], 2 * edited.unedited["output"])
    assert np.array_equal(idle.predictions["output"], idle.unedited["output"])
    assert 0 < (idle.predictions["output"] == 0).mean() < 1
