"""Workers on a Ray cluster of two nodes that have one CPU each: as many as the load needs, and no call lost when there
are fewer."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

import numpy as np
import psutil
import pytest
import torch
from torch import nn

import cutaway as ca
from cutaway.contract.tensors import Array
from tests.conftest import ADAPTERS
from tests.support.adapters.fragile_adapter import SLOW, FragileAdapter
from tests.support.processes import REPLICA
from tests.support.ray_cluster import RayCluster, ray_cluster
from tests.support.rounding import SMALL, close
from tests.support.serving import Server, package, serving
from tests.support.waiting import PATIENCE_S, until

CALLERS = 32
MOST = 4
SETTINGS = {
    "CUTAWAY_RAY_CPUS": "0.5",
    "CUTAWAY_RAY_MAX_WORKERS": str(MOST),
    "CUTAWAY_RAY_CALLS_PER_WORKER": str(CALLERS / MOST),
    "CUTAWAY_RAY_DOWNSCALE_DELAY_S": "3",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose calls take a second, and one that cannot be loaded."""
    directory = tmp_path_factory.mktemp("store")
    package(directory, "fragile", f"{ADAPTERS / 'fragile_adapter.py'}:FragileAdapter")
    package(directory, "broken", f"{ADAPTERS / 'tiny_adapter.py'}:Broken")
    return directory


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as running:
        yield running


@pytest.fixture(scope="module")
def server(cluster: RayCluster, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**SETTINGS, "CUTAWAY_RAY_ADDRESS": cluster.address}.items():
            patch.setenv(name, value)
        with serving(store, tmp_path_factory.mktemp("ray") / "logs", "--engine=ray") as running:
            yield running


def workers(cluster: RayCluster, model: str = "fragile") -> int:
    """How many of a model run on the cluster."""
    return sum(_is_worker(each, model) for each in cluster.processes())


def _is_worker(process: psutil.Process, model: str) -> bool:
    with suppress(psutil.Error):
        return any(word.startswith(REPLICA) and f"-{model}-" in word for word in process.cmdline()[:1])
    return False


class Load:
    """Callers that never stop, and compare what they get."""

    def __init__(self, callers: int) -> None:
        self.over = threading.Event()
        self.answered = [0] * callers
        self.slowest_s = 0.0
        self._linear = cast(nn.Linear, FragileAdapter().build().linear)

    def call(self, client: ca.Client, number: int) -> None:
        """Calls with rows of this caller's own."""
        while not self.over.is_set():
            row: Array = np.array([[SLOW, number, self.answered[number] % 50]], np.float32)
            began = time.monotonic()
            found = client.inspect("fragile", {"x": row}, timeout=PATIENCE_S).predictions["output"]
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            assert close(found, self._linear(torch.from_numpy(row)).detach().numpy(), SMALL)
            self.answered[number] += 1

    def go_on(self, calls: int) -> None:
        """Waits until each caller has got so many more answers."""
        enough = [answered + calls for answered in self.answered]
        until(lambda: all(now >= then for now, then in zip(self.answered, enough)))


@contextmanager
def load(server: Server, callers: int) -> Iterator[Load]:
    """So many callers while the block runs; at its end, all have been answered, and rightly."""
    made = Load(callers)
    with ca.Client(server.address) as client, ThreadPoolExecutor(callers) as threads:
        calling = [threads.submit(made.call, client, number) for number in range(callers)]
        try:
            yield made
        finally:
            made.over.set()
        for each in calling:
            each.result()


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_says_why(server: Server) -> None:
    """As with other engines: its callers and the operator get the reason, and the other model serves."""
    assert server.said[0] == "serving fragile 1.0"
    assert any("not served: broken 1.0: ADAPTER_INVALID: " in line for line in server.logged)
    with ca.Client(server.address) as client, pytest.raises(ca.NotFound, match="the weights went missing"):
        client.inspect("broken", {"x": np.zeros((1, 3), np.float32)})


@pytest.mark.slow
def test_workers_follow_the_load(server: Server, cluster: RayCluster) -> None:
    """One without load, four with 32 callers, one again with a single caller; every call is answered, and rightly."""
    assert workers(cluster) == 1
    with load(server, CALLERS) as many:
        until(lambda: workers(cluster) == MOST)
        many.go_on(1)
    with load(server, 1) as few:
        until(lambda: workers(cluster) == 1)
        few.go_on(1)
    print(f"{sum(many.answered)} calls under load, the slowest {many.slowest_s:.1f} s; {few.answered[0]} while")
    print(f"workers ended, the slowest {few.slowest_s:.1f} s")


@pytest.mark.slow
def test_a_node_that_dies_loses_no_call(server: Server, cluster: RayCluster) -> None:
    """Half of the workers are gone at once, amid their calls: every call is answered, and rightly."""
    with load(server, CALLERS) as callers:
        until(lambda: workers(cluster) == MOST)
        callers.go_on(1)
        cluster.lose_node()
        assert workers(cluster) < MOST
        callers.go_on(2)
    print(f"{sum(callers.answered)} calls, the slowest {callers.slowest_s:.1f} s")


@pytest.mark.slow
def test_a_gateway_that_is_killed_leaves_no_workers(cluster: RayCluster, tmp_path: Path) -> None:
    """They end by themselves a minute later: Serve would keep them."""
    store = tmp_path / "store"
    package(store, "tiny", f"{ADAPTERS / 'tiny_adapter.py'}:Tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUTAWAY_RAY_ADDRESS", cluster.address)
        patch.setenv("CUTAWAY_RAY_CPUS", "0.1")
        with serving(store, tmp_path / "logs", "--engine=ray") as running:
            assert workers(cluster, "tiny") == 1
            running.process.kill()
            running.process.wait()
            until(lambda: workers(cluster, "tiny") == 0)


def test_an_engine_without_ray_says_what_to_install(tmp_path: Path) -> None:
    """In one line."""
    without = "import sys; sys.modules['ray'] = None; from cutaway.cli import main; main()"
    command = [sys.executable, "-c", without, "serve", "--model-store", str(tmp_path), "--engine", "ray"]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 2
    assert found.stderr.strip().splitlines() == ["ray is missing; this needs: pip install 'cutaway[ray]'"]
