"""How far apart two attributions are, measured so that nothing hides."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cutaway.engine.passes.reference_inputs import Distance, Reference, RowDistance, distance, row_distances


def measured(ours: Tensor, theirs: Tensor, terms: Tensor | None = None) -> Distance:
    """The distance at float32 and a tolerance of 1e-4."""
    reference = Reference({"x": theirs.double()}, {"x": theirs.double().abs() if terms is None else terms.double()})
    return distance({"x": ours}, reference, 1e-4, torch.float32)


def test_a_bright_row_does_not_hide_a_fault_in_a_faint_one() -> None:
    """An error counts against the largest magnitude of its own row, not of the batch."""
    theirs = torch.tensor([[1e4, 2e4], [1.0, 2.0]])
    ours = theirs.clone()
    ours[1, 0] = 1.02
    assert math.isclose(measured(ours, theirs).relative, 0.01, rel_tol=1e-5)


def test_a_row_of_dust_is_measured_against_the_light() -> None:
    """A row a million times fainter than the brightest is rounding, and no disagreement."""
    theirs = torch.tensor([[1.0], [1e-12]])
    assert measured(torch.tensor([[1.0], [2e-12]]), theirs).relative < 1e-4


def test_what_is_left_of_cancelled_terms_is_rounding() -> None:
    """An error within the rounding of large terms is told apart; a larger one is not excused."""
    theirs, terms = torch.tensor([[1e-8]]), torch.tensor([[1.0]])
    assert measured(torch.tensor([[9e-8]]), theirs, terms).rounding
    assert not measured(torch.tensor([[1e-5]]), theirs, terms).rounding


def test_what_is_no_number_agrees_with_nothing() -> None:
    """NaN on one side is as far as can be; on both sides, in the same places, nothing can be said."""
    number, none = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, math.nan]])
    assert not measured(none, number).relative <= 1e-4
    assert not measured(none, number).undefined
    assert measured(none, none).undefined


def test_other_shapes_and_names_cannot_be_compared() -> None:
    """A missing axis or another name is infinitely far, and never broadcast away."""
    assert measured(torch.ones(2, 1), torch.ones(2, 3)).relative == math.inf
    reference = Reference({"y": torch.ones(1).double()}, {"y": torch.ones(1).double()})
    assert distance({"x": torch.ones(1)}, reference, 1e-4, torch.float32).relative == math.inf


def test_each_row_is_measured_as_the_batch_is() -> None:
    """Of each row its own error and what excuses it; the largest error is the batch's. A row that is faint beside a
    bright one is measured against that."""
    theirs = torch.tensor([[1e4, 2e4], [1.0, 2.0], [1e-12, 0.0], [3.0, 3.0]])
    ours = theirs.clone()
    ours[1, 0], ours[2, 0], ours[3, 0] = 1.02, 2e-12, 3.001
    terms = torch.tensor([[1.0], [1.0], [1.0], [1e4]]).expand(4, 2)
    reference = Reference({"x": theirs.double()}, {"x": terms.double()})
    rows = row_distances({"x": ours}, reference, 1e-4, torch.float32)
    assert [row.relative <= 1e-4 for row in rows] == [True, False, True, False]
    assert math.isclose(rows[1].relative, 0.01, rel_tol=1e-5)
    assert [row.rounding for row in rows] == [True, False, True, True]
    assert not any(row.undefined for row in rows)
    assert max(row.relative for row in rows) == distance({"x": ours}, reference, 1e-4, torch.float32).relative


def test_a_row_without_numbers_excuses_no_other() -> None:
    """Where neither is a number in the same places, nothing can be said of that row; a NaN on one side is a fault."""
    theirs = torch.tensor([[1.0, math.nan], [3.0, 1.0], [1.0, 2.0]]).double()
    ours = torch.tensor([[1.0, math.nan], [3.0, math.nan], [1.0, 2.0]])
    rows = row_distances({"x": ours}, Reference({"x": theirs}, {"x": theirs.abs()}), 1e-4, torch.float32)
    assert [row.undefined for row in rows] == [True, False, False]
    assert [row.relative <= 1e-4 for row in rows] == [False, False, True]


def test_rows_of_several_tensors_count_together() -> None:
    """Of several tensors, axis 0 must be the same rows; what cannot be compared has none."""
    sides = {"x": torch.ones(2, 3).double(), "y": torch.ones(2).double()}
    exact = Reference(sides, sides)
    assert row_distances(sides, exact, 1e-4, torch.float32) == [RowDistance(0.0, rounding=True, undefined=False)] * 2
    wrong = {**sides, "y": torch.tensor([1.0, 2.0])}
    assert [row.relative for row in row_distances(wrong, exact, 1e-4, torch.float32)] == [0.0, 1.0]
    assert row_distances({"x": torch.ones(1)}, exact, 1e-4, torch.float32) == []
    sides = {"x": torch.ones(2, 3).double(), "y": torch.ones(3).double()}
    assert row_distances(sides, Reference(sides, sides), 1e-4, torch.float32) == []
