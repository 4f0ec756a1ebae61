"""Files for ``cutaway inspect``: inputs that are read, and results that are saved."""

from __future__ import annotations

import io
import mimetypes
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import typer

from cutaway.errors import Reason, error
from cutaway.requests import Raw
from cutaway.results import AttributionResult, ClassPrediction, InspectResult, ModelDetail
from cutaway.results.captured import captured_tensors
from cutaway.schema.tensors import Array
from cutaway.tables import module_text

_NUMPY = (".npy", ".npz")


def read_raw(files: Sequence[Path], texts: Sequence[str]) -> list[Raw]:
    """Returns files with the media type of their extension, then texts."""
    inputs = [Raw(_read_bytes(file), mimetypes.guess_type(file.name, strict=False)[0] or "") for file in files]
    return inputs + [Raw(text.encode(), "text/plain") for text in texts]


def decode_image(raw: Raw) -> dict[str, Array]:
    """Returns an image [1, channels, height, width] from 0 to 1, by name; nothing if ``raw`` is no image."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(raw.data)) as opened:
            image = opened.convert("L" if opened.mode in ("1", "L", "I", "F") else "RGB")
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError):
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
        loaded = np.load(file, allow_pickle=False)
        return loaded if isinstance(loaded, np.ndarray) else dict(loaded)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as failure:
        raise error(Reason.INVALID_VALUE, f"{file} is not a numpy file: {failure}") from None


# Results


def save(result: InspectResult, path: Path) -> int:
    """Writes every tensor of ``result`` to the ``.npz`` file ``path``; returns the number of tensors."""
    tensors = dict(_tensors(result))
    try:
        with path.open("wb") as file:  # given a path, numpy would add .npz to it
            np.savez(file, **{key: _without_bfloat16(array) for key, array in tensors.items()})  # type: ignore[arg-type]
    except OSError as failure:
        raise error(Reason.INVALID_VALUE, f"{path} cannot be written: {failure.strerror}", "save") from None
    return len(tensors)


def _without_bfloat16(array: Array) -> Array:
    """Returns bfloat16 as float32, which holds every value of it and which numpy can load."""
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def _tensors(result: InspectResult) -> Iterator[tuple[str, Array]]:
    yield from _named("predictions/", result.predictions)
    yield from _classes("classes", result.classes)
    yield from _named("unedited/", result.unedited)
    yield from _classes("unedited_classes", result.unedited_classes)
    yield from _named("", {"targets": result.targets, "target_values": result.target_values})
    for tensor in captured_tensors(result):
        call = f"[{tensor.call}]" if tensor.calls > 1 else ""
        key = f"captures/{module_text(tensor.module)}{call}/{tensor.point.value}{tensor.path}"
        yield key, tensor.array
        yield from _named(f"{key}/", {"positions": tensor.positions})
    yield from _named("input_gradients/", result.input_gradients)
    yield from _named("parameter_gradients/", result.parameter_gradients)
    for index, attribution in enumerate(result.attributions):
        yield from _attribution(f"attributions/{index}-{attribution.method}", attribution)


def _classes(key: str, classes: Sequence[ClassPrediction]) -> Iterator[tuple[str, Array]]:
    if classes:
        yield f"{key}/index", np.array([prediction.index for prediction in classes])
        yield f"{key}/probability", np.array([prediction.probability for prediction in classes])


def _attribution(key: str, attribution: AttributionResult) -> Iterator[tuple[str, Array]]:
    yield from _named(f"{key}/values/", attribution.values)
    yield from _named(
        f"{key}/",
        {
            "convergence_delta": attribution.convergence_delta,
            "value_at_input": attribution.value_at_input,
            "value_at_baseline": attribution.value_at_baseline,
            "targets": attribution.targets,
        },
    )
    if attribution.tokens is not None:
        yield from _named(f"{key}/tokens/", {"ids": attribution.tokens.ids, "values": attribution.tokens.values})
    for index, metric in enumerate(attribution.metrics):
        yield f"{key}/metrics/{index}-{metric.name}", metric.values


def _named(prefix: str, arrays: Mapping[str, Array | None]) -> Iterator[tuple[str, Array]]:
    for name, array in arrays.items():
        if array is not None:
            yield prefix + name, array
