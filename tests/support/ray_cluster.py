"""A Ray cluster, in a process of its own.

Ray forks to start its processes, and a fork hangs now and then in a process that has threads of gRPC, such as one that
has run other tests.

    python -m tests.support.ray_cluster

It prints the cluster's address, takes the last node away for each line that it reads, and ends with its input.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from cutaway.jobs.engines.ray import import_ray

STORE_BYTES = 100 << 20
AGENTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")


class RayCluster:
    """A cluster of three nodes, one of which only leads; the others have one CPU each."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address = self._read()

    def lose_node(self) -> None:
        """Kills the last node, and returns when it is gone."""
        assert self._process.stdin
        print(file=self._process.stdin, flush=True)
        self._read()

    def processes(self) -> list[psutil.Process]:
        """All of its nodes."""
        return psutil.Process(self._process.pid).children(recursive=True)

    def _read(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline().strip()
        assert line, "the cluster did not start, or died: see its output above"
        return line


@contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """Runs a cluster while the block runs."""
    command = [sys.executable, "-m", "tests.support.ray_cluster"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield RayCluster(process)


def _ports() -> dict[str, int]:
    """Returns free ports for a node. For those that its agents choose, Ray waits 15 s, and then the node is dead
    (https://github.com/ray-project/ray/issues/65983).
    """
    with ExitStack() as opened:
        free = [opened.enter_context(socket.socket()) for _ in AGENTS]
        for each in free:
            each.bind(("", 0))
        return {name: each.getsockname()[1] for name, each in zip(AGENTS, free)}


def _main() -> None:
    import_ray()
    from ray.cluster_utils import Cluster

    options = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **options, **_ports()})
    for _ in range(2):
        cluster.add_node(num_cpus=1, **options, **_ports())
    print(cluster.address, flush=True)
    for _ in sys.stdin:
        cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
        print("lost", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    _main()
