"""A function as a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class Through(nn.Module):
    """A function as a module, without parameters of its own: a place for hooks on whatever it returns."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)
