"""`InspectRequest` from the short forms that the verbs of the client accept."""

from __future__ import annotations

import difflib
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import numpy as np

from cutaway.contract.errors import CutawayError, Reason, at, error
from cutaway.contract.requests import (
    Argument,
    Attribution,
    Capture,
    CheckMode,
    CheckRequest,
    ClassIndex,
    ClassLabel,
    Edit,
    Expectation,
    ExplainIf,
    InspectRequest,
    PredictedClass,
    Raw,
    Target,
)
from cutaway.contract.tensors import Array, ArrayLike, as_array, dtype_name

# Inputs as people have them, as tensors by name or as raw examples. Packages are recognised, never imported.


One: TypeAlias = Any
"""A `Raw`, a text, or a Pillow image: one example for the model to decode."""

Inputs: TypeAlias = Mapping[str, ArrayLike] | ArrayLike | One | Sequence[One]

_RIGHT = (
    "send arrays by name, {'x': array}; one array, if the model has one input; a Raw, a text or a Pillow image, or "
    "several of them"
)


def request_inputs(inputs: Inputs) -> dict[str, Any]:
    """Returns ``inputs`` as arguments of an `InspectRequest`: ``tensors``, or ``raw``.

    Raises:
        InvalidArgument: ``INVALID_VALUE`` or ``INPUT_DTYPE``, with the place of the fault.
    """
    with at("inputs"):
        if isinstance(inputs, Mapping):
            if not all(isinstance(name, str) for name in inputs):
                raise error(Reason.INVALID_VALUE, f"the names of inputs are texts; {_RIGHT}")
            return {"tensors": {name: _array(array, name) for name, array in inputs.items()}}
        if (raw := _as_raw(inputs)) is not None:
            return {"raw": (raw,)}
        if _is_array(inputs):
            return {"tensors": {"": _array(inputs, "")}}
        if not isinstance(inputs, Sequence) or isinstance(inputs, (bytes, bytearray)):
            remedy = "bytes have no format: send ca.Raw(data, 'image/png')" if _is_bytes(inputs) else _RIGHT
            raise error(Reason.INVALID_VALUE, f"got {type(inputs).__name__}; {remedy}")
        examples = [_as_raw(each) for each in inputs]
        if examples and all(example is not None for example in examples):
            return {"raw": tuple(examples)}
        if any(example is not None for example in examples) or not inputs:
            what = "no example" if not inputs else "not all of the examples can be decoded by the model"
            raise error(Reason.INVALID_VALUE, f"{what}; {_RIGHT}")
        return {"tensors": {"": _array(inputs, "")}}


def _as_raw(value: Any) -> Raw | None:
    """Returns one example for the model to decode; None if ``value`` is none."""
    if isinstance(value, Raw):
        return value
    if isinstance(value, str):
        return Raw(value.encode(), "text/plain")
    image = getattr(sys.modules.get("PIL.Image"), "Image", None)
    if image is not None and isinstance(value, image):
        data = io.BytesIO()
        value.save(data, "PNG")
        return Raw(data.getvalue(), "image/png")
    return None


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") or hasattr(value, "detach")


def _is_bytes(value: Any) -> bool:
    return isinstance(value, (bytes, bytearray, memoryview))


def _array(value: Any, name: str) -> Array:
    """Returns ``value`` as an array of the contract. Numbers of Python and of tables become float32 or int64, as in
    torch; arrays of numpy and torch stay as they are."""
    with at(name):
        try:
            array = as_array(value)
        except CutawayError:
            raise
        except Exception as failure:  # numpy, torch and others raise many kinds
            raise error(Reason.INVALID_VALUE, f"{type(value).__name__} is no array: {failure}"[:300]) from None
        if array.dtype == "float64" and not (isinstance(value, np.ndarray) or hasattr(value, "detach")):
            array = array.astype("float32")
        if array.dtype.kind in "OUS":
            what = f"an array of {'texts' if array.dtype.kind in 'US' else 'Python objects'} has no tensor"
            raise error(Reason.INPUT_DTYPE, f"{what}; send numbers, or raw examples instead of arrays by name")
        dtype_name(array)
        return array


T = TypeVar("T")

TargetLike: TypeAlias = int | str | Sequence[int] | Sequence[str] | Target | None
AttributionLike: TypeAlias = Attribution | str
CheckLike: TypeAlias = str | CheckMode | CheckRequest


def build_request(
    model: str,
    inputs: Inputs,
    *,
    target: TargetLike = None,
    captures: Sequence[Capture | str] | str = (),
    input_gradients: bool | Sequence[str] | str = False,
    attributions: Sequence[AttributionLike] | AttributionLike = (),
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
        **request_inputs(inputs),
        target=_target(target),
        captures=tuple(Capture(each) if isinstance(each, str) else each for each in _several(captures)),
        input_gradients=_input_gradients(input_gradients),
        edits=tuple(edits),
        compare=compare,
        attributions=_attributions(attributions),
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
    classes: Any = (target,) if isinstance(target, (int, np.integer, str)) else target
    try:
        given = [each.item() if isinstance(each, np.generic) else each for each in classes]
    except TypeError:
        given = [classes]
    if given and all(isinstance(each, str) for each in given):
        return ClassLabel(tuple(given))
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in given):
        remedy = "send a class index or label, one for each example, or a Target such as ca.OutputSum()"
        raise error(Reason.INVALID_VALUE, f"{target!r:.80} is no target; {remedy}", "target")
    return ClassIndex(tuple(given))


def _attributions(attributions: Sequence[AttributionLike] | AttributionLike) -> tuple[Attribution, ...]:
    several = (attributions,) if isinstance(attributions, (str, Attribution)) else attributions
    try:
        return tuple(_attribution(each, f"attributions[{number}]") for number, each in enumerate(several))
    except TypeError:
        raise _no_attribution(several, "attributions") from None


def _attribution(asked: Any, field: str) -> Attribution:
    """Returns an attribution; a name is that of a method without parameters, and a baseline without a name is that of
    every input."""
    if isinstance(asked, str):
        asked = _of_name(asked, field)
    if not isinstance(asked, Attribution):
        raise _no_attribution(asked, field)
    given = getattr(asked, "baselines", None)
    if given is None or isinstance(given, Mapping):
        return asked
    if isinstance(asked, Expectation):
        raise error(Reason.INVALID_VALUE, "baselines are samples by input name: {'x': samples}", f"{field}.baselines")
    return replace(asked, baselines={"": given})  # type: ignore[call-arg]


def _of_name(name: str, field: str) -> Attribution:
    kinds = {kind.__name__: kind for kind in _methods(Attribution)}
    kind = kinds.get(name)
    if kind is None:
        near = difflib.get_close_matches(name, kinds, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"methods: {', '.join(sorted(kinds))}"
        raise error(Reason.INVALID_VALUE, f"there is no method {name!r:.80}; {hint}", field)
    needed = [each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING]
    if needed:
        example = f"ca.{name}({', '.join(f'{each}=...' for each in needed)})"
        raise error(Reason.INVALID_VALUE, f"{name} needs {', '.join(needed)}: send {example}", field)
    return kind()


def _methods(base: type[Attribution]) -> Iterator[type[Attribution]]:
    """Yields the methods that can be asked for: the classes without subclasses."""
    for kind in base.__subclasses__():
        if not kind.__subclasses__():
            yield kind
        yield from _methods(kind)


def _no_attribution(got: object, field: str) -> CutawayError:
    what = f"{got!r:.80} is no attribution; send ca.Saliency() or another method, or its name, or several"
    if isinstance(got, type):
        what = f"{got.__name__} is a class; send {got.__name__}(...)"
    return error(Reason.INVALID_VALUE, what, field)


def _input_gradients(names: bool | Sequence[str] | str) -> tuple[str, ...] | None:
    if isinstance(names, bool):
        return () if names else None
    return tuple(_several(names))
