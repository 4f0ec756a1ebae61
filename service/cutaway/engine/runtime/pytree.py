"""Finds and replaces the tensors inside the arguments and results of modules; each has a readable path."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

Path = str
"""``""`` for a bare tensor, else ``[0]``, ``.logits``, ``["key"]``, or ``[1].hidden`` for nested ones."""

Change = Callable[[Path, Tensor], Tensor]


def leaves(value: object) -> dict[Path, Tensor]:
    """Returns all tensors in ``value`` by path, in order, inside tuples, lists, dicts, dataclasses and ModelOutputs."""
    if isinstance(value, torch.Tensor):
        return {"": value}
    tensors: dict[Path, Tensor] = {}
    map_leaves(value, lambda path, tensor: tensors.setdefault(path, tensor))
    return tensors


def map_leaves(value: Any, change: Change, path: Path = "") -> Any:
    """Returns ``value`` with each tensor replaced by ``change(path, tensor)``; ``value`` itself if none changed."""
    if isinstance(value, torch.Tensor):
        return change(path, value)
    items = [(key, item, map_leaves(item, change, path + step)) for key, step, item in _children(value)]
    if all(after is before for _, before, after in items):
        return value
    if isinstance(value, (tuple, list)):
        new = [after for _, _, after in items]
        return type(value)(*new) if isinstance(value, tuple) and hasattr(value, "_fields") else type(value)(new)
    renewed = copy.copy(value)
    for key, _, after in items:
        if isinstance(value, Mapping):
            renewed[key] = after
        else:
            object.__setattr__(renewed, key, after)  # also if the dataclass is frozen
    return renewed


def _children(value: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yields the key or name, the step of the path and the value of each item of a container."""
    if isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield index, f"[{index}]", item
    elif isinstance(value, Mapping):
        by_attribute = dataclasses.is_dataclass(value)  # a ModelOutput
        for key, item in value.items():
            yield key, f".{key}" if by_attribute else f'["{key}"]' if isinstance(key, str) else f"[{key!r}]", item
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield field.name, f".{field.name}", getattr(value, field.name)


def argument_tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[Path, Tensor]:
    """Returns the tensors in a call's arguments by path, which begins with ``""`` for a single positional argument,
    else with ``[0]`` or the keyword."""
    tensors = leaves(args[0] if _is_single(args, kwargs) else args)
    for key, value in kwargs.items():
        tensors.update({key + path: tensor for path, tensor in leaves(value).items()})
    return tensors


def replace_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], tensors: Mapping[Path, Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments with ``tensors`` in place of those that `argument_tensors` returned."""

    def new(path: Path, _: Tensor) -> Tensor:
        return tensors[path]

    positional = (map_leaves(args[0], new),) if _is_single(args, kwargs) else map_leaves(args, new)
    return positional, {key: map_leaves(value, new, key) for key, value in kwargs.items()}


def _is_single(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return len(args) == 1 and not kwargs
