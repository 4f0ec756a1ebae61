"""The environment variables of processes that run models."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cutaway.server.worker_protocol import POOL_BYTES, POOL_IN, WORKERS

if TYPE_CHECKING:
    from cutaway.server.memory import Shares

WAITING = {"OMP_WAIT_POLICY": "ACTIVE", "GOMP_SPINCOUNT": "5000"}
"""Variables that make the threads of GNU's OpenMP, which torch has on Linux, spin for a sixth of a millisecond before
they sleep; for a fifth of that where a process has more of them than cores, as a worker's model threads have.

That is longer than the gap between two operations of a small network. With the policy ``PASSIVE``, the threads of such
a process sleep at once: an LSTM of 500 steps then took ten times as long on a virtual machine, where waking is slow.
Threads that spin as long as OpenMP's default take the cores from other processes: three processes on two cores then
take five times as long. The price of these settings: three such LSTMs at once on two cores take 2.3 times as long as
with ``PASSIVE``.
"""


def wait_briefly(environment: MutableMapping[str, str]) -> None:
    """Sets `WAITING` in ``environment`` on Linux, unless one of its variables is set; has no effect after torch is
    imported."""
    if sys.platform == "linux" and not environment.keys() & WAITING.keys():
        environment.update(WAITING)


@dataclass(frozen=True)
class WorkerEnvironment:
    """The settings that workers get through their environment.

    Attributes:
        max_message_bytes: the largest request and the largest reply.
        workers_in: the directory in which they listen, or None if nobody calls them directly.
        shares: of the memory for requests on a CPU, or None for no limit.
        replicas: the number of engines that share the cores.
        proofs_dir: where the outcomes of tests of models are kept, or None for what the environment says.
    """

    max_message_bytes: int
    workers_in: Path | None = None
    shares: Shares | None = None
    replicas: int = 1
    proofs_dir: Path | None = None

    def variables(self) -> dict[str, str]:
        """Returns the environment of this process with these settings, and with variables that make workers fast."""
        variables = dict(os.environ)
        variables["PYTHONUNBUFFERED"] = "1"  # so that the output of a model is in the log before it crashes
        variables["CUTAWAY_MAX_MESSAGE_BYTES"] = str(self.max_message_bytes)
        variables["CUTAWAY_REPLICAS"] = str(self.replicas)
        variables[WORKERS] = str(self.workers_in or "")
        if self.shares is not None:
            variables["CUTAWAY_REQUEST_MEMORY_BYTES"] = str(self.shares.own)
            variables[POOL_BYTES], variables[POOL_IN] = str(self.shares.pool), str(self.shares.directory)
        if self.proofs_dir is not None:
            variables["CUTAWAY_PROOFS_DIR"] = str(self.proofs_dir)
        wait_briefly(variables)
        # Large pages for large tensors: small pages took most of the time of a 64 MiB capture.
        variables.setdefault("THP_MEM_ALLOC_ENABLE", "1")
        if path := variables.get("PYTHONPATH"):  # the workers run in another directory
            variables["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, path.split(os.pathsep)))
        return variables
