"""Edits do what the same hooks do that a person writes: the whole reply is equal to them, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import Adapter, TensorAdapter
from cutaway.contract.requests import Point
from cutaway.gateway import serve
from tests.oracles.edits import (
    EDIT_KINDS,
    NAMES,
    PLACES,
    POINTS,
    ROWS,
    TIMES,
    WIDTH,
    Block,
    Hook,
    Net,
    Spelt,
    ask,
    assert_same,
    by_hand,
    place,
)
from tests.oracles.hooks import Change
from tests.support import worker_calls


@pytest.fixture(scope="module")
def client() -> Iterator[ca.Client]:
    """A gateway over nets."""
    models: dict[str, nn.Module | Adapter] = {
        "net": TensorAdapter(Net(Block), labels=tuple("abcd")),
        "thrice": Net(Block, TIMES),
        "chain": Chain(),
    }
    with serve(models) as server, ca.Client(server.address) as connected:
        yield connected


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("verb", EDIT_KINDS)
def test_every_edit_is_the_hook_that_a_person_writes(client: ca.Client, verb: str, where: str, point: Point) -> None:
    """Each verb at each point, of modules and operators: prediction, captures up and down the stream, and all
    gradients are those of the hand-written hook."""
    edit, change = EDIT_KINDS[verb]
    result = ask(client, "net", edit(**place(where), at=point))
    record = by_hand(Net(Spelt), [Hook(NAMES[where], point, change)])
    assert_same(result, record)
    assert_same(ask(client, "net", edit(**place(where), at=point), names={}), record, {})  # nor does it take a capture
    assert "EDIT_WITHOUT_EFFECT" not in [warning.code for warning in result.warnings]


def masked(change: Change, rows: Any = slice(None), columns: Any = slice(None)) -> Change:
    """``change`` at some places only."""
    mask = torch.zeros(ROWS, WIDTH, dtype=torch.bool)
    mask[rows, columns] = True
    return lambda value: torch.where(mask, change(value), value)


PARTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one row": ({"rows": (1,)}, {"rows": [1]}),
    "rows in any order": ({"rows": (2, 0)}, {"rows": [0, 2]}),
    "a slice": ({"slices": (ca.Slice(1, 1, 4),)}, {"columns": slice(1, 4)}),
    "a slice counted from the end": ({"slices": (ca.Slice(-1, -3, -1),)}, {"columns": slice(2, 4)}),
    "every other": ({"slices": (ca.Slice(1, None, None, 2),)}, {"columns": slice(None, None, 2)}),
    "a slice of the batch": ({"slices": (ca.Slice(0, 1),)}, {"rows": slice(1, None)}),
    "two slices": ({"slices": (ca.Slice(1, 3), ca.Slice(0, None, 2))}, {"rows": slice(2), "columns": slice(3, None)}),
    "rows and a slice": ({"rows": (2, 0), "slices": (ca.Slice(1, 2),)}, {"rows": [0, 2], "columns": slice(2, None)}),
    "a slice of the rows": ({"rows": (2, 0), "slices": (ca.Slice(0, 1),)}, {"rows": [0]}),
    "places": ({"slices": (ca.Slice(1, indices=(3, -5)),)}, {"columns": [0, 3]}),
    "places of both axes": (
        {"slices": (ca.Slice(1, indices=(3, 0)), ca.Slice(0, indices=(2, 1)))},
        {"rows": [[1], [2]], "columns": [0, 3]},
    ),
    "places of rows": (
        {"rows": (2, 0), "slices": (ca.Slice(1, indices=(3, 0)),)},
        {"rows": [[0], [2]], "columns": [0, 3]},
    ),
}
"""Parts of a value as an edit names them, and as an index does."""

PARTIAL = ("scale", "add", "zero", "clamp", "mix")
"""The verbs whose numbers do not depend on which part is edited."""


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("where", ["block.inner", "block:relu#0"])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("verb", PARTIAL)
def test_only_what_is_named_is_edited(client: ca.Client, verb: str, part: str, where: str, point: Point) -> None:
    """Rows, slices and both: the part is what the verb makes of it, and the rest is the same bit for bit."""
    (edit, change), (named, index) = EDIT_KINDS[verb], PARTS[part]
    result = ask(client, "net", edit(**place(where), at=point, **named))
    assert_same(result, by_hand(Net(Spelt), [Hook(NAMES[where], point, masked(change, **index))]))


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize(("columns", "places"), [(ca.Slice(1, 1, 3), [1, 2]), (ca.Slice(1, indices=(3, 0)), [3, 0])])
def test_a_tensor_broadcasts_against_the_part(
    client: ca.Client, point: Point, columns: ca.Slice, places: list[int]
) -> None:
    """The numbers of a replacement land in the rows and columns named, in the order in which they are named."""
    numbers = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    part: dict[str, Any] = {"rows": (2, 0), "slices": (columns,)}

    def put(value: Tensor) -> Tensor:
        value = value.clone()
        value[2, places], value[0, places] = numbers[0], numbers[1]
        return value

    def added(value: Tensor) -> Tensor:
        return value + put(torch.zeros_like(value))

    for verb, change in ((ca.Replace(tensor=numbers.numpy()), put), (ca.Add(addend=numbers.numpy()), added)):
        edit = type(verb)(**{**vars(verb), **part, "module": "block.inner", "at": point})
        result = ask(client, "net", edit)
        assert_same(result, by_hand(Net(Spelt), [Hook("block.inner", point, change)]))


CALLS = [("scale", where, point) for where in PLACES for point in POINTS]
CALLS += [(verb, "block", Point.OUTPUT) for verb in ("replace", "zero", "mix")]  # which cut off the calls before


@pytest.mark.parametrize(("verb", "where", "point"), CALLS)
@pytest.mark.parametrize("number", [*range(TIMES), None])
def test_one_call_of_several(client: ca.Client, number: int | None, verb: str, where: str, point: Point) -> None:
    """Of three calls of a module, and of an operator inside it, the one that is named is edited; else all are."""
    edit, change = EDIT_KINDS[verb]
    result = ask(client, "thrice", edit(**place(where), at=point, call=number))
    assert_same(result, by_hand(Net(Spelt, TIMES), [Hook(NAMES[where], point, change, number)]))


@pytest.mark.parametrize("seed", range(24))
def test_many_edits_at_once(client: ca.Client, seed: int) -> None:
    """Whatever is edited where, together, in the order given: as with as many hooks in that order."""
    dice = random.Random(seed)
    chosen = [(dice.choice(list(EDIT_KINDS)), dice.choice(PLACES), dice.choice(POINTS)) for _ in range(5)]
    edits = [EDIT_KINDS[verb][0](**place(where), at=point) for verb, where, point in chosen]
    hooks = [Hook(NAMES[where], point, EDIT_KINDS[verb][1]) for verb, where, point in chosen]
    assert_same(ask(client, "net", *edits), by_hand(Net(Spelt), hooks))


def test_each_of_several_targets_has_its_gradients_edited(client: ca.Client) -> None:
    """Of a top-k target every class's gradients are edited, as if it had been asked for alone."""
    edits = [ca.Scale("block", at="grad_output", factor=3), ca.Clamp("last", at="grad_input", minimum=-0.125)]
    classes = ask(client, "net", target=ca.TopK(2)).targets
    both = ask(client, "net", *edits, target=ca.TopK(2))
    for index in range(2):
        alone = ask(client, "net", *edits, target=classes[:, index].tolist())
        assert np.array_equal(both.input_gradients["x"][:, index], alone.input_gradients["x"])
        for point in (Point.GRAD_OUTPUT, Point.GRAD_INPUT):
            ours, theirs = (each.captures["block"].calls[0].at(point) for each in (both, alone))
            assert np.array_equal(ours[:, index], theirs)


# In numbers that a person can follow.


class Chain(nn.Module):
    """The sum of three times each row."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Identity(), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x) * 3).sum(dim=1)


def chain(client: ca.Client, *edits: ca.Edit, **more: Any) -> Any:
    """Ask the chain about [1, 2], with everything captured."""
    captures = [ca.Capture("?", at=POINTS)]
    x = {"x": np.array([[1, 2]], np.float32)}
    return client.inspect("chain", x, captures=captures, input_gradients=True, edits=edits, **more)


@pytest.mark.parametrize(("reverse", "value", "gradient"), [(False, [3, 5], 3), (True, [4, 6], 4)])
def test_edits_are_made_in_the_order_given(client: ca.Client, reverse: bool, value: list[int], gradient: int) -> None:
    """Doubled and then one more is not one more and then doubled; of values, and of gradients."""
    values = [ca.Scale("a", factor=2), ca.Add("a", addend=1)]
    gradients = [ca.Scale("b", at="grad_output", factor=2), ca.Add("b", at="grad_output", addend=1)]
    edits = [*values, *gradients]
    result = chain(client, *(reversed(edits) if reverse else edits))
    assert result.captures["a"].output.tolist() == [value]
    assert result.predictions["output"].tolist() == [3 * sum(value)]
    assert result.captures["b"].grad_output.tolist() == [[gradient] * 2]
    assert result.input_gradients["x"].tolist() == [[2 * 3 * gradient] * 2]


def test_a_tensor_is_taken_in_the_values_own_type(client: ca.Client) -> None:
    """Numbers of more precision than the value's are rounded before anything is done with them."""
    hair = 2.0**-24 * (1 + 2.0**-26)  # beside 1 it would be rounded up, but by itself it rounds to half a unit of 1
    result = chain(client, ca.Replace("a", tensor=np.array([1.0, hair])), ca.Add("a", addend=np.array([hair, 0])))
    assert result.captures["a"].output.dtype == np.float32
    assert result.captures["a"].output.tolist() == [[1, 2.0**-24]]


def test_a_neuron_is_that_of_the_edited_module(client: ca.Client) -> None:
    """Where a target is an element of what a module returns, it is what the edits make of it."""
    edits = [ca.Scale("b", factor=10), ca.Add("b", at="input", addend=1)]
    result = chain(client, *edits, target=ca.Neuron("b", (1,)))
    assert result.target_values.tolist() == [70]
    assert result.input_gradients["x"].tolist() == [[0, 30]]


def test_a_glob_edits_every_module_that_matches(client: ca.Client) -> None:
    """As an edit of each would, in any order beside others; its receipt is of all of them."""
    together = chain(client, ca.Scale("*", factor=3), ca.Add("b", addend=1))
    apart = [ca.Scale("a", factor=3), ca.Scale("b", factor=3), ca.Add("b", addend=1)]
    each = chain(client, *apart)
    for name in ("a", "b"):
        assert np.array_equal(together.captures[name].output, each.captures[name].output)
    assert np.array_equal(together.predictions["output"], each.predictions["output"])
    assert [receipt.tensors for receipt in together.receipts] == [2, 1]
    assert [receipt.tensors for receipt in each.receipts] == [1, 1, 1]
    assert together.receipts[0].norm == pytest.approx(np.hypot(each.receipts[0].norm, each.receipts[1].norm))
    (warning,) = chain(client, ca.Zero("*", rows=(0,), slices=()), ca.Scale("*", factor=2)).warnings
    assert (warning.code, warning.subject) == ("EDIT_WITHOUT_EFFECT", "edits[1]")


def test_compare_returns_both(client: ca.Client) -> None:
    """The edited prediction stands beside the one that the model makes by itself, to the bit; nothing else changes."""
    edit = ca.Scale("block.inner", factor=3)
    plain, alone = ask(client, "net"), ask(client, "net", edit)
    both = ask(client, "net", edit, compare=True)
    assert np.array_equal(both.unedited["output"], plain.predictions["output"])
    assert np.array_equal(both.predictions["output"], alone.predictions["output"])
    assert not np.array_equal(both.unedited["output"], both.predictions["output"])
    assert both.unedited_classes == plain.classes
    assert both.classes == alone.classes != plain.classes
    assert np.array_equal(both.captures["block.inner"].output, alone.captures["block.inner"].output)
    assert not alone.unedited
    assert not alone.unedited_classes
    assert both.provenance.forwards == alone.provenance.forwards + 1


class Elsewhere(nn.Module):
    """Makes its new tensors on another device by default, as adapters do for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.device("meta"):
            output: Tensor = self.b(self.a(x))
            return output


def test_a_models_default_device_is_not_that_of_rows_and_places() -> None:
    """They are numbers of the request."""
    served, x = worker_calls.worker(Elsewhere()), torch.ones(3, 4)
    slices = (ca.Slice(1, indices=(3, 0)),)
    result = worker_calls.ask(
        served,
        {"x": x},
        edits=[ca.Zero("a", rows=(2, 0), slices=slices)],
        captures=[ca.Capture("a"), ca.Capture("b", at="input", slices=(*slices, ca.Slice(0, indices=(1, 2))))],
    )
    whole = result.captures["a"].output
    assert not whole[np.ix_([0, 2], [0, 3])].any()
    assert whole[1].all()
    assert np.array_equal(result.captures["b"].input, whole[np.ix_([1, 2], [3, 0])])
