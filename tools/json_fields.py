"""The fields of the JSON documents that commands print, as tables for docs/command-line.md."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from cutaway.cli import console_output
from cutaway.contract.results import InspectResult, ModelDetail
from cutaway.jobs import Drift, Plan, Summary
from cutaway.jobs.reading import FoundRows

DOCUMENTS: dict[str, type] = {
    "models": console_output.Models,
    "layers": ModelDetail,
    "inspect": InspectResult,
    "verify": console_output.Verification,
    "package": console_output.Package,
    "token": console_output.Token,
    "batch run": Summary,
    "batch plan": Plan,
    "batch report": console_output.Report,
    "batch compare": Drift,
    "batch similar": FoundRows,
    "error": console_output.Failure,
}
"""What each command prints, by its name; and what is in ``error``."""

_PLAIN: dict[Any, str] = {str: "text", Path: "text", int: "whole number", float: "number", bool: "true or false"}


def table(kind: type) -> Iterator[str]:
    """Yields the lines of the table for the document ``kind``."""
    yield "| field | type | meaning |"
    yield "|---|---|---|"
    for path, type_name, meaning in _rows(kind, ""):
        yield f"| `{path}` | {type_name} | {meaning} |"
    if kind is InspectResult:  # the one that is no field
        yield f"| `texts` | list of text | {_cell(InspectResult.texts.__doc__ or '')} |"


def _rows(kind: Any, prefix: str) -> Iterator[tuple[str, str, str]]:
    meanings = _meanings(kind)
    for name, hint in get_type_hints(kind).items():
        path = f"{prefix}{name}"
        inner, inside = _inside(hint)
        own = [meanings.get(name, "")] + ([_summary(inner)] if inner is not None and not _meanings(inner) else [])
        yield path, _type(hint), _cell(" ".join(filter(None, own)))
        if inner is not None:
            yield from _rows(inner, f"{path}{inside}.")


def _inside(hint: Any) -> tuple[Any, str]:
    """Returns the object that ``hint`` holds, None for other values, and what its path adds for lists and maps."""
    hint = _required(hint)
    if _is_object(hint):
        return hint, ""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin not in (tuple, dict, Mapping):
        return None, ""
    inner, inside = _inside(arguments[0] if origin is tuple else arguments[1])
    return inner, ("[]" if origin is tuple else ".*") + inside


def _type(hint: Any) -> str:
    if _required(hint) is not hint:
        return f"{_type(_required(hint))} or null"
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is np.ndarray:
        return "tensor"
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    if origin in (dict, Mapping):
        return f"map of {_type(arguments[1])}"
    return "object" if _is_object(hint) else "text" if issubclass(hint, Enum) else repr(hint)


def _required(hint: Any) -> Any:
    """Returns ``X`` for ``X | None``."""
    return get_args(hint)[0] if get_origin(hint) in (Union, types.UnionType) else hint


def _is_object(hint: Any) -> bool:
    return is_dataclass(hint) or hasattr(hint, "_fields")


def _meanings(kind: Any) -> dict[str, str]:
    """Returns what the section ``Attributes`` of the docstring says of each field."""
    _, _, section = inspect.getdoc(kind).partition("Attributes:\n")  # type: ignore[union-attr]  # all have one
    return dict(re.findall(r"^    (\w+): (.*(?:\n     +.*)*)", section, re.MULTILINE))


def _summary(kind: Any) -> str:
    return (inspect.getdoc(kind) or "").partition("\n\n")[0]


def _cell(text: str) -> str:
    return re.sub(r"\bNone\b", "null", " ".join(text.split())).replace("``", "`").replace("|", "\\|")
