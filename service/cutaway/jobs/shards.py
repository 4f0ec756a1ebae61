"""What is done about each shard of a job, whoever does it: ask, keep bad rows apart, write."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from cutaway.errors import Code, CutawayError, Reason, error
from cutaway.jobs.asked import Asked, asked
from cutaway.jobs.blame import rulings
from cutaway.jobs.feeding import Batch, Feeding, about_rows
from cutaway.jobs.fields import in_job
from cutaway.jobs.flat import Cells, Rulings, answers, explained, flattened
from cutaway.jobs.records import Records
from cutaway.jobs.sources import Column, Source
from cutaway.jobs.task import Model, Task, Tick, Written
from cutaway.requests import InspectRequest
from cutaway.results import AttributionResult, InspectResult


class Shards:
    """Work on the shards of one task, with one model and one reader.

    Args:
        task: what is to be done.
        model: who answers.
        source: the data set.
    """

    def __init__(self, task: Task, model: Model, source: Source) -> None:
        self._task = task
        self._model = model
        self._source = source
        self._asked = asked(task.job.request, task.job.target)
        self._feeding = Feeding(task.job, self._asked, model.detail)
        self._layout = task.manifest.read_layout()
        self._apart = task.apart

    def write(self, shard: int, tick: Tick) -> Written:
        """Ask about every row of ``shard`` and write it.

        Raises:
            CutawayError: the job cannot go on.
        """
        records = self.records(self._task.manifest.range(shard), tick)
        written = Written(shard, records.rows, records.bad_rows, records.verdicts())
        self._save(records, written)
        return written

    def records(self, rows: range, tick: Tick) -> Records:
        """What is found about ``rows`` of the data set, batch by batch.

        Raises:
            CutawayError: the job cannot go on.
        """
        columns = self._source.read(rows.start, rows.stop, self._feeding.columns)
        records = self._blank(columns, rows)
        size = self._task.job.engine.batch
        for first in range(0, len(rows), size):
            batch = range(first, min(first + size, len(rows)))
            self._ask(columns, batch, rows.start, records)
            tick(len(batch))
        return records

    def _blank(self, columns: Mapping[str, Column], rows: range) -> Records:
        feeding, count = self._feeding, len(rows)
        names = [feeding.name(columns, row, rows.start + row) for row in range(count)]
        labels = [feeding.label(columns, row) for row in range(count)] if self._task.job.label else []
        return Records(self._layout, rows.start, names, labels)

    def _ask(self, columns: Mapping[str, Column], rows: Sequence[int], first: int, records: Records) -> None:
        """Ask about ``rows`` together; where that fails, about each alone, so that only bad rows are bad, and then
        about all but these: what is found of a row does not depend on whether another is bad."""
        failure = self._ask_together(columns, rows, first, records)
        if failure is not None and len(rows) == 1:
            records.bad(rows[0], failure)
        elif failure is not None:
            for row in rows:
                self._ask(columns, [row], first, records)
            if any(row in records.errors for row in rows):
                self._ask_together(columns, rows, first, records)  # if even that fails, what each has alone stays

    def _ask_together(
        self, columns: Mapping[str, Column], rows: Sequence[int], first: int, records: Records
    ) -> CutawayError | None:
        """Ask about those of ``rows`` that are not bad, and note what is found; what they are refused for."""
        try:
            batch = self._feeding.batch(columns, rows, first, records.errors)
            result = None if batch.request is None else self._model.ask(batch.request)
        except CutawayError as failure:
            refuse_to_go_on(failure)
            return in_job(failure)
        for row, why in batch.bad.items():
            records.bad(row, why)
        if batch.request is not None and result is not None:
            ruled = self._rulings(batch.request, result, len(batch.rows))
            records.put(batch.rows, found(batch, result, self._asked, ruled, self._task.job.output.keep_inputs))
        return None

    def _rulings(self, request: InspectRequest, result: InspectResult, rows: int) -> Rulings:
        """What is found about each row of a batch by itself; see `blame`."""
        alone = replace(request, captures=(), input_gradients=None, explain_if=None)
        places = list(answers(self._asked))

        def ask(number: int, some: tuple[int, ...]) -> AttributionResult | None:
            explanation, rank = places[number]
            question = replace(alone, attributions=request.attributions[explanation : explanation + 1])
            try:
                return self._model.ask(about_rows(question, some)).attributions[rank]
            except CutawayError as failure:
                refuse_to_go_on(failure)
                return None

        chosen = explained(result, self._asked)
        return rulings(result, range(rows) if chosen is None else chosen, ask)

    def _save(self, records: Records, written: Written) -> None:
        counts = json.dumps({"bad": written.bad, "verdicts": written.verdicts})
        table = records.table({"cutaway": counts, "cutaway.digest": self._task.manifest.digest})
        folder = self._task.folder
        rows = self._task.manifest.range(written.shard)
        self._apart.write(rows, records.apart())  # before a file says that the shard is there
        folder.write(folder.part(written.shard), lambda path: parquet.write_table(table, path, compression="zstd"))


def found(batch: Batch, result: InspectResult, question: Asked, ruled: Rulings, keep_inputs: bool) -> Iterator[Cells]:
    """All columns about ``batch``."""
    yield from flattened(result, question, len(batch.rows), ruled)
    if keep_inputs and batch.request is not None:
        for name, array in batch.request.tensors.items():
            yield Cells(f"input.{name}", {"kind": "input", "input": name}, array)
        if batch.request.raw:
            media_type = batch.request.raw[0].media_type
            files: list[Any] = [each.data for each in batch.request.raw]
            texts = [each.decode("utf-8", "replace") for each in files] if media_type.startswith("text/") else files
            yield Cells("input.raw", {"kind": "input", "media_type": media_type}, texts)


_ENDS = {Code.UNAVAILABLE, Code.UNAUTHENTICATED, Code.PERMISSION_DENIED, Code.NOT_FOUND, Code.UNIMPLEMENTED}


def refuse_to_go_on(failure: CutawayError) -> None:
    """Raise ``failure`` again where it is no row's fault."""
    if failure.code in _ENDS or failure.reason in (Reason.OVERLOADED, Reason.DEADLINE_EXCEEDED):
        raise failure


def counted(path: Path, shard: int) -> Written | None:
    """What was written about a shard before; None where the file is not whole."""
    with suppress(OSError, ValueError, KeyError):
        footer = parquet.read_metadata(path)
        counts: dict[str, Any] = json.loads(footer.metadata[b"cutaway"])
        return Written(shard, footer.num_rows, counts["bad"], counts["verdicts"])
    return None


def no_room(failure: OSError) -> CutawayError:
    """Why nothing can be written, and what to do about it."""
    full = failure.errno in (errno.ENOSPC, errno.EDQUOT)
    what = "there is no space left; free some, and run again" if full else f"{failure}; run again when that is mended"
    return error(Reason.JOB_INTERRUPTED, what, "output.folder")
