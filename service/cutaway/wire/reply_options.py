"""Options of a request that change its reply: the data type of floating tensors, and the dry run."""

from __future__ import annotations

from dataclasses import replace

from cutaway.errors import at
from cutaway.requests import InspectRequest
from cutaway.results import Estimate, InspectResult, Outline, Timings
from cutaway.results.tensor_map import map_tensors
from cutaway.schema.tensors import Array, cast, dtype_name
from cutaway.wire.chunks import StreamEncoder

_EVERY_STAGE = Timings(*[1.0] * 7)  # a time of 0 takes no bytes


def apply_reply_options(result: InspectResult, request: InspectRequest) -> InspectResult:
    """Returns ``result`` with the options of ``request`` applied.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, if the requested data type cannot hold a number of the result.
    """
    if request.dry_run:
        return _estimate(result)
    data_type = request.reply_data_type
    if not data_type:
        return result

    def cast_tensor(place: str, array: Array) -> Array:
        # Captures were cast in their hook, perhaps to a data type of their own.
        captured = place.startswith(("captures.", "parameter_gradients."))
        return array if captured else cast(array, data_type, place)

    with at("options.reply_data_type"):
        return map_tensors(result, cast_tensor)


def _estimate(result: InspectResult) -> InspectResult:
    """Returns a result with only an estimate of ``result``, whose arrays are not read."""
    tensors: dict[str, Outline] = {}

    def note(place: str, array: Array) -> Array:
        tensors[place] = Outline(dtype_name(array), array.shape)
        return array

    map_tensors(result, note)
    size = StreamEncoder(replace(result, timings=_EVERY_STAGE)).reply_bytes
    return InspectResult(
        {},
        warnings=result.warnings,
        feature_names=result.feature_names,
        provenance=result.provenance,
        timings=result.timings,
        estimate=Estimate(size, tensors, result.estimate.passes if result.estimate else 0),
    )
