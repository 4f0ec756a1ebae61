"""One kind of request."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import cutaway as ca
from tests.support.mixed.by_hand import Answer, ByHand


@dataclasses.dataclass(frozen=True)
class Kind:
    """A request, and what its answer must be.

    Attributes:
        name: what it is about, in words.
        asked: what `cutaway.Client.inspect` is given beside the model and its inputs.
        hand: the same question with PyTorch's own hooks.
        warnings: the codes of the warnings due.
        inputs: instead of the model's own batch.
    """

    name: str
    asked: Mapping[str, Any]
    hand: Callable[[ByHand], Answer]
    warnings: tuple[str, ...] = ()
    inputs: Any = None


@dataclasses.dataclass(frozen=True)
class Failing:
    """A request that fails, with what must be said of it.

    Attributes:
        name: what is wrong, in words.
        reason: the reason.
        field: the field at fault.
        asked: what `cutaway.Client.inspect` is given beside the model and its inputs.
        inputs: instead of the model's own batch.
        model: instead of the model.
    """

    name: str
    reason: ca.Reason
    field: str
    asked: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    inputs: Any = None
    model: str = ""
