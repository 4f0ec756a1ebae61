"""Edits and records the tensors, and the gradients, of one module or operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from cutaway.contract.errors import Reason, at, error
from cutaway.contract.requests import Add, Clamp, Edit, Mix, Point, Replace, Scale, Zero, field_name
from cutaway.contract.results.arrays import Place
from cutaway.contract.tensors import as_array
from cutaway.engine.hooks.recording import CaptureSpec, RecordedCall, Recording, in_backward, slice_index
from cutaway.engine.runtime.numerics import Path, equal, from_numpy

# Edits of activations and gradients.

SelectPart: TypeAlias = Callable[[Tensor], Tensor]
"""Returns the part of a tensor that is edited."""


@dataclass(frozen=True, kw_only=True)
class Override(Edit):
    """An edit that replaces a value by ``change(value)``; for the engine's own use, no request can contain it."""

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
            text = f"the value is {part.dtype}, the edit's tensor {tensor.dtype}: send the same"
            raise error(Reason.EDIT_DTYPE, text)
        try:
            fits = torch.broadcast_shapes(part.shape, tensor.shape) == part.shape
        except RuntimeError:
            fits = False
        if not fits:
            text = f"a tensor of shape {list(tensor.shape)} does not broadcast against the {list(part.shape)} edited"
            raise error(Reason.EDIT_SHAPE, text)
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
        text = f"the value has shape {list(value.shape)}: axis 0 is not the batch of {batch}, so it has no rows"
        raise error(Reason.ROW_RANGE, text, "rows" if edit.rows else "mix.permutation")
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
        text = f"{list(edit.permutation)} is no permutation of the batch's rows 0 to {batch - 1}"
        raise error(Reason.PERMUTATION_INVALID, text, "mix.permutation")


class Side(NamedTuple):
    """The input or the output side of a module: the points of its values and of its gradients."""

    value: Point
    gradient: Point


INCOMING = Side(Point.INPUT, Point.GRAD_INPUT)
OUTGOING = Side(Point.OUTPUT, Point.GRAD_OUTPUT)

NumberedEdit = tuple[int, Edit]
"""An edit and its number in the request."""

_NO_EDITS: Mapping[Point, list[NumberedEdit]] = {point: [] for point in Point}


@dataclass
class HookSite:
    """One module or operator with the captures and edits of a request.

    A value is edited, then recorded; in the backward pass its gradient is edited, then recorded. So a capture shows, at
    every point, what the rest of the model gets.

    Attributes:
        recording: where to record.
        name: the module's name or the operator's address.
        specs: what to capture, by point.
        edits: all edits of this site, in order.
        batch: the number of rows of the request.
        copies: False hooks the tensors themselves where that shows the same.
        keeps_output: whether to keep the first output tensor of the first call in the graph.
    """

    recording: Recording
    name: str
    specs: Mapping[Point, CaptureSpec]
    edits: Sequence[NumberedEdit] = ()
    batch: int = 0
    copies: bool = True
    keeps_output: bool = False

    def __post_init__(self) -> None:
        self._edits = (
            {p: [edit for edit in self.edits if edit[1].point is p] for p in Point} if self.edits else _NO_EDITS
        )

    def edits_values(self, side: Side) -> bool:
        """Returns whether values are edited at ``side``."""
        return bool(self._edits[side.value])

    def needs_gradients(self, side: Side) -> bool:
        """Returns whether gradients are captured or edited at ``side``."""
        return side.gradient in self.specs or bool(self._edits[side.gradient])

    def only_records(self, side: Side) -> bool:
        """Returns whether all that is done at ``side`` is to record values."""
        keeps_output = self.keeps_output and side is OUTGOING
        return not (self.edits_values(side) or self.needs_gradients(side) or keeps_output)

    def record(self, call: RecordedCall, side: Side, tensors: Mapping[Path, Tensor]) -> None:
        """Records the values of ``tensors``, for sides where `only_records` holds."""
        call.dtypes[side.value] = {path: tensor.dtype for path, tensor in tensors.items()}
        if side.value not in self.specs:
            return
        for path, tensor in tensors.items():
            if _is_plain(tensor):
                self._record(call, side.value, path, tensor)
        self._finish(call, side)

    def process(
        self,
        call: RecordedCall,
        side: Side,
        tensors: Mapping[Path, Tensor],
        shared: Callable[[Tensor], bool],
        bare: Sequence[Tensor] = (),
    ) -> dict[Path, Tensor]:
        """Edits, records and hooks ``tensors``, and returns the tensors that the model continues with.

        Args:
            call: the call to which they belong.
            side: whether they enter or leave.
            tensors: all tensors of that side, by path.
            shared: returns whether the model may hold another reference to the same values.
            bare: tensors that must stay the same objects because the model continues with these: they are edited in
                place, and hooked without a copy.
        """
        plain = {path: tensor for path, tensor in tensors.items() if _is_plain(tensor)}
        call.dtypes[side.value] = {path: tensor.dtype for path, tensor in tensors.items()}
        floating = any(tensor.is_floating_point() for tensor in plain.values())
        results = dict(tensors)
        for path, tensor in plain.items():
            is_bare = any(tensor is other for other in bare)
            edits = self._matching_edits(call, side.value, path, tensor, floating)
            new = self._edited(edits, tensor.clone() if is_bare else tensor) if edits else tensor
            if edits and is_bare:
                new = tensor.copy_(new)
            self._record(call, side.value, path, new)
            is_shared = new is tensor and shared(tensor)
            results[path] = self._with_gradient_hook(call, side, path, new, is_shared, is_bare)
        if self.keeps_output and side is OUTGOING and self.recording.kept_output is None and plain:
            # A copy, because in-place operations behind the module do not reach it.
            self.recording.kept_output = results[next(iter(plain))].clone()
        self._finish(call, side)
        return results

    def _matching_edits(
        self, call: RecordedCall, point: Point, path: Path, tensor: Tensor, floating: bool
    ) -> list[NumberedEdit]:
        """Returns the edits of ``tensor`` at ``path``.

        An edit without a path applies to every floating tensor of its point, or to every tensor of a point without
        floating ones. ``floating``: whether the point has any.
        """
        by_default = tensor.is_floating_point() or not floating
        edits = [(n, edit) for n, edit in self._edits[point] if (edit.path == path if edit.path else by_default)]
        of_one_call = [number for number, edit in edits if edit.call is not None]
        if call.number is None and of_one_call:
            when = "is called several times, and again during the backward pass (activation checkpointing)"
            text = f"{self.name!r} {when}, where the number of the call that the edit names is unknown"
            raise error(Reason.EDIT_INAPPLICABLE, text, f"edits[{of_one_call[0]}].call")
        return [(number, edit) for number, edit in edits if edit.call in (None, call.number)]

    def _edited(self, edits: Sequence[NumberedEdit], tensor: Tensor) -> Tensor:
        """Applies ``edits`` in order, and records which of them changed a value."""
        effects = self.recording.edit_effects
        for number, edit in edits:
            before = tensor
            with at(f"edits[{number}]"):
                tensor = apply_edit(edit, before, self.batch)
            effects[number] = effects.get(number, False) or not equal(tensor.detach(), before.detach())
        return tensor

    def _record(self, call: RecordedCall, point: Point, path: Path, tensor: Tensor) -> None:
        spec = self.specs.get(point)
        if spec is not None and spec.matches(call.number, path):
            call.record(point, path, spec.apply(tensor.detach(), f"capture:{Place(self.name, point, path)}"))

    def _with_gradient_hook(
        self, call: RecordedCall, side: Side, path: Path, tensor: Tensor, shared: bool, bare: bool
    ) -> Tensor:
        """Returns ``tensor``, or a copy of it, with a hook that edits and records its gradient."""
        spec = self.specs.get(side.gradient)
        edits = self._matching_edits(call, side.gradient, path, tensor, floating=True)
        captured = spec is not None and spec.matches(call.number, path)
        can_have_gradient = torch.is_grad_enabled() and (tensor.is_floating_point() or tensor.is_complex())
        if not (edits or captured) or not can_have_gradient:
            return tensor
        node = tensor
        if not bare and (self.copies or edits or shared or tensor.is_leaf):
            node = _copy_in_graph(tensor)
            if shared:
                self.recording.mark_replaced(tensor, node)
        if captured:
            call.record(side.gradient, path, None)
        if not in_backward() and node.requires_grad:
            if captured:
                # An in-place operation moves the tensor to another place of the graph, but not the edge.
                self.recording.gradient_roots.append(get_gradient_edge(node))
            self._hook_gradient(node, call, side.gradient, path, edits)
        return node

    def _hook_gradient(
        self, node: Tensor, call: RecordedCall, point: Point, path: Path, edits: Sequence[NumberedEdit]
    ) -> None:
        def hook(gradient: Tensor) -> Tensor | None:
            if self.recording.in_forward:
                return None
            with self.recording.hook_scope():
                new = self._edited(edits, gradient)
                self._record(call, point, path, new)
            return None if new is gradient else new

        node.register_hook(hook)

    def _finish(self, call: RecordedCall, side: Side) -> None:
        spec = self.specs.get(side.value)
        if spec is not None and spec.call is not None and spec.call == call.number:
            self.recording.mark_captured(self.name, side.value)


def _copy_in_graph(tensor: Tensor) -> Tensor:
    """Returns a copy that is a node of the graph, also if ``tensor`` is not part of one yet (behind an embedding of
    token ids with frozen weights)."""
    source = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
    return source.clone()


def _is_plain(tensor: Tensor) -> bool:
    # Tensors inside torch.vmap and nested tensors have no array that could be copied.
    return not (tensor.is_nested or torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def shares_memory(tensor: Tensor, others: Iterable[Tensor]) -> bool:
    """Returns whether ``tensor`` uses the same storage as one of ``others``."""
    return any(_share_memory(tensor, other) for other in others)


def _share_memory(one: Tensor, other: Tensor) -> bool:
    if one is other:
        return True
    if not (_is_plain(one) and _is_plain(other)):
        return False
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
