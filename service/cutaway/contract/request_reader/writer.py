"""Plain mappings for requests: what `cutaway.contract.request_reader.reader` reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

from cutaway.contract.request_reader.reader import CLASSES
from cutaway.contract.requests import Attribution, Edit, NeuronAttribution, TokenId
from cutaway.contract.tensors import Array

_TAGS = {Attribution: "method", Edit: "edit"}
"""The field that names the class, by base class; other classes have their name around their fields."""


def given(value: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass that differ from their defaults, to the sign of a zero, by name."""
    owned = ((attribute, getattr(value, attribute.name)) for attribute in fields(value))
    return {attribute.name: own for attribute, own in owned if not _is_same(own, _default(attribute))}


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _is_same(own: Any, default: Any) -> bool:
    """Returns whether ``own`` equals its field's default. Compares the ``repr``, which tells 0.0 from -0.0."""
    if isinstance(own, tuple) and len(own) == 1 and isinstance(own[0], Enum):
        return bool(own[0] == default)  # a choice stands for a tuple of it
    return repr(own) == repr(default)


def as_mapping(value: Any, array: Callable[[Array], Any] = np.ndarray.tolist) -> Any:
    """Returns a request, or a part of one, in mappings, lists, texts and numbers, without what has its default.

    Args:
        value: the request, or the part.
        array: returns what stands for an array.
    """
    if isinstance(value, TokenId):
        return {"token_id": int(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.ndarray):
        return array(value)
    if isinstance(value, Mapping):
        return {name: as_mapping(element, array) for name, element in value.items()}
    if isinstance(value, (tuple, list)):
        return [as_mapping(element, array) for element in value]
    if not is_dataclass(value):
        return value
    words = {name: as_mapping(own, array) for name, own in given(value).items()}
    if isinstance(value, NeuronAttribution):
        words["neuron"] = words["neuron"]["neuron"]  # which is always a neuron, and needs no name
    for base, kinds in CLASSES.items():
        for name, kind in kinds.items():
            if type(value) is kind:
                return {_TAGS[base]: name, **words} if base in _TAGS else {name: words}
    return words
