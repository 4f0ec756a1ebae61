"""How long somebody waits for an answer: no pass begins for a caller who is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cutaway.errors import Reason, error


class Patience(NamedTuple):
    """A caller's.

    Attributes:
        until: when the caller stops waiting, in Unix seconds; None for never.
        gone: whether the caller has hung up already.
    """

    until: float | None = None
    gone: Callable[[], bool] = lambda: False

    @property
    def over(self) -> bool:
        """Whether nobody waits any more."""
        return (self.until is not None and time.time() > self.until) or self.gone()

    def refuse(self) -> None:
        """Raise ``DEADLINE_EXCEEDED`` where nobody waits any more."""
        if self.over:
            how = "the caller hung up" if self.gone() else "the deadline passed"
            raise error(Reason.DEADLINE_EXCEEDED, f"{how} while the call was at work")


ENDLESS = Patience()


def longest(several: Sequence[Patience]) -> Patience:
    """That of callers who are answered together: of the last who still waits."""
    deadlines = [each.until for each in several]
    latest = None if None in deadlines else max(each for each in deadlines if each is not None)
    return Patience(latest, lambda: all(each.over for each in several))
