"""How far an attribution lies from its reference."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cutaway.engine.evidence import Reference
from cutaway.engine.witness import Values

FAINT_ROW = 1e-6
"""A row this much fainter than the brightest is measured against the brightest: below it is rounding."""

ROUNDINGS = 8
"""How many units of rounding a sum may be off, for each unit of its terms' magnitude."""


@dataclass(frozen=True)
class Distance:
    """How far an attribution lies from its reference, over all names.

    Attributes:
        absolute: the largest error.
        relative: the largest error of a row over the reference's largest magnitude in that row, so that a bright row
            does not hide a fault in a faint one.
        cosine: between the two, flattened.
        rounding: True where no error is larger than what is left of rounding when the reference's terms cancel.
        undefined: True where both have NaNs or infinities in the same places, and agree in all others.
    """

    absolute: float
    relative: float
    cosine: float
    rounding: bool
    undefined: bool


APART = Distance(float("inf"), float("inf"), 0.0, rounding=False, undefined=False)
"""Of things that cannot be compared."""


def distance(values: Values, reference: Reference, tolerance: float, dtype: torch.dtype) -> Distance:
    """Measure ``values``, computed in ``dtype``, against ``reference``, where ``tolerance`` is agreement."""
    theirs = reference.values
    if {name: value.shape for name, value in values.items()} != {name: value.shape for name, value in theirs.items()}:
        return APART
    ours = {name: value.detach().cpu().double() for name, value in values.items()}
    rows = [_Rows(ours[name], theirs[name], reference.terms[name]) for name in theirs]
    flat = [torch.cat([side[name].flatten() for name in theirs]) for side in (ours, theirs)]
    relative = max(_largest(row.relative) for row in rows)
    agree = relative <= tolerance  # False for NaN: what agrees is finite throughout
    return Distance(
        absolute=max(_largest(row.errors) for row in rows),
        relative=relative,
        cosine=cosine(*flat),
        rounding=agree or all(row.is_rounding(tolerance, torch.finfo(dtype).eps) for row in rows),
        undefined=not agree
        and any(not bool(theirs[name].isfinite().all()) for name in theirs)
        and all(_agree_where_finite(ours[name], theirs[name], tolerance) for name in theirs),
    )


def _agree_where_finite(ours: Tensor, theirs: Tensor, tolerance: float) -> bool:
    finite = theirs.isfinite()
    scale = float(theirs[finite].abs().max()) if bool(finite.any()) else 0.0
    errors = (ours - theirs)[finite].abs()
    same_places = torch.equal(ours.isfinite(), finite)
    return same_places and bool((errors <= tolerance * scale).all())


def cosine(one: Tensor, other: Tensor) -> float:
    """The cosine between two vectors, 0 where either has no length."""
    lengths = float(one.norm() * other.norm())
    return float(one @ other) / lengths if lengths else 0.0


class _Rows:
    """One attribution tensor beside its reference, example by example: [batch, elements] each."""

    def __init__(self, ours: Tensor, theirs: Tensor, terms: Tensor) -> None:
        rows = ours.shape[0]
        self.errors = (ours - theirs).abs().reshape(rows, -1)
        self._terms = terms.reshape(rows, -1)
        self._scales = _scales(theirs.reshape(rows, -1))

    @property
    def relative(self) -> Tensor:
        """[batch, elements]; an exact match is 0 also where the reference is."""
        return torch.where(self.errors == 0, torch.zeros_like(self.errors), self.errors / self._scales)

    def is_rounding(self, tolerance: float, eps: float) -> bool:
        """Whether every error is agreement, or what is left of rounding where terms cancel."""
        within = (self.relative <= tolerance) | (self.errors <= ROUNDINGS * eps * self._terms)
        return bool(within.all())


def _scales(theirs: Tensor) -> Tensor:
    """[batch, 1], each row's largest magnitude."""
    if not theirs.numel():
        return theirs.new_ones(theirs.shape[0], 1)
    scales = theirs.abs().amax(dim=1, keepdim=True)
    return scales.clamp(min=FAINT_ROW * float(scales.max())) if bool(torch.isfinite(scales).all()) else scales


def _largest(errors: Tensor) -> float:
    # max() of a tensor passes NaN on, as it must: a NaN agrees with nothing.
    return float(errors.max()) if errors.numel() else 0.0
