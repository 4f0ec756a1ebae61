"""Changes values and gradients, as the edits of a request say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from cutaway.contract.errors import Reason, at, error
from cutaway.contract.requests import (
    Add,
    AddVector,
    Clamp,
    ClampDirection,
    Edit,
    Mix,
    Position,
    Replace,
    Row,
    Scale,
    SwapDirections,
    VectorNorm,
    Zero,
    field_name,
)
from cutaway.contract.tensors import as_array
from cutaway.contract.values import changed
from cutaway.engine.hooks.capture_spec import crossed, slice_index
from cutaway.engine.hooks.tokens import RowTexts, position_field, token_index
from cutaway.engine.model.module_tree import ModuleTree
from cutaway.engine.runtime.numerics import dense, in_layout_of, tensor_like

NumberedEdit = tuple[int, Edit]
"""An edit and its number in the request."""

SelectPart: TypeAlias = Callable[[Tensor], Tensor]
"""Returns the part of a tensor that is edited."""


@dataclass(frozen=True, kw_only=True)
class Override(Edit):
    """An edit that replaces a value by ``change(value)``; for the engine's own use, no request can contain it."""

    change: SelectPart


def _add(edit: Add, value: Tensor, select: SelectPart, _: object) -> Tensor:
    part = select(value)
    return part + (edit.addend if isinstance(edit.addend, (int, float)) else _edit_tensor(edit.addend, part))


def _along(array: Any, part: Tensor, field: str) -> Tensor:
    """Converts the vector of a request to a tensor of the size of the last axis of ``part``."""
    values = as_array(array)
    with at(field):
        if part.ndim == 0 or values.shape != part.shape[-1:]:
            what = f"the vector has shape {list(values.shape)}, and the last axis of {list(part.shape)} is another; of "
            what += "a module with several outputs, name the one: path='[0]'"
            raise error(Reason.EDIT_SHAPE, what)
        return tensor_like(values, part)


def _direction(array: Any, part: Tensor, field: str) -> Tensor:
    """Converts as `_along`, to length 1."""
    vector = _along(array, part, field)
    unit: Tensor = vector / torch.linalg.vector_norm(vector)
    if not bool(unit.isfinite().all()):
        raise error(Reason.INVALID_VALUE, "a vector of length 0, or with NaN, has no direction", field)
    return unit


def _add_vector(edit: AddVector, value: Tensor, select: SelectPart, _: object) -> Tensor:
    part = select(value)
    vector = _along(edit.vector, part, "vector")
    if edit.norm == VectorNorm.MATCH:
        own = torch.linalg.vector_norm(vector)
        vector = vector * (torch.linalg.vector_norm(part, dim=-1, keepdim=True) / own) if own else vector
    return part + edit.scale * vector


def _clamp_direction(edit: ClampDirection, value: Tensor, select: SelectPart, _: object) -> Tensor:
    part = select(value)
    direction = _direction(edit.vector, part, "vector")
    component = (part * direction).sum(dim=-1, keepdim=True)
    return part + (component.clamp(edit.minimum, edit.maximum) - component) * direction


def _swap_directions(edit: SwapDirections, value: Tensor, select: SelectPart, _: object) -> Tensor:
    part = select(value)
    apart = _direction(edit.vector, part, "vector") - _direction(edit.other, part, "other")
    square = (apart * apart).sum()
    across = apart / square if square > 0 else apart  # the same direction twice: nothing to exchange
    return part - 2 * (part * apart).sum(dim=-1, keepdim=True) * across


def _mix(edit: Mix, value: Tensor, select: SelectPart, other: Callable[[], Tensor]) -> Tensor:
    # In one expression: the order of the operations is the order in which gradients are added, to the last bit.
    return edit.weight * select(value) + (1 - edit.weight) * select(other())


def _by_permutation(edit: Any, value: Tensor, row_axis: int) -> Tensor:
    index: list[slice | Tensor] = [slice(None)] * value.ndim
    index[row_axis] = torch.tensor(edit.permutation, device=value.device)
    return value[tuple(index)]


def _source(edit: Mix, value: Tensor, row_axis: int | None, texts: RowTexts | None) -> Tensor:
    """Returns the tokens that the rows of ``edit`` are mixed with."""
    rows = [edit.permutation[row] for row in edit.rows or range(len(edit.permutation))]
    position, field = edit.source_position, "mix.source_position"
    if position is None:
        position, field = edit.position or 0, "position"
    return value[token_index(position, value.shape, row_axis, texts, rows, field)]


def with_vectors(tree: ModuleTree, edit: Edit) -> Edit:
    """Returns ``edit`` with the vectors that it names of matrices.

    Raises:
        InvalidArgument: ``MODULE_NOT_FOUND`` or ``SLICE_RANGE``.
    """
    for name in ("vector", "other"):
        if isinstance(row := getattr(edit, name, None), Row):
            with at(f"{field_name(type(edit))}.{name}_row"):
                edit = changed(edit, **{name: _vector(tree, row)})
    return edit


def _vector(tree: ModuleTree, row: Row) -> Tensor:
    if row.matrix not in tree.vectors:
        there = f"there are {', '.join(tree.vectors)}" if tree.vectors else "the archive has none"
        raise error(Reason.MODULE_NOT_FOUND, f"no matrix is named {row.matrix!r}; {there}", "matrix")
    vectors = tree.vectors[row.matrix]
    if not 0 <= row.index < len(vectors):
        what = f"{row.index}; the matrix {row.matrix!r} has {len(vectors)} vectors, from 0"
        raise error(Reason.SLICE_RANGE, what, "index")
    return vectors[row.index]


def _edit_tensor(array: Any, part: Tensor) -> Tensor:
    """Converts the array of a request to a tensor that broadcasts against ``part``."""
    values = as_array(array)
    with at("tensor"):
        if not part.is_floating_point() and values.dtype.name != str(part.dtype).removeprefix("torch."):
            text = f"the value is {part.dtype}, the edit's tensor {values.dtype.name}: send the same"
            raise error(Reason.EDIT_DTYPE, text)
        try:
            fits = torch.broadcast_shapes(part.shape, values.shape) == part.shape
        except RuntimeError:
            fits = False
        if not fits:
            text = f"a tensor of shape {list(values.shape)} does not broadcast against the {list(part.shape)} edited"
            raise error(Reason.EDIT_SHAPE, text)
        return tensor_like(values, part)


_EDIT_FUNCTIONS: dict[type[Edit], Callable[[Any, Tensor, SelectPart, Callable[[], Tensor]], Tensor]] = {
    Scale: lambda edit, value, select, _: select(value) * edit.factor,
    Add: _add,
    Replace: lambda edit, value, select, _: _edit_tensor(edit.tensor, select(value)).expand_as(select(value)).clone(),
    Zero: lambda edit, value, select, _: torch.zeros_like(select(value)),
    Clamp: lambda edit, value, select, _: select(value).clamp(edit.minimum, edit.maximum),
    Override: lambda edit, value, select, _: edit.change(select(value)),
    Mix: _mix,
    AddVector: _add_vector,
    ClampDirection: _clamp_direction,
    SwapDirections: _swap_directions,
}
"""Each returns the new values of the selected part."""

_ANY_TYPE = (Replace, Zero, Override)
"""Edits that apply to integers and booleans too."""


def apply_edit(
    edit: Edit, value: Tensor, row_axis: int | None, texts: RowTexts | None = None, source: Tensor | None = None
) -> Tensor:
    """Returns an edited copy of ``value``, an activation or a gradient; elements outside the edit stay bit for bit.

    Args:
        edit: the edit.
        value: any shape.
        row_axis: the axis that has the rows of the batch, for edits that name rows; None for none.
        texts: the rows' own texts, for edits of positions; None where all tokens are.
        source: what `Mix` mixes ``value`` with; None for the rows of its permutation.

    Raises:
        InvalidArgument: the edit does not fit ``value``.
    """
    if edit.position is not None:
        tokens = token_index(edit.position, value.shape, row_axis, texts, edit.rows)
        _refuse_same_token(*tokens)
        source = _source(edit, value, row_axis, texts) if isinstance(edit, Mix) else None
        whole = value.clone()
        whole[tokens] = apply_edit(changed(edit, position=None, rows=()), value[tokens], 0, source=source)
        return whole
    if not value.is_floating_point() and (value.is_quantized or not isinstance(edit, _ANY_TYPE)):
        raise error(Reason.EDIT_DTYPE, f"{type(edit).__name__} needs floating numbers; the value is {value.dtype}")
    if value.layout is not torch.strided:
        return in_layout_of(value, apply_edit(edit, dense(value), row_axis))
    if (edit.rows or isinstance(edit, Mix)) and row_axis is None:
        text = f"the value has shape {list(value.shape)}: none of its axes is the batch, so it has no rows"
        raise error(Reason.ROW_RANGE, text, "rows" if edit.rows else "mix.permutation")
    index = _index(edit, value, row_axis)

    def select(tensor: Tensor) -> Tensor:
        return tensor if index is None else tensor[index]

    with at(field_name(type(edit))):
        other = partial(_by_permutation, edit, value, row_axis or 0) if source is None else lambda: source
        part = _EDIT_FUNCTIONS[type(edit)](edit, value, select, other)
    if index is None:
        return part.to(value.dtype)
    whole = value.clone()
    whole[index] = part.to(value.dtype)
    return whole


def _refuse_same_token(rows: Tensor, columns: Tensor) -> None:
    """Refuses several positions of which two are one token of a row: each edit would be lost, or come twice.

    Args:
        rows: the numbers of the rows, [rows, 1].
        columns: their tokens, [rows, positions]; of one position [rows], where nothing is refused.
    """
    ordered = columns.sort(dim=-1).values
    if columns.ndim > 1 and len(same := (ordered[:, 1:] == ordered[:, :-1]).any(dim=1).nonzero()):
        what = f"two of them are one token of row {int(rows[same[0, 0], 0])}: name each token once"
        raise error(Reason.SLICE_RANGE, what, "positions")


def _index(edit: Edit, value: Tensor, row_axis: int | None) -> tuple[slice | Tensor, ...] | None:
    if not edit.rows and not edit.slices:
        return None
    shape = list(value.shape)
    if edit.rows and row_axis is not None:
        shape[row_axis] = len(edit.rows)
    index: list[slice | Tensor] = []
    with at("slices"):
        index += slice_index(edit.slices, torch.Size(shape))
    if edit.rows and row_axis is not None:
        index[row_axis] = torch.tensor(edit.rows, device="cpu")[index[row_axis]]
    return crossed(index, value.shape)


def _count(position: Position | tuple[Position, ...] | None) -> int | None:
    """Returns how many tokens several positions are; 0 for one, and None for all."""
    return None if position is None else len(position) if isinstance(position, tuple) else 0


def validate_edit(edit: Edit, batch: int) -> None:
    """Checks rows, permutation and its positions, which needs no forward pass.

    Raises:
        InvalidArgument: ``ROW_RANGE``, ``PERMUTATION_INVALID``, or ``INVALID_VALUE``.
    """
    for index, row in enumerate(edit.rows):
        if not 0 <= row < batch:
            raise error(Reason.ROW_RANGE, f"row {row}; the batch has rows 0 to {batch - 1}", f"rows[{index}]")
    if (
        isinstance(edit, Mix)
        and edit.source_position is not None
        and _count(edit.position) != _count(edit.source_position)
    ):
        what = "it has as many tokens as the position, and several where that has several"
        raise error(Reason.INVALID_VALUE, what, f"mix.source_{position_field(edit.source_position)}")
    if isinstance(edit, Mix) and not (len(edit.permutation) == batch and {*edit.permutation} <= {*range(batch)}):
        text = f"{list(edit.permutation)} does not name one of the batch's rows 0 to {batch - 1} for each of them"
        raise error(Reason.PERMUTATION_INVALID, text, "mix.permutation")
