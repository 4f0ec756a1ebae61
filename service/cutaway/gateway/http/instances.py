"""Instances of a request by REST as inputs of a model: KServe's `instances`, forms, and numpy's files."""

from __future__ import annotations

import base64
import binascii
import io
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cutaway.client.inputs import request_inputs
from cutaway.errors import Reason, at, error
from cutaway.requests import Raw
from cutaway.schema.tensors import DTYPES, Array

NPY, NPZ = "application/x-npy", "application/x-npz"

_FIELD = "instances"
_RIGHT = (
    "instances are lists of numbers, texts, {b64: ..., media_type: ...}, or mappings of input names to lists of numbers"
)


def inputs_of(instances: Any) -> dict[str, Any]:
    """Returns the inputs for a list of instances, one of which is one row, as arguments of an `InspectRequest`.

    Raises:
        InvalidArgument: with the field at fault.
    """
    if not isinstance(instances, list) or not instances:
        raise error(Reason.INVALID_VALUE, f"send a list of at least one instance; {_RIGHT}", _FIELD)
    if all(isinstance(each, Mapping) and "b64" in each for each in instances):
        return {"raw": tuple(_raw(number, each) for number, each in enumerate(instances))}
    if all(isinstance(each, Mapping) for each in instances):
        return _by_name(instances)
    with at(_FIELD):
        return request_inputs(instances)


def _raw(number: int, instance: Mapping[str, Any]) -> Raw:
    with at(f"{_FIELD}[{number}].b64"):
        media_type, text = instance.get("media_type", ""), instance["b64"]
        if not (isinstance(text, str) and isinstance(media_type, str)):
            raise error(Reason.INVALID_VALUE, "b64 and media_type are texts")
        try:
            return Raw(base64.b64decode(text, validate=True), media_type)
        except (binascii.Error, ValueError) as failure:
            raise error(Reason.INVALID_VALUE, f"is no base64: {failure}") from None


def _by_name(instances: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = list(instances[0])
    for number, instance in enumerate(instances):
        if set(instance) != set(names):
            what = f"has the inputs {', '.join(instance)}, and the first instance has {', '.join(names)}"
            raise error(Reason.INVALID_VALUE, what[:300], f"{_FIELD}[{number}]")
    with at(_FIELD):
        return request_inputs({name: [instance[name] for instance in instances] for name in names})


def of_types(tensors: Mapping[str, Array], data_types: Mapping[str, str]) -> dict[str, Array]:
    """Returns ``tensors`` with the types that the model takes: JSON has no types, and JavaScript writes 1.0 as 1. An
    array that another type cannot hold stays as it is, and the model refuses it."""
    only = next(iter(data_types.values())) if len(data_types) == 1 else ""
    return {name: _of_type(array, data_types.get(name, "" if name else only)) for name, array in tensors.items()}


def _of_type(array: Array, data_type: str) -> Array:
    if data_type not in DTYPES or array.dtype.kind not in "if" or DTYPES[data_type].kind == "b":
        return array
    with np.errstate(all="ignore"):
        cast = array.astype(DTYPES[data_type])
    whole = DTYPES[data_type].kind in "iu"
    return cast if not whole or np.array_equal(cast.astype(array.dtype), array) else array


def arrays_in(data: bytes, media_type: str, max_bytes: int) -> dict[str, Array]:
    """Returns the arrays in a file of numpy, by name; that of an NPY file has the name "".

    Raises:
        InvalidArgument: ``MALFORMED_REQUEST``; ``INPUT_DTYPE`` for Python objects.
        ResourceExhausted: ``REQUEST_TOO_LARGE`` if they are larger than ``max_bytes`` together.
    """
    try:
        if media_type == NPY:
            return {"": _array(io.BytesIO(data))}
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(member.file_size for member in archive.infolist()) > max_bytes:
                raise error(Reason.REQUEST_TOO_LARGE, f"the arrays have more than {max_bytes} bytes")
            return {name.removesuffix(".npy"): _array(io.BytesIO(archive.read(name))) for name in archive.namelist()}
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as failure:
        # zipfile raises the last two for members that are compressed in other ways, or encrypted.
        raise error(Reason.MALFORMED_REQUEST, f"the request is no {media_type}: {failure}"[:300]) from None


def _array(file: io.BytesIO) -> Array:
    array: Array = np.lib.format.read_array(file, allow_pickle=False)
    return array
