"""What is the matter with an attribution, for programs and for people."""

from __future__ import annotations

from typing import NamedTuple

from cutaway.results import Cause


class Finding(NamedTuple):
    """A likely cause.

    Attributes:
        cause: the word that programs branch on.
        reason: what happened where, and what to do about it.
    """

    cause: Cause
    reason: str
