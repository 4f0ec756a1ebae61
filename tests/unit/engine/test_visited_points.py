"""Whether Captum ran at the points that a method is made of, where points are no finite numbers."""

from __future__ import annotations

import pytest
import torch

from cutaway.engine.checks.visited_points import _same_rows

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
    assert _same_rows(rows[:1], [rows[1]]) is same
    assert _same_rows(list(rows[0].split(1)), [rows[1]]) is same  # however many rows a tensor has
