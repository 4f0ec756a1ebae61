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


def leaves(value: object) -> dict[Path, Tensor]:
    """Every tensor in ``value``, by path, in order: tuples, lists, dicts, dataclasses and ModelOutputs are opened."""
    found: dict[Path, Tensor] = {}

    def keep(path: Path, tensor: Tensor) -> Tensor:
        found[path] = tensor
        return tensor

    map_leaves(value, keep)
    return found


def map_leaves(value: Any, function: Callable[[Path, Tensor], Tensor], path: Path = "") -> Any:
    """``value`` with ``function(path, tensor)`` in place of each tensor; ``value`` itself where nothing changed."""
    if isinstance(value, torch.Tensor):
        return function(path, value)
    if isinstance(value, Mapping):
        return _mapped_mapping(value, function, path)
    if isinstance(value, (tuple, list)):
        return _mapped_sequence(value, function, path)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _mapped_dataclass(value, function, path)
    return value


def _mapped_mapping(value: Any, function: Callable[[Path, Tensor], Tensor], path: Path) -> Any:
    # A ModelOutput is a mapping too, but read by attribute.
    if dataclasses.is_dataclass(value):
        return _mapped_dataclass(value, function, path)
    changed = {}
    for key, item in value.items():
        new = map_leaves(item, function, f'{path}["{key}"]')
        if new is not item:
            changed[key] = new
    if not changed:
        return value
    renewed = copy.copy(value)
    renewed.update(changed)
    return renewed


def _mapped_sequence(value: Any, function: Callable[[Path, Tensor], Tensor], path: Path) -> Any:
    new = [map_leaves(item, function, f"{path}[{index}]") for index, item in enumerate(value)]
    if all(after is before for after, before in zip(new, value)):
        return value
    named_tuple = isinstance(value, tuple) and hasattr(value, "_fields")
    return type(value)(*new) if named_tuple else type(value)(new)


def _mapped_dataclass(value: Any, function: Callable[[Path, Tensor], Tensor], path: Path) -> Any:
    changed = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        new = map_leaves(item, function, f"{path}.{field.name}")
        if new is not item:
            changed[field.name] = new
    return dataclasses.replace(value, **changed) if changed else value
