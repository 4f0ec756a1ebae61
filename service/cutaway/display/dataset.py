"""A result as an xarray Dataset: every tensor under its place, with named dimensions.

A dimension has the name of the tensor's owner and of its role: ``image.height``, ``conv1.output.channel``. Tensors of
the same owner share dimensions: an attribution lies on the input, a gradient on the tensor it is the gradient of.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from cutaway.display.optional_packages import importing
from cutaway.display.sent_inputs import sent_tensors
from cutaway.requests import InspectRequest
from cutaway.results import InspectResult
from cutaway.results.summary import batch_size
from cutaway.results.tensor_map import map_tensors
from cutaway.schema.tensors import Array

if TYPE_CHECKING:
    import xarray

_ROLES = {
    1: ("feature",),
    2: ("position", "feature"),
    3: ("channel", "height", "width"),
    4: ("channel", "depth", "height", "width"),
}
"""The roles of the axes behind the batch, by their number."""

_PARTS = re.compile(r"attributions\[\d+\]\.(?:values|standard_errors)\.|\w+\.", re.ASCII)


def dataset(result: InspectResult, request: InspectRequest) -> xarray.Dataset:
    """Returns all tensors of ``result`` and the tensors sent; see `Inspection.to_xarray`."""
    with importing("to_xarray()"):
        import xarray
    dimensions = _Dimensions(batch_size(result), 0 if result.targets is None else result.targets[:1].size)
    variables = {
        place: (dimensions.of(place, array), _known(array), _attributes(result, place))
        for place, array in _tensors(result, request).items()
    }
    coordinates: dict[str, Any] = {"example": np.arange(dimensions.rows)}
    if result.classes:
        coordinates["predicted"] = "example", [each.index for each in result.classes]
        coordinates["label"] = "example", [each.label for each in result.classes]
        coordinates["probability"] = "example", [each.probability for each in result.classes]
    for name, features in result.feature_names.items():
        if dimensions.sizes.get(f"{name}.feature") == len(features):
            coordinates[f"{name}.feature"] = list(features)
    provenance = result.provenance
    about = {"model": provenance.model, "version": provenance.version, "weights_sha256": provenance.weights_sha256}
    return xarray.Dataset(variables, coordinates, {**about, "seed": provenance.seed})


def _tensors(result: InspectResult, request: InspectRequest) -> dict[str, Array]:
    """Returns the tensors by their places: those sent, and those of the result."""
    tensors = {f"inputs.{name}": array for name, array in sent_tensors(result, request).items()}

    def collect(place: str, array: Array) -> Array:
        tensors[place] = array
        return array

    map_tensors(result, collect)
    targets = {"targets": result.targets, "target_values": result.target_values}
    return tensors | {name: array for name, array in targets.items() if array is not None}


def _attributes(result: InspectResult, place: str) -> dict[str, Any]:
    """Returns what describes a variable: of an attribution, its method, layer and verdict."""
    found = re.match(r"attributions\[(\d+)\]", place)
    if found is None:
        return {}
    attribution = result.attributions[int(found[1])]
    check = attribution.worst_check
    outcome = {} if check is None else {"verdict": check.verdict.value, "reason": check.reason}
    return {"method": attribution.method, "layer": attribution.layer, **outcome}


def _known(array: Array) -> Array:
    """Returns ``array`` in a data type that numpy itself has; bfloat16 becomes float32."""
    return array if array.dtype.kind in "fiub" else array.astype(np.float32)


class _Dimensions:
    """Names the dimensions of the tensors of one result; a name has one size.

    Args:
        rows: the batch size.
        targets: how many targets each example has.
    """

    def __init__(self, rows: int, targets: int) -> None:
        self.rows = rows
        self.sizes = {"example": rows}
        self._targets = targets

    def of(self, place: str, array: Array) -> list[str]:
        """Returns the dimensions of the tensor at ``place``."""
        for owner in (_owner(place), place):
            names = self._named(owner, place, array)
            if all(self.sizes.get(name, size) == size for name, size in zip(names, array.shape)):
                break
        self.sizes.update(zip(names, array.shape))
        return names

    def _named(self, owner: str, place: str, array: Array) -> list[str]:
        leading = []
        if array.ndim and len(array) == self.rows and not place.startswith("parameter_gradients."):
            leading.append("example")
        gradient = place.startswith(("input_gradients.", "target")) or ".grad_" in place
        if leading and gradient and self._targets > 1 and array.ndim > 1 and array.shape[1] == self._targets:
            leading.append("target")
        rest = array.ndim - len(leading)
        roles = _ROLES.get(rest, ()) if leading else ()
        return [*leading, *(f"{owner}.{role}" for role in roles or (f"axis_{axis}" for axis in range(rest)))]


def _owner(place: str) -> str:
    """Returns whose dimensions the tensor at ``place`` has: ``image``, ``conv1.output``, ``attributions[0].tokens``."""
    if ".tokens." in place:
        return place.rpartition(".")[0]
    return _PARTS.sub("", place, count=1).replace(".grad_", ".")
