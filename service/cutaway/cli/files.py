"""Files on both sides of a question: inputs read, replies saved."""

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
from cutaway.tables import captured, module_text
from cutaway.tensors import Array

_NUMPY = (".npy", ".npz")


def read_raw(files: Sequence[Path], texts: Sequence[str]) -> list[Raw]:
    """Files as they are, with the media type that their extension stands for, then texts."""
    read = [Raw(_bytes(file), mimetypes.guess_type(file.name, strict=False)[0] or "") for file in files]
    return read + [Raw(text.encode(), "text/plain") for text in texts]


def picture(raw: Raw) -> dict[str, Array]:
    """What ``raw`` shows, [1, channels, height, width] from 0 to 1, to be drawn; nothing where it is no image."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(raw.data)) as opened:
            image = opened.convert("L" if opened.mode in ("1", "L", "I", "F") else "RGB")
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError):
        return {}
    pixels = np.asarray(image, np.float32) / 255
    return {"image": pixels[None, None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)[None]}


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as failure:
        raise error(Reason.INVALID_VALUE, f"{file} cannot be read: {failure.strerror}") from None


def are_tensors(files: Sequence[Path], texts: Sequence[str]) -> bool:
    """Whether numpy files were given; they cannot be mixed with anything else."""
    tensors = [file.suffix.lower() in _NUMPY for file in files]
    if any(tensors) and (texts or not all(tensors)):
        raise typer.BadParameter("tensors (.npy, .npz) cannot be mixed with images or text in one question")
    return any(tensors)


def read_tensors(files: Sequence[Path], names: Sequence[str], describe: Callable[[], ModelDetail]) -> dict[str, Array]:
    """The arrays in ``files`` by input name.

    Args:
        files: ``.npz``, which hold names, and ``.npy``, which do not.
        names: for the ``.npy`` files, in their order; none is needed for a single one and a model with one input.
        describe: asks the server what the model takes.
    """
    loaded = [_load(file) for file in files]
    bare = [each for each in loaded if isinstance(each, np.ndarray)]
    if len(bare) == 1 and not names:
        names = [_only_input(describe())]
    if len(bare) != len(names):
        raise typer.BadParameter(f"{len(bare)} .npy files need as many names, not {len(names)}", param_hint="--name")
    found = list(zip(names, bare))
    for each in loaded:
        found += each.items() if isinstance(each, dict) else ()
    tensors = dict(found)
    if len(tensors) < len(found):
        raise typer.BadParameter("an input is given twice: " + ", ".join(name for name, _ in found))
    return tensors


def _only_input(model: ModelDetail) -> str:
    needed = [spec.name for spec in model.inputs if not spec.optional]
    if len(needed) == 1:
        return needed[0]
    raise typer.BadParameter(
        f"say which input it is: {model.model.model} takes {', '.join(needed)}", param_hint="--name"
    )


def _load(file: Path) -> Array | dict[str, Array]:
    try:
        loaded = np.load(file, allow_pickle=False)
        return loaded if isinstance(loaded, np.ndarray) else dict(loaded)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as failure:
        raise error(Reason.INVALID_VALUE, f"{file} is no numpy file: {failure}") from None


# Saving


def save(result: InspectResult, path: Path) -> int:
    """Write every tensor of ``result`` to ``path``, by a readable key, and return how many there are."""
    tensors = dict(_tensors(result))
    try:
        with path.open("wb") as file:  # numpy would add .npz to a mere name
            np.savez(file, **{key: _portable(array) for key, array in tensors.items()})  # type: ignore[arg-type]
    except OSError as failure:
        raise error(Reason.INVALID_VALUE, f"{path} cannot be written: {failure.strerror}", "save") from None
    return len(tensors)


def _portable(array: Array) -> Array:
    """``array`` in a data type that numpy can read back without help; every bfloat16 is a float32."""
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def _tensors(result: InspectResult) -> Iterator[tuple[str, Array]]:
    yield from _all("predictions", result.predictions)
    yield from _classes("classes", result.classes)
    yield from _all("unedited", result.unedited)
    yield from _classes("unedited_classes", result.unedited_classes)
    yield from _named("", targets=result.targets, target_values=result.target_values)
    for each in captured(result):
        call = f"[{each.call}]" if len(result.captures[each.module].calls) > 1 else ""
        key = f"captures/{module_text(each.module)}{call}/{each.point.value}{each.path}"
        yield key, each.array
        yield from _named(f"{key}/", positions=each.positions)
    yield from _all("input_gradients", result.input_gradients)
    yield from _all("parameter_gradients", result.parameter_gradients)
    for index, answer in enumerate(result.attributions):
        yield from _attribution(f"attributions/{index}-{answer.method}", answer)


def _all(key: str, arrays: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
    for name, array in arrays.items():
        yield f"{key}/{name}", array


def _classes(key: str, classes: Sequence[ClassPrediction]) -> Iterator[tuple[str, Array]]:
    if classes:
        yield f"{key}/index", np.array([row.index for row in classes])
        yield f"{key}/probability", np.array([row.probability for row in classes])


def _attribution(key: str, answer: AttributionResult) -> Iterator[tuple[str, Array]]:
    yield from _all(f"{key}/values", answer.values)
    yield from _named(
        f"{key}/",
        convergence_delta=answer.convergence_delta,
        value_at_input=answer.value_at_input,
        value_at_baseline=answer.value_at_baseline,
        targets=answer.targets,
    )
    if answer.tokens is not None:
        yield from _named(f"{key}/tokens/", ids=answer.tokens.ids, values=answer.tokens.values)
    for index, metric in enumerate(answer.metrics):
        yield f"{key}/metrics/{index}-{metric.name}", metric.values


def _named(prefix: str, **arrays: Array | None) -> Iterator[tuple[str, Array]]:
    for name, array in arrays.items():
        if array is not None:
            yield prefix + name, array
