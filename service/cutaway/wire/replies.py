"""A result as it is sent: its floating tensors as the data type that was asked for, or, of a dry run, its outline."""

from __future__ import annotations

from dataclasses import replace

from cutaway.errors import at
from cutaway.requests import InspectRequest
from cutaway.results import Estimate, InspectResult, Outline, Timings
from cutaway.results.places import swapped
from cutaway.tensors import Array, cast, dtype_name
from cutaway.wire.pieces import Cut

_EVERY_STAGE = Timings(*[1.0] * 7)


def as_asked(result: InspectResult, request: InspectRequest) -> InspectResult:
    """``result`` as ``request`` wants it.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, where the data type asked for cannot hold a number of it.
    """
    if request.dry_run:
        return _outlined(result)
    if not request.reply_data_type:
        return result
    with at("options.reply_data_type"):
        return swapped(result, lambda place, array: _typed(place, array, request.reply_data_type))


def _typed(place: str, array: Array, data_type: str) -> Array:
    # What was captured is of its type since its hook; it may have one of its own.
    captured = place.startswith(("captures.", "parameter_gradients."))
    return array if captured else cast(array, data_type, place)


def _outlined(result: InspectResult) -> InspectResult:
    """What ``result`` would be as a reply; its arrays are not read."""
    tensors: dict[str, Outline] = {}

    def noted(place: str, array: Array) -> Array:
        tensors[place] = Outline(dtype_name(array), array.shape)
        return array

    swapped(result, noted)
    size = Cut(replace(result, timings=_EVERY_STAGE)).reply_bytes
    return InspectResult(
        {},
        warnings=result.warnings,
        provenance=result.provenance,
        timings=result.timings,
        estimate=Estimate(size, tensors, result.estimate.passes if result.estimate else 0),
    )
