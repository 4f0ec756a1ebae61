"""What a worker's silence says: one that is starved of processors hangs no more than one that nobody has called."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from cutaway.server.child_processes import Silence
from tests.support.waiting import until

SILENT_S = 1000.0
"""Longer than any process of a test has lived."""

RUNS = "print(flush=True)\nwhile True: pass"
SLEEPS = "import time; print(flush=True); time.sleep(600)"
LATER, LONG_AGO = time.time() + 3600, 0.0


@contextmanager
def process(code: str) -> Iterator[psutil.Process]:
    """A Python process that runs ``code``, once it prints."""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as started:
        try:
            assert started.stdout
            started.stdout.readline()
            yield psutil.Process(started.pid)
        finally:
            started.kill()


def state(process: psutil.Process, *states: str) -> Callable[[], bool]:
    """Whether ``process`` is in one of ``states``."""
    return lambda: process.status() in states


def test_a_process_that_waits_for_a_processor_is_not_late() -> None:
    """What wants to run is late by the time that it has run, however long it was silent."""
    with process(RUNS) as running:
        silence = Silence(running.pid, LONG_AGO)
        before = sum(running.cpu_times()[:2])
        until(lambda: silence.late_s(SILENT_S) > 0.1)
        assert silence.late_s(SILENT_S) <= sum(running.cpu_times()[:2]) - before + 0.1 < SILENT_S


@pytest.mark.parametrize(("owed", "late_s"), [(LONG_AGO, SILENT_S), (LATER, 0.0)], ids=["owed", "not owed yet"])
def test_a_process_that_waits_for_something_else_is_late(owed: float, late_s: float) -> None:
    """Once its calls should have been done."""
    with process(SLEEPS) as sleeping:
        until(state(sleeping, psutil.STATUS_SLEEPING))
        assert Silence(sleeping.pid, owed).late_s(SILENT_S) == late_s


@pytest.mark.parametrize("code", [RUNS, SLEEPS], ids=["runs", "sleeps"])
def test_a_process_that_is_stopped_is_late(code: str) -> None:
    """Whatever it is owed: it does nothing for its callers."""
    with process(code) as stopped:
        os.kill(stopped.pid, signal.SIGSTOP)
        until(state(stopped, psutil.STATUS_STOPPED))
        assert Silence(stopped.pid, LATER).late_s(SILENT_S) == SILENT_S


def test_a_process_on_another_machine_is_late() -> None:
    """Nothing is known of it but its silence."""
    assert Silence(0, LONG_AGO).late_s(SILENT_S) == SILENT_S
