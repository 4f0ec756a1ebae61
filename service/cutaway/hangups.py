"""Word to a worker that a caller is gone: a file that is not there, until the caller hangs up.

TorchServe tells a worker nothing once it has a call. But front door and workers share a machine: each call carries the
path of a file, and between passes the worker looks whether it has appeared.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cutaway.errors import Reason, error
from cutaway.scratch import PREFIX, scratch_directory

PART = "hangup"
"""The part of a call that holds the path."""

_NAME = "gone-"


class HangUps:
    """The front door's end, for all calls of one backend."""

    def __init__(self) -> None:
        self._directory = scratch_directory()
        self._numbers = itertools.count()

    @contextmanager
    def told(self, timeout_s: float) -> Iterator[bytes]:
        """Around waiting for an answer: a caller who stops waiting before ``timeout_s`` has passed is reported.

        Yields:
            What the worker is told, under `PART`.
        """
        path = Path(self._directory.name) / f"{_NAME}{next(self._numbers)}"
        try:
            yield os.fsencode(path)
        except (asyncio.CancelledError, GeneratorExit):
            path.touch()
            # Past its deadline a call ends by itself.
            asyncio.get_running_loop().call_later(timeout_s, path.unlink, True)
            raise

    def close(self) -> None:
        """Nobody is waited for any more."""
        self._directory.cleanup()


def gone(word: bytes) -> Callable[[], bool]:
    """The worker's end: tells whether the caller whose call carries ``word`` has hung up; nobody has who left no word.

    Raises:
        InvalidArgument: ``MALFORMED_REQUEST``, where ``word`` is no path of a front door's.
    """
    if not word:
        return lambda: False
    path = os.fsdecode(word)
    directory, name = os.path.split(path)
    # Whoever reaches TorchServe's port must not learn from a worker which files there are.
    if not name.startswith(_NAME) or not os.path.basename(directory).startswith(PREFIX):
        raise error(Reason.MALFORMED_REQUEST, f"{PART} is a path of a front door's")
    return lambda: os.path.exists(path)
