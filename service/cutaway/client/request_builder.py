"""`InspectRequest` from the short forms that the verbs of the client accept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import numpy as np

from cutaway.errors import Reason, error
from cutaway.requests import (
    Argument,
    Attribution,
    Capture,
    CheckMode,
    CheckRequest,
    ClassIndex,
    Edit,
    ExplainIf,
    InspectRequest,
    PredictedClass,
    Raw,
    Target,
)
from cutaway.schema.tensors import ArrayLike, as_array

T = TypeVar("T")

Inputs: TypeAlias = Mapping[str, ArrayLike] | Raw | Sequence[Raw]
TargetLike: TypeAlias = int | Sequence[int] | Target | None
CheckLike: TypeAlias = str | CheckMode | CheckRequest


def build_request(
    model: str,
    inputs: Inputs,
    *,
    target: TargetLike = None,
    captures: Sequence[Capture | str] | str = (),
    input_gradients: bool | Sequence[str] | str = False,
    attributions: Sequence[Attribution] = (),
    arguments: Mapping[str, Argument] = MappingProxyType({}),
    attribution_errors_in_place: bool = False,
    explain_if: ExplainIf | None = None,
    edits: Sequence[Edit] = (),
    compare: bool = False,
    check: CheckLike = CheckMode.SAME_PASS,
    predictions: bool = True,
    max_reply_bytes: int = 0,
    seed: int | None = None,
    reply_data_type: str = "",
    compression: str = "",
    dry_run: bool = False,
) -> InspectRequest:
    """Returns the request that `Client.inspect` sends for the same arguments."""
    return InspectRequest(
        model=model,
        **_inputs(inputs),
        target=_target(target),
        captures=tuple(Capture(each) if isinstance(each, str) else each for each in _several(captures)),
        input_gradients=_input_gradients(input_gradients),
        edits=tuple(edits),
        compare=compare,
        attributions=tuple(attributions),
        arguments=dict(arguments),
        attribution_errors_in_place=attribution_errors_in_place,
        explain_if=explain_if,
        check=_check(check),
        omit_predictions=not predictions,
        max_reply_bytes=max_reply_bytes,
        seed=seed,
        reply_data_type=reply_data_type,
        compression=compression,
        dry_run=dry_run,
    )


def _inputs(inputs: Inputs) -> dict[str, Any]:
    if isinstance(inputs, Mapping):
        return {"tensors": {name: as_array(array) for name, array in inputs.items()}}
    raw = (inputs,) if isinstance(inputs, Raw) else tuple(inputs)
    if not all(isinstance(example, Raw) for example in raw):
        raise error(Reason.INVALID_VALUE, "inputs are arrays by name, one Raw, or several", "inputs")
    return {"raw": raw}


def _several(values: Sequence[T] | str) -> Sequence[T | str]:
    return (values,) if isinstance(values, str) else values


def _check(check: CheckLike) -> CheckRequest:
    if isinstance(check, CheckRequest):
        return check
    if check not in list(CheckMode):
        raise error(Reason.INVALID_VALUE, f"{check!r} is none of {', '.join(CheckMode)}", "check")
    return CheckRequest(CheckMode(check))


def _target(target: TargetLike) -> Target:
    if target is None:
        return PredictedClass()
    if isinstance(target, Target):
        return target
    indices = (target,) if isinstance(target, (int, np.integer)) else target
    if not all(isinstance(index, (int, np.integer)) for index in indices):
        raise error(Reason.INVALID_VALUE, f"{target!r} is no class index, nor several, nor a Target", "target")
    return ClassIndex(tuple(int(index) for index in indices))


def _input_gradients(names: bool | Sequence[str] | str) -> tuple[str, ...] | None:
    if isinstance(names, bool):
        return () if names else None
    return tuple(_several(names))
