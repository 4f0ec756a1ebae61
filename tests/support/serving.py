"""`cutaway serve` as a user runs it: a process, a model store, an address."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from cutaway.server.archive import builder

START = {"CUTAWAY_START_TIMEOUT_S": "600"}
"""More than the default: on a busy machine models take minutes to load."""


@contextmanager
def serving(store: Path | None, log_dir: Path, *arguments: str) -> Iterator[Server]:
    """Run ``cutaway serve`` over ``store``, if any, while the block runs; it is ready when the block begins."""
    command = [sys.executable, "-m", "cutaway.cli", "serve", *(["--model-store", str(store)] if store else [])]
    command += ["--address", "127.0.0.1:0", "--log-dir", str(log_dir), *arguments]
    errors = (log_dir.parent / f"{log_dir.name}.stderr").open("w+")
    environment = {**START, **os.environ}
    with (
        errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as process,
    ):
        try:
            assert process.stdout is not None
            said = list(_until_ready(process.stdout))
            assert said, _text(errors)
            assert said[-1].startswith("ready: "), f"{said}\n{_text(errors)}"
            yield Server(process, said[-1].removeprefix("ready: "), said, log_dir)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.communicate()


class Server:
    """A running ``cutaway serve``: its process, address, log directory and what it said until it was ready."""

    def __init__(self, process: subprocess.Popen[str], address: str, said: list[str], log_dir: Path) -> None:
        self.process = process
        self.address = address
        self.said = said
        self.log_dir = log_dir

    @property
    def http_address(self) -> str:
        """The ``host:port`` of HTTP, if it was asked for."""
        (url,) = (line.removeprefix("http: ") for line in self.said if line.startswith("http: "))
        return url.rpartition("/")[2]

    @property
    def logged(self) -> list[str]:
        """The events of its log so far; each line of its standard error must be one JSON object."""
        lines = (self.log_dir.parent / f"{self.log_dir.name}.stderr").read_text("utf-8").splitlines(keepends=True)
        return [str(json.loads(line)["event"]) for line in lines if line.endswith("\n")]

    def stop(self) -> int:
        """Ask for the end as an operator does; the exit status."""
        os.kill(self.process.pid, signal.SIGTERM)
        return self.process.wait()


def _until_ready(output: IO[str]) -> Iterator[str]:
    for line in output:
        yield line.strip()
        if line.startswith("ready: "):
            return


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def package(
    store: Path, model: str, adapter: str, *, version: str = "1.0", batch_size: int = 8, random_weights: bool = False
) -> Path:
    """An archive with one worker and no weights file."""
    return builder.build(
        model=model,
        version=version,
        adapter=adapter,
        weights=None,
        options={},
        batch_size=batch_size,
        max_batch_delay_ms=2,
        workers=1,
        response_timeout_s=120,
        destination=store,
        force=True,
        random_weights=random_weights,
    )
