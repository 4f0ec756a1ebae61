"""The frames of the connections between gateway and worker: a kind, a number, a size, and as many bytes.

A worker listens on a Unix socket. Plain frames over it take a fifth of the time of a gRPC stream: 0.05 ms instead of
0.22 ms for 20 kB there and back. For large messages they take a seventh.

The gateway's first frame says what a connection is for. After `FrameKind.OPEN` the worker sends `FrameKind.HELLO`. Then
the gateway sends turns and cancellations, and the worker sends replies and heartbeats, in any order. After
`FrameKind.FETCH` the worker sends the pieces of one streamed reply, and then `FrameKind.END`. A reply in parts can be
fetched after `FrameKind.BEGUN`, while the model runs: its pieces come when they exist.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import IntEnum
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from cutaway.contract.tensors import Buffer


class FrameKind(IntEnum):
    """The kind of a frame, which says what its bytes are."""

    OPEN = 1
    """No bytes."""
    HELLO = 2
    """A `cutaway.v1.WorkerHello`."""
    HEARTBEAT = 3
    """The latest deadline of the calls that the worker runs at this moment, in Unix seconds: a double; 0 for none."""
    TURN = 4
    """A `cutaway.v1.WorkerTurn`."""
    CANCEL = 5
    """No bytes; the number is that of a call."""
    REPLY = 6
    """A `cutaway.v1.WorkerReply`; the number is that of a call."""
    FETCH = 7
    """No bytes; the number is `cutaway.v1.WorkerReply.pieces`."""
    PIECE = 8
    """A serialised `cutaway.v1.InspectStreamResponse`."""
    END = 9
    """No bytes: all pieces were sent. A connection that ends without it means that the worker died."""
    LEAVE = 10
    """No bytes: the worker shall end. The gateway sends no more turns, and closes after the last reply."""
    BEGUN = 11
    """A `cutaway.v1.WorkerReply` with pieces; the number is that of a call, whose `REPLY` follows when it has run."""
    ASIDE = 12
    """No bytes; the number is that of a call whose reply may take long. It keeps no other turn from running."""


class Frame(NamedTuple):
    """A frame: its kind, its number and its bytes."""

    kind: FrameKind
    number: int
    data: Buffer


HEAD = struct.Struct("<BQI")
"""The head of a frame: kind, number and size. The number is 0 in frames without one."""

_SPACE_BYTES = 64 << 10
"""The largest frame that is received beside others."""

HEARTBEAT_INTERVAL_S = 0.5

DEADLINE = struct.Struct("<d")
"""The bytes of a heartbeat."""


def frame(kind: FrameKind, data: bytes = b"", number: int = 0) -> bytes:
    """Returns a whole frame."""
    return HEAD.pack(kind, number, len(data)) + data


def frame_of(parts: Sequence[Buffer], kind: FrameKind, number: int = 0) -> list[Buffer]:
    """Returns a whole frame with the bytes of ``parts``, which are not copied."""
    return [HEAD.pack(kind, number, sum(map(len, parts))), *parts]


class FrameReader:
    """A parser that cuts frames out of the bytes of a connection as they arrive.

    The bytes of a large frame are received where they stay: memory that is new each time would take most of the time.
    """

    def __init__(self) -> None:
        self._space = bytearray(_SPACE_BYTES)
        self._filled = 0
        self._large = memoryview(b"")  # the frame that has begun, if it is larger than that
        self._large_filled = 0

    def space(self) -> memoryview:
        """Returns where the next bytes shall be written.

        Raises:
            MemoryError: there is no memory for the next frame now; what has arrived is kept.
        """
        if not self._large and self._filled == _SPACE_BYTES:
            _, _, length = HEAD.unpack_from(self._space)
            large = memoryview(_allocated(HEAD.size + length))
            large[:_SPACE_BYTES] = self._space
            self._large, self._large_filled, self._filled = large, _SPACE_BYTES, 0
        return self._large[self._large_filled :] or memoryview(self._space)[self._filled :]

    def read(self, size: int) -> Iterator[Frame]:
        """Yields the frames that are complete when ``size`` bytes were written to `space`."""
        if self._large:
            self._large_filled += size
            if self._large_filled == len(self._large):
                kind, number, _ = HEAD.unpack_from(self._large)
                large, self._large = self._large, memoryview(b"")
                yield Frame(FrameKind(kind), number, large[HEAD.size :])
            return
        self._filled += size
        start = 0
        while self._filled - start >= HEAD.size:
            kind, number, length = HEAD.unpack_from(self._space, start)
            begin, end = start + HEAD.size, start + HEAD.size + length
            if self._filled < end:
                break
            start = end
            yield Frame(FrameKind(kind), number, bytes(memoryview(self._space)[begin:end]))
        self._filled -= start
        self._space[: self._filled] = self._space[start : start + self._filled]


def _allocated(size: int) -> Any:
    return np.empty(size, np.uint8)  # a bytearray would be written twice


# The owner of a scratch directory holds a lock on a file in it. The kernel releases the lock when the process ends,
# also after SIGKILL, so that a later start finds and deletes the directories that have no owner any more.

WORKERS = "CUTAWAY_WORKERS"
"""The environment variable with the directory in which workers listen; each socket is named after its process."""

POOL_BYTES = "CUTAWAY_POOL_BYTES"
"""The environment variable with the size of the memory that workers share."""

POOL_IN = "CUTAWAY_POOL_IN"
"""The environment variable with the directory of the files by whose locks they share it."""


class KeeperOrder(NamedTuple):
    """An order for a keeper, which is sent as a line of JSON; the reply is a line with its process id.

    Attributes:
        models: of each, the directory of its unpacked archive, its name, its version and its number of workers.
        first: the number of the first worker among all workers of the server, from 0.
        directory: its working directory.
        log: the file for its standard output and standard error, and for those of its workers.
        variables: their environment.
        load_s: the longest that a worker may take to load its model, in seconds.
    """

    models: Sequence[tuple[str, str, str, int]]
    first: int
    directory: str
    log: str
    variables: dict[str, str]
    load_s: float


_PREFIX = "cutaway-"

_LOCK = ".cutaway-owner"
_LONGEST_PATH = 103  # of a socket, in bytes: 107 on Linux, 103 elsewhere
LONGEST_NAME = len("/.ts.sock.12345")  # TorchServe's socket, the longest name in these directories
_OWN = len(f"/{_PREFIX}12345678")


class ScratchDirectory(tempfile.TemporaryDirectory[str]):
    """A directory that only this user may enter, deleted at the end of its context.

    It lies in the default directory for temporary files, or in ``/tmp`` if that path is too long for Unix sockets.

    Args:
        longest_name: the length of the longest name of a socket in the directory, with the slash before it.
    """

    def __init__(self, longest_name: int = LONGEST_NAME) -> None:
        super().__init__(prefix=_PREFIX, dir=_parent(longest_name), ignore_cleanup_errors=True)
        self._lock = _take_lock(Path(self.name))

    def cleanup(self) -> None:
        """Deletes the directory."""
        super().cleanup()
        self._lock.close()


def listening(path: Path) -> socket.socket:
    """Returns a socket that listens at ``path``; the path exists only once it listens."""
    listener = socket.socket(socket.AF_UNIX)
    listener.settimeout(None)  # a model's code may have set a default for all sockets
    not_yet = path.with_name(f"{path.name}.new")
    listener.bind(str(not_yet))
    listener.listen()
    not_yet.rename(path)
    return listener


def delete_abandoned() -> None:
    """Deletes the directories of this user whose owner has ended without deleting them."""
    for directory in chain(*(Path(parent).glob(f"{_PREFIX}*") for parent in {tempfile.gettempdir(), _SHORT})):
        # One without a lock, of a running owner or of another user stays.
        with suppress(OSError), _open_lock(directory) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)


_SHORT = "/tmp"


def _parent(longest_name: int) -> str:
    parent = tempfile.gettempdir()
    return parent if len(os.fsencode(parent)) + _OWN + longest_name <= _LONGEST_PATH else _SHORT


def _take_lock(directory: Path) -> IO[bytes]:
    """Creates the lock file, locked from the moment at which it has its name: no other process sees it unlocked."""
    nameless = directory / f"{_LOCK}-new"
    lock = nameless.open("xb")
    fcntl.flock(lock, fcntl.LOCK_EX)
    nameless.rename(directory / _LOCK)
    return lock


def _open_lock(directory: Path) -> IO[bytes]:
    """Opens the lock file in ``directory``, which is one of ours.

    Raises:
        OSError: there is none; or the directory is a link, or another user's.
    """
    entered = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(entered).st_uid != os.geteuid():
            raise PermissionError(directory)
        return os.fdopen(os.open(_LOCK, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=entered), "rb")
    finally:
        os.close(entered)
