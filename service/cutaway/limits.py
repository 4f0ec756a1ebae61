"""What a call may take: until when, how many bytes, and how much of everything else."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cutaway.errors import Reason, error
from cutaway.requests import InspectRequest, field_name
from cutaway.settings import Settings


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


class Limits(NamedTuple):
    """What one request may ask for at most.

    Attributes:
        rows: examples.
        captures: captures, as they are listed; a glob is one.
        attributions: explanations.
        steps: steps, or samples, of one explanation.
        passes: passes of one example through the model, for all explanations together.
    """

    rows: int
    captures: int
    attributions: int
    steps: int
    passes: int

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """Those that the operator has set."""
        return cls(
            settings.max_rows,
            settings.max_captures,
            settings.max_attributions,
            settings.max_steps,
            settings.max_passes,
        )

    def refuse(self, request: InspectRequest) -> None:
        """Raise ``LIMIT_EXCEEDED``, with the field at fault, where ``request`` asks for more."""
        for field, what, count, most in self._counted(request):
            if count > most:
                raise error(Reason.LIMIT_EXCEEDED, f"{count} {what} are asked for, {most} are allowed", field)

    def refuse_passes(self, costs: Iterable[tuple[str, int]]) -> None:
        """Raise ``LIMIT_EXCEEDED`` where explanations cost more, with the field of the one that is too many; ``costs``:
        each one's field, and its passes of one example."""
        total = 0
        for field, passes in costs:
            total += passes
            if total > self.passes:
                raise error(
                    Reason.LIMIT_EXCEEDED,
                    f"up to {total} passes are asked for, {self.passes} are allowed, each example counted: take fewer "
                    "examples, steps, samples or features, or no check",
                    field,
                )

    def _counted(self, request: InspectRequest) -> Iterator[tuple[str, str, int, int]]:
        for name, array in request.tensors.items():
            yield f"tensors.by_name.{name}", "rows", array.shape[0] if array.ndim else 1, self.rows
        yield "raw", "examples", len(request.raw), self.rows
        yield "captures", "captures", len(request.captures), self.captures
        yield "attributions", "explanations", len(request.attributions), self.attributions
        for index, attribution in enumerate(request.attributions):
            for steps in ("n_steps", "n_samples"):
                field = f"attributions[{index}].{field_name(type(attribution))}.{steps}"
                yield field, "steps", getattr(attribution, steps, 0), self.steps
