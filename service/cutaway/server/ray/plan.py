"""The plan of workers on a Ray cluster, which the gateway passes to the process that starts them."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cutaway.contract.results import ModelName

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


@dataclass(frozen=True)
class PlannedModel:
    """A model to serve, and how many workers it may have.

    Attributes:
        name: the model.
        archive: the path of its archive.
        least: the smallest number of workers.
        most: the largest number of workers.
    """

    name: ModelName
    archive: str
    least: int
    most: int


@dataclass(frozen=True)
class RayPlan:
    """The workers to start.

    Attributes:
        run: the prefix of the names of the Serve applications, unique to this engine.
        models: the models.
        sockets: the directory in which the gateway looks for workers.
        address: the Ray cluster; empty for a new one on this machine.
        cpus: CPUs of a worker, as Ray counts them.
        gpus: GPUs of a worker.
        calls_per_worker: calls under way in a worker, above which there should be more workers.
        downscale_delay_s: how long fewer workers must be enough before one ends.
        hang_s: how long a worker may take after the latest deadline of its calls.
        grace_s: how long calls under way may take to finish in a worker that shall end.
    """

    run: str
    models: tuple[PlannedModel, ...]
    sockets: str
    address: str
    cpus: float
    gpus: float
    calls_per_worker: float
    downscale_delay_s: float
    hang_s: float
    grace_s: float

    def encode(self) -> str:
        """Returns the plan as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> RayPlan:
        """Returns the plan in JSON; inverse of `encode`."""
        fields = json.loads(text)
        models = (PlannedModel(ModelName(**model.pop("name")), **model) for model in fields.pop("models"))
        return cls(models=tuple(models), **fields)

    @property
    def archive_bytes(self) -> int:
        """The size of all archives, in bytes."""
        return sum(Path(model.archive).stat().st_size for model in self.models)
