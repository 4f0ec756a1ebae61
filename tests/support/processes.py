"""The processes behind a gateway."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psutil

from tests.support.serving import Server


def family(server: Server) -> Iterator[tuple[psutil.Process, list[str]]]:
    """The gateway and everything behind it, each with its command line."""
    door = psutil.Process(server.process.pid)
    for each in [door, *door.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            yield each, each.cmdline()


def java(server: Server) -> psutil.Process:
    """TorchServe's JVM."""
    return next(each for each, words in family(server) if any("org.pytorch.serve" in word for word in words))


def worker(server: Server, model: str) -> psutil.Process:
    """The worker that runs ``model``: its working directory is that of the archive."""
    for each, words in family(server):
        with contextlib.suppress(psutil.Error):
            if any("model_service_worker" in word for word in words) and _serves(each, words, model):
                return each
    raise LookupError(f"no worker of {model}")


def _serves(process: psutil.Process, words: list[str], model: str) -> bool:
    return any(model in word for word in [*process.environ().values(), *words, process.cwd()])
