"""Edits: what each verb makes of a value, and where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from cutaway.engine.arrays import from_numpy
from cutaway.engine.wishes import sliced
from cutaway.errors import Reason, at, error
from cutaway.requests import Add, Clamp, Edit, Mix, Replace, Scale, Zero, field_name
from cutaway.tensors import as_array

Cut: TypeAlias = Callable[[Tensor], Tensor]
"""The part of a tensor that is edited."""


@dataclass(frozen=True, kw_only=True)
class Override(Edit):
    """``change(value)`` instead: an edit of the engine's own, which nobody can ask for."""

    change: Cut


def _add(edit: Add, value: Tensor, cut: Cut) -> Tensor:
    part = cut(value)
    if isinstance(edit.addend, (int, float)):
        return part + edit.addend
    return part + _given(edit.addend, part, "tensor")


def _given(array: Any, part: Tensor, field: str) -> Tensor:
    """A caller's tensor, as one that broadcasts against ``part``."""
    given = from_numpy(as_array(array))
    with at(field):
        if not part.is_floating_point() and given.dtype != part.dtype:
            raise error(Reason.EDIT_DTYPE, f"the value is {part.dtype}, the edit's tensor {given.dtype}: send the same")
        try:
            fits = torch.broadcast_shapes(part.shape, given.shape) == part.shape
        except RuntimeError:
            fits = False
        if not fits:
            raise error(
                Reason.EDIT_SHAPE,
                f"a tensor of shape {list(given.shape)} does not broadcast against the {list(part.shape)} edited",
            )
    return given.to(device=part.device, dtype=part.dtype)


VERBS: dict[type[Edit], Callable[[Any, Tensor, Cut], Tensor]] = {
    Scale: lambda edit, value, cut: cut(value) * edit.factor,
    Add: _add,
    Replace: lambda edit, value, cut: _given(edit.tensor, cut(value), "tensor").expand_as(cut(value)).clone(),
    Zero: lambda edit, value, cut: torch.zeros_like(cut(value)),
    Clamp: lambda edit, value, cut: cut(value).clamp(edit.minimum, edit.maximum),
    Override: lambda edit, value, cut: edit.change(cut(value)),
    Mix: lambda edit, value, cut: (
        edit.weight * cut(value) + (1 - edit.weight) * cut(value[torch.tensor(edit.permutation, device=value.device)])
    ),
}
"""The verbs: a new one is a new row."""

_ANY_TYPE = (Replace, Zero)
"""Verbs that make sense of integers and booleans too."""


def edited(edit: Edit, value: Tensor, batch: int) -> Tensor:
    """``value`` after ``edit``, a new tensor of the same shape and type; what the edit does not name is the same bit
    for bit.

    Args:
        edit: the edit.
        value: a tensor, or a gradient.
        batch: how many rows the request has.

    Raises:
        InvalidArgument: the edit does not fit ``value``.
    """
    if not value.is_floating_point() and not isinstance(edit, _ANY_TYPE):
        raise error(Reason.EDIT_DTYPE, f"{type(edit).__name__} needs floating numbers; the value is {value.dtype}")
    if (edit.rows or isinstance(edit, Mix)) and (value.ndim == 0 or value.shape[0] != batch):
        raise error(
            Reason.ROW_RANGE,
            f"the value has shape {list(value.shape)}: axis 0 is not the batch of {batch}, so it has no rows",
            "rows" if edit.rows else "mix.permutation",
        )
    index = _index(edit, value)

    def cut(tensor: Tensor) -> Tensor:
        return tensor if index is None else tensor[index]

    with at(field_name(type(edit))):
        part = VERBS[type(edit)](edit, value, cut)
    if index is None:
        return part.to(value.dtype)
    whole = value.clone()
    whole[index] = part.to(value.dtype)
    return whole


def _index(edit: Edit, value: Tensor) -> tuple[slice | Tensor, ...] | None:
    if not edit.rows and not edit.slices:
        return None
    rows = torch.tensor(edit.rows, device=value.device)
    shape = torch.Size([len(rows), *value.shape[1:]]) if edit.rows else value.shape
    with at("slices"):
        index = sliced(edit.slices, shape)
    return (rows[index[0]], *index[1:]) if edit.rows else index


def validate(edit: Edit, batch: int) -> None:
    """Look at what can be known before anything runs.

    Raises:
        InvalidArgument: ``ROW_RANGE`` or ``PERMUTATION_INVALID``.
    """
    for index, row in enumerate(edit.rows):
        if not 0 <= row < batch:
            raise error(Reason.ROW_RANGE, f"row {row}; the batch has rows 0 to {batch - 1}", f"rows[{index}]")
    if isinstance(edit, Mix) and sorted(edit.permutation) != list(range(batch)):
        raise error(
            Reason.PERMUTATION_INVALID,
            f"{list(edit.permutation)} is no permutation of the batch's rows 0 to {batch - 1}",
            "mix.permutation",
        )


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers; NaN is NaN."""
    if not one.is_floating_point():
        return torch.equal(one, other)
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def due(edits: Sequence[tuple[int, Edit]], path: str, tensor: Tensor, floating: bool) -> list[tuple[int, Edit]]:
    """Which of ``edits`` are meant for the tensor at ``path``. ``floating``: any tensor beside it is."""
    wanted = tensor.is_floating_point() or not floating
    return [(number, edit) for number, edit in edits if (edit.path == path if edit.path else wanted)]
