"""Whose turn it is at the model: callers share its time, whatever they ask, and nobody waits for ever."""

from __future__ import annotations

import gc
import io
import itertools
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from cutaway.contract.wire.worker_reply import Parts
from cutaway.engine.model import session
from cutaway.server import memory
from cutaway.server.worker import model_threads
from cutaway.server.worker.calls import Calls
from cutaway.server.worker.model_threads import IDLE, Job, ModelThreads
from cutaway.server.worker.worker import Worker
from cutaway.v1.worker_pb2 import WorkerCall
from tests.support.state_snapshot import untouched
from tests.support.waiting import PATIENCE_S
from tests.support.worker_calls import in_parts, parts_of, read, row, said, worker


class Clock:
    """The clock that shares are counted with: it moves on by what a pass takes."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return 0.0

    def time(self) -> float:
        return time.time() + self.now


class Bench:
    """Jobs of passes of a second at one model, and the order in which these ran."""

    def __init__(self, clock: Clock) -> None:
        self.threads = ModelThreads("bench")
        self.ran: list[str] = []
        self.at: dict[int, Callable[[], None]] = {}
        self.clock = clock
        self._ended: dict[str, threading.Event] = {}

    def put(self, name: str, passes: int, caller: str = "", pass_s: float = 1.0, **kind: Any) -> None:
        """Queues a job; ``name`` is noted at each pass."""
        ended = self._ended[name] = threading.Event()

        def run() -> None:
            for _ in range(passes):
                if self.threads.are_over:
                    with self.threads.released():
                        pass
                self.ran.append(name)
                self.clock.now += pass_s
                if (do := self.at.pop(len(self.ran), None)) is not None:
                    do()
            ended.set()

        self.threads.put(Job(run, [caller or name], **kind))

    def order(self) -> str:
        """All names in their order, when every job has ended."""
        while waiting := [each for each in self._ended.values() if not each.is_set()]:
            assert waiting[0].wait(PATIENCE_S)
        return "".join(self.ran)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    clock = Clock()
    monkeypatch.setattr(model_threads, "time", clock)
    made = Bench(clock)
    yield made
    made.threads.close(PATIENCE_S)


def test_small_jobs_run_between_the_passes_of_a_large_one(bench: Bench) -> None:
    """Ten callers who come during one pass are all answered before the next."""

    def come() -> None:
        for number in range(10):
            bench.put(str(number), 1)

    bench.at[2] = come
    bench.put("H", 4)
    assert bench.order() == "HH0123456789HH"


def test_large_jobs_of_two_callers_alternate(bench: Bench) -> None:
    bench.at[1] = lambda: bench.put("B", 4)
    bench.put("A", 4)
    assert bench.order() == "ABABABAB"


def test_many_jobs_are_no_larger_share(bench: Bench) -> None:
    """A caller with three large jobs gets as many passes as one with a single one; its own jobs share them."""

    def more() -> None:
        bench.put("b", 4, "B")
        bench.put("c", 4, "B")
        bench.put("A", 6)

    bench.at[1] = more
    bench.put("a", 4, "B")
    ran = bench.order()[1:13]
    assert ran.count("A") == 6
    assert {name: ran.count(name) for name in "abc"} == {"a": 2, "b": 2, "c": 2}


def test_small_jobs_of_the_same_caller_share_its_time(bench: Bench) -> None:
    """They neither wait for its large one nor keep it from ending."""

    def again() -> None:
        bench.put("s", 1, "A")
        if len(bench.ran) < 9:
            bench.at[len(bench.ran) + 1] = again

    bench.at[1] = again
    bench.put("L", 6, "A", is_long=True)
    ran = bench.order()
    assert ran.startswith("Ls")
    assert "LLL" not in ran[:10]
    assert "sss" not in ran[:10]


def test_a_quick_job_does_not_wait_for_the_slice_of_a_large_one(bench: Bench) -> None:
    """Passes are shorter than a slice, which only those wait for who have begun."""
    bench.at[3] = lambda: bench.put("s", 1)
    bench.put("H", 6, pass_s=0.001)
    assert bench.order() == "HHHsHHH"


def test_those_that_have_begun_alternate_by_slices(bench: Bench) -> None:
    """Each change costs time."""
    bench.at[1] = lambda: bench.put("B", 40, pass_s=0.01)
    bench.put("A", 40, pass_s=0.01)
    ran = bench.order()
    changes = sum(one != other for one, other in itertools.pairwise(ran))
    assert changes <= 2 + 80 * 0.01 / model_threads.SLICE_S


def test_only_so_many_have_begun(bench: Bench) -> None:
    """They hold memory; half of them are one caller's. The others come when these have ended."""
    most: list[int] = []

    def more() -> None:
        for number in range(6):
            bench.put("g", 2, "greedy")
            bench.put(str(number), 2)

    bench.at[1] = more
    bench.put("g", 2, "greedy")
    bench.at |= {at: lambda: most.append(len(bench.threads._begun)) for at in range(2, 20)}
    bench.order()
    until_idle(bench.threads)
    assert max(most) == model_threads.MOST_BEGUN
    assert len(bench.ran) == 26


def until_idle(threads: ModelThreads) -> None:
    """Returns when no job is left."""
    with threads._lock:
        assert threads._changed.wait_for(lambda: not (threads._begun or threads._waiting), PATIENCE_S)


def test_one_that_nobody_waits_for_ends_first(bench: Bench) -> None:
    """It holds memory for nothing: whoever has used least waits one pass more."""
    gone = threading.Event()

    def leave() -> None:
        gone.set()
        bench.put("C", 1)

    bench.at |= {1: lambda: bench.put("B", 5), 4: leave}
    bench.put("A", 5, is_cancelled=gone.is_set)
    assert bench.order().startswith("ABABA")


def test_who_waits_for_its_turn_does_not_hang(bench: Bench) -> None:
    """The deadline that the supervisor looks at is that of the job that runs; one that passed while the job waited
    begins to count when the job goes on."""
    seen: list[tuple[str, float]] = []

    def note(name: str) -> Callable[[], None]:
        return lambda: seen.append((name, bench.threads.busy_until - bench.clock.time()))

    bench.at |= {1: lambda: bench.put("B", 2, deadline=time.time() + 7.0), 2: note("B"), 3: note("A")}
    bench.put("A", 2, deadline=time.time() - 100.0)
    bench.order()
    (_, of_b), (_, of_a) = seen
    assert 0.0 < of_b < 7.0
    assert -5.0 < of_a <= 0.0
    until_idle(bench.threads)
    assert bench.threads.busy_until == IDLE


def test_an_undivided_job_runs_to_its_end(bench: Bench) -> None:
    bench.at[1] = lambda: bench.put("s", 1)
    bench.put("U", 3, is_divisible=False)
    assert bench.order() == "UUUs"


def test_jobs_that_wait_for_all_others_get_their_turns() -> None:
    """Two ask for the model alone while a third one has begun: they get it one after the other, and nobody begins
    meanwhile; one that waits for memory lets all of them run."""
    threads, ran, ended = ModelThreads("alone"), list[str](), threading.Semaphore(0)
    memory = threading.Event()

    def lonely(name: str) -> Callable[[], None]:
        def run() -> None:
            with threads.released():
                pass
            with threads.alone():
                ran.append(f"{name} begins")
                threads.put(Job(lambda: ran.append("new"), [name]))
                assert not threads.are_over
                ran.append(f"{name} ends")
            memory.set()
            ended.release()

        return run

    def hungry() -> None:
        with threads.released():
            assert memory.wait(0.05) is False
        ran.append("fed")
        ended.release()

    for job in (hungry, lonely("A"), lonely("B")):
        threads.put(Job(job, [job.__name__]))
    assert all(ended.acquire(timeout=PATIENCE_S) for _ in range(3))
    threads.close(PATIENCE_S)
    assert ran[0] == "fed"
    lone = [each for each in ran if each[0] in "AB"]
    assert lone in ([*(f"{n} {e}" for n in order for e in ("begins", "ends"))] for order in ("AB", "BA"))
    assert ran.count("new") == 2


def test_a_fault_of_one_job_is_its_own(bench: Bench) -> None:
    """Exceptions, exits too, end their job only."""

    def fail() -> None:
        raise SystemExit

    bench.at[1] = lambda: bench.threads.put(Job(fail, ["bad"]))
    bench.put("A", 3)
    assert bench.order() == "AAA"
    assert bench.threads.submit(lambda: 5).result(PATIENCE_S) == 5


def test_a_closed_stderr_ends_no_thread(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's code may close it; what the log says of a job is lost then, and nothing else."""

    def fail() -> None:
        raise RuntimeError

    closed = io.StringIO()
    closed.close()
    handler = logging.StreamHandler(closed)
    monkeypatch.setattr(logging, "raiseExceptions", True)
    monkeypatch.setattr("sys.stderr", closed)
    model_threads.log.addHandler(handler)
    try:
        bench.threads.put(Job(fail, ["bad"]))
        assert bench.threads.submit(lambda: 5).result(PATIENCE_S) == 5
    finally:
        model_threads.log.removeHandler(handler)


def test_closing_waits_for_what_was_set_aside(bench: Bench) -> None:
    bench.at[1] = lambda: bench.put("B", 3)
    bench.put("A", 3)
    bench.threads.close(PATIENCE_S)
    assert bench.order() == "ABABAB"


# The same, asked of a worker.


class Gate(nn.Module):
    """A network that does something at its passes; in evaluation mode it drops values."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)
        self.at_pass: Callable[[Tensor], None] = lambda x: None

    def forward(self, x: Tensor) -> Tensor:
        self.at_pass(x)
        output: Tensor = self.b(F.dropout(self.a(x).relu(), 0.25, training=True))
        return output


BIG = {"x": torch.randn(3, 4, generator=torch.Generator().manual_seed(1))}
SMALL = {"x": torch.randn(1, 4, generator=torch.Generator().manual_seed(2))}
LONG: dict[str, Any] = {
    "edits": [ca.Scale("a", factor=2.0)],
    "captures": ["**"],
    "attributions": [ca.ShapleyValueSampling(n_samples=8)],
    "check": "off",
    "seed": 3,
}
SHORT: dict[str, Any] = {"captures": [ca.Capture("**", at=tuple(ca.Point))], "input_gradients": True, "seed": 4}
WRONG: dict[str, Any] = {"edits": [ca.Add("a", addend=np.ones(7, np.float32))]}


class Served:
    """A worker with calls of several callers: what happened, in order, and the replies."""

    def __init__(self) -> None:
        self.network = Gate()
        self.worker = worker(self.network)
        for inputs, what in ((BIG, LONG), (SMALL, SHORT)):  # tests of the model run once
            list(self.worker.answer([row(inputs, **what)]))
        self.events: list[str] = []
        self.replies: dict[int, bytes] = {}
        aside, begun = (
            lambda number, *_, what=what: self.events.append(f"{number} {what}") for what in ("aside", "begun")
        )
        self.calls = Calls(self.worker, self._reply, aside, begun=begun)
        self.do: dict[int, Callable[[], None]] = {}
        self.network.at_pass = self.run_pass

    def ask(self, number: int, inputs: dict[str, Tensor], deadline: float = 0.0, **asked: Any) -> None:
        """Sends a call of a caller of its own."""
        call = row(inputs, **asked)
        self.calls.run([WorkerCall(number=number, inspect=call.payload, caller=str(number), deadline=deadline)])

    def answers(self, *numbers: int) -> list[str]:
        """What became of the calls, when all jobs have ended; the model is as before."""
        until_idle(self.worker.threads)
        self.worker.threads.close(PATIENCE_S)
        assert not len(self.calls)
        return [said(self.replies[number]) for number in numbers]

    def _reply(self, number: int, reply: Parts) -> None:
        self.events.append(str(number))
        self.replies[number] = b"".join(reply)

    def run_pass(self, x: Tensor) -> None:
        """Notes a pass of the network, and does what shall happen in it."""
        self.events.append("pass" if len(x) == 3 else "small pass")
        do = self.do.pop(self.events.count("pass"), None) if len(x) == 3 else self.do.pop(0, None)
        if do is not None:
            do()


LONE = Served()


def alone(inputs: dict[str, Tensor], **asked: Any) -> str:
    """What is said to a call that is the only one."""
    (reply,) = LONE.worker.answer([row(inputs, **asked)])
    return said(reply)


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    with untouched(made.network):
        yield made


def test_ten_callers_are_answered_between_two_passes(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gets to the bit what it gets alone, and so does the long one, whose edits, captures and dice they never see;
    the gateway is told that the long one keeps no other turn from running."""
    ahead = 0.0
    clock = SimpleNamespace(
        time=time.time, thread_time=time.thread_time, perf_counter=lambda: time.perf_counter() + ahead
    )
    monkeypatch.setattr(model_threads, "time", clock)
    monkeypatch.setattr(model_threads, "CREDIT_S", PATIENCE_S)

    def come() -> None:
        nonlocal ahead
        ahead = PATIENCE_S  # the long one has used more than short ones use on a busy machine
        for number in range(1, 11):
            served.ask(number, SMALL, **(WRONG if number == 5 else SHORT))

    served.do[4] = come
    served.ask(100, BIG, **LONG)
    long, wrong, *short = served.answers(100, 5, 1, 2, 3, 4, 6, 7, 8, 9, 10)
    assert long == alone(BIG, **LONG)
    assert short == [alone(SMALL, **SHORT)] * 9
    assert wrong.startswith("EDIT_SHAPE")
    passes = [at for at, event in enumerate(served.events) if event == "pass"]
    between = served.events[passes[3] : passes[4]]
    assert {str(number) for number in range(1, 11)} <= set(between)
    assert served.events.index("100 aside") < served.events.index("small pass")
    assert served.events[-1] == "100"


def test_others_run_between_the_parts_of_a_streamed_reply(served: Served) -> None:
    """Its prediction is sent first, and each explanation is the one that it gets alone."""
    asked: dict[str, Any] = {"attributions": [ca.ShapleyValueSampling(n_samples=8), ca.Saliency()], "seed": 3}
    served.do[4] = lambda: served.ask(1, SMALL, **SHORT)
    payload = in_parts(row(BIG, **asked)).payload
    served.calls.run([WorkerCall(number=100, stream=payload)])
    assert served.answers(1) == [alone(SMALL, **SHORT)]
    events = [served.events.index(event) for event in ("100 begun", "small pass", "100")]
    assert events == sorted(events)
    *_, streamed = parts_of(served.worker, served.replies[100])
    (reply,) = LONE.worker.answer([row(BIG, **asked)])
    for found, expected in zip(streamed.attributions, read(reply).attributions, strict=True):
        assert np.array_equal(found.values["x"], expected.values["x"])
        assert found.checks[0].verdict == expected.checks[0].verdict


def test_long_ones_of_two_callers_alternate(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that the gateway has sent together; what is short is answered before them."""
    monkeypatch.setattr(model_threads, "SLICE_S", 0.0)
    monkeypatch.setattr(f"{Worker.__module__}._MOST_PASSES", 4)
    monkeypatch.setattr(model_threads, "time", clock := Clock())

    def take_a_second(x: Tensor) -> None:
        clock.now += 1.0
        served.run_pass(x)

    served.network.at_pass = take_a_second
    asked = [row(BIG, **LONG), row({"x": BIG["x"][:2]}, **LONG), row(SMALL, **SHORT)]
    served.calls.run([WorkerCall(number=n, inspect=each.payload, caller=str(n)) for n, each in enumerate(asked, 1)])
    first, second, short = served.answers(1, 2, 3)
    assert first == alone(BIG, **LONG)
    assert second == alone({"x": BIG["x"][:2]}, **LONG)
    assert short == alone(SMALL, **SHORT)
    assert [event for event in served.events if not event.endswith("pass")][:3] == ["1 aside", "2 aside", "3"]
    passes = [event for event in served.events if event.endswith("pass")]
    assert sum(one != other for one, other in itertools.pairwise(passes)) > 4


@pytest.mark.parametrize("how", ["it hangs up", "its deadline passes"])
def test_nobody_waits_any_more_for_one_that_was_set_aside(
    served: Served, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs no further pass; the others are answered."""
    ahead = 0.0
    clock = SimpleNamespace(time=lambda: time.time() + ahead, perf_counter=time.perf_counter)
    monkeypatch.setattr(session, "time", clock)

    def gone() -> None:
        nonlocal ahead
        if how == "it hangs up":
            served.calls.cancel(1)
        else:
            ahead = 2 * PATIENCE_S

    served.do |= {3: lambda: served.ask(2, SMALL, **SHORT), 0: gone}
    served.ask(1, BIG, deadline=time.time() + PATIENCE_S, **LONG)
    long, short = served.answers(1, 2)
    assert long.startswith("DEADLINE_EXCEEDED")
    assert short == alone(SMALL, **SHORT)
    assert served.events.count("pass") == 3


def test_one_that_ran_alone_after_a_death_is_undivided(served: Served) -> None:
    served.do[3] = lambda: served.ask(2, SMALL, **SHORT)
    call = row(BIG, **LONG)
    served.calls.run([WorkerCall(number=1, inspect=call.payload)], alone=True)
    assert served.answers(1) == [alone(BIG, **LONG)]
    assert [event for event in served.events if event.isdigit()] == ["1", "2"]


def test_who_runs_out_of_memory_beside_others_runs_again_alone(served: Served) -> None:
    """The long one holds memory while it waits: a small one that needs it gets its answer when the long one has its."""

    def runs_out() -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    served.do |= {3: lambda: served.ask(2, SMALL, **SHORT), 0: runs_out}
    served.ask(1, BIG, **LONG)
    assert served.answers(1, 2) == [alone(BIG, **LONG), alone(SMALL, **SHORT)]
    assert [event for event in served.events if event.isdigit()] == ["1", "2"]


def test_collections_of_garbage_spare_what_was_imported_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full one stops all threads while it walks over the objects of modules. They are kept out of it when no job has
    begun, in a process that only serves."""
    threads = ModelThreads("imports")
    late = {f"late_{number}": ModuleType(f"late_{number}") for number in range(200)}

    def ran(*jobs: Callable[[], Any]) -> int:
        for done in [threads.submit(job) for job in jobs]:
            done.result()
        until_idle(threads)
        return gc.get_freeze_count()

    monkeypatch.setattr(memory, "_kept_modules", 0)
    gc.unfreeze()
    try:
        assert ran(lambda: sys.modules.update(late)) == 0
        memory.keep_modules()
        before = gc.get_freeze_count()
        objects: list[list[int]] = [[] for _ in range(10_000)]
        assert ran(lambda: None) <= before
        sys.modules.update({f"later_{name}": module for name, module in late.items()})
        assert ran(lambda: None) > before + len(objects) // 2
    finally:
        gc.unfreeze()
        for name in [name for name in sys.modules if name.startswith("late")]:
            del sys.modules[name]


def test_the_work_of_a_job_that_lets_others_run_is_its_callers() -> None:
    """A fit, which needs no model; whoever only waits has used nothing."""
    threads = ModelThreads("apart")

    def fit() -> float:
        with threads.released():
            while time.thread_time() < 0.2:
                pass
        return threads.used_s

    def wait() -> float:
        with threads.released():
            time.sleep(0.2)
        return threads.used_s

    assert threads.submit(fit).result() > 0.1
    assert threads.submit(wait).result() < 0.1


def test_a_job_that_runs_alone_says_so() -> None:
    """Nothing runs beside it, also while it does not use the model."""
    threads, said = ModelThreads("alone"), list[bool]()
    for is_divisible in (True, False):
        threads.put(Job(lambda: said.append(threads.is_divisible), is_divisible=is_divisible))
        until_idle(threads)
    assert said == [True, False]


def test_a_job_that_does_the_work_of_others_has_their_deadline_and_is_charged_to_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is no hanging job at its own deadline; who used its time waits for the next turn."""
    clock, threads, seen = Clock(), ModelThreads("bench"), []
    monkeypatch.setattr(model_threads, "time", clock)
    late, begun, ends, done = time.time() + 500, threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        threads.serve(["one", "other"], late)
        seen.append(threads.busy_until)
        clock.now += 4
        begun.set()
        ends.wait(PATIENCE_S)

    threads.put(Job(work, ["one"], deadline=time.time() + 1))
    assert begun.wait(PATIENCE_S)
    order: list[str] = []
    for caller in ("other", "third"):
        threads.put(Job(lambda caller=caller: order.append(caller), [caller]))  # type: ignore[misc]
    threads.put(Job(done.set, ["other"]))
    ends.set()
    assert done.wait(PATIENCE_S)
    assert seen == [late]
    assert order == ["third", "other"]
    threads.close(PATIENCE_S)
