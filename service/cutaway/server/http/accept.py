"""Chooses the form of a reply, which ``Accept`` asks for (RFC 9110, 12.5.1)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from starlette.datastructures import Headers

from cutaway.contract.errors import Reason, error

_FIELD = "accept"
_QUALITY = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?")


def chosen(headers: Headers, offers: Sequence[str]) -> str:
    """Returns the media type of ``offers`` that a request takes rather than others; of equals the first.

    A media type that is named goes before one that is only in a range. Who names none of ``offers`` gets the first,
    unless it is refused.

    Raises:
        InvalidArgument: ``INVALID_VALUE`` if it is, or if a quality is no number from 0 to 1.
    """
    ranges = dict(_ranges(headers))
    ranks = {offer: _rank(offer, ranges) for offer in offers}
    best = max(offers, key=ranks.__getitem__)
    if ranks[best][0] > 0:
        return best
    if ranges.keys().isdisjoint(_matching(offers[0])):
        return offers[0]
    raise error(Reason.INVALID_VALUE, f"takes none of {', '.join(offers)}", _FIELD)


def _ranges(headers: Headers) -> Iterator[tuple[str, float]]:
    """Yields each range of media types, and its quality."""
    for text in ",".join(headers.getlist(_FIELD)).lower().split(","):
        name, *parameters = (part.strip() for part in text.split(";"))
        quality = next((each[2:].strip() for each in parameters if each.startswith("q=")), "1")
        if not _QUALITY.fullmatch(quality):
            raise error(Reason.INVALID_VALUE, f"a quality is {quality!r:.40}, and no number from 0 to 1", _FIELD)
        yield name, float(quality)


def _rank(offer: str, ranges: dict[str, float]) -> tuple[float, bool]:
    """Returns the quality of ``offer``, which the most specific range has, and whether it is named."""
    quality = next((ranges[name] for name in _matching(offer) if name in ranges), 0.0)
    return quality, offer in ranges


def _matching(offer: str) -> tuple[str, str, str]:
    return offer, f"{offer.partition('/')[0]}/*", "*/*"
