"""What a call may take: until when, and how many bytes."""

from __future__ import annotations

import time

from cutaway.errors import Reason, error


def deadline_in(word: bytes) -> float | None:
    """When a call's time is up, as Unix seconds, which ``word`` spells; None for never.

    Raises:
        InvalidArgument: ``MALFORMED_REQUEST``.
    """
    try:
        return float(word) if word else None
    except ValueError:
        raise error(Reason.MALFORMED_REQUEST, "the deadline is Unix seconds in ASCII digits") from None


def refuse_late(deadline: float | None, when: str) -> None:
    """Raise ``DEADLINE_EXCEEDED`` where ``deadline`` passed, and say ``when``."""
    if deadline is not None and deadline < time.time():
        raise error(Reason.DEADLINE_EXCEEDED, f"the deadline passed {when}")


def refuse_large(size: int, asked: int, carried: int) -> None:
    """Raise ``REPLY_TOO_LARGE`` for a reply of ``size`` bytes, where the caller ``asked`` for fewer (0 for no word), or
    fewer can be ``carried``."""
    limit = min(asked or carried, carried)
    if size > limit:
        raise error(
            Reason.REPLY_TOO_LARGE,
            f"the reply would have {size} bytes, {limit} are allowed; capture fewer modules or send fewer rows",
            "options.max_reply_bytes" if asked and asked <= carried else "",
        )
