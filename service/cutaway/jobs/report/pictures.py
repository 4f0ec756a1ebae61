"""Arrays as pictures inside a page: PNG and SVG in text, nothing fetched from anywhere."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

Array = npt.NDArray[Any]

FOR, AGAINST = (200, 55, 60), (45, 110, 200)
"""The colours of what speaks for the explained class, and against it."""

_BLOCKS = 64
_SIDE = 160  # pixels of a picture's longer side, at most
_OUTLIERS = 0.005  # the fraction of a picture's numbers that may lie past its strongest colour
_STRONGEST = 0.9  # how much of what lies beneath the strongest colour hides


def coarse(values: Array) -> Array:
    """``values`` [height, width], at most 64 a side: of a larger picture the means of blocks, since single pixels of
    either sign would only cancel to the eye."""
    finite = np.where(np.isfinite(values), values, 0.0)
    longest = max(values.shape)
    if longest <= _BLOCKS:
        return values
    height, width = (max(1, round(side * _BLOCKS / longest)) for side in values.shape)
    picture = Image.fromarray(finite.astype(np.float32)).resize((width, height), Image.Resampling.BOX)
    return np.asarray(picture, np.float64)


def strongest(values: Array) -> float:
    """The number that gets the strongest colour: the largest, leaving out a few of many."""
    sizes = np.abs(values[np.isfinite(values)])
    largest = float(np.quantile(sizes, 1 - _OUTLIERS)) if sizes.size else 0.0
    return largest or float(sizes.max(initial=0.0)) or 1.0


def heat(values: Array, scale: float, beneath: Array | None = None) -> str:
    """``values`` [height, width] as a PNG in a data URL: clear where they are 0, ``FOR`` and ``AGAINST`` at ``scale``.

    Args:
        values: the numbers; what is not finite stays clear.
        scale: the size that gets the strongest colour.
        beneath: an input [height, width] or [3, height, width] to lay them over, in grey.
    """
    finite = np.where(np.isfinite(values), values, 0.0)
    share = np.clip(np.abs(finite) / scale, 0, 1)
    colour = np.where(finite[..., None] >= 0, FOR, AGAINST).astype(np.float64)
    over = np.dstack([colour, share * _STRONGEST * 255]).round().astype(np.uint8)
    picture = Image.fromarray(over, "RGBA")
    if beneath is None:
        return _png(picture)
    ground = _small(Image.fromarray(_levels(beneath)).convert("L"))
    smooth = Image.Resampling.BILINEAR if picture.size[0] < ground.size[0] else Image.Resampling.BOX
    return _png(Image.alpha_composite(ground.convert("RGBA"), picture.resize(ground.size, smooth)).convert("RGB"))


def photograph(values: Array) -> str:
    """An input [height, width] or [3, height, width] as a PNG in a data URL, from its darkest to its lightest."""
    return _png(_small(Image.fromarray(_levels(values))))


def _levels(values: Array) -> npt.NDArray[np.uint8]:
    """From 0 to 255; colours last."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    shown = np.where(np.isfinite(values), values, low).astype(np.float64)
    levels = ((shown - low) / ((high - low) or 1) * 255).round().astype(np.uint8)
    return np.moveaxis(levels, 0, -1) if levels.ndim == 3 else levels


def _small(picture: Image.Image) -> Image.Image:
    longest = max(picture.size)
    if longest <= _SIDE:
        return picture
    width, height = (max(1, round(side * _SIDE / longest)) for side in picture.size)
    return picture.resize((width, height), Image.Resampling.BOX)


def _png(picture: Image.Image) -> str:
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def as_image(values: Array) -> Array | None:
    """An input of one example as `photograph` takes it; None for what is no image."""
    while values.ndim > 2 and values.shape[0] == 1:
        values = values[0]
    sides = values.shape[-2:]
    imagelike = values.ndim == 2 or (values.ndim == 3 and values.shape[0] == 3)
    return values.astype(np.float64) if imagelike and min(sides, default=0) > 1 else None


def colour(value: float, scale: float) -> str:
    """The CSS colour of one number, as `heat` has it."""
    red, green, blue = FOR if value >= 0 else AGAINST
    share = min(abs(value) / scale, 1.0) if math.isfinite(value) else 0.0
    return f"rgba({red},{green},{blue},{0.65 * share:.3f})"


def histogram(values: Array, bins: int = 24) -> tuple[list[float], float, float] | None:
    """How the sizes of ``values`` spread by powers of ten: heights from 0 to 1, and the lowest and highest power.

    None where all are 0.
    """
    sizes = np.abs(values[(values != 0) & np.isfinite(values)])
    if not sizes.size:
        return None
    powers = np.log10(sizes)
    low, high = math.floor(powers.min()), math.floor(powers.max()) + 1
    counts, _ = np.histogram(powers, bins, (low, high))
    return (counts / counts.max()).tolist(), low, high


def bars(heights: Sequence[float], most: int = 64) -> list[tuple[float, float, float, float]]:
    """Heights of either sign as bars in a box of 1 by 1: x, y, width, height. Of more than ``most``,
    each bar is the largest of its neighbours."""
    values = np.asarray(heights, np.float64)
    values = np.where(np.isfinite(values), values, 0.0)
    if values.size > most:
        groups = np.array_split(values, most)
        values = np.array([group[np.abs(group).argmax()] for group in groups])
    top, bottom = max(float(values.max(initial=0)), 0.0), min(float(values.min(initial=0)), 0.0)
    span = (top - bottom) or 1.0
    width = 1 / max(values.size, 1)
    return [
        (index * width, (top - max(value, 0.0)) / span, width, abs(value) / span)
        for index, value in enumerate(values.tolist())
    ]


def told(value: float | None) -> str:
    """A number in few characters: ``0.0312``, ``-2.5e-05``, ``1,797``."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}".replace("-", "−")
    text = f"{value:.3g}" if 1e-3 <= abs(value) < 1e4 else f"{value:.1e}"
    mantissa, _, exponent = text.partition("e")
    return (mantissa + (f"e{int(exponent)}" if exponent else "")).replace("-", "−")
