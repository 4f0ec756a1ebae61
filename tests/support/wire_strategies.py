"""Questions, answers and model descriptions, made up by hypothesis: every field, every kind of value.

A field is drawn by its type, unless `FIELDS` says what the contract allows there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from math import prod
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
from hypothesis import strategies as st

from cutaway.contract import requests
from cutaway.contract.requests import Capture, Edit, InspectRequest, Point
from cutaway.contract.results import CapturedCall, InspectResult, ModelDetail, ModuleCapture
from cutaway.contract.tensors import COMPRESSIONS, DTYPES, FLOATING, Array, dtype_name, to_bytes
from cutaway.contract.wire import scalars
from cutaway.contract.wire.methods import ATTACKS, METHODS, METRICS
from cutaway.contract.wire.oneofs import REDUCTIONS, TARGETS
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


points = st.sampled_from(Point)
spelled_points = points | st.sampled_from([point.value for point in Point])
positive = st.floats(min_value=0, exclude_min=True)
positive_finite = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
finite = st.floats(min_value=0, allow_infinity=False)
probabilities = st.floats(0, 1)
shares = st.floats(0, 1, exclude_min=True)
data_types = st.sampled_from(["", *DTYPES])
shapes = tuples_of(st.integers(-1, 2**40))

positions = SIGNED_32 | names
several_positions = st.none() | positions | tuples_of(positions, least=1)

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "at": spelled_points,
    "axes": tuples_of(SIGNED_32, least=1),
    "axis": SIGNED_32,
    "call": st.none() | UNSIGNED_32,
    "compression": st.sampled_from(["", *COMPRESSIONS]),
    "data_type": data_types,
    "explained_rows": vectors(st.booleans(), np.bool_),
    "factor": quantities,
    "further_layers": tuples_of(names),
    "indices": tuples_of(SIGNED_64, least=1),
    "k": COUNT_32,
    "layer": names,
    "max_delta": st.none() | st.floats(min_value=0),
    "channel_axis": st.none() | st.integers(1, 2**31 - 1) | st.integers(-(2**31), -1),
    "max_reply_bytes": st.integers(0, UNSIGNED_64),
    "module": names,
    "n_samples": COUNT_32,
    "n_steps": st.integers(1, 4096),
    "order": positive,
    "output_shapes": tuples_of(shapes),
    "passes": st.integers(0, UNSIGNED_64),
    "permutation": tuples_of(UNSIGNED_32),
    "probability_at_least": st.none() | probabilities,
    "probability_at_most": st.none() | probabilities,
    "fraction": shares,
    "radius": st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    "relative_tolerance": st.none() | finite,
    "reply_bytes": st.integers(0, UNSIGNED_64),
    "reply_data_type": st.sampled_from(["", *FLOATING]),
    "shape": shapes,
    "heads": st.lists(UNSIGNED_32, max_size=3, unique=True).map(tuple),
    "position": st.none() | positions,
    "Capture.position": several_positions,
    "source_position": several_positions,
    "steps": st.lists(UNSIGNED_32, max_size=3, unique=True).map(tuple),
    "step": st.none() | st.integers(1, 2**63 - 1),
    "weight": probabilities,
    **dict.fromkeys(
        ["convergence_delta", "value_at_input", "value_at_baseline", "sweep_agreement", "direct_rest", "direct_bias"],
        vectors(numbers, np.float64),
    ),
    **dict.fromkeys(["forwards", "backwards", "companions"], UNSIGNED_32),
    "AttributionError.code": st.integers(0, 16),
    "AttributionResult.layer": texts,
    "AttributionResult.n_steps": UNSIGNED_32,
    "AttributionResult.targets": vectors(SIGNED_64, np.int64),
    "Capture.data_type": st.sampled_from(["", *FLOATING]),
    "CrossEntropy.labels": tuples_of(SIGNED_64, least=1),
    "Infidelity.stdev": st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    "InspectRequest.arguments": st.dictionaries(
        names, st.none() | st.booleans() | SIGNED_64 | numbers | texts, max_size=1
    ),
    "AddVector.norm": st.sampled_from(requests.VectorNorm),
    "EditReceipt.tensors": UNSIGNED_32,
    "Generate.alternatives": st.integers(0, 1000),
    "Generate.stop": tuples_of(names),
    "Generate.max_new_tokens": COUNT_32,
    "Generate.min_p": st.none() | shares,
    "Generate.repetition_penalty": st.none() | st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    "Generate.temperature": st.just(0.0) | st.floats(1e-3, 1e3),
    "Generate.top_k": UNSIGNED_32,
    "Generate.top_p": st.none() | shares,
    "InspectRequest.model": names,
    "InspectResult.example_axes": st.dictionaries(texts, st.none() | UNSIGNED_32, max_size=3),
    "InspectRequest.seed": st.none() | st.integers(0, 2**63 - 1),
    "EffectiveComplexity.threshold": shares,
    "InputInvariance.shift": st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    "MetricResult.curve": st.none() | tensors(),
    "MetricResult.random": st.none()
    | st.lists(numbers, min_size=1, max_size=3).map(lambda row: np.array(row, np.float64)),
    "RelativeRepresentationStability.module": names,
    "MetricResult.values": st.lists(numbers, max_size=3).map(lambda row: np.array(row, np.float64)),
    "ModuleInfo.calls": UNSIGNED_32,
    "ModuleInfo.parameters": st.integers(0, 2**63 - 1),
    "MultiIndex.indices": tuples_of(tuples_of(SIGNED_64), least=1),
    "NoiseTunnel.stdev": finite,
    "OperatorInfo.calls": UNSIGNED_32,
    "Project.to": names | tensors(),
    "Project.bias": st.none() | tensors(),
    "Project.threshold": st.none() | tensors(),
    "Project.then": st.none(),
    "Outline.data_type": st.sampled_from(list(DTYPES)),
    "Outline.shape": tuples_of(st.integers(0, 2**40)),
    "Direct.heads": st.booleans(),
    "Direct.modules": tuples_of(names, least=1),
    "Direct.norm": names,
    **dict.fromkeys(["MinParamPerturbation.upper", "MinParamPerturbation.step"], positive_finite),
    **dict.fromkeys(["MinParamPerturbation.lower", "epsilon", "step_size", "zero_threshold", "PGD.radius"], finite),
    "MinParamPerturbation.parameter": names,
    "MinParamPerturbation.mode": st.sampled_from(requests.SearchMode),
    "PGD.norm": st.sampled_from(requests.AttackNorm),
    **dict.fromkeys(["lower_bound", "upper_bound"], st.none() | quantities),
    "AttackResult.classes": vectors(SIGNED_64, np.int64),
    "AttackResult.succeeded": vectors(st.booleans(), np.bool_),
    **{
        f"AttackResult.{name}": vectors(numbers, np.float64)
        for name in ("probabilities", "target_values", "losses_before", "losses", "linf", "l2", "parameters")
    },
    **dict.fromkeys(
        [
            "AttackedAttribution.cosine",
            "AttackedAttribution.rank_correlation",
            *(f"Agreement.{name}" for name in ("cosine", "rank_correlation", "top_in_common")),
        ],
        st.lists(numbers, max_size=3).map(lambda row: np.array(row, np.float64)),
    ),
    "ConceptExamples.tensors": st.dictionaries(names, tensors(), max_size=2),
    "ConceptResult.derivatives": tensors(),
    "ConceptResult.vectors": st.none() | tensors(),
    "DataSet.rows": st.integers(0, UNSIGNED_64),
    "Influence.k": COUNT_32,
    "Influence.dimension": COUNT_32,
    "Influence.damping": st.floats(min_value=0, allow_infinity=False),
    "Influence.iterations": COUNT_32,
    "Influence.seed": st.integers(0, 2**63 - 1),
    **dict.fromkeys(["Agreement.first", "Agreement.second"], UNSIGNED_32),
    "Superpixels.segments": COUNT_32,
    **dict.fromkeys(["Column.lower", "Column.upper"], st.none() | quantities),
    "Column.step": st.none() | st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    "Column.values": tuples_of(quantities),
    "Counterfactual.max_changes": COUNT_32,
    **{
        f"CounterfactualResult.{name}": st.lists(each, max_size=3).map(partial(np.array, dtype=number))
        for name, each, number in (
            *((name, SIGNED_64, np.int64) for name in ("classes", "changes", "passes")),
            ("probabilities", numbers, np.float64),
            ("succeeded", st.booleans(), np.bool_),
        )
    },
    "Superpixels.compactness": st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    "Influence.learning_rate": st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    "Influence.method": st.sampled_from(requests.InfluenceMethod),
    "InfluenceResult.self_influence": st.none() | tensors(),
    "TCAV.seed": st.integers(0, 2**63 - 1),
    "TCAV.layers": st.lists(names, min_size=1, max_size=2, unique=True).map(tuple),
    "TCAV.classifier": st.sampled_from(requests.ConceptClassifier),
    "Sweep.places": st.lists(SIGNED_64, max_size=3, unique=True).map(tuple),
    "Sweep.heads": st.booleans(),
    "Sweep.axis": UNSIGNED_32,
    "Sweep.module": names,
    "Sweep.source": UNSIGNED_32,
    "SequenceLogProbability.texts": tuples_of(texts, least=1),
    "OutputSpec.data_type": st.sampled_from(list(DTYPES)),
    "Provenance.seed": st.integers(0, UNSIGNED_64),
}
"""What the contract allows in a field of this name, in any dataclass or in one."""

TYPES: dict[Any, st.SearchStrategy[Any]] = {
    Any: tensors(),
    Array: tensors(),
    bool: st.booleans(),
    bytes: st.binary(max_size=20),
    float: numbers,
    int: SIGNED_64,
    str: texts,
    type(None): st.none(),
    requests.TokenId: st.builds(requests.TokenId, SIGNED_64, st.booleans()),
}


def by_type(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    parts = get_args(hint)
    if hint in TYPES:
        return TYPES[hint]
    if get_origin(hint) in (Union, UnionType):
        return st.one_of(list(map(by_type, parts)))
    if get_origin(hint) is tuple:
        return tuples_of(by_type(parts[0]))
    if get_origin(hint) is Mapping:
        return st.dictionaries(by_type(parts[0]), by_type(parts[1]), max_size=3)
    return st.sampled_from(hint) if issubclass(hint, Enum) else made(hint)


def made(kind: type, **parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Values of a dataclass, with ``parts`` for some of its fields."""
    known, hints = FIELDS | {f"{kind.__name__}.{name}": part for name, part in parts.items()}, get_type_hints(kind)
    for field in dataclasses.fields(kind):
        both = [known[name] for name in (f"{kind.__name__}.{field.name}", field.name) if name in known]
        parts[field.name] = both[0] if both else by_type(hints[field.name])
    return st.builds(kind, **parts)


slices = made(requests.Slice)
_NO_SCALAR_ALONE = (requests.ClassLabel, requests.Contrast, requests.LogProbability)
targets = st.one_of([made(kind) for kind in TARGETS.kinds.values() if kind not in _NO_SCALAR_ALONE])
targets |= made(requests.Contrast, target=targets, other=targets) | made(requests.LogProbability, target=targets)
TYPES[requests.Reduction] = st.one_of([made(kind) for kind in REDUCTIONS.kinds.values()])
TYPES[requests.Target] = targets
TYPES[requests.LrpRule] = st.one_of([made(kind) for kind in requests.LrpRule.__subclasses__()])
TYPES[requests.Attack] = st.one_of([made(kind) for kind in ATTACKS.kinds.values()])
TYPES[requests.Metric] = st.one_of([made(kind) for kind in METRICS.kinds.values()])
FIELDS["neuron"] = made(requests.Neuron, output=st.just(""), position=st.none())


def captured(**where: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A capture at ``where``, the rest of which can be anything."""
    nowhere = dict.fromkeys(["module", "op", "parameter"], st.just(""))
    several = spelled_points | st.permutations(list(Point)).map(tuple)
    return made(Capture, **{**nowhere, "at": several, **where})


captures = st.one_of(
    captured(module=names),
    captured(op=names, position=st.none()),
    captured(
        parameter=names,
        at=st.just("output"),
        call=st.none(),
        path=st.just(""),
        steps=st.just(()),
        position=st.none(),
        heads=st.just(()),
    ),
)


def edited(kind: type[Edit], **parameters: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Edits of one ``kind``, at a module or at an operator."""
    rows = st.lists(UNSIGNED_32, max_size=3, unique=True).map(tuple)
    at_module = {"module": names, "op": st.just(""), "position": several_positions}
    at_op = {"module": st.just(""), "op": names, "position": st.none()}
    return st.one_of([made(kind, rows=rows, **where, **parameters) for where in (at_module, at_op)])


row_vectors = tensors() | st.builds(requests.Row, names, UNSIGNED_32)
bounds = st.tuples(quantities, quantities).map(sorted)
edits = st.one_of(
    edited(requests.Scale),
    edited(requests.Add, addend=quantities | tensors()),
    edited(requests.Replace),
    edited(requests.Zero),
    edited(requests.Clamp, minimum=quantities, maximum=st.none()),
    edited(requests.Clamp, minimum=st.none(), maximum=quantities),
    bounds.flatmap(lambda both: edited(requests.Clamp, minimum=st.just(both[0]), maximum=st.just(both[1]))),
    edited(requests.Mix),
    edited(requests.AddVector, vector=row_vectors, scale=quantities),
    edited(requests.SwapDirections, vector=row_vectors, other=row_vectors),
    bounds.flatmap(
        lambda both: edited(
            requests.ClampDirection, vector=row_vectors, minimum=st.just(both[0]), maximum=st.just(both[1])
        )
    ),
)
attributions = st.one_of([made(kind) for kind in METHODS.kinds.values()])
TYPES |= {Capture: captures, Edit: edits, requests.Attribution: attributions}
questions = made(InspectRequest).map(
    lambda question: dataclasses.replace(
        question,
        tensors={} if question.raw else question.tensors,
        feature_names={} if question.raw else question.feature_names,
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


seen = made(ModuleCapture, calls=tuples_of(calls(), least=1)).filter(
    lambda capture: any(call.leaves for call in capture.calls)
)
TYPES[ModuleCapture] = seen
without_targets = made(InspectResult, targets=st.none(), target_values=st.none())
answers = st.tuples(without_targets, target_fields()).map(lambda both: dataclasses.replace(both[0], **both[1]))
details = made(ModelDetail)
