"""Applies a function to every tensor of a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from typing import TypeAlias

from cutaway.requests import POINTS, Point
from cutaway.results import CapturedCall, InspectResult, ModuleCapture
from cutaway.results.explanations import AttributionResult
from cutaway.schema.tensors import Array

TensorFunction: TypeAlias = Callable[[str, Array], Array]
"""Takes the place of a tensor (``captures.conv1.output``) and the tensor; returns the tensor that replaces it."""


def map_tensors(result: InspectResult, function: TensorFunction) -> InspectResult:
    """Returns ``result`` with the value of ``function`` in place of each tensor. The function is called in the order of
    `cutaway.v1.InspectResponse`."""
    return replace(
        result,
        predictions=_map_named("predictions", result.predictions, function),
        captures={
            name: _map_capture(f"captures.{name}", capture, function) for name, capture in result.captures.items()
        },
        input_gradients=_map_named("input_gradients", result.input_gradients, function),
        parameter_gradients=_map_named("parameter_gradients", result.parameter_gradients, function),
        attributions=tuple(
            _map_attribution(f"attributions[{index}]", attribution, function)
            for index, attribution in enumerate(result.attributions)
        ),
        unedited=_map_named("unedited", result.unedited, function),
    )


def _map_named(place: str, arrays: Mapping[str, Array], function: TensorFunction) -> dict[str, Array]:
    return {name: function(f"{place}.{name}", array) for name, array in arrays.items()}


def _map_capture(place: str, capture: ModuleCapture, function: TensorFunction) -> ModuleCapture:
    """Visits point by point, and each point call by call: the order in the message, which differs from the result's."""
    leaves: list[dict[Point, dict[str, Array]]] = [{} for _ in capture.calls]
    positions: list[dict[Point, dict[str, Array]]] = [{} for _ in capture.calls]
    for point, (index, call) in product(POINTS, enumerate(capture.calls)):
        call_place = f"{place}.calls[{index}]" if index else place
        for path, array in call.leaves.get(point, {}).items():
            leaf_place = f"{call_place}.{point.value}" + (path if path[:1] in ("", "[", ".") else f".{path}")
            leaves[index].setdefault(point, {})[path] = function(leaf_place, array)
            if path in call.positions.get(point, {}):
                mapped = function(f"{leaf_place}.positions", call.positions[point][path])
                positions[index].setdefault(point, {})[path] = mapped
    return ModuleCapture(tuple(map(CapturedCall, leaves, positions)))


def _map_attribution(place: str, attribution: AttributionResult, function: TensorFunction) -> AttributionResult:
    values = _map_named(f"{place}.values", attribution.values, function)
    tokens = attribution.tokens
    if tokens is not None:
        ids = function(f"{place}.tokens.ids", tokens.ids)
        tokens = replace(tokens, ids=ids, values=function(f"{place}.tokens.values", tokens.values))
    errors = _map_named(f"{place}.standard_errors", attribution.standard_errors, function)
    return replace(attribution, values=values, tokens=tokens, standard_errors=errors)
