"""Files for ``cutaway inspect``: inputs that are read, and results that are saved."""

from __future__ import annotations

import mimetypes
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np
import typer
from google.protobuf import json_format

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.pictures import ANY, opened
from cutaway.contract.requests import InspectRequest, Raw
from cutaway.contract.results import InspectResult, ModelDetail
from cutaway.contract.results.arrays import by_name, entries, text_entries, write_npz
from cutaway.contract.tensors import Array, read_npy, read_npz
from cutaway.contract.wire import requests as wire_requests

_NUMPY = (".npy", ".npz")


def read_raw(files: Sequence[Path], texts: Sequence[str]) -> list[Raw]:
    """Returns files with the media type of their extension, then texts."""
    inputs = [Raw(_read_bytes(file), mimetypes.guess_type(file.name, strict=False)[0] or "") for file in files]
    return inputs + [Raw(text.encode(), "text/plain") for text in texts]


def decode_image(raw: Raw) -> dict[str, Array]:
    """Returns ``{"image": [1, channels, height, width]}``, from 0 to 1; ``{}`` for what is no image."""
    try:
        with opened(raw.data, [raw.media_type] if raw.media_type else ANY) as picture:
            image = picture.convert("L" if picture.mode in ("1", "L", "I", "F") else "RGB")
    except CutawayError:
        return {}
    pixels = np.asarray(image, np.float32) / 255
    return {"image": pixels[None, None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)[None]}


def _read_bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as failure:
        raise error(Reason.INVALID_VALUE, f"{file} cannot be read: {failure.strerror}") from None


def are_tensors(files: Sequence[Path], texts: Sequence[str]) -> bool:
    """Returns whether ``files`` are numpy files; they cannot be mixed with other inputs."""
    tensors = [file.suffix.lower() in _NUMPY for file in files]
    if any(tensors) and (texts or not all(tensors)):
        raise typer.BadParameter("tensors (.npy, .npz) cannot be mixed with images or text in one request")
    return any(tensors)


def read_tensors(files: Sequence[Path], names: Sequence[str], describe: Callable[[], ModelDetail]) -> dict[str, Array]:
    """Returns the arrays in ``files`` by input name.

    Args:
        files: ``.npz`` files, which hold the names of their arrays, and ``.npy`` files, which hold none.
        names: the input names of the ``.npy`` files, in order; not needed for one file and a model with one input.
        describe: fetches the model's description from the server.
    """
    loaded = [_load(file) for file in files]
    unnamed = [content for content in loaded if isinstance(content, np.ndarray)]
    if len(unnamed) == 1 and not names:
        names = [_only_input(describe())]
    if len(unnamed) != len(names):
        problem = f"{len(unnamed)} .npy files need as many names, not {len(names)}"
        raise typer.BadParameter(problem, param_hint="--name")
    pairs = list(zip(names, unnamed))
    for content in loaded:
        pairs += content.items() if isinstance(content, dict) else ()
    tensors = dict(pairs)
    if len(tensors) < len(pairs):
        raise typer.BadParameter("an input is given twice: " + ", ".join(name for name, _ in pairs))
    return tensors


def _only_input(model: ModelDetail) -> str:
    required = [spec.name for spec in model.inputs if not spec.optional]
    if len(required) == 1:
        return required[0]
    raise typer.BadParameter(f"name the input: {model.model.model} takes {', '.join(required)}", param_hint="--name")


def _load(file: Path) -> Array | dict[str, Array]:
    try:
        with file.open("rb") as stream:
            if not zipfile.is_zipfile(stream):
                stream.seek(0)
                return read_npy(stream)
            arrays = read_npz(stream, _MAX_BYTES)
    except (OSError, ValueError) as failure:
        raise error(Reason.INVALID_VALUE, f"{file} is not a numpy file: {failure}") from None
    if arrays is None:
        raise error(Reason.REQUEST_TOO_LARGE, f"the arrays in {file} have more than {_MAX_BYTES} bytes: no message has")
    return arrays


_MAX_BYTES = 2**31 - 1


def save(result: InspectResult, path: Path) -> int:
    """Writes every array of ``result`` to the ``.npz`` file ``path``; returns the number of arrays."""
    arrays = by_name([*entries(result), *text_entries(result)])
    try:
        with path.open("wb") as file:
            write_npz(file, arrays)
    except OSError as failure:
        raise error(Reason.INVALID_VALUE, f"{path} cannot be written: {failure.strerror}", "save") from None
    return len(arrays)


MAX_CHARS = 100_000
"""The length from which an address leaves the inputs out: programs that open browsers take no longer argument."""


def permalink(page: str, request: InspectRequest) -> str:
    """Returns the address of ``request`` in the inspector's page at ``page``.

    A browser never sends the part behind ``#`` to a server.
    """
    message = wire_requests.encode(request)
    address = _address(page, json_format.MessageToJson(message, indent=None))
    if len(address) <= MAX_CHARS:
        return address
    for name in ("tensors", "raw"):
        message.ClearField(name)
    return _address(page, json_format.MessageToJson(message, indent=None))


def _address(page: str, question: str) -> str:
    return f"{page.rstrip('/')}/#/ask?question={quote(question, safe='')}"
