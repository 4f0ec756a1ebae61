"""A job that is ready to be worked on, and who answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from cutaway.jobs.apart import Apart
from cutaway.jobs.folder import Folder
from cutaway.jobs.manifest import Manifest
from cutaway.jobs.sources import Source, open_source
from cutaway.jobs.spec import Data, Job
from cutaway.requests import InspectRequest
from cutaway.results import InspectResult, ModelDetail


class Model(Protocol):
    """A model that answers, wherever it is."""

    @property
    def detail(self) -> ModelDetail:
        """What it takes and where it comes from."""
        ...

    def ask(self, request: InspectRequest) -> InspectResult:
        """Its answer to one question.

        Raises:
            CutawayError: the question has none.
        """
        ...


class Written(NamedTuple):
    """A shard that is on disk.

    Attributes:
        shard: its number.
        rows: how many rows it has.
        bad: how many of them are bad.
        verdicts: by explanation, how many rows each verdict was found about.
    """

    shard: int
    rows: int
    bad: int
    verdicts: dict[str, dict[str, int]]


Tick: TypeAlias = Callable[[int], None]
"""Told of rows that were asked about, as they are."""


@dataclass(frozen=True)
class Task:
    """A job that is ready to be worked on; it travels to other processes.

    Attributes:
        job: the spec.
        manifest: what it comes from and the columns of its tables.
    """

    job: Job
    manifest: Manifest

    @property
    def folder(self) -> Folder:
        """Where results go."""
        return Folder(self.job.output.folder)

    @property
    def apart(self) -> Apart:
        """Where its captures go that stand in no table."""
        return Apart(self.folder, self.manifest)


def source_of(job: Job) -> Source:
    """The job's data set, opened."""
    return open_source(job.data.path, job.data.format) if isinstance(job.data, Data) else job.data
