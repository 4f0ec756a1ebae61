"""What is wanted of the tensors at one point: which of them, which part, how much smaller."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutaway.engine.leaves import Path
from cutaway.errors import Reason, at, error
from cutaway.requests import Max, Mean, Norm, Point, Reduction, Slice, TopElements
from cutaway.tensors import too_large


class Part(NamedTuple):
    """What was wanted of a tensor; of its largest elements also where they were."""

    values: Tensor
    positions: Tensor | None = None


@dataclass(frozen=True)
class Wish:
    """What is wanted at one point of a module or operator; by default everything.

    Attributes:
        call: only this call; ``None`` is every call.
        path: only the tensor at this path; ``""`` is every tensor.
        slices: a part of each tensor.
        reduce: how that is made smaller.
        data_type: what floating tensors are sent as; ``""`` is as computed.
        field: the request field that asks, for errors.
        type_field: the one that asks for the data type.
        exact: whether the place was named, and not matched by a glob: then what is not there is an error.
        batched: whether axis 0 is the batch, which no reduction may touch.
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

    def takes(self, call: int | None, path: Path) -> bool:
        """Whether the tensor at ``path`` of call number ``call`` is wanted; ``None`` is a call of unknown number."""
        return self.call in (None, call) and self.path in ("", path)

    def of(self, tensor: Tensor, place: str) -> Part:
        """What is wanted of ``tensor``, which is at ``place`` in the result.

        Raises:
            InvalidArgument: ``SLICE_RANGE``, ``AXIS_RANGE`` or ``INVALID_VALUE``.
        """
        if not (self.slices or self.reduce or self.data_type):
            return Part(tensor)
        with at(self.field):
            with at("slices"):
                part = Part(tensor[sliced(self.slices, tensor.shape)] if self.slices else tensor)
            if self.reduce is not None:
                with at("reduction"):
                    part = REDUCTIONS[type(self.reduce)](self.reduce, part.values, self.batched)
        if not self.data_type or not part.values.is_floating_point():
            return part
        with at(self.type_field):
            return Part(_cast(part.values, self.data_type, place), part.positions)


def _cast(tensor: Tensor, data_type: str, place: str) -> Tensor:
    """A finite number does not become infinite."""
    dtype: torch.dtype = getattr(torch, data_type)
    found = tensor.to(dtype)
    if torch.finfo(dtype).max < torch.finfo(tensor.dtype).max:
        lost = found.isinf()
        if lost.any() and (lost := lost & tensor.isfinite()).any():
            raise too_large(float(tensor[lost][0]), data_type, place)
    return found


def watching(*points: Point) -> dict[Point, Wish]:
    """Everything at ``points``."""
    return dict.fromkeys(points, Wish())


def sliced(slices: Iterable[Slice], shape: torch.Size) -> tuple[slice, ...]:
    """An index that cuts ``slices`` out of a tensor of ``shape``.

    Raises:
        InvalidArgument: ``AXIS_RANGE`` or ``SLICE_RANGE``, with the slice at fault.
    """
    index = [slice(None)] * len(shape)
    for number, each in enumerate(slices):
        with at(f"[{number}]"):
            axis = axis_of(each.axis, shape)
            if index[axis] != slice(None):
                raise error(Reason.SLICE_RANGE, f"axis {axis} is cut twice", "axis")
            index[axis] = _range(each, axis, shape[axis])
    return tuple(index)


def _range(given: Slice, axis: int, size: int) -> slice:
    start = 0 if given.start is None else given.start + size * (given.start < 0)
    stop = size if given.stop is None else given.stop + size * (given.stop < 0)
    if not 0 <= start < stop <= size:
        raise error(Reason.SLICE_RANGE, f"from {start} to {stop} is no part of axis {axis}, which has size {size}")
    return slice(start, stop, given.step or 1)


def axis_of(axis: int, shape: torch.Size, field: str = "axis") -> int:
    """``axis``, counted from the first.

    Raises:
        InvalidArgument: ``AXIS_RANGE``.
    """
    if not -len(shape) <= axis < len(shape):
        raise error(Reason.AXIS_RANGE, f"there is no axis {axis} in the shape {list(shape)}", field)
    return axis % len(shape)


def _axes(axes: Iterable[int], tensor: Tensor, batched: bool) -> tuple[int, ...]:
    found = tuple(axis_of(axis, tensor.shape, "axes") for axis in axes)
    if len(set(found)) < len(found):
        raise error(Reason.AXIS_RANGE, f"an axis is named twice: {list(found)}", "axes")
    if batched and 0 in found:
        raise error(Reason.AXIS_RANGE, "axis 0 is the batch, which is not reduced: rows stay apart", "axes")
    return found


def _over_axes(field: str, floats: bool, reduced: Callable[[Tensor, tuple[int, ...]], Tensor]) -> Any:
    def reduce(request: Any, tensor: Tensor, batched: bool) -> Part:
        with at(field):
            axes = _axes(request.axes, tensor, batched)
            if floats and not tensor.is_floating_point():
                raise error(Reason.INVALID_VALUE, f"a {field} needs floating numbers, not {tensor.dtype}")
            if not floats and tensor.is_complex():
                raise error(Reason.INVALID_VALUE, "complex numbers have no order")
            if not math.prod(tensor.shape[axis] for axis in axes):
                raise error(Reason.AXIS_RANGE, f"there is nothing along those axes of {list(tensor.shape)}", "axes")
            return Part(reduced(tensor, axes))

    return reduce


def _refuse_unordered(tensor: Tensor) -> None:
    if tensor.dtype is torch.bool or tensor.is_complex():
        raise error(Reason.INVALID_VALUE, f"{tensor.dtype} has no order: the largest elements say nothing")


def _top(request: TopElements, tensor: Tensor, batched: bool) -> Part:
    with at("top_k"):
        axis = axis_of(request.axis, tensor.shape)
        if batched and axis == 0:
            raise error(Reason.AXIS_RANGE, "axis 0 is the batch: rows are not ranked among each other", "axis")
        _refuse_unordered(tensor)
        if not 1 <= request.k <= tensor.shape[axis]:
            raise error(Reason.AXIS_RANGE, f"axis {axis} has {tensor.shape[axis]} elements, not {request.k}", "k")
        return Part(*tensor.topk(request.k, dim=axis))


REDUCTIONS: dict[type[Reduction], Callable[[Any, Tensor, bool], Part]] = {
    Mean: _over_axes("mean", True, lambda tensor, axes: tensor.mean(dim=axes)),
    Max: _over_axes("max", False, lambda tensor, axes: tensor.amax(dim=axes)),
    Norm: _over_axes("norm", True, lambda tensor, axes: torch.linalg.vector_norm(tensor, dim=axes)),
    TopElements: _top,
}
"""The reductions: a new one is a new row."""
