"""Comparison of two results: numbers within the rounding of their types, everything else exactly."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeAlias

import numpy as np

from cutaway.contract.results import InspectResult, Provenance
from cutaway.contract.results.arrays import CLASSES, by_name, entries, other_fields
from cutaway.contract.tensors import DTYPES, Array, dtype_name

_OWN = {
    *("timings", "provenance", "max_absolute_error", "max_relative_error", "cosine", "reason"),
    *("convergence_delta", "standard_error", "attribution_ms", "check_ms", "labels"),
}
"""Fields and kinds of arrays that tell how a reply was made, or what is left of rounding. Two runs may differ there; of
many classes the least likely ones that have labels, too."""

_NOT_HERE = {*_OWN, *CLASSES}
_OF_ONE_CALL = ("seed", "forwards", "backwards", "companions")
_CHANGES = [field.name for field in fields(Provenance) if field.name not in _OF_ONE_CALL]


@dataclass(frozen=True)
class Difference:
    """One place where two results differ.

    Attributes:
        place: of an array its name, ``capture:conv1@output``; else the field, ``classes[0].label``.
        why: what differs, for people.
    """

    place: str
    why: str


@dataclass(frozen=True)
class Change:
    """A change of the model, the software or the device: the value before, and the value now."""

    what: str
    before: str
    now: str


@dataclass(frozen=True)
class Comparison:
    """A comparison of a result with one that was stored.

    Attributes:
        same: whether nothing differs by more than the rounding of its type.
        exact: the number of tensors that are the same to the bit.
        near: the number of those that differ by rounding.
        largest: the largest relative difference of those; by the largest magnitude of the tensor.
        differences: what differs by more.
        changes: what has changed of the model, the software and the device.
    """

    same: bool
    exact: int
    near: int
    largest: float
    differences: tuple[Difference, ...]
    changes: tuple[Change, ...]


def compare(stored: InspectResult, now: InspectResult) -> Comparison:
    """Returns how ``now`` compares with ``stored``, the result of the same request at another time."""
    outcomes = [*_of_arrays(stored, now), *_of_fields(InspectResult, stored, now, "")]
    near = [outcome.relative for outcome in outcomes if isinstance(outcome, _Rounding) and outcome.relative]
    differences = tuple(outcome for outcome in outcomes if isinstance(outcome, Difference))
    changes = (
        Change(name, str(getattr(stored.provenance, name)), str(getattr(now.provenance, name))) for name in _CHANGES
    )
    return Comparison(
        same=not differences,
        exact=sum(isinstance(outcome, _Rounding) and not outcome.relative for outcome in outcomes),
        near=len(near),
        largest=max(near, default=0.0),
        differences=differences,
        changes=tuple(change for change in changes if change.before != change.now),
    )


@dataclass(frozen=True)
class _Rounding:
    """A tensor that is the same but for rounding; 0 is the same to the bit."""

    relative: float


_Found: TypeAlias = Iterator[Difference | _Rounding]


def _of_arrays(stored: InspectResult, now: InspectResult) -> _Found:
    """Compares the arrays of each name."""
    before, after = (by_name([entry for entry in entries(one) if entry.kind not in _NOT_HERE]) for one in (stored, now))
    for name in before | after:
        if name in before and name in after:
            yield _of_array(before[name].array, after[name].array, name)
        else:
            yield Difference(name, "there, and not before" if name in after else "not there, and there before")


def _differences(one: Any, other: Any, place: str) -> _Found:
    """Compares two values, and those inside them, and yields every difference; floats may differ by rounding."""
    if is_dataclass(one) and type(one) is type(other):
        yield from _of_fields(type(one), one, other, f"{place}.")
    elif isinstance(one, Mapping) and isinstance(other, Mapping) and list(one) == list(other):
        for key in one:
            yield from _differences(one[key], other[key], f"{place}[{str(key)!r}]")
    elif isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        for number, pair in enumerate(zip(one, other)):
            yield from _differences(*pair, f"{place}[{number}]")
    elif isinstance(one, float) and isinstance(other, float):
        if not np.isclose(one, other, rtol=tolerance("float32"), atol=0, equal_nan=True):
            yield Difference(place, f"{other:.6g}, and {one:.6g} before")
    elif one != other:
        yield Difference(place, f"{_brief(other)}, and {_brief(one)} before")


def _of_fields(kind: type, one: Any, other: Any, place: str) -> _Found:
    """Compares the fields without arrays that ``kind`` has; a client's result has more."""
    for name in other_fields(kind):
        if name not in _OWN:
            yield from _differences(getattr(one, name), getattr(other, name), f"{place}{name}")


def _of_array(one: Array, other: Array, place: str) -> Difference | _Rounding:
    """Compares two arrays: type and shape, then all bits, then the values within the `tolerance` of their type."""
    name, before = (f"{dtype_name(array)}{list(array.shape)}" for array in (other, one))
    if name != before:
        return Difference(place, f"{name}, and {before} before")
    if one.tobytes() == other.tobytes():
        return _Rounding(0.0)
    old, new = one.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(old)
    if not np.array_equal(old[~finite], new[~finite], equal_nan=True) or not np.isfinite(new[finite]).all():
        return Difference(place, "other elements are not finite")
    scale = float(np.abs(old[finite]).max(initial=0.0)) or 1.0
    relative = float(np.abs(old[finite] - new[finite]).max(initial=0.0)) / scale
    if relative > tolerance(dtype_name(one)):
        return Difference(place, f"{relative:.2g} of the largest magnitude apart")
    return _Rounding(relative or np.finfo(np.float64).tiny)  # the sign of a zero


def tolerance(data_type: str) -> float:
    """Returns how far tensors of a type may be apart, relative to the largest magnitude; integers must be equal.

    It is the square root of the type's precision: other kernels, threads and batch sizes stay far below it.
    """
    dtype = DTYPES[data_type]
    if dtype.kind in "biu":
        return 0.0
    precision = 2.0**-8 if data_type == "bfloat16" else float(np.finfo(dtype).eps)
    return math.sqrt(precision)


def _brief(value: Any) -> str:
    text = f"{value}"
    return text if len(text) <= 80 else f"{text[:77]}..."
