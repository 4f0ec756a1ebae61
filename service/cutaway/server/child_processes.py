"""Processes of this server's: the signals of those that a model's code starts, and how long one has been silent.

A process that has done nothing may be starved of processors: it could not.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from functools import cache

import psutil

# Signals of the processes that a model's code starts: as the system has them, and not as this program has.

_before_fork = threading.local()


@cache
def give_children_default_signals() -> None:
    """Lets SIGTERM end every child process started from now on, although this process ignores or handles the signal.

    A model's code may have a pool of processes, which sends SIGTERM to its processes and waits for their end. Without
    this function, started programs would inherit an ignored SIGTERM, and forks would also inherit a handler.
    """
    if signal.getsignal(signal.SIGTERM) == signal.SIG_IGN:
        signal.signal(signal.SIGTERM, lambda *_: None)
    os.register_at_fork(before=_hold_back, after_in_parent=_release, after_in_child=_reset)


def _hold_back() -> None:
    """Blocks SIGTERM in this thread before a fork; after the fork, parent and child restore the signal mask."""
    _before_fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _before_fork.mask)


def _reset() -> None:
    signal.set_wakeup_fd(-1)  # else an event loop would take the signals of a fork for its own
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _release()


# How long a process has done nothing that it should have done.


class Silence:
    """The time without a heartbeat of a process.

    Args:
        pid: the process; 0 if that may be on another machine.
        owed: when its calls should have been done, in Unix seconds.
    """

    def __init__(self, pid: int, owed: float = 0.0) -> None:
        self._pid = pid
        self._owed = owed
        self._used_s = _processor_s(pid)

    def late_s(self, silent_s: float) -> float:
        """Returns how many of the last ``silent_s`` seconds without a heartbeat are the fault of the process.

        Time before the deadline of its calls does not count. While the process is ready to run or waits for the disk,
        only the processor time that it has used counts. Of a stopped process (SIGSTOP), all time counts.
        """
        states = _states(self._pid)
        if psutil.STATUS_STOPPED in states:
            return silent_s
        if states & {psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP}:
            silent_s = min(silent_s, _processor_s(self._pid) - self._used_s)
        return min(silent_s, max(0.0, time.time() - self._owed))


def is_stopped(pid: int) -> bool:
    """Returns whether a process is stopped (SIGSTOP)."""
    return psutil.STATUS_STOPPED in _states(pid)


def _states(pid: int) -> set[str]:
    """Returns what each thread of a process does, as psutil names it; outside Linux, what the process does."""
    found: set[str] = set()
    with suppress(psutil.Error, OSError):  # OSError: no file descriptor is left to look with
        process = psutil.Process(pid)
        for each in [thread.id for thread in process.threads()] if psutil.LINUX else [pid]:
            with suppress(psutil.NoSuchProcess):  # the thread has ended
                found.add(psutil.Process(each).status())
    return found


def _processor_s(pid: int) -> float:
    """Returns the seconds of a processor that a process has used; 0 where that cannot be found out."""
    with suppress(psutil.Error, OSError):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return 0.0
