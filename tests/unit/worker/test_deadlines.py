"""Nobody works on for a caller who is gone: the deadline inside a call, from pass to pass."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from array import array
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import ImageAdapter, TensorAdapter
from cutaway.contract.results import InputSpec
from cutaway.contract.torchserve_messages import decode_worker_reply
from cutaway.engine.model import session
from cutaway.engine.model.session import Cancellation, latest
from cutaway.engine.passes.reference_inputs import gauss_legendre
from cutaway.gateway import serve
from cutaway.server.worker.call import Call
from examples.digits.data import as_png
from tests.support import failing_models
from tests.support.mixed.answers import differences, flat
from tests.support.state_snapshot import untouched
from tests.support.worker_calls import ask, outcome, row, worker

X = {"x": torch.randn(3, 4, generator=torch.Generator().manual_seed(1))}
PATIENCE_S = 600.0
"""Longer than any machine needs for what comes before the deadline: the clock is moved on, and nobody waits."""

EDIT = ca.Scale("a", factor=2.0)
EVERYTHING: dict[str, Any] = {"captures": [ca.Capture("**", at=tuple(ca.Point))], "input_gradients": True}

LONG = ca.IntegratedGradients(n_steps=4096, quadrature=ca.Quadrature.RIEMANN_MIDDLE)
SHORT = ca.IntegratedGradients(n_steps=680)  # Captum takes four passes for three rows, and so does the check


class Clock:
    """The clock that deadlines are compared with."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def time(self) -> float:
        """Unix seconds."""
        return time.time() + self.ahead_s

    def perf_counter(self) -> float:
        """Seconds of the clock that stages are measured with, which is not moved."""
        return time.perf_counter()

    def pass_deadline(self) -> None:
        """Moves the clock on, past the deadline of a call that has just begun."""
        self.ahead_s = 2 * PATIENCE_S


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the engine."""
    moved = Clock()
    monkeypatch.setattr(session, "time", moved)
    return moved


@pytest.mark.parametrize(
    ("tired", "asked", "field"),
    [
        (1, {**EVERYTHING, "edits": [EDIT], "compare": True}, ""),
        (1, {"attributions": [LONG]}, "attributions[0]"),
        (7, {"attributions": [LONG], "check": "off"}, "attributions[0]"),
        (7, {"attributions": [ca.Saliency(), LONG], "check": "independent"}, "attributions[1]"),
        (7, {"attributions": [SHORT], "check": "independent"}, "attributions[0]"),
    ],
    ids=["compared", "before Captum", "in Captum", "in Captum, then to be checked", "in the check"],
)
def test_nobody_works_past_a_deadline(clock: Clock, tired: int, asked: dict[str, Any], field: str) -> None:
    """Where the deadline passes while a pass is running, no other begins, be it one of ours, of Captum's or of a
    check's; the next caller finds the model as it was."""
    model = failing_models.Sleeps()
    served = worker(TensorAdapter(model, inputs=[InputSpec("x", "float32", (-1, 4))]))
    first = flat(ask(served, X))
    ask(served, X, attributions=[ca.Saliency()])  # what checks must know of the model is found out now
    question = row(X, **asked, deadline_s=PATIENCE_S)
    model.begun[0], model.tired, model.sleep = 0, tired, clock.pass_deadline
    with untouched(model):
        (found,) = map(outcome, served.answer([question]))
    assert isinstance(found, ca.DeadlineExceeded)
    assert found.field == field
    assert model.begun[0] == tired
    assert decode_worker_reply(*served.answer([Call("describe", b"")])).response
    assert differences(flat(ask(served, X)), first) == []


class Layered(nn.Module):
    """Takes minutes, layer by layer, from the moment at which it is `tired`: in its forward or in its backward pass."""

    LAYERS = 10_000

    def __init__(self) -> None:
        super().__init__()
        self.layer = _Layer()
        self.begun = self.layer.begun
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.LAYERS if self.layer.tired == "forward" else 10):
            x = self.layer(x)
        result: Tensor = self.linear(x)
        return result


class _Layer(nn.Module):
    """One of them, which counts its forward and backward passes; after some of them the deadline passes."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.tired, self.after = array("q", [0, 0]), "", 0
        self.pass_deadline: Callable[[], None] = lambda: None

    def work(self, direction: int) -> None:
        """Does what takes its time."""
        self.begun[direction] += 1
        if self.tired and self.begun[("forward", "backward").index(self.tired)] == self.after:
            self.pass_deadline()
        time.sleep(0.006)

    def forward(self, x: Tensor) -> Tensor:
        self.work(0)
        result: Tensor = _Worked.apply(x, self)
        return result


class _Worked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: _Layer) -> Tensor:
        ctx.layer = layer
        return x * 1.1

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.layer.work(1)
        return gradients[0] * 1.1, None


@pytest.mark.parametrize(
    ("tired", "asked"),
    [
        ("forward", {}),
        ("forward", EVERYTHING),
        ("forward", {"attributions": [ca.Saliency()]}),
        ("backward", {"input_gradients": True}),
        ("backward", {"attributions": [ca.Saliency()], "check": "off"}),
        ("backward", {"attributions": [ca.InputXGradient()]}),
    ],
)
def test_a_long_pass_ends_with_its_deadline(clock: Clock, tired: str, asked: dict[str, Any]) -> None:
    """A pass of ours, of Captum's or of a check's ends at the next layer, and not after all that it still had to do.
    The next caller finds the model as it was, and no hook on it or on all modules."""
    model = Layered()
    served = worker(TensorAdapter(model, inputs=[InputSpec("x", "float32", (-1, 4))]))
    first = flat(ask(served, X))
    question, layer = row(X, **asked, deadline_s=PATIENCE_S), model.layer
    layer.after = model.begun[tired == "backward"] + 5
    layer.tired, layer.pass_deadline = tired, clock.pass_deadline
    with untouched(model):
        (found,) = map(outcome, served.answer([question]))
    assert isinstance(found, ca.DeadlineExceeded)
    forwards, backwards = model.begun
    assert forwards < Layered.LAYERS / 2
    assert tired == "forward" or backwards == layer.after
    layer.tired = ""
    assert differences(flat(ask(served, X)), first) == []


class Decoding(ImageAdapter):
    """Whose second image takes until the deadline."""

    size = (8, 8)
    mode = "L"

    def __init__(self) -> None:
        super().__init__()
        self.decoded = 0
        self.pass_deadline: Callable[[], None] = lambda: None

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))

    def decode(self, data: bytes, media_type: str) -> Mapping[str, Tensor]:
        self.decoded += 1
        if self.decoded == 2:
            self.pass_deadline()
        return super().decode(data, media_type)


def test_nobody_decodes_past_a_deadline(clock: Clock) -> None:
    """Small files may be large images: no further one is decoded."""
    adapter = Decoding()
    served = worker(adapter)
    adapter.pass_deadline = clock.pass_deadline
    image = ca.Raw(as_png(np.zeros((8, 8), np.uint8)), "image/png")
    (found,) = map(outcome, served.answer([row([image] * 40, deadline_s=PATIENCE_S)]))
    assert isinstance(found, ca.DeadlineExceeded)
    assert adapter.decoded == 2


def test_a_long_path_is_no_way_around_the_deadline() -> None:
    """The longest path that can be asked for, by the default quadrature, ends with the deadline as well, also where its
    nodes are not known yet."""
    gauss_legendre.cache_clear()
    asked = row(X, attributions=[ca.IntegratedGradients(n_steps=10_000)], deadline_s=0.02)
    served = worker(failing_models.Sound())
    (found,) = map(outcome, served.answer([asked]))
    assert isinstance(found, ca.DeadlineExceeded)


class SleepsAtRandom(failing_models.Sleeps):
    """The same, and its numbers differ from pass to pass."""

    def end(self, h: torch.Tensor) -> torch.Tensor:
        return super().end(h + torch.rand_like(h))


def test_a_deadline_leaves_no_opinion_of_a_model_behind(clock: Clock) -> None:
    """Where time runs out while it is being found out what checks must know of a model, the error is the deadline's,
    and the next caller finds it out: the model is random, and not taken for sound."""
    model = SleepsAtRandom()
    served = worker(TensorAdapter(model, inputs=[InputSpec("x", "float32", (-1, 4))]))
    question = row(X, attributions=[ca.Saliency()], deadline_s=PATIENCE_S)
    model.begun[0], model.tired, model.sleep = 0, 3, clock.pass_deadline
    (found,) = map(outcome, served.answer([question]))
    assert isinstance(found, ca.DeadlineExceeded)
    assert found.field == "attributions[0]"
    check = ask(served, X, attributions=[ca.Saliency()]).attributions[0].checks[0]
    assert check.cause is ca.Cause.RANDOM_FORWARD


# Callers who hang up.


class Steps(nn.Module):
    """Takes a little time for each pass, and counts them, in an array: a number would be restored behind each."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = array("q", [0])
        self.working = threading.Event()

    def forward(self, x: Tensor) -> Tensor:
        self.passes[0] += 1
        if self.passes[0] > 5:
            self.working.set()
        time.sleep(0.01)
        return x[:, :2] + x.sum(1, keepdim=True)


PASSES = 2000
VERY_LONG = ca.FeatureAblation(masks={"x": np.arange(PASSES)[None]})


@pytest.mark.parametrize("stream", [False, True])
def test_nobody_works_on_for_a_caller_who_hung_up(stream: bool) -> None:
    """Amid an explanation of thousands of passes the caller hangs up: it ends between two of them, the next caller is
    answered, and what was still to come is never run."""
    model = Steps()
    x = np.zeros((1, PASSES), np.float32)
    with serve({"steps": TensorAdapter(model, inputs=[InputSpec("x", "float32", (-1, -1))])}) as server:

        async def leave() -> None:
            async with ca.AsyncClient(server.address) as client:
                call = asyncio.ensure_future(client.inspect("steps", {"x": x}, attributions=[VERY_LONG], stream=stream))
                await asyncio.to_thread(model.working.wait, PATIENCE_S)
                call.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await call

        asyncio.run(leave())
        with ca.Client(server.address) as client:
            assert client.inspect("steps", {"x": x}).predictions
    assert model.passes[0] < PASSES / 2


def test_a_call_of_a_caller_who_is_gone_is_not_begun() -> None:
    """What a worker is told before it begins, it heeds."""
    asked = row(X)
    served = worker(failing_models.Sound())
    (found,) = map(outcome, served.answer([asked._replace(cancellation=Cancellation(hung_up=lambda: False))]))
    assert isinstance(found, ca.InspectResult)
    (found,) = map(outcome, served.answer([asked._replace(cancellation=Cancellation(hung_up=lambda: True))]))
    assert isinstance(found, ca.DeadlineExceeded)
    assert "hung up" in found.message


def test_of_callers_answered_together_the_last_one_counts() -> None:
    """Work that one of several still waits for goes on; the others are told of their own end."""
    here, left, late = Cancellation(), Cancellation(hung_up=lambda: True), Cancellation(deadline=1.0)
    assert not latest([left, here, late]).is_cancelled
    assert latest([left, left]).is_cancelled
    assert latest([late, left]).is_cancelled
