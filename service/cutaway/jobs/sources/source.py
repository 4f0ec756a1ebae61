"""The protocol of data sets: rows, columns, and reading a range of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Protocol, TypeAlias

import numpy.typing as npt

from cutaway.contract.errors import Reason, error


@dataclass(frozen=True)
class Unreadable:
    """A mark in place of a value that cannot be read; its row becomes a bad row.

    Attributes:
        reason: a sentence for a person.
    """

    reason: str


Column: TypeAlias = "npt.NDArray[Any] | list[Any]"
"""The values of one column, one per row: a list if they are ragged, texts, bytes or `Unreadable`."""


class Source(Protocol):
    """A data set that is read range by range, by one thread at a time."""

    @property
    def rows(self) -> int:
        """The number of rows."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in order."""

    @property
    def fingerprint(self) -> str:
        """A SHA-256 in hex that changes with the data."""

    def read(self, start: int, stop: int, columns: Sequence[str]) -> dict[str, Column]:
        """Returns the rows [start, stop) of ``columns``; needs the memory of that range.

        Raises:
            InvalidArgument: ``COLUMN_NOT_FOUND``; ``DATA_UNREADABLE``, if the data can no longer be read.
        """


def check_columns(names: Sequence[str], known: Sequence[str]) -> None:
    """Raises ``COLUMN_NOT_FOUND`` for the first of ``names`` that is not in ``known``, with the nearest names."""
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=3)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            listed = ", ".join(map(repr, known[:_LISTED])) + (", ..." if len(known) > _LISTED else "")
            message = f"the data set has no column {name!r}{hint or '; it has'} {'' if hint else listed or 'none'}"
            raise error(Reason.COLUMN_NOT_FOUND, message.rstrip())


_LISTED = 20
