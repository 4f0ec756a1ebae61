"""What a job will take, told by one batch that is asked about and thrown away."""

from __future__ import annotations

import io
import time
from typing import NamedTuple

import pyarrow.parquet as parquet

from cutaway.jobs.engines import ENGINES
from cutaway.jobs.looking import first_look
from cutaway.jobs.manifest import Manifest
from cutaway.jobs.running import checked_source
from cutaway.jobs.shards import Shards
from cutaway.jobs.spec import Job
from cutaway.jobs.task import Model, Task
from cutaway.requests import InspectRequest
from cutaway.results import InspectResult, ModelDetail


class Plan(NamedTuple):
    """What a job will take; from ``forwards`` on, if all rows are like the first.

    Attributes:
        rows: of the data set.
        shards: files that they take.
        batches: questions that are asked.
        forwards: forward passes of the model.
        backwards: backward passes.
        bytes: that the files have.
        seconds: that one model needs; several share them.
        columns: of the tables.
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
    """What ``job`` will take. Its first batch is asked about; nothing is written.

    Raises:
        CutawayError: the job cannot be run.
    """
    source = checked_source(job)
    with ENGINES[job.engine.kind].opened(job) as model:
        manifest = Manifest.of(job, source.fingerprint, source.rows, model.detail)
        task = Task(job, manifest.with_layout(first_look(job, source, model)))
        counting = _Counting(model)
        rows = range(min(job.engine.batch, len(manifest.range(0))))
        start = time.monotonic()
        records = Shards(task, counting, source).records(rows, lambda _: None)
        seconds = time.monotonic() - start
    file = io.BytesIO()
    parquet.write_table(records.table({}), file, compression="zstd")
    batches = sum(-(-len(manifest.range(shard)) // job.engine.batch) for shard in range(manifest.shards))
    return Plan(
        rows=source.rows,
        shards=manifest.shards,
        batches=batches,
        forwards=batches * counting.forwards,
        backwards=batches * counting.backwards,
        bytes=round((file.tell() + sum(array.nbytes for array in records.apart().values())) / len(rows) * source.rows),
        seconds=seconds / len(rows) * source.rows,
        columns=tuple(task.manifest.columns),
    )


class _Counting:
    """A model whose passes are counted."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.forwards = 0
        self.backwards = 0

    @property
    def detail(self) -> ModelDetail:
        return self._model.detail

    def ask(self, request: InspectRequest) -> InspectResult:
        result = self._model.ask(request)
        self.forwards += result.provenance.forwards
        self.backwards += result.provenance.backwards
        return result
