"""Comparison of tensors, its tolerances, conversion from and to numpy, and tensors inside values of modules.

Two tensors agree where their largest error is at most a tolerance times the largest finite magnitude. The tolerance
depends on the data type and on what was computed: each constant below states the reason for its numbers.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import ml_dtypes
import torch
from torch import Tensor

from cutaway.contract.tensors import DTYPES, Array, converted


class Tolerances(NamedTuple):
    """The largest relative error that counts as agreement, for each data type in which the model computes."""

    float64: float
    float32: float
    bfloat16: float
    float16: float

    def of(self, dtype: torch.dtype) -> float:
        """Returns the tolerance for ``dtype``; for an unlisted one, that for float32."""
        return float(getattr(self, str(dtype).removeprefix("torch."), self.float32))

    def computed_in(self, dtypes: Iterable[torch.dtype]) -> Tolerances:
        """Returns the tolerances of values that come from operators of ``dtypes``: a cast makes none more precise."""
        coarsest = max(map(self.of, dtypes), default=0.0)
        return Tolerances(*(max(tolerance, coarsest) for tolerance in self))


_EPS = [torch.finfo(getattr(torch, name)).eps for name in Tolerances._fields]


def _roundings(count: int, at_most: float = math.inf) -> Tolerances:
    """Returns ``count`` times the data type's eps, the relative error of one rounding."""
    return Tolerances(*(min(count * eps, at_most) for eps in _EPS))


def _power(exponent: float) -> Tolerances:
    """Returns eps to the power of ``exponent``: unlike a multiple of eps, it allows coarse types fewer roundings."""
    return Tolerances(*(eps**exponent for eps in _EPS))


# Attributions and their references; in the order float64, float32, bfloat16, float16.

# One pass, or equal passes, whose terms are added in another order.
ONE_PASS = Tolerances(1e-9, 1e-4, 5e-2, 1e-2)
# A path integral: Captum keeps the weights of its quadrature in float32, whatever the input's data type.
PATH = Tolerances(1e-6, 1e-3, 1e-1, 2e-2)
# Coefficients of a fit: Captum fits in float32, whatever the model computes in.
FITTED = Tolerances(1e-3, 1e-3, 1e-3, 1e-3)
# A sum that approximates an integral: a larger error means that the number of steps may be too small.
APPROXIMATE = Tolerances(5e-2, 5e-2, 2e-1, 1e-1)
# A sum that is exact except for rounding.
EXACT = Tolerances(1e-6, 1e-3, 2e-1, 2e-2)
# The rounding error of a sum, relative to the sum of its terms' magnitudes.
SUM = _roundings(8)
# Attributions of a target that is constant: the rounding errors of its terms.
CONSTANT = _roundings(4, at_most=1e-4)
# The target of a row, in passes of several sizes: of a gap that is smaller, nobody is to blame.
TARGET = _roundings(8)
# A change of the target that is smaller than one rounding of it.
NO_EFFECT = _roundings(1)

# <J v, u> in forward mode, and <v, J^T u> from the backward pass, of which no terms cancel: 3e-7 for float32 was the
# largest of honest models.
ADJOINT = Tolerances(1e-8, 1e-5, 2e-2, 5e-3)

# Passes of one model that should give the same values.

# Points on a path: Captum computes them with operations in another order than our reference.
VISITED_POINTS = _roundings(64)
# Two runs on the same inputs on a CPU.
REPEATED = Tolerances(0, 0, 0, 0)
# Inputs of equal shapes, and repeated runs on CUDA, where sums have no fixed order: 1.4e-5 for float32.
SAME_SHAPES = _power(0.7)
# With hooks on copies of tensors, and without: a library may choose another kernel for a copy.
WITHOUT_COPIES = _roundings(256, at_most=0.05)
# The same row in small batches of several sizes, for which other kernels run: 7e-5 for float32.
PART_OF_BATCH = _power(0.6)
# A half of a batch, and the same rows in a pass of their own, whatever the data type: 1.2e-4.
HALF_OF_BATCH = Tolerances(*[1024 * torch.finfo(torch.float32).eps] * 4)
# A row in a batch, and in one of twice as many rows: 8e-3 for float32. Some CPUs run other kernels for more rows, and a
# model that subtracts nearly equal numbers showed 2e-3; a false alarm here withholds a verdict, and what depends on the
# number of rows usually changes by a half.
DOUBLED_BATCH = _power(0.3)


def least_precise(dtype: torch.dtype) -> float:
    """Returns the least number that ``dtype`` holds as precisely as `ONE_PASS` allows: 3e-6 for float16."""
    limits = torch.finfo(dtype)
    return limits.smallest_normal * limits.eps / 2 / ONE_PASS.of(dtype)


_MASK = 1e4
_GAP = 1e3
"""See `unmasked`."""


def equal(one: Tensor, other: Tensor) -> bool:
    """Returns whether two tensors have the same shape and the same values; NaN equals NaN."""
    if one.shape != other.shape or not one.is_floating_point():
        return torch.equal(one, other)
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def close(one: Tensor, other: Tensor, tolerances: Tolerances) -> bool:
    """Returns whether ``other`` differs from ``one`` by no more than the tolerance for the data type of ``one``.

    Infinities and NaNs must be the same on both sides; tensors of integers must be equal.
    """
    return largest_error(one, other) <= tolerances.of(one.dtype) * largest_magnitude(one)


def unmasked(values: Tensor) -> Tensor:
    """Returns which elements are finite and no masks.

    A masked logit is -inf, or -1e9: beside it, every other number is smaller than its rounding error. Masks are larger
    than `_MASK`, and `_GAP` times the largest magnitude of the others.
    """
    return unmasked_in_rows(values.reshape(1, -1)).reshape(values.shape)


def unmasked_in_rows(values: Tensor) -> Tensor:
    """Returns the same for ``[rows, elements]``, of which each row has masks of its own."""
    finite = values.isfinite()
    if largest_magnitude(values) < _MASK:
        return finite
    magnitudes = values.double().abs()
    ordered = magnitudes.where(finite, 0.0).sort(dim=1).values
    lower, upper = ordered[:, :-1], ordered[:, 1:]
    smallest_masks = torch.full_like(ordered, torch.inf)
    smallest_masks[:, 1:] = upper.where((lower > 0) & (upper >= _MASK) & (upper > _GAP * lower), torch.inf)
    return finite & (magnitudes < smallest_masks.amin(dim=1, keepdim=True))


def close_unmasked(one: Tensor, other: Tensor, tolerances: Tolerances) -> bool:
    """Compares masked elements and the others apart, as `close` does."""
    if one.dtype == other.dtype and torch.equal(one, other):
        return True
    if one.shape != other.shape or not one.is_floating_point():
        return close(one, other, tolerances)
    plain = unmasked(one)
    return close(one[plain], other[plain], tolerances) and close(one[~plain], other[~plain], tolerances)


def largest_error(one: Tensor, other: Tensor) -> float:
    """Returns the largest of `errors`."""
    if one.dtype == other.dtype and torch.equal(one, other):
        return 0.0  # as almost always, and told in a tenth of the time
    return float(errors(one, other).max())


def errors(one: Tensor, other: Tensor) -> Tensor:
    """Returns the absolute difference of each element, in the shape of ``one``.

    It is 0 for elements that are the same infinity, or both NaN. It is infinite where only one element is finite, where
    integers differ, and everywhere if shapes differ.
    """
    if one.shape != other.shape:
        return torch.full(one.shape or (1,), math.inf)
    if not one.is_floating_point():
        return torch.where(one == other, 0.0, math.inf)
    found = (one.double() - other.double()).abs()
    if not math.isnan(float(found.max())):
        return found
    same = (one == other) | (one.isnan() & other.isnan())
    return found.masked_fill(same, 0.0).nan_to_num(nan=math.inf, posinf=math.inf)


def largest_magnitude(values: Tensor) -> float:
    """Returns the largest finite magnitude in a floating tensor; 0 if there is none, and for integers."""
    if not values.is_floating_point() or not values.numel():
        return 0.0
    largest = float(values.abs().max())
    return largest if math.isfinite(largest) else float(values.abs().nan_to_num(0.0, 0.0, 0.0).max())


def cosine(one: Tensor, other: Tensor) -> float:
    """Returns the cosine between two vectors, and 0 if one of them is 0."""
    lengths = float(one.norm() * other.norm())
    return float(one @ other) / lengths if lengths else 0.0


# Conversion between numpy arrays, which messages carry, and torch tensors.


def from_numpy(array: Array) -> torch.Tensor:
    """Returns a tensor with a copy of ``array``: arrays of messages are read-only, and models may write to inputs."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view("int16").copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def tensor_like(array: Array, like: torch.Tensor) -> torch.Tensor:
    """Returns a copy of ``array`` with the data type and on the device of ``like``; floating numbers are rounded.

    Raises:
        InvalidArgument: ``INPUT_DTYPE`` or ``INVALID_VALUE``, if the data type cannot hold one of the numbers.
    """
    name = str(like.dtype).removeprefix("torch.")
    known = converted(array, name) if name in DTYPES else array
    return from_numpy(known).to(device=like.device, dtype=like.dtype)


def to_numpy(tensor: torch.Tensor) -> Array:
    """Returns ``tensor`` as an array on the host."""
    host = tensor.detach() if tensor.requires_grad else tensor
    host = host if host.device.type == "cpu" else host.cpu()
    if host.dtype == torch.bfloat16:
        return host.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return host.numpy() if host.dtype != torch.complex32 else host.to(torch.complex64).numpy()  # which NumPy has not


# Tensors inside arguments and results of modules, by a readable path.

Path = str
"""``""`` for a bare tensor, else ``[0]``, ``.logits``, ``["key"]``, or ``[1].hidden`` for nested ones."""

LeafChange = Callable[[Path, Tensor], Tensor]

_ATOMS = frozenset({type(None), bool, int, float, str})
"""Types without tensors inside, which most arguments of most modules have: to look into them takes longer."""


def leaves(value: object) -> dict[Path, Tensor]:
    """Returns all tensors in ``value`` by path, in order, inside tuples, lists, dicts, dataclasses and ModelOutputs."""
    if isinstance(value, torch.Tensor):
        return {"": value}
    tensors: dict[Path, Tensor] = {}
    if type(value) in _ATOMS:
        return tensors
    map_leaves(value, lambda path, tensor: tensors.setdefault(path, tensor))
    return tensors


def map_leaves(value: Any, change: LeafChange, path: Path = "") -> Any:
    """Returns ``value`` with each tensor replaced by ``change(path, tensor)``; ``value`` itself if none changed."""
    if isinstance(value, torch.Tensor):
        return change(path, value)
    if type(value) in _ATOMS:
        return value
    items = [(key, item, map_leaves(item, change, path + step)) for key, step, item in _children(value)]
    if all(after is before for _, before, after in items):
        return value
    if isinstance(value, (tuple, list)):
        new = [after for _, _, after in items]
        return type(value)(*new) if isinstance(value, tuple) and hasattr(value, "_fields") else type(value)(new)
    renewed = copy.copy(value)
    for key, _, after in items:
        if isinstance(value, Mapping):
            renewed[key] = after
        else:
            object.__setattr__(renewed, key, after)  # also if the dataclass is frozen
    return renewed


def _children(value: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yields the key or name, the step of the path and the value of each item of a container."""
    if isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield index, f"[{index}]", item
    elif isinstance(value, Mapping):
        by_attribute = dataclasses.is_dataclass(value)  # a ModelOutput
        for key, item in value.items():
            yield key, f".{key}" if by_attribute else f'["{key}"]' if isinstance(key, str) else f"[{key!r}]", item
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield field.name, f".{field.name}", getattr(value, field.name)


def argument_tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[Path, Tensor]:
    """Returns the tensors in a call's arguments by path, which begins with ``""`` for a single positional argument,
    else with ``[0]`` or the keyword."""
    tensors = leaves(args[0] if _is_single(args, kwargs) else args)
    for key, value in kwargs.items():
        if found := leaves(value):
            tensors.update({key + path: tensor for path, tensor in found.items()})
    return tensors


def replace_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], tensors: Mapping[Path, Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments with ``tensors`` in place of those that `argument_tensors` returned."""
    replace = partial(map_leaves, change=lambda path, _: tensors[path])
    positional = (replace(args[0]),) if _is_single(args, kwargs) else replace(args)
    return positional, {key: replace(value, path=key) for key, value in kwargs.items()}


def _is_single(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return len(args) == 1 and not kwargs


def symmetric(matrix: Tensor) -> Tensor:
    """Returns the symmetric part of a matrix."""
    found: Tensor = (matrix + matrix.T) / 2
    return found


def krylov(product: Callable[[Tensor], Tensor], first: Tensor, iterations: int, least: float) -> tuple[Tensor, Tensor]:
    """Returns an orthonormal basis of the space that ``iterations`` steps of Arnoldi's iteration find, [size, n], and
    the operator in it, [n, n]. As in Captum, the vector of the last step is no part of it.

    Trefethen and Bau 1997, Numerical Linear Algebra, lecture 33.
    """
    basis, images = [first], list[Tensor]()
    while len(images) < iterations - 1:
        image = left = product(basis[-1])
        for _ in range(2):  # once more, since rounding errors leave parts of the basis
            for vector in basis:
                left = left - (vector @ left) * vector
        if left.norm() < least:
            break
        images.append(image)
        basis.append(left / left.norm())
    kept = torch.stack(basis[: len(images)], dim=1)
    return kept, kept.T @ torch.stack(images, dim=1)


_INDICES: dict[torch.layout, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    torch.sparse_csr: lambda tensor: (tensor.crow_indices(), tensor.col_indices()),
    torch.sparse_bsr: lambda tensor: (tensor.crow_indices(), tensor.col_indices()),
    torch.sparse_csc: lambda tensor: (tensor.ccol_indices(), tensor.row_indices()),
    torch.sparse_bsc: lambda tensor: (tensor.ccol_indices(), tensor.row_indices()),
}
"""The indices of the compressed sparse layouts."""


def has_array(tensor: Tensor) -> bool:
    """Returns whether an array has the values of ``tensor``.

    The rows of a nested tensor have lengths of their own, and a tensor inside ``torch.vmap`` stands for many.
    """
    return not (tensor.is_nested or torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def is_array(tensor: Tensor) -> bool:
    """Returns whether ``tensor`` has strides and memory of its own."""
    return tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_quantized or _is_wrapper(tensor))


def dense(tensor: Tensor) -> Tensor:
    """Returns a tensor with strides of the same values, in the same graph; ``tensor`` itself if it has strides."""
    if is_array(tensor):
        return tensor
    if tensor.is_quantized:
        return tensor.dequantize()
    if tensor.layout is not torch.strided:
        return tensor.to_dense()
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def in_layout_of(tensor: Tensor, array: Tensor) -> Tensor:
    """Returns ``array`` in the layout of ``tensor``, which is of the same shape and has no strides."""
    if tensor.is_mkldnn:
        return array.to_mkldnn()
    if tensor.layout is torch.sparse_coo:
        return array.to_sparse(tensor.sparse_dim())
    blocks = tensor.values().shape[1:3] if tensor.layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    return array.to_sparse(layout=tensor.layout, blocksize=blocks, dense_dim=tensor.dense_dim())


def arrays_of(tensor: Tensor) -> list[Tensor]:
    """Returns the tensors with strides that ``tensor`` consists of; copies where it does not show its memory."""
    if _is_wrapper(tensor) and hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return [array for name in names for array in arrays_of(getattr(tensor, name))]
    if tensor.is_nested:
        return [tensor.values(), tensor._nested_tensor_size()]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in _INDICES:
        return [*_INDICES[tensor.layout](tensor), tensor.values()]
    if tensor.is_quantized:
        return [tensor.int_repr(), tensor.dequantize()]
    return [dense(tensor)]


def _is_wrapper(tensor: Tensor) -> bool:
    """Returns whether a subclass computes with tensors that it holds; its own memory then has no values."""
    return type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__


def digest(state: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of the tensors of a state by name; what else is in it does not count."""
    found = hashlib.sha256()
    for name, tensor in state.items():
        if isinstance(tensor, Tensor):
            for array in arrays_of(tensor.detach()):
                found.update(f"{name}:{array.dtype}:{list(array.shape)}".encode())
                found.update(array.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs the operators of the block, in this thread, without PyTorch's other threads; some round differently then."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
