"""A model store that changes while it is served: new versions take over without a failed call."""

from __future__ import annotations

import resource
import shutil
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import cutaway as ca
from cutaway.contract.results import ModelName
from tests.conftest import ADAPTERS
from tests.support.health import health
from tests.support.processes import leaders, worker
from tests.support.prometheus import scraped
from tests.support.serving import Server, package, serving
from tests.support.waiting import PATIENCE_S, until

CALLERS = 4
TINY = f"{ADAPTERS / 'tiny_adapter.py'}:Tiny"
X = {"x": np.ones((1, 3), np.float32)}


def version(client: ca.Client, model: str = "tiny") -> str:
    """Of the model that answers."""
    return client.inspect(model, X, timeout=300).provenance.version


def alone(server: Server, client: ca.Client, engine: str) -> bool:
    """Whether nothing that starts workers is left of before: of `processes`, each archive has one."""
    return len(leaders(server)) == (len(client.list_models()) if engine == "processes" else 1)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torchserve", "processes", "ray"])
def test_a_new_version_takes_over_without_a_failed_call(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers go on calling while an archive is put into the store: not one call fails, those that name no version get
    the new one once it answers, those that name the old one keep it, and of the processes before nothing is left. An
    archive that cannot be loaded changes nothing. Archives that go, go. A normal end leaves no temporary file."""
    monkeypatch.setenv("CUTAWAY_RAY_CPUS", "0.1")
    scratch = tempfile.mkdtemp(dir="/tmp")  # short enough for the sockets of each engine
    monkeypatch.setenv("TMPDIR", scratch)
    store = tmp_path / "store"
    package(store, "tiny", TINY)
    package(tmp_path / "later", "tiny", TINY, version="1.1")
    over = threading.Event()
    with serving(store, tmp_path / "logs", f"--engine={engine}") as server, ca.Client(server.address) as client:
        seen: list[set[str]] = [set() for _ in range(CALLERS)]

        def call(number: int) -> None:
            while not over.is_set():
                seen[number].add(version(client, "tiny/versions/1.0" if number else "tiny"))

        with ThreadPoolExecutor(CALLERS) as callers:
            calling = [callers.submit(call, number) for number in range(CALLERS)]
            try:
                shutil.copy(tmp_path / "later" / "tiny-1.1.mar", store)
                until(lambda: "1.1" in seen[0])
                until(lambda: alone(server, client, engine))
            finally:
                over.set()
            for each in calling:
                each.result()
        assert seen == [{"1.0", "1.1"}, *[{"1.0"}] * (CALLERS - 1)]
        assert [each.version for each in client.list_models()] == ["1.0", "1.1"]

        (store / "broken-1.0.mar").write_bytes(b"no archive")
        (store / "tiny-1.0.mar").unlink()
        until(lambda: [each.version for each in client.list_models()] == ["1.1"])
        assert version(client) == "1.1"
        with pytest.raises(ca.NotFound, match=r"served in 1\.1, not in 1\.0"):
            version(client, "tiny/versions/1.0")

        (store / "tiny-1.1.mar").unlink()
        until(lambda: _says(server, "the previous models stay in service"))
        assert version(client) == "1.1"
        assert list(Path(scratch).glob("cutaway-*"))
        assert server.stop() == 0
    assert not list(Path(scratch).glob("cutaway-*"))
    shutil.rmtree(scratch)


@pytest.mark.slow
def test_a_server_that_can_open_no_file_keeps_what_serves(tmp_path: Path) -> None:
    """Without file descriptors the store cannot be watched nor read; calls are answered all the while, the operator is
    told, and once there are some again, the new version takes over by itself."""
    store = tmp_path / "store"
    package(store, "tiny", TINY)
    with serving(store, tmp_path / "logs") as server, ca.Client(server.address) as client:
        assert version(client) == "1.0"
        pid = server.process.pid
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        package(store, "tiny", TINY, version="1.1")
        until(lambda: _says(server, "the model store could not be loaded (OSError: "))
        assert version(client) == "1.0"
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        until(lambda: version(client) == "1.1")
        assert server.stop() == 0


_SEEDED = """
import os, sys
import torch
from torch import nn
from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec

class Layer(nn.Linear):
    def __init__(self):
        super().__init__(3, 2)

    def forward(self, x):
        return super().forward(x)

class Seeded(Adapter):
    inputs = (InputSpec("x", "float32", (-1, 3)),)

    def build(self):
        torch.manual_seed({seed})
        {code}
        return Layer()
"""


def seeded(tmp_path: Path, seed: int, code: str = "pass") -> bytes:
    """The bytes of an archive of the model ``tiny`` whose weights tell its seed, and that runs ``code`` on loading."""
    directory = tmp_path / f"seed-{seed}"
    directory.mkdir()
    (directory / "seeded.py").write_text(_SEEDED.format(seed=seed, code=code))
    return package(directory, "tiny", f"{directory / 'seeded.py'}:Seeded").read_bytes()


def weights(client: ca.Client) -> str:
    """Of the model that answers."""
    return client.inspect("tiny", X, timeout=PATIENCE_S).provenance.weights_sha256


def series(address: str, name: str) -> dict[tuple[str, ...], float]:
    """The values of a metric by its labels' values."""
    samples = scraped(address).items()
    return {tuple(sorted(dict(labels).values())): value for (each, labels), value in samples if each == name}


def states(client: ca.Client) -> dict[str, tuple[str, bool]]:
    """The archives that are not served."""
    return {item.archive: (str(item.state), item.previous_serves) for item in client.list_unserved()}


@pytest.mark.parametrize(
    ("engine", "to_the_end"),
    [
        ("processes", False),
        *(pytest.param(name, True, marks=pytest.mark.slow) for name in ("processes", "torchserve", "ray")),
    ],
)
def test_a_reload_takes_nothing_away(
    tmp_path: Path, engine: str, to_the_end: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model goes on serving while its archive is half copied, replaced by one that ends its process or does not load,
    and after its worker has died meanwhile. What else is new in the store is served. The state is seen in the list of
    models, in health checks and in metrics, and the next sound archive takes over."""
    monkeypatch.setenv("CUTAWAY_RAY_CPUS", "0.1")
    monkeypatch.setenv("CUTAWAY_METRICS_ADDRESS", "127.0.0.1:0")
    store, archive = tmp_path / "store", tmp_path / "store" / "tiny-1.0.mar"
    package(store, "other", TINY)
    first, second, third = (seeded(tmp_path, seed) for seed in range(3))
    archive.write_bytes(first)
    with serving(store, tmp_path / "logs", f"--engine={engine}") as server, ca.Client(server.address) as client:
        (metrics,) = (line.split("/")[2] for line in server.said if line.startswith("metrics: "))
        sha = weights(client)
        assert states(client) == {}

        archive.write_bytes(second[: len(second) // 2])  # the copy stalls
        until(lambda: states(client) == {"tiny-1.0.mar": ("NOT_WHOLE", True)})
        assert (weights(client), health(server.address, "tiny")) == (sha, "SERVING")
        assert series(metrics, "cutaway_archive_unserved") == {("NOT_WHOLE", "tiny-1.0.mar"): 1}
        assert series(metrics, "cutaway_model_serving")[("1.0", "tiny")] == 1

        archive.write_bytes(seeded(tmp_path, 10, "os._exit(3)"))
        package(store, "other", TINY, version="2.0")
        until(lambda: ModelName("other", "2.0") in client.list_models())  # at once, whatever tiny does
        until(lambda: states(client) == {"tiny-1.0.mar": ("FAILED", True)})
        assert (weights(client), health(server.address, "tiny")) == (sha, "SERVING")
        if to_the_end:
            until(lambda: alone(server, client, engine))
            worker(server, "tiny").kill()  # a new one starts from the copy
            assert weights(client) == sha

            archive.write_bytes(second[: len(second) // 2])
            until(lambda: states(client) == {"tiny-1.0.mar": ("NOT_WHOLE", True)})
            with archive.open("ab") as copy:
                copy.write(second[len(second) // 2 :])
            until(lambda: weights(client) != sha)
            until(lambda: alone(server, client, engine))
            assert states(client) == {}
            sha = weights(client)

            archive.write_bytes(seeded(tmp_path, 11, "raise FileNotFoundError('the weights went missing')"))
            until(lambda: states(client) == {"tiny-1.0.mar": ("FAILED", True)})
            (store / "other-2.0.mar").unlink()  # on purpose
            until(lambda: ModelName("other", "2.0") not in client.list_models())
            until(lambda: ("2.0", "other") not in series(metrics, "cutaway_model_serving"))
            assert (weights(client), states(client)) == (sha, {"tiny-1.0.mar": ("FAILED", True)})
            archive.write_bytes(third)
            until(lambda: weights(client) != sha)
            until(lambda: alone(server, client, engine))
            assert states(client) == {}
        assert not any("never retrieved" in line or "Traceback" in line for line in server.logged)
        assert server.stop() == 0


def workers_of(server: Server, *models: str) -> dict[str, int]:
    return {model: worker(server, model).pid for model in models}


@pytest.mark.slow
def test_a_reload_loads_what_has_changed(tmp_path: Path) -> None:
    """With a keeper for each archive, other workers stay: when a model is replaced, comes or goes. Only with a quarter
    more workers than the memory was divided among, it is divided anew."""
    store = tmp_path / "store"
    for model in ("one", "two", "three", "four"):
        package(store, model, TINY)
    with serving(store, tmp_path / "logs", "--engine=processes") as server, ca.Client(server.address) as client:
        before = workers_of(server, "one", "two", "three", "four")

        package(store, "one", TINY)
        until(lambda: workers_of(server, "one") != {"one": before["one"]})
        (store / "four-1.0.mar").unlink()
        until(lambda: len(client.list_models()) == 3)
        for model in ("five", "six"):
            package(store, model, TINY)
        until(lambda: {ModelName("five", "1.0"), ModelName("six", "1.0")} <= {*client.list_models()})
        assert workers_of(server, "two", "three") == {model: before[model] for model in ("two", "three")}
        assert _divisions(server) == 1

        package(store, "seven", TINY)
        until(lambda: ModelName("seven", "1.0") in client.list_models())
        until(lambda: alone(server, client, "processes"))
        after = workers_of(server, "one", "two", "three", "five", "six", "seven")
        assert {*after.values()}.isdisjoint(before.values())
        package(store, "eight", TINY)
        until(lambda: ModelName("eight", "1.0") in client.list_models())
        assert workers_of(server, *after) == after
        assert _divisions(server) == 2


def _divisions(server: Server) -> int:
    """How often the memory for requests was divided."""
    return sum('"event": "memory: ' in line or line.startswith("memory: ") for line in server.logged)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torchserve", "processes"])
def test_an_archive_may_have_any_file_name(tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is an option, a list or an assignment to TorchServe, or that the locale cannot write; at the start
    and in a reload."""
    monkeypatch.setenv("LANG", "C")
    monkeypatch.setenv("LC_ALL", "C")
    names = ["-f", "a=b,größe", "..x", "'; touch x; '"]
    for number, name in enumerate(names):
        package(tmp_path, f"tiny{number}", TINY)
        (tmp_path / f"tiny{number}-1.0.mar").rename(tmp_path / f"{name}.mar")
    store = tmp_path / "store"
    store.mkdir()
    for name in names[:2]:
        (tmp_path / f"{name}.mar").rename(store / f"{name}.mar")
    with serving(store, tmp_path / "logs", f"--engine={engine}") as server, ca.Client(server.address) as client:
        for name in names[2:]:
            (tmp_path / f"{name}.mar").rename(store / f"{name}.mar")
        until(lambda: len(client.list_models()) == len(names))
        assert [version(client, f"tiny{number}") for number in range(len(names))] == ["1.0"] * len(names)


def _says(server: Server, words: str) -> bool:
    return any(words in line for line in server.logged)
