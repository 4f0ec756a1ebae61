"""What stands behind the front door: something that takes a model's bytes and returns a worker's."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

from cutaway import hangups
from cutaway.gateway.catalog import Catalog
from cutaway.gateway.turns import Row, Turns
from cutaway.gateway.watched import lineage
from cutaway.results import ModelName

TURN_BYTES = 4 << 20
"""The most bytes that the calls of one turn have together: large ones gain nothing by company."""


class Backend(Protocol):
    """Answers questions about the models of its catalog."""

    catalog: Catalog

    @property
    def turns(self) -> Mapping[ModelName, Turns]:
        """The queues in front of the models, as far as there are any yet."""

    async def call(self, name: ModelName, kind: str, payload: bytes, timeout_s: float) -> bytes:
        """Ask model ``name``: ``inspect`` or ``describe`` with the question's bytes.

        Returns:
            A serialised `cutaway.v1.WorkerReply`.

        Raises:
            CutawayError: nothing came back.
        """

    def stream(self, name: ModelName, payload: bytes, timeout_s: float) -> AsyncGenerator[bytes, None]:
        """Ask model ``name`` the question of a serialised InspectStreamRequest.

        Yields:
            Serialised `cutaway.v1.InspectStreamResponse` messages, some of which may hold a failure.

        Raises:
            CutawayError: nothing came back.
        """

    async def close(self, grace_s: float) -> None:
        """Let go of what it holds; what still runs may go on for ``grace_s`` seconds."""


def a_row(parts: Row, timeout_s: float, word: bytes) -> Row:
    """A call's parts for a worker of this machine: the question, when it must be answered by, how it learns that nobody
    waits any more, and which span it belongs to.

    Args:
        parts: the question.
        timeout_s: how long the caller waits, in seconds.
        word: of `cutaway.hangups`.
    """
    # Unix time: front door and workers share a machine, and so a clock.
    return {**parts, "deadline": f"{time.time() + timeout_s:.6f}".encode(), hangups.PART: word, **lineage()}
