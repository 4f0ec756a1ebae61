"""The description of a model: its modules, its outputs, the operators of its forward pass, and the flow of its data.

`DataFlow` follows every tensor of a pass by its identity, from the part that returned it to those that took it. Where a
part returns the very tensor that it took, as dropout does, the pass goes on with an alias, which has an identity of its
own. A write into memory concerns every tensor in that memory. Nothing is guessed: two passes tell the model's own
tensors, which are the same in both, from those of code that PyTorch does not show. The latter are errors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from cutaway.contract import results
from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.requests import Point
from cutaway.engine.hooks.capture_spec import watching
from cutaway.engine.hooks.hook_site import HookSite
from cutaway.engine.hooks.observe import observing, tracing
from cutaway.engine.hooks.operators import Operators, inplace_target, operator_name
from cutaway.engine.hooks.recording import RecordedCall, Recording, inside_hook
from cutaway.engine.model.inspected_model import Inputs, InspectedModel, Outputs, dtype_text
from cutaway.engine.model.module_tree import ModuleTree
from cutaway.engine.runtime.numerics import Path, arrays_of, has_array, is_array, leaves, map_leaves

EVERY_OPERATOR = "**:*#*"


def describe(
    model: InspectedModel, example: Inputs | None, *, operators: bool = False
) -> tuple[tuple[results.ModuleInfo, ...], tuple[results.OutputSpec, ...], tuple[results.OperatorInfo, ...]]:
    """Returns every module, the model's outputs and, with ``operators``, the operators that ran. Shapes and calls are
    those of a forward pass of ``example``; without one they are empty."""
    calls: dict[str, list[RecordedCall]] = {name: [] for name in model.tree.modules}
    addresses, outputs = list[str](), Outputs()
    if example is not None:
        sites = {name: watching(Point.OUTPUT) for name in (*calls, *([EVERY_OPERATOR] if operators else []))}
        with model.guard.restoring(), observing(model.tree, sites) as recording, torch.no_grad(), recording.forward():
            outputs = model.run(example)
        calls, addresses = recording.calls, list(recording.operators)
    modules = []
    for name, module in model.tree.modules.items():
        size, aliases = sum(parameter.numel() for parameter in module.parameters()), model.tree.aliases.get(name, ())
        called = (_shapes(calls[name]), len(calls[name]))
        modules.append(results.ModuleInfo(name, type(module).__name__, size, *called, aliases))
    specs = (results.OutputSpec(name, dtype_text(output), tuple(output.shape)) for name, output in outputs.items())
    ran = (results.OperatorInfo(name, _shapes(calls[name]), len(calls[name])) for name in addresses if name in calls)
    return tuple(modules), tuple(specs), tuple(ran)


def _shapes(calls: list[RecordedCall]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(tensor.shape) for tensor in calls[0].at(Point.OUTPUT).values()) if calls else ()


def trace_data_flow(model: InspectedModel, example: Inputs | None) -> tuple[results.DataEdge, ...]:
    """Returns which part of the model gave a tensor to which, in a pass of ``example``, in the order of the pass.

    Raises:
        CutawayError: ``DATA_FLOW_UNKNOWN``: there is no example, or a tensor comes from code that PyTorch hides.
    """
    if example is None:
        raise _unknown("the model has no example to follow")
    first = _traced(model, example, None)
    return tuple(_traced(model, example, first.unknown).edges)


def _traced(model: InspectedModel, example: Inputs, constants: Sequence[Tensor] | None) -> DataFlow:
    recording = Recording()
    flow = DataFlow(recording, model.tree, constants)

    def call(given: Inputs) -> Any:
        flow.begin(given)
        with tracing(model.tree, flow):
            return model.call(given)

    with model.guard.restoring(), model.unrecorded(), torch.no_grad(), recording.forward():
        flow.end(model.run(example, call))
    return flow


Part: TypeAlias = tuple[str, str]
"""``("source", name)`` of an operator or a module, or ``("input", name)`` of an input of the model."""

Parts: TypeAlias = frozenset[Part]

_NO_PARTS: Parts = frozenset()

_INNER = ""
"""Counts, among the operators of a running module, the modules inside it: no operator has this name."""


class _Known(NamedTuple):
    """The origin of a tensor: parts, the number of writes before it, and its version then, None if it has none."""

    parts: Parts
    writes: int = 0
    version: int | None = None


class _Write(NamedTuple):
    """A write into memory: its number, the bytes that it concerns, None if these do not adjoin, and its parts."""

    number: int
    bytes: range | None
    parts: Parts


class DataFlow(Operators):
    """A mode that follows the tensors of one pass.

    Args:
        recording: keeps the errors.
        tree: the modules.
        constants: tensors of the model's own; None takes all for such that no part returned, and lists them.

    Attributes:
        edges: what was found.
        unknown: the tensors that no part returned, without ``constants``.
    """

    def __init__(self, recording: Recording, tree: ModuleTree, constants: Sequence[Tensor] | None) -> None:
        super().__init__(recording, partial(HookSite, recording), tree, {}, {})
        self.edges: dict[results.DataEdge, None] = {}
        self.unknown: list[Tensor] = []
        self._constants = None if constants is None else {id(tensor) for tensor in constants}
        self._known = WeakTensorKeyDictionary()
        self._writes: dict[int, list[_Write]] = defaultdict(list)
        self._number = 0

    def begin(self, inputs: Inputs) -> None:
        """Notes the tensors of ``inputs`` as the model's inputs."""
        for name, tensor in inputs.items():
            self._note(tensor, frozenset({("input", name)}))

    def end(self, outputs: Outputs) -> None:
        """Adds the edges to the model's ``outputs``."""
        with self._recording.hook_scope():
            for name, tensor in outputs.items():
                self._add(self._parts_of([tensor], f"the output {name!r}"), output=name)

    def enter(self, name: str, *_: Any) -> None:
        """Begins the forward of the module ``name``, as a forward pre-hook."""
        for _outer, counts in self._state.running[-1:]:
            counts[_INNER] = 1
        super().enter(name)

    def leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """Ends the innermost running module, as a forward hook. One without modules and operators that made what it
        returns is a part itself."""
        name, counts = self._state.running[-1]
        super().leave()
        if _INNER in counts:
            return None
        own: Parts = frozenset({("source", name)})

        def part(_: Path, tensor: Tensor) -> Tensor:
            known = self._find(tensor)
            if known is not None and any(kind == "source" and who.startswith(f"{name}:") for kind, who in known):
                return tensor
            taken = self._parts_of([tensor] if known is not None else [*leaves((args, kwargs)).values()], repr(name))
            self._add(taken, target=name)
            return self._note(tensor if known is None else torch.ops.aten.alias(tensor), own)

        with self._recording.hook_scope():
            return map_leaves(output, part)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs a function, and notes what it took and returned; one that is no operator passes its tensors on."""
        if inside_hook():
            return func(*args, **(kwargs or {}))
        given = {key: value for key, value in (kwargs or {}).items() if key != "out"}
        name, running = operator_name(func), self._state.running[-1:]
        counts = running[0][1] if running else {}
        number = counts.get(name, 0)
        with self._recording.hook_scope():
            taken = [*leaves((args, given)).values()]
            found = [self._find(tensor) for tensor in taken]
            before = [(tensor, _version(tensor)) for tensor in leaves((args, kwargs or {})).values()]
        returned = super().__torch_function__(func, types, args, kwargs)
        is_operator = counts.get(name, 0) > number
        with self._recording.hook_scope():
            parts = _NO_PARTS.union(*(part or () for part in found))
            if is_operator:
                address = f"{running[0][0]}:{name}#{number}"
                self._refuse(found, taken, repr(address))
                self._add(parts, target=address)
                parts = frozenset({("source", address)})
            target = inplace_target(name, args, kwargs or {}) if is_operator else None
            written = [tensor for tensor, version in before if tensor is target or version != _version(tensor)]
            for tensor in written:
                self._write(tensor, parts)

            def result(_: Path, tensor: Tensor) -> Tensor:
                if any(tensor is other for other in written):
                    return tensor
                if any(tensor is other for other, _ in before):
                    return self._note(torch.ops.aten.alias(tensor), parts) if is_operator else tensor
                return tensor if None in found and not is_operator else self._note(tensor, parts)

            return map_leaves(returned, result)

    def _add(self, parts: Parts, **target: str) -> None:
        for kind, name in sorted(parts):
            self.edges[results.DataEdge(**{kind: name}, **target)] = None

    def _note(self, tensor: Tensor, parts: Parts) -> Tensor:
        self._known[tensor] = _Known(parts, self._number, _version(tensor))
        return tensor

    def _write(self, tensor: Tensor, parts: Parts) -> None:
        """Notes that ``parts`` wrote into ``tensor``."""
        self._number += 1
        for pointer in _pointers(tensor):
            self._writes[pointer].append(_Write(self._number, _bytes(tensor), parts))
        self._note(tensor, parts)

    def _parts_of(self, tensors: Sequence[Tensor], taker: str) -> Parts:
        """Returns the parts that ``tensors`` came from, and raises where these are not known."""
        found = [self._find(tensor) for tensor in tensors]
        self._refuse(found, tensors, taker)
        return _NO_PARTS.union(*(part or () for part in found))

    def _refuse(self, found: Sequence[Parts | None], tensors: Sequence[Tensor], taker: str) -> None:
        for tensor in (tensor for parts, tensor in zip(found, tensors) if parts is None):
            what = f"{taker} takes a tensor {dtype_text(tensor)}{list(tensor.shape)}"
            raise _unknown(f"{what} from code that PyTorch does not show, such as an extension or numpy")

    def _find(self, tensor: Tensor) -> Parts | None:
        """Returns the parts that ``tensor`` came from, those that wrote into it included; none for one of the model's
        own; None where that is not known."""
        known: _Known | None = self._known.get(tensor)
        if known is None:
            if self._constants is None:
                self.unknown.append(tensor)
            elif id(tensor) not in self._constants:
                return None
            known = _Known(_NO_PARTS)
        pointers, own, parts = _pointers(tensor), _bytes(tensor), known.parts
        since = [w for at in pointers for w in self._writes.get(at, ()) if w.number > known.writes]
        if pointers and not since and known.version not in (None, _version(tensor)):
            raise _unknown(f"code that PyTorch does not show wrote into a tensor {list(tensor.shape)}")
        for write in since:
            if own is None or write.bytes is None:
                parts |= write.parts
            elif max(own.start, write.bytes.start) < min(own.stop, write.bytes.stop):
                is_whole = write.bytes.start <= own.start and own.stop <= write.bytes.stop
                parts = write.parts if is_whole else parts | write.parts
        self._note(tensor, parts)
        return parts


def _version(tensor: Tensor) -> int | None:
    """Returns how often ``tensor`` was written into; None where PyTorch does not count it."""
    return None if tensor.is_inference() else tensor._version


def _pointers(tensor: Tensor) -> set[int]:
    """Returns where the memory of ``tensor`` begins; without values it has none."""
    if not has_array(tensor):
        return set()
    return {part.untyped_storage().data_ptr() for part in arrays_of(tensor)} - {0}


def _bytes(tensor: Tensor) -> range | None:
    """Returns which bytes of its memory ``tensor`` has; None where these do not adjoin."""
    if not is_array(tensor) or not tensor.is_contiguous():
        return None
    start = tensor.storage_offset() * tensor.element_size()
    return range(start, start + tensor.nbytes)


def _unknown(why: str) -> CutawayError:
    return error(Reason.DATA_FLOW_UNKNOWN, f"the flow of data is not known: {why}", "data_flow")
