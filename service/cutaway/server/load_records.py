"""Records of models that load: what their process printed, and how it ended.

A process that ends while its model loads (``sys.exit`` in a thread, a segmentation fault, a kill) can tell nobody why.
So it writes a file beside the workers' sockets until the model has loaded. A file whose process is gone is a death.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from cutaway.contract.results import ModelName

MOST_DEATHS = 3
"""The deaths after which a model counts as one that does not load."""

FAILED, LOADED = ".failed", ".loaded"
"""The kinds of notes on a model: why it cannot be loaded; its size, and what fits."""

_SUFFIX = ".loading"
_MOST_WORDS = 600  # characters of the last words
_TAIL_BYTES = 16 << 10
_STATUS = "cutaway: "


@contextmanager
def recorded(directory: Path, name: ModelName) -> Iterator[None]:
    """Records what this process prints while the block runs; prints it at the end, and deletes the record."""
    path = directory / f"{os.getpid()}={name.model}={name.version}{_SUFFIX}"
    _forget_old(directory, name)
    with path.open("wb+", buffering=0) as record:
        _flush()
        standard = os.dup(1), os.dup(2)
        noted = faulthandler.is_enabled()
        os.dup2(record.fileno(), 1)
        os.dup2(record.fileno(), 2)
        faulthandler.enable(record, all_threads=False)  # prints the line of a segmentation fault
        try:
            yield
        finally:
            _flush()
            faulthandler.disable()
            for number, descriptor in zip((1, 2), standard):
                os.dup2(descriptor, number)
                os.close(descriptor)
            if noted:
                faulthandler.enable()
            path.unlink(missing_ok=True)
            record.seek(0)
            with suppress(OSError):  # the disk is full: the model has loaded nevertheless
                while data := record.read(1 << 16):
                    os.write(2, data)


def note(directory: Path, name: ModelName, what: str, words: str) -> None:
    """Notes of a model ``what``, `FAILED` or `LOADED`, in words, if there is room."""
    with suppress(OSError):
        (directory / f"{name.model}={name.version}{what}").write_text(words)


def noted(directory: Path, name: ModelName, what: str) -> str:
    """Returns the words of `note`; the empty string if there are none."""
    with suppress(OSError):
        return (directory / f"{name.model}={name.version}{what}").read_text()
    return ""


def note_end(directory: Path, pid: int, status: int) -> str:
    """Adds how a process ended to its record, if it has one; returns what the process printed.

    ``status`` is the exit status; a negative one is that of a signal.
    """
    for path in directory.glob(f"{pid}=*{_SUFFIX}"):
        with suppress(OSError), path.open("rb+") as record:
            printed = record.read().decode(errors="replace")
            record.write(f"\n{_STATUS}{_described(status)}\n".encode())
            return printed
    return ""


def _described(status: int) -> str:
    if status >= 0:
        return f"with exit status {status}"
    with suppress(ValueError):
        return f"by {signal.Signals(-status).name}"
    return f"by signal {-status}"


def deaths(directory: Path, name: ModelName) -> list[str]:
    """Returns how processes ended that were loading the model, each in words."""
    return [_words(path) for path in _records(directory, name) if not _lives(path)]


def last_words(directory: Path, name: ModelName) -> str:
    """Returns what a process that is loading the model has printed last; the empty string if nothing."""
    return next((words for path in _records(directory, name) if (words := _last_words(path)[1])), "")


def forget(directory: Path) -> None:
    """Deletes the records of processes that have ended, and what `note` has noted."""
    for path in [path for what in (FAILED, LOADED) for path in directory.glob(f"*{what}")]:
        path.unlink(missing_ok=True)
    for path in directory.glob(f"*{_SUFFIX}"):
        if not _lives(path):
            path.unlink(missing_ok=True)


def _forget_old(directory: Path, name: ModelName) -> None:
    """Keeps the number of records small, although a model may die for years."""
    dead = [path for path in _records(directory, name) if not _lives(path)]
    for path in dead[MOST_DEATHS:]:
        path.unlink(missing_ok=True)


def _records(directory: Path, name: ModelName) -> Iterator[Path]:
    return directory.glob(f"*={name.model}={name.version}{_SUFFIX}")  # these are letters, digits, _, . and -


def _lives(path: Path) -> bool:
    return psutil.pid_exists(int(path.name.partition("=")[0]))


def _words(path: Path) -> str:
    status, words = _last_words(path)
    how = f"it ended {status or 'without a word, by a kill or os._exit()'} while it loaded"
    return f"{how}; its last words: {words}" if words else how


def _last_words(path: Path) -> tuple[str, str]:
    """Returns the exit status that ends a worker's output, and the last of what it printed before; of a fatal error of
    Python, its head and the innermost frames of the stack."""
    with suppress(OSError), path.open("rb") as record:
        record.seek(max(0, record.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = [line.strip() for line in record.read().decode(errors="replace").splitlines() if line.strip()]
        status = lines.pop().removeprefix(_STATUS) if lines and lines[-1].startswith(_STATUS) else ""
        for number, line in enumerate(lines):
            if line.startswith("Fatal Python error: "):  # what follows is the stack, innermost first
                return status, " / ".join(lines[max(0, number - 3) :])[:_MOST_WORDS]
        return status, " / ".join(lines)[-_MOST_WORDS:]
    return "", ""


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
