"""Cancellation of a call in a worker: a file that is created when the caller cancels.

TorchServe does not forward cancellations. But gateway and workers share a machine: each call carries the path of a
file, and between passes the worker checks whether the file exists.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cutaway.errors import Reason, error
from cutaway.worker_protocol.socket_directory import PREFIX, ScratchDirectory

PART = "hangup"
"""The name of the part with the path."""

_NAME = "gone-"


class Cancellations:
    """The gateway's side, for all calls of one backend."""

    def __init__(self) -> None:
        self._directory = ScratchDirectory()
        self._numbers = itertools.count()

    @contextmanager
    def path(self, timeout_s: float) -> Iterator[bytes]:
        """Yields the content of the part `PART`; a cancellation of the block within ``timeout_s`` seconds creates the
        file."""
        path = Path(self._directory.name) / f"{_NAME}{next(self._numbers)}"
        try:
            yield os.fsencode(path)
        except (asyncio.CancelledError, GeneratorExit):
            path.touch()
            # After its deadline the call ends by itself.
            asyncio.get_running_loop().call_later(timeout_s, path.unlink, True)
            raise

    def close(self) -> None:
        """Deletes all files."""
        self._directory.cleanup()


def gone(part: bytes) -> Callable[[], bool]:
    """Returns a function for the worker that returns whether the caller has cancelled; always False for an empty part.

    Raises:
        InvalidArgument: ``MALFORMED_REQUEST``, if ``part`` is not a path made by a gateway.
    """
    if not part:
        return lambda: False
    path = os.fsdecode(part)
    directory, name = os.path.split(path)
    # A caller of TorchServe's port must not learn which files exist.
    if not name.startswith(_NAME) or not os.path.basename(directory).startswith(PREFIX):
        raise error(Reason.MALFORMED_REQUEST, f"{PART} is a path made by the gateway")
    return lambda: os.path.exists(path)
