"""Comparisons of tensors: what counts as equal, and what an infinity or a NaN may hide."""

from __future__ import annotations

import math

import pytest
import torch

from cutaway.engine.runtime.numerics import REPEATED, SAME_SHAPES, close, equal, largest_error, largest_magnitude

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("one", "other", "error"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([INF, NAN], [INF, NAN], 0.0),
        ([INF, 1.0], [-INF, 1.0], INF),
        ([NAN], [1.0], INF),
        ([1.0], [NAN], INF),
        ([1.0], [1.0, 1.0], INF),
        ([], [], 0.0),
    ],
)
def test_largest_error(one: list[float], other: list[float], error: float) -> None:
    """Equal infinities and NaNs are no error; others, and other shapes, are an infinite one."""
    sides = torch.tensor(one), torch.tensor(other)
    assert largest_error(*sides) == error
    assert equal(*sides) is (error == 0)
    assert close(*sides, REPEATED) is (error == 0)


def test_an_infinity_hides_no_error() -> None:
    """Errors are measured against the largest finite magnitude, also beside a masked logit of minus infinity."""
    logits, others = torch.tensor([-INF, 1.0, 2.0]), torch.tensor([-INF, 1.0, 2.1])
    assert largest_magnitude(logits) == 2.0
    assert not close(logits, others, SAME_SHAPES)
    assert close(logits, logits + 1e-6, SAME_SHAPES)


def test_integers_are_equal_or_not() -> None:
    """No tolerance applies to integers."""
    ids = torch.tensor([10**6])
    assert close(ids, ids.clone(), SAME_SHAPES)
    assert not close(ids, ids + 1, SAME_SHAPES)
    assert largest_magnitude(ids) == 0
