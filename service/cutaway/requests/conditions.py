"""The condition for explaining an example."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ExplainIf"]


@dataclass(frozen=True, kw_only=True)
class ExplainIf:
    """Explain an example only if its prediction meets every bound that is set. The attributions of other examples are
    zeros; if no example meets the bounds, nothing is computed and there are no values. A warning says so.

    Args:
        probability_at_least: the predicted class' probability is this or more, 0 to 1.
        probability_at_most: it is this or less, 0 to 1.
        classes: the predicted class is one of these; empty allows all.
    """

    probability_at_least: float | None = None
    probability_at_most: float | None = None
    classes: tuple[int, ...] = ()

    def qualifies(self, index: int, probability: float) -> bool:
        """Returns whether an example is explained whose predicted class is ``index``, with ``probability``."""
        least, most = self.probability_at_least, self.probability_at_most
        return (
            (least is None or probability >= least)
            and (most is None or probability <= most)
            and (not self.classes or index in self.classes)
        )
