"""`Finding`, the likely cause of a verdict, and tests that are repeated on later inputs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

from torch import Tensor

from cutaway.contract.requests import Edit
from cutaway.contract.results import Cause
from cutaway.engine.model.inspected_model import power_of_two
from cutaway.engine.passes.pass_recorder import AttributionProblem, cached_per_problem


class Finding(NamedTuple):
    """A likely cause.

    Attributes:
        cause: for programs.
        reason: for people: what happened where, and what to do.
        rows: the numbers of the rows that it is about; empty for every row.
        own: the reason of each of ``rows`` by itself, without numbers of rows; empty where `reason` is that.
    """

    cause: Cause
    reason: str
    rows: tuple[int, ...] = ()
    own: tuple[str, ...] = ()

    @classmethod
    def of_rows(cls, cause: Cause, chosen: Tensor, tell: Callable[[str], str]) -> Finding:
        """Returns the finding about the rows ``chosen``, [batch]; ``tell`` makes a reason of words for rows."""
        rows = tuple(chosen.nonzero().flatten().tolist())
        return cls(cause, tell(row_list(rows, len(chosen))), rows, (tell(THIS_ROW),) * len(rows))

    def concerns(self, row: int | None) -> bool:
        """Returns whether it is about ``row``; None stands for the whole batch."""
        return row is None or not self.rows or row in self.rows

    def of_row(self, row: int) -> str:
        """Returns the reason for one row that it concerns."""
        return dict(zip(self.rows, self.own)).get(row, self.reason)


THIS_ROW = "this row"
_LISTED = 8


def row_list(rows: Sequence[int], batch: int) -> str:
    """Returns ``rows`` of a batch in words: ``row 3``, ``rows 0, 2 and 9 more``, ``every row``, ``this row`` of one."""
    if len(rows) == batch:
        return THIS_ROW if batch == 1 else "every row"
    more = f" and {len(rows) - _LISTED} more" if len(rows) > _LISTED else ""
    return f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows[:_LISTED]))}{more}"


# A model may be sound on the first inputs of a kind and faulty on later ones. A result without a finding is tested
# again at its 4th, 16th, 64th and every 256th use, with the inputs of that use. A result with a finding stays.

T = TypeVar("T")

_REPETITIONS = (4, 16, 64)
_LONGEST_PAUSE = 256
"""The uses, counted from 1, at which a test runs again, and the most uses of one result."""


def is_repeated_at(use: int) -> bool:
    """Returns whether a test runs again at a use of its result, counted from 1."""
    return use % _LONGEST_PAUSE == 0 or (use in _REPETITIONS)


@dataclass
class _Tested:
    """The latest result of a test, the number of its uses, and whether it is of a caller's inputs."""

    result: Any
    uses: int = 0
    of_caller: bool = True

    def is_due(self) -> bool:
        """Counts a use, and returns whether the test is to run again."""
        self.uses += 1
        return not self.result and is_repeated_at(self.uses)


def retested(
    problem: AttributionProblem,
    test: Callable[[AttributionProblem], T],
    *key: Hashable,
    lasts: bool = False,
    first: Callable[[AttributionProblem], T] | None = None,
) -> T:
    """Returns what ``test`` found on the inputs of ``problem`` or on earlier ones of their kind.

    Args:
        problem: the problem; each uses a result once.
        test: returns what is false if nothing is wrong.
        key: what else the result depends on.
        lasts: whether a result of None holds for other processes too: see `Proofs`.
        first: a quicker test of the inputs of ``problem``, where no caller's inputs were tested in this process.
    """
    whole = (test, _kind_of_batch(problem), *map(_edited, problem.edits), *key)
    if whole not in problem.cache:
        problem.cache[whole] = _result(problem, test, whole, lasts, first)
    return cast(T, problem.cache[whole])


def _result(
    problem: AttributionProblem,
    test: Callable[[AttributionProblem], T],
    whole: Hashable,
    lasts: bool,
    first: Callable[[AttributionProblem], T] | None,
) -> T | None:
    """Returns the kept result of ``test``. Runs the test if there is none, if a repetition is due, or for the first
    inputs of a caller."""
    model, proofs, key = problem.model, problem.model.proofs, whole if lasts else None

    def found(by: Callable[[AttributionProblem], T]) -> tuple[T, bool]:
        result, is_whole = proofs.run(lambda: by(problem), key)
        model.cancellation.raise_if_cancelled()  # a test may take its end for a fault of the model
        return result, is_whole

    if whole not in model.properties and not proofs.is_sound(key):
        result, is_whole = found(test)
        if proofs.rehearses and (result or not is_whole):
            return result
        model.remembered(whole, lambda: _Tested(result, of_caller=not proofs.rehearses))
    tested: _Tested = model.remembered(whole, lambda: _Tested(None, of_caller=False))
    if proofs.rehearses:
        return cast(T, tested.result)
    if tested.is_due():
        tested.result, _ = found(test)
    elif not tested.of_caller and first is not None:
        tested.result, _ = found(first)
        tested.of_caller = True
    return cast(T, tested.result)


@cached_per_problem
def _kind_of_batch(problem: AttributionProblem) -> Hashable:
    """Returns the kind of the inputs, and their sizes to a power of two.

    A fault may begin at a length, or at a number of rows.
    """
    return problem.model.layout_of(problem.inputs), power_of_two(problem.rows)


def _edited(edit: Edit) -> Hashable:
    """Returns what an edit changes, without the values that it puts there."""
    return type(edit), edit.module, edit.op, edit.point, edit.call, edit.path, edit.rows, edit.slices
