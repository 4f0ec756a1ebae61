"""Runs a job: probes a few rows for the schema, writes the shards that are missing, and counts the results.

`plan` estimates the cost of a job instead.
"""

from __future__ import annotations

import io
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as parquet

from cutaway.contract.errors import Code, CutawayError, Reason, at, error
from cutaway.contract.requests import InspectRequest
from cutaway.contract.results import InspectResult, ModelDetail
from cutaway.jobs.batch_inputs import named_columns
from cutaway.jobs.columns import check_numeric, feature_columns
from cutaway.jobs.engines import engine_of
from cutaway.jobs.manifest import Folder, Manifest
from cutaway.jobs.shards import (
    TRANSIENT,
    JobModel,
    ShardWriter,
    Task,
    Written,
    probe_layout,
    read_counts,
    source_of,
    write_error,
)
from cutaway.jobs.sources import Source, check_columns
from cutaway.jobs.spec import Job, parse_request


@contextmanager
def shown_once() -> Iterator[None]:
    """Shows only the first of several warnings of the block with the same category and text.

    Captum repeats its warnings for every batch, and Python's own filter forgets what it has shown whenever
    `warnings.catch_warnings` is used anywhere.
    """
    show, shown = warnings.showwarning, set[tuple[type[Warning], str]]()

    def show_first(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        key = category, str(message)
        if key not in shown:
            shown.add(key)
            show(message, category, *where, **more)

    warnings.showwarning = show_first
    try:
        yield
    finally:
        warnings.showwarning = show


@dataclass
class Summary:
    """The state of a job.

    Attributes:
        folder: the folder of the results.
        rows: the number of rows on disk, those of earlier runs included.
        bad: the number of bad rows among them.
        verdicts: for each attribution, the number of rows with each verdict.
        kept: the number of shards that earlier runs wrote.
        written: the number of shards that this run wrote.
        seconds: the duration of this run.
    """

    folder: Path
    rows: int = 0
    bad: int = 0
    verdicts: dict[str, dict[str, int]] = field(default_factory=dict)
    kept: int = 0
    written: int = 0
    seconds: float = 0.0

    def add(self, shard: Written) -> None:
        """Adds the counts of ``shard``."""
        self.rows += shard.rows
        self.bad += shard.bad
        for name, counts in shard.verdicts.items():
            self.verdicts[name] = dict(Counter(self.verdicts.get(name, {})) + Counter(counts))


class Watcher:
    """A receiver of the progress of a job. The methods do nothing; a subclass overrides those that it needs."""

    def on_start(self, total: int, summary: Summary) -> None:
        """Handles the start of work on ``total`` rows, of which those in ``summary`` are on disk already."""

    def on_rows(self, count: int) -> None:
        """Handles ``count`` more computed rows; called from any thread."""

    def on_shard(self, summary: Summary) -> None:
        """Handles one more shard on disk."""

    def on_end(self) -> None:
        """Handles the end of work, after a failure too."""


def run(job: Job, *watchers: Watcher) -> Summary:
    """Computes and writes every row that no earlier run has written.

    Files on disk are complete at any time: after a failure or a kill, another run continues.

    Args:
        job: the spec.
        watchers: receive the progress.

    Raises:
        Unavailable: ``JOB_INTERRUPTED``: the cause is outside the job; run the job again when it is removed.
        FailedPrecondition: ``TOO_MANY_BAD_ROWS``; or ``FOLDER_TAKEN``, if the folder belongs to another job.
        CutawayError: the job cannot be run as it is.
    """
    start = time.monotonic()
    folder = Folder(job.output.folder)
    source = checked_source(job)
    summary = Summary(folder.path)
    engine = engine_of(job)

    def tick(count: int) -> None:
        for watcher in watchers:
            watcher.on_rows(count)

    with shown_once(), _interruptions(job), folder.locked(), engine.opened(job) as model:
        task = _task(job, source, model, folder)
        missing = _missing_shards(task, summary)
        _check_bad_rows(job, summary)
        for watcher in watchers:
            watcher.on_start(task.manifest.rows, summary)
        try:
            for shard in engine.work(task, model, missing, tick):
                summary.add(shard)
                summary.written += 1
                for watcher in watchers:
                    watcher.on_shard(summary)
                _check_bad_rows(job, summary)
        finally:
            for watcher in watchers:
                watcher.on_end()
    summary.seconds = time.monotonic() - start
    return summary


def checked_source(job: Job) -> Source:
    """Opens the job's data set and checks all that needs no model: the request, the rows and the columns.

    Raises:
        CutawayError: the job cannot be run as it is.
    """
    parse_request(job.request, job.target)
    with at("data"):
        source = source_of(job)
        if not source.rows:
            raise error(Reason.INPUT_EMPTY, "the data set has no rows")
    for section, column in named_columns(job).items():
        with at(f"{section}.column"):
            check_columns([column], source.columns)
    feature_columns(job, source.columns)
    return source


def new_manifest(job: Job, source: Source, detail: ModelDetail) -> Manifest:
    """Returns the manifest of a job, still without the columns of its tables.

    Raises:
        CutawayError: the columns of the data set are no features of the model.
    """
    names = {spec.name: spec.feature_names for spec in detail.inputs if spec.feature_names}
    columns = feature_columns(job, source.columns, names)
    check_numeric(source, columns)
    return Manifest.of(job, source.fingerprint, source.rows, detail, columns)


def _task(job: Job, source: Source, model: JobModel, folder: Folder) -> Task:
    """Returns the task; its manifest is that of the earlier run, if this is the same job, else a new one on disk."""
    manifest = new_manifest(job, source, model.detail)
    if folder.manifest.is_file():
        earlier = Manifest.load(folder)
        earlier.check_same_job(manifest)
        return Task(job, earlier)
    manifest = manifest.with_layout(probe_layout(job, source, model, manifest.feature_columns))
    manifest.save(folder)
    return Task(job, manifest)


def _missing_shards(task: Task, summary: Summary) -> list[int]:
    """Returns the shards to write, and adds the others to ``summary``; deletes files that are not complete."""
    captures_lost = task.captures.create()  # where an array was missing, every shard has lost its captures
    missing = set(range(task.manifest.shards))
    for shard, path in task.folder.parts().items():
        written = None if captures_lost else read_counts(path)
        if written is None or written.rows != len(task.manifest.range(shard)):
            path.unlink()
            continue
        summary.add(written)
        summary.kept += 1
        missing.discard(shard)
    return sorted(missing)


def _check_bad_rows(job: Job, summary: Summary) -> None:
    if job.max_bad_rows is not None and summary.bad > job.max_bad_rows:
        raise error(
            Reason.TOO_MANY_BAD_ROWS,
            f"{summary.bad} of {summary.rows} rows are bad, and {job.max_bad_rows} are allowed; the column `error` in "
            f"{summary.folder} has the reasons",
            "max_bad_rows",
        )


@contextmanager
def _interruptions(job: Job) -> Iterator[None]:
    """Raises errors whose cause is outside the job as ``JOB_INTERRUPTED``."""
    try:
        yield
    except OSError as failure:
        raise write_error(failure) from None
    except CutawayError as failure:
        transient = failure.code == Code.UNAVAILABLE or failure.reason in TRANSIENT
        if not transient or failure.reason == Reason.JOB_INTERRUPTED:
            raise
        where = f"{job.model.address}: " if job.model.address else ""
        what = f"{where}{failure.message} ({failure.reason}); shards on disk stay: run again to continue"
        raise error(Reason.JOB_INTERRUPTED, what, failure.field) from None


# The cost of a job, estimated from a few rows, whose results are discarded.

_PLANNED_ROWS = 8


class Plan(NamedTuple):
    """The estimated cost of a job; the figures from ``forwards`` on assume that all rows are like the first ones.

    Attributes:
        rows: the number of rows of the data set.
        shards: the number of files.
        batches: the number of requests.
        forwards: the number of forward passes.
        backwards: the number of backward passes.
        bytes: the size of all files.
        seconds: the time that one copy of the model needs.
        columns: the columns of the tables.
    """

    rows: int
    shards: int
    batches: int
    forwards: int
    backwards: int
    bytes: int
    seconds: float
    columns: tuple[str, ...]


def plan(job: Job) -> Plan:
    """Estimates the cost of ``job``. Computes its first rows and writes nothing.

    Raises:
        CutawayError: the job cannot be run as it is.
    """
    source = checked_source(job)
    with shown_once(), engine_of(job).opened(job) as model:
        manifest = new_manifest(job, source, model.detail)
        layout = probe_layout(job, source, model, manifest.feature_columns, _PLANNED_ROWS)
        counting = _CountingModel(model)
        writer = ShardWriter(Task(job, manifest.with_layout(layout)), counting, source)
        few = range(min(_PLANNED_ROWS, job.engine.batch, len(manifest.range(0))))
        records = writer.records(few, lambda _: None)
        passes = counting.forwards, counting.backwards
        several_s, one_s = _seconds(writer, few), _seconds(writer, range(1))
    file = io.BytesIO()
    parquet.write_table(records.table({}), file, compression="zstd")
    batches = sum(-(-len(manifest.range(shard)) // job.engine.batch) for shard in range(manifest.shards))
    size = file.tell() + sum(array.nbytes for array in records.captures().values())
    row_s = max(several_s - one_s, 0.0) / max(len(few) - 1, 1)
    return Plan(
        rows=source.rows,
        shards=manifest.shards,
        batches=batches,
        forwards=batches * passes[0],
        backwards=batches * passes[1],
        bytes=round(size / len(few) * source.rows),
        seconds=batches * max(one_s - row_s, 0.0) + source.rows * row_s,
        columns=tuple(layout.schema.names),
    )


def _seconds(writer: ShardWriter, rows: range) -> float:
    start = time.monotonic()
    writer.records(rows, lambda _: None)
    return time.monotonic() - start


class _CountingModel:
    """A model that counts its passes."""

    def __init__(self, model: JobModel) -> None:
        self._model = model
        self.detail = model.detail
        self.forwards = 0
        self.backwards = 0

    def inspect(self, request: InspectRequest) -> InspectResult:
        result = self._model.inspect(request)
        self.forwards += result.provenance.forwards
        self.backwards += result.provenance.backwards
        return result
