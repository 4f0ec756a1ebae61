"""Who works on shards: this process, calls to a service, or actors of a Ray cluster. The same answers from all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeAlias

from cutaway.jobs.engines import local, ray, service
from cutaway.jobs.spec import Job
from cutaway.jobs.task import Model, Task, Tick, Written

Work: TypeAlias = Callable[[Task, Model, Sequence[int], Tick], Iterator[Written]]
"""Writes shards of a task, in whatever order, and says which; the model is that of the first look."""


class Engine(NamedTuple):
    """One way to have shards written.

    Attributes:
        opened: the job's model for as long as the block runs: for a first look at a few rows.
        work: writes the shards.
    """

    opened: Callable[[Job], AbstractContextManager[Model]]
    work: Work


ENGINES: dict[str, Engine] = {
    "local": Engine(local.opened, local.work),
    "service": Engine(service.opened, service.work),
    "ray": Engine(local.opened, ray.work),
}
"""By the ``kind`` of a job's engine."""
