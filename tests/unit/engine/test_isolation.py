"""However a request ends, the model and the process are as before, and its neighbours never knew."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.engine.checks.function_calls import patching
from cutaway.engine.hooks.capture_spec import watching
from cutaway.engine.hooks.observe import observing
from cutaway.engine.model.module_tree import ModuleTree
from cutaway.engine.runtime import rng
from cutaway.server.worker.call import Call
from tests.support import failing_models
from tests.support.adapters.mirror_adapter import MirrorAdapter
from tests.support.failing_models import Sound
from tests.support.function_module import Through
from tests.support.mixed import failing, mirror
from tests.support.mixed.answers import differences, flat
from tests.support.mixed.mix import Model, Outcome, requests
from tests.support.state_snapshot import State, untouched
from tests.support.waiting import PATIENCE_S, until
from tests.support.worker_calls import ask, outcome, row, worker

X = {"x": torch.randn(3, 4, generator=torch.Generator().manual_seed(1))}
POINTS = tuple(ca.Point)
HOST = torch.device("cpu")
SEVEN = np.ones(7, np.float32)
TROUBLE = ca.Scale("a", factor=1e6)
"""What makes the troubled models fail: their hidden values grow too large."""

EVERYTHING: dict[str, Any] = {
    "captures": [ca.Capture("**", at=POINTS), ca.Capture(op="**:*#*"), ca.Capture(parameter="b.weight")],
    "input_gradients": True,
}
EXPLAINED: dict[str, Any] = {
    "attributions": [ca.LayerGradCam(layer="b"), ca.IntegratedGradients(n_steps=3)],
    "check": "independent",
}


class Masked(Sound):
    """Has a module of booleans."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = Through(lambda h: h > 0)

    def end(self, h: Tensor) -> Tensor:
        return super().end(h * self.mask(h))


class MaskedAndCaught(Masked):
    """Goes on without it, should it fail."""

    def end(self, h: Tensor) -> Tensor:
        try:
            return super().end(h)
        except Exception:
            return self.c(h)


End = tuple[type[nn.Module], dict[str, Any], str, str | None]
"""How a request ends: what it is asked of, what is asked, and with which reason it fails, of which field. No reason is
an answer; no field any."""

SHAPE = ("EDIT_SHAPE", "edits[1].add.tensor")


def hook_fails(at: str, **place: Any) -> dict[str, Any]:
    """An edit that does not fit what it is for, behind one that does."""
    return {"edits": [ca.Scale("a", factor=2.0), ca.Add(at=ca.Point(at), addend=SEVEN, **place)]}


def in_a_hook(at: str, model: type[nn.Module] = Sound, **place: Any) -> End:
    """The end of a request whose second edit fails."""
    return (model, {**EVERYTHING, **hook_fails(at, **place)}, *SHAPE)


TROUBLED: dict[str, Any] = {**EVERYTHING, "edits": [TROUBLE]}
UNREDUCED: dict[str, Any] = {"captures": [ca.Capture("mask", reduce=ca.TopElements(1))]}

ENDS: dict[str, End] = {
    "answered": (Sound, {**EVERYTHING, **EXPLAINED}, "", ""),
    "answered with edits": (Sound, {**TROUBLED, **EXPLAINED, "compare": True}, "", ""),
    "answered after several backward passes": (Sound, {**EVERYTHING, "target": ca.TopK(3)}, "", ""),
    "early": (Sound, {"captures": [ca.Capture("b", at="input", call=0)], "predictions": False}, "", ""),
    "early, at an operator": (Sound, {"captures": [ca.Capture(op=":relu#0", call=0)], "predictions": False}, "", ""),
    "early, in what catches everything": (
        failing_models.CatchesAll, {"captures": [ca.Capture("b", call=0)], "predictions": False}, "", ""),
    "early, in a generator": (
        failing_models.Pieces, {"captures": [ca.Capture("b", call=0)], "predictions": False}, "", ""),
    "exception in forward": (failing_models.RaisesLate, TROUBLED, "MODEL_FAILED", ""),
    "exception in a generator": (failing_models.Pieces, TROUBLED, "MODEL_FAILED", ""),
    "exception after meddling": (failing_models.Meddles, TROUBLED, "MODEL_FAILED", ""),
    "exit in forward": (failing_models.Exits, TROUBLED, "MODEL_FAILED", ""),
    "no memory in forward": (failing_models.RunsOut, TROUBLED, "OUT_OF_MEMORY", ""),
    "exception in backward": (failing_models.Backfires, TROUBLED, "MODEL_FAILED", ""),
    "exception in Captum's forward": (
        failing_models.RaisesLate,
        {"attributions": [ca.Saliency(), ca.IntegratedGradients(n_steps=3, baselines={"x": 1e6})]},
        "MODEL_FAILED", "attributions[1]"),
    "exception in Captum's backward": (
        failing_models.Backfires, {**EXPLAINED, "edits": [TROUBLE]}, "METHOD_INAPPLICABLE", "attributions[1]"),
    "exception in a hook": in_a_hook("output", module="b"),
    "exception in a hook before": in_a_hook("input", module="b"),
    "exception in a hook on the way back": in_a_hook("grad_output", module="b"),
    "exception in a hook on the way back before": in_a_hook("grad_input", module="b"),
    "exception in a hook on Captum's way back": (
        Sound, {**EXPLAINED, **hook_fails("grad_output", module="a")}, "EDIT_SHAPE", None),
    "exception in a hook in an explanation's pass alone": (
        Sound, {"attributions": [ca.Saliency()], **hook_fails("grad_output", module="b")}, *SHAPE),
    "exception in an operator's hook": in_a_hook("output", op=":relu#0"),
    "exception in an operator's hook on the way back": in_a_hook("grad_output", op=":relu#0"),
    "exception in a hook, caught by the model": in_a_hook("output", failing_models.Catches, module="b"),
    "exception in a hook, caught like everything": in_a_hook("input", failing_models.CatchesAll, module="b"),
    "exception in a hook, reworded by the model": (
        failing_models.Rewords, hook_fails("output", module="b"), *SHAPE),
    "exception in an operator's hook, caught by the model": in_a_hook(
        "output", failing_models.Catches, op="b:linear#0"),
    "what a hook cannot do": (Masked, UNREDUCED, "INVALID_VALUE", "captures[0].reduction.top_k"),
    "what a hook cannot do, caught by the model": (
        MaskedAndCaught, UNREDUCED, "INVALID_VALUE", "captures[0].reduction.top_k"),
    "reply too large": (Sound, {**EVERYTHING, "max_reply_bytes": 100}, "REPLY_TOO_LARGE", "options.max_reply_bytes"),
    "deadline before": (Sound, {**EVERYTHING, "deadline_s": -1.0}, "DEADLINE_EXCEEDED", ""),
}  # fmt: skip


@pytest.mark.parametrize(("model", "asked", "reason", "field"), ENDS.values(), ids=ENDS)
def test_the_model_is_as_before_however_a_request_ends(
    model: type[nn.Module], asked: dict[str, Any], reason: str, field: str | None
) -> None:
    """Hooks, parameters, buffers, flags, gradients, modes of PyTorch: all as they were, and the next answer the same to
    the bit; what went wrong is told by its reason and field, whatever the model makes of the error."""
    module = model()
    served = worker(module)
    first = flat(ask(served, X))
    dice = torch.get_rng_state()
    module.train()  # which is the owner's business: requests run in evaluation mode, and leave the flags alone
    with untouched(module):
        (found,) = map(outcome, served.answer([row(X, **asked)]))
    assert torch.equal(dice, torch.get_rng_state())
    told = (found.reason, found.field) if isinstance(found, ca.CutawayError) else ("", "")
    assert told == (reason, told[1] if field is None else field), found
    assert differences(flat(ask(served, X)), first) == []


@pytest.mark.parametrize("model", [failing_models.IsCancelled, failing_models.EndsAGenerator])
def test_whatever_a_model_raises_ends_its_own_request(model: type[Sound]) -> None:
    """Cancellation and the like, which are no `Exception`, are a reply too: the rest of the batch is answered."""
    replies = worker(model()).answer([row(X), row(X, edits=[TROUBLE]), row(X)])
    assert [isinstance(outcome(reply), ca.CutawayError) for reply in replies] == [False, True, False]


# One batch.


def late_and_foreign() -> list[tuple[Call, str]]:
    """Rows of a batch that are no question, or came too late, and what becomes of them."""
    return [
        (row(mirror.inputs(), captures="**", deadline_s=-1.0), "DEADLINE_EXCEEDED"),
        (Call("inspect", b"\xff\xff"), "MALFORMED_REQUEST"),
        (Call.of_parts({}), "MALFORMED_REQUEST"),
        (Call.of_parts({"inspect": b"", "describe": b""}), "MALFORMED_REQUEST"),
    ]


@pytest.mark.parametrize("seed", range(4))
def test_rows_of_a_batch_never_touch_each_other(seed: int) -> None:
    """Edits, failures, plain questions, rows that are late or no question at all, in any order: each is answered as
    alone."""
    twin = mirror.Twin().eval()
    good, bad = requests(Model("model", twin, mirror.inputs(), twin, "output", mirror.KINDS, failing.MIRROR, share=1))
    rows: list[tuple[Any, Any]] = [(row(each.inputs, **each.asked), each.wrong) for each in (good + bad) * 2]
    rows += [(each, lambda found, reason=reason: _unless(found, reason)) for each, reason in late_and_foreign()]
    random.Random(seed).shuffle(rows)
    network = MirrorAdapter().build().eval()
    with untouched(network):
        replies = worker(network).answer([each for each, _ in rows])
    assert [wrong(outcome(reply)) for reply, (_, wrong) in zip(replies, rows, strict=True)] == [""] * len(rows)


def _unless(found: Outcome, reason: str) -> str:
    return "" if isinstance(found, ca.CutawayError) and found.reason == reason else str(found)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_mode_of_the_caller_does_not_matter(mode: Callable[[], AbstractContextManager[None]]) -> None:
    """In whatever grad mode a worker is asked, it answers the same, and leaves the mode as it is."""
    served = worker(Sound())
    expected = flat(ask(served, X, **EVERYTHING, **EXPLAINED))
    with mode():
        found = flat(ask(served, X, **EVERYTHING, **EXPLAINED))
        assert torch.is_grad_enabled() == (mode is torch.enable_grad)
    assert differences(found, expected) == []


# Random numbers.


def rolled(**asked: Any) -> tuple[ca.InspectResult, Tensor]:
    """What a model of chance says with the same seed, and how the dice lie afterwards."""
    served = worker(failing_models.Dice())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return ask(served, X, **asked), torch.get_rng_state()


def test_a_comparison_rolls_no_dice() -> None:
    """With ``compare`` a model of chance says what it says without, and draws as many random numbers; and the unedited
    run draws the same ones."""
    edits = [ca.Scale("b", factor=2.0)]
    plain, dice = rolled(edits=edits)
    compared, dice_after_comparing = rolled(edits=edits, compare=True)
    unedited, _ = rolled()
    assert torch.equal(dice, dice_after_comparing)
    assert np.array_equal(plain.predictions["output"], compared.predictions["output"])
    assert np.array_equal(unedited.predictions["output"], compared.unedited["output"])
    assert not np.array_equal(compared.predictions["output"], compared.unedited["output"])


OWN, OF_NUMPY, OF_PYTHON = torch.Generator(), np.random.default_rng(0), random.Random(0)

SAMPLERS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda h: h + torch.randn_like(h),
    "one number for all rows": lambda h: h + torch.rand(()),
    "bernoulli": lambda h: torch.bernoulli(h.sigmoid()),
    "multinomial": lambda h: torch.multinomial(h.softmax(1), 2, replacement=True).double(),
    "numpy": lambda h: h * float(np.random.uniform()),
    "python": lambda h: h * random.random(),
    "all": lambda h: h * (random.random() + np.random.uniform()) + torch.rand(()),
    "a generator of its own": lambda h: h + torch.rand(h.shape, generator=OWN),
    "one of numpy": lambda h: h * float(OF_NUMPY.uniform()),
    "one of python": lambda h: h * OF_PYTHON.random(),
}


class Sampler(nn.Module):
    """Draws random numbers in evaluation mode."""

    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a = nn.Linear(4, 5, dtype=torch.float64)
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return self.draw(self.a(x))


def dice() -> list[object]:
    """How all generators lie."""
    own = (OWN.get_state().tolist(), OF_NUMPY.bit_generator.state, OF_PYTHON.getstate())
    return [torch.get_rng_state().tolist(), repr(np.random.get_state()), random.getstate(), *own]


def by_hand(model: nn.Module, x: Tensor, seed: int) -> Any:
    """What the model returns once every generator is seeded."""
    global OF_NUMPY
    state = OF_NUMPY.bit_generator.state
    OF_NUMPY.bit_generator.state = np.random.default_rng(seed).bit_generator.state
    for each in (torch.manual_seed, np.random.seed, random.seed, OWN.manual_seed, OF_PYTHON.seed):
        each(seed)
    returned = model(x).detach().numpy()
    OF_NUMPY.bit_generator.state = state
    return returned


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_seed_is_that_of_what_the_model_draws_too(name: str) -> None:
    """The same seed gives what the model returns after that seed by hand, whatever was drawn before; the generators lie
    as before, and the next one asks with another seed or with none."""
    model = Sampler(SAMPLERS[name]).eval()
    served, x = worker(model), {"x": X["x"].double()}
    first, other = (by_hand(model, x["x"], seed) for seed in (7, 8))
    assert not np.array_equal(first, other)
    for seed, expected in ((7, first), (8, other), (7, first)):
        before = dice()
        asked = ask(served, x, seed=seed, captures=["."])
        assert dice() == before
        assert asked.provenance.seed == seed
        assert np.array_equal(asked.predictions["output"], expected)
        assert np.array_equal(asked.captures[""].output, expected)
        free, again = (ask(served, x).predictions["output"] for _ in range(2))
        assert not np.array_equal(free, again)
        assert dice() != before


def test_requests_with_seeds_are_answered_together_as_alone() -> None:
    """Neighbours move no row's draws, not those of a model whose rows look independent either."""

    def rarely(h: Tensor) -> Tensor:
        return h * (1 if float(h.abs().max()) < 1e3 else torch.rand(h.shape[0], 1))

    for draw in (*SAMPLERS.values(), rarely):
        served = worker(Sampler(draw).eval())
        assert len([*served.answer([row({"x": X["x"][[number]].double()}) for number in range(2)])]) == 2
        rows = [(1e6 * X["x"][[number]].double(), seed) for number, seed in enumerate((7, 8, None))]
        replies = served.answer([row({"x": x}, seed=seed) for x, seed in rows])
        for reply, (x, seed) in zip(replies, rows):
            if seed is not None:
                alone = ask(served, {"x": x}, seed=seed)
                assert np.array_equal(outcome(reply).predictions["output"], alone.predictions["output"])  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", ["same_pass", "independent"])
@pytest.mark.parametrize("name", ["normal", "one number for all rows", "numpy", "python", "a generator of its own"])
def test_a_seed_hides_no_chance(name: str, mode: str) -> None:
    """A model that draws is still found, though each pass of a request with a seed draws the same numbers; and a check
    leaves the generators as they lay."""
    served, before = worker(Sampler(SAMPLERS[name]).eval()), dice()
    methods = [ca.Saliency(), ca.IntegratedGradients(n_steps=4), ca.FeatureAblation(), ca.ShapleyValueSampling()]
    for number, asked in enumerate(methods):
        got = ask(served, {"x": X["x"].double()}, seed=7, attributions=[asked], check=mode, target=1).attributions[0]
        assert got.verdict == "INCONCLUSIVE", number
        assert "RANDOM_FORWARD" in [check.cause for check in got.checks]
        assert dice() == before


# State on the model's own attributes.


@dataclass
class Memory:
    """What a model remembers, outside of any module."""

    hidden: Any = None
    steps: int = 0


class Owned:
    """The same, in a class that is nothing special."""

    def __init__(self) -> None:
        self.inside = {"memory": [Memory()]}


Remember = Callable[[Any, Tensor], Tensor]
"""Returns what a model makes of its state and of ``h``, and changes the state."""


def rebound(m: Any, h: Tensor) -> Tensor:
    m.state = h if m.state is None else h + m.state
    return m.state


def from_nothing(m: Any, h: Tensor) -> Tensor:
    m.late = h + getattr(m, "late", 0)
    return m.late


def in_place(m: Any, h: Tensor) -> Tensor:
    m.table += 0.5
    return h + m.table


def in_place_of_a_view(m: Any, h: Tensor) -> Tensor:
    with torch.no_grad():
        m.state = m.table[:2]
        m.state.add_(1)
    return h + m.table


def with_a_graph(m: Any, h: Tensor) -> Tensor:
    m.other.mul_(m.gain)
    return h + m.other


def counted(m: Any, h: Tensor) -> Tensor:
    m.calls += 1
    return h * m.calls


def counted_late(m: Any, h: Tensor) -> Tensor:
    m.calls += 1
    return h * (2 if m.calls > 3 else 1)


def flagged(m: Any, h: Tensor) -> Tensor:
    if m.first:
        m.first, m.state = False, 0.5 * h
    m.state = m.state + h
    return h + m.state


def listed(m: Any, h: Tensor) -> Tensor:
    m.seen.append(h)
    return sum(m.seen)


def written(m: Any, h: Tensor) -> Tensor:
    m.slots[0] = h + m.slots[0]
    return h + m.slots[0]


def queued(m: Any, h: Tensor) -> Tensor:
    m.queue.append(h)
    return h + sum(m.queue)


def nested(m: Any, h: Tensor) -> Tensor:
    m.cache.setdefault("layers", []).append({"h": h})
    return h * len(m.cache["layers"])


def in_a_set(m: Any, h: Tensor) -> Tensor:
    m.known.add(len(m.known))
    return h * len(m.known)


def in_a_dataclass(m: Any, h: Tensor) -> Tensor:
    m.memory.steps += 1
    m.memory.hidden = h if m.memory.hidden is None else h + m.memory.hidden
    return m.memory.hidden * m.memory.steps


def in_an_object(m: Any, h: Tensor) -> Tensor:
    return in_a_dataclass(SimpleNamespace(memory=m.owned.inside["memory"][0]), h)


def in_a_namespace(m: Any, h: Tensor) -> Tensor:
    m.space.h = h + getattr(m.space, "h", 0)
    return m.space.h


STATEFUL: tuple[Remember, ...] = (
    rebound, from_nothing, in_place, in_place_of_a_view, with_a_graph, counted, counted_late, flagged, listed, written,
    queued, nested, in_a_set, in_a_dataclass, in_an_object, in_a_namespace,
)  # fmt: skip


class Stateful(nn.Module):
    """Keeps something on itself in each call."""

    def __init__(self, remember: Remember) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 5).double(), nn.Linear(5, 3).double()
        self.inner = Inner(remember)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.inner(self.a(x))))


class Inner(nn.Module):
    def __init__(self, remember: Remember) -> None:
        super().__init__()
        self.remember, self.state, self.calls, self.first = remember, None, 0, True
        self.gain = nn.Parameter(torch.full((5,), 1.5).double())
        self.table, self.other = torch.zeros(5).double(), torch.ones(5).double()
        self.seen: list[Tensor] = []
        self.slots, self.queue = [torch.zeros(1).double()], deque([torch.zeros(()).double()], maxlen=3)
        self.cache: dict[str, Any] = {}
        self.known: set[int] = {5}
        self.memory, self.owned, self.space = Memory(), Owned(), SimpleNamespace()

    def forward(self, h: Tensor) -> Tensor:
        return self.remember(self, h)


def gradient_by_hand(remember: Remember, x: Tensor) -> Any:
    """The gradient of class 1 that a new model has."""
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(Stateful(remember)(leaf)[:, 1].sum(), leaf)[0]


@pytest.mark.parametrize("remember", STATEFUL, ids=lambda each: each.__name__)
def test_a_model_that_keeps_state_answers_as_if_nobody_had_asked_before(remember: Remember) -> None:
    """Whatever others ask between, alone or in a batch: prediction, activation and gradient are those of a model as it
    was loaded, by hand; and so is what is explained, pass by pass."""
    model, x = Stateful(remember).eval(), X["x"].double()
    served = worker(model)
    expected = Stateful(remember)(x).detach().numpy()
    gradient = gradient_by_hand(remember, x)
    before = {name: repr(value) for name, value in vars(model.inner).items() if not name.startswith("_")}
    for _ in range(3):
        got = ask(served, {"x": x}, target=1, input_gradients=True, captures=["inner"])
        assert np.array_equal(got.predictions["output"], expected)
        np.testing.assert_allclose(got.input_gradients["x"], gradient, rtol=1e-12)
        others = [row({"x": 3 * x[:1]}), row({"x": -x[1:2]}), row({"x": 3 * x[:1]}, captures=["a"])]
        assert all(isinstance(outcome(reply), ca.InspectResult) for reply in served.answer(others))
        assert {name: repr(value) for name, value in vars(model.inner).items() if not name.startswith("_")} == before
    for mode in ("same_pass", "independent"):
        asked = [ca.Saliency(absolute=False), ca.IntegratedGradients(n_steps=8), ca.FeatureAblation()]
        results = ask(served, {"x": x[:1]}, target=1, attributions=asked, check=mode).attributions
        assert [each.verdict for each in results] == ["AGREES"] * 3
        np.testing.assert_allclose(results[0].values["x"], gradient_by_hand(remember, x[:1]), rtol=1e-12)
    assert {name: repr(value) for name, value in vars(model.inner).items() if not name.startswith("_")} == before


class OwnLinear(nn.Linear):
    """A module of the model's own that Captum's LRP writes to."""


def test_what_captum_keeps_on_modules_stays_while_it_runs() -> None:
    """LRP gives each module its rule and its activations, also those of classes of one's own: its values are those of
    PyTorch's own classes, and nothing of it is left."""

    def explained(kind: type[nn.Linear]) -> tuple[nn.Sequential, Any]:
        torch.manual_seed(0)
        model = nn.Sequential(kind(4, 6), nn.ReLU(), kind(6, 3)).eval()
        rules = {"0": ca.Epsilon(), "2": ca.Gamma()}
        got = ask(worker(model), {"input": X["x"]}, target=1, attributions=[ca.LRP(rules=rules)]).attributions[0]
        assert got.verdict == "AGREES"
        return model, got.values["input"]

    _, expected = explained(nn.Linear)
    model, values = explained(OwnLinear)
    assert np.array_equal(values, expected)
    assert set(vars(model[0])) == set(vars(OwnLinear(4, 6)))


def test_what_the_owner_changes_between_requests_stays() -> None:
    """A new state, a tensor that is written to, a longer list, and a count that the model itself never reads."""
    model, x = Stateful(lambda m, h: h * m.calls + m.table + len(m.seen)).eval(), {"x": X["x"].double()}
    served = worker(model)
    for change in (
        lambda m: setattr(m, "calls", 3), lambda m: m.table.add_(1), lambda m: m.seen.append(m.table),
        lambda m: setattr(m, "table", torch.arange(5.0).double()), lambda m: m.seen.clear(),
    ):  # fmt: skip
        change(model.inner)
        assert np.array_equal(ask(served, x).predictions["output"], model(x["x"]).detach().numpy())

    class Probed(Sound):
        calls = 0
        rows: list[int]

        def end(self, h: Tensor) -> Tensor:
            self.calls += 1
            return super().end(h)

    probed = Probed()
    ask(worker(probed), X)
    assert probed.calls == 3  # two passes find the axis of the rows


def test_a_model_that_initialises_itself_does_so_once() -> None:
    """Its first pass adds a module and a hook, and notes that it did: then that stays, and nothing is added again."""

    class Lazily(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ready, self.a = False, nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            if not self.ready:
                self.a.register_forward_hook(lambda _, __, output: output + 1)
                self.late, self.ready = nn.Linear(4, 2), True
            return self.late(self.a(x))

    model = Lazily().eval()
    served = worker(model)
    first, second, third = (ask(served, X).predictions["output"] for _ in range(3))
    assert len(model.a._forward_hooks) == 1
    assert np.array_equal(second, third)
    assert np.array_equal(second, model(X["x"]).detach().numpy())
    assert np.array_equal(first, second)
    model.a._forward_hooks.clear()


# The hooks by themselves.


def test_a_generator_that_is_closed_leaves_no_hook() -> None:
    """Whoever lets go of the block in the middle, with modes and hooks in place, lets go of all of them."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def watching_on() -> Generator[Tensor, None, None]:
        taps = {"0": watching(*POINTS), "1:relu#0": watching(*POINTS)}
        with observing(ModuleTree(model), taps) as seen, seen.forward():
            yield model(X["x"])

    before = State.of(model)
    looking = watching_on()
    next(looking)
    assert {change.partition(":")[0] for change in before.changes(State.of(model))} == {"hooks", "process"}
    looking.close()
    assert before.changes(State.of(model)) == []


def test_what_is_left_behind_is_found() -> None:
    """What the tests above rest on is no empty promise: each kind of trace is seen."""
    model = Sound()
    before = State.of(model)
    handle = model.a.register_forward_hook(lambda *_: None)
    model.b.weight.register_hook(lambda gradient: gradient)
    model.c.weight.grad = torch.zeros_like(model.c.weight)
    model.c.bias.requires_grad_(True)
    model.passes += 1
    model.norm.eval()
    model.b.note = nn.Identity()
    later = State.of(model)
    assert {change.partition(":")[0] for change in before.changes(later)} == {
        "hooks", "gradients", "trainable", "numbers", "training", "parts",
    }  # fmt: skip
    assert set(later.hooks) == {"a._forward_hooks", "b.weight._backward_hooks"}
    handle.remove()


def test_the_generators_are_had_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks inside blocks hold them until the outermost ends, or lends them; who asked first has them first."""
    monkeypatch.setattr(rng, "PATIENCE_S", PATIENCE_S)
    order: list[str] = []
    asked = [threading.Event() for _ in range(2)]

    def draw(number: int) -> None:
        asked[number].set()
        with rng.kept_rng_state(HOST), rng.kept_rng_state(HOST):
            order.append(f"thread {number}")
            torch.rand(number + 1)

    threads = [threading.Thread(target=draw, args=(number,)) for number in range(2)]
    with rng.seeded(1, HOST):
        expected = torch.rand(4)
    with rng.seeded(1, HOST), rng.kept_rng_state(HOST):
        first = torch.rand(2)
        for number, thread in enumerate(threads):
            thread.start()
            asked[number].wait(PATIENCE_S)
            until(lambda number=number: len(rng._generators._waiting) == number + 1)  # type: ignore[misc]
        order.append("here")
        with rng.lent():
            for thread in threads:
                thread.join(PATIENCE_S)
        second = torch.rand(2)
    assert order == ["here", "thread 0", "thread 1"]
    assert torch.equal(torch.cat((first, second)), expected)
    assert not rng.are_wanted()


def test_a_pass_that_takes_long_loses_the_generators_until_it_ends() -> None:
    """Another thread draws meanwhile; what is drawn behind the pass follows what was drawn before it."""

    def draw() -> None:
        with rng.kept_rng_state(HOST):
            torch.rand(3)

    with rng.seeded(1, HOST):
        expected = torch.rand(4)
    with rng.seeded(1, HOST), rng.kept_rng_state(HOST):
        first = torch.rand(2)
        other = threading.Thread(target=draw)
        with rng.passing():
            other.start()
            other.join(PATIENCE_S)
            assert not other.is_alive()
        second = torch.rand(2)
    assert torch.equal(torch.cat((first, second)), expected)
    holder = rng._generators
    assert [holder._lost, holder._depth, [*holder._waiting]] == [{}, 0, []]


def drawing() -> threading.Thread:
    """A thread that has begun to ask for the generators."""

    def draw() -> None:
        with rng.kept_rng_state(HOST):
            torch.rand(3)

    thread = threading.Thread(target=draw)
    thread.start()
    return thread


def test_generators_are_lost_in_forward_passes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between them a method draws itself."""
    monkeypatch.setattr(rng, "PATIENCE_S", 0.01)
    with rng.kept_rng_state(HOST):
        other = drawing()
        until(rng.are_wanted)
        other.join(0.3)
        assert other.is_alive()
    other.join(PATIENCE_S)
    assert not other.is_alive()


def test_who_waits_to_replace_functions_lends_the_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took them from one in a long pass, who replaces functions too and needs them behind it."""
    monkeypatch.setattr(rng, "PATIENCE_S", 0.01)
    done = []

    def passing() -> None:
        with patching():
            with rng.passing():
                second.start()
                until(lambda: bool(rng._generators._lost))
            done.append(rng._generators._thread == threading.get_ident())

    def waiting() -> None:
        with patching():
            done.append(rng._generators._thread == threading.get_ident())

    first, second = (threading.Thread(target=target, daemon=True) for target in (passing, waiting))
    first.start()
    first.join(PATIENCE_S)
    second.join(PATIENCE_S)
    assert done == [True, True]


def test_a_request_that_lets_others_run_lends_the_generators() -> None:
    """Otherwise the other would wait for them, and this one for its turn."""
    model = worker(Sound())._model
    with model.kept_rng_state():
        with model.apart():
            other = drawing()
            other.join(PATIENCE_S)
            assert not other.is_alive()
        with patching():  # who replaces functions holds the generators too: one order of locks
            other = drawing()
            until(rng.are_wanted)
    other.join(PATIENCE_S)
    with patching():
        assert rng._generators._thread == threading.get_ident()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_forked_process_does_not_wait_for_threads_that_it_does_not_have() -> None:
    """In a process of its own, without other libraries' threads."""
    program = """
import os, threading, torch
from cutaway.engine.runtime import rng
host, held, done = torch.device("cpu"), threading.Event(), threading.Event()
def hold():
    with rng.kept_rng_state(host):
        held.set()
        done.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if not child:
    with rng.kept_rng_state(host):
        os._exit(7)
_, status = os.waitpid(child, 0)
done.set()
raise SystemExit(os.waitstatus_to_exitcode(status))
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=PATIENCE_S).returncode == 7
