"""Which scalar, one an example, is differentiated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from cutaway.engine.arrays import from_numpy
from cutaway.engine.subject import Outputs, dtype_text
from cutaway.errors import Reason, at, error
from cutaway.requests import (
    ClassIndex,
    Cotangent,
    CrossEntropy,
    LossReduction,
    MeanSquaredError,
    MultiIndex,
    Neuron,
    OutputNorm,
    OutputSum,
    PredictedClass,
    Target,
    TopK,
    field_name,
)
from cutaway.tensors import Array, as_array

Scalars: TypeAlias = Callable[[Tensor], Tensor]
"""From an output, axis 0 the batch, to [batch]; differentiable."""


@dataclass(frozen=True)
class Chosen:
    """A target, made definite for one batch.

    Attributes:
        source: the name of the output it is read from, or of the module, for a neuron.
        scalars: the target scalar of each row, from that output.
        indices: [batch] int64, the class of each row; None where the target is no class.
        is_neuron: whether ``source`` names a module.
        bound: whether each row has numbers of its own in ``scalars``, so that rows must keep their places.
    """

    source: str
    scalars: Scalars
    indices: Tensor | None = None
    is_neuron: bool = False
    bound: bool = False

    def taking(self, rows: Tensor) -> Chosen:
        """The same target, for a batch of the rows that the numbers ``rows`` name; of rows that have no numbers of
        their own in ``scalars``."""
        return self if self.indices is None else _class(self.source, self.indices[rows])

    @staticmethod
    def of_all(parts: Sequence[Chosen]) -> Chosen:
        """One for a batch of all rows of ``parts``, which are of one kind."""
        indices = [each.indices for each in parts if each.indices is not None]
        return _class(parts[0].source, torch.cat(indices)) if indices else parts[0]

    def of(self, output: Tensor) -> Tensor:
        """[batch], the target scalar of each row; differentiable."""
        return self.scalars(output.reshape(1) if output.ndim == 0 else output)


def same_kind(one: Chosen, other: Chosen) -> bool:
    """Whether the two are read from the same output, and differ in nothing but the classes of their rows."""
    alike = (one.source, one.is_neuron, one.bound, one.indices is None) == (
        other.source,
        other.is_neuron,
        other.bound,
        other.indices is None,
    )
    return alike and not one.bound and (one.indices is not None or one.scalars is other.scalars)


def source(target: Target, outputs: Outputs) -> str:
    """The name of the output that ``target`` is read from.

    Raises:
        InvalidArgument: ``OUTPUT_NOT_FOUND``.
    """
    name = target.output or next(iter(outputs))
    if name not in outputs:
        raise error(Reason.OUTPUT_NOT_FOUND, f"no output {name!r}; the model returns {', '.join(outputs)}", "output")
    return name


def choose(target: Target, name: str, output: Tensor, rows: int) -> tuple[Chosen, ...]:
    """Make ``target`` definite for ``output``, which the model, or the neuron's module, returned for ``rows`` examples.

    Returns:
        One, or for a top-k target k of them, the largest class first.

    Raises:
        InvalidArgument: ``TARGET_SHAPE``, ``TARGET_RANGE`` or ``TARGET_MISMATCH``.
    """
    if not output.is_floating_point():
        raise error(Reason.TARGET_SHAPE, f"{name!r} is {dtype_text(output)}: only floats have gradients")
    by_row = output.reshape(1) if output.ndim == 0 and rows == 1 else output
    if by_row.ndim == 0 or by_row.shape[0] != rows:
        raise error(
            Reason.TARGET_SHAPE,
            f"{name!r} has shape {list(output.shape)}: axis 0 is not the batch of {rows}, so no scalar belongs to an "
            "example",
        )
    with at(field_name(type(target)).removeprefix("output_")):
        return KINDS[type(target)](target, name, by_row)


def _predicted(target: PredictedClass, name: str, output: Tensor) -> tuple[Chosen, ...]:
    if output.ndim == 1:
        return (Chosen(name, itself),)
    return (_class(name, _classes(name, output).argmax(dim=1)),)


def itself(output: Tensor) -> Tensor:
    """``output``, which has one number a row."""
    return output


def _given_class(target: ClassIndex, name: str, output: Tensor) -> tuple[Chosen, ...]:
    if output.ndim == 1:
        _one_a_row(torch.tensor(target.indices), len(output))
        if any(index != 0 for index in target.indices):
            raise error(
                Reason.TARGET_RANGE,
                f"the output has one number an example, of shape {list(output.shape)}; the only target is 0",
            )
        return (Chosen(name, itself),)
    return (_class(name, _indices(target.indices, _classes(name, output))),)


def _top_k(target: TopK, name: str, output: Tensor) -> tuple[Chosen, ...]:
    classes = _classes(name, output)
    if not 1 <= target.k <= classes.shape[1]:
        raise error(Reason.TARGET_RANGE, f"the output has {classes.shape[1]} classes, not {target.k}", "k")
    return tuple(_class(name, ranked) for ranked in classes.topk(target.k, dim=1).indices.unbind(dim=1))


def _class(name: str, indices: Tensor) -> Chosen:
    return Chosen(name, lambda output: output.gather(1, indices.unsqueeze(1)).squeeze(1), indices)


def _classes(name: str, output: Tensor) -> Tensor:
    if output.ndim != 2:
        raise error(
            Reason.TARGET_SHAPE, f"{name!r} has shape {list(output.shape)}; a class target needs [batch, classes]"
        )
    return output.detach()


def _indices(given: tuple[int, ...], classes: Tensor) -> Tensor:
    rows, count = classes.shape
    for index in given:
        if not 0 <= index < count:
            raise error(Reason.TARGET_RANGE, f"target {index} is out of range; the output has classes 0 to {count - 1}")
    return _one_a_row(torch.tensor(given, dtype=torch.int64, device=classes.device), rows)


def _one_a_row(given: Tensor, rows: int) -> Tensor:
    if len(given) not in (1, rows):
        raise error(Reason.TARGET_MISMATCH, f"{len(given)} targets for a batch of {rows}; send one for all, or {rows}")
    return given.expand(rows, *given.shape[1:]) if len(given) == 1 else given


def _multi_index(target: MultiIndex, name: str, output: Tensor) -> tuple[Chosen, ...]:
    for number, position in enumerate(target.indices):
        with at(f"indices[{number}]"):
            _in_range(position, output)
    index = _one_a_row(torch.tensor(target.indices, dtype=torch.int64, device=output.device), len(output))
    picked = (torch.arange(len(output), device=output.device), *index.unbind(dim=1))
    return (Chosen(name, lambda output: output[picked], bound=True),)


def _in_range(position: tuple[int, ...], output: Tensor) -> None:
    sizes = output.shape[1:]
    if len(position) != len(sizes):
        raise error(
            Reason.TARGET_SHAPE, f"{len(position)} indices for the {len(sizes)} axes behind the batch: {list(sizes)}"
        )
    for index, size in zip(position, sizes):
        if not 0 <= index < size:
            raise error(Reason.TARGET_RANGE, f"{list(position)} is outside of the axes {list(sizes)}")


def _cross_entropy(target: CrossEntropy, name: str, output: Tensor) -> tuple[Chosen, ...]:
    labels = _indices(target.labels, _classes(name, output))
    share = len(output) if target.reduction is LossReduction.MEAN else 1

    def shares(output: Tensor) -> Tensor:
        return functional.cross_entropy(output, labels, reduction="none") / share

    return (Chosen(name, shares, bound=True),)


def _squared_error(target: MeanSquaredError, name: str, output: Tensor) -> tuple[Chosen, ...]:
    values = _like(target.values, output, "values")
    share = output.numel() if target.reduction is LossReduction.MEAN else 1
    return (Chosen(name, lambda output: _by_row((output - values) ** 2).sum(dim=1) / share, bound=True),)


def _cotangent(target: Cotangent, name: str, output: Tensor) -> tuple[Chosen, ...]:
    vector = _like(target.tensor, output, "tensor")
    return (Chosen(name, lambda output: _by_row(output * vector).sum(dim=1), bound=True),)


def _like(given: Any, output: Tensor, field: str) -> Tensor:
    array: Array = as_array(given)
    if array.ndim == 0 and output.numel() == 1:  # a batch of one, of which the model returns a number
        array = array.reshape(output.shape)
    if array.shape != tuple(output.shape):
        raise error(
            Reason.TARGET_SHAPE, f"a tensor of shape {list(array.shape)}; the output has {list(output.shape)}", field
        )
    return from_numpy(array).to(device=output.device, dtype=output.dtype)


def _by_row(values: Tensor) -> Tensor:
    return values.reshape(len(values), -1)


def _sum(target: OutputSum, name: str, output: Tensor) -> tuple[Chosen, ...]:
    return (Chosen(name, lambda output: _by_row(output).sum(dim=1)),)


def _norm(target: OutputNorm, name: str, output: Tensor) -> tuple[Chosen, ...]:
    return (Chosen(name, lambda output: torch.linalg.vector_norm(_by_row(output), target.order, dim=1)),)


def _neuron(target: Neuron, name: str, output: Tensor) -> tuple[Chosen, ...]:
    with at("index"):
        _in_range(target.index, output)
    picked: tuple[slice | int, ...] = (slice(None), *target.index)
    return (Chosen(name, lambda output: output[picked], is_neuron=True),)


KINDS: dict[type[Target], Callable[[Any, str, Tensor], tuple[Chosen, ...]]] = {
    PredictedClass: _predicted,
    ClassIndex: _given_class,
    MultiIndex: _multi_index,
    TopK: _top_k,
    CrossEntropy: _cross_entropy,
    MeanSquaredError: _squared_error,
    Cotangent: _cotangent,
    OutputSum: _sum,
    OutputNorm: _norm,
    Neuron: _neuron,
}
"""The kinds of target: a new one is a new row."""
