"""Questions, answers and model descriptions, made up by hypothesis: every field, every kind of value."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import Enum
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from cutaway import requests, results
from cutaway.requests import Capture, InspectRequest, Point
from cutaway.results import CapturedCall, InspectResult, ModelDetail, ModuleCapture
from cutaway.tensors import DTYPES, Array, dtype_name, to_bytes
from cutaway.wire.methods import CODECS

UNSIGNED_64 = 2**64 - 1
SIGNED_64 = st.integers(-(2**63), 2**63 - 1)

texts = st.text(max_size=12)  # any Unicode: accents, other scripts, emoji, quotes, dots, control characters
names = st.text(min_size=1, max_size=12)
numbers = st.floats()  # NaN, infinities and -0.0 too


def canonical(value: Any) -> Any:
    """``value`` in a form that ``==`` compares to the last bit: NaN is NaN, -0.0 is not 0.0, arrays by their bytes."""
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, np.ndarray):
        return dtype_name(value), value.shape, to_bytes(value)
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, Capture):  # whose points can be written in several ways
        return "Capture", value.module, canonical(value.points)
    if isinstance(value, CapturedCall):  # the order of the points says nothing
        return "CapturedCall", sorted(canonical(value.leaves))
    if dataclasses.is_dataclass(value):
        fields = [canonical(getattr(value, field.name)) for field in dataclasses.fields(value)]
        return type(value).__name__, fields
    if isinstance(value, Mapping):
        return [(canonical(key), canonical(each)) for key, each in value.items()]
    if isinstance(value, (list, tuple)):
        return [canonical(each) for each in value]
    return value


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
targets = made(requests.PredictedClass, output=texts) | made(
    requests.ClassIndex, output=texts, indices=tuples_of(SIGNED_64, least=1)
)
PARAMETERS: dict[str, st.SearchStrategy[Any]] = {
    "target": st.none() | targets,
    "inputs": tuples_of(texts),
    "layer": names,
    "absolute": st.booleans(),
    "relu": st.booleans(),
    "multiply_by_inputs": st.booleans(),
    "n_steps": st.integers(1, 4096),
    "quadrature": st.sampled_from(requests.Quadrature),
    "baselines": st.dictionaries(texts, numbers | tensors(), max_size=3),
}
"""Values for every parameter of any method; a new parameter needs a line here."""

attributions = st.one_of(
    [made(kind, **{field.name: PARAMETERS[field.name] for field in dataclasses.fields(kind)}) for kind in CODECS]
)
questions = made(
    InspectRequest,
    model=names,
    tensors=named_tensors,
    raw=tuples_of(made(requests.Raw, data=st.binary(max_size=20), media_type=texts)),
    target=targets,
    captures=tuples_of(
        made(
            Capture,
            module=names,
            at=points | st.sampled_from([point.value for point in Point]) | st.permutations(list(Point)).map(tuple),
        )
    ),
    input_gradients=st.none() | tuples_of(texts),
    attributions=tuples_of(attributions),
    check=made(
        requests.CheckRequest,
        mode=st.sampled_from(requests.CheckMode),
        relative_tolerance=st.none() | st.floats(min_value=0, allow_infinity=False),
    ),
    max_reply_bytes=st.integers(0, UNSIGNED_64),
).map(lambda question: dataclasses.replace(question, tensors={}) if question.raw else question)

calls = made(CapturedCall, leaves=st.dictionaries(points, st.dictionaries(texts, tensors(), min_size=1, max_size=2)))
checks = made(
    results.Check,
    compared=texts,
    mode=st.sampled_from(requests.CheckMode),
    max_absolute_error=numbers,
    max_relative_error=numbers,
    cosine=numbers,
    tolerance=numbers,
    verdict=st.sampled_from(results.Verdict),
    reason=texts,
)
provenances = made(
    results.Provenance,
    data_type=st.sampled_from(["", *DTYPES]),
    seed=st.integers(0, UNSIGNED_64),
    forwards=st.integers(0, 2**32 - 1),
    backwards=st.integers(0, 2**32 - 1),
    **dict.fromkeys(
        ["model", "version", "weights_sha256", "torch_version", "captum_version", "cutaway_version", "device"], texts
    ),
)
answers = made(
    InspectResult,
    predictions=named_tensors,
    classes=tuples_of(made(results.ClassPrediction, index=SIGNED_64, label=texts, probability=numbers)),
    targets=vectors(SIGNED_64, np.int64),
    target_values=vectors(numbers, np.float64),
    captures=st.dictionaries(
        texts,
        made(ModuleCapture, calls=tuples_of(calls, least=1)).filter(
            lambda seen: any(call.leaves for call in seen.calls)
        ),
        max_size=3,
    ),
    input_gradients=named_tensors,
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
        )
    ),
    warnings=tuples_of(
        made(results.Warning, code=st.sampled_from(results.WarningCode), subject=texts, message=texts),
    ),
    provenance=provenances,
    timings=made(results.Timings, **{field.name: numbers for field in dataclasses.fields(results.Timings)}),
)
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
            calls=st.integers(0, 2**32 - 1),
            aliases=tuples_of(texts),
        )
    ),
    provenance=provenances,
)
