"""Edits: how each kind of edit changes an activation or a gradient, and which tensors it applies to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from cutaway.contract.errors import Reason, at, error
from cutaway.contract.requests import Add, Clamp, Edit, Mix, Replace, Scale, Zero, field_name
from cutaway.contract.tensors import as_array
from cutaway.engine.hooks.capture_spec import slice_index
from cutaway.engine.runtime.numerics import from_numpy

SelectPart: TypeAlias = Callable[[Tensor], Tensor]
"""Returns the part of a tensor that is edited."""


@dataclass(frozen=True, kw_only=True)
class Override(Edit):
    """Replaces a value by ``change(value)``; for the engine's own use, no request can contain it."""

    change: SelectPart


def _add(edit: Add, value: Tensor, select: SelectPart) -> Tensor:
    part = select(value)
    return part + (edit.addend if isinstance(edit.addend, (int, float)) else _edit_tensor(edit.addend, part))


def _mix(edit: Mix, value: Tensor, select: SelectPart) -> Tensor:
    # In one expression: the order of the operations is the order in which gradients are added, to the last bit.
    permutation = torch.tensor(edit.permutation, device=value.device)
    return edit.weight * select(value) + (1 - edit.weight) * select(value[permutation])


def _edit_tensor(array: Any, part: Tensor) -> Tensor:
    """Converts the array of a request to a tensor that broadcasts against ``part``."""
    tensor = from_numpy(as_array(array))
    with at("tensor"):
        if not part.is_floating_point() and tensor.dtype != part.dtype:
            raise error(
                Reason.EDIT_DTYPE, f"the value is {part.dtype}, the edit's tensor {tensor.dtype}: send the same"
            )
        try:
            fits = torch.broadcast_shapes(part.shape, tensor.shape) == part.shape
        except RuntimeError:
            fits = False
        if not fits:
            raise error(
                Reason.EDIT_SHAPE,
                f"a tensor of shape {list(tensor.shape)} does not broadcast against the {list(part.shape)} edited",
            )
    return tensor.to(device=part.device, dtype=part.dtype)


_EDIT_FUNCTIONS: dict[type[Edit], Callable[[Any, Tensor, SelectPart], Tensor]] = {
    Scale: lambda edit, value, select: select(value) * edit.factor,
    Add: _add,
    Replace: lambda edit, value, select: _edit_tensor(edit.tensor, select(value)).expand_as(select(value)).clone(),
    Zero: lambda edit, value, select: torch.zeros_like(select(value)),
    Clamp: lambda edit, value, select: select(value).clamp(edit.minimum, edit.maximum),
    Override: lambda edit, value, select: edit.change(select(value)),
    Mix: _mix,
}
"""Each returns the new values of the selected part."""

_ANY_TYPE = (Replace, Zero)
"""Edits that apply to integers and booleans too."""


def apply_edit(edit: Edit, value: Tensor, batch: int) -> Tensor:
    """Returns an edited copy of ``value``, an activation or a gradient; elements outside the edit stay bit for bit.

    Args:
        edit: the edit.
        value: any shape; axis 0 must be the batch if the edit names rows.
        batch: the number of rows of the request.

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

    def select(tensor: Tensor) -> Tensor:
        return tensor if index is None else tensor[index]

    with at(field_name(type(edit))):
        part = _EDIT_FUNCTIONS[type(edit)](edit, value, select)
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
        index = slice_index(edit.slices, shape)
    return (rows[index[0]], *index[1:]) if edit.rows else index


def validate_edit(edit: Edit, batch: int) -> None:
    """Checks rows and permutation, which needs no forward pass.

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


def matching_edits(
    edits: Sequence[tuple[int, Edit]], path: str, tensor: Tensor, floating: bool
) -> list[tuple[int, Edit]]:
    """Returns those of ``edits``, numbered as in the request, that apply to ``tensor`` at ``path``.

    An edit without a path applies to every floating tensor of its point, or to every tensor of a point without floating
    ones. ``floating``: whether the point has any.
    """
    by_default = tensor.is_floating_point() or not floating
    return [(number, edit) for number, edit in edits if (edit.path == path if edit.path else by_default)]
