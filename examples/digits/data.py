"""Scikit-learn's handwritten digits, 1,797 real ones, as the bytes that an image file holds."""

from __future__ import annotations

import io
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

_INK = 16  # the data set's darkest pixel
_SEED = 0
_HELD_OUT = 0.2


class Examples(NamedTuple):
    """Digits and what they are.

    Attributes:
        pixels: uint8 [examples, 8, 8], 255 is ink.
        labels: int64 [examples], 0 to 9.
    """

    pixels: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]

    @property
    def images(self) -> npt.NDArray[np.float32]:
        """What the network reads, float32 [examples, 1, 8, 8] from 0 to 1.

        From the same bytes that `as_png` writes: a digit sent as a file is the digit that was trained on.
        """
        scaled: npt.NDArray[np.float32] = self.pixels[:, np.newaxis].astype(np.float32) / np.float32(255)
        return scaled


def training() -> Examples:
    """The four fifths of the digits to learn from."""
    return _split()[0]


def held_out() -> Examples:
    """The fifth that training never sees."""
    return _split()[1]


def as_png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """One digit, uint8 [8, 8], as a grey PNG file, which keeps every pixel as it is."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()


def _split() -> tuple[Examples, Examples]:
    digits: Any = load_digits()
    pixels = np.rint(digits.images * (255 / _INK)).astype(np.uint8)
    rest, held, rest_labels, held_labels = train_test_split(
        pixels, digits.target.astype(np.int64), test_size=_HELD_OUT, random_state=_SEED, stratify=digits.target
    )
    return Examples(rest, rest_labels), Examples(held, held_labels)
