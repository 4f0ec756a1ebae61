"""Every tensor of a result, one after the other, by the place where it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from cutaway.requests import POINTS, Point
from cutaway.results import CapturedCall, InspectResult, ModuleCapture
from cutaway.results.explanations import AttributionResult
from cutaway.tensors import Array

Swap: TypeAlias = Callable[[str, Array], Array]
"""Takes a tensor's place (``captures.conv1.output``) and the tensor; returns what shall be there instead."""


def swapped(result: InspectResult, swap: Swap) -> InspectResult:
    """``result`` with what ``swap`` returns for each tensor, asked in the order of `cutaway.v1.InspectResponse`."""
    return replace(
        result,
        predictions=_named("predictions", result.predictions, swap),
        captures={name: _capture(f"captures.{name}", capture, swap) for name, capture in result.captures.items()},
        input_gradients=_named("input_gradients", result.input_gradients, swap),
        parameter_gradients=_named("parameter_gradients", result.parameter_gradients, swap),
        attributions=tuple(
            _attribution(f"attributions[{index}]", attribution, swap)
            for index, attribution in enumerate(result.attributions)
        ),
        unedited=_named("unedited", result.unedited, swap),
    )


def _named(place: str, arrays: Mapping[str, Array], swap: Swap) -> dict[str, Array]:
    return {name: swap(f"{place}.{name}", array) for name, array in arrays.items()}


def _capture(place: str, capture: ModuleCapture, swap: Swap) -> ModuleCapture:
    """Point by point and within that call by call: so it is in the message, and not in the result."""
    calls: list[CapturedCall] = [CapturedCall({}, {}) for _ in capture.calls]
    for point in POINTS:
        for index, call in enumerate(capture.calls):
            where = f"{place}.calls[{index}]" if index else place
            calls[index] = _with_point(calls[index], call, point, f"{where}.{point.value}", swap)
    return ModuleCapture(tuple(calls))


def _with_point(made: CapturedCall, call: CapturedCall, point: Point, place: str, swap: Swap) -> CapturedCall:
    leaves: dict[str, Array] = {}
    positions: dict[str, Array] = {}
    for path, array in call.leaves.get(point, {}).items():
        here = place + (path if path[:1] in ("", "[", ".") else f".{path}")
        leaves[path] = swap(here, array)
        if path in call.positions.get(point, {}):
            positions[path] = swap(f"{here}.positions", call.positions[point][path])
    return CapturedCall(
        {**made.leaves, point: leaves} if leaves else made.leaves,
        {**made.positions, point: positions} if positions else made.positions,
    )


def _attribution(place: str, attribution: AttributionResult, swap: Swap) -> AttributionResult:
    values = _named(f"{place}.values", attribution.values, swap)
    tokens = attribution.tokens
    if tokens is not None:
        ids = swap(f"{place}.tokens.ids", tokens.ids)
        tokens = replace(tokens, ids=ids, values=swap(f"{place}.tokens.values", tokens.values))
    return replace(attribution, values=values, tokens=tokens)
