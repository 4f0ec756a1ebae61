"""An enum with string members, as Python 3.11 has it."""

from enum import Enum


class StrEnum(str, Enum):
    """An enum whose members are strings, and print as their value: ``AGREES``, not ``Verdict.AGREES``."""

    def __str__(self) -> str:
        return str(self.value)
