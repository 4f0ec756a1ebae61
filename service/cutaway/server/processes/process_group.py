"""The processes of an engine as one process group, with a watchdog and a log."""

from __future__ import annotations

import inspect
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import IO, ClassVar, Protocol

import psutil

from cutaway.contract.errors import Reason, error
from cutaway.server.worker_protocol import LONGEST_NAME, ScratchDirectory

_TAIL_BYTES = 16 << 10
_LARGEST_BYTES = 50 << 20
_KEPT = 3


class RunLog:
    """The part of a log file that one run of a program writes.

    Attributes:
        path: the file; its directory is created.
    """

    def __init__(self, path: Path = Path(os.devnull)) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as log:
                self._begin = log.tell()
        except OSError as failure:
            what = f"the log {path} cannot be written ({failure.strerror}): set CUTAWAY_LOG_DIR to another directory"
            raise error(Reason.BACKEND_UNAVAILABLE, what, "CUTAWAY_LOG_DIR") from None
        self.path = path.resolve()
        self._closed_tail: str | None = None

    def tail(self) -> str:
        """Returns the end of the part; the empty string where it cannot be read."""
        if self._closed_tail is not None:
            return self._closed_tail
        with suppress(OSError), self.path.open("rb") as log:  # somebody may have deleted it
            size = log.seek(0, os.SEEK_END)
            begin = self._begin if self._begin <= size else 0  # else it was rotated
            log.seek(max(begin, size - _TAIL_BYTES))
            return log.read().decode(errors="replace")
        return ""

    def rotate(self) -> None:
        """Moves what is in a large file to ``.1``, that of ``.1`` to ``.2``, and so on; the last one is deleted.

        The file stays the same, because running processes append to it. What they write amid this is moved too, but for
        the last moment.
        """
        with _ROTATING, suppress(OSError):  # a full disk: tried again
            if self.path.stat().st_size < _LARGEST_BYTES:
                return
            older = [self.path, *(Path(f"{self.path}.{number}") for number in range(1, _KEPT + 1))]
            for source, target in reversed([*itertools.pairwise(older[1:])]):
                if source.exists():
                    source.replace(target)
            with self.path.open("rb+") as log, older[1].open("wb") as moved:
                _move_lines(log, moved)
                log.truncate(0)

    def close(self) -> None:
        """Stores the tail in memory: the file may then be deleted."""
        self._closed_tail = self.tail()


_ROTATING = threading.Lock()
"""Several keepers have one log."""

_MOST_LOOKS = 1000


def _move_lines(log: IO[bytes], moved: IO[bytes]) -> None:
    """Copies ``log`` to its end. A reader may see the beginning of a line that is being written: its rest follows."""
    last = b""
    for _ in range(_MOST_LOOKS):
        while data := log.read(1 << 20):
            moved.write(data)
            last = data[-1:]
        if last in (b"", b"\n"):
            return


IGNORING = ("/bin/sh", "-c", """trap "" TERM; exec "$@" """, "sh")
"""The beginning of a command that ignores SIGTERM, with all its processes: systemd sends it to every process of a
service, and calls may still run. A process that wants it sets a handler."""

_KILL_TIMEOUT_S = 30.0


class Leader(Protocol):
    """The first process of a group, which has the same id."""

    pid: int

    def poll(self) -> int | None:
        """Returns None while it runs, else its exit status."""

    def wait(self, timeout: float | None = None) -> int:
        """Waits until it has ended; raises `subprocess.TimeoutExpired` after ``timeout`` seconds."""

    def send_signal(self, sig: int) -> None:
        """Sends it a signal, if it runs."""


def led(command: Sequence[str], directory: Path, environment: Mapping[str, str], log: Path) -> Leader:
    """Starts a command in a process group of its own, with a working directory, and a log that it appends to."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [*IGNORING, *command],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in the terminal then reaches only the owner, which stops it in order
        )


class ProcessGroup:
    """A process that leads a group.

    All processes that it starts belong to the group, and end with it, also if it was killed. If the process that owns
    this object is killed, the watchdog ends them.

    Args:
        leader: the process.
        directories: what the watchdog deletes.
    """

    def __init__(self, leader: Leader, *directories: Path) -> None:
        self._leader = leader
        self.pid = leader.pid
        self._gone = False
        try:
            self._watchdog = _watch(self.pid, *directories)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            raise

    def poll(self) -> int | None:
        """Returns None while the command runs, else its exit status; others of the group may live on until `kill`."""
        return self._leader.poll()

    def has(self, pid: int) -> bool:
        """Returns whether a process belongs to the group."""
        with suppress(ProcessLookupError):
            return os.getpgid(pid) == self.pid and not self._gone
        return False

    def kill_one(self, pid: int) -> None:
        """Kills one process, if it belongs to the group."""
        if self.has(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def terminate(self, grace_s: float, number: int) -> None:
        """Sends a signal to the command, waits up to ``grace_s`` seconds, then kills the group."""
        if self._leader.poll() is None:
            self._leader.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                self._leader.wait(grace_s)
        self.kill()

    def kill(self) -> None:
        """Kills every process of the group, and waits until none is left."""
        if self._gone:  # the id may belong to another group by now
            return
        deadline = time.monotonic() + _KILL_TIMEOUT_S
        while members := list(self._members()):
            if time.monotonic() > deadline:
                raise error(Reason.INTERNAL, f"processes {members} of group {self.pid} cannot be killed")
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            time.sleep(0.02)
        self._leader.wait()
        self._gone = True
        self._watchdog.kill()  # first: it takes the end of its pipe for the end of this process
        self._watchdog.communicate()

    def _members(self) -> Iterator[int]:
        for process in psutil.process_iter():
            # A process may end during the check. Zombies are dead; another process reaps them.
            with suppress(psutil.NoSuchProcess, ProcessLookupError, PermissionError):
                if os.getpgid(process.pid) == self.pid and process.status() != psutil.STATUS_ZOMBIE:
                    yield process.pid


class Liveness(Protocol):
    """A watch over an engine until `close`."""

    @property
    def hangs(self) -> bool:
        """Whether the engine runs but does nothing any more."""

    async def close(self) -> None:
        """Ends the watch."""


@dataclass(eq=False)
class Engine(ABC):
    """Processes with the workers of all models of a store: a process group, and the log of its last start.

    Args:
        root: the directory with the models' files, which is deleted if this process is killed; None to leave them.

    Attributes:
        name: the name for people, such as ``TorchServe``.
        longest_name: the length of the longest name of a socket in the directory of the processes.
        end_signal: the signal that the first process ends by.
        rotates_log: whether the processes move what is in a large log themselves.
    """

    _: KW_ONLY
    root: Path | None = None
    name: str = field(init=False)
    longest_name: ClassVar[int] = LONGEST_NAME
    end_signal: ClassVar[int] = signal.SIGTERM
    rotates_log: ClassVar[bool] = False
    _log: RunLog = field(init=False, default_factory=RunLog)
    _group: ProcessGroup | None = field(init=False, default=None)
    _cleanup: ExitStack = field(init=False, default_factory=ExitStack)

    def start(self) -> None:
        """Starts the processes; their workers load their models after that."""
        with ExitStack() as undo:
            directory = Path(undo.enter_context(ScratchDirectory(self.longest_name)))
            self._log = RunLog(self._log_path(directory))
            undo.callback(self._log.close)
            self._group = ProcessGroup(self._launch(directory), directory, *([self.root] if self.root else []))
            undo.callback(self._group.kill)
            self._wait_started(self._group, directory)
            self._cleanup = undo.pop_all()

    @abstractmethod
    def _log_path(self, directory: Path) -> Path:
        """Returns the path of the log; a log in ``directory`` is deleted with the processes."""

    @abstractmethod
    def _launch(self, directory: Path) -> Leader:
        """Writes the files of the first process into ``directory``, and starts it there."""

    @abstractmethod
    def _wait_started(self, group: ProcessGroup, directory: Path) -> None:
        """Waits until the first process is ready; raises an error if it does not become so."""

    @property
    def pid(self) -> int:
        """The first process; 0 before the first start."""
        return self._group.pid if self._group else 0

    def poll(self) -> int | None:
        """Returns None while the processes run, else the exit status of the first."""
        if self._group is None:
            raise error(Reason.INTERNAL, "the processes were not started")
        return self._group.poll()

    def has_worker(self, pid: int) -> bool:
        """Returns whether ``pid`` is one of these processes; 0 is a worker that may be on another machine."""
        return self._group is not None and self._group.has(pid)

    def end_worker(self, pid: int) -> None:
        """Kills one of these processes, which hangs; a new worker follows."""
        if self._group is not None:
            self._group.kill_one(pid)

    @abstractmethod
    def liveness(self, hang_s: float) -> Liveness:
        """Begins to watch the engine, in an event loop; it hangs if it does nothing for ``hang_s`` seconds."""

    def log_tail(self) -> str:
        """Returns the end of the log since the last start; also after the processes have ended."""
        return self._log.tail()

    def rotate_log(self) -> None:
        """Moves what is in a large log to another file, unless the processes do that."""
        if not self.rotates_log:
            self._log.rotate()

    def stop(self, grace_s: float = 10.0) -> None:
        """Ends all processes, and deletes their files; the first gets ``grace_s`` seconds to end by itself."""
        with self._cleanup:
            if self._group is not None:
                self._group.terminate(grace_s, self.end_signal)


def _end_with_owner(group: str, *directories: str) -> None:
    """Waits until the owner has ended, then kills the process group and deletes the directories: the watchdog.

    The owner never writes to the pipe; the kernel closes it when the owner ends, even by SIGKILL. (Linux's parent-death
    signal would come as soon as the *thread* that started the group ends.)
    """
    import contextlib
    import os
    import shutil
    import signal
    import sys

    sys.stdin.buffer.read()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(int(group), signal.SIGKILL)
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


def _watch(group: int, *directories: Path) -> subprocess.Popen[bytes]:
    """Starts the watchdog from its source; isolated and without site-packages, it is small and starts quickly."""
    program = f"{inspect.getsource(_end_with_owner)}\nimport sys\n{_end_with_owner.__name__}(*sys.argv[1:])"
    return subprocess.Popen(
        [*IGNORING, sys.executable, "-I", "-S", "-c", program, str(group), *map(str, directories)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
