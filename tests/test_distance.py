"""How far apart two attributions are, measured so that nothing hides."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cutaway.engine.distance import Distance, distance
from cutaway.engine.evidence import Reference


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
