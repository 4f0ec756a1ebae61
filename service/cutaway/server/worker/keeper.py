"""Keepers: processes that start the workers of models, and a new one for every worker that ends.

Usage: ``python -m cutaway.server.worker.keeper``.

The modules that all workers need are imported here, once. A keeper is a fork of this process, for each `KeeperOrder` on
standard input; a worker is a fork of a keeper. So both start at once, and share the memory of the imports; a worker
needs only its model. Nothing here may start a thread or touch a GPU.

This process ends with its owner, which holds the other end of standard input.
"""

from __future__ import annotations

import gc
import json
import mmap
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import NamedTuple, NoReturn

import psutil

# LSTMs in forward mode, and transformers, import it, which takes a second and 34 MiB: forks share it.
import torch._dynamo  # noqa: F401

from cutaway.contract.results import ModelName
from cutaway.server import load_records
from cutaway.server.worker.loading import gpu_in_turn
from cutaway.server.worker.process import WorkerProcess
from cutaway.server.worker_protocol import WORKERS, KeeperOrder

_STEADY_S = 10.0
"""Seconds below which a worker ended early; the next one then waits first, as after one that has not loaded."""

_DELAYS_S = (0.0, 0.0, 1.0, 3.0, 7.0, 15.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds that a worker waits, by the number of workers before it that ended early; the last number for all more."""

_LONGEST_S = 30.0
"""The longest that a model waits which has loaded: its callers do."""

_PAUSE_S = 1.0


class WorkerSlot(NamedTuple):
    """A worker to keep: its number among all workers, its model, and the number of workers of that model."""

    number: int
    directory: Path
    name: ModelName
    workers: int


class _Running(NamedTuple):
    """The worker in a slot: when it began, how many before it ended early in a row, and a byte that is 1 once it has
    loaded."""

    slot: WorkerSlot
    process: ForkProcess
    began: float
    failures: int
    loaded: mmap.mmap


def slots_of(models: Sequence[tuple[str, str, str, int]], first: int) -> list[WorkerSlot]:
    """Returns a slot for each worker of ``models``, with numbers from ``first``; see `KeeperOrder`."""
    named = [(Path(directory), ModelName(model, version), workers) for directory, model, version, workers in models]
    workers = [model for model in named for _ in range(model[2])]
    return [WorkerSlot(number, *model) for number, model in enumerate(workers, first)]


def keep(slots: Sequence[WorkerSlot], load_s: float) -> NoReturn:
    """Starts a worker in every slot, and again whenever it has ended; never returns. One that has not loaded within
    ``load_s`` seconds is ended."""
    running = [_start(slot) for slot in slots]
    while True:
        wait([worker.process.sentinel for worker in running], _PAUSE_S)
        for number, worker in enumerate(running):
            if worker.process.exitcode is not None:  # its sentinel stays silent while a process that it forked lives
                _print_record(worker.process)
                _end_orphans()
                running[number] = _next(worker)
            elif not worker.loaded[0] and time.monotonic() - worker.began > load_s:
                worker.process.kill()


def _print_record(process: ForkProcess) -> None:
    """Prints what a worker printed that ended while its model loaded."""
    directory = os.environ.get(WORKERS)
    if directory and process.pid and process.exitcode is not None:
        with suppress(OSError):  # a full disk ends no keeper
            print(load_records.note_end(Path(directory), process.pid, process.exitcode), end="", flush=True)


def _end_orphans() -> None:
    """Kills processes that ended workers have left: those of this process group with a parent in another group."""
    group = os.getpgid(0)
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError, PermissionError):
            if process.pid != group == os.getpgid(process.pid) and os.getpgid(process.ppid()) != group:
                process.kill()


def _next(ended: _Running) -> _Running:
    """Starts the worker that follows one that has ended."""
    has_loaded = bool(ended.loaded[0])
    ended_early = not has_loaded or time.monotonic() - ended.began < _STEADY_S
    failures = ended.failures + 1 if ended_early else 0
    return _start(ended.slot, failures, delay_after(failures, has_loaded=has_loaded))


def _start(slot: WorkerSlot, failures: int = 0, delay_s: float = 0.0) -> _Running:
    """Starts a worker, which waits first for ``delay_s``; tries again if no process can be made."""
    loaded = mmap.mmap(-1, 1)  # shared with the fork
    while True:
        process = multiprocessing.get_context("fork").Process(
            target=_run, args=(slot, delay_s, loaded), name=slot.name.model
        )
        try:
            process.start()
        except OSError as failure:
            print(f"no worker of {slot.name.model} can be started: {failure}; trying again", file=sys.stderr)
            time.sleep(_PAUSE_S)
        else:
            return _Running(slot, process, time.monotonic() + delay_s, failures, loaded)


def delay_after(failures: int, *, has_loaded: bool) -> float:
    """Returns how long a worker waits after so many that ended early, in seconds; ``has_loaded`` is of the last one."""
    delay_s = _DELAYS_S[min(failures, len(_DELAYS_S) - 1)]
    return min(delay_s, _LONGEST_S) if has_loaded else delay_s


def _run(slot: WorkerSlot, delay_s: float, loaded: mmap.mmap) -> None:
    """Runs a worker until the process is killed."""
    time.sleep(delay_s)
    try:
        os.chdir(slot.directory)
        sys.path.insert(0, str(slot.directory))  # an adapter may import other files of its archive
        WorkerProcess.start(slot.directory, slot.name, workers=slot.workers, gpu=gpu_in_turn(slot.number))
    except BaseException as failure:
        with suppress(OSError):
            if not isinstance(failure, SystemExit):
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(1)  # threads that the model has begun would keep the process
    loaded[0] = 1
    threading.Event().wait()


def _become_keeper(order: KeeperOrder, replied: int) -> NoReturn:
    """Turns this fork into the keeper of ``order``; never returns.

    Its process id goes to standard output as the reply to the order. A byte in the pipe ``replied`` then tells `main`
    that the reply was written.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    reply = os.dup(sys.stdout.fileno())
    with open(os.devnull) as nothing, open(order.log, "a") as log:
        for number, file in enumerate((nothing, log, log)):
            os.dup2(file.fileno(), number)
    os.environ.clear()
    os.environ.update(order.variables)
    os.chdir(order.directory)
    os.write(reply, b"%d\n" % os.getpid())
    os.close(reply)
    os.write(replied, b"1")
    os.close(replied)
    keep(slots_of(order.models, order.first), order.load_s)


def main() -> None:
    """Forks a keeper for each order, until there are no more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for keepers here
    gc.freeze()  # a collection would write to all pages, which are then no longer shared
    for line in sys.stdin:
        ours, its = os.pipe()
        if os.fork() == 0:
            os.close(ours)
            _become_keeper(KeeperOrder(**json.loads(line)), its)
        os.close(its)
        if not os.read(ours, 1):  # it has ended: without a line, whoever gave the order would wait
            with suppress(OSError):  # nobody waits any more
                os.write(sys.stdout.fileno(), b"\n")
        os.close(ours)


if __name__ == "__main__":
    main()
