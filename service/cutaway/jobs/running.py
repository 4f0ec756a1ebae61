"""A job from its spec to its folder: look at a few rows, write what is missing, say what was found."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cutaway.errors import Code, CutawayError, Reason, at, error
from cutaway.jobs.asked import asked
from cutaway.jobs.engines import ENGINES
from cutaway.jobs.feeding import named_columns
from cutaway.jobs.folder import Folder
from cutaway.jobs.looking import first_look
from cutaway.jobs.manifest import Manifest
from cutaway.jobs.shards import counted, no_room
from cutaway.jobs.sources import Source, check_columns
from cutaway.jobs.spec import Job
from cutaway.jobs.task import Model, Task, Written, source_of


@dataclass
class Summary:
    """What became of a job.

    Attributes:
        folder: where its results are.
        rows: how many rows are written, those of earlier runs too.
        bad: how many of them are bad.
        verdicts: by explanation, how many rows each verdict was found about.
        kept: shards that an earlier run had written.
        written: shards that this run wrote.
        seconds: how long this run took.
    """

    folder: Path
    rows: int = 0
    bad: int = 0
    verdicts: dict[str, dict[str, int]] = field(default_factory=dict)
    kept: int = 0
    written: int = 0
    seconds: float = 0.0

    def add(self, shard: Written) -> None:
        """Count ``shard`` in."""
        self.rows += shard.rows
        self.bad += shard.bad
        for name, counts in shard.verdicts.items():
            mine = self.verdicts.setdefault(name, {})
            for verdict, count in counts.items():
                mine[verdict] = mine.get(verdict, 0) + count


class Watcher(Protocol):
    """Who looks on while a job runs."""

    def begins(self, total: int, so_far: Summary) -> None:
        """Work begins: of ``total`` rows, those in ``so_far`` are there already."""
        ...

    def ticks(self, rows: int) -> None:
        """So many more rows were asked about; told from any thread."""
        ...

    def wrote(self, shard: Written, so_far: Summary) -> None:
        """A shard is on disk."""
        ...

    def ends(self) -> None:
        """No more comes, for good or bad."""
        ...


class _Nobody:
    def begins(self, total: int, so_far: Summary) -> None:
        pass

    def ticks(self, rows: int) -> None:
        pass

    def wrote(self, shard: Written, so_far: Summary) -> None:
        pass

    def ends(self) -> None:
        pass


def run(job: Job, watcher: Watcher | None = None) -> Summary:
    """Ask about every row that no earlier run has written, and write what was found.

    What is on disk is whole at any time; run again after whatever end, it goes on where it was.

    Args:
        job: the spec.
        watcher: is told how far it is.

    Raises:
        Unavailable: ``JOB_INTERRUPTED``: what has to be mended is not the job; run again then.
        FailedPrecondition: ``TOO_MANY_BAD_ROWS``, or ``FOLDER_TAKEN``, where the folder is another job's.
        CutawayError: the job is at fault.
    """
    start = time.monotonic()
    folder = Folder(job.output.folder)
    looking_on = watcher or _Nobody()
    source = checked_source(job)
    summary = Summary(folder.path)
    engine = ENGINES[job.engine.kind]
    with _interruptions(job), folder.held(), engine.opened(job) as model:
        task = _prepared(job, source, model, folder)
        _make_apart(task)
        missing = _missing(task, summary)
        _refuse_bad(job, summary)
        looking_on.begins(task.manifest.rows, summary)
        try:
            for shard in engine.work(task, model, missing, looking_on.ticks):
                summary.add(shard)
                summary.written += 1
                looking_on.wrote(shard, summary)
                _refuse_bad(job, summary)
        finally:
            looking_on.ends()
    summary.seconds = time.monotonic() - start
    return summary


def checked_source(job: Job) -> Source:
    """The job's data set, after a look at what needs no model: columns, rows, the question's words.

    Raises:
        CutawayError: the job is at fault.
    """
    asked(job.request, job.target)
    with at("data"):
        source = source_of(job)
        if not source.rows:
            raise error(Reason.INPUT_EMPTY, "the data set has no rows")
    for place, column in named_columns(job).items():
        with at(place):
            check_columns([column], source.columns)
    return source


def _prepared(job: Job, source: Source, model: Model, folder: Folder) -> Task:
    """The task, its manifest in the folder: that of the run before, where this is the same job."""
    manifest = Manifest.of(job, source.fingerprint, source.rows, model.detail)
    if folder.manifest.is_file():
        there = Manifest.load(folder)
        there.refuse_other(manifest)
        return Task(job, there)
    manifest = manifest.with_layout(first_look(job, source, model))
    manifest.save(folder)
    return Task(job, manifest)


def _make_apart(task: Task) -> None:
    """Have the arrays for captures; where one had gone, shards that are there had lost a part."""
    if task.apart.make():
        for path in task.folder.parts().values():
            path.unlink()


def _missing(task: Task, summary: Summary) -> list[int]:
    """The shards that are not there; those that are go into the ``summary``."""
    parts = task.folder.parts()
    for shard, path in parts.items():
        written = counted(path, shard)
        if written is not None and written.rows == len(task.manifest.range(shard)):
            summary.add(written)
            summary.kept += 1
        else:
            path.unlink()
    there = task.folder.parts()
    return [shard for shard in range(task.manifest.shards) if shard not in there]


def _refuse_bad(job: Job, summary: Summary) -> None:
    if job.max_bad_rows is not None and summary.bad > job.max_bad_rows:
        raise error(
            Reason.TOO_MANY_BAD_ROWS,
            f"{summary.bad} of {summary.rows} rows are bad, {job.max_bad_rows} are allowed; the column `error` in "
            f"{summary.folder} says why",
            "max_bad_rows",
        )


@contextmanager
def _interruptions(job: Job) -> Iterator[None]:
    """What is no fault of the job leaves the block as ``JOB_INTERRUPTED``."""
    try:
        yield
    except OSError as failure:
        raise no_room(failure) from None
    except CutawayError as failure:
        passing = failure.code == Code.UNAVAILABLE or failure.reason in (Reason.OVERLOADED, Reason.DEADLINE_EXCEEDED)
        if not passing or failure.reason == Reason.JOB_INTERRUPTED:
            raise
        where = f"{job.model.address}: " if job.model.address else ""
        what = f"{where}{failure.message} ({failure.reason}); what is written stays: run again to go on"
        raise error(Reason.JOB_INTERRUPTED, what, failure.field) from None
