"""One example's result as a picture: the prediction, the attributions with their verdicts, what was captured.

For ``cutaway inspect --plot`` and for notebooks. Matplotlib is imported when a picture is drawn, never before.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cutaway.plots.layout import draw
from cutaway.plots.panels import Example, sections
from cutaway.results import InspectResult
from cutaway.tensors import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["figure", "save"]

_DOTS_PER_INCH = 150


def figure(result: InspectResult, inputs: Mapping[str, Array] | None = None, row: int = 0) -> Figure:
    """A picture of one example of ``result``.

    Args:
        result: what came back.
        inputs: what was sent, by name, batch first, to show images beside what is said of them.
        row: which example of the batch, from 0.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, where the batch has no such row.
    """
    example = Example.of(result, row)
    return draw(result, example, sections(result, inputs or {}, example))


def save(result: InspectResult, path: Path, inputs: Mapping[str, Array] | None = None, row: int = 0) -> None:
    """Draw `figure` into the file ``path``; its suffix says as what: ``.png``, ``.svg`` or ``.pdf``."""
    figure(result, inputs, row).savefig(path, dpi=_DOTS_PER_INCH)
