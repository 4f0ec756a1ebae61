"""Kinds of requests: what `cutaway.Client.inspect` is asked beside a model and its batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import cutaway as ca


@dataclasses.dataclass(frozen=True)
class Kind:
    """A request that is answered; ``inputs``, if any, go in place of the model's own batch."""

    name: str
    asked: Mapping[str, Any]
    inputs: Any = None


@dataclasses.dataclass(frozen=True)
class Failing:
    """A request that fails, with the reason and the field at fault; ``inputs`` and ``model`` in place of the usual."""

    name: str
    reason: ca.Reason
    field: str
    asked: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    inputs: Any = None
    model: str = ""
