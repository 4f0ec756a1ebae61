"""Load balancing over several servers of the same models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol, TypeVar

from cutaway.results import ModelName

CHECK_INTERVAL_S = 0.5
CHECK_TIMEOUT_S = 5.0
MAX_FAILED_CHECKS = 2
"""Checks in a row without a reply until a server counts as unavailable: a busy machine may be slow for a while."""

OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_reconnect_backoff_ms", 1000),  # else a restarted server is noticed after two minutes
)


class Member(Protocol):
    """One server; ``under_way`` counts its running calls by model."""

    under_way: Counter[ModelName]


M = TypeVar("M", bound=Member)


def pick(members: list[M], name: ModelName, able: Callable[[M], bool]) -> M | None:
    """Returns the member that is ``able`` and has the fewest running calls of model ``name``; of several, the least
    recently used. None if none is able. The member becomes the last of ``members``."""
    candidates = [member for member in members if able(member)]
    if not candidates:
        return None
    picked = min(candidates, key=lambda member: member.under_way[name])
    members.remove(picked)
    members.append(picked)
    return picked
