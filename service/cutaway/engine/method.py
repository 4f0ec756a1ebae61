"""What a row of the table of attribution methods says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from cutaway.engine.evidence import Evidence, Reference
from cutaway.engine.finding import Finding
from cutaway.engine.subject import Inputs, Subject
from cutaway.engine.witness import Changes, Pass, Question, Values, visits


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

# A sum that an integral approximates: this much may be missing before the number of steps is in doubt.
APPROXIMATE = Tolerances(float64=2e-2, float32=2e-2, bfloat16=2e-1, float16=5e-2)

# A sum that is exact but for rounding.
EXACT = Tolerances(float64=1e-6, float32=1e-3, bfloat16=2e-1, float16=2e-2)


def _nothing(_: Any) -> dict[str, Any]:
    return {}


def _never(_: Any) -> bool:
    return False


def _one(_: Any) -> int:
    return 1


def _nought(_: Any) -> None:
    return None


def _allowed(_: Subject, request: Any, inputs: Inputs, edits: Changes) -> None:
    """Nothing is refused."""


def _as_it_is(_: Any) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True)
class Method:
    """One row.

    Attributes:
        captum: the class that answers.
        reference: what the answer must equal, from raw hook outputs.
        points: the inputs that Captum must visit.
        identity: the same in words.
        settings: arguments of the Captum class, from the question.
        options: arguments of its ``attribute``, from the question.
        differentiates: whether the method has a target.
        perturbs: whether it has forward passes only, on changed inputs.
        draws: whether it draws random numbers, and needs a seed.
        moot: why the answer says nothing about this question, whatever it is; None where it does.
        adds_up: whether, with these parameters, attributions sum to the target's change from the baseline.
        sums: how much of that sum may be missing, as a fraction of the attributions' total magnitude.
        conserves: whether they sum to the target itself, but for what biases take up.
        tolerances: how closely answer and reference must match.
        together: how many points Captum runs in one pass.
        copies: into how many parts the points fall, none of which reaches into the next one's passes.
        by_row: whether Captum's passes treat each row by itself, so that rows of several requests may share them.
        own: passes of our own that the reference is made of, where Captum overrides what flows through the model: its
            passes cannot prove that the override took place. None: whichever passes visit the points will do.
        overlooked: what Captum leaves out in this model, so that not even a match proves its answer; None for nothing.
        applies_to_modules: whether Captum must be given modules, and not a function, because it hooks them itself.
        of_neuron: whether a neuron is explained, in place of a target.
        refuse: raises for what this method cannot take, before anything runs; from the model, the request, the inputs
            and the edits. Fields are below the method's own.
        prepared: a context in which the model is as Captum wants to find it.
    """

    captum: Callable[..., Any]
    reference: Callable[[Evidence], Reference]
    points: Callable[[Question], list[Values]]
    identity: str
    settings: Callable[[Any], dict[str, Any]] = _nothing
    options: Callable[[Question], dict[str, Any]] = _nothing
    differentiates: bool = True
    perturbs: bool = False
    draws: bool = False
    moot: Callable[[Question], Finding | None] = _nought
    adds_up: Callable[[Any], bool] = _never
    sums: Tolerances = APPROXIMATE
    conserves: bool = False
    tolerances: Tolerances = ONE_PASS
    together: Callable[[Question], int] = _one
    copies: Callable[[Question], int] = _one
    by_row: bool = False
    own: Callable[[Question], Sequence[Pass]] | None = None
    overlooked: Callable[[Question], Finding | None] = _nought
    applies_to_modules: bool = False
    of_neuron: bool = False
    refuse: Callable[[Subject, Any, Inputs, Changes], None] = _allowed
    prepared: Callable[[Question], AbstractContextManager[None]] = _as_it_is

    def passes(self, question: Question, *, apart: bool = False) -> Sequence[Pass]:
        """Passes of our own that the reference can be told from. ``apart``: each point has a pass to itself."""
        if self.own is not None:
            return self.own(question)
        together = 1 if apart else self.together(question)
        points, copies = self.points(question), self.copies(question)
        part = len(points) // copies
        return [
            each
            for first in range(0, len(points), part)
            for each in visits(question, points[first : first + part], self.runs_backward, together=together)
        ]

    @property
    def has_target(self) -> bool:
        """Whether the request's target is what is explained."""
        return self.differentiates and not self.of_neuron

    @property
    def runs_backward(self) -> bool:
        """Whether gradients are taken."""
        return self.differentiates and not self.perturbs
