"""Conversion of numbers, strings, enums and arrays to fields and back."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor

from cutaway.contract.errors import Reason, at, error
from cutaway.contract.requests import (
    AttackNorm,
    CheckMode,
    Combination,
    ConceptClassifier,
    Imputation,
    InfluenceMethod,
    LossReduction,
    Point,
    Quadrature,
    SearchMode,
    VectorNorm,
)
from cutaway.contract.requests.fields import at_least_one
from cutaway.contract.results import ArchiveState, Better, Cause, FinishReason, Verdict, WarningCode
from cutaway.contract.tensors import COMPRESSIONS as COMPRESSION_NAMES
from cutaway.contract.tensors import (
    DTYPES,
    FLOATING,
    Array,
    ArrayLike,
    as_array,
    bytes_of,
    compress,
    decompress,
    dtype_name,
    from_bytes,
)
from cutaway.contract.values import brief
from cutaway.v1 import (
    attack_pb2,
    attribution_pb2,
    capture_pb2,
    check_pb2,
    edit_pb2,
    inspection_pb2,
    model_pb2,
    target_pb2,
    tensor_pb2,
)


class Scalar(NamedTuple):
    """A converter of a number, string or enum member to the value of a field, and back."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


UNSET: Any = object()
"""The result of `Scalar.decode` for a field that was never set, where the dataclass has its own default; of
`Scalar.encode` for a value that another field holds."""


def unchanged(value: Any) -> Any:
    """Returns ``value``."""
    return value


def whole(first: int, last: int) -> Scalar:
    """Returns the conversion of integers of Python, numpy and torch from ``first`` to ``last``."""

    def encode(value: Any) -> int:
        try:
            number = operator.index(value)
        except TypeError:
            raise error(Reason.INVALID_VALUE, f"{brief(value)} is no whole number") from None
        if first <= number <= last:
            return number
        raise error(Reason.INVALID_VALUE, f"{number}; from {first} to {last}")

    return Scalar(encode, unchanged)


def encode_real(value: Any) -> float:
    """Returns ``value`` as a float.

    Raises:
        InvalidArgument: ``INVALID_VALUE``.
    """
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise error(Reason.INVALID_VALUE, f"{brief(value)} is no number that a double can hold") from None


INT32 = whole(-(2**31), 2**31 - 1)
UINT32 = whole(0, 2**32 - 1)
INT64 = whole(-(2**63), 2**63 - 1)
REAL = Scalar(encode_real, unchanged)

NUMBERS: dict[int, Scalar] = {
    FieldDescriptor.CPPTYPE_INT32: INT32,
    FieldDescriptor.CPPTYPE_INT64: INT64,
    FieldDescriptor.CPPTYPE_UINT32: UINT32,
    FieldDescriptor.CPPTYPE_UINT64: whole(0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: REAL,
    FieldDescriptor.CPPTYPE_BOOL: Scalar(bool, unchanged),
    FieldDescriptor.CPPTYPE_STRING: Scalar(unchanged, unchanged),
}
"""The conversions, by the type of the field."""


COUNT = Scalar(lambda value: at_least_one(UINT32.encode(value)), lambda number: number or UNSET)
"""A number of steps or samples; 0 is the default of the dataclass."""


# Arrays and `cutaway.v1.Tensor`.


def write(array: ArrayLike, message: tensor_pb2.Tensor, compression: str = "") -> None:
    """Fills ``message`` with ``array``, its bytes compressed with ``compression`` where that makes them fewer."""
    array = as_array(array)
    name = dtype_name(array)
    message.data_type = DATA_TYPES[name]
    message.shape.extend(array.shape)
    plain = array.astype(DTYPES[name], copy=False).tobytes()
    if not compression:
        message.data = plain
        return
    data = compress(plain, array.itemsize, compression)
    message.data = data
    if len(data) < len(plain):
        message.compression = COMPRESSION.encode(compression)


def read(message: tensor_pb2.Tensor) -> Array:
    """Returns the array in ``message``, read-only, without a copy of bytes that are not compressed.

    Raises:
        InvalidArgument: ``INPUT_DTYPE``, ``INPUT_SHAPE`` or ``TENSOR_SIZE``, and ``INVALID_VALUE`` for a compression
            that is not known.
    """
    name = data_type_of(message)
    with at("compression"):
        compression = COMPRESSION.decode(message.compression)
    if not compression:
        return from_bytes(name, message.shape, message.data)
    size = bytes_of(name, message.shape)
    with at("data"):
        data = decompress(message.data, DTYPES[name].itemsize, size, compression)
    return from_bytes(name, message.shape, data)


def read_required(message: tensor_pb2.Tensor) -> Array:
    """Returns the array in ``message``.

    Raises:
        InvalidArgument: ``INVALID_VALUE`` where there is none, or what `read` raises.
    """
    if not message.ListFields():
        raise error(Reason.INVALID_VALUE, "send a tensor")
    return read(message)


def data_type_of(message: tensor_pb2.Tensor) -> str:
    """Returns the name of the data type of ``message``.

    Raises:
        InvalidArgument: ``INPUT_DTYPE``.
    """
    name = DATA_TYPE_NAMES.get(message.data_type)
    if name is None:
        known = ", ".join(f"DATA_TYPE_{known.upper()}" for known in DATA_TYPES)
        raise error(Reason.INPUT_DTYPE, f"data type {message.data_type} is none of {known}", "data_type")
    return name


# Enums of the contract and enums of Python, matched by name; data types and compressions, by their names.


def _enum(wire: Any, prefix: str, plain: type[Enum], unset: Enum | None = None) -> Scalar:
    """Returns the conversion of ``plain``, an enum with the members of ``wire``; those of the contract carry a prefix
    (``HOOK_POINT_INPUT`` and ``Point.INPUT``). A member that only the contract has is refused.

    Args:
        wire: the enum of the contract.
        prefix: of its members.
        plain: the enum of Python.
        unset: the default of the field, which 0 stands for; None if 0 is refused.
    """
    numbers: dict[Any, int] = {member: wire.Value(f"{prefix}_{member.name}") for member in plain}
    allowed = ", ".join(f"{prefix}_{member.name}" for member in plain)
    members = {number: member for member, number in numbers.items()}
    if unset is not None:
        members[0] = unset

    def encode(member: Any) -> int:
        if member not in numbers:  # whatever the types say
            raise error(Reason.INVALID_VALUE, f"{member!r:.80} is none of {', '.join(known.value for known in plain)}")
        return numbers[member]

    return Scalar(encode, lambda number: _known(number, members, allowed))


def _known(number: int, members: Mapping[int, Any], allowed: str) -> Any:
    if number not in members:
        raise error(Reason.INVALID_VALUE, f"{number} is none of {allowed}")
    return members[number]


POINTS = _enum(capture_pb2.HookPoint, "HOOK_POINT", Point)
VERDICTS = _enum(check_pb2.Verdict, "VERDICT", Verdict)
_COMBINATIONS = attribution_pb2.NoiseTunnel.Combination

DATA_TYPES: dict[str, Any] = {name: tensor_pb2.DataType.Value(f"DATA_TYPE_{name.upper()}") for name in DTYPES}
"""The number of each data type in a message."""

DATA_TYPE_NAMES: dict[int, str] = {number: name for name, number in DATA_TYPES.items()}

_FLOATING_NAMES = {0: "", **{DATA_TYPES[name]: name for name in FLOATING}}
_FLOATING_ALLOWED = ", ".join(f"DATA_TYPE_{name.upper()}" for name in FLOATING)


def _encode_floating(name: str) -> Any:
    if name and name not in FLOATING:
        raise error(Reason.INVALID_VALUE, f"{name!r:.80} is none of {', '.join(FLOATING)}")
    return DATA_TYPES.get(name, 0)


FLOATING_TYPE = Scalar(_encode_floating, lambda number: _known(number, _FLOATING_NAMES, _FLOATING_ALLOWED))
"""A floating data type in a request; 0 is ``""``."""

DATA_TYPE = Scalar(lambda name: DATA_TYPES.get(name, 0), lambda number: DATA_TYPE_NAMES.get(number, ""))
"""A data type in a reply; what one side does not know is ``""``, or 0."""

_COMPRESSIONS = {
    "": 0,
    **{name: tensor_pb2.Compression.Value(f"COMPRESSION_{name.upper()}") for name in COMPRESSION_NAMES},
}
_COMPRESSION_NAMES = {tensor_pb2.COMPRESSION_NONE: "", **{number: name for name, number in _COMPRESSIONS.items()}}
_COMPRESSIONS_ALLOWED = ", ".join(name for name, number in tensor_pb2.Compression.items() if number)

COMPRESSION = Scalar(
    lambda name: _COMPRESSIONS.get(name, 0), lambda number: _known(number, _COMPRESSION_NAMES, _COMPRESSIONS_ALLOWED)
)
"""A compression; 0 is ``""``, none."""


def _or_none(one: Scalar) -> Scalar:
    """Returns ``one`` with 0 for None."""
    return Scalar(
        lambda member: 0 if member is None else one.encode(member),
        lambda number: one.decode(number) if number else None,
    )


ENUMS: dict[str, Scalar] = {
    "ArchiveState": _enum(model_pb2.ArchiveState, "ARCHIVE_STATE", ArchiveState),
    "HookPoint": POINTS,
    "CheckMode": _enum(check_pb2.CheckMode, "CHECK_MODE", CheckMode, CheckMode.SAME_PASS),
    "Verdict": VERDICTS,
    "ConceptClassifier": _enum(
        inspection_pb2.ConceptClassifier, "CONCEPT_CLASSIFIER", ConceptClassifier, ConceptClassifier.LOGISTIC
    ),
    "InfluenceMethod": _enum(
        inspection_pb2.InfluenceMethod, "INFLUENCE_METHOD", InfluenceMethod, InfluenceMethod.TRACIN
    ),
    "FinishReason": _enum(inspection_pb2.FinishReason, "FINISH_REASON", FinishReason),
    "VectorNorm": _enum(edit_pb2.VectorNorm, "VECTOR_NORM", VectorNorm, VectorNorm.OWN),
    "Cause": _or_none(_enum(check_pb2.Cause, "CAUSE", Cause)),
    "AttackNorm": _enum(attack_pb2.AttackNorm, "ATTACK_NORM", AttackNorm, AttackNorm.LINF),
    "SearchMode": _enum(attack_pb2.SearchMode, "SEARCH_MODE", SearchMode, SearchMode.LINEAR),
    "Better": _or_none(_enum(attribution_pb2.Better, "BETTER", Better)),
    "Imputation": _enum(attribution_pb2.Imputation, "IMPUTATION", Imputation, Imputation.BASELINE),
    "Quadrature": _enum(attribution_pb2.Quadrature, "QUADRATURE", Quadrature, Quadrature.GAUSS_LEGENDRE),
    "Combination": _enum(_COMBINATIONS, "COMBINATION", Combination, Combination.SMOOTHGRAD),
    "LossReduction": _enum(target_pb2.LossReduction, "LOSS_REDUCTION", LossReduction, LossReduction.SUM),
    "WarningCode": _enum(inspection_pb2.WarningCode, "WARNING_CODE", WarningCode),
    "DataType": DATA_TYPE,
}
"""The conversions, by the name of the contract's enum."""
