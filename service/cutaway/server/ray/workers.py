"""Workers on a Ray cluster: a keeper on this machine has Ray Serve start them, and passes calls on to them."""

from __future__ import annotations

import secrets
import sys
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import ClassVar

from cutaway.contract.results import ModelName
from cutaway.server.archive import reader
from cutaway.server.processes.process_group import Leader, led
from cutaway.server.processes.worker_processes import Kept
from cutaway.server.ray.plan import PlannedModel, RayPlan
from cutaway.server.settings import Settings
from cutaway.server.unpacked import Unpacked


@dataclass(eq=False)
class RayWorkers(Kept):
    """The keeper of the workers on a cluster; a cluster that it starts itself ends with it.

    The archives' number of workers is the smallest of each model.

    Args:
        settings: the cluster, and the CPUs and GPUs of a worker.
        sockets: the directory in which the gateway looks for workers.
    """

    _: KW_ONLY
    settings: Settings
    sockets: Path
    _run: str = field(init=False, default_factory=lambda: f"cutaway-{secrets.token_hex(4)}")

    name = "the process that starts workers on Ray"
    log_name: ClassVar = "ray.log"
    end_s: ClassVar = 10.0
    longest_name: ClassVar = len("/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store")  # Ray's

    def _launch(self, directory: Path) -> Leader:
        models = tuple(self._planned(name, each, directory) for name, each in self.archives.items())
        plan = RayPlan(run=self._run, models=models, sockets=self.sockets, settings=self.settings).model_dump_json()
        # Run as a module, not imported: it imports Ray.
        command = [sys.executable, "-m", "cutaway.server.ray.keeper", plan]
        return led(command, directory, self.environment.variables(), self._log.path)

    def _planned(self, name: ModelName, archive: Unpacked, directory: Path) -> PlannedModel:
        packed = directory / f"{archive.directory.name}.mar"
        reader.pack(archive.directory, packed)
        return PlannedModel(name, packed, archive.workers, max(archive.workers, self.settings.ray_max_workers or 0))

    def has_worker(self, pid: int) -> bool:
        """Returns whether ``pid`` is that of a worker on the cluster."""
        return pid == 0

    def end_worker(self, pid: int) -> None:
        """Does nothing: Ray Serve finds by itself that a worker hangs (`Replica.check_health`)."""
