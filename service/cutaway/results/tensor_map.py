"""Applies a function to every tensor of a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
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
    calls: list[CapturedCall] = [CapturedCall({}, {}) for _ in capture.calls]
    for point in POINTS:
        for index, call in enumerate(capture.calls):
            call_place = f"{place}.calls[{index}]" if index else place
            calls[index] = _add_point(calls[index], call, point, f"{call_place}.{point.value}", function)
    return ModuleCapture(tuple(calls))


def _add_point(
    mapped: CapturedCall, call: CapturedCall, point: Point, place: str, function: TensorFunction
) -> CapturedCall:
    leaves: dict[str, Array] = {}
    positions: dict[str, Array] = {}
    for path, array in call.leaves.get(point, {}).items():
        leaf_place = place + (path if path[:1] in ("", "[", ".") else f".{path}")
        leaves[path] = function(leaf_place, array)
        if path in call.positions.get(point, {}):
            positions[path] = function(f"{leaf_place}.positions", call.positions[point][path])
    return CapturedCall(
        {**mapped.leaves, point: leaves} if leaves else mapped.leaves,
        {**mapped.positions, point: positions} if positions else mapped.positions,
    )


def _map_attribution(place: str, attribution: AttributionResult, function: TensorFunction) -> AttributionResult:
    values = _map_named(f"{place}.values", attribution.values, function)
    tokens = attribution.tokens
    if tokens is not None:
        ids = function(f"{place}.tokens.ids", tokens.ids)
        tokens = replace(tokens, ids=ids, values=function(f"{place}.tokens.values", tokens.values))
    return replace(attribution, values=values, tokens=tokens)
