"""The thread that runs a model: hooks are state of the model, so only one turn runs at a time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)


class ModelThread:
    """A thread that runs jobs one after the other.

    It is a daemon: a model that never returns must not keep the process alive.
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"cutaway-{name}", daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], Any]) -> None:
        """Runs ``job`` after those before it; an exception is only logged."""
        self._jobs.put(job)

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Runs ``job`` after those before it, and returns its future result."""
        future: Future[T] = Future()
        self.put(partial(_complete, future, job))
        return future

    def close(self, grace_s: float) -> None:
        """Ends the thread when its jobs are done; after ``grace_s`` seconds, abandons it."""
        self._jobs.put(None)
        self._thread.join(grace_s)

    def _run(self) -> None:
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """Runs a job, and keeps nothing of it; returns whether there may be another."""
        job = self._jobs.get()
        if job is None:
            return False
        try:
            job()
        except Exception:
            log.exception("unexpected exception in the thread of a model")
        return True


def _complete(future: Future[T], job: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(job())
    except BaseException as failure:
        future.set_exception(failure)
