"""Operators beside everything else that a request can ask, and what they cost."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

import cutaway as ca
from cutaway.contract.requests import CheckMode, CheckRequest
from cutaway.engine.hooks.operators import is_address
from cutaway.engine.hooks.recording import Recording
from tests.oracles.hooks import equal
from tests.oracles.operators import POINTS, ROW, VALUES, Block, Wired, ask, whole

WATCHED = (":relu#0", "block:relu#1", ":add_#0", ":mul#0", "block.inner:linear#0")

ELSE: dict[str, dict[str, Any]] = {
    "modules": {"captures": (ca.Capture("**", at=POINTS),)},
    "other operators": {"captures": (ca.Capture(op="**:linear#*", at=VALUES), ca.Capture(op=":tanh#0", at=POINTS))},
    "edits that change nothing": {
        "edits": (ca.Scale("block", factor=1.0), ca.Scale(op=":relu#1", at="grad_input", factor=1.0))},
    "gradients": {"input_gradients": (), "captures": (ca.Capture(parameter="*.weight"),)},
    "a comparison": {"compare": True, "edits": (ca.Add("a", addend=0.0),)},
    "explanations": {
        "attributions": (
            ca.Saliency(), ca.IntegratedGradients(n_steps=4), ca.LayerGradCam(layer="a"),
            ca.LayerActivation(layer="block"), ca.LayerGradientXActivation(layer="block.inner"))},
}  # fmt: skip


@pytest.mark.parametrize("name", ELSE)
def test_numbers_and_values_do_not_depend_on_what_else_is_asked(name: str) -> None:
    """Hooks, edits and Captum run operators of their own, which are none of the model's."""
    watched = tuple(ca.Capture(op=op, at=POINTS) for op in WATCHED)
    alone = ask(Wired(whole, block=Block()), ROW, captures=watched)
    more = {**ELSE[name], "captures": (*watched, *ELSE[name].get("captures", ()))}
    if name == "other operators":  # among which is one that is watched
        more["captures"] = (*watched[:-1], *ELSE[name]["captures"])
    together = ask(Wired(whole, block=Block()), ROW, **more)
    assert equal(together.predictions["output"], torch.from_numpy(alone.predictions["output"]))
    for op in WATCHED:
        ours, theirs = (result.captures[op].calls for result in (together, alone))
        assert len(ours) == len(theirs) == 1
        for point, there in ours[0].leaves.items():
            assert all(equal(each, torch.from_numpy(theirs[0].leaves[point][path])) for path, each in there.items())


EXPLAINED: tuple[ca.Attribution, ...] = (
    ca.Saliency(), ca.InputXGradient(), ca.IntegratedGradients(n_steps=8), ca.LayerActivation(layer="b"),
    ca.LayerGradientXActivation(layer="a"), ca.LayerGradCam(layer="block"),
)  # fmt: skip


@pytest.mark.parametrize("mode", [CheckMode.SAME_PASS, CheckMode.INDEPENDENT])
def test_an_operator_is_edited_in_captums_passes_too(mode: CheckMode) -> None:
    """What is explained is the edited model, in every pass on the way: as where its forward says so itself."""

    def written_out(m: Any, x: Tensor) -> Tensor:
        h = torch.relu(m.block(m.a(x))) * 0.5 - 0.25
        h += torch.relu(m.b(x))
        return m.head(torch.tanh(h * -1.5) * 2)

    edits = (ca.Scale(op=":relu#0", factor=0.5), ca.Scale(op=":add_#0", factor=-1.5))
    more: dict[str, Any] = {"attributions": EXPLAINED, "check": CheckRequest(mode)}
    ours = ask(Wired(whole, block=Block()), ROW, edits=edits, **more)
    theirs = ask(Wired(written_out, block=Block()), ROW, **more)
    for mine, expected in zip(ours.attributions, theirs.attributions, strict=True):
        assert [str(check.verdict) for check in mine.checks] == [str(check.verdict) for check in expected.checks]
        assert mine.checks[0].verdict is ca.Verdict.AGREES
        for name, value in expected.values.items():
            assert np.allclose(mine.values[name], value, rtol=1e-5, atol=1e-7), (mine.method, name)


def long(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    for _ in range(2500):
        h = torch.relu(h) + 1
        h = h * 0.5 - 0.25
    return m.head(h)


def lines_run(work: Callable[[], Any]) -> int:
    """The lines of Python that this thread runs meanwhile: a measure of time that no machine changes."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_one_operator_among_ten_thousand_is_seen_at_the_price_of_one() -> None:
    """The others are counted and let go: no copies, no taps, and a few lines of Python for each. Measured: 16 lines,
    2 microseconds, of which PyTorch's own call of any mode takes 1.2."""
    model = Wired(long)
    asked = {"captures": (ca.Capture(op=":relu#1234"),)}
    with mock.patch.object(Recording, "begin_call", autospec=True, side_effect=Recording.begin_call) as begun:
        result = ask(model, ROW, **asked)
    assert {name for _, name, *_ in (call.args for call in begun.call_args_list) if is_address(name)} == {":relu#1234"}
    assert list(result.captures) == [":relu#1234"]
    added = lines_run(lambda: ask(model, ROW, **asked)) - lines_run(lambda: ask(model, ROW))
    passes = 3  # two find the axis of the rows
    assert added < passes * 10_000 * 25
