"""A week in an hour: a store that changes all the time, restarts, cut connections, proxies and jobs, beside calls of up
to a minute; fails where a call is lost or wrong, something grows, or health or an alert lies.

python -m tests.week                        an hour: 500 changes of the store, 20 restarts
python -m tests.week 300                    so many seconds, with as many changes a minute
python -m tests.week --engine torchserve    another engine
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import cutaway as ca
from cutaway.jobs import Job, read, run
from tests.chaos.observer import Observer
from tests.support.jobs import Columns
from tests.support.mixed.callers import Callers, beside
from tests.support.mixed.mix import Outcome, Request
from tests.support.processes import family
from tests.support.relay import Relay
from tests.support.serving import Server, serving
from tests.support.waiting import until
from tests.week.alerts import alerts
from tests.week.changes import CHANGES, VERSIONS, Span, Store

HOUR_S, CHANGES_AN_HOUR, RESTARTS_AN_HOUR = 3600.0, 600, 20
CUT_S, JOB_S, PAUSE_S = 150.0, 10.0, 0.5
WITH_RESTARTS = 0.75
"""The share of the time that has restarts; the rest shows what grows."""

CALLERS, WORKERS = 8, 2
LONGEST_S = 60
DEADLINE_S = 5.0 * LONGEST_S
"""Of a call with all its attempts: it may wait for another one, and be interrupted by a restart."""

GRACE_S = 1.25 * LONGEST_S
"""What an operator sets who has such calls: a restart by SIGTERM waits for them, one by SIGKILL does not."""

GROWTH = {"files": 8, "processes": 0, "MiB": 20, "MiB a process": 30}
"""What the last server may have more in the end than when it had started, beyond what its workers need: files of the
gateway, processes, and memory of the gateway and of all."""

PROXY = dict.fromkeys(("http_proxy", "https_proxy", "grpc_proxy"), "http://127.0.0.1:9")
"""Where nobody listens."""


@dataclass(frozen=True)
class Call(Request):
    """A call of a model, or of a version, that is made when it is created."""

    store: Store | None = None
    begun: float = field(default_factory=time.monotonic, init=False)

    def wrong(self, outcome: Outcome) -> str:
        """What is wrong with ``outcome``; a version that came or went meanwhile may be unknown."""
        assert self.store is not None
        asked, call = self.model.partition("/versions/")[2], Span(self.begun, time.monotonic())
        if isinstance(outcome, ca.CutawayError):
            gone = isinstance(outcome, ca.NotFound) and not self.store.lived(asked or "1.0", call)
            return "" if gone else f"lost: {self.model}, after {call.until - call.since:.0f} s: {outcome}"
        x, output, version = self.inputs["x"], outcome.predictions["output"], outcome.provenance.version
        factor, newest = float(output[0, 0] / x[0, 0]), asked or self.store.newest(call)
        right = np.array_equal(output, x * np.float32(factor)) and self.store.may_answer(version, factor, call)
        stands = version == newest if asked else version >= newest
        return "" if right and stands else f"wrong: {self.model}, {newest}: {version} gave {output} for {x}"


class HonestCallers(Callers):
    """Callers who try again while no server can be reached, as during a restart."""

    _attempts = threading.local()

    def pause_s(self, failure: ca.CutawayError) -> float | None:
        self.outcomes[f"attempts with {failure.reason}"] += 1
        now, ended = time.monotonic(), self._attempts.ended
        if now > self._attempts.last + 4 * PAUSE_S:  # one of a series says it
            ended.append(f"{time.strftime('%H:%M:%S')} {failure.reason}")
        self._attempts.last = now
        time.sleep(PAUSE_S)
        return PAUSE_S if isinstance(failure, ca.Unavailable) else super().pause_s(failure)

    def _outcome(self, client: ca.Client, request: Request) -> str:
        begun, self._attempts.ended, self._attempts.last = time.strftime("%H:%M:%S"), [], 0.0
        outcome = super()._outcome(client, request)
        if outcome == "deadline passed":
            self.faults.append(f"lost: {request.name} of {request.model}, from {begun} on: {self._attempts.ended}")
        return outcome


class Week:
    """A server whose address stays over restarts, and what happens to it."""

    def __init__(self, directory: Path, engine: str, seconds: float, order: random.Random) -> None:
        with ExitStack() as opened:
            free = [opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
            self.address, self.metrics = (f"127.0.0.1:{each.getsockname()[1]}" for each in free)
        os.environ["CUTAWAY_METRICS_ADDRESS"] = self.metrics
        (directory / "store").mkdir()
        self.stores = [
            Store(directory / "store", model, workers, self.address, self.metrics)
            for model, workers in (("waiting", WORKERS), ("steady", 1))
        ]
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.restarts = [Span(0.0)]
        self.engine, self.seconds, self._directory, self._order = engine, seconds, directory, order
        self._stack = ExitStack()
        self.server = self._start()
        self.first = self.sizes()

    def _start(self) -> Server:
        logs, store = self._directory / f"logs-{len(self.restarts)}", self._directory / "store"
        new = self._stack.enter_context(serving(store, logs, f"--engine={self.engine}", f"--address={self.address}"))
        for each in self.stores:
            each.log = self._directory / f"{logs.name}.stderr"
            each.settle()
        self.restarts[-1].until = time.monotonic()
        return new

    def restart(self) -> None:
        """Ends the server as an operator does, or every other time as a crash does, and starts it again."""
        begun, is_crash = time.strftime("%H:%M:%S"), self.counts["restart"] % 2
        if is_crash:
            self.server.process.kill()
        self.restarts.append(Span(time.monotonic()))
        self.stop()
        self.server.__dict__.update(self._start().__dict__)
        self.first = self.sizes()
        print(f"    {'crash' if is_crash else 'end'} at {begun}, ready at {time.strftime('%H:%M:%S')}", flush=True)

    def stop(self) -> None:
        """Ends the server, and reads its log."""
        self._stack.close()
        self.counts["reloads"] += sum("the model store has changed" in event for event in self.server.logged)
        log = self.stores[0].log.read_text()
        self.faults += [f"the log has {word}" for word in ("Traceback", "never retrieved") if word in log]

    def happen(self, relay: Relay) -> None:
        """Changes, restarts and cuts, until the time is over."""
        begun = now = time.monotonic()
        pauses = {self.restart: WITH_RESTARTS * HOUR_S / RESTARTS_AN_HOUR, relay.cut: CUT_S, relay.swallow: 1.5 * CUT_S}
        due = {work: begun + pause_s for work, pause_s in pauses.items()}
        todo: list[str] = []
        while now < begun + self.seconds:
            todo = todo or self._order.sample([*CHANGES], len(CHANGES))
            CHANGES[todo[-1]](self.stores[0], self._order)
            self.counts[todo.pop()] += 1
            for work in pauses:
                if now > due[work] and (work != self.restart or now < begun + WITH_RESTARTS * self.seconds):
                    work()
                    due[work] = now + pauses[work]
                    self.counts[work.__name__] += 1
            assert self.server.process.poll() is None, "the server has ended"
            time.sleep(max(0.0, now + HOUR_S / CHANGES_AN_HOUR - time.monotonic()))
            now = time.monotonic()

    def sizes(self) -> dict[str, int]:
        """Returns what the server has beyond what its workers need: each a process, and a file of the gateway. Of
        `processes`, each archive has a keeper and a watchdog too, a pipe to that, and two scratch directories."""
        archives = (1 + len(self.stores[0].files)) * (self.engine == "processes")
        workers = 1 + WORKERS * len(self.stores[0].files)
        gateway, mib = psutil.Process(self.server.process.pid), []
        for process, _ in family(self.server):
            with suppress(psutil.Error):
                mib.append(process.memory_info().rss >> 20)
        files, processes = workers + 3 * archives, workers + 2 * archives
        sizes = (gateway.num_fds() - files, len(mib) - processes, gateway.memory_info().rss >> 20, sum(mib) // len(mib))
        return dict(zip(GROWTH, sizes))

    def job(self, over: threading.Event) -> None:
        """Runs jobs one after the other, of which every row is right."""
        x = np.random.default_rng(0).integers(1, 9, (64, 3)).astype(np.float32)
        while not over.wait(JOB_S):
            folder = self._directory / f"job-{self.counts['jobs']}"
            words: dict[str, Any] = {
                "model": {"address": self.address, "name": "steady"},
                "data": Columns({"x": x, "seconds": np.zeros((64, 1), np.float32)}),
                "inputs": {name: {"column": name} for name in ("x", "seconds")},
                "request": {"attributions": [{"method": "input_x_gradient"}]},
                "output": {"folder": folder, "shard_rows": 16},
                "engine": {"kind": "service", "batch": 8, "in_flight": 2, "patience_s": DEADLINE_S},
            }
            with suppress(ca.Unavailable):  # a job that begins during a restart is run again
                bad, output = run(Job(**words)).bad, read(folder)["output"]
                self.faults += [f"job: {bad} bad rows"] if bad or not np.array_equal(output, x) else []
                self.counts["jobs"] += 1

    def judge(self, callers: Sequence[Callers], observer: Observer) -> None:
        """Says in figures what callers, health and sizes were, and adds to the faults."""
        outcomes: Counter[str] = sum((each.outcomes for each in callers), Counter())
        took = sorted(second for each in callers for second in each.took)
        self.faults += [fault for each in callers for fault in each.faults]
        lost = sum(fault.startswith("lost") for fault in self.faults)
        outcomes["answered that there is no such version"] = (
            outcomes.pop("lost", 0) + outcomes["deadline passed"] - lost
        )
        print(f"{lost} lost, {outcomes.pop('wrong', 0)} wrong")
        print(f"{CALLERS} callers in {self.seconds:.0f} s on {self.engine}: {dict(outcomes)}")
        print(f"{len(took)} calls took {took[len(took) // 2]:.1f} s in the middle, {took[-1]:.1f} s at most")
        answered = {"waiting": [call for each in callers for calls in each.answered.values() for call in calls]}
        lies = [
            lie for lie in observer.untrue(answered, DEADLINE_S)
            if not any(each.since <= lie.at <= each.until for each in self.restarts)
        ]  # fmt: skip
        self.faults += [f"untrue: {lie}" for lie in lies]
        print(f"health: {len(observer.samples)} samples, {len(lies)} untrue; {observer.most_bytes >> 20} MiB at most")
        until(lambda: self.sizes()["processes"] <= self.first["processes"])  # those of before the last change go
        last = self.sizes()
        print(f"the last server had, beyond its workers: {self.first} when it had started, {last} in the end")
        self.faults += [f"{name} grew" for name, most in GROWTH.items() if last[name] > self.first[name] + most]


def _calls(store: Store, models: Sequence[str], longest_s: int, order: random.Random) -> list[Call]:
    found = []
    for model in [*models] * 24:
        seconds = round(longest_s ** order.random())  # as many below the square root of the longest as above
        x = np.array([[order.randrange(1, 9) for _ in range(3)]], np.float32)
        inputs = {"x": x, "seconds": np.array([[seconds]], np.float32)}
        found.append(Call(f"{seconds} s", model, inputs, {"captures": "times"}, store=store))
    return order.sample(found, len(found))


def main() -> None:
    """Runs it, and says what was found in figures."""
    parser = argparse.ArgumentParser(prog="week", description="A week in an hour.")
    parser.add_argument("seconds", nargs="?", type=float, default=HOUR_S)
    parser.add_argument("--engine", choices=["processes", "torchserve"], default="processes")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    os.environ |= {"CUTAWAY_LOG_FORMAT": "json", "CUTAWAY_GRACE_S": str(GRACE_S), **PROXY}
    urllib.request.install_opener(urllib.request.build_opener(urllib.request.ProxyHandler({})))
    order = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        week = Week(Path(name), asked.engine, asked.seconds, order)
        fired = stack.enter_context(alerts(Path(name), week.metrics))
        stack.callback(week.stop)
        relay = Relay(week.address)
        there = [f"waiting/versions/{version}" for version in VERSIONS]
        plans = [
            (week.address, ["waiting"]),
            (relay.address, ["waiting"]),
            (week.address, ["waiting/versions/1.0"]),
            (relay.address, there),
        ]
        callers = [
            HonestCallers(
                [stack.enter_context(ca.Client(address))],
                _calls(week.stores[0], models, round(min(LONGEST_S, asked.seconds / 8)), order),
                DEADLINE_S,
                True,
            )
            for address, models in plans
        ]
        observer = Observer(week.server, ["waiting"])
        asking = [work for each in callers for work in each.asking()[: CALLERS // len(callers)]]
        with beside(observer.look, week.job, *asking):
            week.happen(relay)
        week.judge(callers, observer)
        week.faults += [
            f"{alert} fired for {seconds} s"
            for alert, seconds in fired().items()
            if not alert.startswith("CutawaySlow ")
        ]
    print(", ".join(f"{count} {what}" for what, count in sorted(week.counts.items())))
    if week.faults:
        sys.exit("\n".join([f"{len(week.faults)} broken promises:", *week.faults[:20]]))


if __name__ == "__main__":
    main()
