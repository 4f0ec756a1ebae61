"""The first pass over the results: counts, and the rows to show. Reads no tensors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from cutaway.contract.results import Verdict
from cutaway.jobs.reading import Results
from cutaway.jobs.report.examples import AttributionSummary, Example, Finding, Top
from cutaway.jobs.report.rows import Line, Lines

SHOWN = 8
"""The length of each list of rows."""

_BATCH = 4096
_BAD_SHOWN = 3
_ROW_KINDS = ("row", "id", "label", "prediction", "probability", "warnings", "error", "error_message")
_ATTRIBUTION_KINDS = ("verdict", "reason", "largest_error", "convergence_delta", "skipped")

Columns = Mapping[str, list[Any]]


class Overview:
    """Counts over all rows, and lists of rows.

    Args:
        results: the results.

    Attributes:
        rows: the number of rows.
        bad: the number of bad rows, by reason.
        bad_examples: ids and messages of the first bad rows, by reason.
        warnings: the number of rows with each warning.
        attributions: the counts of each attribution, in the order of the request.
        classes: the number of rows by index of the predicted class; by None for a model without classes.
        confusion: the number of rows by the names of label and predicted class.
        first: the first rows that are not bad.
        confident, uncertain: the rows with the highest and the lowest probability.
        mislabelled: the rows with the highest probability of another class than the label.
        findings: the outcomes that are problems, with the largest errors, DISAGREES first.
        lines: the list of rows.
    """

    def __init__(self, results: Results) -> None:
        self._results = results
        self.rows = 0
        self.bad: Counter[str] = Counter()
        self.bad_examples: dict[str, list[tuple[str, str]]] = {}
        self.warnings: Counter[str] = Counter()
        self.classes: Counter[int | None] = Counter()
        self.confusion: Counter[tuple[str, str]] = Counter()
        self.attributions: dict[str, AttributionSummary] = {}
        self._first, self._confident, self._uncertain, self._mislabelled = (Top[Example](SHOWN) for _ in range(4))
        self._findings = Top[Finding](SHOWN)
        self.lines = Lines()
        self._latest: dict[str, tuple[tuple[Any, ...], Finding | None]] = {}
        self._names: dict[str, dict[str, str]] = {}
        """For each attribution, its columns by kind."""
        names = self._column_names()
        for batch in results.batches(names, _BATCH):
            self._add({name: batch.column(name).to_pylist() for name in names})
        self.first, self.findings = self._first.values, self._findings.values
        self.confident, self.uncertain = self._confident.values, self._uncertain.values
        self.mislabelled = self._mislabelled.values

    @property
    def accuracy(self) -> float | None:
        """The fraction of labelled rows whose predicted class is the label; None without labels."""
        right = sum(count for (label, prediction), count in self.confusion.items() if label == prediction)
        return right / sum(self.confusion.values()) if self.confusion else None

    def _column_names(self) -> list[str]:
        """Returns the columns to read; notes the attributions."""
        names = []
        for name, about in self._results.columns.items():
            if (attribution := about.get("attribution")) is not None:
                summary = AttributionSummary(attribution, about.get("method", ""), about.get("layer", ""))
                self.attributions.setdefault(attribution, summary)
                kinds = self._names.setdefault(attribution, {})
                if about["kind"] in _ATTRIBUTION_KINDS:
                    kinds[about["kind"]] = name
                    names.append(name)
            elif about["kind"] in _ROW_KINDS:
                names.append(name)
        return names

    def _add(self, columns: Columns) -> None:
        for attribution, names in self._names.items():
            self.attributions[attribution].add({kind: columns[name] for kind, name in names.items()})
        for index, reason in enumerate(columns["error"]):
            self.rows += 1
            if reason is None:
                self._add_row(columns, index)
                continue
            self.bad[reason] += 1
            self.lines.add(Line(self._example(columns, index), f"{reason}: {columns['error_message'][index]}"))
            if self.bad[reason] <= _BAD_SHOWN:
                example = columns["id"][index], columns["error_message"][index]
                self.bad_examples.setdefault(reason, []).append(example)

    def _add_row(self, columns: Columns, index: int) -> None:
        create = partial(self._example, columns, index)
        self._first.add((0.0,), create)
        self.lines.add(Line(create()))
        self.warnings.update(columns["warnings"][index] or () if "warnings" in columns else ())
        self.classes[columns["prediction"][index] if "prediction" in columns else None] += 1
        if "prediction" in columns:
            self._add_prediction(columns, index, create)
        for attribution in self._names:
            self._add_finding(columns, index, attribution)

    def _add_prediction(self, columns: Columns, index: int, create: partial[Example]) -> None:
        probability = columns["probability"][index]
        label, prediction = self._label(columns, index), self._class_name(columns["prediction"][index])
        self._confident.add((probability,), create)
        self._uncertain.add((-probability,), create)
        if label is not None:
            self.confusion[label, prediction] += 1
            if label != prediction:
                self._mislabelled.add((probability,), create)

    def _add_finding(self, columns: Columns, index: int, attribution: str) -> None:
        """Adds the outcome of a check. Rows in succession with exactly the same outcome are those of one batch."""
        names = self._names[attribution]
        if "verdict" not in names:
            return
        outcome = verdict, size, reason = tuple(
            columns[names[kind]][index] for kind in ("verdict", "largest_error", "reason")
        )
        before, finding = self._latest.get(attribution, (None, None))
        if before != outcome:
            finding = None
            if verdict in (Verdict.DISAGREES, Verdict.INCONCLUSIVE):
                new = finding = Finding(self._example(columns, index), attribution, verdict, size, reason)
                score = verdict == Verdict.DISAGREES, math.inf if math.isnan(size) else size
                self._findings.add(score, lambda: new)
        if finding is not None:
            finding.rows, finding.last = finding.rows + 1, columns["id"][index]
        self._latest[attribution] = outcome, finding

    def _label(self, columns: Columns, index: int) -> str | None:
        label = columns["label"][index] if "label" in columns else None
        return label if label is None or isinstance(label, str) else self._class_name(label)

    def _class_name(self, index: int) -> str:
        return self._results.manifest.class_name(index)

    def _example(self, columns: Columns, index: int) -> Example:
        classified = "prediction" in columns and columns["prediction"][index] is not None
        verdicts = {name: columns[kinds["verdict"]][index] for name, kinds in self._names.items() if "verdict" in kinds}
        return Example(
            row=columns["row"][index],
            id=columns["id"][index],
            label=self._label(columns, index),
            prediction=self._class_name(columns["prediction"][index]) if classified else "",
            probability=columns["probability"][index] if classified else None,
            verdicts=verdicts,
        )
