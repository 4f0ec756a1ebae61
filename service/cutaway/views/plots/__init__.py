"""One example of a result as a figure: prediction, attributions with their verdicts, captures and gradients.

For ``cutaway inspect --plot`` and for notebooks. Matplotlib is imported when a figure is drawn, not before.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cutaway.contract.results import InspectResult
from cutaway.contract.tensors import Array
from cutaway.views.plots.panels import ExampleRow, draw, sections

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DOTS_PER_INCH", "figure", "save"]

DOTS_PER_INCH = 150
"""The resolution of figures in files."""


def figure(result: InspectResult, inputs: Mapping[str, Array] | None = None, row: int = 0) -> Figure:
    """Draws one example of ``result``.

    Args:
        result: the reply to a request.
        inputs: the request's tensors by input name, batch first; images among them are drawn beside the prediction.
        row: the example's index in the batch.

    Raises:
        InvalidArgument: ``INVALID_VALUE`` if the batch has no such row.
    """
    example = ExampleRow.of(result, row)
    return draw(result, example, sections(result, inputs or {}, example))


def save(result: InspectResult, path: Path, inputs: Mapping[str, Array] | None = None, row: int = 0) -> None:
    """Writes `figure` to the file ``path``, in the format of its suffix: ``.png``, ``.svg`` or ``.pdf``."""
    figure(result, inputs, row).savefig(path, dpi=DOTS_PER_INCH)
