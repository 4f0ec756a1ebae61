"""Operators inside activation checkpointing: a part of the forward runs again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import cutaway as ca
from cutaway.contract.requests import Point
from tests.oracles.hooks import equal
from tests.oracles.operators import INCOMING, POINTS, ROW, VALUES, Block, Wired, addresses, ask


def at_once(part: Callable[..., Tensor], h: Tensor) -> Tensor:
    return part(h)


def again(part: Callable[..., Tensor], h: Tensor) -> Tensor:
    return checkpoint(part, h, use_reentrant=False)


def to_the_end(part: Callable[..., Tensor], h: Tensor) -> Tensor:
    with set_checkpoint_early_stop(False):
        return again(part, h)


def outright(part: Callable[..., Tensor], h: Tensor) -> Tensor:
    return checkpoint(part, h, use_reentrant=True)


Run = Callable[[Callable[..., Tensor], Tensor], Tensor]


def saving(run: Run) -> Callable[..., Tensor]:
    """A forward of which ``run`` runs a part, with operators of the same name before, inside and behind it."""

    def wiring(m: Any, x: Tensor) -> Tensor:
        def part(h: Tensor) -> Tensor:
            h = torch.tanh(m.block(torch.relu(m.b(h)) * m.constant))
            return run(lambda h: torch.exp(torch.sigmoid(h) * 3), h) + h

        return m.head(torch.relu(run(part, torch.relu(m.a(x)))))

    return wiring


def saver(run: Run) -> Wired:
    """A model with that forward; the constant needs no gradient, and gets one where somebody asks for it."""
    model = Wired(saving(run), block=Block())
    model.register_buffer("constant", torch.linspace(1, 2, 4))
    return model


def saving_a_module(run: Run) -> Callable[..., Tensor]:
    return lambda m, x: m.head(run(m.block, run(m.block, m.a(x))))


SAVED = [":relu#0", "b:linear#0", ":relu#1", ":mul#0", "block:relu#0", "block:add#0", ":tanh#0"]
SAVED += [":sigmoid#0", ":mul#1", ":exp#0", ":add#0", ":relu#2", "head:linear#0"]


@pytest.mark.parametrize("run", [again, to_the_end])
def test_what_is_computed_again_is_seen_once(run: Run) -> None:
    """Addresses, numbers of calls, values and gradients are those of the model that keeps everything."""
    asked: dict[str, Any] = {"captures": tuple(ca.Capture(op=op, at=POINTS) for op in SAVED), "input_gradients": ()}
    kept = ask(saver(at_once), ROW, **asked)
    saved = ask(saver(run), ROW, **asked)
    assert addresses(saved) == addresses(kept) == dict.fromkeys(SAVED, 1)
    assert equal(saved.input_gradients["x"], torch.from_numpy(kept.input_gradients["x"]))
    for op in SAVED:
        for point in POINTS:
            ours, theirs = (result.captures[op].calls[0].leaves[point] for result in (saved, kept))
            assert list(ours) == list(theirs)
            assert all(equal(ours[path], torch.from_numpy(theirs[path])) for path in theirs), (op, point)


@pytest.mark.parametrize("run", [again, to_the_end])
def test_every_operator_is_captured_beside_those_that_checkpointing_runs(run: Run) -> None:
    """In the backward pass it asks tensors for their device, and modules' operators have other addresses there."""
    asked: dict[str, Any] = {"captures": (ca.Capture(op="**:*#*", at=("output", "grad_output")),)}
    kept, saved = (ask(saver(each), ROW, **asked) for each in (at_once, run))
    assert addresses(saved) == addresses(kept)
    for asked_of in (ca.GuidedBackprop(), ca.Deconvolution()):
        checks = [ask(saver(each), ROW, attributions=(asked_of,)).attributions[0].checks[0] for each in (at_once, run)]
        assert [check.cause for check in checks] == [ca.Cause.FUNCTIONAL_NONLINEARITY] * 2


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("run", [again, to_the_end])
def test_an_edit_is_made_again_where_its_operator_is_computed_again(run: Run, point: Point) -> None:
    """Else the gradient would be that of half an edited model: one edit at each operator, before, inside and behind
    what is computed again, inside a module, and where that is nested; for one backward pass and for several."""
    for number, op in enumerate(SAVED, POINTS.index(point)):
        target = (ca.PredictedClass(), ca.TopK(2))[number % 2]
        weighted = "linear" in op or op == ":mul#0"
        path = "[0]" if weighted and point in INCOMING else ""  # a weight has no rows to mix
        edit = ca.Mix(op=op, at=point, path=path, weight=0.25, permutation=(2, 0, 1))
        kept, saved = (
            ask(saver(each), ROW, edits=(edit,), input_gradients=(), target=target) for each in (at_once, run)
        )
        assert equal(saved.predictions["output"], torch.from_numpy(kept.predictions["output"]))
        assert equal(saved.input_gradients["x"], torch.from_numpy(kept.input_gradients["x"])), op


def test_an_edit_is_made_again_in_each_call_that_is_computed_again() -> None:
    """A module called twice, each time computed again; one call alone cannot be told then, which is said."""
    edit = ca.Scale(op="block:relu#1", factor=2.0)
    kept, saved = (
        ask(Wired(saving_a_module(run), block=Block()), ROW, edits=(edit,), input_gradients=())
        for run in (at_once, again)
    )
    assert equal(saved.input_gradients["x"], torch.from_numpy(kept.input_gradients["x"]))
    edit = ca.Scale(op="block:relu#0", factor=2.0, call=1)
    with pytest.raises(ca.InvalidArgument) as caught:
        ask(Wired(saving_a_module(again), block=Block()), ROW, edits=(edit,), input_gradients=())
    assert caught.value.reason == "EDIT_INAPPLICABLE"


@pytest.mark.parametrize("op", [":relu#1", "block:relu#0"])
def test_an_edit_that_could_not_be_made_again_is_refused(op: str) -> None:
    """Reentrant checkpointing builds its graph in the backward pass, where nothing tells whose operator runs: an edit
    inside is refused where gradients are asked for, and made where none are."""
    edit = ca.Scale(op=op, factor=2.0)
    with pytest.raises(ca.InvalidArgument) as caught:
        ask(saver(outright), ROW, edits=(ca.Scale("head", factor=2.0), edit), input_gradients=())
    assert (caught.value.reason, caught.value.field) == ("EDIT_INAPPLICABLE", "edits[1].op")
    kept, saved = (ask(saver(run), ROW, edits=(edit,)) for run in (at_once, outright))
    assert equal(saved.predictions["output"], torch.from_numpy(kept.predictions["output"]))


def test_reentrant_checkpointing_shows_values() -> None:
    """What is only looked at is there."""
    seen = (ca.Capture(op="**:*#*", at=VALUES),)
    kept, saved = (ask(saver(run), ROW, captures=seen) for run in (at_once, outright))
    assert addresses(kept) == addresses(saved)
    for op, capture in saved.captures.items():
        assert equal(capture.output, torch.from_numpy(kept.captures[op].output))
