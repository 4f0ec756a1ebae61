"""What to capture at one point of a module or operator: which tensors, which slice of them, and how to reduce it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutaway.contract.errors import Reason, at, error
from cutaway.contract.requests import Max, Mean, Norm, Point, Reduction, Slice, TopElements
from cutaway.contract.tensors import too_large
from cutaway.engine.runtime.pytree import Path


class CapturedValues(NamedTuple):
    """A captured tensor; for a top-k reduction also the indices of the elements along its axis."""

    values: Tensor
    positions: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> CapturedValues:
        """Returns both tensors after ``change``."""
        return CapturedValues(change(self.values), None if self.positions is None else change(self.positions))


@dataclass(frozen=True)
class CaptureSpec:
    """What to capture at one point of a module or operator; by default all tensors of all calls.

    Attributes:
        call: only the call with this number; ``None`` for every call.
        path: only the tensor at this path; ``""`` for every tensor.
        slices: the part of each tensor that is captured.
        reduce: the reduction of that part.
        data_type: the data type of the reply for floating tensors; ``""`` for the one that the model computes in.
        field: the request field of the capture, for errors.
        type_field: the request field of the data type, for errors.
        exact: True for a name, False for a match of a glob. A capture by name that brings nothing is an error.
        batched: whether axis 0 is the batch, which must not be reduced.
    """

    call: int | None = None
    path: Path = ""
    slices: tuple[Slice, ...] = ()
    reduce: Reduction | None = None
    data_type: str = ""
    field: str = dataclasses.field(default="", compare=False)
    type_field: str = dataclasses.field(default="", compare=False)
    exact: bool = dataclasses.field(default=False, compare=False)
    batched: bool = True

    def matches(self, call: int | None, path: Path) -> bool:
        """Returns whether to capture the tensor at ``path`` of call number ``call``, ``None`` if that is unknown."""
        return self.call in (None, call) and self.path in ("", path)

    def apply(self, tensor: Tensor, result_field: str) -> CapturedValues:
        """Slices, reduces and casts ``tensor``, which the result holds in ``result_field``.

        Raises:
            InvalidArgument: ``SLICE_RANGE``, ``AXIS_RANGE`` or ``INVALID_VALUE``.
        """
        if not (self.slices or self.reduce or self.data_type):
            return CapturedValues(tensor)
        with at(self.field):
            with at("slices"):
                part = CapturedValues(tensor[slice_index(self.slices, tensor.shape)] if self.slices else tensor)
            if self.reduce is not None:
                with at("reduction"):
                    part = REDUCTIONS[type(self.reduce)](self.reduce, part.values, self.batched)
        if not self.data_type or not part.values.is_floating_point():
            return part
        with at(self.type_field):
            return CapturedValues(_cast(part.values, self.data_type, result_field), part.positions)


def _cast(tensor: Tensor, data_type: str, result_field: str) -> Tensor:
    """Casts ``tensor``, and raises where a finite number becomes infinite."""
    dtype: torch.dtype = getattr(torch, data_type)
    cast = tensor.to(dtype)
    if torch.finfo(dtype).max < torch.finfo(tensor.dtype).max:
        overflow = cast.isinf()
        if overflow.any() and (overflow := overflow & tensor.isfinite()).any():
            raise too_large(float(tensor[overflow][0]), data_type, result_field)
    return cast


def watching(*points: Point) -> dict[Point, CaptureSpec]:
    """Returns specs that capture all tensors at ``points``."""
    return dict.fromkeys(points, CaptureSpec())


def merge_specs(place: str, merged: dict[Point, CaptureSpec], specs: Mapping[Point, CaptureSpec]) -> None:
    """Adds ``specs`` to ``merged``, which has what is captured at ``place``, a module or an operator.

    Raises:
        InvalidArgument: ``INVALID_VALUE``: the two differ.
    """
    for point, spec in specs.items():
        known = merged.get(point, spec)
        if known != spec or any(other.call != spec.call for other in merged.values()):
            raise error(
                Reason.INVALID_VALUE,
                f"{place!r} is captured twice, and in different ways: other slices, reductions or calls need a request "
                "of their own",
                spec.field,
            )
        merged[point] = dataclasses.replace(known, exact=True) if spec.exact and not known.exact else known


def slice_index(slices: Iterable[Slice], shape: torch.Size) -> tuple[slice, ...]:
    """Returns the index that selects ``slices`` from a tensor of ``shape``.

    Raises:
        InvalidArgument: ``AXIS_RANGE`` or ``SLICE_RANGE``, with the number of the slice.
    """
    index = [slice(None)] * len(shape)
    for number, part in enumerate(slices):
        with at(f"[{number}]"):
            axis = _normalized_axis(part.axis, shape)
            if index[axis] != slice(None):
                raise error(Reason.SLICE_RANGE, f"axis {axis} is sliced twice", "axis")
            index[axis] = _resolved_slice(part, axis, shape[axis])
    return tuple(index)


def _resolved_slice(part: Slice, axis: int, size: int) -> slice:
    start = 0 if part.start is None else part.start + size * (part.start < 0)
    stop = size if part.stop is None else part.stop + size * (part.stop < 0)
    if not 0 <= start < stop <= size:
        raise error(Reason.SLICE_RANGE, f"from {start} to {stop} is no part of axis {axis}, which has size {size}")
    return slice(start, stop, part.step or 1)


def _normalized_axis(axis: int, shape: torch.Size, field: str = "axis") -> int:
    """Returns ``axis`` counted from the first; raises ``AXIS_RANGE``."""
    if not -len(shape) <= axis < len(shape):
        raise error(Reason.AXIS_RANGE, f"there is no axis {axis} in the shape {list(shape)}", field)
    return axis % len(shape)


def _reduced_axes(axes: Iterable[int], tensor: Tensor, batched: bool) -> tuple[int, ...]:
    normalized = tuple(_normalized_axis(axis, tensor.shape, "axes") for axis in axes)
    if len(set(normalized)) < len(normalized):
        raise error(Reason.AXIS_RANGE, f"an axis is named twice: {list(normalized)}", "axes")
    if batched and 0 in normalized:
        raise error(Reason.AXIS_RANGE, "axis 0 is the batch, which must not be reduced", "axes")
    return normalized


def _axis_reduction(field: str, floats: bool, function: Callable[[Tensor, tuple[int, ...]], Tensor]) -> Any:
    """Returns a reduction by ``function(tensor, axes)``, for floating tensors only if ``floats``."""

    def reduce(reduction: Any, tensor: Tensor, batched: bool) -> CapturedValues:
        with at(field):
            axes = _reduced_axes(reduction.axes, tensor, batched)
            if floats and not tensor.is_floating_point():
                raise error(Reason.INVALID_VALUE, f"a {field} needs a floating tensor, not {tensor.dtype}")
            if not floats and tensor.is_complex():
                raise error(Reason.INVALID_VALUE, "complex numbers have no maximum")
            if not math.prod(tensor.shape[axis] for axis in axes):
                raise error(Reason.AXIS_RANGE, f"the axes to be reduced are empty in {list(tensor.shape)}", "axes")
            return CapturedValues(function(tensor, axes))

    return reduce


def _top_elements(reduction: TopElements, tensor: Tensor, batched: bool) -> CapturedValues:
    with at("top_k"):
        axis = _normalized_axis(reduction.axis, tensor.shape)
        if batched and axis == 0:
            raise error(Reason.AXIS_RANGE, "axis 0 is the batch: rows are not compared with each other", "axis")
        if tensor.dtype is torch.bool or tensor.is_complex():
            raise error(Reason.INVALID_VALUE, f"{tensor.dtype} has no largest elements")
        if not 1 <= reduction.k <= tensor.shape[axis]:
            raise error(Reason.AXIS_RANGE, f"axis {axis} has {tensor.shape[axis]} elements, not {reduction.k}", "k")
        return CapturedValues(*tensor.topk(reduction.k, dim=axis))


REDUCTIONS: dict[type[Reduction], Callable[[Any, Tensor, bool], CapturedValues]] = {
    Mean: _axis_reduction("mean", True, lambda tensor, axes: tensor.mean(dim=axes)),
    Max: _axis_reduction("max", False, lambda tensor, axes: tensor.amax(dim=axes)),
    Norm: _axis_reduction("norm", True, lambda tensor, axes: torch.linalg.vector_norm(tensor, dim=axes)),
    TopElements: _top_elements,
}
"""The function of each reduction."""
