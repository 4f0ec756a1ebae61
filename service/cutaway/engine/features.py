"""What counts as one feature, what replaces it, and how often the model must run: settled before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import factorial, prod
from typing import Any, TypeAlias

import torch
from torch import Tensor

from cutaway.engine.arrays import from_numpy
from cutaway.engine.baselines import baselines, refuse_others, refuse_shape
from cutaway.engine.subject import Inputs
from cutaway.errors import Reason, at, error
from cutaway.requests import (
    FeaturePermutation,
    Occlusion,
    Perturbation,
    ShapleyValues,
    ShapleyValueSampling,
    Surrogate,
    field_name,
)
from cutaway.tensors import Array, as_array

MAX_EVALUATIONS = 8192
"""The most forward passes of one explanation; each runs the whole batch."""

Region: TypeAlias = dict[str, Tensor]
"""By explained input, which elements are meant: [1, ...] or [batch, ...], boolean."""

Position: TypeAlias = tuple[slice, ...]
"""One place of a window, along the axes behind the batch."""


@dataclass(frozen=True)
class Features:
    """What is perturbed.

    Attributes:
        explained: names of the inputs.
        baselines: by input, of the input's shape; empty for methods without.
        numbers: by input, the feature of each element, [1, ...] or [batch, ...]; features of all inputs are counted
            from 0 in the order in which Captum visits them. Empty for windows.
        windows: by input, the places of its window, in the order in which Captum visits them.
    """

    explained: tuple[str, ...] = ()
    baselines: Inputs = field(default_factory=dict)
    numbers: Mapping[str, Tensor] = field(default_factory=dict)
    windows: Mapping[str, Sequence[Position]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many there are."""
        if self.windows:
            return sum(len(places) for places in self.windows.values())
        return 1 + max((int(each.max()) for each in self.numbers.values() if each.numel()), default=-1)

    def shares(self) -> dict[str, Tensor]:
        """By input, 1 / the size of each element's feature in its row: what counts every feature once in a sum."""
        rows = max(len(numbers) for numbers in self.numbers.values())
        sizes = torch.zeros(rows, self.count, dtype=torch.float64)
        spread = {
            name: each.cpu().expand(rows, *each.shape[1:]).reshape(rows, -1) for name, each in self.numbers.items()
        }
        for each in spread.values():
            sizes.scatter_add_(1, each, torch.ones_like(each, dtype=torch.float64))
        return {
            name: (1 / sizes.gather(1, each)).reshape(rows, *self.numbers[name].shape[1:])
            for name, each in spread.items()
        }


def features(request: Perturbation, inputs: Inputs) -> Features:
    """What ``request`` perturbs of ``inputs``.

    Raises:
        InvalidArgument: with the field at fault.
    """
    explained = _explained(request, inputs)
    with at(field_name(type(request))):
        given = getattr(request, "baselines", None)
        begins = {} if given is None else baselines(given, inputs, explained)
        found = Features(explained, begins, **_parts(request, inputs, explained))
        _refuse_many(request, found.count)
    return found


def _explained(request: Perturbation, inputs: Inputs) -> tuple[str, ...]:
    for name in request.inputs:
        if name not in inputs:
            raise error(Reason.INPUT_UNKNOWN, f"no input {name!r} was sent; there are {', '.join(inputs)}", "inputs")
    explained = request.inputs or tuple(name for name, tensor in inputs.items() if tensor.is_floating_point())
    if not explained:
        raise error(
            Reason.INVALID_VALUE, f"no input is a float: name those to explain, of {', '.join(inputs)}", "inputs"
        )
    return explained


def _parts(request: Any, inputs: Inputs, explained: tuple[str, ...]) -> dict[str, Any]:
    if isinstance(request, Occlusion):
        return {"windows": _windows(request, inputs, explained)}
    with at("masks.by_input"):
        refuse_others(request.masks, "mask", explained)
        if isinstance(request, FeaturePermutation):
            _refuse_rows_of_their_own(request)
        return {"numbers": _numbers(request.masks, inputs, explained)}


# Masks.


def _refuse_rows_of_their_own(request: FeaturePermutation) -> None:
    for name, mask in request.masks.items():
        if as_array(mask).shape[:1] != (1,):
            raise error(Reason.INPUT_SHAPE, "rows exchange features: send a mask of one row, for all of them", name)


def _numbers(masks: Mapping[str, Any], inputs: Inputs, explained: tuple[str, ...]) -> dict[str, Tensor]:
    known: dict[int, int] = {}
    found = {}
    fresh = 0
    for name in explained:
        row = inputs[name][:1]
        if name not in masks:
            found[name] = torch.arange(fresh, fresh + row.numel(), device=row.device).reshape(row.shape)
            fresh += row.numel()
            continue
        ids, places = torch.unique(_mask(name, as_array(masks[name]), inputs[name]), return_inverse=True)
        for each in ids.tolist():
            if each not in known:
                known[each] = fresh
                fresh += 1
        renumbered = torch.tensor([known[each] for each in ids.tolist()], dtype=torch.int64)
        found[name] = renumbered[places].to(row.device)
    return found


def _mask(name: str, given: Array, like: Tensor) -> Tensor:
    if given.dtype.kind not in "iu":
        raise error(Reason.INPUT_DTYPE, f"{given.dtype.name}; a mask holds the numbers of features: integers", name)
    refuse_shape(name, given, like)
    return from_numpy(given.astype("int64"))


# Windows.


def _windows(request: Occlusion, inputs: Inputs, explained: tuple[str, ...]) -> dict[str, list[Position]]:
    with at("windows"):
        refuse_others(request.windows, "window", explained)
        windows = {name: _window(name, request.windows.get(name, ()), inputs[name]) for name in explained}
    with at("strides"):
        refuse_others(request.strides, "stride", explained)
        strides = {name: _stride(name, request.strides.get(name), windows[name], inputs[name]) for name in explained}
    found: dict[str, list[Position]] = {}
    for name in explained:
        axes = list(zip(inputs[name].shape[1:], windows[name], strides[name]))
        with at("strides"):
            _refuse_many(request, prod(_stops(*axis) for axis in axes), name)
        found[name] = _rolled(_positions(axes), [len(places) for places in found.values()])
    return found


def _window(name: str, given: Sequence[int], like: Tensor) -> tuple[int, ...]:
    sizes = like.shape[1:]
    if not sizes:
        raise error(Reason.INPUT_SHAPE, "the input has no axis behind the batch for a window to move along", name)
    if len(given) != len(sizes):
        raise error(Reason.INPUT_SHAPE, f"{len(given)} sizes; give one for each axis of {list(sizes)}", name)
    if any(not 1 <= window <= size for window, size in zip(given, sizes)):
        raise error(Reason.INPUT_SHAPE, f"a window of {list(given)} does not fit in {list(sizes)}", name)
    return tuple(given)


def _stride(name: str, given: Sequence[int] | None, window: tuple[int, ...], like: Tensor) -> tuple[int, ...]:
    if given is None:
        return (1,) * len(window)
    if len(given) != len(window):
        raise error(Reason.INPUT_SHAPE, f"{len(given)} strides; give one for each axis of {list(like.shape[1:])}", name)
    for stride, size, whole in zip(given, window, like.shape[1:]):
        if not 1 <= stride <= (size if size < whole else 2**63):
            raise error(
                Reason.INVALID_VALUE,
                f"strides of {list(given)} with a window of {list(window)}: from 1 up, and no larger than the window, "
                "which would leave gaps",
                name,
            )
    return tuple(given)


def _stops(size: int, window: int, stride: int) -> int:
    return -(-(size - window) // stride) + 1


def _positions(axes: Sequence[tuple[int, int, int]]) -> list[Position]:
    # The first axis moves fastest; a last window may stick out, and what sticks out is cut off.
    stops = [[slice(k * stride, min(k * stride + window, size)) for k in range(_stops(size, window, stride))]
             for size, window, stride in axes]  # fmt: skip
    return [place[::-1] for place in product(*stops[::-1])]


def _rolled(places: list[Position], before: Sequence[int]) -> list[Position]:
    # Captum 0.9 counts an input's windows on from the product, not the sum, of the earlier inputs' counts: from a
    # third input on it begins in the middle, and comes round to the same set.
    first = (sum(before) - prod(before)) % len(places) if before else 0
    return places[first:] + places[:first]


# The number of passes.


def evaluations(request: Perturbation, count: int) -> int:
    """How many forward passes ``count`` features take."""
    if isinstance(request, ShapleyValues):
        return factorial(min(count, 20)) * count + 1
    if isinstance(request, ShapleyValueSampling):
        return request.n_samples * count + 1
    if isinstance(request, Surrogate):
        return request.n_samples
    return count + 1


def _refuse_many(request: Perturbation, count: int, field: str = "") -> None:
    if isinstance(request, (ShapleyValueSampling, Surrogate)) and request.n_samples < 1:
        what = "draws" if isinstance(request, Surrogate) else "orders"
        raise error(Reason.INVALID_VALUE, f"{request.n_samples} {what}; from 1 up", "n_samples")
    passes = evaluations(request, count)
    if passes > MAX_EVALUATIONS:
        raise error(
            Reason.INVALID_VALUE,
            f"{count} features would take {passes if count <= 20 else 'too many'} forward passes, and at most "
            f"{MAX_EVALUATIONS} are run: {_advice(request)}",
            field or _field(request),
        )


def _field(request: Perturbation) -> str:
    if isinstance(request, Occlusion):
        return "strides"
    return "n_samples" if isinstance(request, (ShapleyValueSampling, Surrogate)) else "masks"


def _advice(request: Perturbation) -> str:
    if isinstance(request, Occlusion):
        return "let the window move in larger strides"
    if isinstance(request, Surrogate):
        return "take fewer samples"
    fewer = "group elements into fewer features by masks"
    return f"{fewer}, or sample orders: ShapleyValueSampling" if isinstance(request, ShapleyValues) else fewer


# Regions.


def regions(parts: Features, inputs: Inputs) -> Iterator[Region]:
    """The elements of each feature, or in each place of a window, in order."""
    return _window_regions(parts, inputs) if parts.windows else _feature_regions(parts)


def _feature_regions(parts: Features) -> Iterator[Region]:
    for number in range(parts.count):
        yield {name: numbers == number for name, numbers in parts.numbers.items()}


def _window_regions(parts: Features, inputs: Inputs) -> Iterator[Region]:
    nowhere = {name: torch.zeros_like(inputs[name][:1], dtype=torch.bool) for name in parts.explained}
    for name, places in parts.windows.items():
        for place in places:
            inside = nowhere[name].clone()
            here = (slice(None), *place)
            inside[here] = True
            yield {**nowhere, name: inside}
