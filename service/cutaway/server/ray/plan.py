"""The plan of workers on a Ray cluster, which the gateway passes to the process that starts them."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from cutaway.contract.results import ModelName
from cutaway.server.settings import Settings

_VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no usage reports
    "RAY_raylet_start_wait_time_s": "600",
    "RAY_gcs_server_port_wait_time_s": "180",
    "RAY_agent_register_timeout_ms": "600000",
    "RAY_worker_register_timeout_seconds": "600",
}
"""Environment variables that Ray reads when it is imported.

Ray's own processes get minutes to start: the default of 30 to 100 seconds is too short on two busy cores.
"""


def prepare() -> None:
    """Sets the variables that are not set; has no effect after Ray is imported."""
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)


CANNOT_LOAD = "cutaway cannot load the model: "
"""The first words in the error of a replica whose model cannot be loaded."""

CALLS, WAITING = "calls", "waiting"
"""The figures that replicas report: the number of their calls under way, and of calls that wait in the gateway."""


def workers_wanted(context: Any) -> tuple[int, dict[str, Any]]:
    """Returns the number of workers for the calls of a `ray.serve.config.AutoscalingContext`.

    It is an autoscaling policy of Ray Serve, whose controller runs it and applies limits and delays to the result. All
    replicas report the same waiting calls, some of them late.
    """
    reported = context.aggregated_metrics or {}
    calls = sum(reported.get(CALLS, {}).values()) + max(reported.get(WAITING, {}).values(), default=0)
    return math.ceil(calls / context.config.target_ongoing_requests), {}


class PlannedModel(NamedTuple):
    """A model to serve, and how many workers it may have.

    Attributes:
        name: the model.
        archive: its archive.
        least: the smallest number of workers.
        most: the largest number of workers.
    """

    name: ModelName
    archive: Path
    least: int
    most: int


class RayPlan(BaseModel):
    """The workers to start.

    Attributes:
        run: the prefix of the names of the Serve applications, unique to this engine.
        models: the models.
        sockets: the directory in which the gateway looks for workers.
        settings: the cluster, and the workers' resources and times.
    """

    run: str
    models: tuple[PlannedModel, ...]
    sockets: Path
    settings: Settings

    @property
    def archive_bytes(self) -> int:
        """The size of all archives, in bytes."""
        return sum(model.archive.stat().st_size for model in self.models)
