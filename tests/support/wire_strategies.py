"""Questions, answers and model descriptions, made up by hypothesis: every field, every kind of value."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import Enum
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from cutaway.contract import requests, results
from cutaway.contract.requests import Attribution, Capture, Edit, InspectRequest, Point
from cutaway.contract.results import CapturedCall, InspectResult, ModelDetail, ModuleCapture
from cutaway.contract.tensors import COMPRESSIONS, DTYPES, FLOATING, Array, dtype_name, to_bytes
from cutaway.contract.wire import scalars
from cutaway.contract.wire.methods import METHODS
from cutaway.v1 import tensor_pb2

UNSIGNED_64 = 2**64 - 1
SIGNED_64 = st.integers(-(2**63), 2**63 - 1)
SIGNED_32 = st.integers(-(2**31), 2**31 - 1)
UNSIGNED_32 = st.integers(0, 2**32 - 1)
COUNT_32 = st.integers(1, 2**32 - 1)

texts = st.text(max_size=12)  # any Unicode: accents, other scripts, emoji, quotes, dots, control characters
names = st.text(min_size=1, max_size=12)
numbers = st.floats()  # NaN, infinities and -0.0 too
quantities = st.floats(allow_nan=False)


def canonical(value: Any) -> Any:
    """``value`` in a form that ``==`` compares to the last bit: NaN is NaN, -0.0 is not 0.0, arrays by their bytes."""
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, np.ndarray):
        return dtype_name(value), value.shape, to_bytes(value)
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, Capture) and value.at != value.points:  # whose points can be written in several ways
        return canonical(dataclasses.replace(value, at=value.points))
    if isinstance(value, CapturedCall):  # the order of the points says nothing
        return "CapturedCall", sorted(canonical(value.leaves)), sorted(canonical(value.positions))
    if dataclasses.is_dataclass(value):
        fields = [canonical(getattr(value, field.name)) for field in dataclasses.fields(value)]
        return type(value).__name__, fields
    if isinstance(value, Mapping):
        return [(canonical(key), canonical(each)) for key, each in value.items()]
    if isinstance(value, (list, tuple)):
        return [canonical(each) for each in value]
    return value


def with_arrays(change: Callable[[Array], Array], value: Any) -> Any:
    """``value`` with ``change`` made to each array in it."""
    if isinstance(value, np.ndarray):
        return change(value)
    if isinstance(value, Mapping):
        return {name: with_arrays(change, each) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(with_arrays(change, each) for each in value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    fields = {field.name: with_arrays(change, getattr(value, field.name)) for field in dataclasses.fields(value)}
    return dataclasses.replace(value, **fields)


def tensor_message(array: Array, compression: str = "") -> tensor_pb2.Tensor:
    """``array`` as a message."""
    message = tensor_pb2.Tensor()
    scalars.write(array, message, compression)
    return message


def made(kind: type, **parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Values of a dataclass, every field of which must be given: a field nobody thought of fails here."""
    assert set(parts) == {field.name for field in dataclasses.fields(kind)}, kind
    return st.builds(kind, **parts)


def tuples_of(elements: st.SearchStrategy[Any], *, least: int = 0) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(elements, min_size=least, max_size=3).map(tuple)


LAYOUTS: tuple[Callable[[Array], Array], ...] = (
    lambda array: array,
    np.asfortranarray,
    lambda array: array.astype(array.dtype.newbyteorder(">")) if array.dtype.kind in "iuf" else array,
    lambda array: np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array,
    lambda array: np.ascontiguousarray(array[::-1])[::-1] if array.ndim else array,
    lambda array: np.ascontiguousarray(array.T).T,
)
"""The same numbers, laid out in memory in every way that numpy knows."""


@st.composite
def tensors(draw: st.DrawFn) -> Array:
    """Any data type, bit pattern, shape (no axes, empty axes) and memory layout."""
    dtype = DTYPES[draw(st.sampled_from(list(DTYPES)))]
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    size = prod(shape) * dtype.itemsize
    data = draw(st.binary(min_size=size, max_size=size))
    if dtype.kind == "b":
        data = bytes(byte & 1 for byte in data)
    array = np.frombuffer(data, dtype).reshape(shape)
    return draw(st.sampled_from(LAYOUTS))(array)


def vectors(elements: st.SearchStrategy[Any], dtype: type) -> st.SearchStrategy[Array | None]:
    rows = st.lists(elements, min_size=1, max_size=4)
    return st.none() | rows.map(lambda row: np.array(row, dtype))


named_tensors = st.dictionaries(texts, tensors(), max_size=3)
points = st.sampled_from(Point)
spelled_points = points | st.sampled_from([point.value for point in Point])
loss_reductions = st.sampled_from(requests.LossReduction)
slices = made(
    requests.Slice,
    axis=SIGNED_32,
    start=st.none() | SIGNED_64,
    stop=st.none() | SIGNED_64,
    step=st.none() | st.integers(1, 2**63 - 1),
)
targets = st.one_of(
    made(requests.PredictedClass, output=texts),
    made(requests.ClassIndex, output=texts, indices=tuples_of(SIGNED_64, least=1)),
    made(requests.MultiIndex, output=texts, indices=tuples_of(tuples_of(SIGNED_64), least=1)),
    made(requests.TopK, output=texts, k=COUNT_32),
    made(requests.CrossEntropy, output=texts, labels=tuples_of(SIGNED_64, least=1), reduction=loss_reductions),
    made(requests.MeanSquaredError, output=texts, values=tensors(), reduction=loss_reductions),
    made(requests.Cotangent, output=texts, tensor=tensors()),
    made(requests.OutputSum, output=texts),
    made(requests.OutputNorm, output=texts, order=st.floats(min_value=0, exclude_min=True)),
    made(requests.Neuron, output=texts, module=names, index=tuples_of(SIGNED_64), slices=tuples_of(slices)),
)

axes = tuples_of(SIGNED_32, least=1)
reductions = st.one_of(
    made(requests.Mean, axes=axes),
    made(requests.Max, axes=axes),
    made(requests.Norm, axes=axes),
    made(requests.TopElements, k=COUNT_32, axis=SIGNED_32),
)


def captured(**where: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A capture at ``where``, the rest of which can be anything."""
    parts: dict[str, st.SearchStrategy[Any]] = {
        "module": st.just(""),
        "op": st.just(""),
        "parameter": st.just(""),
        "at": spelled_points | st.permutations(list(Point)).map(tuple),
        "call": st.none() | UNSIGNED_32,
        "path": texts,
        "slices": tuples_of(slices),
        "reduce": st.none() | reductions,
        "data_type": st.sampled_from(["", "float16", "bfloat16", "float32", "float64"]),
    }
    return made(Capture, **(parts | where))


captures = st.one_of(
    captured(module=names),
    captured(op=names),
    captured(parameter=names, at=st.just("output"), call=st.none(), path=st.just("")),
)


def edited(kind: type[Edit], **parameters: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Edits of one ``kind``, at a module or at an operator."""
    shared: dict[str, st.SearchStrategy[Any]] = {
        "at": spelled_points,
        "call": st.none() | UNSIGNED_32,
        "rows": st.lists(UNSIGNED_32, max_size=3, unique=True).map(tuple),
        "slices": tuples_of(slices),
        "path": texts,
    }
    at_module, at_op = {"module": names, "op": st.just("")}, {"module": st.just(""), "op": names}
    return st.one_of([made(kind, **shared, **where, **parameters) for where in (at_module, at_op)])


bounds = st.tuples(quantities, quantities).map(sorted)
edits = st.one_of(
    edited(requests.Scale, factor=quantities),
    edited(requests.Add, addend=quantities | tensors()),
    edited(requests.Replace, tensor=tensors()),
    edited(requests.Zero),
    edited(requests.Clamp, minimum=quantities, maximum=st.none()),
    edited(requests.Clamp, minimum=st.none(), maximum=quantities),
    bounds.flatmap(lambda both: edited(requests.Clamp, minimum=st.just(both[0]), maximum=st.just(both[1]))),
    edited(requests.Mix, weight=st.floats(0, 1), permutation=tuples_of(UNSIGNED_32)),
)

spreads = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
PARAMETERS: dict[str, st.SearchStrategy[Any]] = {
    "target": st.none() | targets,
    "inputs": tuples_of(texts),
    "layer": names,
    "absolute": st.booleans(),
    "relu": st.booleans(),
    "multiply_by_inputs": st.booleans(),
    "n_steps": st.integers(1, 4096),
    "quadrature": st.sampled_from(requests.Quadrature),
    "baselines": st.dictionaries(texts, numbers | tensors() | SIGNED_64.map(requests.TokenId), max_size=3),
    "masks": named_tensors,
    "windows": st.dictionaries(texts, tuples_of(SIGNED_64), max_size=3),
    "strides": st.dictionaries(texts, tuples_of(SIGNED_64), max_size=3),
    "n_samples": COUNT_32,
    "max_delta": st.none() | st.floats(min_value=0),
    "baseline": numbers,
    "further_layers": tuples_of(names),
    "stdev": numbers,
    "neuron": made(
        requests.Neuron, output=st.just(""), module=names, index=tuples_of(SIGNED_64), slices=tuples_of(slices)
    ),
    "rules": st.dictionaries(
        texts,
        st.one_of(
            made(requests.Epsilon, epsilon=numbers),
            made(requests.Gamma, gamma=numbers),
            made(requests.AlphaOneBetaZero),
            made(requests.RelevanceIdentity),
        ),
        max_size=3,
    ),
    "noise": st.none()
    | made(
        requests.NoiseTunnel,
        combination=st.sampled_from(requests.Combination),
        n_samples=COUNT_32,
        stdev=st.floats(min_value=0, allow_infinity=False),
    ),
    "metrics": tuples_of(
        made(requests.Infidelity, n_samples=COUNT_32, stdev=spreads)
        | made(requests.SensitivityMax, n_samples=COUNT_32, radius=spreads)
    ),
}
"""Values for every parameter of any method; a new parameter needs a line here."""


def _parameters(kind: type[Attribution]) -> dict[str, st.SearchStrategy[Any]]:
    found = {field.name: PARAMETERS[field.name] for field in dataclasses.fields(kind)}
    if issubclass(kind, requests.Expectation):
        found["baselines"] = named_tensors
    return found


attributions = st.one_of([made(kind, **_parameters(kind)) for kind in METHODS.kinds.values()])
questions = made(
    InspectRequest,
    model=names,
    tensors=named_tensors,
    arguments=st.dictionaries(names, st.none() | st.booleans() | SIGNED_64 | numbers | texts, max_size=1),
    attribution_errors_in_place=st.booleans(),
    raw=tuples_of(made(requests.Raw, data=st.binary(max_size=20), media_type=texts)),
    target=targets,
    captures=tuples_of(captures),
    input_gradients=st.none() | tuples_of(texts),
    edits=tuples_of(edits),
    compare=st.booleans(),
    attributions=tuples_of(attributions),
    explain_if=st.none()
    | made(
        requests.ExplainIf,
        probability_at_least=st.none() | st.floats(0, 1),
        probability_at_most=st.none() | st.floats(0, 1),
        classes=tuples_of(SIGNED_64),
    ),
    check=made(
        requests.CheckRequest,
        mode=st.sampled_from(requests.CheckMode),
        relative_tolerance=st.none() | st.floats(min_value=0, allow_infinity=False),
    ),
    omit_predictions=st.booleans(),
    max_reply_bytes=st.integers(0, UNSIGNED_64),
    seed=st.none() | st.integers(0, 2**63 - 1),
    reply_data_type=st.sampled_from(["", *FLOATING]),
    compression=st.sampled_from(["", *COMPRESSIONS]),
    dry_run=st.booleans(),
).map(
    lambda question: dataclasses.replace(
        question,
        tensors={} if question.raw else question.tensors,
        compare=question.compare and bool(question.edits),
    )
)


@st.composite
def calls(draw: st.DrawFn) -> CapturedCall:
    """What a call showed: at some points tensors, some of them with the positions of their elements."""
    leaves = draw(st.dictionaries(points, st.dictionaries(texts, tensors(), min_size=1, max_size=2)))
    reduced = {point: {path: np.arange(3) for path in at if draw(st.booleans())} for point, at in leaves.items()}
    return CapturedCall(leaves, {point: positions for point, positions in reduced.items() if positions})


@st.composite
def target_fields(draw: st.DrawFn) -> dict[str, Array]:
    """Targets as an answer holds them: none, a number an example or several; with or without classes."""
    shape = draw(st.sampled_from([(1,), (3,), (1, 1), (3, 1), (1, 3), (2, 2)]))
    kinds: dict[str, tuple[st.SearchStrategy[Any], type]] = {
        "target_values": (numbers, np.float64),
        "targets": (SIGNED_64, np.int64),
    }
    found: dict[str, Array] = {}
    for name in draw(st.sampled_from([[], ["target_values"], list(kinds)])):
        elements, dtype = kinds[name]
        found[name] = np.array(draw(st.lists(elements, min_size=prod(shape), max_size=prod(shape))), dtype)
    return {name: array.reshape(shape) for name, array in found.items()}


outcomes: dict[str, Any] = {
    "max_relative_error": numbers,
    "verdict": st.sampled_from(results.Verdict),
    "reason": texts,
    "cause": st.none() | st.sampled_from(results.Cause),
}
checks = made(
    results.Check,
    compared=texts,
    mode=st.sampled_from(requests.CheckMode),
    max_absolute_error=numbers,
    cosine=numbers,
    tolerance=numbers,
    rows=tuples_of(made(results.RowCheck, **outcomes)),
    **outcomes,
)
provenances = made(
    results.Provenance,
    data_type=st.sampled_from(["", *DTYPES]),
    seed=st.integers(0, UNSIGNED_64),
    forwards=UNSIGNED_32,
    backwards=UNSIGNED_32,
    companions=UNSIGNED_32,
    **dict.fromkeys(
        ["model", "version", "weights_sha256", "torch_version", "captum_version", "cutaway_version", "device"], texts
    ),
)
classes = tuples_of(made(results.ClassPrediction, index=SIGNED_64, label=texts, probability=numbers))
without_targets = made(
    InspectResult,
    predictions=named_tensors,
    classes=classes,
    targets=st.none(),
    target_values=st.none(),
    captures=st.dictionaries(
        texts,
        made(ModuleCapture, calls=tuples_of(calls(), least=1)).filter(
            lambda seen: any(call.leaves for call in seen.calls)
        ),
        max_size=3,
    ),
    input_gradients=named_tensors,
    parameter_gradients=named_tensors,
    unedited=named_tensors,
    unedited_classes=classes,
    attributions=tuples_of(
        made(
            results.AttributionResult,
            method=texts,
            layer=texts,
            values=named_tensors,
            convergence_delta=vectors(numbers, np.float64),
            value_at_input=vectors(numbers, np.float64),
            value_at_baseline=vectors(numbers, np.float64),
            targets=vectors(SIGNED_64, np.int64),
            checks=tuples_of(checks),
            n_steps=UNSIGNED_32,
            tokens=st.none()
            | made(
                results.TokenAttribution,
                input=texts,
                ids=tensors(),
                values=tensors(),
                texts=tuples_of(tuples_of(texts)),
            ),
            standard_errors=named_tensors,
            error=st.none()
            | made(results.AttributionError, code=st.integers(0, 16), reason=texts, message=texts, field=texts),
            metrics=tuples_of(
                made(
                    results.MetricResult,
                    name=texts,
                    values=st.lists(numbers, max_size=3).map(lambda row: np.array(row, np.float64)),
                )
            ),
        )
    ),
    warnings=tuples_of(
        made(results.Warning, code=st.sampled_from(results.WarningCode), subject=texts, message=texts),
    ),
    provenance=provenances,
    timings=made(results.Timings, **{field.name: numbers for field in dataclasses.fields(results.Timings)}),
    explained_rows=vectors(st.booleans(), np.bool_),
    estimate=st.none()
    | made(
        results.Estimate,
        reply_bytes=st.integers(0, UNSIGNED_64),
        tensors=st.dictionaries(
            texts,
            made(results.Outline, data_type=st.sampled_from(list(DTYPES)), shape=tuples_of(st.integers(0, 2**40))),
            max_size=3,
        ),
        passes=st.integers(0, UNSIGNED_64),
    ),
    feature_names=st.dictionaries(texts, tuples_of(texts), max_size=2),
)
answers = st.tuples(without_targets, target_fields()).map(lambda both: dataclasses.replace(both[0], **both[1]))
shapes = tuples_of(st.integers(-1, 2**40))
details = made(
    ModelDetail,
    model=made(results.ModelName, model=texts, version=texts),
    inputs=tuples_of(
        made(
            results.InputSpec,
            name=texts,
            data_type=st.sampled_from(["", *DTYPES]),
            shape=shapes,
            optional=st.booleans(),
            feature_names=tuples_of(texts),
        )
    ),
    outputs=tuples_of(made(results.OutputSpec, name=texts, data_type=st.sampled_from(list(DTYPES)), shape=shapes)),
    labels=tuples_of(texts),
    media_types=tuples_of(texts),
    modules=tuples_of(
        made(
            results.ModuleInfo,
            name=texts,
            type=texts,
            parameters=st.integers(0, 2**63 - 1),
            output_shapes=tuples_of(shapes),
            calls=UNSIGNED_32,
            aliases=tuples_of(texts),
        )
    ),
    provenance=provenances,
    operators=tuples_of(made(results.OperatorInfo, address=texts, output_shapes=tuples_of(shapes), calls=UNSIGNED_32)),
    example=named_tensors,
)
