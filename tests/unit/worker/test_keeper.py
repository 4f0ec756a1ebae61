"""When the keeper starts workers; that it does is shown with real processes, in test_process_death.py."""

from __future__ import annotations

import json
import multiprocessing
from multiprocessing.context import ForkProcess
from pathlib import Path

import pytest

from cutaway.contract.results import ModelName
from cutaway.server.worker import keeper


def test_workers_that_end_early_wait_longer_and_longer() -> None:
    """And never longer than half a minute, however often they have ended."""
    assert [keeper.delay_after(failures) for failures in range(8)] == [0, 0, 1, 3, 7, 15, 30, 30]
    assert keeper.delay_after(100_000) == 30


def test_each_worker_has_a_number_of_its_own() -> None:
    """The GPUs go round by it."""
    slots = keeper.slots_of(json.dumps([("/one", "one", "1.0", 2), ("/two", "two", "1.1", 1)]))
    one, two = ModelName("one", "1.0"), ModelName("two", "1.1")
    assert [(slot.number, slot.name, slot.workers) for slot in slots] == [(0, one, 2), (1, one, 2), (2, two, 1)]


def test_a_machine_without_a_free_process_ends_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper tries again: if it ended, all would."""
    refused = [OSError("no more processes"), OSError("no more processes")]
    start = ForkProcess.start

    def scarce(process: ForkProcess) -> None:
        if refused:
            raise refused.pop()
        start(process)

    monkeypatch.setattr(ForkProcess, "start", scarce)
    monkeypatch.setattr(keeper, "_PAUSE_S", 0.0)
    worker = keeper._start(keeper.WorkerSlot(0, Path("/nowhere"), ModelName("none", "1.0"), 1))
    worker.process.join()
    assert not refused
    assert worker.process.exitcode == 1
    assert multiprocessing.active_children() == []
