"""What the gateway tells the process that starts workers on a Ray cluster."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from cutaway.results import ModelName


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
class Plan:
    """The workers to start.

    Attributes:
        run: begins the names of the Serve applications; of this engine and no other.
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
    def decode(cls, text: str) -> Plan:
        """Returns the plan in JSON; inverse of `encode`."""
        fields = json.loads(text)
        models = (PlannedModel(ModelName(**each.pop("name")), **each) for each in fields.pop("models"))
        return cls(models=tuple(models), **fields)

    @property
    def archive_bytes(self) -> int:
        """The size of all archives."""
        return sum(Path(model.archive).stat().st_size for model in self.models)
