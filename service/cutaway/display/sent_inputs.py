"""The inputs of one example, as they were sent: arrays, pictures or texts."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np

from cutaway.display.optional_packages import importing
from cutaway.errors import CutawayError
from cutaway.requests import InspectRequest, Raw
from cutaway.results import InspectResult
from cutaway.schema.tensors import Array

_SIDE = 512  # pixels of a raw picture's longer side, at most: more is not shown


@dataclass(frozen=True)
class SentInput:
    """One input of one example.

    Attributes:
        values: the array without the batch axis; of a picture, [3, height, width] from 0 to 255; None for a text, and
            for a format that cannot be shown.
        text: the text, or the media type and size of what cannot be shown.
        raw: whether the model's adapter decoded the input, so that the model's own input may have another shape.
    """

    values: Array | None = None
    text: str = ""
    raw: bool = False


def sent_inputs(result: InspectResult, request: InspectRequest, row: int) -> dict[str, SentInput]:
    """Returns the inputs of example ``row`` by name; of raw inputs the name is ``input``."""
    if row < len(request.raw):
        return {"input": _decoded(request.raw[row])}
    tensors = sent_tensors(result, request)
    return {name: SentInput(array[row]) for name, array in tensors.items() if array.ndim and row < len(array)}


def sent_tensors(result: InspectResult, request: InspectRequest) -> dict[str, Array]:
    """Returns the tensors sent by name. A tensor sent without a name has the name that the result has for it, or
    ``input`` if the result has none."""
    known = {*result.input_gradients, *result.feature_names}
    known |= {name for each in result.attributions if not each.layer for name in each.values}
    only = known.pop() if len(known) == 1 else "input"
    return {name or only: array for name, array in request.tensors.items()}


def _decoded(raw: Raw) -> SentInput:
    picture = None if raw.media_type.startswith("text/") else _picture(raw.data)
    if picture is not None:
        return SentInput(picture, raw=True)
    try:
        return SentInput(text=raw.data.decode("utf-8"), raw=True)
    except UnicodeDecodeError:
        return SentInput(text=f"{raw.media_type or 'raw data'}, {len(raw.data):,} bytes", raw=True)


def _picture(data: bytes) -> Array | None:
    """Returns [3, height, width], or None if this is no picture, or Pillow is not installed."""
    try:
        with importing("a picture"):
            from PIL import Image, UnidentifiedImageError
    except CutawayError:
        return None
    try:
        with Image.open(io.BytesIO(data)) as opened:
            opened.thumbnail((_SIDE, _SIDE))
            return np.moveaxis(np.asarray(opened.convert("RGB")), -1, 0)
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError, SyntaxError):
        return None
