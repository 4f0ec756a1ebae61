"""The result that the client returns, which also has its request, and shows itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from cutaway.contract.requests import InspectRequest
from cutaway.contract.requests.fields import advising, suggestion
from cutaway.contract.results import InspectResult
from cutaway.contract.results.summary import titles
from cutaway.contract.values import changed
from cutaway.contract.wire import stored_file
from cutaway.views import plots
from cutaway.views.frames import dataset, frame
from cutaway.views.html import page
from cutaway.views.pictures import Look, Sign, importing, sent_inputs

if TYPE_CHECKING:
    import pandas
    import xarray
    from matplotlib.figure import Figure


_OF_FIGURE = "the figure is returned: change it with Matplotlib"
_ADVICE = {
    **dict.fromkeys(("title", "fig_size", "plt_fig_axis", "use_pyplot"), _OF_FIGURE),
    "alpha_overlay": "did you mean 'blend'?",
    "method": "blend=1 is a heat map, and blend=0.5 a blended one",
    "outlier_perc": "did you mean 'outlier_percent'?",
    "show_colorbar": "there is always one: leave it out",
}
"""Advice for arguments of Captum's ``visualize_image_attr``."""


def _plot_advice(name: str, known: Iterable[str]) -> str:
    return _ADVICE.get(name) or suggestion(name, known)


@dataclass(frozen=True, repr=False)
class Inspection(InspectResult):
    """An `InspectResult` with its request. A notebook shows it as a page; `print` as at most 30 lines.

    The inputs sent stay in memory as long as the result does.

    Attributes:
        request: the request, with the inputs sent.
    """

    request: InspectRequest = field(default_factory=lambda: InspectRequest(""))

    @classmethod
    def of(cls, result: InspectResult, request: InspectRequest) -> Inspection:
        """Returns ``result`` with the request that it answers."""
        return cls(**{item.name: getattr(result, item.name) for item in fields(InspectResult)}, request=request)

    def save(self, path: str | Path) -> None:
        """Writes the request and the result to one file, ``x.cutaway``, which ``cutaway verify`` can prove again.

        Raises:
            InvalidArgument: ``INVALID_VALUE``, if the file cannot be written.
        """
        stored_file.write(Path(path), self.request, self)

    @classmethod
    def load(cls, path: str | Path) -> Inspection:
        """Returns the result in a file that `save` wrote; needs no server.

        Raises:
            InvalidArgument: ``EXPLANATION_CORRUPT``, if it is damaged or of another format; ``INVALID_VALUE``, if it
                cannot be read.
        """
        request, result = stored_file.read(Path(path))
        return cls.of(result, request)

    def with_labels(self, labels: Sequence[str]) -> Inspection:
        """Returns the same result with labels of the classes, such as `ModelDetail.labels`, for pictures and tables.

        A reply of a model with many classes has only those of the classes that it names.
        """
        return changed(self, labels=dict(enumerate(labels)))

    def titles(self) -> list[str]:
        """Returns what people call each attribution: its method and layer, and the fields in which those with the same
        method and layer differ: ``Saliency, noise NoiseTunnel``."""
        return titles(self.attributions, self.request.attributions)

    @advising(_plot_advice)
    def plot(
        self,
        path: str | Path | None = None,
        *,
        row: int = 0,
        sign: Sign = "all",
        blend: float | None = None,
        cmap: str | None = None,
        outlier_percent: float | None = None,
        interpolation: str | None = None,
    ) -> Figure:
        """Draws one example with matplotlib: input, predictions, attributions, captures and gradients.

        Args:
            path: of the file to write, ``.png``, ``.svg`` or ``.pdf``; None writes none.
            row: the example's index in the batch.
            sign: ``all`` draws attributions as they are; ``positive``, ``negative`` and ``absolute`` the magnitudes of
                those values. Colours are summed first.
            blend: how far attributions cover the image that they are drawn over, from 0 to 1, where 1 shows them
                alone; those of a layer are as large as the first image. None shows the image in grey where attributions
                are small, if the shapes fit.
            cmap: a colour map of matplotlib for attributions; None chooses by their signs.
            outlier_percent: how many percent of an attribution's values may exceed the strongest colour; None is 0.5 of
                large ones.
            interpolation: between the values of an attribution, as matplotlib's ``imshow`` has it: ``bilinear``, ...

        Raises:
            FailedPrecondition: ``PACKAGE_MISSING``, if matplotlib is not installed.
            InvalidArgument: ``INVALID_VALUE`` if the batch has no such row, or an argument is no choice.
        """
        rows = plots.rows_with(self, row)
        inputs = {}
        for name, sent in sent_inputs(self, self.request, row).items():
            if sent.values is not None:
                inputs[name] = np.broadcast_to(sent.values, (rows, *sent.values.shape))
        with importing("plot()"):
            look = Look(sign, cmap, outlier_percent, blend, interpolation)
            figure = plots.figure(self, inputs, row, look, self.request)
        if path is not None:
            figure.savefig(path, dpi=plots.DOTS_PER_INCH)
        return figure

    def to_pandas(self, what: Literal["attributions", "predictions", "agreement"] = "attributions") -> pandas.DataFrame:
        """Returns a table with a row per number.

        Args:
            what: ``attributions``, whose rows are elements of an input or layer, or tokens; ``predictions``, whose
                rows are elements of an output; or ``agreement``, whose rows are pairs of attributions.

        Raises:
            FailedPrecondition: ``PACKAGE_MISSING``, if pandas is not installed.
            InvalidArgument: ``INVALID_VALUE`` for another table.
        """
        return frame(self, what)

    def to_xarray(self) -> xarray.Dataset:
        """Returns all tensors of the result, with named dimensions.

        Raises:
            FailedPrecondition: ``PACKAGE_MISSING``, if xarray is not installed.
        """
        return dataset(self, self.request)

    def _repr_html_(self) -> str:
        return page(self, self.request)
