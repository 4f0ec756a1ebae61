"""A result in parts: each has what exists of it and no part before has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from cutaway.contract.results import InspectResult, ModuleCapture

_EMPTY = InspectResult({})


def joined(result: InspectResult, part: InspectResult) -> InspectResult:
    """Returns ``result`` with the next ``part`` of it."""
    return _by_field(result, part, _with)


def rest(result: InspectResult, sent: InspectResult) -> InspectResult:
    """Returns the part of ``result`` that ``sent``, the result at an earlier time, does not have."""
    return _by_field(result, sent, _without)


def _by_field(result: InspectResult, other: InspectResult, function: Any) -> InspectResult:
    pairs = ((field.name, getattr(result, field.name), getattr(other, field.name)) for field in fields(InspectResult))
    return InspectResult(**{name: function(value, other, getattr(_EMPTY, name)) for name, value, other in pairs})


def _with(value: Any, added: Any, empty: Any) -> Any:
    """Returns a field's value after the next part arrived: mappings and tuples grow, any other value is replaced,
    unless the part has none."""
    if isinstance(empty, Mapping):
        return {**value, **{key: _longer(value.get(key), element) for key, element in added.items()}}
    if isinstance(empty, tuple):
        return value + added
    return value if _is_empty(added, empty) else added


def _without(value: Any, sent: Any, empty: Any) -> Any:
    """Returns the part of a field's value that is not in ``sent``; ``empty`` if all was sent. Reverses `_with`."""
    if isinstance(empty, Mapping):
        new = {key: _later(element, sent[key]) if key in sent else element for key, element in value.items()}
        return {key: element for key, element in new.items() if element is not None}
    if isinstance(empty, tuple):
        return value[len(sent) :]
    return value if _is_empty(sent, empty) else empty


def _longer(value: Any, added: Any) -> Any:
    """Returns what a mapping has under a key after ``added`` came: a capture has the calls of both."""
    return ModuleCapture(value.calls + added.calls) if isinstance(value, ModuleCapture) else added


def _later(value: Any, sent: Any) -> Any:
    """Returns what ``sent`` has not under its key: the later calls of a capture, else None."""
    calls = value.calls[len(sent.calls) :] if isinstance(value, ModuleCapture) else ()
    return ModuleCapture(calls) if calls else None


def _is_empty(value: Any, empty: Any) -> bool:
    return value is None if empty is None else bool(value == empty)
