"""What holds for a minute and for ten thousand calls, said in figures; fails where a promise is broken.

python -m tests.soak                   # all trials
python -m tests.soak kills overload    # these
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from examples.digits.package import package
from tests.conftest import ADAPTERS
from tests.soak import fuzz, generations, jobs, overload, soak
from tests.support.adapters.mirror_adapter import MirrorAdapter
from tests.support.serving import Server, serving
from tests.support.serving import package as package_adapter

TRIALS: dict[str, Callable[[Server, Path], list[str]]] = {
    "kills": soak.killed,
    "overload": overload.trial,
    "fuzz": fuzz.trial,
    "soak": soak.trial,
    "jobs": jobs.trial,
    "engines": jobs.engines,
}
"""Each is told of a server and its model store; it returns what it found, in lines, and raises where a promise is
broken."""

ALONE: dict[str, Callable[[Path], list[str]]] = {
    "sentences": jobs.sentences,
    "generations": generations.trial,
}
"""Likewise those that need no server, but a directory of their own."""

QUEUE = 16
"""Calls that may wait for a model: little, so that a queue can be filled."""


def main() -> None:
    """Run them, each on a server of its own."""
    parser = argparse.ArgumentParser(prog="soak", description="Slow proofs that the server holds up.")
    parser.add_argument("trials", nargs="*", metavar="TRIAL", help=f"all by default: {', '.join([*TRIALS, *ALONE])}")
    trials = parser.parse_args().trials or [*TRIALS, *ALONE]
    if unknown := {*trials} - {*TRIALS, *ALONE}:
        parser.error(f"no trial is named {', '.join(sorted(unknown))}")
    for name in trials:
        print(f"{name}:", flush=True)
        for line in _found(name):
            print(f"    {line}", flush=True)


def _found(name: str) -> list[str]:
    with tempfile.TemporaryDirectory() as directory:
        if name in ALONE:
            return ALONE[name](Path(directory))
        with _server(Path(directory), name) as server:
            return TRIALS[name](server, Path(directory, "store"))


@contextmanager
def _server(directory: Path, trial: str) -> Iterator[Server]:
    """The digits example and the mirror of the tests, behind a gateway before TorchServe."""
    store = directory / "store"
    store.mkdir()
    package(store)
    package_adapter(store, "mirror", f"{ADAPTERS / 'mirror_adapter.py'}:{MirrorAdapter.__name__}")
    if trial == "overload":
        os.environ["CUTAWAY_MAX_QUEUE_LENGTH"] = str(QUEUE)
    try:
        with serving(store, directory / "logs") as running:
            yield running
    finally:
        os.environ.pop("CUTAWAY_MAX_QUEUE_LENGTH", None)


if __name__ == "__main__":
    main()
