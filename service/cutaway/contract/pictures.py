"""Opens pictures that others have sent: in the format that they state, and up to a number of pixels.

Pillow itself guesses the format from the bytes, and opens some formats with other programs: EPS with Ghostscript.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from cutaway.contract.errors import CutawayError, Reason, error

if TYPE_CHECKING:
    from PIL import Image

MOST_PIXELS = 1 << 25
"""The largest picture to decode: a file of fifty bytes can state that it is a very large one."""

_FORMATS = {
    "image/png": ("PNG",),
    "image/jpeg": ("JPEG", "MPO"),
    "image/jpg": ("JPEG", "MPO"),
    "image/bmp": ("BMP",),
    "image/x-ms-bmp": ("BMP",),
    "image/gif": ("GIF",),
    "image/webp": ("WEBP",),
    "image/tiff": ("TIFF",),
    "image/avif": ("AVIF",),
    "image/jp2": ("JPEG2000",),
    "image/x-icon": ("ICO",),
    "image/vnd.microsoft.icon": ("ICO",),
    **{f"image/x-portable-{kind}": ("PPM",) for kind in ("anymap", "pixmap", "graymap", "bitmap")},
}
"""Pillow's formats by media type, without those that it hands to other programs."""

ANY = ("image/*",)
"""The media types of a picture that states none."""


@contextmanager
def opened(data: bytes, media_types: Sequence[str], most_pixels: int = MOST_PIXELS) -> Iterator[Image.Image]:
    """Opens a picture of one of ``media_types``, which may be patterns; the block decodes its pixels.

    Raises:
        InvalidArgument: ``RAW_UNDECODABLE``, also for errors of decoding in the block.
    """
    from PIL import Image, UnidentifiedImageError

    Image.init()
    formats = sorted(_formats(media_types) & Image.OPEN.keys())  # MPO is what Pillow calls some JPEG files
    try:
        with Image.open(io.BytesIO(data), formats=formats) as picture:
            if math.prod(picture.size) > most_pixels:
                raise ValueError(f"{picture.width} x {picture.height} pixels; at most {most_pixels} are decoded")
            yield picture
    except (CutawayError, MemoryError):
        raise
    except Exception as failure:  # Pillow raises many kinds of errors
        why = "" if isinstance(failure, UnidentifiedImageError) else f": {failure}"  # which has a file's address
        text = f"these {len(data)} bytes are no image that can be decoded as {' or '.join(media_types)}{why}"
        raise error(Reason.RAW_UNDECODABLE, text, "data") from None


def media_type_of(data: bytes, media_types: Sequence[str]) -> str:
    """Returns the media type in ``media_types`` that the picture has; ``""`` if it has none of them."""
    try:
        with opened(data, media_types) as picture:
            return next(kind for kind in media_types if picture.format in _formats([kind]))
    except CutawayError:
        return ""


def _formats(media_types: Sequence[str]) -> set[str]:
    return {
        name
        for kind, names in _FORMATS.items()
        for name in names
        if any(fnmatchcase(kind, pattern) for pattern in media_types)
    }
