"""What all engines share: the model of a job, and the task that they work on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from cutaway.jobs.folder import Folder
from cutaway.jobs.manifest import Manifest
from cutaway.jobs.sources import Source, open_source
from cutaway.jobs.spec import Data, Job
from cutaway.jobs.zarr_store import CaptureStore
from cutaway.requests import InspectRequest
from cutaway.results import InspectResult, ModelDetail


class Model(Protocol):
    """A model in this process or behind a service."""

    @property
    def detail(self) -> ModelDetail:
        """The model's inputs, outputs and provenance."""

    def inspect(self, request: InspectRequest) -> InspectResult:
        """Returns the result of ``request``.

        Raises:
            CutawayError: the request cannot be run.
        """


class Written(NamedTuple):
    """The counts of a shard on disk.

    Attributes:
        rows: the number of its rows.
        bad: the number of bad rows among them.
        verdicts: for each attribution, the number of rows with each verdict.
    """

    rows: int
    bad: int
    verdicts: dict[str, dict[str, int]]


Tick: TypeAlias = Callable[[int], None]
"""Called with a number of rows when these have been computed."""


@dataclass(frozen=True)
class Task:
    """A job with its manifest; engines send it to other processes.

    Attributes:
        job: the spec.
        manifest: the provenance of the results, and the columns of the tables.
    """

    job: Job
    manifest: Manifest

    @property
    def folder(self) -> Folder:
        """The folder of the results."""
        return Folder(self.job.output.folder)

    @property
    def captures(self) -> CaptureStore:
        """The Zarr arrays of captures that are not in the tables."""
        return CaptureStore(self.folder, self.manifest)


def source_of(job: Job) -> Source:
    """Opens the job's data set."""
    return open_source(job.data.path, job.data.format) if isinstance(job.data, Data) else job.data
