"""The list of rows in a report, with what the page's filters need of each."""

from __future__ import annotations

from typing import NamedTuple

from cutaway.contract.results import Verdict
from cutaway.jobs.report.examples import Example

FIRST, PROBLEMS = 500, 500
"""The most rows that are listed: the first ones, and others with problems."""

_WORST_FIRST = (Verdict.DISAGREES, Verdict.INCONCLUSIVE, Verdict.AGREES, Verdict.NOT_APPLICABLE)


class Line(NamedTuple):
    """One row of the list.

    Attributes:
        example: the row.
        problem: the error of a bad row; ``""`` for others.
    """

    example: Example
    problem: str = ""


class Lines:
    """Keeps the first rows, and more of those with problems.

    Attributes:
        kept: the rows, in order.
    """

    def __init__(self) -> None:
        self.kept: list[Line] = []
        self._problems = 0

    def add(self, line: Line) -> None:
        """Keeps ``line`` if there is room."""
        if len(self.kept) - self._problems < FIRST:
            self.kept.append(line)
        elif self._problems < PROBLEMS and has_problem(line):
            self.kept.append(line)
            self._problems += 1


def has_problem(line: Line) -> bool:
    """Returns whether the row is bad, contradicts its label, or has an attribution that does not agree."""
    example = line.example
    return bool(line.problem) or is_correct(example) == "no" or worst_verdict(example) in _WORST_FIRST[:2]


def worst_verdict(example: Example) -> str:
    """Returns the worst verdict of the row; ``""`` if no attribution was checked."""
    verdicts = [verdict for verdict in _WORST_FIRST if verdict in example.verdicts.values()]
    return verdicts[0].value if verdicts else ""


def is_correct(example: Example) -> str:
    """Returns ``yes`` if the prediction is the label, else ``no``; ``""`` without either."""
    if example.label is None or not example.prediction:
        return ""
    return "yes" if example.label == example.prediction else "no"
