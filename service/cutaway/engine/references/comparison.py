"""The difference between an attribution and its reference, for a batch and for each row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from cutaway.engine.passes.pass_recorder import Values
from cutaway.engine.passes.reference_inputs import Reference
from cutaway.engine.runtime.numerics import SUM, cosine, largest_magnitude

MIN_ROW_SCALE = 1e-6
"""The scale of a row is at least this part of the batch's largest magnitude: smaller values are rounding errors."""


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


INCOMPARABLE = Distance(float("inf"), float("inf"), 0.0, rounding=False, undefined=False)
"""The distance of values whose names or shapes differ."""


class RowDistance(NamedTuple):
    """The same three fields of `Distance` for one row of the batch."""

    relative: float
    rounding: bool
    undefined: bool


def distance(values: Values, reference: Reference, tolerance: float, dtype: torch.dtype) -> Distance:
    """Returns the distance of ``values``, computed in ``dtype``, from ``reference``.

    ``tolerance``: the largest relative error that counts as agreement.
    """
    pairs = _pairs(values, reference)
    if not pairs:
        return INCOMPARABLE
    relative = max(_largest(pair.relative) for pair in pairs)
    agree = relative <= tolerance  # False for NaN: values that agree are finite throughout
    return Distance(
        absolute=max(_largest(pair.errors) for pair in pairs),
        relative=relative,
        cosine=cosine(
            torch.cat([pair.attribution.flatten() for pair in pairs]),
            torch.cat([pair.reference.flatten() for pair in pairs]),
        ),
        rounding=agree or all(bool(pair.is_rounding(tolerance, SUM.of(dtype)).all()) for pair in pairs),
        undefined=not agree
        and any(not bool(pair.is_finite.all()) for pair in pairs)
        and all(bool(pair.agrees_where_finite(tolerance).all()) for pair in pairs),
    )


def row_distances(values: Values, reference: Reference, tolerance: float, dtype: torch.dtype) -> list[RowDistance]:
    """Returns the same for each row: the largest ``relative`` of all rows is that of the batch.

    Empty if names or shapes differ, or if tensors have different lengths along axis 0.
    """
    pairs = _pairs(values, reference)
    if len({len(pair.errors) for pair in pairs}) != 1:
        return []
    relative = torch.cat([pair.relative for pair in pairs], dim=1)
    rounding, agree, finite = (
        torch.stack(by_pair).all(dim=0).tolist()
        for by_pair in (
            [pair.is_rounding(tolerance, SUM.of(dtype)) for pair in pairs],
            [pair.agrees_where_finite(tolerance) for pair in pairs],
            [pair.is_finite for pair in pairs],
        )
    )
    return [
        RowDistance(_largest(relative[row]), rounding[row], undefined=agree[row] and not finite[row])
        for row in range(len(relative))
    ]


def _pairs(values: Values, reference: Reference) -> list[_Pair]:
    """Returns ``values`` and ``reference`` name by name, in float64 on the host; empty if names or shapes differ."""
    references = reference.values
    if {name: value.shape for name, value in values.items()} != {name: ref.shape for name, ref in references.items()}:
        return []
    tensors = ((values[name].detach().cpu().double(), ref, reference.terms[name]) for name, ref in references.items())
    return [_Pair(*(tensor.reshape(len(tensor), -1) for tensor in triple)) for triple in tensors]


@dataclass(frozen=True)
class _Pair:
    """One attribution tensor, its reference, and the magnitudes of the reference's terms: [batch, elements] each."""

    attribution: Float64[Tensor, "batch elements"]
    reference: Float64[Tensor, "batch elements"]
    terms: Float64[Tensor, "batch elements"]

    @cached_property
    def errors(self) -> Float64[Tensor, "batch elements"]:
        """The absolute errors."""
        return (self.attribution - self.reference).abs()

    @cached_property
    def relative(self) -> Float64[Tensor, "batch elements"]:
        """The errors over the row's scale; 0 for equal values, even if the scale is 0."""
        return torch.where(self.errors == 0, torch.zeros_like(self.errors), self.errors / _scales(self.reference))

    @property
    def is_finite(self) -> Bool[Tensor, "batch"]:
        """Whether the reference is finite in the row."""
        return self.reference.isfinite().all(dim=1)

    def is_rounding(self, tolerance: float, rounding: float) -> Bool[Tensor, "batch"]:
        """Whether each error is within the tolerance, or a rounding error of terms that cancel."""
        return ((self.relative <= tolerance) | (self.errors <= rounding * self.terms)).all(dim=1)

    def agrees_where_finite(self, tolerance: float) -> Bool[Tensor, "batch"]:
        """Whether both are finite at the same elements, and agree there at the scale of the batch."""
        finite = self.reference.isfinite()
        allowed = tolerance * largest_magnitude(self.reference.nan_to_num(0.0, 0.0, 0.0))
        return ((self.attribution.isfinite() == finite) & ((self.errors <= allowed) | ~finite)).all(dim=1)


def _scales(reference: Float64[Tensor, "batch elements"]) -> Float64[Tensor, "batch 1"]:
    """Returns each row's largest magnitude."""
    if not reference.numel():
        return reference.new_ones(reference.shape[0], 1)
    scales = reference.abs().amax(dim=1, keepdim=True)
    return scales.clamp(min=MIN_ROW_SCALE * float(scales.max())) if bool(torch.isfinite(scales).all()) else scales


def _largest(errors: Tensor) -> float:
    # max() of a tensor passes NaN on, as it must: a NaN agrees with nothing.
    return float(errors.max()) if errors.numel() else 0.0
