"""Simulates a fleet that grows with its load: what happens when ten times as many calls arrive at once.

A site is a gateway with its queue and its workers: a pod of Kubernetes has one worker, and more pods come; on Ray, one
gateway gets more workers. Every gateway and every worker has a core of its own.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import NamedTuple

import simpy

from bench.scaling.costs import Costs
from bench.scaling.simulation import Batches, Process, Steps

QUEUE = 256
"""`Settings.max_queue_length`: further calls are refused."""

LEAST, MOST = 2, 10
"""Workers: deploy/kubernetes/autoscaler.yaml, and the same for Ray."""

PER_WORKER = 8
"""Waiting calls of a pod, or calls under way in a worker on Ray, beyond which more are started."""

BEFORE_S, BURST_S, AFTER_S = 15.0, 90.0, 15.0

POD_S = 10.0
"""An assumption: a node with room has the image, and runs the pod after so many seconds; then the model loads."""


class Policy(NamedTuple):
    """Who decides how many workers there are.

    Attributes:
        name: for the page.
        every: seconds between decisions.
        wait: seconds for which more must have been wanted.
        extra: seconds before a new worker begins to load its model.
        per_site: whether a new worker brings a gateway with it.
        step: returns the most workers after a decision, from their number.
    """

    name: str
    every: float
    wait: float
    extra: float
    per_site: bool
    step: Callable[[int], int]


KUBERNETES = Policy("Kubernetes", 15.0, 0.0, POD_S, True, lambda workers: max(2 * workers, workers + 4))
"""A HorizontalPodAutoscaler as in deploy/kubernetes: its period and its steps are those of Kubernetes."""

RAY = Policy("Ray", 1.0, 2.0, 0.0, False, lambda _: MOST)
"""``--engine ray``: `cutaway.server.ray.keeper` has the delays."""


class Second(NamedTuple):
    """One second of a burst: workers that run, calls that wait, calls that were refused, and the median latency."""

    at: int
    workers: int
    waiting: int
    refused: int
    latency: float


class _Now(Process):
    """A process with a core of its own."""

    def __init__(self, env: simpy.Environment, costs: Costs) -> None:
        super().__init__(env, _OwnCore(env), costs.spread)


@dataclass
class _OwnCore:
    env: simpy.Environment

    def work(self, seconds: float) -> simpy.Event:
        return self.env.timeout(seconds)


class _Site:
    """A gateway, its queue, and its workers."""

    def __init__(self, env: simpy.Environment, costs: Costs) -> None:
        self._env = env
        self._costs = costs
        self._gateway = _Now(env, costs)
        self._free: deque[_Now] = deque()
        self._sent: deque[list[float]] = deque()
        self.batches = Batches(0)
        self.pending = 0
        self.latencies: list[float] = []

    def add_worker(self) -> None:
        self.batches.workers += 1
        self._free.append(_Now(self._env, self._costs))
        self._send()

    @property
    def waiting(self) -> int:
        """Calls that no turn has."""
        return len(self.batches.waiting)

    def call(self) -> bool:
        """Takes a call; returns whether there was room for it."""
        if self.pending >= QUEUE:
            return False
        self.pending += 1
        began = self._env.now
        self._gateway.do(self._costs.gateway.call / 2, partial(self._queue, began))
        return True

    def _queue(self, began: float) -> None:
        self.batches.waiting.append(began)
        self._send()

    def _send(self) -> None:
        while turn := self.batches.next_turn():
            self._gateway.do(self._costs.gateway.turn, partial(self._arrive, turn))

    def _arrive(self, turn: list[float]) -> None:
        self._sent.append(turn)
        self._begin()

    def _begin(self) -> None:
        if self._free and self._sent:
            worker, turn = self._free.popleft(), self._sent.popleft()
            worker.do(self._costs.worker.of(len(turn)), partial(self._ran, worker, turn))

    def _ran(self, worker: _Now, turn: list[float]) -> None:
        self._free.append(worker)
        self.batches.running.remove(len(turn))
        for began in turn:
            self._gateway.do(self._costs.gateway.call / 2, partial(self._answered, began))
        self._begin()
        self._send()

    def _answered(self, began: float) -> None:
        self.pending -= 1
        self.latencies.append(self._env.now - began)


class _Fleet:
    """Sites, among which calls go round, and what adds workers."""

    def __init__(self, costs: Costs, policy: Policy, rate: float, factor: float) -> None:
        self.env = simpy.Environment()
        self._costs = costs
        self._policy = policy
        self._rate, self._factor = rate, factor
        self._sites = [_Site(self.env, costs)]
        self._turn = itertools.count()
        self._coming = 0
        self._refused = 0
        self.seconds: list[Second] = []
        for _ in range(LEAST):
            self._join()
        for each in (self._arrivals(), self._decisions(), self._samples()):
            self.env.process(each)

    @property
    def workers(self) -> int:
        return sum(site.batches.workers for site in self._sites)

    def _join(self) -> None:
        if self._policy.per_site and self._sites[-1].batches.workers:
            self._sites.append(_Site(self.env, self._costs))
        self._sites[-1].add_worker()

    def _arrivals(self) -> Steps:
        while True:
            bursts = BEFORE_S <= self.env.now < BEFORE_S + BURST_S
            yield self.env.timeout(random.expovariate(self._rate * (self._factor if bursts else 1)))
            if not self._sites[next(self._turn) % len(self._sites)].call():
                self._refused += 1

    def _decisions(self) -> Steps:
        wanted_since = math.inf
        while True:
            yield self.env.timeout(self._policy.every)
            wanted = min(MOST, math.ceil(self._load() / PER_WORKER), self._policy.step(self.workers + self._coming))
            missing = wanted - self.workers - self._coming
            wanted_since = min(wanted_since, self.env.now) if missing > 0 else math.inf
            if self.env.now - wanted_since >= self._policy.wait:
                for _ in range(missing):
                    self._coming += 1
                    self.env.process(self._start())

    def _load(self) -> int:
        return sum(site.waiting if self._policy.per_site else site.pending for site in self._sites)

    def _start(self) -> Steps:
        yield self.env.timeout(self._policy.extra + self._costs.start)
        self._coming -= 1
        self._join()

    def _samples(self) -> Steps:
        while True:
            yield self.env.timeout(1.0)
            latencies = [latency for site in self._sites for latency in site.latencies]
            waiting = sum(site.waiting for site in self._sites)
            middle = median(latencies) if latencies else 0.0
            self.seconds.append(Second(round(self.env.now), self.workers, waiting, self._refused, middle))
            self._refused = 0
            for site in self._sites:
                site.latencies.clear()


def burst(costs: Costs, policy: Policy, rate: float, factor: float = 10.0) -> list[Second]:
    """Simulates ``rate`` calls a second, ``factor`` times as many for `BURST_S`, and then ``rate`` again."""
    random.seed(1)
    fleet = _Fleet(costs, policy, rate, factor)
    fleet.env.run(until=BEFORE_S + BURST_S + AFTER_S)
    return fleet.seconds
