"""Edits and records the tensors, and the gradients, of one module or operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from cutaway.contract.errors import CutawayError, Reason, at, error
from cutaway.contract.requests import Edit, Point
from cutaway.contract.results import EditReceipt
from cutaway.contract.results.arrays import Place
from cutaway.engine.hooks.capture_spec import CaptureSpec, SpecsBySite
from cutaway.engine.hooks.edits import NumberedEdit, apply_edit
from cutaway.engine.hooks.recording import RecordedCall, Recording, in_backward
from cutaway.engine.hooks.tokens import ONE_TOKEN, RowTexts, has_tokens
from cutaway.engine.model.module_tree import is_glob
from cutaway.engine.runtime.numerics import Path, arrays_of, dense, equal, has_array

# The batch: how many rows a request has, and where they are in the tensors of the model.

PlaceInSite: TypeAlias = tuple[Point, Path, "int | None"]
"""A point of values at a hook site, the tensor's path, and the number of the call."""


@dataclass
class RowAxes:
    """The axes that have the rows of the batch; `cutaway.engine.hooks.axes` finds them.

    Attributes:
        sites: by hook site and by place, None where no axis has them.
        outputs: the same by output of the model.
        tested: the sites that the test has seen; None if it never ran.
        channels: by layer, and by the axis that a request names for its channels or None, their axis by path, or why
            there is none.
    """

    sites: dict[str, dict[PlaceInSite, int | None]] = field(default_factory=dict)
    outputs: dict[str, int | None] = field(default_factory=dict)
    tested: set[str] | None = None
    channels: dict[tuple[str, int | None], dict[Path, int] | CutawayError] = field(default_factory=dict)

    def of(self, site: str, place: PlaceInSite, shape: Sequence[int], rows: int) -> int | None:
        """Returns the axis of a tensor of ``shape`` that has the ``rows``, or None.

        At a place that the test did not see, such as in a model that takes one batch size only, it is the first axis of
        that size.
        """
        known, (point, path, _) = self.sites.get(site, {}), place
        return _with_rows(known.get(place, known.get((point, path, 0), _UNKNOWN)), shape, rows)

    def of_output(self, name: str, output: Tensor, rows: int) -> int | None:
        """Returns the axis of the model's ``output`` that has the ``rows``, as `of`."""
        return _with_rows(self.outputs.get(name, _UNKNOWN), output.shape, rows)

    def at_output(self, module: str) -> dict[Path, int | None]:
        """Returns the axes of what a module returns, by path, as the test saw them in its first call."""
        known = self.sites.get(module, {}).items()
        return {path: axis for (point, path, call), axis in known if (point, call) == (Point.OUTPUT, 0)}


_UNKNOWN = -1


def _with_rows(axis: int | None, shape: Sequence[int], rows: int) -> int | None:
    """Returns ``axis`` if it has the ``rows``, else None; for an unknown one the first that has them."""
    if axis == _UNKNOWN:
        return next((known for known, size in enumerate(shape) if size == rows), None)
    return axis if axis is not None and axis < len(shape) and shape[axis] == rows else None


class Batch(NamedTuple):
    """The number of rows of a request, where they are in tensors inside the model, and, for positions, which tokens of
    each row are its own text."""

    rows: int
    axes: RowAxes
    texts: RowTexts | None = None


class Side(NamedTuple):
    """The input or the output side of a module: the points of its values and of its gradients."""

    value: Point
    gradient: Point


VALUE_POINTS = {point: point for point in Point} | {
    Point.GRAD_INPUT: Point.INPUT,
    Point.GRAD_OUTPUT: Point.OUTPUT,
}
"""The point of the values, by the point of the values or of their gradients."""

INCOMING = Side(Point.INPUT, Point.GRAD_INPUT)
OUTGOING = Side(Point.OUTPUT, Point.GRAD_OUTPUT)

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
        batch: the rows of the request; None where nothing is about rows.
        copies: False hooks the tensors themselves where that shows the same.
        keeps_output: whether to keep the first output tensor of the first call in the graph.
    """

    recording: Recording
    name: str
    specs: Mapping[Point, CaptureSpec]
    edits: Sequence[NumberedEdit] = ()
    batch: Batch | None = None
    copies: bool = True
    keeps_output: bool = False

    def __post_init__(self) -> None:
        self._edits = (
            {p: [edit for edit in self.edits if edit[1].point is p] for p in Point} if self.edits else _NO_EDITS
        )

    @property
    def only_records_outputs(self) -> bool:
        """Whether all that is done here is to record outputs: the inputs of the module are not looked at."""
        return not self.edits and not self.keeps_output and set(self.specs) == {Point.OUTPUT}

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
            if has_array(tensor):
                self._record(call, side.value, path, tensor)
            else:
                call.without_array += ((side.value, path),)
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
        plain = {path: tensor for path, tensor in tensors.items() if has_array(tensor)}
        call.dtypes[side.value] = {path: tensor.dtype for path, tensor in tensors.items()}
        call.without_array += tuple((side.value, path) for path in tensors if path not in plain)
        floating = any(tensor.is_floating_point() for tensor in plain.values())
        results = dict(tensors)
        for path, tensor in plain.items():
            is_bare = any(tensor is other for other in bare)
            edits = self._matching_edits(call, side.value, path, tensor, floating)
            axis = self._row_axis(call, side.value, path, tensor) if edits else None
            new = self._edited(edits, call, tensor.clone() if is_bare else tensor, axis) if edits else tensor
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
        return [
            (number, edit)
            for number, edit in edits
            if edit.call in (None, call.number)
            and (not edit.steps or call.step in edit.steps)
            and self._reaches(number, edit, call, Place(self.name, point, path), tensor)
        ]

    def _reaches(self, number: int, edit: Edit, call: RecordedCall, place: Place, tensor: Tensor) -> bool:
        """Returns whether an edit of a token is applied to ``tensor``, and notes it; a glob leaves others out."""
        if edit.position is None or not is_glob(edit.module):
            return True
        axis = self._row_axis(call, place.point, place.path, tensor)
        if has_tokens(edit.position, tensor.shape, axis, self._texts(call)):
            self.recording.edited.add((number, place))
            return True
        self.recording.left_out[number, place] = None
        return False

    def _texts(self, call: RecordedCall) -> RowTexts | None:
        """Returns which tokens are the rows' own; later steps of a generation have one token of each."""
        texts = None if self.batch is None else self.batch.texts
        return None if texts is None else ONE_TOKEN if call.step else texts.inside(self.name)

    def _row_axis(self, call: RecordedCall, point: Point, path: Path, tensor: Tensor) -> int | None:
        """Returns the axis of a tensor, or of its gradient, that has the rows of the request, or None."""
        if self.batch is None:
            return None
        rows, axes, _ = self.batch
        return axes.of(self.name, (VALUE_POINTS[point], path, call.number), tensor.shape, rows)

    def _edited(
        self, edits: Sequence[NumberedEdit], call: RecordedCall, tensor: Tensor, row_axis: int | None
    ) -> Tensor:
        """Applies ``edits`` in order, and records what each of them did."""
        for number, edit in edits:
            before = tensor
            with at(f"edits[{number}]"):
                tensor = apply_edit(edit, before, row_axis, self._texts(call))
            self._sign(number, call, dense(before.detach()), dense(tensor.detach()))
        return tensor

    def _sign(self, number: int, call: RecordedCall, before: Tensor, after: Tensor) -> None:
        """Adds to the receipt of edit ``number`` that it made ``after`` out of ``before``."""
        known, is_changed = self.recording.receipts.get(number, EditReceipt()), not equal(after, before)
        moved = 0.0
        if is_changed and after.is_floating_point():
            with torch._C.DisableTorchFunction():  # modes would take it for the model's
                moved = float(torch.linalg.vector_norm(after - before, dtype=torch.float64))
        steps, norm = tuple(sorted({*known.steps, call.step})), math.hypot(known.norm, moved)
        self.recording.receipts[number] = EditReceipt(known.tensors + 1, known.changed or is_changed, norm, steps)

    def _record(self, call: RecordedCall, point: Point, path: Path, tensor: Tensor) -> None:
        if (spec := self._taking(call, point, path, tensor)) is not None:
            axis = self._row_axis(call, point, path, tensor)
            # A place in words, for the one error that names it, takes as long as the copy of a small tensor.
            named = f"capture:{Place(self.name, point, path)}" if spec.data_type else ""
            call.record(point, path, spec.apply(dense(tensor.detach()), named, axis, self._texts(call)))

    def _taking(self, call: RecordedCall, point: Point, path: Path, tensor: Tensor) -> CaptureSpec | None:
        """Returns the spec that takes ``tensor`` at ``point``, or None; notes that a glob leaves it out."""
        spec = self.specs.get(point)
        if spec is None or not spec.matches(call, path):
            return None
        if not spec.leaves_out(tensor.shape, self._row_axis(call, point, path, tensor), self._texts(call)):
            return spec
        call.left_out += ((point, path),)
        return None

    def _with_gradient_hook(
        self, call: RecordedCall, side: Side, path: Path, tensor: Tensor, shared: bool, bare: bool
    ) -> Tensor:
        """Returns ``tensor`` with a hook that edits and records its gradient, if the request asks for that.

        A copy gets the hook, where one on the tensor itself would also see gradients of other uses. ``bare``: the
        model continues with this very object, so that no copy may take its place.
        """
        edits = self._matching_edits(call, side.gradient, path, tensor, floating=True)
        captured = self._taking(call, side.gradient, path, tensor) is not None
        can_have_gradient = torch.is_grad_enabled() and (tensor.is_floating_point() or tensor.is_complex())
        if not (edits or captured) or not can_have_gradient:
            return tensor
        node = tensor
        if not bare and (self.copies or edits or shared or _is_bare_leaf(tensor)):
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
        return node if node is tensor else _in_class_of(tensor, node)

    def _hook_gradient(
        self, node: Tensor, call: RecordedCall, point: Point, path: Path, edits: Sequence[NumberedEdit]
    ) -> None:
        """Registers a hook on ``node`` that edits and records its gradient, except in a backward pass that the model
        runs in its forward."""

        def hook(gradient: Tensor) -> Tensor | None:
            if self.recording.in_forward:
                return None
            with self.recording.hook_scope():
                axis = self._row_axis(call, point, path, gradient) if edits else None
                new = self._edited(edits, call, gradient, axis)
                self._record(call, point, path, new)
            return None if new is gradient else new

        handle = node.register_hook(hook)
        if node.is_leaf:  # which outlives its graph
            self.recording.on_leaves.append(handle)

    def _finish(self, call: RecordedCall, side: Side) -> None:
        spec = self.specs.get(side.value)
        if spec is not None and spec.call is not None and spec.call == call.number:
            self.recording.mark_captured(self.name, side.value)


def _is_bare_leaf(tensor: Tensor) -> bool:
    """Returns whether ``tensor`` is in no graph, or a parameter; Captum's own leaves in a layer's place are neither."""
    return tensor.is_leaf and (not tensor.requires_grad or isinstance(tensor, nn.Parameter))


def _copy_in_graph(tensor: Tensor) -> Tensor:
    """Returns a copy that is a node of the graph, also if ``tensor`` is not part of one yet (behind an embedding of
    token ids with frozen weights)."""
    # A copy in a class of its own would be a view, whose gradient ends where it is written to.
    with torch._C.DisableTorchFunctionSubclass():
        source = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
        return source.clone()


def _in_class_of(tensor: Tensor, copy: Tensor) -> Tensor:
    """Returns ``copy`` in the class of ``tensor``, where that is a class of its own."""
    kind = type(tensor)
    return copy if kind in (Tensor, nn.Parameter, type(copy)) else copy.as_subclass(kind)


def shares_memory(tensor: Tensor, others: Iterable[Tensor]) -> bool:
    """Returns whether ``tensor`` uses the same storage as one of ``others``."""
    return any(_share_memory(tensor, other) for other in others)


def _share_memory(one: Tensor, other: Tensor) -> bool:
    if one is other or not (has_array(one) and has_array(other)):
        return one is other
    pointers = [{part.untyped_storage().data_ptr() for part in arrays_of(tensor)} for tensor in (one, other)]
    return not pointers[0].isdisjoint(pointers[1])


# Several requests whose rows run in one pass, each with its own captures, edits and record.


class Share(NamedTuple):
    """The rows of one request in passes that several share.

    Attributes:
        recording: where its hooks record.
        sites: what it captures.
        edits: its edits.
        batch: its rows, as if they ran alone.
        rows: where they are in the batch of all.
        padding: the tokens of padding in front of its own prompt, which the longest prompt of all needs.
        is_open: returns whether it has not ended.
        tail: the tokens of others behind its own.
    """

    recording: Recording
    sites: SpecsBySite
    edits: Mapping[str, Sequence[NumberedEdit]]
    batch: Batch
    rows: slice
    padding: int
    is_open: Callable[[], bool]
    tail: int = 0


Shapes: TypeAlias = dict[tuple[str, Point, Path, "int | None"], Sequence[int]]
"""The shapes of tensors in the last pass, by module, point, path and call."""


class SharedSite:
    """The sites of several requests at one module, each of which sees its own rows."""

    def __init__(
        self, recording: Recording, name: str, shares: Sequence[Share], sizes: tuple[int, int, int], shapes: Shapes
    ) -> None:
        self.recording, self.name = recording, name
        self._rows, self._width, self._last = sizes
        asked = [share for share in shares if name in share.sites or name in share.edits]
        self._own = [
            (share, HookSite(share.recording, name, share.sites.get(name, {}), share.edits.get(name, ()), share.batch))
            for share in asked
        ]
        self._open: list[list[RecordedCall | None]] = []
        self._shapes = shapes

    only_records_outputs = False  # a call begins for each request by itself

    def needs_gradients(self, side: Side) -> bool:
        """Returns False: passes that several share have none."""
        return False

    def only_records(self, side: Side) -> bool:
        """Returns False: `process` alone gives each request its rows."""
        return False

    def record(self, call: RecordedCall, side: Side, tensors: Mapping[Path, Tensor]) -> None:
        """Records as `process`."""
        self.process(call, side, tensors, lambda _: True)

    def process(
        self, joint: RecordedCall, side: Side, tensors: Mapping[Path, Tensor], shared: Callable[[Tensor], bool]
    ) -> dict[Path, Tensor]:
        """Edits and records the rows of each request, and returns the tensors that the model continues with."""
        if side is INCOMING:
            self._open.append(
                [site.recording.begin_call(self.name) if share.is_open() else None for share, site in self._own]
            )
        calls = self._open[-1] if side is INCOMING else self._open.pop()
        results = dict(tensors)
        for (share, site), call in zip(self._own, calls):
            if call is None:
                continue
            call.dtypes[side.value] = {path: tensor.dtype for path, tensor in tensors.items()}
            if site.only_records(side) and side.value not in site.specs:
                continue
            paths = {spec.path for spec in site.specs.values()} | {edit.path for _, edit in site.edits}
            asked = {path: tensor for path, tensor in results.items() if {"", path} & paths}
            if share.padding or share.tail:
                self._refuse_other_tokens(joint, side, asked)
            own = {path: tensor[self._place(share, tensor, call.step)] for path, tensor in asked.items()}
            if site.only_records(side):
                site.record(call, side, own)
                continue
            for path, new in site.process(call, side, own, shared).items():
                if new is not own[path]:
                    whole = results[path].clone() if results[path] is tensors[path] else results[path]
                    whole[self._place(share, whole, call.step)] = new
                    results[path] = whole
        for path, tensor in tensors.items():
            self._shapes[self.name, side.value, path, joint.number] = tensor.shape
        return results

    def _refuse_other_tokens(self, call: RecordedCall, side: Side, tensors: Mapping[Path, Tensor]) -> None:
        """Refuses tensors with an element for each token on another axis than 1, as attention weights have. Such an
        axis grows with every step; in the first one, no axis may have as many elements by chance.

        Raises:
            CutawayError: ``INTERNAL``; alone a request has none.
        """
        tokens = self._width + call.step
        for path, tensor in tensors.items():
            before = self._shapes.get((self.name, side.value, path, call.number), ())
            for axis, size in enumerate(tensor.shape[2:], 2):
                is_same = len(before) > axis and before[axis] == size
                is_of_heads = tensor.ndim > 3 and tensor.shape[1] == self._width
                if is_of_heads or (size == tokens and not is_same):
                    raise self._undivided(tensor)

    def _undivided(self, tensor: Tensor) -> CutawayError:
        return error(
            Reason.INTERNAL, f"a tensor {list(tensor.shape)} of {self.name!r} cannot be divided among requests"
        )

    def _place(self, share: Share, tensor: Tensor, step: int) -> tuple[slice, ...]:
        """Returns where the rows of a request are in ``tensor``, without the tokens of others.

        Raises:
            CutawayError: ``INTERNAL``, for a tensor whose rows are elsewhere; alone a request has none.
        """
        size = tensor.shape[1] if tensor.ndim > 1 and not step else 0
        if tensor.shape[:1] != (self._rows,):
            raise self._undivided(tensor)
        if size == self._width:
            return share.rows, slice(share.padding, size - share.tail)
        return (share.rows, slice(size - share.tail)) if size == self._last > 0 else (share.rows,)
