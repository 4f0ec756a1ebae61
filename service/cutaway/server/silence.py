"""How long a process has done nothing that it should have done; one that is starved of processors could not."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil


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
