"""Enums that are words."""

from enum import Enum


class Word(str, Enum):
    """An enum whose members are strings, and print as what they say: ``AGREES``, not ``Verdict.AGREES``."""

    def __str__(self) -> str:
        return str(self.value)
