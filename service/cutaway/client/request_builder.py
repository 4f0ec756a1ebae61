"""`InspectRequest` from the arguments that the verbs of the client accept."""

from __future__ import annotations

import io
import mimetypes
import os
import re
import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import PurePath
from typing import Any, TypeAlias

import numpy as np

from cutaway.contract import requests
from cutaway.contract.errors import CutawayError, Reason, at, error
from cutaway.contract.request_reader.reader import CLASSES, read_request
from cutaway.contract.requests.fields import CAPTUM_NAMES, field_advice
from cutaway.contract.tensors import Array, ArrayLike, as_array, converted, dtype_name, holds_texts
from cutaway.contract.values import changed

# Inputs become tensors by name or raw examples. Packages are recognised, never imported.

One: TypeAlias = Any
"""A `Raw`, a text, or a Pillow image: one example for the model to decode."""

Inputs: TypeAlias = Mapping[str, ArrayLike] | ArrayLike | One | Sequence[One]

_RIGHT = (
    "send arrays by name, {'x': array}; one array, if the model has one input; a Raw, a text or a Pillow image, or "
    "several of them"
)


_NUMBERS = "send numbers, of a category its number; or raw examples instead of arrays by name"
_OBJECTS = {"O": "Python objects", "S": "texts", "U": "texts"}


def request_inputs(inputs: Inputs, numbers: str = "float32") -> dict[str, Any]:
    """Returns ``inputs`` as arguments of an `InspectRequest`: ``tensors``, or ``raw``.

    Args:
        inputs: as `Client.inspect` takes them.
        numbers: the data type of floating numbers that have none, in lists and tables.

    Raises:
        InvalidArgument: ``INVALID_VALUE`` or ``INPUT_DTYPE``, with the place of the fault.
    """
    with at("inputs"):
        if isinstance(inputs, Mapping):
            if not all(isinstance(name, str) for name in inputs):
                raise error(Reason.INVALID_VALUE, f"the names of inputs are texts; {_RIGHT}")
            return _tensors({name: (value, _named(value, name, numbers)) for name, value in inputs.items()})
        if (raw := _as_raw(inputs)) is not None:
            return {"raw": (raw,)}
        if _is_array(inputs):
            return _tensors({"": (inputs, _array(inputs, "", numbers))})
        if not isinstance(inputs, Sequence) or isinstance(inputs, (bytes, bytearray)):
            remedy = "bytes have no format: send ca.Raw(data, 'image/png')" if _is_bytes(inputs) else _RIGHT
            raise error(Reason.INVALID_VALUE, f"got {type(inputs).__name__}; {remedy}")
        examples = [_as_raw(example) for example in inputs]
        if examples and all(example is not None for example in examples):
            return {"raw": tuple(examples)}
        if any(example is not None for example in examples) or not inputs:
            what = "no example" if not inputs else "not all of the examples can be decoded by the model"
            raise error(Reason.INVALID_VALUE, f"{what}; {_RIGHT}")
        return {"tensors": {"": _array(inputs, "", numbers)}}


def _tensors(arrays: Mapping[str, tuple[Any, Array]]) -> dict[str, Any]:
    """Returns ``tensors``, and ``feature_names`` from columns of tables; ``arrays`` has values as sent and as
    arrays."""
    named = {name: names for name, (value, _) in arrays.items() if (names := _column_names(value))}
    tensors = {name: array for name, (_, array) in arrays.items()}
    return {"tensors": tensors, "feature_names": named} if named else {"tensors": tensors}


def _column_names(table: Any) -> tuple[str, ...]:
    """Returns the names of the columns of a table of pandas, Polars or PyArrow; none if they are numbers."""
    for attribute in ("columns", "column_names"):
        labels = getattr(table, attribute, None)
        names = tuple(labels) if isinstance(labels, Iterable) else ()
        if any(isinstance(name, (str, tuple)) for name in names):
            return tuple(map(str, names))
    return ()


def _named(value: Any, name: str, numbers: str) -> Array:
    """Returns the array that was sent under ``name``.

    Raises:
        InvalidArgument: ``INVALID_VALUE``: ``value`` is an example for the model to decode, which takes no name.
    """
    with at(name):
        _refuse_path(value, " alone, without the name of an input")
    if _as_raw(value) is None and not _is_bytes(value):
        return _array(value, name, numbers)
    what = f"{type(value).__name__} is no array; the model decodes it into its inputs"
    example = "ca.Raw(data, 'image/png')" if _is_bytes(value) else "it"
    raise error(Reason.INVALID_VALUE, f"{what}: send {example} alone, without a name, or an array by name", name)


def _as_raw(value: Any) -> requests.Raw | None:
    """Returns one example for the model to decode; None if ``value`` is none."""
    if isinstance(value, requests.Raw):
        return value
    if isinstance(value, str):
        return requests.Raw(value.encode(), "text/plain")
    image = getattr(sys.modules.get("PIL.Image"), "Image", None)
    if image is not None and isinstance(value, image):
        data = io.BytesIO()
        try:
            value.save(data, "PNG")
        except OSError as failure:
            what = f"{failure}: convert the Pillow image to L or RGB, or send an array by name"
            raise error(Reason.INVALID_VALUE, what) from None
        return requests.Raw(data.getvalue(), "image/png")
    return None


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") or hasattr(value, "detach")


def _is_bytes(value: Any) -> bool:
    return isinstance(value, (bytes, bytearray, memoryview))


def _array(value: Any, name: str, numbers: str) -> Array:
    """Returns ``value`` as an array of the contract. Numbers of Python and of tables become ``numbers`` or int64;
    arrays of numpy and torch stay as they are."""
    with at(name):
        if holds_texts(value):
            raise error(Reason.INPUT_DTYPE, f"an array of {_OBJECTS['U']} has no tensor; {_NUMBERS}")
        try:
            array = as_array(value)
        except CutawayError:
            raise
        except Exception as failure:  # numpy, torch and others raise many kinds
            kind = type(value).__name__
            if not name and isinstance(value, (list, tuple)) and any(map(_is_array, value)):
                what = f"{kind} of arrays that differ in shape; several inputs have names: {{'x': array, 'y': array}}"
                raise error(Reason.INVALID_VALUE, what) from None
            raise error(Reason.INVALID_VALUE, f"{kind} is no array: {failure}"[:300]) from None
        if array.dtype == "float64" and not (isinstance(value, np.ndarray) or hasattr(value, "detach")):
            array = converted(array, numbers)
        if array.dtype.kind in "OUS":
            raise error(Reason.INPUT_DTYPE, f"an array of {_OBJECTS[array.dtype.kind]} has no tensor; {_NUMBERS}")
        dtype_name(array)
        return array


Words: TypeAlias = Mapping[str, Any]
"""The fields of a part of a request by name, as in a file."""

TargetLike: TypeAlias = int | str | Sequence[int] | Sequence[str] | requests.Target | Words | None
AttributionLike: TypeAlias = requests.Attribution | str | Words
CaptureLike: TypeAlias = requests.Capture | str | Words
EditLike: TypeAlias = requests.Edit | str | Words
CheckLike: TypeAlias = str | requests.CheckMode | requests.CheckRequest | Words
ExplainIfLike: TypeAlias = requests.ExplainIf | Words
GenerateLike: TypeAlias = requests.Generate | int | Words
SweepLike: TypeAlias = requests.Sweep | str | Words
DirectLike: TypeAlias = requests.Direct | Words
AttackLike: TypeAlias = requests.Attack | str | Words
ConceptsLike: TypeAlias = requests.TCAV | Words
InfluenceLike: TypeAlias = requests.Influence | Words
CounterfactualLike: TypeAlias = requests.Counterfactual | Words


_OF_INSPECT = {
    "method": "a method is an attribution: attributions='saliency'",
    "layer": "a layer is a part of the attribution: attributions='layer_grad_cam:conv2', or captures='conv2'",
    "outputs": "those of the model are there without it: leave it out",
    "noise": "noise is a part of the attribution: Saliency(noise=NoiseTunnel())",
    "metrics": "metrics are a part of the attribution: Saliency(metrics=(Infidelity(),))",
}


def inspect_advice(name: str, known: Iterable[str]) -> str:
    """Returns what to do instead of an argument ``name`` of `Client.inspect` that is not ``known``."""
    if name in _OF_INSPECT:
        return _OF_INSPECT[name]
    ours = CAPTUM_NAMES.get(name, name)
    for kind in (requests.IntegratedGradients, *CLASSES[requests.Attribution].values()):
        if any(item.name == ours for item in fields(kind)):
            return f"it is an argument of the attribution: {kind.__name__}({ours}=...)"
    return field_advice(name, known)


def build_request(model: str, inputs: Inputs, **fields: Any) -> requests.InspectRequest:
    """Returns the request that `Client.inspect` sends for the same arguments.

    Raises:
        InvalidArgument: with the field at fault.
    """
    if not isinstance(model, str):
        what = f"got {type(model).__name__}; name a model that the server has: inspect('digits', inputs)"
        raise error(Reason.INVALID_VALUE, what, "model")
    with at("inputs"):
        for one in inputs if isinstance(inputs, (list, tuple)) else [inputs]:
            _refuse_path(one)
    return changed(read_request(fields), model=model, **request_inputs(inputs))


def _refuse_path(value: Any, how: str = "") -> None:
    """Refuses the path of a file, which is no example: a `Path`, and a text with a suffix that names a file here.
    ``how``: how to send the file's bytes."""
    if isinstance(value, (str, PurePath)):
        path = str(value)
        media_type = mimetypes.guess_type(path)[0] or "MEDIA/TYPE"
        right = f"send the file's bytes{how}: ca.Raw(Path({path!r}).read_bytes(), {media_type!r})"
        right = f"send its array: np.load({path!r})" if path.endswith(".npy") else right
        if isinstance(value, PurePath):
            raise error(Reason.INVALID_VALUE, f"got a path; {right:.260}")
        if _SUFFIX.search(path) and os.path.isfile(path):
            what = f"is the name of a file, and would be sent as a text; {right:.260}; or the text as ca.Raw(b'...')"
            raise error(Reason.INVALID_VALUE, what)


_SUFFIX = re.compile(r"^[^\n]{1,255}\.\w{2,5}$")


# What the sizes of replies depend on.


def signature(request: requests.InspectRequest) -> Hashable:
    """Returns the key of all requests whose replies probably have the same size per example."""
    return (
        request.model,
        tuple((name, array.dtype.str, array.shape[1:]) for name, array in request.tensors.items()),
        tuple(sorted({raw.media_type for raw in request.raw})),
        repr((request.captures, request.input_gradients, request.target.__class__)),
        tuple((type(attribution), getattr(attribution, "layer", "")) for attribution in request.attributions),
        (
            request.compare,
            request.omit_predictions,
            repr(
                (request.generate, request.sweep, request.direct, request.concepts is None, request.influence is None)
            ),
        ),
        len(request.attacks) + (request.counterfactual is not None),
    )


def examples_in(request: requests.InspectRequest) -> int:
    """Returns the number of rows, which is axis 0 of most tensors of a reply."""
    rows = max((array.shape[0] for array in request.tensors.values() if array.ndim), default=len(request.raw))
    return max(rows, 1)
