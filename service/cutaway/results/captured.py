"""All captured tensors of a result as one list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cutaway.requests import Point
from cutaway.results import InspectResult
from cutaway.schema.tensors import Array


class CapturedTensor(NamedTuple):
    """One captured tensor and its place.

    Attributes:
        module: the name of the module, or the address of the operator.
        point: the hook point.
        call: the number of the call, from 0.
        calls: how often the module was called.
        path: the tensor's path within the call, ``""`` for a bare tensor.
        array: the values.
        positions: after a reduction to the largest elements, their indices along the reduced axis.
    """

    module: str
    point: Point
    call: int
    calls: int
    path: str
    array: Array
    positions: Array | None


def captured_tensors(result: InspectResult) -> Iterator[CapturedTensor]:
    """Yields every captured tensor in the order of the result."""
    for module, capture in result.captures.items():
        for index, call in enumerate(capture.calls):
            for point, leaves in call.leaves.items():
                for path, array in leaves.items():
                    positions = call.positions.get(point, {}).get(path)
                    yield CapturedTensor(module, point, index, len(capture.calls), path, array, positions)
