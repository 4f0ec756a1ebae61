"""What each verb, slice, reduction and target makes of a tensor: index lists and loops, nothing clever."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import cutaway as ca
from cutaway.contract.errors import Reason
from cutaway.contract.requests import AxisReduction, Reduction


class Refused(Exception):
    """A request that cannot be answered, for ``reason``."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


def refuse_unless(condition: bool, reason: Reason) -> None:
    """Raise `Refused` unless ``condition`` holds."""
    if not condition:
        raise Refused(reason)


class Part(NamedTuple):
    """What is left of a tensor, and for its largest elements where they were; -1 among equals, which may be ranked in
    any order."""

    values: Tensor
    positions: Tensor | None = None


# Slices.


def chosen_indices(slices: Sequence[ca.Slice], sizes: Sequence[int]) -> list[list[int]]:
    """For each axis, the indices that remain."""
    remaining = [list(range(size)) for size in sizes]
    cut = set()
    for each in slices:
        refuse_unless(-len(sizes) <= each.axis < len(sizes), Reason.AXIS_RANGE)
        axis = each.axis % len(sizes)
        refuse_unless(axis not in cut, Reason.SLICE_RANGE)
        cut.add(axis)
        size = sizes[axis]
        for bound in (each.start, each.stop):
            refuse_unless(bound is None or -size <= bound <= size, Reason.SLICE_RANGE)
        if each.indices:
            refuse_unless((each.start, each.stop, each.step) == (None, None, None), Reason.SLICE_RANGE)
            refuse_unless(all(-size <= index < size for index in each.indices), Reason.SLICE_RANGE)
            remaining[axis] = [remaining[axis][index] for index in each.indices]
            refuse_unless(len({*remaining[axis]}) == len(each.indices), Reason.SLICE_RANGE)
            continue
        remaining[axis] = remaining[axis][each.start : each.stop : each.step]
        refuse_unless(bool(remaining[axis]), Reason.SLICE_RANGE)
    return remaining


def _crossed(indices: Sequence[Sequence[int]]) -> tuple[Tensor, ...]:
    """Index lists as one index of their cross product."""
    return tuple(torch.as_tensor(each) for each in np.ix_(*[np.array(each, dtype=np.int64) for each in indices]))


# Edits.


def edited(edit: ca.Edit, value: Tensor, batch: int | None) -> Tensor:
    """``value`` after ``edit``; without a ``batch``, it has no rows."""
    refuse_unless(value.is_floating_point() or isinstance(edit, (ca.Zero, ca.Replace)), Reason.EDIT_DTYPE)
    if edit.rows or isinstance(edit, ca.Mix):
        refuse_unless(value.ndim > 0 and value.shape[0] == batch, Reason.ROW_RANGE)
    if not edit.rows and not edit.slices:
        return _changed(edit, value, value)
    sizes = [len(edit.rows), *value.shape[1:]] if edit.rows else list(value.shape)
    indices = chosen_indices(edit.slices, sizes)
    if edit.rows:
        indices[0] = [edit.rows[index] for index in indices[0]]
    where = _crossed(indices)
    return value.index_put(where, _changed(edit, value, value[where], where))


def _changed(edit: ca.Edit, whole: Tensor, part: Tensor, where: tuple[Tensor, ...] | None = None) -> Tensor:
    """What takes the place of ``part``, which lies at ``where`` in ``whole``."""
    if isinstance(edit, ca.Scale):
        return part * edit.factor
    if isinstance(edit, ca.Zero):
        return torch.zeros_like(part)
    if isinstance(edit, ca.Clamp):
        return part.clamp(edit.minimum, edit.maximum)
    if isinstance(edit, ca.Mix):
        other = torch.stack([whole[row] for row in edit.permutation])
        return edit.weight * part + (1 - edit.weight) * (other if where is None else other[where])
    if isinstance(edit, ca.AddVector):
        return part + edit.scale * _spread(edit.vector, part)
    if isinstance(edit, ca.ClampDirection):
        along = _unit(edit.vector, part)
        component = (part * along).sum(-1, keepdim=True)
        return part + (component.clamp(edit.minimum, edit.maximum) - component) * along
    if isinstance(edit, ca.SwapDirections):
        apart = _unit(edit.vector, part) - _unit(edit.other, part)
        return part - 2 * (part * apart).sum(-1, keepdim=True) * (apart / ((apart * apart).sum() or 1))
    if isinstance(edit, ca.Replace):
        return _spread(edit.tensor, part)
    assert isinstance(edit, ca.Add)
    return part + (edit.addend if isinstance(edit.addend, float) else _spread(edit.addend, part))


def _unit(given: Any, part: Tensor) -> Tensor:
    vector = torch.tensor(np.asarray(given), dtype=part.dtype)
    refuse_unless(bool(vector.norm() > 0), Reason.INVALID_VALUE)
    return vector / vector.norm()


def _spread(given: Any, part: Tensor) -> Tensor:
    array = np.asarray(given)
    refuse_unless(part.is_floating_point() or str(array.dtype) == str(part.dtype)[6:], Reason.EDIT_DTYPE)
    try:
        spread = np.broadcast_to(array, tuple(part.shape))
    except ValueError:
        raise Refused(Reason.EDIT_SHAPE) from None
    return torch.tensor(spread).to(part.dtype)


# What is brought back.


def kept(slices: Sequence[ca.Slice], reduce: Reduction | None, tensor: Tensor, batched: bool) -> Part:
    """The part of ``tensor`` that is asked for; ``batched``: axis 0 is the batch."""
    if slices:
        tensor = tensor[_crossed(chosen_indices(slices, tensor.shape))]
    if reduce is None:
        return Part(tensor)
    if isinstance(reduce, ca.TopElements):
        return _largest(reduce, tensor, batched)
    assert isinstance(reduce, AxisReduction)
    return Part(_reduced(reduce, tensor, batched))


def _axis(axis: int, tensor: Tensor, batched: bool) -> int:
    refuse_unless(-tensor.ndim <= axis < tensor.ndim, Reason.AXIS_RANGE)
    refuse_unless(not batched or axis % tensor.ndim != 0, Reason.AXIS_RANGE)
    return axis % tensor.ndim


def _reduced(reduce: AxisReduction, tensor: Tensor, batched: bool) -> Tensor:
    axes = {_axis(axis, tensor, batched) for axis in reduce.axes}
    refuse_unless(len(axes) == len(reduce.axes), Reason.AXIS_RANGE)
    if not isinstance(reduce, ca.Max):
        refuse_unless(tensor.is_floating_point(), Reason.INVALID_VALUE)
    for axis in sorted(axes, reverse=True):
        rows = tensor.unbind(axis)
        if isinstance(reduce, ca.Mean):
            tensor = torch.stack(rows).sum(0) / len(rows)
        elif isinstance(reduce, ca.Max):
            tensor = torch.stack(rows).max(0).values
        else:
            tensor = torch.stack([row**2 for row in rows]).sum(0).sqrt()
    return tensor


def _largest(reduce: ca.TopElements, tensor: Tensor, batched: bool) -> Part:
    axis = _axis(reduce.axis, tensor, batched)
    refuse_unless(tensor.dtype is not torch.bool, Reason.INVALID_VALUE)  # PyTorch ranks no booleans
    refuse_unless(1 <= reduce.k <= tensor.shape[axis], Reason.AXIS_RANGE)
    ranked = tensor.sort(dim=axis, descending=True)
    steps = ranked.values.double().diff(dim=axis, n=1) if tensor.shape[axis] > 1 else None
    positions = ranked.indices if steps is None else _without_equals(ranked.indices, steps > -_EQUAL, axis)
    return Part(ranked.values.narrow(axis, 0, reduce.k), positions.narrow(axis, 0, reduce.k))


def _without_equals(positions: Tensor, level: Tensor, axis: int) -> Tensor:
    """-1 for what is as large as the one before or behind; ``level`` has one element for each step."""
    none = torch.zeros_like(level.narrow(axis, 0, 1))
    alike = torch.cat([level, none], dim=axis) | torch.cat([none, level], dim=axis)
    return positions.masked_fill(alike, -1)


_EQUAL = 1e-10


# Targets.


class Scalars(NamedTuple):
    """One scalar a row, in the graph; for a class also which one."""

    values: Tensor
    classes: list[int] | None = None


def scalars(target: ca.Target, output: Tensor, batch: int) -> list[Scalars]:
    """The target scalars, from the output or the neuron's module's output; several for a top-k target."""
    refuse_unless(output.is_floating_point(), Reason.TARGET_SHAPE)
    refuse_unless(output.ndim > 0 and output.shape[0] == batch, Reason.TARGET_SHAPE)
    return TARGETS[type(target)](target, output)


def _picked(output: Tensor, classes: Sequence[int]) -> Scalars:
    return Scalars(torch.stack([row[each] for row, each in zip(output, classes)]), list(classes))


def _predicted(_: ca.PredictedClass, output: Tensor) -> list[Scalars]:
    if output.ndim == 1:
        return [Scalars(output)]
    refuse_unless(output.ndim == 2, Reason.TARGET_SHAPE)
    return [_picked(output, [int(row.argmax()) for row in output])]


def _ranked(target: ca.TopK, output: Tensor) -> list[Scalars]:
    refuse_unless(output.ndim == 2, Reason.TARGET_SHAPE)
    refuse_unless(1 <= target.k <= output.shape[1], Reason.TARGET_RANGE)
    order = output.detach().topk(output.shape[1], dim=1).indices  # its own choice among equals is as good as any
    return [_picked(output, order[:, rank].tolist()) for rank in range(target.k)]


def _for_each_row(given: Sequence[Any], output: Tensor) -> list[Any]:
    refuse_unless(len(given) in (1, len(output)), Reason.TARGET_MISMATCH)
    return list(given) * (len(output) if len(given) == 1 else 1)


def _labels(given: Sequence[int], output: Tensor) -> list[int]:
    refuse_unless(output.ndim == 2, Reason.TARGET_SHAPE)
    refuse_unless(all(0 <= each < output.shape[1] for each in given), Reason.TARGET_RANGE)
    return _for_each_row(given, output)


def _given_class(target: ca.ClassIndex, output: Tensor) -> list[Scalars]:
    if output.ndim == 1:
        refuse_unless(not any(target.indices), Reason.TARGET_RANGE)
        return [Scalars(output)]
    return [_picked(output, _labels(target.indices, output))]


def _in_range(position: Sequence[int], output: Tensor) -> None:
    refuse_unless(len(position) == output.ndim - 1, Reason.TARGET_SHAPE)
    fits = all(0 <= index < size for index, size in zip(position, output.shape[1:]))
    refuse_unless(fits, Reason.TARGET_RANGE)


def _element(target: ca.MultiIndex, output: Tensor) -> list[Scalars]:
    for position in target.indices:
        _in_range(position, output)
    positions = _for_each_row(target.indices, output)
    values = torch.stack([row[position] for row, position in zip(output, positions)])
    return [Scalars(values, [position[0] for position in positions] if output.ndim == 2 else None)]


def _neuron(target: ca.Neuron, output: Tensor) -> list[Scalars]:
    _in_range(target.index, output)
    return [Scalars(torch.stack([row[target.index] for row in output]))]


def _cross_entropy(target: ca.CrossEntropy, output: Tensor) -> list[Scalars]:
    labels = _labels(target.labels, output)
    share = len(output) if target.reduction is ca.LossReduction.MEAN else 1
    losses = [(row.logsumexp(0) - row[label]) / share for row, label in zip(output, labels)]
    return [Scalars(torch.stack(losses))]


def _like(given: Any, output: Tensor) -> Tensor:
    array = np.asarray(given)
    refuse_unless(array.shape == tuple(output.shape), Reason.TARGET_SHAPE)
    return torch.tensor(array, dtype=output.dtype)


def _squared_error(target: ca.MeanSquaredError, output: Tensor) -> list[Scalars]:
    wished = _like(target.values, output)
    share = output.numel() if target.reduction is ca.LossReduction.MEAN else 1
    return [Scalars(torch.stack([((row - wish) ** 2).sum() / share for row, wish in zip(output, wished)]))]


def _cotangent(target: ca.Cotangent, output: Tensor) -> list[Scalars]:
    vector = _like(target.tensor, output)
    return [Scalars(torch.stack([(row * each).sum() for row, each in zip(output, vector)]))]


def _contrast(target: ca.Contrast, output: Tensor) -> list[Scalars]:
    (one,), (other,) = (TARGETS[type(side)](side, output) for side in (target.target, target.other))
    return [Scalars(one.values - other.values)]


def _log_probability(target: ca.LogProbability, output: Tensor) -> list[Scalars]:
    refuse_unless(output.ndim > 1, Reason.TARGET_SHAPE)
    (own,) = TARGETS[type(target.target)](target.target, output - output.logsumexp(-1, keepdim=True))
    return [Scalars(own.values)]


TARGETS: Mapping[type[ca.Target], Callable[[Any, Tensor], list[Scalars]]] = {
    ca.PredictedClass: _predicted,
    ca.ClassIndex: _given_class,
    ca.MultiIndex: _element,
    ca.Contrast: _contrast,
    ca.LogProbability: _log_probability,
    ca.TopK: _ranked,
    ca.CrossEntropy: _cross_entropy,
    ca.MeanSquaredError: _squared_error,
    ca.Cotangent: _cotangent,
    ca.OutputSum: lambda _, output: [Scalars(torch.stack([row.sum() for row in output]))],
    ca.OutputNorm: lambda target, output: [
        Scalars(torch.stack([torch.linalg.vector_norm(row, target.order) for row in output]))
    ],
    ca.Neuron: _neuron,
}
