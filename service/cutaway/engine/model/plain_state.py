"""Restores the plain attributes of a model: a hidden state, a cache, a counter that its forward keeps on ``self``.

They are compared by identity between passes, and tensors by their version counters. Restored is what holds tensors, and
what the model's own code reads. What that code only writes, such as a count of its calls for others, stays: no output
can depend on it.

`Bindings` gives buffers and parameters their names back. Which parameters a forward writes to, `ParameterWrites` finds,
operator by operator, before they are written. `Decisions` finds models whose next pass may do otherwise.
"""

from __future__ import annotations

import dis
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import is_dataclass
from functools import cached_property, partial
from itertools import chain
from operator import attrgetter, is_, itemgetter
from types import CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.overrides import TorchFunctionMode
from torch.utils import weak
from torch.utils._pytree import tree_leaves

from cutaway.engine.runtime.numerics import has_array, is_array

_INTERNAL = frozenset(vars(nn.Module()))
"""The attributes of every module, which are no plain ones."""

_LARGEST = 1 << 26
"""The bytes of the largest tensor that is copied; in a larger one, a change in place is not undone."""

_MOST_ELEMENTS = 4096
"""The most elements of a container that are compared; of a larger one, such as a vocabulary, only their number is."""

_DEEPEST = 6
"""How many containers may lie in each other."""


class _Content(NamedTuple):
    """Holds what a container held: the attribute ``name`` of a module, or something inside it; ``""`` is the module."""

    name: str
    container: Any
    keys: Sequence[Any]
    values: Sequence[Any]
    size: int

    @classmethod
    def of(cls, name: str, container: Any) -> _Content:
        """Returns what a dict, a list, a set or a deque holds; of a module, the plain attributes."""
        size = len(container)
        if not isinstance(container, dict):
            return cls(name, container, (), tuple(container) if size <= _MOST_ELEMENTS else (), size)
        keys = [key for key in container if name or key not in _INTERNAL] if size <= _MOST_ELEMENTS else []
        return cls(name, container, keys, [container[key] for key in keys], size)

    def is_same(self) -> bool:
        """Returns whether the container holds the same objects."""
        now = map(self.container.get, self.keys) if self.keys else self.container if self.values else ()
        return len(self.container) == self.size and all(map(is_, now, self.values))

    def restore(self, is_read: frozenset[str], added: frozenset[str]) -> None:
        """Puts back what the container held, except for what is not state; ``added`` attributes may be new."""
        if len(self.values) < self.size and not self.keys:
            return  # it was too large to be kept
        if isinstance(self.container, dict):
            before = dict(zip(self.keys, self.values))
            kept = {key for key in self.container if not self.name and key in _INTERNAL}
            for key in {*before, *self.container} - kept:
                old, new = before.get(key, self), self.container.get(key, self)
                if old is new or _is_of_captum(old) or _is_of_captum(new):
                    continue
                if not ((self.name or key) in is_read or _has_tensor(old) or _has_tensor(new)):
                    continue
                if old is self and self.name == "" and key in added:
                    continue
                if old is self:
                    del self.container[key]
                else:
                    self.container[key] = old
        elif self.name in is_read or _has_tensor(self.values) or _has_tensor(self.container):
            values = self.values
            self.container.clear()
            self.container.update(values) if isinstance(self.container, set) else self.container.extend(values)


class _Kept(NamedTuple):
    """A tensor, its version, and a copy; None of one that is too large."""

    tensor: Tensor
    version: int
    copy: Tensor | None


class _Record(NamedTuple):
    """The plain attributes of one module, what lies inside them, and the tensors there."""

    module: nn.Module
    contents: Sequence[_Content]
    tensors: Sequence[_Kept]

    def is_same(self) -> bool:
        """Returns whether everything is as it was."""
        return all(content.is_same() for content in self.contents) and all(
            kept.tensor._version == kept.version for kept in self.tensors
        )


class PlainState:
    """The plain attributes of all modules of a model that are not PyTorch's own."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._modules = [module for module in modules if not type(module).__module__.startswith("torch.nn.")]
        self._packages = {type(module).__module__.partition(".")[0] for module in self._modules} - {"torch", "builtins"}
        # Those that the guard restores, or that no pass writes to.
        self._others = {
            id(tensor) for module in modules for tensor in (*module.parameters(False), *module.buffers(False))
        }
        self._known: dict[int, Any] = {}
        self._records = [self._record(module) for module in self._modules]
        self._is_same = _comparison(self._records)
        self._structure = self._parts()

    def accept(self) -> None:
        """Takes what changed between two requests for the owner's own change."""
        if self._is_same():
            return
        for number, record in enumerate(self._records):
            if not record.is_same():
                for content in record.contents:
                    self._known.pop(id(content.container), None)
                self._records[number] = self._record(record.module, record.tensors)
        self._is_same = _comparison(self._records)

    @property
    def is_same(self) -> bool:
        """Whether everything is as it was before the last pass."""
        return self._is_same()

    def restore(self, added: frozenset[str] = frozenset()) -> None:
        """Puts back all state as it was before a pass; attributes that others ``added`` to modules stay.

        A pass in which modules or hooks were added initialised the model: then it stays.
        """
        if self._is_same():
            return
        changed = [record for record in self._records if not record.is_same()]
        if (parts := self._parts()) != self._structure:
            self._structure = parts
            self.accept()
            return
        for record in changed:
            for content in record.contents:
                if not content.is_same():
                    content.restore(self._read_names, added)
            for tensor, version, copy in record.tensors:
                if tensor._version != version and copy is not None:
                    _write_back(tensor, copy)

    def _record(self, module: nn.Module, before: Sequence[_Kept] = ()) -> _Record:
        copies = {id(kept.tensor): kept for kept in before}
        contents, tensors = [_Content.of("", vars(module))], []
        waiting = [(name, value, 0) for name, value in zip(contents[0].keys, contents[0].values)]
        while waiting:
            name, value, depth = waiting.pop()
            if isinstance(value, Tensor):
                if id(value) not in self._others and not value.is_inference():
                    known = copies.get(id(value))
                    tensors.append(known if known and known.version == value._version else _kept(value))
                continue
            container = self._container(value)
            if container is not None and id(container) not in self._known:
                self._known[id(container)] = container
                contents.append(_Content.of(name, container))
                value = tuple(contents[-1].values)
            if isinstance(value, tuple) and depth < _DEEPEST:
                waiting += [(name, inner, depth + 1) for inner in value]
        return _Record(module, contents, tensors)

    def _container(self, value: Any) -> Any:
        """Returns a mutable container, or the attributes of an object of the model's own; None for others."""
        if isinstance(value, (dict, list, set, deque)):
            return value
        if isinstance(value, (nn.Module, type, FunctionType, MethodType)) or not hasattr(value, "__dict__"):
            return None
        is_own = type(value).__module__.partition(".")[0] in self._packages
        return vars(value) if is_own or is_dataclass(value) or isinstance(value, SimpleNamespace) else None

    def _parts(self) -> Sequence[int]:
        """Returns the numbers of modules, parameters, buffers and foreign hooks in each module."""
        tables = ("_modules", "_parameters", "_buffers")
        registered = (sum(len(getattr(module, table)) for table in tables) for module in self._modules)
        hooks = (
            sum(not is_of_a_pass(hook) for name, table in vars(module).items() if name.endswith("hooks") and table
                for hook in table.values())
            for parent in self._modules for module in (parent, *parent.children())
        )  # fmt: skip
        return [*registered, *hooks]

    @cached_property
    def _read_names(self) -> frozenset[str]:
        """The names of attributes that the model's own code reads."""
        own: list[Mapping[Any, Any]]
        own = [vars(kind) for module in self._modules for kind in type(module).__mro__ if not _is_of_pytorch(kind)]
        own += [dict(zip(content.keys, content.values)) for record in self._records for content in record.contents]
        own += [vars(type(value)) for values in own for value in values.values() if self._container(value) is not None]
        known: set[CodeType] = set()
        return frozenset(name for values in own for value in values.values() for name in _names_read(value, known))


class Bindings:
    """The buffers and parameters of a model's modules by their names, which a forward may give to other tensors."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._buffers = [(owner._buffers, *each) for owner in modules for each in owner._buffers.items()]
        named = [(owner._parameters, *each) for owner in modules for each in owner._parameters.items()]
        self._parameters = [each for each in named if each[2] is not None]

    @property
    def has_same_buffers(self) -> bool:
        """Whether each buffer's name is still of the same tensor."""
        return all(table.get(name) is buffer for table, name, buffer in self._buffers)

    def accept(self) -> None:
        """Takes parameters that their owner has exchanged between two requests."""
        self._parameters = [(table, name, table.get(name, before)) for table, name, before in self._parameters]

    def restore(self) -> None:
        """Gives each name its tensor; a tensor that a functional call has put in the place of a parameter stays."""
        for buffers, name, buffer in self._buffers:
            buffers[name] = buffer
        for table, name, parameter in self._parameters:
            now = table.get(name, parameter)
            if now is not parameter and (now is None or nn.Parameter in type(now).__mro__):
                table[name] = parameter


class ParameterWrites(TorchFunctionMode):
    """Calls ``tell`` for each of ``parameters`` before the first operator of the block that writes to it, also where
    autograd does not see it. A dispatch mode would see more, but the first one imports a second's worth of modules."""

    def __init__(self, parameters: Iterable[nn.Parameter], tell: Callable[[nn.Parameter], None]) -> None:
        super().__init__()
        self._tell, self._by_storage = tell, dict[int, list[nn.Parameter]]()
        for parameter in parameters:
            self._by_storage.setdefault(parameter.untyped_storage().data_ptr(), []).append(parameter)

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Tells of what the function writes to, and calls it."""
        for tensor in _written(function, args, kwargs or {}):
            if isinstance(tensor, Tensor) and has_array(tensor) and is_array(tensor):
                for parameter in self._by_storage.pop(tensor.untyped_storage().data_ptr(), ()):
                    self._tell(parameter)
        return function(*args, **(kwargs or {}))


def _written(function: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Iterator[Any]:
    """Yields what a function of PyTorch's writes to: what is before the dot of ``x.clamp_()``, or ``out``; of an
    embedding with ``max_norm`` the weights."""
    name = getattr(function, "__name__", "")
    if named.get("max_norm") is not None:
        yield from (*args[1:2], named.get("weight"))
    if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
        yield from args[0] if args and isinstance(args[0], (list, tuple)) else args[:1]
    out = named.get("out")
    yield from out if isinstance(out, (list, tuple)) else [out]


class Decisions(TorchFunctionMode):
    """Finds what a forward pass decides for all rows by numbers that it has computed.

    A dispatch mode would see more, but the first one imports a second's worth of modules.

    Attributes:
        are_made: whether Python reads such a number, as ``if`` does.
        sort: whether rows are sorted by such numbers: inside, a row may then lie at any place.
    """

    def __init__(self) -> None:
        super().__init__()
        self.are_made = self.sort = False
        self._rows = 0
        self._derived: MutableMapping[Tensor, bool] = weak.WeakIdKeyDictionary()
        """Holds what comes from inputs, and whether by way of floating-point numbers."""

    def of(self, inputs: Mapping[str, Tensor]) -> Decisions:
        """Begins a pass of ``inputs``."""
        self._derived.update(dict.fromkeys(inputs.values(), False))
        self._rows = min((len(tensor) for tensor in inputs.values() if tensor.ndim), default=0)
        return self

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Calls the function, and notes what it does with what."""
        result, name = function(*args, **(kwargs or {})), getattr(function, "__name__", "")
        derived = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor) and each in self._derived]
        if derived:
            by_numbers = any(each.is_floating_point() or self._derived[each] for each in derived)
            self.are_made |= by_numbers and name in _READS
            self.sort |= by_numbers and name in _SORTS and _sorts(self._rows, derived[0], name, args, kwargs or {})
            for each in (args[0],) if name == "__setitem__" else tree_leaves(result):
                if isinstance(each, Tensor):
                    self._derived[each] = self._derived.get(each, False) or (by_numbers and name not in _BY_LENGTHS)
        return result


_READS = {
    "__bool__", "__int__", "__float__", "__index__", "__complex__", "__contains__", "__array__", "item", "tolist",
    "numpy", "is_nonzero", "equal", "allclose",
}  # fmt: skip
_BY_LENGTHS = {"_pack_padded_sequence"}
"""Functions whose integers come from lengths alone."""

_SORTS = {"sort": 0, "argsort": 0, "topk": 1}
"""Functions that sort, and how many numbers they take before the axis."""


def _sorts(rows: int, tensor: Tensor, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Returns whether the function ``name`` of `_SORTS`, called for ``tensor``, orders several ``rows``, and not their
    tokens."""
    numbers = [each for each in args if type(each) is int][_SORTS[name] :]
    axis = kwargs.get("dim", numbers[0] if numbers else -1)
    return tensor.ndim > 0 and len(tensor) == rows > 1 and axis in (0, -tensor.ndim)


def _comparison(records: Sequence[_Record]) -> Callable[[], bool]:
    """Returns a function with the result of `_Record.is_same` for all ``records``, in a fifth of the time.

    It runs before every pass, also of a model of thousands of modules.
    """
    contents = [content for record in records for content in record.contents]
    containers, sizes = [content.container for content in contents], [content.size for content in contents]
    mappings, others = ([one for one in contents if one.values and bool(one.keys) is keyed] for keyed in (True, False))
    # With a single key, an itemgetter would return no tuple.
    getters, dicts = [itemgetter(*one.keys, one.keys[0]) for one in mappings], [one.container for one in mappings]
    values = [value for one in mappings for value in (*one.values, one.values[0])]
    sequences, elements = [one.container for one in others], [value for one in others for value in one.values]
    tensors = [kept.tensor for record in records for kept in record.tensors]
    versions = [kept.version for record in records for kept in record.tensors]

    def is_same() -> bool:
        try:
            return (
                [*map(len, containers)] == sizes
                and all(map(is_, chain.from_iterable(map(itemgetter.__call__, getters, dicts)), values))
                and all(map(is_, chain.from_iterable(sequences), elements))
                and [*map(_version_of, tensors)] == versions
            )
        except KeyError:  # an attribute has another name
            return False

    return is_same


_version_of = attrgetter("_version")


def _kept(tensor: Tensor) -> _Kept:
    small = tensor.layout is torch.strided and tensor.nbytes <= _LARGEST
    return _Kept(tensor, tensor._version, tensor.detach().clone() if small else None)


def _write_back(tensor: Tensor, copy: Tensor) -> None:
    with torch.no_grad(), _unsafe_preserve_version_counter((tensor,)):
        if tensor.grad_fn is not None and not tensor._is_view():
            tensor.detach_()
        tensor.copy_(copy)


def _has_tensor(value: Any, depth: int = 0) -> bool:
    if isinstance(value, Tensor):
        return True
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple, deque)) else ()
    if is_dataclass(value) or isinstance(value, SimpleNamespace):
        inner = vars(value).values()
    return depth < _DEEPEST and any(_has_tensor(each, depth + 1) for each in inner)


def _is_of_captum(value: Any) -> bool:
    """Returns whether Captum's LRP keeps ``value`` on a module between its passes: a rule, or activations by device."""
    by_device = isinstance(value, dict) and bool(value) and all(isinstance(key, torch.device) for key in value)
    return by_device or type(value).__module__.startswith("captum.")


def is_of_a_pass(hook: Any) -> bool:
    """Returns whether a hook of a module is ours or Captum's, and not one of the model or of its owner."""
    function = hook.func if isinstance(hook, partial) else hook
    return str(getattr(function, "__module__", "")).startswith(("cutaway.", "captum."))


def _is_of_pytorch(kind: type) -> bool:
    return kind is object or kind.__module__.partition(".")[0] == "torch"


_ADDING = ("append", "appendleft", "extend", "add", "update")


def _names_read(value: Any, known: set[CodeType]) -> Iterator[str]:
    """Yields the names of attributes, and the texts, that a function reads, or another of its file that it calls.

    ``self.calls += 1`` and ``self.seen.append(x)`` do not read: they only write.
    """
    value = inspect.unwrap(getattr(value, "__func__", getattr(value, "fget", value)))
    if not isinstance(value, FunctionType) or value.__code__ in known:
        return
    known.add(value.__code__)
    codes = [value.__code__]
    for code in codes:
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
        yield from (each for each in code.co_consts if isinstance(each, str) and each.isidentifier())
        steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "EXTENDED_ARG")]
        for before, step, after in zip(steps, steps[1:], steps[2:]):
            written = before.opname in ("COPY", "DUP_TOP") or after.argval in _ADDING
            if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and not written:
                yield step.argval
        called = (value.__globals__.get(name) for name in code.co_names)
        for function in called:
            if isinstance(function, FunctionType) and function.__module__ == value.__module__:
                yield from _names_read(function, known)
