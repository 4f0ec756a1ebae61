"""Which examples are worth an explanation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ExplainIf:
    """Explain an example only where its prediction meets every bound that is given. One that does not has zeros for
    attributions; where none does nothing is run, and there are no values. A warning says so.

    Args:
        probability_at_least: the predicted class' probability is this or more, 0 to 1.
        probability_at_most: it is this or less, 0 to 1.
        classes: the predicted class is one of these; empty allows all.
    """

    probability_at_least: float | None = None
    probability_at_most: float | None = None
    classes: tuple[int, ...] = ()
