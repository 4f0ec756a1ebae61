"""What a data set is to a job: rows, columns, and a way to read a range of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy.typing as npt

from cutaway.errors import Reason, error


@dataclass(frozen=True)
class Unreadable:
    """Stands where a value could not be read; its row becomes a bad row.

    Attributes:
        reason: a sentence for a person.
    """

    reason: str


Column: TypeAlias = "npt.NDArray[Any] | list[Any]"
"""The values of one column, axis 0 is the row: a list where they are ragged, strings, bytes or `Unreadable`."""


class Source(Protocol):
    """A data set that is read range by range. Not for several threads at once."""

    @property
    def rows(self) -> int:
        """How many rows there are."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        ...

    @property
    def fingerprint(self) -> str:
        """A SHA-256 in hex of what identifies the data: a changed data set has another."""
        ...

    def read(self, start: int, stop: int, columns: Sequence[str]) -> dict[str, Column]:
        """The rows [start, stop) of ``columns``; the memory it takes is that of the range.

        Raises:
            InvalidArgument: ``COLUMN_NOT_FOUND``; ``DATA_UNREADABLE``, where what is there can no longer be read.
        """
        ...


def check_columns(asked: Sequence[str], there: Sequence[str]) -> None:
    """Raise ``COLUMN_NOT_FOUND`` for the first of ``asked`` that is not ``there``; the message lists what is."""
    for name in asked:
        if name not in there:
            known = ", ".join(map(repr, there)) or "none"
            raise error(Reason.COLUMN_NOT_FOUND, f"the data set has no column {name!r}; it has {known}")
