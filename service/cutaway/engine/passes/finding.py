"""The likely cause of a verdict."""

from __future__ import annotations

from typing import NamedTuple

from cutaway.results import Cause


class Finding(NamedTuple):
    """A likely cause.

    Attributes:
        cause: for programs.
        reason: for people: what happened where, and what to do.
    """

    cause: Cause
    reason: str
