"""Values of requests as Python writes them, in terms of ``cutaway`` as ``ca`` and ``numpy`` as ``np``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

import numpy as np

from cutaway.request_reader.writer import given
from cutaway.requests import TokenId
from cutaway.schema.tensors import dtype_name


def literal(value: Any) -> str:
    """Returns the expression for a value; a tuple that holds only a choice is written as the choice."""
    if isinstance(value, Enum):
        return literal(value.value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if value.isprintable() else repr(value)
    if isinstance(value, TokenId):
        return f"ca.TokenId({int(value)})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, np.ndarray):
        numbers = ", ".join(_number(each) for each in value.ravel())
        return f'np.array([{numbers}], "{dtype_name(value)}").reshape({literal(value.shape)})'
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{literal(name)}: {literal(each)}' for name, each in value.items())}}}"
    if isinstance(value, tuple):
        if len(value) == 1:
            return literal(value[0]) if isinstance(value[0], Enum) else f"({literal(value[0])},)"
        return f"({', '.join(map(literal, value))})"
    if is_dataclass(value):
        return f"ca.{type(value).__name__}({', '.join(arguments(value))})"
    return repr(value)


def arguments(value: Any) -> list[str]:
    """Returns the arguments by which a dataclass is made: those that are not the default."""
    return [f"{name}={literal(own)}" for name, own in given(value).items()]


def _number(value: Any) -> str:
    text = "-0.0" if str(value) == "-0" else str(value)  # as bfloat16 writes it, which Python reads as a whole number
    return text if "n" not in text else f'float("{text}")'
