"""Simulates callers, a gateway and a worker that share the cores of one machine, event by event.

Each process is one thread: it does one piece of work after the other. Processes that have work share the cores evenly.
The gateway forms turns by the rule of `cutaway.server.batching`.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any, NamedTuple, Protocol

import simpy

from bench.scaling.costs import Costs

Steps = Generator[simpy.Event, Any, None]

TURN_CALLS = 32
"""The most calls in a turn."""

_WARM_UP = 0.1
"""The share of the simulated time that is not counted."""


class Cores:
    """Cores that all running pieces of work share evenly; none runs on two at once."""

    def __init__(self, env: simpy.Environment, number: int) -> None:
        self._env = env
        self._number = number
        self._left: dict[simpy.Event, float] = {}
        self._since = 0.0
        self._plan = 0

    def work(self, seconds: float) -> simpy.Event:
        """Returns the event of the end of a piece of work."""
        self._advance()
        done = self._env.event()
        self._left[done] = seconds
        self._schedule()
        return done

    @property
    def _speed(self) -> float:
        return min(1.0, self._number / len(self._left))

    def _advance(self) -> None:
        if self._left:
            passed = (self._env.now - self._since) * self._speed
            self._left = {done: left - passed for done, left in self._left.items()}
        self._since = self._env.now

    def _schedule(self) -> None:
        self._plan += 1
        if self._left:
            wait = self._env.timeout(max(0.0, min(self._left.values())) / self._speed, self._plan)
            wait.callbacks.append(self._ended)

    def _ended(self, event: simpy.Event) -> None:
        if event.value != self._plan:  # others have come or gone since
            return
        self._advance()
        ended = [done for done, left in self._left.items() if left <= 1e-12]
        for done in ended:
            del self._left[done]
            done.succeed()
        self._schedule()


class Work(Protocol):
    """Where pieces of work run."""

    def work(self, seconds: float) -> simpy.Event:
        """Returns the event of the end of a piece of work."""


class Process:
    """A process of one thread, which does what it is given in order; the seconds of each piece vary by ``spread``."""

    def __init__(self, env: simpy.Environment, cores: Work, spread: float) -> None:
        self._env = env
        self._cores = cores
        self._spread = spread
        self._given: deque[tuple[float, Callable[[], None] | None]] = deque()
        self._idle = True

    def do(self, seconds: float, then: Callable[[], None] | None = None) -> None:
        """Adds a piece of work; ``then`` is called at its end."""
        self._given.append((seconds, then))
        if self._idle:
            self._idle = False
            self._env.process(self._run())

    def _run(self) -> Steps:
        while self._given:
            seconds, then = self._given.popleft()
            if seconds:
                yield self._cores.work(_varied(seconds, self._spread))
            if then is not None:
                then()
        self._idle = True


def _varied(seconds: float, spread: float) -> float:
    """Returns a time of a gamma distribution: none is negative, and some are much longer."""
    return seconds * random.gammavariate(spread**-2, spread**2) if spread else seconds


@dataclass
class Batches:
    """The gateway's rule: a free worker gets all that waits; a busy one gets its next turn ahead, if it is as large as
    the turns under way."""

    workers: int = 1
    waiting: deque[Any] = field(default_factory=deque)
    running: list[int] = field(default_factory=list)

    def next_turn(self) -> list[Any]:
        """Takes the calls of the turn that may be sent now; none, if none may."""
        turns = len(self.running)
        free = turns < self.workers
        if not (free or (turns < 2 * self.workers and len(self.waiting) * turns >= sum(self.running))):
            return []
        turn = [self.waiting.popleft() for _ in range(min(TURN_CALLS, len(self.waiting)))]
        if turn:
            self.running.append(len(turn))
        return turn


class Found(NamedTuple):
    """What a simulation found: calls per second, their median latency in seconds, and calls in a turn."""

    rate: float
    latency: float
    turn: float


@dataclass(eq=False)
class _Call:
    """A call: when it began, and whether it is the first of its turn."""

    began: float
    first: bool = False


class _Machine:
    """Callers, a gateway and a worker on the cores of one machine."""

    def __init__(self, costs: Costs, cores: int) -> None:
        self.env = simpy.Environment()
        shared = Cores(self.env, cores)
        self._costs = costs
        self._loader, self._gateway, self._worker = (Process(self.env, shared, costs.spread) for _ in range(3))
        self._batches = Batches()
        self._in_time = 1 + min(0.0, costs.idle) / sum(costs.pieces)
        self._hop = max(0.0, costs.idle) / len(costs.pieces)
        self.latencies: list[tuple[float, float]] = []
        self.turns: list[int] = []

    def ask(self) -> None:
        """A caller sends a call; and the next one when it has the reply."""
        call = _Call(self.env.now)
        self._work(self._loader, self._costs.loader.call / 2, partial(self._read, call))

    def _read(self, call: _Call) -> None:
        self._work(self._gateway, self._costs.gateway.call / 2, partial(self._queue, call))

    def _queue(self, call: _Call) -> None:
        self._batches.waiting.append(call)
        self._send()

    def _send(self) -> None:
        while turn := self._batches.next_turn():
            self.turns.append(len(turn))
            turn[0].first = True
            self._work(self._gateway, self._costs.gateway.turn, partial(self._run, turn))

    def _run(self, turn: list[_Call]) -> None:
        self._work(self._worker, self._costs.worker.of(len(turn)), partial(self._reply, turn))

    def _reply(self, turn: list[_Call]) -> None:
        self._batches.running.pop(0)
        for call in turn:
            self._work(self._gateway, self._costs.gateway.call / 2, partial(self._receive, call))
        self._send()

    def _receive(self, call: _Call) -> None:
        cost = self._costs.loader.call / 2 + (self._costs.loader.turn if call.first else 0.0)
        self._work(self._loader, cost, partial(self._answered, call))

    def _answered(self, call: _Call) -> None:
        self.latencies.append((self.env.now, self.env.now - call.began))
        self.ask()

    def _work(self, process: Process, seconds: float, then: Callable[[], None]) -> None:
        """A process works and passes on what it has; it may have something left to do for it, or the next one may take
        time to wake."""
        process.do(seconds * self._in_time, partial(self._after, then))
        process.do(seconds * (1 - self._in_time))

    def _after(self, then: Callable[[], None]) -> None:
        if not self._hop:
            then()
            return
        self.env.timeout(self._hop).callbacks.append(lambda _: then())


def closed_loop(costs: Costs, callers: int, *, cores: int = 2, seconds: float = 20.0) -> Found:
    """Simulates ``callers`` who each send the next call when they have the reply."""
    random.seed(callers)
    machine = _Machine(costs, cores)
    for _ in range(callers):
        machine.ask()
    machine.env.run(until=seconds)
    counted = [latency for at, latency in machine.latencies if at > seconds * _WARM_UP]
    rate = len(counted) / (seconds * (1 - _WARM_UP))
    return Found(rate, median(counted), sum(machine.turns) / len(machine.turns))
