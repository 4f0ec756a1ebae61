"""Whether a reply is the one that its request would have had alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import cutaway as ca

OWN = {
    *("timings", "provenance", "max_absolute_error", "max_relative_error", "cosine", "convergence_delta"),
    *("attribution_ms", "check_ms"),
}
"""What a reply says of how it was made, and what is left of rounding: no two runs need have these in common."""


def differences(one: Any, other: Any, relative: float, where: str = "") -> Iterator[str]:
    """Where two replies differ: arrays by more than ``relative`` of the larger one's magnitude, all else at all."""
    if type(one) is not type(other):
        yield f"{where}: {one!r} and {other!r}"
    elif isinstance(one, np.ndarray):
        yield from _arrays(one, other, relative, where)
    elif isinstance(one, ca.CutawayError):
        if str(one) != str(other) or one.field != other.field:
            yield f"{where}: {one!r} and {other!r}"
    elif dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            if field.name not in OWN:
                pair = (getattr(one, field.name), getattr(other, field.name))
                yield from differences(*pair, relative, f"{where}.{field.name}")
    elif isinstance(one, Mapping):
        yield from [f"{where}: {set(one) ^ set(other)}"] if list(one) != list(other) else []
        for key in one.keys() & other.keys():
            yield from differences(one[key], other[key], relative, f"{where}[{key}]")
    elif isinstance(one, (tuple, list)):
        yield from [f"{where}: {len(one)} and {len(other)}"] if len(one) != len(other) else []
        for number, pair in enumerate(zip(one, other)):
            yield from differences(*pair, relative, f"{where}[{number}]")
    elif one != other and not (isinstance(one, float) and abs(one - other) <= relative * max(1.0, abs(other))):
        yield f"{where}: {one!r} and {other!r}"


def _arrays(one: Any, other: Any, relative: float, where: str) -> Iterator[str]:
    if one.shape != other.shape or one.dtype != other.dtype:
        yield f"{where}: {one.dtype}{list(one.shape)} and {other.dtype}{list(other.shape)}"
    elif one.dtype.kind not in "fV":
        yield from [] if np.array_equal(one, other) else [f"{where}: other whole numbers"]
    elif one.size:
        pair = (one.astype(np.float64), other.astype(np.float64))
        scale = float(np.nanmax(np.abs(pair[1]), initial=0.0)) or 1.0
        if not np.allclose(*pair, rtol=0, atol=relative * scale, equal_nan=True):
            yield f"{where}: {np.nanmax(np.abs(pair[0] - pair[1])) / scale:.2g} apart"
