"""The arrays of a result as one table: their names, what they are, and a way to replace them.

The metadata of a dataclass field says that it holds arrays (`array`, `named`, `numbers`, `CAPTURES`), or dataclasses
that do (`ATTRIBUTIONS`, `parts`). All else follows. NPZ files, outputs of the Open Inference Protocol, columns of
jobs, xarray's variables, estimates and streams have the arrays and names of `entries`. `cutaway.contract.wire.results`
derives its codecs from `array_fields`. docs/results.md explains the names to users.
"""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from itertools import count
from typing import IO, TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeAlias, TypeVar

import numpy as np

from cutaway.contract.requests import POINTS, Point, method_field
from cutaway.contract.tensors import Array
from cutaway.contract.values import changed

if TYPE_CHECKING:
    from cutaway.contract.results import (
        AttackResult,
        AttributionResult,
        CapturedCall,
        InspectResult,
        ModuleCapture,
    )
    from cutaway.contract.results.changes import AttackedAttribution

_METADATA = "arrays"
T = TypeVar("T")


class Place(NamedTuple):
    """The place of a captured tensor.

    Attributes:
        module: the name of the module, or the address of the operator.
        point: the hook point.
        path: the tensor's path within the call, ``""`` for a bare tensor.
        call: the number of the call, from 0.
        calls: how often the module was called.
    """

    module: str
    point: Point
    path: str = ""
    call: int = 0
    calls: int = 1

    def __str__(self) -> str:
        """Returns ``conv1@output``, ``lstm@output:[0]``, and for a further call ``act@output#1``."""
        path, call = f":{self.path}" if self.path else "", f"#{self.call}" if self.call else ""
        return f"{self.module}@{self.point.value}{path}{call}"


class NamedAttribution(NamedTuple):
    """An attribution, its number in the result, and the name that its arrays share: ``saliency``."""

    result: AttributionResult
    number: int
    name: str


class Where(NamedTuple):
    """The place of arrays in a result: their attribution, and the input, layer or parameter that they belong to."""

    attribution: NamedAttribution | None = None
    key: str | None = None


class ArrayField(NamedTuple):
    """A dataclass field that holds an array, or arrays by name.

    Attributes:
        kind: the first part of the names of its arrays.
        of: what names its arrays: ``output``, ``input`` (or layer), ``parameter``.
        by_row: whether it has an element for each example, along axis 0 but for `InspectResult.example_axes`.
        number: the element type of an array that is sent as numbers; None for one that is sent as a tensor.
        named: whether it holds arrays by name.
    """

    kind: str
    of: str = ""
    by_row: bool = True
    number: type[np.generic] | None = None
    named: bool = False

    def rebuild(self, value: Any, function: ArrayFunction, where: Where) -> Any:
        """Returns ``value`` with what ``function`` returns in place of each array."""
        if self.named:
            return {name: function(array, self, name, where.attribution) for name, array in value.items()}
        return function(value, self, where.key, where.attribution)


class Entry(NamedTuple):
    """One array of a result.

    Attributes:
        array: the elements.
        field: the field that holds it.
        key: the output, input, layer, parameter or metric that it is of, or its place; None where its kind tells it.
        attribution: the attribution that it belongs to.
        example_axis: the axis of the examples; None where no axis has an element for each example.
    """

    array: Array
    field: ArrayField
    key: str | Place | None = None
    attribution: NamedAttribution | None = None
    example_axis: int | None = 0

    @property
    def name(self) -> str:
        """``output``, ``capture:conv1@output``, ``attribution:integrated_gradients:image``."""
        name = self.field.kind
        if self.attribution is not None:
            name = f"{name}:{self.attribution.name}"
        if self.key is None:
            return name
        return str(self.key) if name == OUTPUT else f"{name}:{self.key}"

    @property
    def kind(self) -> str:
        """The first part of the name, which outputs alone do not have."""
        return self.field.kind

    @property
    def is_tensor(self) -> bool:
        """Whether the contract has it as a tensor, not as repeated numbers."""
        return self.field.number is None

    @property
    def place(self) -> Place | None:
        """The place of a captured tensor."""
        return self.key if isinstance(self.key, Place) else None

    @property
    def input(self) -> str:
        """The input that it is about; ``""`` for any other array, such as the attribution of a layer."""
        at_layer = self.kind == ATTRIBUTION and self.attribution is not None and self.attribution.result.at_layer
        return str(self.key or "") if self.field.of == "input" and not at_layer else ""


OUTPUT, CAPTURE, POSITIONS, ATTRIBUTION = "output", "capture", "positions", "attribution"

ArrayFunction: TypeAlias = Callable[[Array, ArrayField, "str | Place | None", "NamedAttribution | None"], Array]
"""Takes what an `Entry` has, and returns the array's replacement. An `Entry` for each would be a third of the time."""

_Rebuild: TypeAlias = Callable[[Any, ArrayFunction, Where], Any]


def with_arrays(result: T, function: ArrayFunction) -> T:
    """Returns a result, or a part of one, with what ``function`` returns in place of each array.

    The function is called in the order of the fields; for tensors it is that of `cutaway.v1.InspectResponse`.
    """
    return _rebuilt(result, function, Where())


def entries(result: InspectResult) -> list[Entry]:
    """Returns every array of ``result``: the predicted classes as arrays, then those of `with_arrays`, in its order."""
    arrays = list(_classes(result))

    def collect(array: Array, field: ArrayField, *rest: Any) -> Array:
        arrays.append(Entry(array, field, *rest)._replace(example_axis=0 if field.by_row and array.ndim else None))
        return array

    with_arrays(result, collect)
    if axes := result.example_axes:
        return [entry._replace(example_axis=axes.get(entry.name, entry.example_axis)) for entry in arrays]
    return arrays


def examples_first(result: InspectResult) -> InspectResult:
    """Returns ``result`` with the examples of every array on axis 0, but for arrays that have no axis of examples."""
    axes = {name: axis for name, axis in result.example_axes.items() if axis}

    def moved(array: Array, *where: Any) -> Array:
        return np.moveaxis(array, axes.get(Entry(array, *where).name, 0), 0) if array.ndim else array

    without = {name: axis for name, axis in result.example_axes.items() if axis is None}
    return with_arrays(changed(result, example_axes=without), moved) if axes else result


def tensors(result: InspectResult) -> list[Entry]:
    """Returns those of `entries` that the contract has as tensors."""
    return [entry for entry in entries(result) if entry.is_tensor]


def captures(result: InspectResult) -> Iterator[tuple[Place, Array]]:
    """Yields every captured tensor and its place."""
    return ((entry.place, entry.array) for entry in entries(result) if entry.place and entry.kind == CAPTURE)


def by_name(arrays: Sequence[Entry], taken: Iterable[str] = ()) -> dict[str, Entry]:
    """Returns ``arrays`` by their names, none of which is in ``taken``: see `numbered`."""
    return dict(zip(numbered([entry.name for entry in arrays], taken), arrays))


def numbered(names: Iterable[str], taken: Iterable[str] = ()) -> Iterator[str]:
    """Yields ``names``; the second of a name has ``#1`` behind it, the third ``#2``, as has one that is ``taken``."""
    counts = Counter(taken)
    for name in names:
        unique = name
        while counts[unique]:
            unique = f"{name}#{counts[name]}"
            counts[name] += 1
        counts[unique] += 1
        yield unique


def _rebuilt(part: T, function: ArrayFunction, where: Where) -> T:
    """Returns ``part`` with each of its arrays replaced by the result of ``function``; None stays None."""
    kind: Any = type(part)
    values = [(name, rebuild, getattr(part, name)) for name, rebuild in _rebuilders(kind)]
    return changed(
        part, **{name: rebuild(value, function, where) for name, rebuild, value in values if _has_any(value)}
    )


def _has_any(value: Any) -> bool:
    return value is not None and (type(value) not in _CONTAINERS or bool(value))


_CONTAINERS = (tuple, dict)


@cache
def _rebuilders(kind: type[Any]) -> tuple[tuple[str, _Rebuild], ...]:
    """Returns the fields of a dataclass that have arrays, and how each is rebuilt."""
    described = ((field.name, field.metadata.get(_METADATA)) for field in fields(kind))
    return tuple(
        (name, rule.rebuild if isinstance(rule, ArrayField) else rule) for name, rule in described if rule is not None
    )


# Metadata of dataclass fields.


def array(kind: str, of: str = "", *, by_row: bool = True) -> dict[str, ArrayField]:
    """Describes a field that has a tensor."""
    return {_METADATA: ArrayField(kind, of, by_row)}


def named(kind: str, of: str, *, by_row: bool = True) -> dict[str, ArrayField]:
    """Describes a field that has tensors by the names of ``of``."""
    return {_METADATA: ArrayField(kind, of, by_row, named=True)}


def numbers(kind: str, number: type[np.generic], of: str = "") -> dict[str, ArrayField]:
    """Describes a field that has a number for each row."""
    return {_METADATA: ArrayField(kind, of, number=number)}


def parts(key: str) -> dict[str, _Rebuild]:
    """Describes a field that has a dataclass or a tuple of them. Its attribute ``key`` is the key of its arrays; ``""``
    is none."""

    def one(part: T, function: ArrayFunction, where: Where) -> T:
        return _rebuilt(part, function, where._replace(key=(key and getattr(part, key)) or None))

    def rebuild(value: Any, function: ArrayFunction, where: Where) -> Any:
        if isinstance(value, tuple):
            return tuple(one(part, function, where) for part in value)
        return one(value, function, where)

    return {_METADATA: rebuild}


def _attributions(
    values: Sequence[AttributionResult], function: ArrayFunction, _: Where
) -> tuple[AttributionResult, ...]:
    owners = map(NamedAttribution, values, count(), numbered([method_field(result.method) for result in values]))
    return tuple(_rebuilt(owner.result, function, Where(owner)) for owner in owners)


ATTRIBUTIONS: dict[str, _Rebuild] = {_METADATA: _attributions}
"""Describes the field that has the attributions."""


def _attacked(
    values: Sequence[AttackedAttribution], function: ArrayFunction, where: Where
) -> tuple[AttackedAttribution, ...]:
    names = numbered([f"{where.key}:{method_field(value.attribution.method)}" for value in values])
    owners = map(NamedAttribution, [value.attribution for value in values], count(), names)
    return tuple(_rebuilt(value, function, Where(owner)) for value, owner in zip(values, owners))


ATTACKED: dict[str, _Rebuild] = {_METADATA: _attacked}
"""Describes the field that has the attributions at the changed inputs of an attack."""


def _attacks(values: Sequence[AttackResult], function: ArrayFunction, _: Where) -> tuple[AttackResult, ...]:
    def named_by(attack: str) -> ArrayFunction:
        return lambda array, field, key, owner: function(
            array, field, f"{attack}:{key}" if field.named and owner is None else key, owner
        )

    names = numbered([method_field(value.method) for value in values])
    return tuple(_rebuilt(value, named_by(name), Where(key=name)) for value, name in zip(values, names))


ATTACKS: dict[str, _Rebuild] = {_METADATA: _attacks}
"""Describes the field that has the results of attacks, whose names precede the keys of their arrays."""

_CAPTURE, _POSITIONS = ArrayField(CAPTURE), ArrayField(POSITIONS)
_Leaves: TypeAlias = dict[Point, dict[str, Array]]


def _captures(values: Mapping[str, ModuleCapture], function: ArrayFunction, _: Where) -> dict[str, ModuleCapture]:
    return {module: _capture(module, capture, function) for module, capture in values.items()}


def _capture(module: str, capture: ModuleCapture, function: ArrayFunction) -> ModuleCapture:
    """Returns ``capture`` with its arrays replaced. Visits them by point, then by call: the order of the message."""
    calls: list[tuple[int, CapturedCall, _Leaves, _Leaves]] = [
        (number, call, {}, {}) for number, call in enumerate(capture.calls)
    ]
    has_one = len(calls) == 1 and len(capture.calls[0].leaves) == 1
    for point in capture.calls[0].leaves if has_one else POINTS:
        for number, call, leaves, positions in calls:
            if point in call.leaves:
                leaves[point], indices_by_path = {}, call.positions.get(point)
                for path, leaf in call.leaves[point].items():
                    place = Place(module, point, path, number, len(calls))
                    leaves[point][path] = function(leaf, _CAPTURE, place, None)
                    if indices_by_path and path in indices_by_path:
                        indices = function(indices_by_path[path], _POSITIONS, place, None)
                        positions.setdefault(point, {})[path] = indices
    return type(capture)(tuple([type(call)(leaves, positions) for _, call, leaves, positions in calls]))


CAPTURES: dict[str, _Rebuild] = {_METADATA: _captures}
"""Describes the field that has the captures."""

CLASSES: dict[str, tuple[str, str, type[np.generic]]] = {
    "prediction": ("classes", "index", np.int64),
    "probability": ("classes", "probability", np.float64),
    "unedited:prediction": ("unedited_classes", "index", np.int64),
    "unedited:probability": ("unedited_classes", "probability", np.float64),
}
"""The kinds of arrays that are made of predicted classes: the field, its attribute, and the element type."""


def _classes(result: InspectResult) -> Iterator[Entry]:
    for kind, (field, attribute, number) in CLASSES.items():
        if classes := getattr(result, field):
            values = np.array([getattr(predicted, attribute) for predicted in classes], number)
            yield Entry(values, ArrayField(kind, number=number))


def array_fields(kind: type[Any]) -> dict[str, ArrayField]:
    """Returns the fields of a dataclass that have arrays themselves, by name."""
    described = {field.name: field.metadata.get(_METADATA) for field in fields(kind)}
    return {name: rule for name, rule in described.items() if isinstance(rule, ArrayField)}


def other_fields(kind: Any) -> list[str]:
    """Returns the fields of a dataclass that have no arrays but those of their parts."""
    rules = {field.name: field.metadata.get(_METADATA) for field in fields(kind)}
    return [name for name, rule in rules.items() if not isinstance(rule, ArrayField) and rule is not _captures]


# NPY and NPZ files.


def npy(values: Array) -> bytes:
    """Returns ``values`` as an NPY file; bfloat16, which numpy has not, as float32."""
    file = io.BytesIO()
    _write_npy(file, values)
    return file.getvalue()


def text_entries(result: InspectResult) -> Iterator[Entry]:
    """Yields what each row of a generation wrote, why it ended, and the verdict of its replay, as arrays of texts."""
    columns: dict[str, Sequence[str]] = {
        "text": result.texts,
        "finish_reason": result.finish_reasons,
        "unedited:text": result.unedited_texts,
    }
    if result.replay is not None:
        columns["replay"] = [result.replay.of_row(row).verdict for row in range(len(result.texts))]
    for name, texts in columns.items():
        if texts:
            yield Entry(np.array([str(text) for text in texts]), ArrayField(name, number=np.str_))


def write_npz(file: BinaryIO, arrays: Mapping[str, Entry]) -> None:
    """Writes arrays by name as an NPZ file, tensors before numbers.

    `numpy.savez` has arguments of its own, which may not be names.
    """
    with zipfile.ZipFile(file, "w") as archive:
        for name, entry in sorted(arrays.items(), key=lambda named: not named[1].is_tensor):
            with archive.open(f"{name}.npy", "w", force_zip64=entry.array.nbytes > 1 << 30) as member:
                _write_npy(member, entry.array)


def _write_npy(file: IO[bytes], values: Array) -> None:
    plain = values.astype(np.float32) if values.dtype.name == "bfloat16" else values
    np.lib.format.write_array(file, plain, allow_pickle=False)
