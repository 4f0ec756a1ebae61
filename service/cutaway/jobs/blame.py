"""Which rows a verdict is about. A check is of a whole batch: one row that disagrees speaks for all of them, until the
rows are found by asking again about fewer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np

from cutaway.results import AttributionResult, InspectResult, Verdict

_WORST = (Verdict.DISAGREES, Verdict.INCONCLUSIVE, Verdict.AGREES, Verdict.NOT_APPLICABLE)
"""What one of several checks says for all: where one does not apply, another may."""

_CLEARING = (Verdict.AGREES, Verdict.INCONCLUSIVE)
_SAME = 1e-5  # of a row's largest value: what the company of other rows may change by rounding


class Ruling(NamedTuple):
    """What the checks of one explanation come to for one row.

    Attributes:
        verdict: the worst of them.
        reason: why; ``""`` where they agree.
        error: the largest relative error of all of them.
    """

    verdict: Verdict
    reason: str
    error: float


Ask: TypeAlias = Callable[[int, tuple[int, ...]], "AttributionResult | None"]
"""One explanation of an answer, by its number, of some rows of the batch, by their places; None where there is none."""


def ruling(answer: AttributionResult) -> Ruling | None:
    """What the checks of ``answer`` say of all its rows together; None where nothing was checked."""
    if not answer.checks:
        return None
    worst = min(answer.checks, key=lambda check: _WORST.index(check.verdict))
    return Ruling(worst.verdict, worst.reason, max(check.max_relative_error for check in answer.checks))


def rulings(result: InspectResult, rows: Sequence[int], ask: Ask) -> list[dict[int, Ruling]]:
    """For each explanation of ``result``, the ruling about each of the batch's explained ``rows``.

    Where the batch disagrees, its halves are asked about, and theirs, down to single rows. A row that disagrees alone
    is guilty. Another takes what is said of the largest group around it that does not disagree, if its values are the
    same there. Where nobody is guilty alone, the batch keeps its verdict: a verdict is never better than the evidence.
    So does a batch each quarter of which disagrees: that is the method's fault and no row's, and costs two questions
    more about each row.
    """
    return [_ruled(answer, tuple(rows), partial(ask, number)) for number, answer in enumerate(result.attributions)]


_AskAgain: TypeAlias = Callable[[tuple[int, ...]], "AttributionResult | None"]


def _ruled(answer: AttributionResult, rows: tuple[int, ...], ask: _AskAgain) -> dict[int, Ruling]:
    whole = ruling(answer)
    if whole is None:
        return {}
    search = _Search(answer, ask)
    if whole.verdict is Verdict.DISAGREES and len(rows) > 1:
        search.among(rows)
    found = {**search.cleared, **search.guilty} if search.guilty else {}
    return {**dict.fromkeys(rows, whole), **found}


class _Search:
    """For the rows that one explanation is wrong about.

    Attributes:
        guilty: the rows that disagree alone.
        cleared: the rows of groups that do not disagree, with the same values there.
    """

    def __init__(self, answer: AttributionResult, ask: _AskAgain) -> None:
        self._answer = answer
        self._ask = ask
        self.guilty: dict[int, Ruling] = {}
        self.cleared: dict[int, Ruling] = {}

    def among(self, rows: tuple[int, ...]) -> None:
        """Look through ``rows``, which disagree together."""
        suspects = [rows]
        while suspects:
            groups = [half for group in suspects for half in _halves(group)]
            suspects = [group for group in groups if self._suspicious(group)]
            if len(suspects) == len(groups) == 4 and sum(map(len, groups)) == len(rows):
                return  # every quarter disagrees

    def _suspicious(self, group: tuple[int, ...]) -> bool:
        """Ask about ``group`` and note what is found; whether there is more to find in it."""
        again = self._ask(group)
        found = None if again is None else ruling(again)
        if again is None or found is None:
            return False
        if found.verdict in _CLEARING:
            same = [row for place, row in enumerate(group) if _same(self._answer, row, again, place)]
            self.cleared.update(dict.fromkeys(same, found))
        disagrees = found.verdict is Verdict.DISAGREES
        if disagrees and len(group) == 1:
            self.guilty[group[0]] = found
        return disagrees and len(group) > 1


def _halves(rows: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    middle = (len(rows) + 1) // 2
    return rows[:middle], rows[middle:]


def _same(whole: AttributionResult, row: int, part: AttributionResult, place: int) -> bool:
    """Whether a row of the batch has the same values where it is asked about with fewer others; NaN is never the
    same."""
    pairs = [(np.asarray(array[row]), np.asarray(part.values[name][place])) for name, array in whole.values.items()]
    if any(one.shape != other.shape for one, other in pairs):
        return False
    ones, others = (np.concatenate([each.astype(np.float64).reshape(-1) for each in side]) for side in zip(*pairs))
    return bool((np.abs(ones - others) <= _SAME * np.abs(ones).max(initial=0.0)).all())
