"""Cuts and reduces captured tensors: which tensors a capture takes, which part of each, and its reduction."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from cutaway.contract.errors import Reason, at, error
from cutaway.contract.requests import (
    Max,
    Mean,
    Norm,
    Point,
    Position,
    Project,
    Reduction,
    Slice,
    TopElements,
)
from cutaway.contract.tensors import Array, as_array, too_large
from cutaway.engine.hooks.tokens import RowTexts, has_tokens, of_heads, of_query, of_token
from cutaway.engine.model.module_tree import ModuleTree
from cutaway.engine.runtime.numerics import Path, tensor_like


class CapturedValues(NamedTuple):
    """A captured tensor; for a top-k reduction also the indices of the elements along its axis.

    ``row_axis``: the axis that has the rows of the batch; None where none has them.
    """

    values: Tensor
    positions: Tensor | None = None
    row_axis: int | None = 0

    def map(self, change: Callable[[Tensor], Tensor]) -> CapturedValues:
        """Returns both tensors after ``change``, which keeps the axis of the rows."""
        positions = None if self.positions is None else change(self.positions)
        return CapturedValues(change(self.values), positions, self.row_axis)


class Call(Protocol):
    """Names what `CaptureSpec.matches` reads of a call: its number in the pass, and the pass's in a generation."""

    number: int | None
    step: int


@dataclass(frozen=True)
class CaptureSpec:
    """A selection of the tensors at one point of a module or operator; by default all tensors of all calls.

    Attributes:
        call: only the call with this number; ``None`` for every call.
        steps: only these steps of a generation; empty for all.
        position: only this token of each row, or these along axis 1; ``None`` for all.
        heads: of weights of attention, only these; empty for all.
        of_weights: whether the tensors are weights of attention, [batch, heads, queries, keys], and tokens the queries.
        path: only the tensor at this path; ``""`` for every tensor.
        slices: the part of each tensor that is captured.
        reduce: the reduction of that part.
        data_type: the data type of the reply for floating tensors; ``""`` for the one that the model computes in.
        field: the request field of the capture, for errors.
        type_field: the request field of the data type, for errors.
        exact: True for a name, False for a match of a glob. A capture by name that brings nothing is an error.
    """

    call: int | None = None
    path: Path = ""
    slices: tuple[Slice, ...] = ()
    reduce: Reduction | None = None
    data_type: str = ""
    field: str = dataclasses.field(default="", compare=False)
    type_field: str = dataclasses.field(default="", compare=False)
    exact: bool = dataclasses.field(default=False, compare=False)
    steps: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    of_weights: bool = False
    position: Position | tuple[Position, ...] | None = None

    def takes(self, call: Call) -> bool:
        """Returns whether to capture tensors of ``call``."""
        return self.call in (None, call.number) and (not self.steps or call.step in self.steps)

    def matches(self, call: Call, path: Path) -> bool:
        """Returns whether to capture the tensor at ``path`` of ``call``."""
        return self.path in ("", path) and self.takes(call)

    def leaves_out(self, shape: torch.Size, row_axis: int | None, texts: RowTexts | None) -> bool:
        """Returns whether a glob leaves a tensor of ``shape`` out, as it has no tokens to take one of."""
        if self.exact or self.of_weights or self.position is None:
            return False
        return not has_tokens(self.position, shape, row_axis, texts)

    def apply(
        self, tensor: Tensor, result_field: str, row_axis: int | None, texts: RowTexts | None = None
    ) -> CapturedValues:
        """Slices, reduces and casts ``tensor``, which the result holds in ``result_field``.

        Args:
            tensor: what the hook saw.
            result_field: its name in the result.
            row_axis: the axis that has the rows of the batch, which must not be reduced; None for none.
            texts: the rows' own texts, for a position; None where all tokens are.

        Raises:
            InvalidArgument: ``SLICE_RANGE``, ``AXIS_RANGE`` or ``INVALID_VALUE``.
        """
        if not (self.slices or self.reduce or self.data_type or self.heads or self.position is not None):
            return CapturedValues(tensor, row_axis=row_axis)
        with at(self.field):
            if self.heads:
                with at("heads"):
                    tensor = of_heads(tensor, self.heads)
            if self.position is not None:
                tensor = (of_query if self.of_weights else of_token)(tensor, self.position, row_axis, texts)
            if self.slices:
                with at("slices"):
                    tensor = tensor[crossed(slice_index(self.slices, tensor.shape), tensor.shape)]
            part = CapturedValues(tensor, row_axis=row_axis)
            if self.reduce is not None:
                with at("reduction"):
                    part = REDUCTIONS[type(self.reduce)](self.reduce, tensor, row_axis)
        if not self.data_type or not part.values.is_floating_point():
            return part
        with at(self.type_field):
            return part._replace(values=_cast(part.values, self.data_type, result_field))


SpecsBySite: TypeAlias = Mapping[str, Mapping[Point, CaptureSpec]]
"""Capture specs by module name or operator address, and by point."""


class ShapeSpec(CaptureSpec):
    """A capture that is applied, so that its errors show, but keeps the shape only."""

    def apply(
        self, tensor: Tensor, result_field: str, row_axis: int | None, texts: RowTexts | None = None
    ) -> CapturedValues:
        """Returns the captured part as meta tensors."""
        return super().apply(tensor, result_field, row_axis, texts).map(lambda part: part.to("meta"))


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
        calls = {(other.call, other.steps) for other in merged.values()}
        if known != spec or calls - {(spec.call, spec.steps)}:
            remedy = (
                "several tokens are position=(0, -1); other parts, reductions, steps or calls are another request's"
            )
            text = f"{place!r} is captured twice, and in different ways: {remedy}"
            raise error(Reason.INVALID_VALUE, text, spec.field)
        merged[point] = spec if spec.exact and not known.exact else known


def slice_index(slices: Iterable[Slice], shape: torch.Size) -> list[slice | Tensor]:
    """Returns the index that selects ``slices`` from a tensor of ``shape``: for each axis a range or places.

    Raises:
        InvalidArgument: ``AXIS_RANGE`` or ``SLICE_RANGE``, with the number of the slice.
    """
    index: list[slice | Tensor] = [slice(None)] * len(shape)
    for number, part in enumerate(slices):
        with at(f"[{number}]"):
            axis = _normalized_axis(part.axis, shape)
            if isinstance(index[axis], Tensor) or index[axis] != slice(None):
                raise error(Reason.SLICE_RANGE, f"axis {axis} is sliced twice", "axis")
            index[axis] = (_places if part.indices else _resolved_slice)(part, axis, shape[axis])
    return index


def crossed(index: Sequence[slice | Tensor], shape: torch.Size) -> tuple[slice | Tensor, ...]:
    """Returns an index that selects on each axis independently. PyTorch would pair the elements of two index
    tensors."""
    if sum(isinstance(part, Tensor) for part in index) < 2:
        return tuple(index)
    places = [torch.arange(size, device="cpu")[part] for size, part in zip(shape, index)]
    return tuple(own.reshape(-1, *[1] * (len(places) - axis - 1)) for axis, own in enumerate(places))


def _places(part: Slice, axis: int, size: int) -> Tensor:
    if (part.start, part.stop, part.step) != (None, None, None):
        raise error(Reason.SLICE_RANGE, "it has a range and single places: send one of them", "indices")
    places = [place + size * (place < 0) for place in part.indices]
    for number, place in enumerate(places):
        if not 0 <= place < size:
            what = f"{part.indices[number]} is no place of axis {axis}, which has size {size}"
            raise error(Reason.SLICE_RANGE, what, f"indices[{number}]")
    if len(set(places)) < len(places):
        raise error(Reason.SLICE_RANGE, f"a place of axis {axis} comes twice", "indices")
    return torch.tensor(places, device="cpu")


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


def _reduced_axes(axes: Iterable[int], tensor: Tensor, row_axis: int | None) -> tuple[int, ...]:
    normalized = tuple(_normalized_axis(axis, tensor.shape, "axes") for axis in axes)
    if len(set(normalized)) < len(normalized):
        raise error(Reason.AXIS_RANGE, f"an axis is named twice: {list(normalized)}", "axes")
    if row_axis in normalized:
        raise error(Reason.AXIS_RANGE, f"axis {row_axis} is the batch, which must not be reduced", "axes")
    return normalized


def _axis_reduction(field: str, floats: bool, function: Callable[[Tensor, tuple[int, ...]], Tensor]) -> Any:
    """Returns a reduction by ``function(tensor, axes)``, for floating tensors only if ``floats``."""

    def reduce(reduction: Any, tensor: Tensor, row_axis: int | None) -> CapturedValues:
        with at(field):
            axes = _reduced_axes(reduction.axes, tensor, row_axis)
            if floats and not tensor.is_floating_point():
                raise error(Reason.INVALID_VALUE, f"a {field} needs a floating tensor, not {tensor.dtype}")
            if not floats and tensor.is_complex():
                raise error(Reason.INVALID_VALUE, "complex numbers have no maximum")
            if not math.prod(tensor.shape[axis] for axis in axes):
                raise error(Reason.AXIS_RANGE, f"the axes to be reduced are empty in {list(tensor.shape)}", "axes")
            left = None if row_axis is None else row_axis - sum(axis < row_axis for axis in axes)
            return CapturedValues(function(tensor, axes), row_axis=left)

    return reduce


def _top_elements(reduction: TopElements, tensor: Tensor, row_axis: int | None) -> CapturedValues:
    with at("top_k"):
        axis = _normalized_axis(reduction.axis, tensor.shape)
        if axis == row_axis:
            text = f"axis {axis} is the batch: rows are not compared with each other"
            raise error(Reason.AXIS_RANGE, text, "axis")
        if tensor.dtype is torch.bool or tensor.is_complex():
            raise error(Reason.INVALID_VALUE, f"{tensor.dtype} has no largest elements")
        if not 1 <= reduction.k <= tensor.shape[axis]:
            raise error(Reason.AXIS_RANGE, f"axis {axis} has {tensor.shape[axis]} elements, not {reduction.k}", "k")
        return CapturedValues(*tensor.topk(reduction.k, dim=axis), row_axis=row_axis)


@dataclass(frozen=True)
class Matrix:
    """A map of the last axis that is kept with a model: a probe, or the encoder of a sparse autoencoder.

    It computes in the data type of its weight.

    Attributes:
        weight: [outputs, size of the last axis].
        bias: added to the result, [outputs]; None is nothing.
        threshold: results that are not above it become 0, [outputs]; None is nothing.
        center: subtracted from the value first, [size of the last axis]; None is nothing.
        relu: whether negative results become 0.
        k: only so many results stay, the largest ones; 0 is all.
        decoder: a vector for each output, [outputs, size of the last axis]; None is the weight.
    """

    weight: Tensor
    bias: Tensor | None = None
    threshold: Tensor | None = None
    center: Tensor | None = None
    relu: bool = False
    k: int = 0
    decoder: Tensor | None = None

    @property
    def vectors(self) -> Tensor:
        """A vector for each output: the direction that a sparse autoencoder writes, or a probe reads."""
        return self.weight if self.decoder is None else self.decoder

    def __call__(self, value: Tensor) -> Tensor:
        """Returns the results for ``value`` [..., size of the last axis], [..., outputs]."""
        value = value.to(self.weight.dtype)
        if self.center is not None:
            value = value - self.center.to(value.device)
        found = value @ self.weight.to(value.device).T
        return _activated(found, self.bias, self.threshold, self.relu, self.k)


def _activated(found: Tensor, bias: Tensor | None, threshold: Tensor | None, relu: bool, k: int = 0) -> Tensor:
    """Returns what a matrix returns of its products with a value; arguments are those of `Matrix`."""
    if bias is not None:
        found = found + bias.to(found.device)
    if k:
        largest = found.topk(k, dim=-1)
        found = torch.zeros_like(found).scatter(-1, largest.indices, largest.values)
    if relu:
        found = found.relu()
    return found if threshold is None else found.where(found > threshold.to(found.device), 0.0)


@dataclass(frozen=True)
class Projection(Reduction):
    """A `Project` whose modules and arrays are those of a model.

    Attributes:
        maps: applied one after the other.
        then: the reduction of the result.
    """

    maps: tuple[Callable[[Tensor], Tensor], ...]
    then: Reduction | None


def projection(tree: ModuleTree, project: Project) -> Projection:
    """Returns ``project`` for the modules of ``tree``.

    Raises:
        InvalidArgument: ``MODULE_NOT_FOUND``, with the nearest names.
    """
    maps: list[Callable[[Tensor], Tensor]] = []
    if project.norm:
        with at("norm"):
            maps.append(tree.modules[tree.resolve(project.norm)].forward)  # past all hooks
    if isinstance(project.to, str):
        with at("module"):
            maps.append(tree.map_of(project.to))
    else:
        maps.append(partial(_by_matrix, as_array(project.to)))
    maps.append(partial(_by_arrays, project))
    return Projection(tuple(maps), project.then)


def _by_matrix(matrix: Array, value: Tensor) -> Tensor:
    return value @ tensor_like(matrix, value).T


def _by_arrays(project: Project, value: Tensor) -> Tensor:
    bias, threshold = (
        None if part is None else tensor_like(as_array(part), value) for part in (project.bias, project.threshold)
    )
    return _activated(value, bias, threshold, project.relu)


@torch.no_grad()
def _projected(projection: Projection, tensor: Tensor, row_axis: int | None) -> CapturedValues:
    with at("project"):
        if not tensor.is_floating_point() or tensor.ndim == 0 or row_axis == tensor.ndim - 1:
            what = "a floating tensor is mapped, along its last axis, which is not the batch"
            raise error(Reason.INVALID_VALUE, f"{what}; this one is {tensor.dtype} {list(tensor.shape)}")
        value = tensor
        for apply in projection.maps:
            try:
                value = apply(value)
            except Exception as failure:  # of a module on a tensor that it does not take
                what = f"the last axis of {list(tensor.shape)} cannot be mapped: {failure}"
                raise error(Reason.INVALID_VALUE, what[:300]) from failure
        if projection.then is None:
            return CapturedValues(value, row_axis=row_axis)
        with at("then"):
            return REDUCTIONS[type(projection.then)](projection.then, value, row_axis)


REDUCTIONS: dict[type[Reduction], Callable[[Any, Tensor, int | None], CapturedValues]] = {
    Mean: _axis_reduction("mean", True, lambda tensor, axes: tensor.mean(dim=axes)),
    Max: _axis_reduction("max", False, lambda tensor, axes: tensor.amax(dim=axes)),
    Norm: _axis_reduction("norm", True, lambda tensor, axes: torch.linalg.vector_norm(tensor, dim=axes)),
    TopElements: _top_elements,
    Projection: _projected,
}
"""The function of each reduction."""
