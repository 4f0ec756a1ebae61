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


def leaders(server: Server) -> list[psutil.Process]:
    """The processes that start workers, the newest last: TorchServe's JVM, the keeper of Ray's, or a keeper for each
    archive, which is a fork of one process."""
    door, found = server.process.pid, []
    for each, words in family(server):
        with contextlib.suppress(psutil.Error):
            if _KEEPER in words:
                is_leader = each.ppid() != door and psutil.Process(each.ppid()).ppid() == door
            else:
                is_leader = each.ppid() == door and any(_JVM in word or word == _RAY_KEEPER for word in words)
            if is_leader:
                found.append(each)
    return sorted(found, key=lambda each: each.create_time())


def leader(server: Server, model: str = "") -> psutil.Process:
    """The process that starts the workers of ``model``, or of any."""
    found = leaders(server)
    if len(found) > 1 and model:
        parent = worker(server, model).ppid()
        return next(each for each in found if each.pid == parent)
    if not found:
        raise LookupError("nothing starts workers")
    return found[0]


def next_leader(server: Server, *before: psutil.Process) -> psutil.Process:
    """The newest leader, as soon as there is one besides those of ``before``."""
    found: list[psutil.Process] = []

    def runs() -> bool:
        with contextlib.suppress(psutil.Error):
            found[:] = [each for each in leaders(server) if each not in before]
        return bool(found)

    until(runs)
    return found[-1]


def fork_server(server: Server) -> psutil.Process | None:
    """The process whose forks are keepers, if there is one."""
    return next(
        (each for each, words in family(server) if _KEEPER in words and each.ppid() == server.process.pid), None
    )


def make_starts_slow(server: Server) -> None:
    """Lets the next keeper wait for the imports of the process that it is a fork of."""
    if of := fork_server(server):
        of.kill()


def worker(server: Server, model: str) -> psutil.Process:
    """The worker that runs ``model``: its working directory is that of the archive; Ray names it after the model."""
    for each, words in family(server):
        with contextlib.suppress(psutil.Error, FileNotFoundError):
            if words and words[0].startswith(REPLICA) and f"-{model}-" in words[0]:
                return each
            if json.loads(Path(each.cwd(), "cutaway.json").read_text())["model"] == model:
                return each
    raise LookupError(f"no worker of {model}")


_JVM = "org.pytorch.serve"
_KEEPER = "cutaway.server.worker.keeper"
_RAY_KEEPER = "cutaway.server.ray.keeper"
REPLICA = "ray::ServeReplica:cutaway-"
"""Begins the command line of a worker on Ray."""
