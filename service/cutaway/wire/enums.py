"""Enums of the contract and enums of Python, matched by name; data types and compressions, by their names."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from cutaway.errors import Reason, error
from cutaway.requests import CheckMode, Combination, LossReduction, Point, Quadrature
from cutaway.results import Cause, Verdict, WarningCode
from cutaway.schema.compression import COMPRESSIONS as COMPRESSION_NAMES
from cutaway.schema.tensors import DTYPES, FLOATING
from cutaway.v1 import attribution_pb2, capture_pb2, check_pb2, inspection_pb2, target_pb2, tensor_pb2
from cutaway.wire.scalars import Scalar


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
_CAUSES = _enum(check_pb2.Cause, "CAUSE", Cause)
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

ENUMS: dict[str, Scalar] = {
    "HookPoint": POINTS,
    "CheckMode": _enum(check_pb2.CheckMode, "CHECK_MODE", CheckMode, CheckMode.SAME_PASS),
    "Verdict": VERDICTS,
    "Cause": Scalar(  # None is 0
        lambda cause: 0 if cause is None else _CAUSES.encode(cause),
        lambda number: _CAUSES.decode(number) if number else None,
    ),
    "Quadrature": _enum(attribution_pb2.Quadrature, "QUADRATURE", Quadrature, Quadrature.GAUSS_LEGENDRE),
    "Combination": _enum(_COMBINATIONS, "COMBINATION", Combination, Combination.SMOOTHGRAD),
    "LossReduction": _enum(target_pb2.LossReduction, "LOSS_REDUCTION", LossReduction, LossReduction.SUM),
    "WarningCode": _enum(inspection_pb2.WarningCode, "WARNING_CODE", WarningCode),
    "DataType": DATA_TYPE,
}
"""The conversions, by the name of the contract's enum."""
