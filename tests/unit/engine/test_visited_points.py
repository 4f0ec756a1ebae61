"""Whether Captum ran at the points that a method is made of, where points are no finite numbers."""

from __future__ import annotations

import pytest
import torch

from cutaway.engine.checks.completeness import _differ, _Points
from cutaway.engine.passes.pass_recorder import RowRange

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("wanted", "seen", "same"),
    [
        ([1.0, INF, NAN], [1.0, INF, NAN], True),
        ([1.0, NAN], [1.0, 1.0], False),
        ([1.0, 1.0], [1.0, NAN], False),
        ([INF, 1.0], [-INF, 1.0], False),
        ([INF, 1.0], [1.0, 1.0], False),
        ([INF, 1.0], [INF, 2.0], False),  # the infinity is not what rounding is measured by
        ([NAN, 1.0], [NAN, 1.0 + 1e-7], True),
    ],
)
def test_points_that_are_no_finite_numbers(wanted: list[float], seen: list[float], same: bool) -> None:
    """The same infinities and the same NaNs are the same point; an infinity hides no other difference."""
    rows = [torch.tensor([[each] for each in side]) for side in (wanted, seen)]
    every = RowRange(0, len(wanted), len(wanted))
    assert _differ(_Points("x", [{"x": rows[0]}], [rows[1]]), every) is not same
    by_row = [{"x": row} for row in rows[0].split(1)]
    assert _differ(_Points("x", by_row, [rows[1]]), every) is not same  # however many rows a tensor has
