"""Starts the workers of a model store, and a new one for each that ends: ``python -m cutaway.server.worker.keeper PLACES``.

What all workers import is imported here, once. A new worker is a fork of this process: it is there at once, needs only
its model, and shares the memory of the imports. So nothing here may start a thread or touch a GPU.

PLACES is JSON: for each model the directory of its unpacked archive, its name, its version and the number of workers.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import sys
import threading
import time
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import NamedTuple

import torch

from cutaway.contract.results import ModelName
from cutaway.server.worker.process import WorkerProcess

_STEADY_S = 10.0
"""A worker that ends earlier is followed by one that waits first: it may be a model that cannot load."""

_DELAYS_S = (0.0, 0.0, 1.0, 3.0, 7.0, 15.0, 30.0)
"""How long a worker waits, by the number of those before it that ended early; the last one for all further."""

_PAUSE_S = 1.0


class Place(NamedTuple):
    """A worker to keep: its number among all workers, its model, and the number of workers of that model."""

    number: int
    directory: Path
    name: ModelName
    workers: int


class _Running(NamedTuple):
    """The worker at a place, when it began, and after how many that ended early."""

    place: Place
    process: ForkProcess
    began: float
    failures: int


def places_of(argument: str) -> list[Place]:
    """Returns the places in PLACES."""
    models = [
        (Path(directory), ModelName(model, version), workers)
        for directory, model, version, workers in json.loads(argument)
    ]
    each = [model for model in models for _ in range(model[2])]
    return [Place(number, *model) for number, model in enumerate(each)]


def keep(places: list[Place]) -> None:
    """Starts a worker at each place, and again whenever it has ended; never returns."""
    running = {worker.process.sentinel: worker for worker in (_start(place) for place in places)}
    while True:
        ready = wait(list(running))
        for sentinel, worker in [(sentinel, worker) for sentinel, worker in running.items() if sentinel in ready]:
            del running[sentinel]
            worker.process.join()
            ended_early = time.monotonic() - worker.began < _STEADY_S
            new = _start(worker.place, worker.failures + 1 if ended_early else 0)
            running[new.process.sentinel] = new


def _start(place: Place, failures: int = 0) -> _Running:
    """Starts a worker, which waits first if there are ``failures``; tries again if no process can be made."""
    delay_s = delay_after(failures)
    while True:
        process = multiprocessing.get_context("fork").Process(target=_run, args=(place, delay_s), name=place.name.model)
        try:
            process.start()
        except OSError as failure:
            print(f"no worker of {place.name.model} can be started: {failure}; trying again", file=sys.stderr)
            time.sleep(_PAUSE_S)
        else:
            return _Running(place, process, time.monotonic() + delay_s, failures)


def delay_after(failures: int) -> float:
    """Returns how long a worker waits after so many that ended early, in seconds."""
    return _DELAYS_S[min(failures, len(_DELAYS_S) - 1)]


def _run(place: Place, delay_s: float) -> None:
    """Is a worker, until it is killed."""
    time.sleep(delay_s)
    os.chdir(place.directory)
    sys.path.insert(0, str(place.directory))  # an adapter may import other files of its archive
    WorkerProcess.start(place.directory, place.name, workers=place.workers, gpu=_gpu(place.number))
    threading.Event().wait()


def _gpu(number: int) -> int | None:
    """Returns the GPU of a worker: each takes the next one."""
    return number % torch.cuda.device_count() if torch.cuda.is_available() else None


if __name__ == "__main__":
    gc.freeze()  # a collection would write to all pages, which are then no longer shared
    keep(places_of(sys.argv[1]))
