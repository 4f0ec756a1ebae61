"""The processes behind a gateway."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.support.serving import Server
from tests.support.waiting import until


def family(server: Server) -> Iterator[tuple[psutil.Process, list[str]]]:
    """The gateway and everything behind it, each with its command line."""
    door = psutil.Process(server.process.pid)
    for each in [door, *door.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            yield each, each.cmdline()


def resident_bytes(server: Server) -> int:
    """The memory of the gateway and all processes behind it."""
    total = 0
    for each, _ in family(server):
        with contextlib.suppress(psutil.Error):
            total += each.memory_info().rss
    return total


def leader(server: Server) -> psutil.Process:
    """The process that starts the workers: TorchServe's JVM, or a keeper."""
    door = psutil.Process(server.process.pid)
    return next(
        each
        for each, words in family(server)
        if each.ppid() == door.pid
        and any("org.pytorch.serve" in word or word in (_KEEPER, _RAY_KEEPER) for word in words)
    )


def next_leader(server: Server, ended: int = 0) -> psutil.Process:
    """The leader, as soon as another one runs than the process ``ended``."""
    found: list[psutil.Process] = []

    def runs() -> bool:
        with contextlib.suppress(StopIteration, psutil.Error):
            found.append(leader(server))
        return bool(found) and found[-1].pid != ended

    until(runs)
    return found[-1]


def worker(server: Server, model: str) -> psutil.Process:
    """The worker that runs ``model``: its working directory is that of the archive; Ray names it after the model."""
    for each, words in family(server):
        with contextlib.suppress(psutil.Error, FileNotFoundError):
            if words and words[0].startswith(REPLICA) and f"-{model}-" in words[0]:
                return each
            if json.loads(Path(each.cwd(), "cutaway.json").read_text())["model"] == model:
                return each
    raise LookupError(f"no worker of {model}")


_KEEPER = "cutaway.server.worker.keeper"
_RAY_KEEPER = "cutaway.server.ray.keeper"
REPLICA = "ray::ServeReplica:cutaway-"
"""Begins the command line of a worker on Ray."""
