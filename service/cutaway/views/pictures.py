"""Decides how an array is drawn, in every view, and draws arrays as PNG pictures in data URLs."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.pictures import ANY, opened
from cutaway.contract.requests import InspectRequest, Raw
from cutaway.contract.requests.fields import suggestion
from cutaway.contract.results import InspectResult
from cutaway.contract.results.arrays import captures, entries
from cutaway.contract.results.summary import harmless
from cutaway.contract.tensors import Array

if TYPE_CHECKING:
    from PIL import Image


Sign: TypeAlias = Literal["all", "positive", "negative", "absolute"]


@dataclass(frozen=True)
class Look:
    """How attributions are drawn; see `Inspection.plot`."""

    sign: Sign = "all"
    cmap: str | None = None
    outlier_percent: float | None = None
    blend: float | None = None
    interpolation: str | None = None

    def check(self) -> None:
        """Raises ``INVALID_VALUE`` for what Matplotlib, or a figure, does not have."""
        import matplotlib
        from matplotlib.image import interpolations_names

        known = {
            "sign": (self.sign, get_args(Sign)),
            "cmap": (self.cmap, matplotlib.colormaps),
            "interpolation": (self.interpolation, sorted(interpolations_names)),
        }
        for field, (given, names) in known.items():
            if given is not None and given not in names:
                raise error(
                    Reason.INVALID_VALUE, f"{given!r:.80} is not a choice; {suggestion(str(given), names)}", field
                )
        limits: dict[str, tuple[object, int]] = {
            "blend": (self.blend, 1),
            "outlier_percent": (self.outlier_percent, 99),
        }
        for field, (number, most) in limits.items():
            if number is not None and not (isinstance(number, (int, float)) and 0 <= number <= most):
                raise error(Reason.INVALID_VALUE, f"is a number from 0 to {most}, not {number!r:.80}", field)

    def of(self, values: Array) -> Array:
        """Returns the values to draw: the magnitudes of those with the sign, and 0 for the others."""
        if self.sign in ("all", "absolute"):
            return values if self.sign == "all" else np.abs(values)
        return np.maximum(values if self.sign == "positive" else -values, 0)


USUAL = Look()
"""Draws all values in the usual colours, as where a caller says nothing."""


@contextmanager
def importing(purpose: str) -> Iterator[None]:
    """Reports missing packages of the extra ``notebook``, which imports in the block need.

    Raises:
        FailedPrecondition: ``PACKAGE_MISSING``, with the package, ``purpose`` and what to install.
    """
    try:
        yield
    except ModuleNotFoundError as failure:
        package = {"PIL": "pillow"}.get(failure.name or "", failure.name)
        what = f"{purpose} needs {package}, which is not installed: pip install 'cutaway[notebook]'"
        raise error(Reason.PACKAGE_MISSING, what) from None


_PICTURES = "drawing pictures"

FOR, AGAINST, MAGNITUDE = (178, 24, 43), (33, 102, 172), (33, 145, 140)
"""The RGB colours of positive and of negative numbers, and of those that have no sign; the page has the same."""

SIGNLESS = ("Saliency",)
"""The methods whose values, if none is negative, are magnitudes: they are neither for the target nor against it."""

OUTLIERS = 0.005
"""The fraction of a large array's elements that may lie beyond the ends of its colour scale."""

COARSE = 3
"""How many pixels of an image lie below one of a map that is smooth, along a side."""

Layout: TypeAlias = Literal["number", "bars", "series", "picture", "table", "planes"]
"""How one example of an array is drawn: a series is [time, features], planes are pictures side by side."""

_MOST_RATIO = 3  # of the sides of a picture without colours; what is longer is a series or a table
_MOST_LINES = 16  # of a series whose features have no names


def layout_of(values: Array, names: Sequence[str] | None = None) -> Layout:
    """Returns how one example is drawn, from its shape without leading axes of length 1.

    Args:
        values: the array.
        names: of the features, the last axis, of an input, empty if they have none; None for what is inside the model.
    """
    shape = without_ones(values).shape
    if len(shape) < 2:
        return "bars" if shape else "number"
    height, width = shape[-2:]
    if len(shape) == 2 and names is not None and height > 1:
        long = height >= _MOST_RATIO * width and width <= _MOST_LINES
        if len(names) == width or (long and not names):
            return "series"
    if len(shape) == 2:
        return "picture" if 1 < max(height, width) <= _MOST_RATIO * min(height, width) else "table"
    return "picture" if len(shape) == 3 and shape[0] == 3 and min(height, width) > 1 else "planes"


def without_ones(values: Array) -> Array:
    """Returns ``values`` without leading axes of length 1; a vector keeps its own."""
    while values.ndim > 1 and values.shape[0] == 1:
        values = values[0]
    return values


@dataclass(frozen=True)
class Ground:
    """An input that is a picture, below maps.

    Attributes:
        image: [height, width] or [3, height, width].
        resized: whether the model saw another size of it, so that maps cover all of it whatever the ratio of its sides.
    """

    image: Array
    resized: bool = False

    @property
    def sides(self) -> tuple[int, int]:
        """Its height and width, in pixels."""
        return self.image.shape[-2], self.image.shape[-1]

    def takes(self, shape: Sequence[int]) -> bool:
        """Returns whether a map of this shape lies over it."""
        return self.resized or same_ratio(shape, self.sides)


@dataclass(frozen=True)
class Picture(Ground):
    """A ground of a page, with its data URL."""

    url: str = ""

    @property
    def style(self) -> str:
        """The CSS class with the picture as background; it is unique in a notebook."""
        return f"p{sha256(self.url.encode()).hexdigest()[:12]}"


def same_ratio(first: Sequence[int], second: Sequence[int]) -> bool:
    """Returns whether pictures of these sides [height, width] fit on each other, but for 5 percent."""
    return abs(first[0] * second[1] - second[0] * first[1]) <= _SAME_SHAPE * second[0] * first[1]


_SAME_SHAPE = 0.05


def distinct(names: Sequence[str]) -> list[str]:
    """Returns names, of which some are long, without a beginning that all have in common: what differs is read."""
    common = next((at for at, letters in enumerate(zip(*names)) if len(set(letters)) > 1), 0)
    long = common > 1 and max(map(len, names)) > _LONG_NAME
    return [f"…{name[common:]}" if long else name for name in names]


_LONG_NAME = 16


def by_feature(attributions: Array) -> list[int]:
    """Returns the features of a series [time, features] that are drawn, in order: those with the largest sums of
    magnitudes."""
    sums = np.where(np.isfinite(attributions), np.abs(attributions), 0.0).sum(axis=0)
    order: list[int] = np.argsort(-sums, kind="stable").tolist()
    return sorted(order[:FEATURES])


FEATURES = 6
"""The most features of a series that are drawn."""


def element_weights(attributions: Iterable[Mapping[str, Array]]) -> dict[str, Array]:
    """Returns the weight of each element of inputs, by which views order bars: the same order in all panels.

    It is the largest share that its magnitude has of the largest one of an attribution.
    """
    weights: dict[str, Array] = {}
    for arrays in attributions:
        sizes = {name: np.where(np.isfinite(array), np.abs(array), 0.0) for name, array in arrays.items()}
        vectors = {name: size for name, size in sizes.items() if layout_of(size) in ("number", "bars")}
        largest = max((float(size.max(initial=0.0)) for size in vectors.values()), default=0.0) or 1.0
        for name, size in vectors.items():
            before = weights.get(name)
            weights[name] = size / largest
            if before is not None and before.shape == size.shape:
                weights[name] = np.maximum(before, weights[name])
    return weights


def thinned(values: Array, places: int) -> Array:
    """Returns the element with the largest magnitude of each of at most ``places`` parts of a vector."""
    if values.size <= places:
        return values
    parts = np.array_split(np.where(np.isfinite(values), values, 0.0), places)
    return np.array([part[np.abs(part).argmax()] for part in parts])


_CELLS = 64
_SIDE = 160  # pixels of a picture's longer side, at most
_OPACITY = 0.9  # of the strongest colour


def coarse(values: Array) -> Array:
    """Reduces ``values`` [height, width] to at most 64 cells a side, the means of blocks.

    In a large picture, single pixels of both signs cannot be told apart.
    """
    longest = max(values.shape)
    if longest <= _CELLS:
        return values
    with importing(_PICTURES):
        from PIL import Image
    height, width = (max(1, round(side * _CELLS / longest)) for side in values.shape)
    finite = np.where(np.isfinite(values), values, 0.0).astype(np.float32)
    return np.asarray(Image.fromarray(finite).resize((width, height), Image.Resampling.BOX), np.float64)


def strongest(values: Array) -> float:
    """Returns the magnitude for the strongest colour: the largest without the outliers; 1 if all values are 0."""
    sizes = np.abs(values[np.isfinite(values)])
    largest = float(np.quantile(sizes, 1 - OUTLIERS)) if sizes.size else 0.0
    return largest or float(sizes.max(initial=0.0)) or 1.0


def heat(values: Array, scale: float, signless: bool = False) -> str:
    """Draws a heat map as a PNG data URL: transparent at 0, `FOR` and `AGAINST` at ``scale`` and beyond.

    Args:
        values: [height, width]; NaN and infinities are transparent.
        scale: the magnitude with the strongest colour.
        signless: whether `MAGNITUDE` is the colour of all.
    """
    with importing(_PICTURES):
        from PIL import Image
    finite = np.where(np.isfinite(values), values, 0.0)
    strength = np.clip(np.abs(finite) / scale, 0, 1)
    colours = np.where(finite[..., None] >= 0, MAGNITUDE if signless else FOR, AGAINST).astype(np.float64)
    pixels = np.dstack([colours, strength * _OPACITY * 255]).round().astype(np.uint8)
    return _png(Image.fromarray(pixels, "RGBA"))


def ends(image: Array) -> tuple[float, float]:
    """Returns the numbers that are drawn black and white: those of bytes, else the smallest and the largest."""
    finite = image[np.isfinite(image)]
    if image.dtype == np.uint8 or not finite.size:
        return (0.0, 255.0) if image.dtype == np.uint8 else (0.0, 1.0)
    return float(finite.min()), float(finite.max())


def photograph(values: Array) -> str:
    """Draws an input [height, width] or [3, height, width] as a PNG data URL: bytes as they are, else its smallest
    value black."""
    with importing(_PICTURES):
        from PIL import Image
    low, high = ends(values)
    shown = np.where(np.isfinite(values), values, low).astype(np.float64)
    levels = ((shown - low) / ((high - low) or 1) * 255).round().astype(np.uint8)
    picture = Image.fromarray(np.moveaxis(levels, 0, -1) if levels.ndim == 3 else levels)
    longest = max(picture.size)
    if longest > _SIDE:
        width, height = (max(1, round(side * _SIDE / longest)) for side in picture.size)
        picture = picture.resize((width, height), Image.Resampling.BOX)
    return _png(picture)


def _png(picture: Image.Image) -> str:
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def as_image(values: Array, names: Sequence[str] = ()) -> Array | None:
    """Returns the input of one row in a shape that `photograph` draws; None if it is no image."""
    return without_ones(values) if layout_of(values, names) == "picture" else None


def colour(value: float, scale: float) -> str:
    """Returns the CSS colour of one value, as in `heat`."""
    red, green, blue = FOR if value >= 0 else AGAINST
    strength = min(abs(value) / scale, 1.0) if math.isfinite(value) else 0.0
    return f"rgba({red},{green},{blue},{0.65 * strength:.3f})"


def short_number(value: float | None) -> str:
    """Returns a number in few characters: ``0.0312``, ``-2.5e-05``, ``1,797``; a dash for None."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}".replace("-", "−")
    text = f"{value:,.{3 if abs(value) < 1000 else 5}g}" if 1e-3 <= abs(value) < 1e4 else f"{value:.1e}"
    mantissa, _, exponent = text.partition("e")
    return (mantissa + (f"e{int(exponent)}" if exponent else "")).replace("-", "−")


_ENLARGED_SIDE = 512  # pixels of a raw picture's longer side, at most: more is not shown


@dataclass(frozen=True)
class SentInput:
    """An input of one example as it was sent: an array, a picture or a text.

    Attributes:
        values: the array without the batch axis; a picture is [3, height, width] from 0 to 255. None for a text, and
            for a format that cannot be shown.
        text: the text, or the media type and size of what cannot be shown.
        raw: whether the model's adapter decoded the input, so that the model's own input may have another shape.
    """

    values: Array | None = None
    text: str = ""
    raw: bool = False


def sent_inputs(result: InspectResult, request: InspectRequest, row: int) -> dict[str, SentInput]:
    """Returns the inputs of example ``row`` by name; of raw inputs the name is ``input``, and beside it stands what the
    adapter made of it, where the model's own input was captured."""
    if row < len(request.raw):
        own = {place.path: array for place, array in captures(result) if (place.module, place.point) == ("", "input")}
        seen = {name: SentInput(array[row]) for name, array in own.items() if array.ndim and row < len(array)}
        decoded = _decoded(request.raw[row])
        return {**{name: _coloured(each, decoded) for name, each in seen.items()}, DECODED: decoded}
    tensors = sent_tensors(result, request)
    return {name: SentInput(array[row]) for name, array in tensors.items() if array.ndim and row < len(array)}


DECODED = "input"
"""The name of a raw input as it was sent."""


def _coloured(seen: SentInput, sent: SentInput) -> SentInput:
    """Returns what the model saw of a picture in the colours of the picture: an adapter scales each of them."""
    if seen.values is None or sent.values is None or (pixels := without_ones(seen.values)).shape[:1] != (3,):
        return seen
    if pixels.ndim != 3:
        return seen
    low, high = (function(pixels, (1, 2), keepdims=True) for function in (np.min, np.max))
    darkest, lightest = (function(sent.values, (1, 2), keepdims=True) for function in (np.min, np.max))
    share = (pixels - low) / np.where(high > low, high - low, 1)
    return SentInput((darkest + share * (lightest - 1.0 * darkest)).round().clip(0, 255).astype(np.uint8))


def sent_tensors(result: InspectResult, request: InspectRequest) -> dict[str, Array]:
    """Returns the tensors sent by name.

    A tensor sent without a name has the name in the result, or ``input`` if the result has none.
    """
    known = {*result.feature_names, *filter(None, (entry.input for entry in entries(result)))}
    only = known.pop() if len(known) == 1 else "input"
    return {name or only: array for name, array in request.tensors.items()}


def _decoded(raw: Raw) -> SentInput:
    picture = None if raw.media_type.startswith("text/") else _picture(raw)
    if picture is not None:
        return SentInput(picture, raw=True)
    try:
        return SentInput(text=raw.data.decode("utf-8"), raw=True)
    except UnicodeDecodeError:
        return SentInput(text=f"{raw.media_type or 'raw data'}, {len(raw.data):,} bytes", raw=True)


def _picture(raw: Raw) -> Array | None:
    """Returns [3, height, width], or None if this is no picture, or Pillow is not installed."""
    try:
        with importing("a picture"), opened(raw.data, [raw.media_type] if raw.media_type else ANY) as picture:
            picture.thumbnail((_ENLARGED_SIDE, _ENLARGED_SIDE))
            return np.moveaxis(np.asarray(picture.convert("RGB")), -1, 0)
    except CutawayError:
        return None


# HTML elements, in which every text is escaped and made harmless.

_LONGEST = 600  # characters of one text


class Markup(str):
    """Text that is HTML already, or a data URL."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str) -> Markup:
    """Returns one element: a child that is no `Markup` is text. An attribute ``class_`` is the class."""
    words = "".join(f' {name.rstrip("_")}="{_escaped(value)}"' for name, value in attributes.items())
    return Markup(f"<{tag}{words}>" + ("" if tag == "img" else f"{_joined(children)}</{tag}>"))


def _joined(children: Iterable[str]) -> Markup:
    """Returns the children one after the other, those that are text escaped."""
    return Markup("".join(map(_escaped, children)))


def _escaped(text: str) -> str:
    return text if isinstance(text, Markup) else escape(harmless(text, _LONGEST))


STEPS = 240
"""The most elements of a line that are drawn."""


def line(values: Array) -> Markup:
    """Draws a vector as a line, in SVG; of more than `STEPS` elements the extremes."""
    known = values[np.isfinite(values)]
    finite = thinned(np.where(np.isfinite(values), values - (known.mean() if known.size else 0), 0.0), STEPS)
    low, span = float(finite.min()), float(np.ptp(finite)) or 1.0
    points = " ".join(f"{step},{20 - 20 * (value - low) / span:.1f}" for step, value in enumerate(finite.tolist()))
    drawn = element("polyline", points=Markup(points))
    return element("svg", drawn, viewBox=f"0 0 {max(len(finite) - 1, 1)} 20", preserveAspectRatio="none")


_WIDTH = 150  # CSS pixels of a picture


def picture_size(sides: Sequence[int]) -> str:
    """Returns the CSS height of a picture of these sides [height, width], and its width if it is high."""
    height, width = sides[0] or 1, sides[1] or 1
    scale = min(_WIDTH / width, 1.5 * _WIDTH / height)
    return f"width:{max(width * scale, 2):.0f}px;height:{max(height * scale, 2):.0f}px"
