"""Results as tidy tables of pandas, with a row per number, and as Datasets of xarray."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cutaway.contract.errors import Reason, error
from cutaway.contract.requests import InspectRequest, Point
from cutaway.contract.results import AttributionResult, InspectResult
from cutaway.contract.results.arrays import ArrayField, Entry, by_name, entries, examples_first
from cutaway.contract.results.explanations import outcome_of_row
from cutaway.contract.results.summary import batch_size, class_labels
from cutaway.contract.tensors import Array
from cutaway.views.pictures import importing, sent_tensors

if TYPE_CHECKING:
    import pandas
    import xarray


_CONSTANT = ("attribution", "title", "other", "method", "layer", "input", "output")


def frame(result: InspectResult, what: str) -> pandas.DataFrame:
    """Returns the table ``what``; see `Inspection.to_pandas`."""
    if what not in _TABLES:
        raise error(Reason.INVALID_VALUE, f"{what!r} is none of {', '.join(_TABLES)}", "what")
    with importing("to_pandas()"):
        import pandas
    make, columns = _TABLES[what]
    parts = [pandas.DataFrame(part) for part in make(examples_first(result))]
    if not parts:
        return pandas.DataFrame(columns=columns)
    table = pandas.concat(parts, ignore_index=True)
    further = sorted(name for name in table.columns if name.startswith("position_"))
    for name in further:
        table[name] = table[name].astype("Int64")  # has a value for arrays of that many axes only
    place = columns.index("position") + 1 if "position" in columns else 0
    table = table[[*columns[:place], *further, *columns[place:]]]
    return table.astype({name: "category" for name in (*_CONSTANT, "verdict", "cause") if name in columns})


def _attributions(result: InspectResult) -> Iterator[dict[str, Any]]:
    """Yields the columns of a long table for each explained input or layer whose axis 0 is the batch."""
    rows = batch_size(result)
    for index, (title, attribution) in enumerate(zip(result.titles(), result.attributions)):
        constant = {"attribution": index, "title": title, "method": attribution.method, "layer": attribution.layer}
        outcomes = [outcome_of_row(attribution.checks, row) if attribution.checks else None for row in range(rows)]
        by_row: dict[str, list[Any]] = {
            "target": [None] * rows if attribution.targets is None else attribution.targets.tolist(),
            "verdict": ["" if check is None else check.verdict.value for check in outcomes],
            "cause": ["" if check is None or check.cause is None else check.cause.value for check in outcomes],
        }
        for name, values, features in _values(attribution, result.feature_names):
            if values.ndim and len(values) == rows:
                yield _tidy(values, {**constant, "input": name}, by_row, features)


def _agreements(result: InspectResult) -> Iterator[dict[str, Any]]:
    """Yields the columns of a table with a row for each example and pair of attributions."""
    names = result.titles()
    for each in result.agreements:
        rows = len(each.cosine)
        yield {
            "example": np.arange(rows),
            "title": [names[each.first]] * rows,
            "other": [names[each.second]] * rows,
            **dict(zip(("cosine", "rank_correlation", "top_in_common"), each.figures)),
            "of_magnitudes": [each.of_magnitudes] * rows,
        }


def _values(
    attribution: AttributionResult, names: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, Array, Sequence[Sequence[str]] | None]]:
    """Yields the arrays with the names of their last axis, if it has names; of an embedding, the sums of the tokens."""
    tokens = attribution.tokens
    if tokens is not None:
        yield tokens.input or attribution.layer, tokens.values, tokens.texts or None
        return
    for name, values in attribution.values.items():
        known = names.get(name) if values.ndim > 1 else None
        yield name, values, None if known is None else [known] * len(values)


def _predictions(result: InspectResult) -> Iterator[dict[str, Any]]:
    rows, known_labels = batch_size(result), class_labels(result)
    classes = result.classes if len(result.classes) == rows else ()
    by_row: dict[str, list[Any]] = {
        "predicted": [prediction.index for prediction in classes] if classes else [None] * rows,
        "label": [prediction.label for prediction in classes] if classes else [""] * rows,
        "probability": [prediction.probability for prediction in classes] if classes else [float("nan")] * rows,
    }
    for number, (name, values) in enumerate(result.predictions.items()):
        if values.ndim and len(values) == rows:
            features = None
            if number == 0 and classes and values.ndim == 2:
                features = [[known_labels.get(index, "") for index in range(values.shape[1])]] * rows
            elif result.generated and values.shape[1:] == (len(result.generated),):  # a value for each token
                features = [[step.texts[row] for step in result.generated] for row in range(rows)]
            yield _tidy(values, {"output": name}, by_row, features)


def _tidy(
    values: Array, constant: dict[str, Any], by_row: dict[str, list[Any]], features: Sequence[Sequence[str]] | None
) -> dict[str, Any]:
    """Returns the columns for ``values`` [batch, ...].

    Args:
        values: an array with a batch axis; bfloat16 becomes float32, which pandas knows.
        constant: columns with one value for all rows.
        by_row: columns with a value per example.
        features: by example, the names of the elements along its last axis; there may be fewer names.
    """
    rows, per_row = len(values), int(np.prod(values.shape[1:]))
    columns: dict[str, Any] = {"example": np.repeat(np.arange(rows), per_row)}
    columns |= {name: np.full(rows * per_row, value, object) for name, value in constant.items()}
    indices = np.unravel_index(np.arange(per_row), values.shape[1:]) if values.ndim > 1 else (np.zeros(1, int),)
    for axis, index in enumerate(indices):
        columns["position" if axis == 0 else f"position_{axis + 1}"] = np.tile(index, rows)
    columns["feature"] = np.concatenate([_named(features[row] if features else (), indices[-1]) for row in range(rows)])
    known = values.dtype.kind in "fiub"
    columns["value"] = (values if known else values.astype(np.float32)).reshape(-1)
    return columns | {
        name: np.repeat(np.array(column, object if name in ("target", "predicted") else None), per_row)
        for name, column in by_row.items()
    }


def _named(names: Sequence[str], index: Array) -> Array:
    """Returns ``names`` at ``index``, and ``""`` where there is none."""
    padded = np.array([*names, *[""] * (int(index.max(initial=0)) + 1 - len(names))], object)
    return padded[index]


_TABLES: dict[str, Any] = {
    "attributions": (
        _attributions,
        [*("example", "attribution", "title", "method", "layer", "input", "position", "feature", "value", "target"),
         *("verdict", "cause")],
    ),
    "predictions": (
        _predictions,
        ["example", "output", "position", "feature", "value", "predicted", "label", "probability"],
    ),
    "agreement": (
        _agreements,
        ["example", "title", "other", "cosine", "rank_correlation", "top_in_common", "of_magnitudes"],
    ),
}  # fmt: skip
"""The tables by name: the function that yields their parts, and their columns."""


# A result as an xarray Dataset: every array under its name, with named dimensions.
#
# A dimension has the name of the array's owner and of its role, such as ``image.height``. Arrays of one owner share
# dimensions: an attribution lies on its input, a gradient on its tensor.


_ROLES = {
    1: ("feature",),
    2: ("position", "feature"),
    3: ("channel", "height", "width"),
    4: ("channel", "depth", "height", "width"),
}
"""The roles of the axes behind the batch, by their number."""

_VALUES = {Point.GRAD_INPUT: Point.INPUT, Point.GRAD_OUTPUT: Point.OUTPUT}
_SENT = ArrayField("input", "input", named=True)
_OF_EXAMPLES = {"prediction": "index", "prediction_name": "label", "probability": "probability"}
"""The coordinates that a predicted class gives each example, and its attributes."""
_OF_TARGET = ("gradient", "targets", "target_values")


def dataset(result: InspectResult, request: InspectRequest) -> xarray.Dataset:
    """Returns all arrays of ``result`` and the tensors sent; see `Inspection.to_xarray`."""
    with importing("to_xarray()"):
        import xarray
    result = examples_first(result)
    dimensions = _Dimensions(batch_size(result), 0 if result.targets is None else result.targets[:1].size)
    sent = [Entry(array, _SENT, name) for name, array in sent_tensors(result, request).items()]
    found = by_name([*sent, *entries(result)], ("example", *_OF_EXAMPLES))
    variables = {
        name: (dimensions.of(entry), _known(entry.array), _attributes(entry))
        for name, entry in found.items()
        if entry.kind not in _OF_EXAMPLES
    }
    coordinates: dict[str, Any] = {"example": np.arange(dimensions.rows)}
    if result.classes:
        coordinates |= {
            name: ("example", [getattr(prediction, attribute) for prediction in result.classes])
            for name, attribute in _OF_EXAMPLES.items()
        }
    for name, features in result.feature_names.items():
        if dimensions.sizes.get(f"{name}.feature") == len(features):
            coordinates[f"{name}.feature"] = list(features)
    provenance = result.provenance
    about = {"model": provenance.model, "version": provenance.version, "weights_sha256": provenance.weights_sha256}
    return xarray.Dataset(variables, coordinates, {**about, "seed": provenance.seed})


def _attributes(entry: Entry) -> dict[str, Any]:
    """Returns what describes a variable: of an attribution, its method, layer and verdict."""
    if entry.attribution is None:
        return {}
    attribution = entry.attribution.result
    check = attribution.worst_check
    outcome = {} if check is None else {"verdict": check.verdict.value, "reason": check.reason}
    return {"method": attribution.method, "layer": attribution.layer, **outcome}


def _known(array: Array) -> Array:
    """Returns ``array`` in a data type that numpy itself has; bfloat16 becomes float32."""
    return array if array.dtype.kind in "fiub" else array.astype(np.float32)


class _Dimensions:
    """The named dimensions of the tensors of one result; a name has one size.

    Args:
        rows: the batch size.
        targets: the number of targets of an example.
    """

    def __init__(self, rows: int, targets: int) -> None:
        self.rows = rows
        self.sizes = {"example": rows}
        self._targets = targets

    def of(self, entry: Entry) -> list[str]:
        """Returns the names of an array's dimensions: the owner's, or its own if the owner's sizes differ."""
        shape = entry.array.shape
        for owner in (_owner(entry), entry.name):
            names = self._named(owner, entry)
            if all(self.sizes.get(name, size) == size for name, size in zip(names, shape)):
                break
        self.sizes.update(zip(names, shape))
        return names

    def _named(self, owner: str, entry: Entry) -> list[str]:
        """Returns the names of the axes: ``example`` and ``target`` if there are such, then ``owner.role`` for each
        other."""
        array, leading = entry.array, []
        if entry.example_axis == 0 and len(array) == self.rows:
            leading.append("example")
        if leading and _is_of_target(entry) and self._targets > 1 and array.shape[1:2] == (self._targets,):
            leading.append("target")
        rest = array.ndim - len(leading)
        roles = _ROLES.get(rest, ()) if leading else ()
        return [*leading, *(f"{owner}.{role}" for role in roles or (f"axis_{axis}" for axis in range(rest)))]


def _is_of_target(entry: Entry) -> bool:
    """Whether an array has values for each target."""
    if entry.attribution is not None:
        return False
    return entry.kind in _OF_TARGET or (entry.place is not None and entry.place.point.is_gradient)


def _owner(entry: Entry) -> str:
    """Returns whose dimensions an array has: ``image``, ``conv1@output``, ``tokens:layer_integrated_gradients``."""
    place = entry.place
    if place is not None:
        return str(place._replace(point=_VALUES.get(place.point, place.point)))
    if entry.kind in ("token_ids", "token_attribution", "baseline_token_ids") and entry.attribution is not None:
        return f"tokens:{entry.attribution.name}"
    return entry.name if entry.key is None else str(entry.key)
