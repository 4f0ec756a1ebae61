"""Enums of the contract and enums of Python, matched by name."""

from __future__ import annotations

from enum import Enum
from typing import Any, Generic, TypeVar

from cutaway.errors import Reason, error
from cutaway.packing import COMPRESSIONS as PACKINGS
from cutaway.requests import CheckMode, Combination, LossReduction, Point, Quadrature
from cutaway.results import Cause, Verdict, WarningCode
from cutaway.tensors import DTYPES, FLOATING
from cutaway.v1 import attribution_pb2, capture_pb2, check_pb2, inspection_pb2, target_pb2, tensor_pb2

E = TypeVar("E", bound=Enum)


class Names(Generic[E]):
    """Two enums with the same members; the contract's carry a prefix (``HOOK_POINT_INPUT`` and ``Point.INPUT``).

    A member that only the contract has belongs to a newer client: it is refused, never guessed at.
    """

    def __init__(self, wire: Any, prefix: str, plain: type[E], unset: E | None = None) -> None:
        self._prefix = prefix
        self._unset = unset
        self._to_wire: dict[E, int] = {member: wire.Value(f"{prefix}_{member.name}") for member in plain}
        self._to_plain = {number: member for member, number in self._to_wire.items()}

    def to_wire(self, member: E, field: str = "") -> Any:
        """The number on the wire, for ``field``.

        Raises:
            InvalidArgument: ``INVALID_VALUE``, for what is no member, whatever the caller's types said.
        """
        if member not in self._to_wire:
            allowed = ", ".join(str(known.value) for known in self._to_wire)
            raise error(Reason.INVALID_VALUE, f"{member!r:.80} is none of {allowed}", field)
        return self._to_wire[member]

    def to_plain(self, number: int, field: str = "") -> E:
        """The member in ``field``; for 0 the default, where the field has one.

        Raises:
            InvalidArgument: ``INVALID_VALUE``.
        """
        if number == 0 and self._unset is not None:
            return self._unset
        if number not in self._to_plain:
            allowed = ", ".join(f"{self._prefix}_{member.name}" for member in self._to_wire)
            raise error(Reason.INVALID_VALUE, f"{number} is none of {allowed}", field)
        return self._to_plain[number]


POINTS = Names(capture_pb2.HookPoint, "HOOK_POINT", Point)
CHECK_MODES = Names(check_pb2.CheckMode, "CHECK_MODE", CheckMode, CheckMode.SAME_PASS)
VERDICTS = Names(check_pb2.Verdict, "VERDICT", Verdict)
CAUSES = Names(check_pb2.Cause, "CAUSE", Cause)
QUADRATURES = Names(attribution_pb2.Quadrature, "QUADRATURE", Quadrature, Quadrature.GAUSS_LEGENDRE)
COMBINATIONS = Names(attribution_pb2.NoiseTunnel.Combination, "COMBINATION", Combination, Combination.SMOOTHGRAD)
LOSS_REDUCTIONS = Names(target_pb2.LossReduction, "LOSS_REDUCTION", LossReduction, LossReduction.SUM)
WARNINGS = Names(inspection_pb2.WarningCode, "WARNING_CODE", WarningCode)

DATA_TYPES: dict[str, Any] = {name: tensor_pb2.DataType.Value(f"DATA_TYPE_{name.upper()}") for name in DTYPES}
"""Data type name to its number on the wire."""

DATA_TYPE_NAMES = {number: name for name, number in DATA_TYPES.items()}
"""The same, backwards."""

_COMPRESSIONS: dict[str, Any] = {name: tensor_pb2.Compression.Value(f"COMPRESSION_{name.upper()}") for name in PACKINGS}
_COMPRESSION_NAMES = {
    tensor_pb2.COMPRESSION_UNSPECIFIED: "",
    tensor_pb2.COMPRESSION_NONE: "",
    **{number: name for name, number in _COMPRESSIONS.items()},
}


def encode_floating(name: str, field: str) -> Any:
    """The number on the wire of a data type that holds fractions; None for ``""``.

    Raises:
        InvalidArgument: ``INVALID_VALUE``.
    """
    if name and name not in FLOATING:
        raise error(Reason.INVALID_VALUE, f"{name!r:.80} is none of {', '.join(FLOATING)}", field)
    return DATA_TYPES[name] if name else None


def decode_floating(number: int, field: str) -> str:
    """The same, backwards."""
    name = DATA_TYPE_NAMES.get(number, "")
    if number and name not in FLOATING:
        known = ", ".join(f"DATA_TYPE_{floating.upper()}" for floating in FLOATING)
        raise error(Reason.INVALID_VALUE, f"{number} is none of {known}", field)
    return name


def encode_compression(name: str) -> Any:
    """The number on the wire of a compression that is known, or of none."""
    return _COMPRESSIONS.get(name, tensor_pb2.COMPRESSION_UNSPECIFIED)


def decode_compression(number: int, field: str) -> str:
    """The same, backwards.

    Raises:
        InvalidArgument: ``INVALID_VALUE``.
    """
    if number not in _COMPRESSION_NAMES:
        known = ", ".join(name for name, value in tensor_pb2.Compression.items() if value)
        raise error(Reason.INVALID_VALUE, f"{number} is none of {known}", field)
    return _COMPRESSION_NAMES[number]
