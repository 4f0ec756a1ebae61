"""When the keeper starts workers; that it does is shown with real processes, in test_process_death.py."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cutaway.contract.results import ModelName
from cutaway.server.processes.process_group import IGNORING
from cutaway.server.worker import keeper


def test_workers_that_end_early_wait_longer_and_longer() -> None:
    """Never longer than half a minute where the model loads, and than five minutes where it does not."""
    for has_loaded, last in ((True, [30, 30, 30]), (False, [60, 120, 300])):
        delays = [keeper.delay_after(failures, has_loaded=has_loaded) for failures in range(10)]
        assert delays == [0, 0, 1, 3, 7, 15, 30, *last]
        assert keeper.delay_after(100_000, has_loaded=has_loaded) == last[-1]


def in_a_new_process(code: str) -> str:
    """What ``code`` prints: a keeper forks before it has threads, and these tests have many."""
    lines = ("from cutaway.contract.results import ModelName", "from cutaway.server.worker import keeper")
    imports = ("import time", "from pathlib import Path", "from multiprocessing.context import ForkProcess", *lines)
    slot = 'slot = keeper.WorkerSlot(0, Path("/nowhere"), ModelName("none", "1.0"), 1)'
    script = "\n".join((*imports, slot, code))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.strip()


LOADS = """
keeper._run = lambda *_: None
for has_loaded, lived_s in ((False, 60.0), (True, 5.0), (True, 60.0)):
    first = keeper._start(slot)
    first.loaded[0] = has_loaded
    second = keeper._next(first._replace(began=time.monotonic() - lived_s, failures=3))
    for each in (first, second):
        each.process.join()
    print(second.failures)
"""


def test_a_slow_load_that_fails_is_no_steady_worker() -> None:
    """The next one waits after any load that fails, however long it took, and after one that ended early."""
    assert in_a_new_process(LOADS).split() == ["4", "4", "0"]


def test_each_worker_has_a_number_of_its_own() -> None:
    """The GPUs go round by it."""
    slots = keeper.slots_of([("/one", "one", "1.0", 2), ("/two", "two", "1.1", 1)], 3)
    one, two = ModelName("one", "1.0"), ModelName("two", "1.1")
    assert [(slot.number, slot.name, slot.workers) for slot in slots] == [(3, one, 2), (4, one, 2), (5, two, 1)]


REFUSED = """
refused, start = [OSError("no more processes"), OSError("no more processes")], ForkProcess.start

def scarce(process):
    if refused:
        raise refused.pop()
    start(process)

ForkProcess.start, keeper._PAUSE_S = scarce, 0.0
worker = keeper._start(slot)
worker.process.join()
print(len(refused), worker.process.exitcode)
"""


def test_a_machine_without_a_free_process_ends_no_worker() -> None:
    """The keeper tries again: if it ended, all would."""
    assert in_a_new_process(REFUSED) == "0 1"


CHILDREN = """
import asyncio, multiprocessing, signal, subprocess, sys, time
from cutaway.server.child_processes import give_children_default_signals

def use():
    fork = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    fork.start()
    fork.terminate()
    fork.join()
    assert fork.exitcode == -signal.SIGTERM
    child = subprocess.Popen(["sleep", "600"])
    child.terminate()
    assert child.wait() == -signal.SIGTERM

async def serve():
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.append, True)
    give_children_default_signals()
    await asyncio.to_thread(use)
    await asyncio.sleep(0)

stopped = []
if sys.argv[1] == "in a loop":
    asyncio.run(serve())
else:
    give_children_default_signals()
    use()
assert not stopped
signal.raise_signal(signal.SIGTERM)
"""


@pytest.mark.parametrize("command", [IGNORING, ()], ids=["worker", "gateway"])
def test_processes_that_a_model_starts_end_by_sigterm(command: tuple[str, ...]) -> None:
    """Forks, as pools have them, and programs: in a worker, which ignores it, and in a server, which handles it."""
    where = "in a worker" if command else "in a loop"
    done = subprocess.run([*command, sys.executable, "-W", "ignore", "-c", CHILDREN, where], timeout=600)
    assert done.returncode == (0 if command else -15)
