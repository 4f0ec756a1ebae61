"""Edits and their typed messages: a row each."""

from __future__ import annotations

from typing import Any

import numpy as np

from cutaway.errors import Reason, error
from cutaway.requests import Add, Clamp, Edit, Mix, Replace, Scale, Zero
from cutaway.v1 import edit_pb2 as pb
from cutaway.wire import arrays
from cutaway.wire.captures import decode_slices, decode_where, encode_slices, encode_where
from cutaway.wire.enums import POINTS
from cutaway.wire.numbers import UINT32, not_nan, real, whole_if_given, wholes
from cutaway.wire.oneof import Codec, OneOf
from cutaway.wire.repeated import distinct


def encode(edit: Edit) -> pb.Edit:
    """``edit`` as a message."""
    message = pb.Edit(
        point=POINTS.to_wire(edit.point),
        call=whole_if_given("call", edit.call, UINT32),
        rows=wholes("rows", edit.rows, UINT32),
        slices=encode_slices(edit.slices),
        path=edit.path,
    )
    encode_where(message, module=edit.module, op=edit.op)
    VERBS.encode(edit, message)
    return message


def decode(message: pb.Edit) -> Edit:
    """The same, backwards.

    Raises:
        InvalidArgument: with the field at fault.
    """
    return VERBS.decode(
        message,
        **decode_where(message, "name a module or an operator"),
        at=POINTS.to_plain(message.point, "point"),
        call=message.call if message.HasField("call") else None,
        rows=distinct("rows", message.rows),
        slices=decode_slices(message.slices),
        path=message.path,
    )


def _encode_add(edit: Add) -> pb.Add:
    if isinstance(edit.addend, (int, float, np.integer, np.floating)):
        return pb.Add(scalar=real("scalar", edit.addend))
    return pb.Add(tensor=arrays.encode_given("tensor", edit.addend))


def _decode_add(message: pb.Add) -> dict[str, Any]:
    if message.WhichOneof("addend") is None:
        raise error(Reason.INVALID_VALUE, "send a scalar or a tensor to add", "addend")
    if message.HasField("tensor"):
        return {"addend": arrays.decode_required("tensor", message)}
    return {"addend": not_nan("scalar", message.scalar)}


def _encode_clamp(edit: Clamp) -> pb.Clamp:
    return pb.Clamp(
        minimum=None if edit.minimum is None else real("minimum", edit.minimum),
        maximum=None if edit.maximum is None else real("maximum", edit.maximum),
    )


def _decode_clamp(message: pb.Clamp) -> dict[str, Any]:
    bounds = {field.name: not_nan(field.name, bound) for field, bound in message.ListFields()}
    if not bounds:
        raise error(Reason.INVALID_VALUE, "send a minimum, a maximum or both")
    if len(bounds) == 2 and message.minimum > message.maximum:
        raise error(Reason.INVALID_VALUE, f"the minimum {message.minimum} is above the maximum {message.maximum}")
    return bounds


# The contract's name for the weight is a keyword of Python.
_LAMBDA = "lambda"


def _encode_mix(edit: Mix) -> pb.Mix:
    message = pb.Mix(permutation=wholes("permutation", edit.permutation, UINT32))
    setattr(message, _LAMBDA, real(_LAMBDA, edit.weight))
    return message


def _decode_mix(message: pb.Mix) -> dict[str, Any]:
    weight = getattr(message, _LAMBDA)
    if not 0 <= weight <= 1:
        raise error(Reason.INVALID_VALUE, f"{weight}; from 0 to 1", _LAMBDA)
    return {"weight": weight, "permutation": tuple(message.permutation)}


VERBS: OneOf[Edit] = OneOf(
    "kind",
    "say what to do: scale, add, replace, zero, clamp or mix",
    {
        Scale: Codec(
            "scale",
            lambda edit: pb.Scale(factor=real("factor", edit.factor)),
            lambda message: {"factor": not_nan("factor", message.factor)},
        ),
        Add: Codec("add", _encode_add, _decode_add),
        Replace: Codec(
            "replace",
            lambda edit: pb.Replace(tensor=arrays.encode_given("tensor", edit.tensor)),
            lambda message: {"tensor": arrays.decode_required("tensor", message)},
        ),
        Zero: Codec("zero", lambda _: pb.Zero(), lambda _: {}),
        Clamp: Codec("clamp", _encode_clamp, _decode_clamp),
        Mix: Codec("mix", _encode_mix, _decode_mix),
    },
)
