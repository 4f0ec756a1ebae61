"""Edits: a subclass and a message for each."""

from __future__ import annotations

from typing import Any

import numpy as np

from cutaway.errors import Reason, at, error
from cutaway.requests import Add, Clamp, Edit, Mix, Replace, Scale, Zero
from cutaway.v1 import edit_pb2 as pb
from cutaway.wire.captures import SLICES, refuse_no_name, refuse_several_names
from cutaway.wire.codec import REQUIRED_TENSOR, TENSOR, Codec, FieldRule, Spread, several
from cutaway.wire.enums import POINTS
from cutaway.wire.oneof import OneOf
from cutaway.wire.scalars import REAL, bounded, distinct, not_nan


def _write_add(edit: Add, message: pb.Add) -> None:
    if isinstance(edit.addend, (int, float, np.integer, np.floating)):
        with at("scalar"):
            message.scalar = REAL.encode(edit.addend)
    else:
        with at("tensor"):
            TENSOR.write(edit.addend, message.tensor)


def _read_add(message: pb.Add) -> dict[str, Any]:
    kind = message.WhichOneof("addend")
    if kind is None:
        raise error(Reason.INVALID_VALUE, "send a scalar or a tensor to add", "addend")
    with at(kind):
        if kind == "tensor":
            return {"addend": TENSOR.read(message.tensor)}
        not_nan(message.scalar)
        return {"addend": message.scalar}


def _check_clamp(edit: Clamp) -> None:
    if edit.minimum is None and edit.maximum is None:
        raise error(Reason.INVALID_VALUE, "send a minimum, a maximum or both")
    if edit.minimum is not None and edit.maximum is not None and edit.minimum > edit.maximum:
        raise error(Reason.INVALID_VALUE, f"the minimum {edit.minimum} is above the maximum {edit.maximum}")


VERBS: OneOf[Edit] = OneOf(
    Edit,
    pb.Edit,
    "kind",
    "say what to do: scale, add, replace, zero, clamp or mix",
    {"scale": Scale, "add": Add, "replace": Replace, "zero": Zero, "clamp": Clamp, "mix": Mix},
    rules={
        "point": FieldRule("at", POINTS),
        "rows": FieldRule(check=distinct),
        "slices": FieldRule(codec=SLICES),
        "factor": FieldRule(check=not_nan),
        "tensor": REQUIRED_TENSOR,
        "minimum": FieldRule(check=not_nan),
        "maximum": FieldRule(check=not_nan),
        "lambda": FieldRule("weight", check=bounded(lambda weight: 0 <= weight <= 1, "from 0 to 1")),
    },
    special={Add: Spread(_write_add, _read_add)},
    checks={Clamp: _check_clamp},
)


def _write(edit: Edit, message: pb.Edit) -> None:
    refuse_several_names(edit, "module", "op")
    VERBS.codec.write(edit, message)


def _read(message: pb.Edit) -> Edit:
    refuse_no_name(message, "name a module or an operator")
    edit: Edit = VERBS.codec.read(message)
    return edit


EDITS = several(Codec(_write, _read))
