"""A bad day: honest callers ask while everything goes wrong that can, in random order; fails where a promise breaks.

python -m tests.chaos              15 minutes
python -m tests.chaos 120          so many seconds
python -m tests.chaos 60 --only "worker kill"
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil

import cutaway as ca
from examples.digits.package import package as package_digits
from tests.chaos.faults import FAULTS, OTHER, TOKEN, Scene
from tests.chaos.observer import Observer
from tests.conftest import ADAPTERS
from tests.support import token_files
from tests.support.mixed.answers import flat
from tests.support.mixed.callers import CALLERS, Callers, beside
from tests.support.mixed.mix import Request, requests, small_models
from tests.support.serving import package, serving

MINUTES = 15
ROWS = {"digits": {"image": np.zeros((1, 1, 8, 8), np.float32)}, "fragile": {"x": np.ones((1, 3), np.float32)}}
"""An input of each model."""

MODELS = tuple(ROWS)
DEADLINE_S = 10.0
PAUSE_S = 5.0
ONE_BY_HTTP = 4
"""One caller in so many asks by HTTP."""

BOUND_S = 10.0 + DEADLINE_S
"""Within it the server has recovered: ten seconds after the longest deadline under way."""

BOUND_BYTES = 6 << 30
"""Two workers with a gibibyte for requests and what loading takes, twice during a reload, and two JVMs."""

FILES = 1024
SCRATCH_MIB = 192
SETTINGS = {"CUTAWAY_REQUEST_MEMORY_BYTES": str(1 << 30), "CUTAWAY_METRICS_ADDRESS": "127.0.0.1:0"}


def main() -> None:
    """Runs it, and says what was found in figures."""
    parser = argparse.ArgumentParser(prog="chaos", description="Everything goes wrong, and nobody notices.")
    parser.add_argument("seconds", nargs="?", type=float, default=60.0 * MINUTES)
    parser.add_argument("--only", action="append", choices=list(FAULTS), help="this fault; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, _scene(Path(name)) as scene:
        faults = _run(scene, arguments.seconds, arguments.only or list(FAULTS), random.Random(arguments.seed))
    if faults:
        sys.exit("\n".join(["broken promises:", *faults[:20]]))


def _run(scene: Scene, seconds: float, names: Sequence[str], order: random.Random) -> list[str]:
    recovered: defaultdict[str, list[float]] = defaultdict(list)
    broken: list[str] = []
    end = time.monotonic() + seconds
    address, http_address = scene.server.address, scene.server.http_address
    with (
        ca.Client(address, token=TOKEN) as client,
        ca.Client(http_address, token=TOKEN, transport="connect") as by_http,
    ):
        clients = [by_http, *[client] * (ONE_BY_HTTP - 1)]
        record = Callers(clients, list(_questions(scene, client)), DEADLINE_S, tries_again=True)
        observer = Observer(scene.server, MODELS)
        with beside(observer.look, *record.asking()):
            while time.monotonic() < end:
                for name in order.sample(names, len(names)):
                    try:
                        FAULTS[name](scene)
                    except Exception as failure:
                        broken.append(f"{name}: {type(failure).__name__}: {failure}")
                    recovered[name].append(_recovery(scene))
                    print(f"    {name}: recovered in {recovered[name][-1]:.1f} s", flush=True)
                    time.sleep(PAUSE_S)
                    if time.monotonic() > end:
                        break
    lies = observer.untrue(record.answered, DEADLINE_S)
    times = {name: (len(each), max(each)) for name, each in recovered.items()}
    counts = ", ".join(f"{count} {what}" for what, count in sorted(record.outcomes.items()))
    wrong, lost = record.outcomes["wrong"], record.outcomes["lost"]
    print(f"calls of {CALLERS} callers in {seconds:.0f} s: {counts}; {wrong} wrong, {lost} lost")
    print("; ".join(f"{name} {count} times, recovered within {most:.1f} s" for name, (count, most) in times.items()))
    print(f"health: {len(observer.samples)} samples, {len(lies)} of them untrue")
    print(f"memory of all processes: {observer.most_bytes >> 20} MiB at most; the bound is {BOUND_BYTES >> 20}")
    broken += record.faults + [f"untrue: {lie}" for lie in lies]
    broken += [f"{name} took {slowest:.1f} s" for name, (_, slowest) in times.items() if slowest > BOUND_S]
    return broken + (["memory"] if observer.most_bytes > BOUND_BYTES else [])


def _questions(scene: Scene, client: ca.Client) -> Iterator[Request]:
    """All that digits can be asked, each followed by one to the model that faults hit, every other one in pieces."""
    x = {"x": np.linspace(-1, 1, 3, dtype=np.float32).reshape(1, 3)}
    fragile = []
    for asked in ({"captures": "linear"}, {"captures": "wide", "stream": True}):
        answer = flat(client.inspect("fragile", x, timeout=600.0, **asked))
        fragile.append(Request(f"{asked}", "fragile", x, asked, answer))
    for number, request in enumerate(requests(small_models(scene.store)[0])[0]):
        yield request
        yield fragile[number % 2]


def _recovery(scene: Scene) -> float:
    """Returns the seconds until each model has answered a new call; the server must live."""
    start = time.monotonic()
    for model in MODELS:
        while not _answers(scene, model):
            assert scene.server.process.poll() is None, "the server has ended"
            time.sleep(0.1)
    return time.monotonic() - start


def _answers(scene: Scene, model: str) -> bool:
    with ca.Client(scene.server.address, token=TOKEN) as client, suppress(ca.CutawayError):
        return bool(client.inspect(model, ROWS[model], timeout=2.0).predictions)
    return False


@contextmanager
def _scene(directory: Path) -> Iterator[Scene]:
    """A server with few file descriptors, a small disk for temporary files, and tokens."""
    store = directory / "store"
    store.mkdir()
    package_digits(store)
    package(store, "fragile", f"{ADAPTERS / 'fragile_adapter.py'}:FragileAdapter")
    scopes = dict.fromkeys((*MODELS, "added"), token_files.EVERY)
    os.environ |= SETTINGS
    entries = [token_files.entry(token, scopes) for token in (TOKEN, OTHER)]
    os.environ["CUTAWAY_TOKENS"] = str(token_files.write(directory / "tokens.toml", *entries))
    with _small_disk(directory / "scratch") as scratch:
        os.environ["TMPDIR"] = str(directory / "scratch")
        with serving(store, directory / "logs", "--http=127.0.0.1:0") as server:
            psutil.Process(server.process.pid).rlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
            yield Scene(server, store, scratch)


@contextmanager
def _small_disk(path: Path) -> Iterator[Path | None]:
    """Mounts a small file system for temporary files, where that is allowed."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SCRATCH_MIB}m", "tmpfs", str(path)]
    if subprocess.run(mount, stderr=subprocess.DEVNULL).returncode:
        print("    no file system can be mounted here: the fault 'full scratch disk' is left out", flush=True)
        yield None
        return
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


if __name__ == "__main__":
    main()
