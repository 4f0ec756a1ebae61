"""Computes the rows of a shard and writes its file, and first some rows for the columns; the same for all engines."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from cutaway.contract.errors import Code, CutawayError, Reason, error, release_frames
from cutaway.contract.requests import JOB_FIELDS, InspectRequest
from cutaway.contract.results import InspectResult, ModelDetail
from cutaway.jobs.batch_inputs import Batch, BatchBuilder
from cutaway.jobs.columns import Cells, flattened
from cutaway.jobs.manifest import Folder, Manifest
from cutaway.jobs.reading import CaptureStore
from cutaway.jobs.records import Layout, Records, measured_output
from cutaway.jobs.sources import Column, Source, open_source
from cutaway.jobs.spec import Data, Job, RequestTemplate


class JobModel(Protocol):
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
"""A function that takes the number of rows that have just been computed."""


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


class ShardWriter:
    """A writer of shards of one task; several threads may write different shards.

    Args:
        task: the task.
        model: computes the rows.
        source: the data set.
    """

    def __init__(self, task: Task, model: JobModel, source: Source) -> None:
        self._task = task
        self._model = model
        self._source = source
        self._reading = threading.Lock()  # a source is read by one thread at a time
        self._builder = BatchBuilder(task.job, model.detail, task.manifest.feature_columns)
        self._layout = task.manifest.read_layout()
        self._captures = task.captures

    def write(self, shard: int, tick: Tick) -> Written:
        """Computes every row of ``shard`` and writes its file.

        Raises:
            CutawayError: the job cannot continue.
        """
        rows = self._task.manifest.range(shard)
        records = self.records(rows, tick)
        written = Written(len(rows), len(records.errors), records.verdicts())
        counts = json.dumps({"bad": written.bad, "verdicts": written.verdicts})
        table = records.table({"cutaway": counts, "cutaway.digest": self._task.manifest.digest})
        self._captures.write(rows, records.captures())  # before the file, which makes the shard count as written
        folder = self._task.folder
        folder.write(
            folder.part(shard), lambda path: parquet.write_table(table, path, compression="zstd", write_page_index=True)
        )
        return written

    def records(self, rows: range, tick: Tick) -> Records:
        """Computes ``rows`` of the data set, batch by batch.

        Raises:
            CutawayError: the job cannot continue.
        """
        with self._reading:
            columns = self._builder.read(self._source, rows.start, rows.stop)
        builder, count = self._builder, len(rows)
        ids = [builder.row_id(columns, row, rows.start + row) for row in range(count)]
        labels = [builder.label(columns, row) for row in range(count)] if self._task.job.label else []
        records = Records(self._layout, rows.start, ids, labels)
        size = self._task.job.engine.batch
        for first in range(0, count, size):
            batch = range(first, min(first + size, count))
            self._compute(columns, batch, rows.start, records)
            tick(len(batch))
        return records

    def _compute(self, columns: Mapping[str, Column], rows: Sequence[int], first: int, records: Records) -> None:
        """Computes ``rows`` as one batch. If that fails, computes every row alone to detect the bad ones.

        The batch is then computed without them: the values of a row do not depend on whether another row is bad.
        """
        failure = self._compute_batch(columns, rows, first, records)
        if failure is not None and len(rows) == 1:
            records.errors[rows[0]] = failure
        elif failure is not None:
            for row in rows:
                self._compute(columns, [row], first, records)
            if any(row in records.errors for row in rows):
                self._compute_batch(columns, rows, first, records)  # if this fails too, the rows' own values stay

    def _compute_batch(
        self, columns: Mapping[str, Column], rows: Sequence[int], first: int, records: Records
    ) -> CutawayError | None:
        """Computes those of ``rows`` that are not known to be bad; returns the error of the request, if it fails."""
        try:
            batch = self._builder.batch(columns, rows, first, records.errors)
            result = None if batch.request is None else self._model.inspect(batch.request)
        except CutawayError as failure:
            raise_fatal(failure)
            return as_job_error(failure)
        records.errors.update(batch.bad)
        if result is not None:
            keep_inputs = self._task.job.output.keep_inputs
            records.put(batch.rows, result_columns(batch, result, self._builder.template, keep_inputs))
        return None


def result_columns(
    batch: Batch, result: InspectResult, template: RequestTemplate, keep_inputs: bool
) -> Iterator[Cells]:
    """Yields all columns of a batch: those of its result, and on request those of its inputs."""
    yield from flattened(result, template, len(batch.rows))
    if keep_inputs and batch.request is not None:
        for name, array in batch.request.tensors.items():
            yield Cells(f"input:{name}", {"kind": "input", "input": name}, array)
        if batch.request.raw:
            media_type = batch.request.raw[0].media_type
            files: list[Any] = [raw.data for raw in batch.request.raw]
            texts = [data.decode("utf-8", "replace") for data in files] if media_type.startswith("text/") else files
            yield Cells("input:raw", {"kind": "input", "media_type": media_type}, texts)


# The first rows, which test whether model and data fit, and give the columns of the tables.

_PROBES = 2
_MAX_FAILURES = 8


def probe_layout(
    job: Job, source: Source, model: JobModel, features: Mapping[str, Sequence[str]], rows: int | None = None
) -> Layout:
    """Returns the columns of the job's tables, from all labels, and the largest and smallest row of the first shard.

    Where the results of these rows differ in the shape of a tensor, those of other rows will, too.

    Args:
        job: the spec.
        source: the data set.
        model: the model.
        features: the columns of the inputs that are made from several columns.
        rows: the number of rows to read; by default the first shard.

    Raises:
        CutawayError: all rows that were tried fail, so the cause is not a single row.
    """
    builder = BatchBuilder(job, model.detail, features)
    columns = builder.read(source, 0, min(source.rows, rows or job.output.shard_rows))
    probes: list[list[Cells]] = []
    failures: list[CutawayError] = []
    for row in _extremes_first(columns, builder.inputs):
        try:
            probes.append(_probe(job, builder, builder.batch(columns, [row], 0), model))
        except CutawayError as failure:
            raise_fatal(failure)
            failures.append(as_job_error(failure))
        if len(probes) == _PROBES or len(failures) == _MAX_FAILURES:
            break
    if not probes:
        raise failures[0]
    output = job.output
    layout = Layout.of(probes, None, output.tensors, output.captures_to)
    if job.label is None:
        return layout
    are_measured = bool(measured_output(layout.schema)) and not (model.detail.labels or builder.template.by_label)
    label = _label_type(builder, source, rows or source.rows, output.shard_rows, are_measured)
    return Layout.of(probes, label, output.tensors, output.captures_to)


def _probe(job: Job, builder: BatchBuilder, batch: Batch, model: JobModel) -> list[Cells]:
    """Returns the columns for one row, with all attributions: also those that ``explain_if`` would leave out."""
    if batch.request is None:
        raise next(iter(batch.bad.values()))
    if batch.request.explain_if is not None:
        model.inspect(batch.request)  # raises the errors of the condition
    result = model.inspect(replace(batch.request, explain_if=None))
    if batch.request.explain_if is not None:
        result = replace(result, explained_rows=np.ones(1, bool))
    return list(result_columns(batch, result, builder.template, job.output.keep_inputs))


def _extremes_first(columns: Mapping[str, Column], inputs: tuple[str, ...]) -> list[int]:
    """Returns the rows by size: the largest, the smallest, the second largest and so on."""
    count = len(columns[inputs[0]])
    by_size = sorted(range(count), key=lambda row: sum(_size(columns[name][row]) for name in inputs))
    return [by_size[-1 - rank // 2] if rank % 2 == 0 else by_size[rank // 2] for rank in range(count)]


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.size)
    return len(value) if isinstance(value, (str, bytes, list, tuple)) else 1


def _label_type(builder: BatchBuilder, source: Source, rows: int, step: int, are_measured: bool) -> Any:
    """Returns the type that holds the labels of the first ``rows`` rows: whole numbers, or texts if one is no index;
    numbers of any kind where the model predicts one."""
    stop = min(rows, source.rows)
    for start in range(0, stop, step):
        labels = builder.read_labels(source, start, min(start + step, stop))
        values = [(label.number if are_measured else label.class_index) for label in labels if label is not None]
        if None in values:
            return pa.string()
    return pa.float64() if are_measured else pa.int64()


TRANSIENT = (Reason.OVERLOADED, Reason.DEADLINE_EXCEEDED)
_FATAL = {Code.UNAVAILABLE, Code.UNAUTHENTICATED, Code.PERMISSION_DENIED, Code.NOT_FOUND, Code.UNIMPLEMENTED}


def raise_fatal(failure: CutawayError) -> None:
    """Raises ``failure`` if no row caused it."""
    if failure.code in _FATAL or failure.reason in TRANSIENT:
        raise failure


_FIELDS = {
    "tensors.by_name.": "inputs.",
    "raw": "inputs.raw",
    **{name: f"request.{name}" for name in JOB_FIELDS},
}
"""The first parts of fields in ``job.yaml``, by those in the contract's request."""


def as_job_error(failure: CutawayError) -> CutawayError:
    """Replaces the field of the contract's request in ``failure`` by that of ``job.yaml``, and releases its frames: it
    is kept until its shard is written."""
    release_frames(failure)
    for field, job_field in _FIELDS.items():
        if failure.field.startswith(field):
            failure.field = job_field + failure.field.removeprefix(field)
            break
    return failure


def read_counts(path: Path) -> Written | None:
    """Returns the counts of a shard on disk; None if its file is not complete."""
    with suppress(OSError, ValueError, KeyError):
        footer = parquet.read_metadata(path)
        counts: dict[str, Any] = json.loads(footer.metadata[b"cutaway"])
        return Written(footer.num_rows, counts["bad"], counts["verdicts"])
    return None


def write_error(failure: OSError) -> CutawayError:
    """Returns the error for results that cannot be written."""
    full = failure.errno in (errno.ENOSPC, errno.EDQUOT)
    what = "there is no space left; free some and run again" if full else f"{failure}; remove the cause and run again"
    return error(Reason.JOB_INTERRUPTED, what, "output.folder")
