"""Engines, which write the shards of a job: in this process, through calls to a service, or as tasks of a Ray cluster.

All of them give the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from cutaway.jobs.shards import JobModel, Task, Tick, Written
from cutaway.jobs.spec import Job


class JobEngine(NamedTuple):
    """A way to write shards.

    Attributes:
        opened: opens the job's model for as long as the block runs.
        work: writes shards of a task in any order, and yields their counts; the model is the one that was opened to
            probe the schema.
    """

    opened: Callable[[Job], AbstractContextManager[JobModel]]
    work: Callable[[Task, JobModel, Sequence[int], Tick], Iterator[Written]]


def engine_of(job: Job) -> JobEngine:
    """Returns the engine that ``job`` names; imports torch only for an engine that runs the model in this process."""
    if job.engine.kind == "service":
        from cutaway.jobs.engines import service

        return JobEngine(service.opened, service.work)
    from cutaway.jobs.engines import local, ray

    return JobEngine(local.opened, ray.work if job.engine.kind == "ray" else local.work)
