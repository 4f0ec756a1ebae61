"""Estimates what a job will take, from one batch whose results are discarded."""

from __future__ import annotations

import io
import time
from typing import NamedTuple

import pyarrow.parquet as parquet

from cutaway.jobs.engines import engine_of
from cutaway.jobs.manifest import Manifest
from cutaway.jobs.running import checked_source
from cutaway.jobs.schema_probe import probe_layout
from cutaway.jobs.shards import ShardWriter
from cutaway.jobs.spec import Job
from cutaway.jobs.task import Model, Task
from cutaway.requests import InspectRequest
from cutaway.results import InspectResult


class Plan(NamedTuple):
    """What a job will take; the figures from ``forwards`` on assume that all rows are like those of the first batch.

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
    """Returns what ``job`` will take. Computes its first batch and writes nothing.

    Raises:
        CutawayError: the job cannot be run as it is.
    """
    source = checked_source(job)
    with engine_of(job).opened(job) as model:
        manifest = Manifest.of(job, source.fingerprint, source.rows, model.detail)
        task = Task(job, manifest.with_layout(probe_layout(job, source, model)))
        counting = _CountingModel(model)
        rows = range(min(job.engine.batch, len(manifest.range(0))))
        start = time.monotonic()
        records = ShardWriter(task, counting, source).records(rows, lambda _: None)
        seconds = time.monotonic() - start
    file = io.BytesIO()
    parquet.write_table(records.table({}), file, compression="zstd")
    batches = sum(-(-len(manifest.range(shard)) // job.engine.batch) for shard in range(manifest.shards))
    size = file.tell() + sum(array.nbytes for array in records.captures().values())
    return Plan(
        rows=source.rows,
        shards=manifest.shards,
        batches=batches,
        forwards=batches * counting.forwards,
        backwards=batches * counting.backwards,
        bytes=round(size / len(rows) * source.rows),
        seconds=seconds / len(rows) * source.rows,
        columns=tuple(task.manifest.columns),
    )


class _CountingModel:
    """Counts the passes of a model."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.detail = model.detail
        self.forwards = 0
        self.backwards = 0

    def inspect(self, request: InspectRequest) -> InspectResult:
        result = self._model.inspect(request)
        self.forwards += result.provenance.forwards
        self.backwards += result.provenance.backwards
        return result
