"""What happens to the tensors at one place: edited, noted, listened to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from cutaway.engine.edits import due, edited, same
from cutaway.engine.leaves import Path
from cutaway.engine.seen import Call, Copied, Seen, Shared, in_backward
from cutaway.engine.wishes import Wish
from cutaway.errors import Reason, at, error
from cutaway.requests import Edit, Point


class Side(NamedTuple):
    """Where tensors enter or leave: the point of their values, and of their gradients."""

    value: Point
    gradient: Point


INCOMING = Side(Point.INPUT, Point.GRAD_INPUT)
OUTGOING = Side(Point.OUTPUT, Point.GRAD_OUTPUT)

Numbered = tuple[int, Edit]
"""An edit, and its number in the request."""

_NONE: Mapping[Point, list[Numbered]] = {point: [] for point in Point}


class Tap:
    """One module or operator, as far as a request is concerned.

    In this order: a value is edited, then noted; on its way back its gradient is edited, then noted. So a capture
    shows what the rest of the model gets, at every point.

    Args:
        seen: where to note what is seen.
        name: the module's name or the operator's address.
        wishes: what is wanted, by point.
        edits: what is changed, in order.
        batch: how many rows the request has.
        copies: False listens at bare tensors where that shows the same.
        alive: whether the first tensor that comes out of the first call is wanted as a node of the graph.
    """

    def __init__(
        self,
        seen: Seen,
        name: str,
        wishes: Mapping[Point, Wish],
        edits: Sequence[Numbered] = (),
        batch: int = 0,
        copies: bool = True,
        alive: bool = False,
    ) -> None:
        self._seen = seen
        self._name = name
        self._wishes = wishes
        self._edits = {point: [each for each in edits if each[1].point is point] for point in Point} if edits else _NONE
        self._batch = batch
        self._copies = copies
        self._alive = alive

    def begin(self) -> Call:
        """A call begins."""
        return self._seen.begin(self._name)

    def edits(self, side: Side) -> bool:
        """Whether values are edited at ``side``."""
        return bool(self._edits[side.value])

    def listens(self, side: Side) -> bool:
        """Whether gradients matter at ``side``."""
        return side.gradient in self._wishes or bool(self._edits[side.gradient])

    def only_notes(self, side: Side) -> bool:
        """Whether nothing happens at ``side`` but that values are noted."""
        return not (self._edits[side.value] or self.listens(side) or (self._alive and side is OUTGOING))

    def notes(self, call: Call, side: Side, tensors: Mapping[Path, Tensor]) -> None:
        """Note the values of ``tensors``, where only that is to be done."""
        call.kinds[side.value] = {path: tensor.dtype for path, tensor in tensors.items()}
        if side.value not in self._wishes:
            return
        for path, tensor in tensors.items():
            if _is_plain(tensor):
                self._note(call, side.value, path, tensor)
        self._finish(call, side)

    def through(
        self, call: Call, side: Side, tensors: Mapping[Path, Tensor], shared: Shared, bare: Sequence[Tensor] = ()
    ) -> dict[Path, Tensor]:
        """What goes on in place of each of ``tensors``.

        Args:
            call: the call they belong to.
            side: whether they enter or leave.
            tensors: all of them, by path.
            shared: whether somebody else may hold the same numbers.
            bare: those that must stay the object they are, because the model goes on with it: they are changed in
                place, and listened to as they are.
        """
        plain = {path: tensor for path, tensor in tensors.items() if _is_plain(tensor)}
        call.kinds[side.value] = {path: tensor.dtype for path, tensor in tensors.items()}
        floating = any(tensor.is_floating_point() for tensor in plain.values())
        gone_on = dict(tensors)
        for path, tensor in plain.items():
            stays = any(tensor is each for each in bare)
            edits = self._due(call, side.value, path, tensor, floating)
            new = self._edited(edits, tensor.clone() if stays else tensor) if edits else tensor
            if edits and stays:
                new = tensor.copy_(new)
            self._note(call, side.value, path, new)
            gone_on[path] = self._listened(call, side, path, new, shared=new is tensor and shared(tensor), bare=stays)
        if self._alive and side is OUTGOING and self._seen.neuron is None and plain:
            # A copy, which in-place operations behind the module do not reach.
            self._seen.neuron = gone_on[next(iter(plain))].clone()
        self._finish(call, side)
        return gone_on

    def _due(self, call: Call, point: Point, path: Path, tensor: Tensor, floating: bool) -> list[Numbered]:
        edits = due(self._edits[point], path, tensor, floating)
        named = [number for number, edit in edits if edit.call is not None]
        if call.number is None and named:
            raise error(
                Reason.EDIT_INAPPLICABLE,
                f"{self._name!r} is called several times, and again during the backward pass (activation "
                "checkpointing), where the call that the edit names cannot be told",
                f"edits[{named[0]}].call",
            )
        return [(number, edit) for number, edit in edits if edit.call in (None, call.number)]

    def _edited(self, edits: Sequence[Numbered], tensor: Tensor) -> Tensor:
        for number, edit in edits:
            tensor = self._made(number, edit, tensor)
        return tensor

    def _made(self, number: int, edit: Edit, tensor: Tensor) -> Tensor:
        with at(f"edits[{number}]"):
            new = edited(edit, tensor, self._batch)
        effects = self._seen.effects
        effects[number] = effects.get(number, False) or not same(new.detach(), tensor.detach())
        return new

    def _note(self, call: Call, point: Point, path: Path, tensor: Tensor) -> None:
        wish = self._wishes.get(point)
        if wish is not None and wish.takes(call.number, path):
            call.note(point, path, wish.of(tensor.detach(), f"captures.{self._name}.{point.value}{path}"))

    def _listened(self, call: Call, side: Side, path: Path, tensor: Tensor, shared: bool, bare: bool) -> Tensor:
        """``tensor``, or a copy of it, as a node of the graph whose gradient is edited and noted."""
        wish = self._wishes.get(side.gradient)
        edits = self._due(call, side.gradient, path, tensor, floating=True)
        wanted = wish is not None and wish.takes(call.number, path)
        if not (edits or wanted) or not _differentiable(tensor):
            return tensor
        node = tensor
        if not bare and (self._copies or edits or shared or tensor.is_leaf):
            node = _copy(tensor)
            if shared:
                self._seen.copied.append(Copied(tensor, node, (tensor._version, node._version)))
        if wanted:
            call.note(side.gradient, path, None)
        if not in_backward() and node.requires_grad:
            if wanted:
                # The edge is the tensor's place in the graph now: an in-place operation moves the tensor, not the edge.
                self._seen.gradient_roots.append(get_gradient_edge(node))
            self._listen(node, call, side.gradient, path, edits)
        return node

    def _listen(self, node: Tensor, call: Call, point: Point, path: Path, edits: Sequence[Numbered]) -> None:
        def passing(gradient: Tensor) -> Tensor | None:
            if self._seen.in_forward:
                return None
            with self._seen.hook():
                new = self._edited(edits, gradient)
                self._note(call, point, path, new)
            return None if new is gradient else new

        node.register_hook(passing)

    def _finish(self, call: Call, side: Side) -> None:
        wish = self._wishes.get(side.value)
        if wish is not None and wish.call is not None and wish.call == call.number:
            self._seen.found(self._name, side.value)


def _copy(tensor: Tensor) -> Tensor:
    """A copy that is a node of the graph, also where none leads to ``tensor`` yet (behind an embedding of token ids
    with frozen weights)."""
    source = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
    return source.clone()


def _differentiable(tensor: Tensor) -> bool:
    return torch.is_grad_enabled() and (tensor.is_floating_point() or tensor.is_complex())


def _is_plain(tensor: Tensor) -> bool:
    # Tensors inside torch.vmap and nested ones have no array behind them that could be copied out.
    return not (tensor.is_nested or torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors lie in the same memory."""
    if one is other:
        return True
    if not (_is_plain(one) and _is_plain(other)):
        return False
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
