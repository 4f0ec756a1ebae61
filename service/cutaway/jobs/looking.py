"""A first look at a few rows: is the question right for this model and data, and what will the tables hold?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from cutaway.errors import CutawayError
from cutaway.jobs.asked import asked
from cutaway.jobs.blame import rulings
from cutaway.jobs.feeding import Batch, Feeding
from cutaway.jobs.fields import in_job
from cutaway.jobs.flat import Cells
from cutaway.jobs.records import Layout
from cutaway.jobs.shards import found, refuse_to_go_on
from cutaway.jobs.sources import Column, Source
from cutaway.jobs.spec import Job
from cutaway.jobs.task import Model

_PROBES = 2
_TRIES = 8


def first_look(job: Job, source: Source, model: Model) -> Layout:
    """The columns of the job's tables, told by the answers about the smallest and the largest of the first rows: where
    these differ in a tensor's shape, others will.

    Raises:
        CutawayError: none of the rows tried has an answer: what is wrong is not a row.
    """
    feeding = Feeding(job, asked(job.request, job.target), model.detail)
    columns = source.read(0, min(source.rows, job.output.shard_rows), feeding.columns)
    probes: list[list[Cells]] = []
    failures: list[CutawayError] = []
    for row in _by_extremes(columns, feeding.inputs):
        try:
            probes.append(list(_probe(job, feeding.batch(columns, [row], 0), model)))
        except CutawayError as failure:
            refuse_to_go_on(failure)
            failures.append(in_job(failure))
        if len(probes) == _PROBES or len(failures) == _TRIES:
            break
    if not probes:
        raise failures[0]
    return Layout.of(
        probes, _label_type(feeding, columns) if job.label else None, job.output.tensors, job.output.captures_to
    )


def _probe(job: Job, batch: Batch, model: Model) -> Iterator[Cells]:
    """What is found about one row; all explanations, whether or not they would be left out."""
    question = asked(job.request, job.target)
    if batch.request is None:
        raise next(iter(batch.bad.values()))
    if batch.request.explain_if is not None:
        model.ask(batch.request)  # for what it is refused for
    result = model.ask(replace(batch.request, explain_if=None))
    return found(batch, result, question, rulings(result, [0], lambda number, rows: None), job.output.keep_inputs)


def _by_extremes(columns: Mapping[str, Column], inputs: tuple[str, ...]) -> list[int]:
    """The rows: the largest, the smallest, and so on inwards."""
    count = len(columns[inputs[0]])
    by_size = sorted(range(count), key=lambda row: sum(_size(columns[name][row]) for name in inputs))
    return [by_size[-1 - rank // 2] if rank % 2 == 0 else by_size[rank // 2] for rank in range(count)]


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.size)
    return len(value) if isinstance(value, (str, bytes, list, tuple)) else 1


def _label_type(feeding: Feeding, columns: Mapping[str, Column]) -> Any:
    count = len(columns[feeding.inputs[0]])
    texts = any(isinstance(feeding.label(columns, row), str) for row in range(count))
    return pa.string() if texts else pa.int64()
