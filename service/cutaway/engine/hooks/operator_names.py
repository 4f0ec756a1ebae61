"""Names of PyTorch functions in operator addresses, and the functions that are not operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

_COMPUTES_NOTHING = {"clone", "detach", "detach_", "requires_grad_", "retain_grad", "register_hook", "backward", "grad"}
"""Hooks and Captum call some of these, and must not change the numbers of the model's operators."""

_RETURNS_NO_TENSOR = {
    *("size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "item", "tolist", "numpy"),
    *("is_floating_point", "is_complex", "is_contiguous", "get_device", "data_ptr", "untyped_storage", "element_size"),
    *("__len__", "__bool__", "__int__", "__float__", "__complex__", "__index__", "__format__", "__repr__"),
    *("__contains__", "__set__", "_set_grad_enabled"),
}
"""Called very often; functions not listed here are recognised when they return."""

_PROPERTIES = {"T", "mT", "H", "mH", "real", "imag"}
"""Attributes of a tensor whose access computes a tensor."""


@lru_cache(maxsize=4096)
def operator_name(func: Callable[..., Any]) -> str:
    """Returns the name, like ``relu``, ``getitem`` or ``mT`` for a property; ``""`` if ``func`` is no operator."""
    name = str(getattr(func, "__name__", type(func).__name__))
    if name == "__get__":
        attribute = getattr(getattr(func, "__self__", None), "__name__", "")
        return attribute if attribute in _PROPERTIES else ""
    if name in _COMPUTES_NOTHING or name in _RETURNS_NO_TENSOR:
        return ""
    # An overload has its own name behind a dot: relu.default.
    return (name.strip("_") if name.startswith("__") else name).partition(".")[0]
