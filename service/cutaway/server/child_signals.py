"""Signals of the processes that a model's code starts: as the system has them, and not as this program has."""

from __future__ import annotations

import os
import signal
import threading
from functools import cache

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
