"""Results as documents of lists, mappings, numbers and texts, which `json` takes.

The command line and REST use them; their keys are the names of the Python objects' fields."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from cutaway.contract.results import InspectResult
from cutaway.contract.tensors import Array, dtype_name

MAX_VALUES = 1000
"""The number of elements up to which a tensor's values are in a document, unless its reader asks for more."""


def document(value: Any, kind: type | None = None, *, max_values: int = MAX_VALUES) -> Any:
    """Returns ``value`` as a document; an `InspectResult` has its ``texts`` too.

    Args:
        value: a dataclass, a named tuple or a mapping.
        kind: the dataclass whose fields it has, if ``value`` is of a subclass.
        max_values: the largest number of elements of a tensor whose values it has.
    """
    found = _Encoder(max_values).encode(value, kind)
    return {**found, "texts": list(value.texts)} if isinstance(value, InspectResult) else found


def numbers(array: Array) -> Any:
    """Returns the elements of ``array`` as nested lists. NaN and infinities are strings, as in protobuf's JSON."""
    wide = array.astype(np.float64) if array.dtype.name == "bfloat16" else array
    finite = array.dtype.kind in "biu" or bool(np.isfinite(wide).all())
    return wide.tolist() if finite else _numbers(wide.tolist())


class _Encoder:
    """An encoder of values for `json`; see `document` for the argument."""

    def __init__(self, max_values: int) -> None:
        self._max_values = max_values
        self._encoders: dict[type, Callable[[Any], Any]] = {
            Enum: lambda member: member.value,
            str: str,
            Path: str,
            float: _number,
            np.ndarray: self._tensor,
            Mapping: self._mapping,
            tuple: lambda elements: [self.encode(element) for element in elements],
        }

    def encode(self, value: Any, kind: type | None = None) -> Any:
        if is_dataclass(value):
            names = [field.name for field in fields(kind or type(value))]
            return {name: self.encode(getattr(value, name)) for name in names}
        if hasattr(value, "_asdict"):
            return self._mapping(value._asdict())
        matching = (encode for known, encode in self._encoders.items() if isinstance(value, known))
        return next(matching, lambda same: same)(value)

    def _mapping(self, values: Mapping[Any, Any]) -> dict[str, Any]:
        return {str(key): self.encode(value) for key, value in values.items()}

    def _tensor(self, array: Array) -> dict[str, Any]:
        """Returns a tensor; ``values`` are nested lists, or None if they are too many."""
        values = None
        if array.size <= self._max_values:
            values = numbers(array)
        return {"data_type": dtype_name(array), "shape": list(array.shape), "values": values}


def _numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_numbers(element) for element in value]
    return _number(value) if isinstance(value, float) else value


def _number(value: float) -> float | str:
    """Returns ``value``; JSON has no numbers for what is not finite, and takes the texts that protobuf's JSON has."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
