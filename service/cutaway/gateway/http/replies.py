"""Results as the replies of REST: KServe's ``predictions`` and ``explanations``, or arrays in a file of numpy."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from cutaway.errors import Reason, error
from cutaway.results import InspectResult
from cutaway.results.document import document, numbers
from cutaway.results.explanations import AttributionResult
from cutaway.results.named_arrays import named_arrays, named_tensors, npy, write_npz
from cutaway.schema.tensors import Array

MAX_ELEMENTS = 1 << 20
"""The most elements of a reply in JSON."""

_WITH_RESULT = ("captures", "input_gradients", "parameter_gradients", "unedited", "unedited_classes")
_ALWAYS = ("warnings", "provenance", "timings")


def as_document(result: InspectResult, *, explains: bool) -> dict[str, Any]:
    """Returns the reply in JSON: ``predictions`` by instance, and with ``explains`` also ``explanations`` by instance
    and the ``verdicts`` of each method.

    Raises:
        ResourceExhausted: ``REPLY_TOO_LARGE``.
    """
    elements = sum(each.array.size for each in named_tensors(result))
    if elements > MAX_ELEMENTS:
        what = f"the reply has {elements} numbers, and JSON holds at most {MAX_ELEMENTS}"
        raise error(Reason.REPLY_TOO_LARGE, f"{what}; accept application/x-npz, or ask for less")
    reply: dict[str, Any] = {"predictions": _by_instance(result.predictions)}
    if result.classes:
        reply["classes"] = document(result.classes)
    if explains:
        reply["explanations"] = [
            [_explanation(attribution, row) for attribution in result.attributions]
            for row in range(len(reply["predictions"]))
        ]
        reply["verdicts"] = [_verdicts(attribution) for attribution in result.attributions]
    asked = [name for name in _WITH_RESULT if getattr(result, name)]
    reply |= {name: document(getattr(result, name), max_values=MAX_ELEMENTS) for name in (*asked, *_ALWAYS)}
    if result.estimate is not None:
        reply["estimate"] = document(result.estimate)
    return reply


def _by_instance(arrays: Mapping[str, Array]) -> list[Any]:
    """Returns a row of each output for each instance; of a single output, the row itself."""
    if not arrays:
        return []
    if len(arrays) == 1:
        (only,) = arrays.values()
        rows: list[Any] = numbers(only)
        return rows
    return [dict(zip(arrays, rows)) for rows in zip(*map(numbers, arrays.values()))]


def _explanation(attribution: AttributionResult, row: int) -> dict[str, Any]:
    found: dict[str, Any] = {"method": attribution.method, "layer": attribution.layer}
    if attribution.error is not None:
        return found | {"error": document(attribution.error)}
    found["values"] = {
        name: numbers(array[row]) if row < len(array) else None for name, array in attribution.values.items()
    }
    for name in ("convergence_delta", "targets"):
        array = getattr(attribution, name)
        if array is not None:
            found[name.removesuffix("s")] = numbers(array[row])
    return found


def _verdicts(attribution: AttributionResult) -> dict[str, Any]:
    return {
        "method": attribution.method,
        "layer": attribution.layer,
        "verdict": str(attribution.verdict),
        "checks": document(attribution.checks),
    }


def as_npz(result: InspectResult) -> bytes:
    """Returns the arrays of ``result`` as an NPZ file."""
    file = io.BytesIO()
    write_npz(file, named_arrays(result))
    return file.getvalue()


def as_npy(result: InspectResult) -> bytes:
    """Returns the only prediction of ``result`` as an NPY file.

    Raises:
        InvalidArgument: ``INVALID_VALUE`` if there are several.
    """
    if len(result.predictions) != 1:
        raise error(Reason.INVALID_VALUE, "the reply has several arrays: accept application/x-npz", "accept")
    return npy(next(iter(result.predictions.values())))
