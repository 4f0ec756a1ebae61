"""Limits of a request: deadline, memory, size of the reply, and the counts that the operator sets."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from cutaway.contract.errors import Reason, error
from cutaway.contract.requests import InspectRequest, field_name
from cutaway.server.settings import Settings

T = TypeVar("T")


def check_deadline(deadline: float | None, when: str) -> None:
    """Raises ``DEADLINE_EXCEEDED``, with the phrase ``when``, if ``deadline`` has passed."""
    if deadline is not None and deadline < time.time():
        raise error(Reason.DEADLINE_EXCEEDED, f"the deadline passed {when}")


def until_deadline(pieces: Iterator[T], deadline: float | None) -> Iterator[T]:
    """Yields ``pieces``; raises ``DEADLINE_EXCEEDED`` before the first one past ``deadline``."""
    for piece in pieces:
        check_deadline(deadline, "before the whole reply was sent")
        yield piece


def check_reply_size(size: int, requested: int, possible: int) -> None:
    """Raises ``REPLY_TOO_LARGE`` for a reply that is larger than the caller or the transport allows.

    Args:
        size: bytes of the reply.
        requested: the caller's limit; 0 for none.
        possible: the transport's limit.
    """
    limit = min(requested or possible, possible)
    if size > limit:
        raise error(
            Reason.REPLY_TOO_LARGE,
            f"the reply would have {size} bytes, {limit} are allowed; capture fewer modules or send fewer rows",
            "options.max_reply_bytes" if requested and requested <= possible else "",
        )


def check_memory(request: InspectRequest, least: int, allowed: int) -> None:
    """Raises ``OUT_OF_MEMORY`` if the activations of a request take at least ``least`` bytes, and fewer are allowed."""
    if least > allowed:
        what = f"the activations of its rows take at least {least} bytes, {allowed} are allowed: send fewer rows"
        raise error(Reason.OUT_OF_MEMORY, what, "raw" if request.raw else "tensors.by_name")


def check_counts(request: InspectRequest, settings: Settings) -> None:
    """Raises ``LIMIT_EXCEEDED``, with the field, if the request has more rows, captures, attributions or steps than the
    settings allow."""
    for field, what, count, limit in _counts(request, settings):
        if count > limit:
            raise error(Reason.LIMIT_EXCEEDED, f"the request has {count} {what}, {limit} are allowed", field)


def _counts(request: InspectRequest, settings: Settings) -> Iterator[tuple[str, str, int, int]]:
    """Yields field, noun, count and limit."""
    for name, array in request.tensors.items():
        yield f"tensors.by_name.{name}", "rows", array.shape[0] if array.ndim else 1, settings.max_rows
    yield "raw", "examples", len(request.raw), settings.max_rows
    yield "captures", "captures", len(request.captures), settings.max_captures
    yield "attributions", "attributions", len(request.attributions), settings.max_attributions
    for index, attribution in enumerate(request.attributions):
        for steps in ("n_steps", "n_samples"):
            field = f"attributions[{index}].{field_name(type(attribution))}.{steps}"
            yield field, "steps", getattr(attribution, steps, 0), settings.max_steps


def check_passes(costs: Iterable[tuple[str, int]], limit: int) -> None:
    """Raises ``LIMIT_EXCEEDED``, with the field of the attribution that exceeds the limit.

    Args:
        costs: field and number of passes of one row, by attribution.
        limit: `Settings.max_passes`.
    """
    total = 0
    for field, passes in costs:
        total += passes
        if total > limit:
            advice = "request fewer rows, steps, samples or features, or no check"
            what = f"attributions would take up to {total} passes of one row, {limit} are allowed: {advice}"
            raise error(Reason.LIMIT_EXCEEDED, what, field)
