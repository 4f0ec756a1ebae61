"""Operators inside a module's forward: functions and methods of PyTorch that are no module, by address.

``layer3.1:relu#0`` is the first ``relu`` in one call of the module ``layer3.1``, outside of its children. A function
that is made of others (``multi_head_attention_forward``) is one operator; what computes nothing (``detach``) or
returns no tensor (``size``, ``item``) is none. PyTorch shows them to a `TorchFunctionMode`,
https://pytorch.org/docs/stable/torch.overrides.html, in the thread that entered it and in no other.
"""

from __future__ import annotations

import difflib
import re
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from cutaway.engine.globs import compiled, is_glob
from cutaway.engine.leaves import incoming, leaves, map_leaves, put_back
from cutaway.engine.seen import Call, Seen, in_backward, is_hook
from cutaway.engine.tap import INCOMING, OUTGOING, Numbered, Tap, overlap
from cutaway.engine.wishes import Wish
from cutaway.errors import Reason, error
from cutaway.requests import Point

NewTap: TypeAlias = Callable[[str, Mapping[Point, Wish], Sequence[Numbered]], Tap]

Running: TypeAlias = tuple[str, dict[str, int]]
"""A module whose forward runs, and how many operators of each name it has run."""


def is_address(name: str) -> bool:
    """Whether ``name`` is an operator's address, and no module's name."""
    return "#" in name and re.search(r":[^:.#]+#[\d*?]+$", name) is not None


def nearest(address: str, ran: Sequence[str]) -> str:
    """The addresses most like ``address`` among those that ``ran``, in words."""
    near = difflib.get_close_matches(address, ran, n=3, cutoff=0.3) or list(ran[:3])
    return "; nearest: " + ", ".join(near) if near else "; no operator ran inside a module"


class _Here(threading.local):
    """What runs in this thread, the innermost last; and whether the outermost is to be differentiated."""

    def __init__(self) -> None:
        self.running: list[Running] = []
        self.differentiates = False


class Operators(TorchFunctionMode):
    """Sees every operator while the block runs, and hands those that matter to their taps. Hooks tell it whose forward
    runs.

    Args:
        seen: where to note what is seen.
        new_tap: makes the tap of an address.
        wishes: what is wanted, by address or glob.
        edits: what is changed, by address.
    """

    def __init__(
        self,
        seen: Seen,
        new_tap: NewTap,
        wishes: Mapping[str, Mapping[Point, Wish]],
        edits: Mapping[str, Sequence[Numbered]],
    ) -> None:
        super().__init__()
        self._seen = seen
        self._new_tap = new_tap
        self._globs = [(compiled(glob), wishes[glob]) for glob in wishes if is_glob(glob)]
        self._wishes = {address: wishes[address] for address in wishes if not is_glob(address)}
        self._edits = edits
        self._taps = {address: self._new(address) for address in {**self._wishes, **edits}}
        # Only these change what autograd saves.
        self._replays = bool(edits) or any(point.is_gradient for points in wishes.values() for point in points)
        self._here = _Here()
        self._thread = threading.get_ident()

    def entering(self, name: str) -> Callable[..., None]:
        """A hook for when the forward of the module ``name`` begins."""

        def enter(*_: Any) -> None:
            here = self._here
            if not here.running:
                here.differentiates = torch.is_grad_enabled()
            if self._replays:
                self._follow_checkpoint()
            here.running.append((name, {}))
            if threading.get_ident() != self._thread and not in_backward():
                self._refuse_thread(name)

        return enter

    def leave(self, *_: Any) -> None:
        """A hook for when it ends."""
        self._here.running.pop()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """One operator runs."""
        kwargs = kwargs or {}
        name = operator_name(func)
        running = self._here.running
        if not (name and running) or is_hook():
            return func(*args, **kwargs)
        if self._replays:
            self._follow_checkpoint()
        module, counts = running[-1]
        number = counts.get(name, 0)
        counts[name] = number + 1  # before it runs: one that raises and is caught keeps its number
        address = f"{module}:{name}#{number}"
        tap = self._found(address) if self._globs else self._taps.get(address)
        returned = func(*args, **kwargs) if tap is None else self._tapped(address, tap, func, name, args, kwargs)
        if isinstance(returned, Tensor) or name in _MUTE or leaves(returned):
            self._seen.operators[address] = None
        else:
            counts[name] = number
        return returned

    def _found(self, address: str) -> Tap | None:
        if address not in self._taps:
            with self._seen.hook():
                self._taps[address] = self._new(address)
        return self._taps[address]

    def _new(self, address: str) -> Tap | None:
        wishes: dict[Point, Wish] = {}
        for wanted in [wanted for glob, wanted in self._globs if glob.fullmatch(address)]:
            _unite(address, wishes, wanted)
        _unite(address, wishes, self._wishes.get(address, {}))
        edits = self._edits.get(address, ())
        return self._new_tap(address, wishes, edits) if wishes or edits else None

    def _tapped(
        self, address: str, tap: Tap, func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        with self._seen.hook():
            self._refuse_replay(address)
            call = tap.begin()
            run = _Run(tap, call, func, name, args, kwargs)
        returned = run.run()
        with self._seen.hook():
            changed = run.end(returned)
            calls = self._seen.calls[address]
            if not call.kinds[OUTGOING.value] and call in calls:  # it returned no tensor, and is no operator
                calls.remove(call)
            return changed

    def _follow_checkpoint(self) -> None:
        """Activation checkpointing runs part of a forward again, in the backward pass, under no mode and with no word
        on whose forward it is: leave word, so that copies and edits are made again."""
        frame = _checkpoint_frame()
        if frame is not None and not isinstance(frame.recompute_fn, _Again):
            frame.recompute_fn = _Again(frame.recompute_fn, self, _copied(self._here.running[-1:]))

    @contextmanager
    def resumed(self, running: Sequence[Running]) -> Iterator[None]:
        """Go on inside ``running``, for as long as the block runs."""
        before, self._here.running = self._here.running, _copied(running)
        try:
            with self:
                yield
        finally:
            self._here.running = before

    def _refuse_replay(self, address: str) -> None:
        """The older, reentrant checkpointing runs forward without a graph, and builds it in the backward pass."""
        edits = [number for number, edit in self._edits.get(address, ()) if not edit.point.is_gradient]
        if edits and self._here.differentiates and not torch.is_grad_enabled() and _in_reentrant_checkpoint():
            raise error(
                Reason.EDIT_INAPPLICABLE,
                f"{address!r} runs inside reentrant activation checkpointing, which computes it again for the "
                "gradients, unedited: let the model use use_reentrant=False",
                f"edits[{edits[0]}].op",
            )

    def _refuse_thread(self, module: str) -> None:
        """In a thread of the model's own nothing is seen: what was named there must not be missing without a word."""
        fields = {address: f"{next(iter(wishes.values())).field}.op" for address, wishes in self._wishes.items()}
        fields |= {address: f"edits[{edits[0][0]}].op" for address, edits in self._edits.items()}
        for address in [address for address in fields if address.rpartition(":")[0] == module]:
            why = f"the model runs {module!r} in a thread of its own, where operators are not seen"
            with self._seen.hook():
                raise error(Reason.OP_NOT_FOUND, why, fields[address])


def _unite(address: str, there: dict[Point, Wish], wanted: Mapping[Point, Wish]) -> None:
    for point, wish in wanted.items():
        if there.get(point, wish) != wish or any(other.call != wish.call for other in there.values()):
            raise error(
                Reason.INVALID_VALUE,
                f"{address!r} is captured twice, and in different ways: other slices, reductions or calls need a "
                "request of their own",
                wish.field,
            )
        there[point] = wish


def _copied(running: Sequence[Running]) -> list[Running]:
    return [(module, dict(counts)) for module, counts in running]


class _Again(NamedTuple):
    """A checkpointed function that knows whose forward it is part of."""

    function: Callable[..., Any]
    operators: Operators
    running: Sequence[Running]

    def __call__(self, *args: Any) -> Any:
        with self.operators.resumed(self.running):
            return self.function(*args)


def _checkpoint_frame() -> Any:
    """What `torch.utils.checkpoint.checkpoint` keeps of the function that it runs now, if it runs one. Its hook on what
    autograd saves is all of it that can be seen from here."""
    pack, _ = torch._C._autograd._top_saved_tensors_default_hooks(True) or (None, None)
    code = getattr(pack, "__code__", None)
    cells = dict(zip(code.co_freevars, pack.__closure__ or ())) if code is not None else {}
    frame = cells["frame"].cell_contents if "frame" in cells else None
    return frame if hasattr(frame, "recompute_fn") else None


def _in_reentrant_checkpoint() -> bool:
    codes = [frame.f_code for frame, _ in traceback.walk_stack(None)]
    return any(code.co_name == "forward" and code.co_filename == checkpoint.__file__ for code in codes)


class _Run:
    """One run of an operator that has a tap.

    An operator that writes into a tensor gets a stand-in to write into, which is copied back: so the model goes on with
    the very object that it has, whatever it does with what the operator returns; an edit does not overwrite what the
    operator keeps for its own backward; and the gradients before and behind it can be told apart.
    """

    def __init__(
        self, tap: Tap, call: Call, func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._tap, self._call = tap, call
        self._func, self._name = func, name
        self._args, self._kwargs = args, kwargs
        self._outs = {f"out{path}": tensor for path, tensor in leaves(kwargs.get("out")).items()}
        self._given = {path: tensor for path, tensor in incoming(args, kwargs).items() if path not in self._outs}
        self._target = _written(name, args, kwargs)
        self._place = next((path for path, tensor in self._given.items() if tensor is self._target), "")
        self._taken = self._take()

    def _take(self) -> dict[str, Tensor]:
        tap, target = self._tap, self._target
        if target is not None and any(tap.edits(side) or tap.listens(side) for side in (INCOMING, OUTGOING)):
            # What an edit keeps for its own backward must not be written to.
            for path in [path for path, tensor in self._given.items() if overlap(tensor, target)]:
                self._given[path] = self._given[path].clone()
        taken = tap.through(self._call, INCOMING, self._given, shared=lambda _: True)
        if target is not None and taken[self._place] is not self._given[self._place]:
            # Nor what is listened to: if it is a view, its gradient would end there.
            taken[self._place] = taken[self._place].clone()
        return taken

    def run(self) -> Any:
        """What the operator returns."""
        try:
            return self._ran()
        except RuntimeError:
            # Some arguments can have no gradient (running statistics, weights of classes): a copy must not want one.
            constants = [path for path, tensor in self._given.items() if not tensor.requires_grad]
            constants = [path for path in constants if self._taken[path].requires_grad]
            if not constants:
                raise
            self._taken.update({path: self._taken[path].detach() for path in constants})
            return self._ran()

    def _ran(self) -> Any:
        args, kwargs = put_back(self._args, self._kwargs, {**self._taken, **self._outs})
        return self._func(*args, **kwargs)

    def end(self, returned: Any) -> Any:
        """What goes on in place of what was ``returned``."""
        stand_in = None if self._target is None else self._taken[self._place]
        tensors = {"": stand_in} if self._name in _MUTE and stand_in is not None else leaves(returned)

        def shared(tensor: Tensor) -> bool:
            return any(overlap(tensor, each) for each in self._taken.values())

        gone_on = self._tap.through(self._call, OUTGOING, tensors, shared, bare=list(self._outs.values()))
        if self._target is not None and stand_in is not self._target:
            if self._name in _RESHAPING:
                self._func(*self._args, **self._kwargs)
            gone_on = dict.fromkeys(gone_on, self._target.copy_(next(iter(gone_on.values()))))
        return map_leaves(returned, lambda path, _: gone_on[path])


_MUTE = {"setitem"}
"""Operators that return nothing, and change their first argument."""

_RESHAPING = {"as_strided_", "squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_"}
"""Operators that change a tensor's shape, and none of its numbers."""

_WRITING = {"iand", "ilshift", "ior", "irshift", "ixor"}
"""Operators that write, beside those whose names end in an underscore."""


def _written(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The tensor that the operator writes into, its first."""
    if not (name.endswith("_") or name in _MUTE or name in _WRITING or kwargs.get("inplace")):
        return None
    first = args[0] if args else next(iter(kwargs.values()), None)
    return first if isinstance(first, Tensor) else None


_COMPUTES_NOTHING = {"clone", "detach", "detach_", "requires_grad_", "retain_grad", "register_hook", "backward", "grad"}
"""Hooks and Captum use some of it, and must not shift the model's own numbers."""

_RETURNS_NO_TENSOR = {
    *("size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "item", "tolist", "numpy"),
    *("is_floating_point", "is_complex", "is_contiguous", "get_device", "data_ptr", "untyped_storage", "element_size"),
    *("__len__", "__bool__", "__int__", "__float__", "__complex__", "__index__", "__format__", "__repr__"),
    *("__contains__", "__set__", "_set_grad_enabled"),
}
"""Asked all the time; the others are found out when they return."""

_PROPERTIES = {"T", "mT", "H", "mH", "real", "imag"}
"""Attributes of a tensor that are computed."""


@lru_cache(maxsize=4096)
def operator_name(func: Callable[..., Any]) -> str:
    """``relu``, ``add``, ``getitem``; ``mT`` for a property; ``""`` for what is no operator."""
    name = str(getattr(func, "__name__", type(func).__name__))
    if name == "__get__":
        attribute = getattr(getattr(func, "__self__", None), "__name__", "")
        return attribute if attribute in _PROPERTIES else ""
    if name in _COMPUTES_NOTHING or name in _RETURNS_NO_TENSOR:
        return ""
    # An overload has its own name behind a dot: relu.default.
    return (name.strip("_") if name.startswith("__") else name).partition(".")[0]
