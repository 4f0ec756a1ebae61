"""Streamed replies whose model has run, and whose pieces wait for a connection that fetches them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

from cutaway.contract.wire.chunks import Piece

PATIENCE_S = 10.0
"""Seconds after which unfetched pieces are dropped, and that a reader may take without reading."""


class WaitingPieces:
    """The pieces of streamed replies, by number."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[float, Iterator[Piece]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, pieces: Iterator[Piece]) -> int:
        """Keeps ``pieces`` for `PATIENCE_S`, and returns their number."""
        self.drop_late()
        number = next(self._numbers)
        self._waiting[number] = (time.monotonic(), pieces)
        return number

    def take(self, number: int) -> Iterator[Piece] | None:
        """Returns the pieces with a number, once; None if there are none."""
        _, pieces = self._waiting.pop(number, (0.0, None))
        return pieces

    def drop_late(self) -> None:
        """Drops the pieces that nobody has fetched in time; safe in any thread."""
        oldest = time.monotonic() - PATIENCE_S
        # A copy, made at once: making a list of items may run the garbage collector, and so another thread.
        for number, (since, _) in self._waiting.copy().items():
            if since < oldest:
                self._waiting.pop(number, None)
