"""From columns of a data set to inputs of a model, and from labels to targets; bad rows are kept apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from cutaway.errors import CutawayError, Reason, at, error
from cutaway.jobs.asked import Asked
from cutaway.jobs.sources.source import Column, Unreadable
from cutaway.jobs.spec import Job, RawInput, TensorColumn
from cutaway.requests import ClassIndex, InspectRequest, Raw
from cutaway.results import ModelDetail
from cutaway.tensors import DTYPES, FLOATING, Array


@dataclass(frozen=True)
class Batch:
    """Some rows of a shard, as one question.

    Attributes:
        rows: their numbers in the shard.
        bad: why some of them cannot be asked about. Another row stands in for each, so that all others have the places,
            and with them the random numbers, that they would have had.
        request: the question; None where every row is bad.
    """

    rows: tuple[int, ...]
    bad: Mapping[int, CutawayError]
    request: InspectRequest | None


def inputs_of(job: Job) -> tuple[str, ...]:
    """The columns of the data set that the model reads."""
    inputs = job.inputs
    return (inputs.raw.column,) if isinstance(inputs, RawInput) else tuple(each.column for each in inputs.values())


def named_columns(job: Job) -> dict[str, str]:
    """The columns of the data set that the job reads, by the field that names them."""
    inputs = job.inputs
    several = {"raw": inputs.raw} if isinstance(inputs, RawInput) else inputs
    named = {f"inputs.{name}": each for name, each in several.items()} | {"id": job.id, "label": job.label}
    return {f"{field}.column": each.column for field, each in named.items() if each is not None}


def columns_of(job: Job) -> tuple[str, ...]:
    """The same columns, each once."""
    return tuple(dict.fromkeys(named_columns(job).values()))


class Feeding:
    """How the examples of one job reach its model.

    Args:
        job: which columns are which inputs.
        asked: what is asked of every batch.
        detail: what the model takes, and the names of its classes.
    """

    def __init__(self, job: Job, asked: Asked, detail: ModelDetail) -> None:
        self._job = job
        self._model = job.model.name or detail.model.model
        self._classes = {name: index for index, name in enumerate(detail.labels)}
        self._declared = {spec.name: spec.data_type for spec in detail.inputs}
        self._parameters = detail.provenance.data_type
        self._asked = asked._replace(request=self._typed(asked.request))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the data set that the job reads."""
        return columns_of(self._job)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Those of them that the model reads."""
        return inputs_of(self._job)

    def batch(
        self,
        columns: Mapping[str, Column],
        rows: Sequence[int],
        first: int,
        known: Mapping[int, CutawayError] = MappingProxyType({}),
    ) -> Batch:
        """The question about ``rows`` of ``columns``, whose row 0 is row ``first`` of the data set; those that are
        ``known`` to be bad are not looked at.

        Raises:
            InvalidArgument: ``BATCH_MISMATCH``: each row is well, but they do not stack.
        """
        bad: dict[int, CutawayError] = {row: known[row] for row in rows if row in known}
        examples: dict[int, dict[str, Array] | Raw] = {}
        classes: dict[int, int] = {}
        for row in rows:
            if row in bad:
                continue
            try:
                classes[row] = self._class(columns, row) if self._asked.by_label else 0
                examples[row] = self._example(columns, row)
            except CutawayError as failure:
                bad[row] = failure
        if not examples:
            return Batch(tuple(rows), bad, None)
        asked_about = [row if row in examples else next(iter(examples)) for row in rows]
        request = replace(self._asked.request, model=self._model, seed=self._job.request.seed + first + rows[0])
        if self._asked.by_label:
            request = replace(request, target=ClassIndex(tuple(classes[row] for row in asked_about)))
        return Batch(tuple(rows), bad, _holding(request, [examples[row] for row in asked_about]))

    def _example(self, columns: Mapping[str, Column], row: int) -> dict[str, Array] | Raw:
        inputs = self._job.inputs
        if isinstance(inputs, RawInput):
            with at("inputs.raw"):
                return Raw(_bytes(_value(columns, inputs.raw.column, row)), inputs.raw.media_type)
        found = {}
        for name, spec in inputs.items():
            with at(f"inputs.{name}"):
                found[name] = self._tensor(name, spec, _value(columns, spec.column, row))
        return found

    def _tensor(self, name: str, spec: TensorColumn, value: Any) -> Array:
        """``value`` as the model takes it, without an axis for the batch."""
        try:
            numbers: Array = np.asarray(value)
        except ValueError:  # lists of unequal lengths
            raise error(Reason.INPUT_SHAPE, "the value is no rectangular array") from None
        wanted = self._type(name, numbers)
        if numbers.dtype.kind not in ("fiub" if wanted in FLOATING else "iub"):
            raise error(Reason.INPUT_DTYPE, f"{numbers.dtype} cannot be read as {wanted}, which {name} takes")
        if spec.scale != 1:
            numbers = numbers * spec.scale
        return _shaped(numbers.astype(DTYPES[wanted]), spec.shape)

    def _type(self, name: str, numbers: Array) -> str:
        """The data type in which the input ``name`` gets ``numbers``: the job's word, else the model's; else fractions
        are as its parameters are, and all else is as it is in the data."""
        inputs = self._job.inputs
        said = "" if isinstance(inputs, RawInput) or name not in inputs else inputs[name].dtype
        fraction = numbers.dtype.kind == "f" and self._parameters in FLOATING
        return said or self._declared.get(name) or (self._parameters if fraction else str(numbers.dtype))

    def _typed(self, request: InspectRequest) -> InspectRequest:
        """``request`` with baselines that were written down as lists in the data types of their inputs."""
        known = {*self._declared, *(() if isinstance(self._job.inputs, RawInput) else self._job.inputs)}

        def typed(name: str, value: Any) -> Any:
            if isinstance(value, (int, float)) or name not in known:
                return value
            return np.asarray(value).astype(DTYPES[self._type(name, np.asarray(value))])

        def with_baselines(each: Any) -> Any:
            given = getattr(each, "baselines", None)
            return (
                replace(each, baselines={name: typed(name, value) for name, value in given.items()}) if given else each
            )

        return replace(request, attributions=tuple(map(with_baselines, request.attributions)))

    def _class(self, columns: Mapping[str, Column], row: int) -> int:
        """The index of the class that the row's label says."""
        label = self.label(columns, row)
        if isinstance(label, str) and label not in self._classes:
            known = ", ".join(map(repr, list(self._classes)[:_CLASSES_NAMED])) or "none: give class indices"
            known += ", ..." if len(self._classes) > _CLASSES_NAMED else ""
            what = f"the label {label!r} is none of the model's classes; it has {known}"
            raise error(Reason.TARGET_RANGE, what, "label.column")
        if label is None:
            raise error(Reason.TARGET_RANGE, "there is no label, and the target is the label", "label.column")
        return self._classes[label] if isinstance(label, str) else label

    def label(self, columns: Mapping[str, Column], row: int) -> int | str | None:
        """What the row is said to be; None where nothing is said, or no job asks."""
        return None if self._job.label is None else _label(columns[self._job.label.column][row])

    def name(self, columns: Mapping[str, Column], row: int, number: int) -> str:
        """What the row is called; by default its ``number`` in the data set."""
        value = None if self._job.id is None else columns[self._job.id.column][row]
        return str(number) if value is None or isinstance(value, Unreadable) else str(value)


def about_rows(request: InspectRequest, rows: Sequence[int]) -> InspectRequest:
    """``request`` about some of its examples, by their place in it."""
    chosen, target = list(rows), request.target
    if isinstance(target, ClassIndex) and len(target.indices) > 1:
        target = replace(target, indices=tuple(target.indices[row] for row in chosen))
    return replace(
        request,
        tensors={name: array[chosen] for name, array in request.tensors.items()},
        raw=tuple(request.raw[row] for row in chosen) if request.raw else (),
        target=target,
    )


def _value(columns: Mapping[str, Column], name: str, row: int) -> Any:
    value = columns[name][row]
    if isinstance(value, Unreadable):
        raise error(Reason.DATA_UNREADABLE, value.reason)
    if value is None:
        raise error(Reason.DATA_UNREADABLE, "there is no value")
    return value


def _label(value: Any) -> int | str | None:
    """A class index; or a text, which is also what has no whole number: 3.5 is not class 3."""
    if value is None or isinstance(value, (str, Unreadable)):
        return value if isinstance(value, str) else None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, _NUMBERS):
        if value != value:  # NaN
            return None
        if abs(value) < _LARGEST_INDEX and value == int(value):
            return int(value)
    return str(value)[:_LABEL_CHARACTERS]


_NUMBERS = (int, float, np.number, np.bool_)
_LARGEST_INDEX = 2**63
_LABEL_CHARACTERS = 80
_CLASSES_NAMED = 20


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise error(Reason.RAW_UNSUPPORTED, f"a {type(value).__name__} is no text and no bytes of a file")


def _shaped(numbers: Array, shape: tuple[int, ...] | None) -> Array:
    if shape is None:
        return numbers
    try:
        return numbers.reshape(shape)
    except ValueError:
        raise error(
            Reason.INPUT_SHAPE, f"{numbers.size} numbers, shape {list(numbers.shape)}, do not make {list(shape)}"
        ) from None


def _holding(request: InspectRequest, examples: Sequence[dict[str, Array] | Raw]) -> InspectRequest:
    """``request`` about ``examples``, stacked."""
    raw = tuple(each for each in examples if isinstance(each, Raw))
    if raw:
        return replace(request, raw=raw)
    arrays = [each for each in examples if isinstance(each, dict)]
    try:
        return replace(request, tensors={name: np.stack([each[name] for each in arrays]) for name in arrays[0]})
    except ValueError:
        raise error(Reason.BATCH_MISMATCH, "the examples of a batch differ in shape") from None
