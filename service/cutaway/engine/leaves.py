"""The tensors inside whatever a module takes or returns, each with a path a person can read."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Path = str
"""``""`` for a bare tensor, else ``[0]``, ``.logits``, ``["key"]``, or ``[1].hidden`` for nested ones."""

Change = Callable[[Path, Tensor], Tensor]


def leaves(value: object) -> dict[Path, Tensor]:
    """Every tensor in ``value``, by path, in order: tuples, lists, dicts, dataclasses and ModelOutputs are opened."""
    if isinstance(value, torch.Tensor):
        return {"": value}
    found: dict[Path, Tensor] = {}

    def keep(path: Path, tensor: Tensor) -> Tensor:
        found[path] = tensor
        return tensor

    map_leaves(value, keep)
    return found


def map_leaves(value: Any, change: Change, path: Path = "") -> Any:
    """``value`` with ``change(path, tensor)`` in place of each tensor; ``value`` itself where nothing changed."""
    if isinstance(value, torch.Tensor):
        return change(path, value)
    if isinstance(value, Mapping):
        return _mapped_mapping(value, change, path)
    if isinstance(value, (tuple, list)):
        return _mapped_sequence(value, change, path)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _mapped_dataclass(value, change, path)
    return value


def _mapped_mapping(value: Any, change: Change, path: Path) -> Any:
    # A ModelOutput is a mapping too, but read by attribute.
    by_attribute = dataclasses.is_dataclass(value)
    changed = {}
    for key, item in value.items():
        step = f".{key}" if by_attribute else f'["{key}"]' if isinstance(key, str) else f"[{key!r}]"
        new = map_leaves(item, change, path + step)
        if new is not item:
            changed[key] = new
    if not changed:
        return value
    renewed = copy.copy(value)
    for key, item in value.items():
        renewed[key] = changed.get(key, item)
    return renewed


def _mapped_sequence(value: Any, change: Change, path: Path) -> Any:
    new = [map_leaves(item, change, f"{path}[{index}]") for index, item in enumerate(value)]
    if all(after is before for after, before in zip(new, value)):
        return value
    named_tuple = isinstance(value, tuple) and hasattr(value, "_fields")
    return type(value)(*new) if named_tuple else type(value)(new)


def _mapped_dataclass(value: Any, change: Change, path: Path) -> Any:
    changed = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        new = map_leaves(item, change, f"{path}.{field.name}")
        if new is not item:
            changed[field.name] = new
    if not changed:
        return value
    renewed = copy.copy(value)
    for name, item in changed.items():
        object.__setattr__(renewed, name, item)  # also where the dataclass is frozen
    return renewed


def incoming(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[Path, Tensor]:
    """The tensors among what a function is called with: ``""`` for a single positional argument, else ``[0]``, or the
    keyword."""
    found = leaves(args[0] if _is_single(args, kwargs) else args)
    for key, value in kwargs.items():
        found.update({key + path: tensor for path, tensor in leaves(value).items()})
    return found


def put_back(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], tensors: Mapping[Path, Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments again, with ``tensors`` in place of those that `incoming` found."""

    def new(path: Path, _: Tensor) -> Tensor:
        return tensors[path]

    positional = (map_leaves(args[0], new),) if _is_single(args, kwargs) else map_leaves(args, new)
    return positional, {key: map_leaves(value, new, key) for key, value in kwargs.items()}


def _is_single(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return len(args) == 1 and not kwargs
