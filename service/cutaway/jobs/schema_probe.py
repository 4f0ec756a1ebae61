"""Runs the request on a few rows: it tests whether model and data fit, and gives the columns of the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from cutaway.contract.errors import CutawayError
from cutaway.jobs.batch_inputs import Batch, BatchBuilder
from cutaway.jobs.columns import Cells
from cutaway.jobs.records import Layout
from cutaway.jobs.shards import JobModel, as_job_error, raise_fatal, result_columns
from cutaway.jobs.sources import Column, Source
from cutaway.jobs.spec import Job, RequestTemplate, parse_request

_PROBES = 2
_MAX_FAILURES = 8


def probe_layout(
    job: Job, source: Source, model: JobModel, features: Mapping[str, Sequence[str]], rows: int | None = None
) -> Layout:
    """Returns the columns of the job's tables, from the largest and the smallest row of the first shard.

    Where their results differ in the shape of a tensor, those of other rows will, too.

    Args:
        job: the spec.
        source: the data set.
        model: the model.
        features: the columns of the inputs that are made from several columns.
        rows: the number of rows to read; by default the first shard.

    Raises:
        CutawayError: all rows that were tried fail, so the cause is not a single row.
    """
    template = parse_request(job.request, job.target)
    builder = BatchBuilder(job, template, model.detail, features)
    columns = builder.read(source, 0, min(source.rows, rows or job.output.shard_rows))
    probes: list[list[Cells]] = []
    failures: list[CutawayError] = []
    for row in _extremes_first(columns, builder.inputs):
        try:
            probes.append(_probe(job, template, builder.batch(columns, [row], 0), model))
        except CutawayError as failure:
            raise_fatal(failure)
            failures.append(as_job_error(failure))
        if len(probes) == _PROBES or len(failures) == _MAX_FAILURES:
            break
    if not probes:
        raise failures[0]
    label = _label_type(builder, columns) if job.label else None
    return Layout.of(probes, label, job.output.tensors, job.output.captures_to)


def _probe(job: Job, template: RequestTemplate, batch: Batch, model: JobModel) -> list[Cells]:
    """Returns the columns for one row, with all attributions: also those that ``explain_if`` would leave out."""
    if batch.request is None:
        raise next(iter(batch.bad.values()))
    if batch.request.explain_if is not None:
        model.inspect(batch.request)  # raises the errors of the condition
    result = model.inspect(replace(batch.request, explain_if=None))
    if batch.request.explain_if is not None:
        result = replace(result, explained_rows=np.ones(1, bool))
    return list(result_columns(batch, result, template, job.output.keep_inputs))


def _extremes_first(columns: Mapping[str, Column], inputs: tuple[str, ...]) -> list[int]:
    """Returns the rows by size: the largest, the smallest, the second largest and so on."""
    count = len(columns[inputs[0]])
    by_size = sorted(range(count), key=lambda row: sum(_size(columns[name][row]) for name in inputs))
    return [by_size[-1 - rank // 2] if rank % 2 == 0 else by_size[rank // 2] for rank in range(count)]


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.size)
    return len(value) if isinstance(value, (str, bytes, list, tuple)) else 1


def _label_type(builder: BatchBuilder, columns: Mapping[str, Column]) -> Any:
    count = len(columns[builder.inputs[0]])
    texts = any(isinstance(builder.label(columns, row), str) for row in range(count))
    return pa.string() if texts else pa.int64()
