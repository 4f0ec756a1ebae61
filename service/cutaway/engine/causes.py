"""Likely causes, from further runs that are made only where something is wrong already."""

from __future__ import annotations

import torch

from cutaway.engine.finding import Finding
from cutaway.engine.witness import Question
from cutaway.results import Cause


def random_forward(question: Question) -> Finding | None:
    """Whether two runs on the same inputs differ."""
    with torch.no_grad():
        first, second = (question.subject.run(question.inputs) for _ in range(2))
    if all(torch.equal(first[name], second[name]) for name in first):
        return None
    return Finding(
        Cause.RANDOM_FORWARD,
        "two runs of the model on the same input differ: something in its forward is random (dropout that ignores eval "
        "mode?), so no explanation of it can be repeated",
    )


def no_gradient(question: Question) -> Finding:
    """Where the path from the target back is cut."""
    return Finding(
        Cause.NO_GRADIENT,
        "the gradient is exactly zero everywhere: either the target does not depend on this input, or the path to it "
        "is cut (detach, round, argmax) or saturated",
    )
