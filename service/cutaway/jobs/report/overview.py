"""The first look at a job's results: counts, and which rows are worth a second look. Reads no tensor."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from cutaway.jobs.report.examples import Best, Example, Explanation, Finding
from cutaway.jobs.report.results import Results
from cutaway.results import Verdict

SHOWN = 8
"""How many rows each list of rows has."""

_ROWS = 4096
_BAD_SHOWN = 3
_ABOUT_ROWS = ("row", "id", "label", "prediction", "probability", "warnings")
_ABOUT_EXPLANATIONS = ("verdict", "reason", "largest_error", "delta", "skipped")

Columns = Mapping[str, list[Any]]


class Overview:
    """Counts over all rows, and lists of some.

    Args:
        results: all that the job has written.

    Attributes:
        rows: how many rows are there.
        bad: reasons for which rows are bad, and how many.
        bad_examples: by reason, the id and message of the first few.
        warnings: how many rows carry which.
        explanations: by name, in the order of the request.
        classes: how many rows are predicted to be of which class, by index; of None, for a model without classes.
        confusion: how many rows have which label and prediction, by name.
        first: the first rows that are not bad.
        sure, unsure: the rows with the highest probability, and the lowest.
        contrary: the rows that the model is surest are something else than their label says.
        findings: the checks that did worst, those that disagree before all others.
    """

    def __init__(self, results: Results) -> None:
        self._results = results
        self.rows = 0
        self.bad: Counter[str] = Counter()
        self.bad_examples: dict[str, list[tuple[str, str]]] = {}
        self.warnings: Counter[str] = Counter()
        self.classes: Counter[int | None] = Counter()
        self.confusion: Counter[tuple[str, str]] = Counter()
        self.explanations: dict[str, Explanation] = {}
        self._first, self._sure, self._unsure, self._contrary = (Best[Example](SHOWN) for _ in range(4))
        self._findings = Best[Finding](SHOWN)
        self._latest: dict[str, tuple[tuple[Any, ...], Finding | None]] = {}
        self._names: dict[str, dict[str, str]] = {}
        """By explanation, its columns by kind."""
        read = self._known_columns()
        for batch in results.batches(read, _ROWS):
            self._add({name: batch.column(name).to_pylist() for name in read})
        self.first, self.sure, self.unsure = self._first.values, self._sure.values, self._unsure.values
        self.contrary, self.findings = self._contrary.values, self._findings.values

    @property
    def agreement(self) -> float | None:
        """The fraction of labelled rows that are predicted as labelled; None where there are none."""
        right = sum(count for (label, prediction), count in self.confusion.items() if label == prediction)
        return right / sum(self.confusion.values()) if self.confusion else None

    def _known_columns(self) -> list[str]:
        for name, words in self._results.columns.items():
            if (explanation := words.get("attribution")) is not None:
                self._names.setdefault(explanation, {})
                found = Explanation(explanation, words.get("method", ""), words.get("layer", ""))
                self.explanations.setdefault(explanation, found)
                if words["kind"] in _ABOUT_EXPLANATIONS:
                    self._names[explanation][words["kind"]] = name
        own = [name for names in self._names.values() for name in names.values()]
        return [*self._results.of_kind(*_ABOUT_ROWS), "error", "error_message", *own]

    def _add(self, columns: Columns) -> None:
        for explanation, names in self._names.items():
            self.explanations[explanation].add({kind: columns[name] for kind, name in names.items()})
        for index, reason in enumerate(columns["error"]):
            self.rows += 1
            if reason is None:
                self._add_row(columns, index)
            else:
                self._add_bad(reason, columns["id"][index], columns["error_message"][index])

    def _add_bad(self, reason: str, name: str, message: str) -> None:
        self.bad[reason] += 1
        if self.bad[reason] <= _BAD_SHOWN:
            self.bad_examples.setdefault(reason, []).append((name, message))

    def _add_row(self, columns: Columns, index: int) -> None:
        make = partial(self._example, columns, index)
        self._first.add((0.0,), make)
        self.warnings.update(columns["warnings"][index] or () if "warnings" in columns else ())
        self.classes[columns["prediction"][index] if "prediction" in columns else None] += 1
        if "prediction" in columns:
            self._add_prediction(columns, index, make)
        for explanation in self._names:
            self._add_finding(columns, index, explanation)

    def _add_finding(self, columns: Columns, index: int, explanation: str) -> None:
        """Note a check; what is found of a row as of the one before it, to the last digit, is the same check."""
        names = self._names[explanation]
        if "verdict" not in names:
            return
        verdict, size, reason = (columns[names[kind]][index] for kind in ("verdict", "largest_error", "reason"))
        before, finding = self._latest.get(explanation, (None, None))
        if before != (verdict, size, reason):
            finding = None
            if verdict not in (None, Verdict.NOT_APPLICABLE):
                example = self._example(columns, index)
                new = finding = Finding(example, explanation, verdict, size, reason)
                score = verdict == Verdict.DISAGREES, math.inf if math.isnan(size) else size
                self._findings.add(score, lambda: new)
        if finding is not None:
            finding.rows, finding.last = finding.rows + 1, columns["id"][index]
        self._latest[explanation] = (verdict, size, reason), finding

    def _add_prediction(self, columns: Columns, index: int, make: partial[Example]) -> None:
        probability = columns["probability"][index]
        label, prediction = self._label(columns, index), self._results.class_name(columns["prediction"][index])
        self._sure.add((probability,), make)
        self._unsure.add((-probability,), make)
        if label is not None:
            self.confusion[label, prediction] += 1
            if label != prediction:
                self._contrary.add((probability,), make)

    def _label(self, columns: Columns, index: int) -> str | None:
        label = columns["label"][index] if "label" in columns else None
        return label if label is None or isinstance(label, str) else self._results.class_name(label)

    def _example(self, columns: Columns, index: int) -> Example:
        classified = "prediction" in columns
        return Example(
            row=columns["row"][index],
            id=columns["id"][index],
            label=self._label(columns, index),
            prediction=self._results.class_name(columns["prediction"][index]) if classified else "",
            probability=columns["probability"][index] if classified else None,
            verdicts={
                name: columns[names["verdict"]][index] for name, names in self._names.items() if "verdict" in names
            },
        )
