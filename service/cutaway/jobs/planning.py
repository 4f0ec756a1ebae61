"""Estimates the cost of a job from a few rows, whose results are discarded."""

from __future__ import annotations

import io
import time
from typing import NamedTuple

import pyarrow.parquet as parquet

from cutaway.contract.requests import InspectRequest
from cutaway.contract.results import InspectResult
from cutaway.jobs.engines import engine_of
from cutaway.jobs.running import checked_source, new_manifest, shown_once
from cutaway.jobs.schema_probe import probe_layout
from cutaway.jobs.shards import JobModel, ShardWriter, Task
from cutaway.jobs.spec import Job

_ROWS = 8  # computed to estimate


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
        layout = probe_layout(job, source, model, manifest.feature_columns, _ROWS)
        counting = _CountingModel(model)
        writer = ShardWriter(Task(job, manifest.with_layout(layout)), counting, source)
        few = range(min(_ROWS, job.engine.batch, len(manifest.range(0))))
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
