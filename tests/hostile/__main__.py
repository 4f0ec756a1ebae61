"""Thousands of hostile requests at every door, while a bystander calls: ``make hostile``.

python -m tests.hostile             # all
python -m tests.hostile npy grpc    # those whose name has one of these words
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from examples.digits.package import package
from tests.conftest import ADAPTERS
from tests.hostile.bystander import Bystander, bystander
from tests.hostile.cases import cases
from tests.hostile.doors import Case, Outcome, send
from tests.support.adapters.tiny_adapter import Tiny
from tests.support.serving import Server, serving
from tests.support.serving import package as package_adapter

CALLERS = 3
"""Hostile callers at a time."""

MEMORY_BYTES = 1536 << 20
FREEZE_S = 0.5
AGAIN = 3
"""A machine stops callers by itself: a case stops others if they waited each of so many times."""

BACK_S, BACK_BYTES = 10.0, 128 << 20


@dataclass(frozen=True)
class Tried:
    """A case, when it ran by the monotonic clock, and what came."""

    case: Case
    begin: float
    end: float
    outcome: Outcome


def main() -> None:
    """Run them, and fail where a promise is broken."""
    parser = argparse.ArgumentParser(prog="hostile", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="of the names of cases; all by default")
    words = parser.parse_args().words
    chosen = [case for case in cases() if not words or any(word in case.name for word in words)]
    with tempfile.TemporaryDirectory() as directory, _site(Path(directory)) as server:
        faults = _attacked(server, chosen)
    for line in faults:
        print(f"    FAULT {line}", flush=True)
    if faults:
        raise SystemExit(1)


@contextmanager
def _site(directory: Path) -> Iterator[Server]:
    """The digits example, which is attacked, and a model of the bystander's; workers are processes of their own."""
    store = directory / "store"
    store.mkdir()
    package(store)
    package_adapter(store, "tiny", f"{ADAPTERS / 'tiny_adapter.py'}:{Tiny.__name__}", random_weights=True)
    os.environ["CUTAWAY_IDLE_TIMEOUT_S"] = "5"
    with serving(store, directory / "logs", "--engine=processes", "--http=127.0.0.1:0") as server:
        yield server


def _attacked(server: Server, chosen: Sequence[Case]) -> list[str]:
    """Returns the faults, a line each, and prints the figures."""
    gateway = psutil.Process(server.process.pid)
    workers = {child.pid for child in gateway.children(recursive=True)}
    # New memory beyond the limit is refused by the kernel; what the process shares with its files does not count.
    gateway.rlimit(psutil.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    body = json.dumps({"instances": [[1.0, 2.0, 3.0]]}).encode()
    with bystander(server.http_address, "/v1/models/tiny:predict", body) as beside:
        idle, begin = gateway.memory_info().rss, time.monotonic()
        with ThreadPoolExecutor(CALLERS) as callers:
            tried = list(callers.map(lambda case: _try(server, case), chosen))
        took, waits = time.monotonic() - begin, beside.since(begin)
        slowest = max(wait.took for wait in waits)
        suspects = _suspects(tried, beside, begin)
        frozen = [case for case in suspects if all(_froze(server, case, beside) for _ in range(AGAIN))]
        grown = _settled(gateway, idle) - idle
    faults = [f"{each.case.name}: {each.outcome.said}" for each in tried if each.outcome.wrong]
    faults += [f"{case.name}: others waited more than {FREEZE_S} s, {AGAIN} times of {AGAIN}" for case in frozen]
    faults += [f"the bystander got {status}" for status in {wait.status for wait in waits} - {200}]
    gone = [pid for pid in workers if not psutil.pid_exists(pid)]
    faults += [f"worker {pid} died" for pid in gone] + (["the gateway died"] if not gateway.is_running() else [])
    if grown > BACK_BYTES:
        faults.append(f"{grown >> 20} MiB are not back after {BACK_S} s")
    said = Counter(each.outcome.said.split(" ")[0] for each in tried)
    print(f"{len(tried)} requests in {took:.0f} s: " + ", ".join(f"{key} {count}" for key, count in said.most_common()))
    print(
        f"the bystander: {len(waits)} calls, the longest {slowest:.2f} s; "
        f"{len(suspects)} suspects, {len(frozen)} of them stopped it again"
    )
    print(f"memory: {idle >> 20} MiB before, {grown >> 20:+d} MiB after; limit {MEMORY_BYTES >> 20} MiB", flush=True)
    return faults


def _try(server: Server, case: Case) -> Tried:
    begin = time.monotonic()
    outcome = send(server, case)
    return Tried(case, begin, time.monotonic(), outcome)


def _suspects(tried: Sequence[Tried], beside: Bystander, since: float) -> list[Case]:
    """The cases that ran while a call of the bystander took too long."""
    long = [(wait.begin, wait.begin + wait.took) for wait in beside.since(since) if wait.took > FREEZE_S]
    return [each.case for each in tried if any(begin < each.end and each.begin < end for begin, end in long)]


def _froze(server: Server, case: Case, beside: Bystander) -> bool:
    begin = time.monotonic()
    _try(server, case)
    while not beside.since(begin):  # a call that is stopped is not noted yet
        time.sleep(0.05)
    return any(wait.took > FREEZE_S for wait in beside.since(begin))


def _settled(gateway: psutil.Process, idle: int) -> int:
    """The gateway's memory as soon as it is back, or after a while."""
    end = time.monotonic() + BACK_S
    while (rss := gateway.memory_info().rss) > idle + BACK_BYTES and time.monotonic() < end:
        time.sleep(0.2)
    return int(rss)


if __name__ == "__main__":
    main()
