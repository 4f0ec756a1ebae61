"""Baselines, and the features and window positions of perturbation methods, with their numbers of passes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from math import factorial, prod
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from captum import attr
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from cutaway.contract import requests
from cutaway.contract.errors import Reason, at, error
from cutaway.contract.tensors import Array, as_array
from cutaway.contract.values import changed
from cutaway.engine.model.inspected_model import Inputs, dtype_text
from cutaway.engine.runtime.numerics import tensor_like

T = TypeVar("T")
R = TypeVar("R", bound=requests.Attribution)

# Baselines and distributions of a request, as tensors that fit the inputs.


def baselines(values: Mapping[str, Any], inputs: Inputs, explained: Sequence[str], special: Collection[int]) -> Inputs:
    """Returns a baseline of each explained input's shape; zeros where none was sent. The name ``""`` stands for all
    inputs that are not named.

    Args:
        values: the baselines of a request.
        inputs: the inputs.
        explained: the names of those that are explained.
        special: the ids of the model's special tokens, which a `TokenId` may keep.

    Raises:
        InvalidArgument: with the field at fault, below ``baselines``.
    """
    if "" in values:
        values = {**dict.fromkeys(explained, values[""]), **{name: value for name, value in values.items() if name}}
    with at("baselines.by_input"):
        refuse_unexplained(values, "baseline", explained)
        return {name: baseline(name, values.get(name, 0), inputs[name], special) for name in explained}


def distributions(values: Mapping[str, Any], inputs: Inputs, explained: Sequence[str]) -> Inputs:
    """Returns samples of a distribution for each explained input, ``[samples, ...]``, the same number for each.

    Raises:
        InvalidArgument: with the field at fault, below ``baselines``.
    """
    with at("baselines.by_input"):
        refuse_unexplained(values, "baseline", explained)
        samples = {name: _samples(name, values, inputs[name]) for name in explained}
        if len({len(sample) for sample in samples.values()}) > 1:
            listed = ", ".join(f"{name} has {len(sample)}" for name, sample in samples.items())
            raise error(Reason.BATCH_MISMATCH, f"every input needs as many samples: {listed}", explained[-1])
    return samples


def _samples(name: str, values: Mapping[str, Any], like: Tensor) -> Tensor:
    shape = f"[samples, {', '.join(map(str, like.shape[1:]))}]"
    if name not in values:
        text = f"{name!r} has no distribution of baselines; send samples, axis 0 the sample: {shape}"
        raise error(Reason.INVALID_VALUE, text, name)
    array = as_array(values[name])
    if array.ndim != like.ndim or array.shape[1:] != like.shape[1:] or not len(array):
        raise error(Reason.INPUT_SHAPE, f"{list(array.shape)}; send one sample or more, {shape}", name)
    return _converted(name, array, like)


def of_only_input(values: Mapping[str, T], explained: Sequence[str]) -> Mapping[str, T]:
    """Returns ``values`` by input name, in which one without a name is that of the only input that is explained.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, if several are.
    """
    if "" not in values:
        return values
    if len(explained) != 1:
        example = f", such as {{{explained[0]}: ...}}" if explained else ""
        what = f"it is of one of several inputs, {', '.join(explained)}: send it by name{example}"
        raise error(Reason.INVALID_VALUE, what)
    return {name or explained[0]: value for name, value in values.items()}


def with_names(request: R, explained: Sequence[str]) -> R:
    """Returns ``request`` with what has no name under that of the only input; see `of_only_input`."""
    fields, named = ["windows", "strides", "masks"], dict[str, Any]()
    for part in [*fields, "baselines"] if isinstance(request, requests.Expectation) else fields:
        values = getattr(request, part, {})
        if "" in values and not isinstance(values[""], requests.Superpixels):
            with at(part):
                named[part] = of_only_input(values, explained)
    return changed(request, **named) if named else request


def refuse_unexplained(values: Mapping[str, Any], what: str, explained: Sequence[str]) -> None:
    """Refuses a ``what`` for an input that is not explained."""
    for name in values:
        if name not in explained:
            text = f"a {what} for {name!r}, which is not explained; explained: {', '.join(explained)}"
            raise error(Reason.INPUT_UNKNOWN, text, name)


def baseline(name: str, value: Any, like: Tensor, special: Collection[int] = ()) -> Tensor:
    """Returns ``value``, a number, a token id or an array, in the shape of the input ``like``; a token id that keeps
    ``special`` tokens leaves these as they are.

    Raises:
        InvalidArgument: ``INPUT_DTYPE``, ``INPUT_SHAPE`` or ``INVALID_VALUE``, for the field ``name``.
    """
    if isinstance(value, requests.TokenId) and like.is_floating_point():
        raise error(Reason.INPUT_DTYPE, f"a token's id, and the input is {dtype_text(like)}: send a number", name)
    if isinstance(value, (int, float)):
        number = np.asarray(bool(value) if like.dtype == torch.bool and value in (0, 1) else value)
        start = torch.full_like(like, _converted(name, number, like).item())
        if not getattr(value, "keep_special", False):
            return start
        if not special:
            what = "the model's adapter names no special tokens: send the ids of the baseline as an array"
            raise error(Reason.INVALID_VALUE, what, name)
        return torch.where(torch.isin(like, torch.tensor(sorted(special), device=like.device)), like, start)
    array = as_array(value)
    refuse_shape(name, array, like)
    return _converted(name, array, like).expand_as(like)


def _converted(name: str, array: Array, like: Tensor) -> Tensor:
    """Returns ``array`` as the model takes it: lists of numbers have no data type of their own."""
    if (array.dtype.kind == "b") != (like.dtype == torch.bool):
        raise error(Reason.INPUT_DTYPE, f"{array.dtype.name}; the input is {dtype_text(like)}", name)
    with at(name):
        return tensor_like(array, like)


def refuse_shape(name: str, array: Array, like: Tensor) -> None:
    """Refuses an array that has neither one row for all rows of ``like``, nor one for each."""
    if array.shape[1:] != like.shape[1:] or array.shape[:1] not in ((1,), like.shape[:1]):
        either = f"send one row for all, {[1, *like.shape[1:]]}, or one an example, {list(like.shape)}"
        if len(like) == 1 and array.shape[1:] == like.shape[1:]:
            either += "; for the mean over several, repeat the example as often"
        raise error(Reason.INPUT_SHAPE, f"{list(array.shape)}; {either}", name)


MAX_EVALUATIONS = 8192
"""The most forward passes of one attribution; each runs the whole batch."""

Region: TypeAlias = dict[str, Tensor]
"""The mask of a region by explained input: ``[1, ...]`` or ``[batch, ...]``, boolean."""

Position: TypeAlias = tuple[slice, ...]
"""One position of a window, along the axes behind the batch."""


@dataclass(frozen=True)
class Features:
    """The perturbed regions: features, or positions of windows.

    Attributes:
        numbers: by explained input, the feature of each element, ``[1, ...]`` or ``[batch, ...]``; the features of all
            inputs are counted from 0 in the order in which Captum perturbs them. Empty for windows.
        windows: by explained input, the positions of its window, in the order in which Captum perturbs them.
    """

    numbers: Mapping[str, Tensor] = field(default_factory=dict)
    windows: Mapping[str, Sequence[Position]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of features, or of positions."""
        if self.windows:
            return sum(len(positions) for positions in self.windows.values())
        return 1 + max((int(mask.max()) for mask in self.numbers.values() if mask.numel()), default=-1)

    def shares(self) -> dict[str, Tensor]:
        """Returns for each element of each input 1 / n; n elements of its row belong to its feature.

        A sum with these weights counts every feature once, whatever its size.
        """
        rows = max(len(numbers) for numbers in self.numbers.values())
        sizes = torch.zeros(rows, self.count, dtype=torch.float64)
        masks = {name: mask.cpu().expand(rows, *mask.shape[1:]) for name, mask in self.numbers.items()}
        flat = {name: mask.reshape(rows, -1) for name, mask in masks.items()}
        for mask in flat.values():
            sizes.scatter_add_(1, mask, torch.ones_like(mask, dtype=torch.float64))
        return {name: (1 / sizes.gather(1, flat[name])).reshape(mask.shape) for name, mask in masks.items()}


def features(request: requests.Perturbation, inputs: Inputs, explained: Sequence[str]) -> Features:
    """Returns what ``request`` perturbs of the inputs ``explained``.

    Raises:
        InvalidArgument: with the field at fault, below the method's own.
    """
    if isinstance(request, requests.Occlusion):
        perturbed = Features(windows=_windows(request, inputs, explained))
    else:
        perturbed = Features(feature_numbers(request, inputs, explained))
    _refuse_many(request, perturbed.count)
    return perturbed


def feature_numbers(request: Any, inputs: Inputs, explained: Sequence[str]) -> dict[str, Tensor]:
    """Returns the feature of each element, numbered from 0 over all inputs. Without a mask, each element of an input is
    a feature."""
    with at("masks"):
        masks = _masks(request.masks, inputs, explained, is_shared=isinstance(request, requests.FeaturePermutation))
    numbers: dict[str, Tensor] = {}
    by_id: dict[int, int] = {}
    count = 0
    for name in explained:
        row = inputs[name][:1]
        if name not in masks:
            numbers[name] = torch.arange(count, count + row.numel(), device=row.device).reshape(row.shape)
            count += row.numel()
            continue
        ids, places = _ids(masks[name])
        for number in ids.tolist():
            if number not in by_id:
                by_id[number] = count
                count += 1
        renumbered = torch.tensor([by_id[number] for number in ids.tolist()], dtype=torch.int64)
        numbers[name] = renumbered[places].to(row.device)
    return numbers


def _masks(masks: requests.Masks, inputs: Inputs, explained: Sequence[str], *, is_shared: bool) -> dict[str, Tensor]:
    """Returns masks by input name; those of superpixels have numbers that no mask before them has.

    ``is_shared``: whether each mask must be the same for all rows.
    """
    if not isinstance(masks.get("", None), requests.Superpixels):
        with at("by_input"):
            masks = of_only_input(masks, explained)
    else:
        pictures = [name for name in explained if inputs[name].ndim == _PICTURE]
        with at("superpixels"):
            if not pictures:
                raise error(Reason.METHOD_INAPPLICABLE, f"no input is {_A_PICTURE}")
        masks = {**dict.fromkeys(pictures, masks[""]), **{name: mask for name, mask in masks.items() if name}}
    found: dict[str, Tensor] = {}
    for name, mask in masks.items():
        is_found = isinstance(mask, requests.Superpixels)
        with at("superpixels" if is_found else "by_input"):
            refuse_unexplained({name: mask}, "mask", explained)
            if is_shared and (is_found or as_array(mask).shape[:1] != (1,)):
                raise error(Reason.INPUT_SHAPE, "rows exchange features: send a mask of one row, for all of them", name)
            if is_found:
                first = 1 + max((int(other.max()) for other in found.values() if other.numel()), default=-1)
                found[name] = first + _superpixels(name, mask, inputs[name])
            else:
                found[name] = _mask(name, as_array(mask), inputs[name])
    return found


def has_superpixels(request: Any) -> bool:
    """Returns whether the features of an attribution are superpixels, so that each row has its own."""
    return any(isinstance(mask, requests.Superpixels) for mask in getattr(request, "masks", {}).values())


def regions_found(request: Any, features: Features, rows: int) -> Inputs:
    """Returns the regions of superpixels by input name, [batch, height, width]; none for other features."""
    if not has_superpixels(request):
        return {}
    masks = {name: request.masks.get(name, request.masks.get("")) for name in features.numbers}
    found = {name: features.numbers[name] for name, mask in masks.items() if isinstance(mask, requests.Superpixels)}
    return {name: mask[:, 0].expand(rows, *mask.shape[2:]) for name, mask in found.items() if mask.ndim == _PICTURE}


# Superpixels.

_PICTURE = 4
_A_PICTURE = "a picture, [batch, channels, height, width]"

MAX_PIXELS = 1 << 22
"""The most pixels of all rows in which superpixels are found: 83 pictures at 224×224."""
_SEEN: MutableMapping[Tensor, dict[requests.Superpixels, Tensor]] = WeakTensorKeyDictionary()
"""The regions of a tensor: several attributions and metrics of a request ask for the same."""


def _superpixels(name: str, asked: requests.Superpixels, pictures: Tensor) -> Tensor:
    """Returns the region of each element, of the shape of ``pictures``; those of each row are counted from 0."""
    if pictures.ndim != _PICTURE or not pictures[0].numel():
        raise error(
            Reason.METHOD_INAPPLICABLE, f"its shape is {list(pictures.shape)}, and not that of {_A_PICTURE}", name
        )
    pixels = len(pictures) * pictures.shape[2] * pictures.shape[3]
    if pixels > MAX_PIXELS:
        what = f"the rows have {pixels} pixels, and superpixels are found in at most {MAX_PIXELS}: send fewer rows"
        raise error(Reason.LIMIT_EXCEEDED, what, name)
    known = _SEEN.setdefault(pictures, {})
    if asked not in known:
        rows = [_slic(picture.detach().cpu().float(), asked) for picture in pictures]
        known[asked] = torch.stack(rows).unsqueeze(1)
    return known[asked].expand(pictures.shape)


def _slic(picture: Tensor, asked: requests.Superpixels) -> Tensor:
    """Returns the regions of one picture [channels, height, width], [height, width]; see `requests.Superpixels`."""
    from skimage.segmentation import slic  # here, because it takes a second

    pixels = picture.nan_to_num(0.0, 0.0, 0.0).permute(1, 2, 0).numpy()
    found: Array = slic(pixels, asked.segments, asked.compactness, start_label=0, convert2lab=False)
    return torch.from_numpy(np.unique(found, return_inverse=True)[1].reshape(found.shape).astype(np.int64))


def _mask(name: str, mask: Array, like: Tensor) -> Tensor:
    if mask.dtype.kind not in "iu":
        raise error(Reason.INPUT_DTYPE, f"{mask.dtype.name}; a mask holds the numbers of features: integers", name)
    refuse_shape(name, mask, like)
    return torch.from_numpy(mask.astype("int64", order="C"))


def _ids(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the numbers in ``mask``, sorted, and for each element the place of its number among them."""
    low, high = map(int, mask.aminmax()) if mask.numel() else (0, 0)
    if not mask.numel() or high - low > mask.numel():
        ids, places = torch.unique(mask, return_inverse=True)
        return ids, places
    shifted = mask - low  # to count numbers that are near to each other takes a tenth of the time of sorting them
    is_used = torch.bincount(shifted.flatten()) > 0
    return is_used.nonzero().flatten() + low, (is_used.cumsum(0) - 1)[shifted]


def _windows(request: requests.Occlusion, inputs: Inputs, explained: Sequence[str]) -> dict[str, list[Position]]:
    with at("windows"):
        refuse_unexplained(request.windows, "window", explained)
        windows = {name: _window(name, request.windows, inputs[name]) for name in explained}
    positions: dict[str, list[Position]] = {}
    with at("strides"):
        refuse_unexplained(request.strides, "stride", explained)
        strides = {name: _stride(name, request.strides.get(name), windows[name], inputs[name]) for name in explained}
        for name in explained:
            axes = list(zip(inputs[name].shape[1:], windows[name], strides[name]))
            _refuse_many(request, prod(_stops(*axis) for axis in axes), name)
            positions[name] = _rolled(_positions(axes), [len(earlier) for earlier in positions.values()])
    return positions


def _window(name: str, windows: Mapping[str, Sequence[int]], like: Tensor) -> tuple[int, ...]:
    axes = list(like.shape[1:])
    if not axes:
        raise error(Reason.INPUT_SHAPE, "the input has no axis behind the batch for a window to move along", name)
    if name not in windows:
        others = ", ".join(f"{other!r}" for other in windows)
        what = f"the input is explained and has no window: explain only inputs=({others},)"
        raise error(Reason.INPUT_SHAPE, f"{what}, or give it a size for each axis of {axes}", name)
    sizes = windows[name]
    if len(sizes) != len(axes):
        raise error(Reason.INPUT_SHAPE, f"{len(sizes)} sizes; give one for each axis of {axes}", name)
    if any(not 1 <= window <= size for window, size in zip(sizes, axes)):
        raise error(Reason.INPUT_SHAPE, f"a window of {list(sizes)} does not fit in {axes}", name)
    return tuple(sizes)


def _stride(name: str, strides: Sequence[int] | None, window: tuple[int, ...], like: Tensor) -> tuple[int, ...]:
    axes = list(like.shape[1:])
    if strides is None:
        return (1,) * len(window)
    if len(strides) != len(window):
        raise error(Reason.INPUT_SHAPE, f"{len(strides)} strides; give one for each axis of {axes}", name)
    for stride, size, axis in zip(strides, window, axes):
        if not 1 <= stride <= (size if size < axis else 2**63):
            text = "from 1 up, and no larger than the window, which would leave gaps"
            what = f"strides of {list(strides)} with a window of {list(window)}: {text}"
            raise error(Reason.INVALID_VALUE, what, name)
    return tuple(strides)


def _stops(size: int, window: int, stride: int) -> int:
    return -(-(size - window) // stride) + 1


def _positions(axes: Sequence[tuple[int, int, int]]) -> list[Position]:
    # The first axis moves fastest; a last window that reaches past the end is cut off there.
    stops = [[slice(k * stride, min(k * stride + window, size)) for k in range(_stops(size, window, stride))]
             for size, window, stride in axes]  # fmt: skip
    return [place[::-1] for place in product(*stops[::-1])]


def _rolled(positions: list[Position], before: Sequence[int]) -> list[Position]:
    # Captum 0.9 counts an input's windows on from the product, not the sum, of the earlier inputs' counts: from a
    # third input on it begins in the middle, and continues at the first position behind the last. 0.8 begins at 0.
    if len(before) < 2 or not _begins_in_the_middle():
        return positions
    first = (sum(before) - prod(before)) % len(positions)
    return positions[first:] + positions[:first]


@lru_cache(maxsize=1)
def _begins_in_the_middle() -> bool:
    """Tests whether the installed Captum begins the windows of a third input at another position than the first; see
    `_rolled`."""
    seen: list[Tensor] = []

    def watched(*inputs: Tensor) -> Tensor:
        seen.append(inputs[2])
        return inputs[0].sum(1)

    attr.Occlusion(watched).attribute(tuple(torch.ones(1, size) for size in (2, 3, 2)), ((1,),) * 3)
    return bool(seen[1 + 2 + 3][0, 0])


def cost(request: requests.Perturbation, count: int) -> tuple[int, str, str]:
    """Returns the forward passes, the request field that they depend on, and how they become fewer."""
    fewer = "group elements into fewer features by masks"
    if isinstance(request, requests.Occlusion):
        return count + 1, "strides", "let the window move in larger strides"
    if isinstance(request, requests.Surrogate):
        return request.n_samples, "n_samples", "take fewer samples"
    if isinstance(request, requests.ShapleyValueSampling):
        return request.n_samples * count + 1, "n_samples", fewer
    if isinstance(request, requests.ShapleyValues):
        orders = factorial(min(count, 20))
        return orders * count + 1, "masks", f"{fewer}, or sample orders: requests.ShapleyValueSampling"
    return count + 1, "masks", fewer


def _refuse_many(request: requests.Perturbation, count: int, name: str = "") -> None:
    if isinstance(request, (requests.ShapleyValueSampling, requests.Surrogate)) and request.n_samples < 1:
        what = "draws" if isinstance(request, requests.Surrogate) else "orders"
        raise error(Reason.INVALID_VALUE, f"{request.n_samples} {what}; from 1 up", "n_samples")
    passes, field, advice = cost(request, count)
    if passes > MAX_EVALUATIONS:
        taken = f"{count} features would take {passes if count <= 20 else 'too many'} forward passes"
        raise error(Reason.INVALID_VALUE, f"{taken}, and at most {MAX_EVALUATIONS} are run: {advice}", name or field)


def feature_region(features: Features, number: int) -> Region:
    """Returns the elements of the feature with this number."""
    return {name: numbers == number for name, numbers in features.numbers.items()}


def regions(features: Features, inputs: Inputs) -> Iterator[Region]:
    """Yields the elements of each feature, or at each position of a window, in order."""
    for number in range(0 if features.windows else features.count):
        yield feature_region(features, number)
    empty = {name: torch.zeros_like(inputs[name][:1], dtype=torch.bool) for name in features.windows}
    for name, positions in features.windows.items():
        for position in positions:
            inside, here = empty[name].clone(), (slice(None), *position)
            inside[here] = True
            yield {**empty, name: inside}
