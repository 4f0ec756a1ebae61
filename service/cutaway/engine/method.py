"""What a row of the table of attribution methods says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from cutaway.engine.evidence import Evidence, Reference
from cutaway.engine.witness import Question, Values


class Tolerances(NamedTuple):
    """The largest relative error that still agrees, by the data type that the model computes in."""

    float64: float
    float32: float
    bfloat16: float
    float16: float

    def of(self, dtype: torch.dtype) -> float:
        """The tolerance for ``dtype``."""
        return float(getattr(self, str(dtype).removeprefix("torch."), self.float32))


ONE_PASS = Tolerances(float64=1e-9, float32=1e-4, bfloat16=5e-2, float16=1e-2)

# Captum keeps the weights of its quadrature in float32, whatever the input's data type.
PATH = Tolerances(float64=1e-6, float32=1e-3, bfloat16=1e-1, float16=2e-2)


def _nothing(_: Any) -> dict[str, Any]:
    return {}


def _never(_: Any) -> bool:
    return False


@dataclass(frozen=True)
class Method:
    """One row.

    Attributes:
        captum: the class that answers.
        reference: what the answer must equal, from raw hook outputs.
        points: which inputs must be visited to know it.
        identity: the same in words.
        settings: arguments of the Captum class, from the question.
        options: arguments of its ``attribute``, from the question.
        differentiates: whether the method has a target.
        adds_up: whether, with these parameters, attributions sum to the target's change from the baseline.
        tolerances: how closely answer and reference must match.
    """

    captum: Callable[..., Any]
    reference: Callable[[Evidence], Reference]
    points: Callable[[Question], list[Values]]
    identity: str
    settings: Callable[[Any], dict[str, Any]] = _nothing
    options: Callable[[Question], dict[str, Any]] = _nothing
    differentiates: bool = True
    adds_up: Callable[[Any], bool] = _never
    tolerances: Tolerances = ONE_PASS
