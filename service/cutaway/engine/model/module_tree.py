"""The modules of a model: names, aliases, globs, and what they must be."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import Any

import re2
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from cutaway.contract.errors import Reason, error
from cutaway.contract.values import near_names


class ModuleTree:
    """The modules of a model by name, as ``named_modules()`` names them.

    A module with several names (weight tying) is one module: its first name is its own, the others are aliases. Hooks
    that are requested by several of its names are registered once. In models of transformers, hooks that collect states
    run last from now on.

    Args:
        root: the model.

    Attributes:
        modules: by their own names.
        matrices: by name, maps of a last axis that are kept with the model, and are no modules.
        vectors: by the same names, a vector for each output, [outputs, size of the last axis].
    """

    def __init__(self, root: nn.Module) -> None:
        self.matrices: Mapping[str, Callable[[Tensor], Tensor]] = {}
        self.vectors: Mapping[str, Tensor] = {}
        self.modules: dict[str, nn.Module] = dict(root.named_modules())
        self._of_model = dict(self.modules)
        _let_collectors_run_last(root)
        own = {module: name for name, module in self.modules.items()}
        self._own_name: dict[str, str] = {
            name: own[module] for name, module in root.named_modules(remove_duplicate=False)
        }

    def __getitem__(self, name: str) -> nn.Module:
        return self.modules[self.resolve(name)]

    @contextmanager
    def without_stand_ins(self) -> Iterator[None]:
        """Shows the model's own modules while the block runs, also where others stand for them."""
        shown = dict(self.modules)
        self.modules.update(self._of_model)
        try:
            yield
        finally:
            self.modules.update(shown)

    def resolve(self, name: str) -> str:
        """Returns the own name of the module ``name``.

        Raises:
            InvalidArgument: ``MODULE_NOT_FOUND``, with the nearest names.
        """
        if name not in self._own_name or not name:
            raise error(Reason.MODULE_NOT_FOUND, f"no module is named {name!r}{self._hint(name)}")
        return self._own_name[name]

    def map_of(self, name: str) -> Callable[[Tensor], Tensor]:
        """Returns the matrix ``name``, or the forward of the module, past all hooks.

        Raises:
            InvalidArgument: ``MODULE_NOT_FOUND``, with the matrices and the nearest modules.
        """
        if name in self.matrices:
            return self.matrices[name]
        if self.matrices and name not in self._own_name:
            what = f"no matrix is named {name!r}; there are {', '.join(self.matrices)}. No module is either"
            raise error(Reason.MODULE_NOT_FOUND, f"{what}{self._hint(name)}")
        forward: Callable[[Tensor], Tensor] = self.modules[self.resolve(name)].forward
        return forward

    def place(self, name: str) -> str:
        """Returns the own name of the module ``name``, where ``.`` is the model itself, which is named ``""``.

        Raises:
            InvalidArgument: as `resolve`.
        """
        return "" if name == "." else self.resolve(name)

    def match(self, pattern: str) -> list[str]:
        """Returns the own names of all modules that match ``pattern``, in the order of ``named_modules()``.

        The model itself (named ``""``) matches only ``.`` and ``**``.

        Raises:
            InvalidArgument: ``MODULE_NOT_FOUND``: no module matches, with the nearest names.
        """
        if not is_glob(pattern):
            return [self.place(pattern)]
        matches = glob_matcher(pattern)
        hits = {own for name, own in self._own_name.items() if matches(name) and (name or pattern == "**")}
        if not hits:
            raise error(Reason.MODULE_NOT_FOUND, f"the glob {pattern!r} matches no module{self._hint(pattern)}")
        return [name for name in self.modules if name in hits]

    def parameters(self) -> dict[str, nn.Parameter]:
        """Returns the model's parameters by each of their names."""
        return dict(self.modules[""].named_parameters(remove_duplicate=False))

    def rows_on_axis_1(self, place: str | None = None) -> str:
        """Returns, in words, a module that has rows on axis 1 of sequences, and what to do; ``""`` if there is none.

        ``place``: a module, which it is or is around; None for any.
        """
        for name, module in self.modules.items():
            is_there = place is None or f"{place}.".startswith(f"{name}.")
            if is_there and isinstance(module, _SEQUENCES) and not module.batch_first:
                kind = f"{name!r} is an nn.{type(module).__name__} without batch_first, which has rows on axis 1"
                return f"{kind}: send rows on axis 0, and let Adapter.forward transpose them for it"
        return ""

    @cached_property
    def aliases(self) -> dict[str, tuple[str, ...]]:
        """The further names of each module that has any, by own name."""
        aliases: dict[str, tuple[str, ...]] = {}
        for name, own in self._own_name.items():
            if name != own:
                aliases[own] = (*aliases.get(own, ()), name)
        return aliases

    def _hint(self, name: str) -> str:
        known = [candidate for candidate in self._own_name if candidate]
        near = near_names(name, known, n=3, cutoff=0.4)
        if near:
            return "; nearest: " + ", ".join(near)
        return "; the model has " + ", ".join(known[:6]) + (", ..." if len(known) > 6 else "")


# transformers collects the states of layers by forward hooks, which the first pass that needs them adds and leaves.
# Hooks behind them would edit or replace a state that the model has already put aside, and goes on with.

_COLLECTS = "transformers.utils.output_capturing"


class _CollectorsLast(OrderedDict[int, Any]):
    """The forward hooks of a module, of which those that collect its outputs for transformers stay the last."""

    def __setitem__(self, number: int, hook: Any) -> None:
        super().__setitem__(number, hook)
        for known in [known for known, other in self.items() if getattr(other, "__module__", "") == _COLLECTS]:
            self.move_to_end(known)


def _let_collectors_run_last(root: nn.Module) -> None:
    """Lets hooks of ours and of Captum run before those by which the models of transformers inside ``root`` collect."""
    for owner in root.modules():
        if hasattr(owner, "_can_record_outputs"):  # a PreTrainedModel of transformers
            for module in owner.modules():
                module._forward_hooks = _CollectorsLast(module._forward_hooks)


_SEQUENCES = (nn.RNNBase, nn.MultiheadAttention, nn.Transformer)
"""Modules of PyTorch that have time on axis 0 and rows on axis 1, unless they are told otherwise."""


# Globs over names: ``*`` and ``?`` within one part of a name, ``**`` across parts.


def is_glob(pattern: str) -> bool:
    """Returns whether ``pattern`` can match several names."""
    return "*" in pattern or "?" in pattern


_WILDCARDS = {"**": ".*", "*": r"[^.]*", "?": r"[^.]"}


@lru_cache(maxsize=128)
def glob_matcher(pattern: str) -> Callable[[str], bool]:
    """Returns a function that tells whether a whole name matches ``pattern``, in time linear in the length of either.

    It remembers names: a model has the same ones in each request.
    """
    parts = re.split(r"(\*\*|\*|\?)", pattern)
    expression = re2.compile("(?s)" + "".join(_WILDCARDS.get(part, re2.escape(part)) for part in parts))
    return lru_cache(maxsize=2048)(lambda name: expression.fullmatch(name) is not None)


# What a module must be, so that hooks and gradients work.


def require_inspectable(module: nn.Module) -> None:
    """Checks every module, parameter and buffer.

    Raises:
        FailedPrecondition: ``MODEL_COMPILED``, ``MODEL_SCRIPTED`` or ``MODEL_QUANTISED``.
        InvalidArgument: ``ADAPTER_INVALID``.
    """
    for name, child in module.named_modules():
        reason, fault = _module_fault(child)
        if fault:
            raise error(reason, f"{_where('module', name)} {fault}")
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        fault = _tensor_fault(tensor)
        if fault:
            raise error(Reason.ADAPTER_INVALID, f"{_where('tensor', name)} {fault}")


def _module_fault(child: nn.Module) -> tuple[Reason, str]:
    kind = type(child)
    if isinstance(child, torch.jit.ScriptModule):
        return Reason.MODEL_SCRIPTED, "is a ScriptModule, which takes no hooks: load eager code"
    if kind.__name__ == "OptimizedModule" or child._compiled_call_impl is not None:
        return Reason.MODEL_COMPILED, "went through torch.compile, where hooks never fire: return the model uncompiled"
    if kind.__module__.startswith(("torch.ao.nn.", "torch.nn.quantized")) and "quantized" in kind.__module__:
        return Reason.MODEL_QUANTISED, f"is quantised ({kind.__name__}) and has no gradients: load the float model"
    if isinstance(child, nn.DataParallel):
        return Reason.ADAPTER_INVALID, "is a DataParallel, whose replicas take no hooks: return the model inside it"
    return Reason.ADAPTER_INVALID, ""


def _tensor_fault(tensor: Tensor) -> str:
    if is_lazy(tensor):
        return "is not initialised: run the model once before it is returned"
    if tensor.is_meta:
        return "has no memory (device meta): load the weights"
    if tensor.is_inference():
        return "was made under torch.inference_mode, and can have no gradient: load the model outside of it"
    return ""


def _where(kind: str, name: str) -> str:
    return f"{kind} {name!r}" if name else "the model"
