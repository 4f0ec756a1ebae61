"""Between two passes of a request others run: none of them notices, and every number is the one it has alone."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from cutaway.engine.methods.captum_call import TABLE
from cutaway.engine.model import session
from cutaway.engine.model.session import Turns
from cutaway.engine.references import surrogates
from cutaway.engine.runtime.rng import fingerprint
from cutaway.server.worker.worker import Worker
from tests.support.state_snapshot import State, untouched
from tests.support.worker_calls import ask, row, said, worker

X = {"x": torch.randn(3, 4, generator=torch.Generator().manual_seed(1))}
EXAMPLES = np.random.default_rng(0).normal(size=(4, 5, 4)).astype("float32")
POINTS = tuple(ca.Point)


class Moody(nn.Module):
    """Draws random numbers, counts its calls in a buffer, remembers what it saw, and has a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.a, self.relu, self.b = nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)
        self.a.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        h = F.dropout(self.relu(self.a(x)), 0.25, training=True)
        h = h + sum(each.mean() for each in self.seen) * self.calls
        self.seen.append(h.detach())
        output: Tensor = self.b(h)
        return output


class Sequenced(nn.Module):
    """Takes its rows along axis 1 inside, as LSTMs do."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.lstm, self.a, self.relu, self.b = nn.LSTM(2, 6), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(self.lstm(x.reshape(len(x), 2, 2).transpose(0, 1))[0])
        output: Tensor = self.b(self.relu(h)[-1])
        return output


EDITED: dict[str, Any] = {
    "edits": [ca.Scale("a", factor=2.0), ca.Add("b", at="grad_output", addend=1.0), ca.Zero(op=":add#0", rows=(1,))],
    "captures": [ca.Capture("**", at=POINTS), ca.Capture(op="**:*#*"), ca.Capture(parameter="a.weight")],
}

SMALL: dict[str, dict[str, Any]] = {
    "captures and gradients": {"captures": [ca.Capture("**", at=POINTS)], "input_gradients": True, "seed": 1},
    "edits": {**EDITED, "seed": 2, "compare": True},
    "operators": {"captures": [ca.Capture(op="**:*#*")], "seed": 3},
    "a gradient of a parameter": {"captures": [ca.Capture(parameter="b.weight")], "seed": 4},
    "an explanation": {"attributions": [ca.IntegratedGradients(n_steps=3)], "seed": 5},
    "modules with hooks of Captum": {"attributions": [ca.DeepLift(), ca.GuidedBackprop()], "seed": 6},
    "rules of Captum": {"attributions": [ca.LRP()], "seed": 7, "check": "off"},
    "a failure": {"edits": [ca.Add("a", addend=np.ones(7, np.float32))], "seed": 8},
}

HEAVY: dict[str, dict[str, Any]] = {
    "perturbations": {"attributions": [ca.FeatureAblation(), ca.ShapleyValueSampling(n_samples=2)]},
    "paths": {
        "attributions": [ca.IntegratedGradients(n_steps=4), ca.LayerIntegratedGradients(layer="relu", n_steps=3)]
    },
    "units of a layer": {"attributions": [ca.LayerFeatureAblation(layer="relu")]},
    "draws": {
        "attributions": [
            ca.KernelShap(n_samples=9),
            ca.Lime(n_samples=9),
            ca.GradientShap(n_samples=3, baselines={"x": np.zeros((2, 4), np.float32)}),
        ]
    },
    "noise": {"attributions": [ca.Saliency(noise=ca.NoiseTunnel(n_samples=3)), ca.InputXGradient()]},
    "metrics": {"attributions": [ca.Saliency(metrics=(ca.Infidelity(n_samples=3), ca.SensitivityMax(n_samples=2)))]},
    "backward passes": {"target": ca.TopK(3), "input_gradients": True, "captures": EDITED["captures"]},
    "modules": {"attributions": [ca.GuidedBackprop(), ca.DeepLift(), ca.LayerGradCam(layer="relu")]},
    "rules": {"attributions": [ca.LRP()]},
    "neurons": {"attributions": [ca.NeuronIntegratedGradients(neuron=ca.Neuron("b", (1,)), n_steps=3)]},
    "classes": {
        "target": ca.TopK(2),
        "attributions": [ca.IntegratedGradients(n_steps=3), ca.LayerActivation(layer="a")],
    },
}

OF_MODELS_AS_THEY_ARE: dict[str, dict[str, Any]] = {
    "concepts": {
        "target": 1,
        "concepts": {
            "layers": ["a"],
            "concepts": {"more": EXAMPLES[0] + 1},
            "random": [*EXAMPLES[1:]],
        },
    },
    "influence": {"target": 1, "influence": {"training": EXAMPLES[0], "labels": [0, 1, 2, 0, 1]}},
}
"""Requests of many passes, or fits, that take no edits."""


class EveryPass(Turns):
    """Lets another request run before each pass of a request that was begun in this thread."""

    def __init__(self, served: Worker, model: nn.Module) -> None:
        self.answers: list[tuple[str, str]] = []
        self.left: list[str] = []
        self._plain = State.of(model)
        self._served, self._model = served, model
        self._thread = threading.get_ident()
        self._names = itertools.cycle(SMALL)
        self._passes = 0

    @property
    def are_over(self) -> bool:
        """At the first passes, and then now and then."""
        self._passes += threading.get_ident() == self._thread
        few = self._passes < len(SMALL) or self._passes % 7 == 0
        return few and threading.get_ident() == self._thread

    @contextmanager
    def released(self) -> Iterator[None]:
        """Asks the next small question, in a thread of its own."""
        asking = threading.Thread(target=self._ask, args=(next(self._names),))
        asking.start()
        asking.join()
        yield

    def _ask(self, name: str) -> None:
        self.left += self._plain.changes(State.of(self._model))
        self.answers.append((name, answered(self._served, SMALL[name])))


def answered(served: Worker, asked: dict[str, Any]) -> str:
    """What `said` says of the reply."""
    (answer,) = served.answer([row(X, **asked)])
    return said(answer)


LONE: dict[tuple[type[nn.Module], str], str] = {}


def alone(model: type[nn.Module], name: str, asked: dict[str, Any]) -> str:
    """The answer of a new model that nobody else asks."""
    if (model, name) not in LONE:
        served = worker(model())
        answered(served, asked)  # tests that run once for a model
        LONE[model, name] = answered(served, asked)
    return LONE[model, name]


@pytest.mark.parametrize(
    ("heavy", "edited", "model"),
    [
        *itertools.product(HEAVY, [False, True], [Moody]),
        *itertools.product(OF_MODELS_AS_THEY_ARE, [False], [Moody, Sequenced]),
        *[("paths", False, Sequenced), ("classes", True, Sequenced), ("units of a layer", False, Sequenced)],
    ],
)
def test_requests_between_passes_change_nothing(
    heavy: str, edited: bool, model: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hooks, edits, captures, seeds, flags, buffers and what a model remembers: each request finds the model as it was,
    and answers to the bit what it answers alone."""
    monkeypatch.setattr(surrogates, "LARGE_FIT", 0)
    asked = {**(HEAVY | OF_MODELS_AS_THEY_ARE)[heavy], "seed": 11, **({"edits": EDITED["edits"][:1]} if edited else {})}
    name = f"{heavy} edited" if edited else heavy
    module = model()
    served = worker(module)
    for each in (*SMALL.values(), asked):  # tests of the model run once
        answered(served, each)
    served._model.turns = turns = EveryPass(served, module)
    with untouched(module):
        found = answered(served, asked)
    assert turns.answers
    assert not turns.left
    for small, answer in turns.answers:
        assert answer == alone(model, small, SMALL[small]), small
    assert found == alone(model, name, asked)


class Ticks:
    """A clock that moves on by a second with each forward pass of `Ticking`, and stands still otherwise."""

    def __init__(self) -> None:
        self.passes = 0.0

    def perf_counter(self) -> float:
        """Seconds."""
        return self.passes

    def time(self) -> float:
        """Unix seconds."""
        return time.time()


class Ticking(nn.Module):
    """A network of two layers."""

    def __init__(self, clock: Ticks) -> None:
        super().__init__()
        self.a, self.relu, self.b = nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)
        self.tick = lambda: setattr(clock, "passes", clock.passes + 1)

    def forward(self, x: Tensor) -> Tensor:
        self.tick()
        output: Tensor = self.b(self.relu(self.a(x)))
        return output


class Gradients(Turns):
    """Lets a request about a gradient run before each pass of this thread; now and then its check tests the model."""

    def __init__(self, served: Worker) -> None:
        self.replies: list[ca.InspectResult] = []
        self._served, self._thread = served, threading.get_ident()

    @property
    def are_over(self) -> bool:
        """In this thread."""
        return threading.get_ident() == self._thread

    @contextmanager
    def released(self) -> Iterator[None]:
        """Asks, in a thread of its own."""
        asking = threading.Thread(target=lambda: self.replies.append(ask(self._served, X, **GRADIENT)))
        asking.start()
        asking.join()
        yield


GRADIENT: dict[str, Any] = {"attributions": [ca.InputXGradient()]}


def test_the_time_of_others_is_in_no_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither that of their passes, nor that of their tests of the model."""
    asked = HEAVY["units of a layer"]
    clock = Ticks()
    monkeypatch.setattr(session, "time", clock)
    served = worker(Ticking(clock))
    ask(served, X, **asked)
    alone = ask(served, X, **asked)
    served._model.turns = turns = Gradients(served)
    found = ask(served, X, **asked)
    assert sum(each.timings.proof_ms > 0 for each in turns.replies) > 1
    for one, other in ((found.timings, alone.timings), (found.attributions[0], alone.attributions[0])):
        assert (one.attribution_ms, one.check_ms) == (other.attribution_ms, other.check_ms)


class Asked(Turns):
    """Counts how often a request could let others run."""

    def __init__(self) -> None:
        self.times = 0

    @property
    def are_over(self) -> bool:
        """Never."""
        self.times += 1
        return False


@pytest.mark.parametrize("method", [ca.KernelShap, ca.Lime])
def test_others_run_between_draws(method: Any) -> None:
    """A surrogate's masks are drawn again for its check: they are thousands, and no pass is between them."""
    clock = Ticks()
    served = worker(Ticking(clock))
    ask(served, X, attributions=[method(n_samples=50)])
    served._model.turns = turns = Asked()
    ask(served, X, attributions=[method(n_samples=50)])
    passes = clock.passes
    ask(served, X, attributions=[method(n_samples=50)])
    assert turns.times / 2 >= clock.passes - passes + 3 * 50  # for three rows


class Meanwhile(Turns):
    """Notes something whenever a request lets others run for a while, and when it goes on."""

    def __init__(self, note: Callable[[], Any]) -> None:
        self.noted: list[Any] = []
        self._note = note

    @contextmanager
    def released(self) -> Iterator[None]:
        """Notes before and after the block."""
        self.noted.append(self._note())
        yield
        self.noted.append(self._note())


def test_others_run_while_a_method_imports_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does so once; scikit-learn, which fits the surrogates, takes a second."""
    (tmp_path / "slow_solver.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "slow_solver", raising=False)
    monkeypatch.setitem(TABLE, ca.KernelShap, replace(TABLE[ca.KernelShap], imports=("slow_solver",)))
    served = worker(Ticking(Ticks()))
    served._model.turns = turns = Meanwhile(lambda: "slow_solver" in sys.modules)
    for _ in range(2):
        ask(served, X, attributions=[ca.KernelShap(n_samples=5)])
    assert turns.noted == [False, True]
    assert TABLE[ca.Lime].imports == ("sklearn.linear_model", "sklearn.svm")


def test_imports_beside_others_draw_no_random_numbers() -> None:
    """Python's and NumPy's generators are everybody's; what is imported may draw, and rich does."""
    program = """
import sys, torch
from cutaway.engine.methods.captum_call import TABLE, import_apart
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.model.session import Turns
from cutaway.engine.runtime.rng import fingerprint
from contextlib import contextmanager

class Meanwhile(Turns):
    @contextmanager
    def released(self):
        before = fingerprint(torch.device("cpu"))
        yield
        noted.append(fingerprint(torch.device("cpu")) == before)

net = torch.nn.Linear(2, 2)
noted, model = [], InspectedModel(net, net)
model.turns, before = Meanwhile(), fingerprint(torch.device("cpu"))
assert not {"sklearn", "rich.default_styles"} & set(sys.modules)
for row in TABLE.values():
    import_apart(row.imports, model)
print(noted, fingerprint(torch.device("cpu")) == before)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("[True] True\n", "")


def test_the_work_beside_others_is_in_the_timings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not so the wait for a turn after it."""
    clock = Ticks()
    monkeypatch.setattr(session, "time", clock)

    class Late(Turns):
        @contextmanager
        def released(self) -> Iterator[None]:
            yield
            clock.passes += 5

    before = session.own_seconds()
    with session.released(Late()):
        clock.passes += 2
    assert session.own_seconds() - before == 2


class Undivided(Meanwhile):
    """Does not let others run: a request that is repeated alone, since a worker ended while it ran."""

    is_divisible = False


@pytest.mark.parametrize("method", [ca.KernelShap, ca.Lime])
def test_others_run_during_the_large_fits_of_a_check(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They draw no random numbers, which others draw meanwhile; Captum's own fits draw some."""
    asked: dict[str, Any] = {"attributions": [method(n_samples=50)], "seed": 3}
    served = worker(Ticking(Ticks()))
    alone = ask(served, X, **asked).attributions[0]
    monkeypatch.setattr(surrogates, "LARGE_FIT", 50 * 4 - 1)
    served._model.turns = turns = Meanwhile(lambda: fingerprint(torch.device("cpu"), ()))
    found = ask(served, X, **asked).attributions[0]
    assert len(turns.noted) // 2 == 3 * len(("the fit", "its rank", "its standard errors"))
    assert turns.noted[::2] == turns.noted[1::2]
    assert np.array_equal(found.values["x"], alone.values["x"])
    assert found.checks[0].verdict == alone.checks[0].verdict
    served._model.turns = undivided = Undivided(lambda: None)
    assert np.array_equal(ask(served, X, **asked).attributions[0].values["x"], alone.values["x"])
    assert undivided.noted == []
