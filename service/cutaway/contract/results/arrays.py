"""The arrays of a result by unique names: those of NPZ files, and of outputs of the Open Inference Protocol."""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import BinaryIO, NamedTuple, TypeAlias

import numpy as np

from cutaway.contract.requests import POINTS, Point, method_field
from cutaway.contract.results import CapturedCall, ClassPrediction, InspectResult, ModuleCapture
from cutaway.contract.results.explanations import AttributionResult
from cutaway.contract.tensors import Array

# All captured tensors of a result as one list.


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


# Applies a function to every tensor of a result.


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


class NamedArray(NamedTuple):
    """One array of a result.

    Attributes:
        name: ``output``, ``capture:conv1@output``, ``attribution:integrated_gradients:image``.
        array: its elements.
        verdict: of the attribution that it belongs to; empty for any other array.
    """

    name: str
    array: Array
    verdict: str = ""


def named_tensors(result: InspectResult) -> Iterator[NamedArray]:
    """Yields the tensors of ``result`` in its order. The second one of a name has ``#1`` behind it, the third ``#2``:
    the second call of a module, or the second attribution by one method."""
    return _numbered(_tensors(result))


def named_arrays(result: InspectResult) -> Iterator[NamedArray]:
    """Yields the same tensors, and then the numbers by row that explain them: classes, targets, deltas, metrics."""
    return _numbered([*_tensors(result), *_by_row(result)])


def npy(array: Array) -> bytes:
    """Returns ``array`` as an NPY file; bfloat16, which numpy has not, as float32."""
    file = io.BytesIO()
    plain = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
    np.lib.format.write_array(file, plain, allow_pickle=False)
    return file.getvalue()


def write_npz(file: BinaryIO, arrays: Iterable[NamedArray]) -> None:
    """Writes ``arrays`` as an NPZ file: `numpy.savez` has arguments of its own, which may not be names."""
    with zipfile.ZipFile(file, "w") as archive:
        for each in arrays:
            archive.writestr(f"{each.name}.npy", npy(each.array))


def _numbered(arrays: Iterable[NamedArray]) -> Iterator[NamedArray]:
    seen: Counter[str] = Counter()
    for each in arrays:
        before = seen[each.name]
        seen[each.name] += 1
        yield each._replace(name=f"{each.name}#{before}") if before else each


def _tensors(result: InspectResult) -> Iterator[NamedArray]:
    yield from _named("", result.predictions)
    yield from _named("unedited:", result.unedited)
    yield from _captures(result)
    yield from _named("gradient:", result.input_gradients)
    yield from _named("parameter_gradient:", result.parameter_gradients)
    for attribution in result.attributions:
        method, verdict = method_field(attribution.method), str(attribution.verdict or "")
        yield from _named(f"attribution:{method}:", attribution.values, verdict)
        yield from _named(f"standard_error:{method}:", attribution.standard_errors, verdict)
        if attribution.tokens is not None:
            tokens = {"ids": attribution.tokens.ids, "values": attribution.tokens.values}
            yield from _named(f"tokens:{method}:", tokens, verdict)


def _captures(result: InspectResult) -> Iterator[NamedArray]:
    for module, capture in result.captures.items():
        for call in capture.calls:
            for kind, by_point in (("capture", call.leaves), ("positions", call.positions)):
                for point, leaves in by_point.items():
                    for path, array in leaves.items():
                        yield NamedArray(f"{kind}:{module}@{point.value}{path and ':'}{path}", array)


def _by_row(result: InspectResult) -> Iterator[NamedArray]:
    yield from _classes("class", result.classes)
    yield from _classes("unedited_class", result.unedited_classes)
    yield from _named("", {"targets": result.targets, "target_values": result.target_values})
    for attribution in result.attributions:
        yield from _of_attribution(method_field(attribution.method), attribution)


def _of_attribution(method: str, attribution: AttributionResult) -> Iterator[NamedArray]:
    names = ("convergence_delta", "value_at_input", "value_at_baseline", "targets")
    yield from _named("", {f"{name}:{method}": getattr(attribution, name) for name in names})
    for metric in attribution.metrics:
        yield NamedArray(f"{metric.name}:{method}", metric.values)


def _classes(name: str, classes: Sequence[ClassPrediction]) -> Iterator[NamedArray]:
    if classes:
        yield NamedArray(f"{name}:index", np.array([each.index for each in classes]))
        yield NamedArray(f"{name}:probability", np.array([each.probability for each in classes]))


def _named(prefix: str, arrays: Mapping[str, Array | None], verdict: str = "") -> Iterator[NamedArray]:
    for name, array in arrays.items():
        if array is not None:
            yield NamedArray(f"{prefix}{name}", array, verdict)
