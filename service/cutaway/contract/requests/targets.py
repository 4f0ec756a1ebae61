"""The scalar, one an example, whose gradient is taken and which attributions explain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cutaway.contract.requests.captures import Position, Slice
from cutaway.contract.requests.fields import Count, bounded, given
from cutaway.contract.tensors import ArrayLike
from cutaway.contract.values import StrEnum

__all__ = [
    "ClassIndex",
    "ClassLabel",
    "Contrast",
    "Cotangent",
    "CrossEntropy",
    "LogProbability",
    "LossReduction",
    "MeanSquaredError",
    "MultiIndex",
    "Neuron",
    "OutputNorm",
    "OutputSum",
    "PredictedClass",
    "SequenceLogProbability",
    "Target",
    "TopK",
]


@dataclass(frozen=True, kw_only=True)
class Target:
    """The scalar, one an example, that gradients and attributions are about.

    Args:
        output: the model output it is read from; ``""`` is the model's first.
        position: the token of each row, along axis 1 of an output [batch, tokens, ...], such as a language model's
            ``logits``; from the first token of the row's own text, without padding, a negative one from its last; or by
            its text, such as ``" Paris"``, of which it is the last token.
    """

    output: str = ""
    position: Position | None = None


@dataclass(frozen=True)
class PredictedClass(Target):
    """The largest element of an output [batch, classes]; of an output [batch], the element itself."""


@dataclass(frozen=True)
class ClassIndex(Target):
    """Given elements of an output [batch, classes].

    Args:
        indices: one for all examples, or one an example; from 0.
    """

    indices: tuple[int, ...]


@dataclass(frozen=True)
class ClassLabel(Target):
    """Given classes of an output [batch, classes], by their labels.

    Args:
        labels: one for all examples, or one an example; each is the label of exactly one class.
    """

    labels: tuple[str, ...]


@dataclass(frozen=True)
class Contrast(Target):
    """The difference of two targets of one output: why this class, and not that one?

    Args:
        target: what is explained: a class, an element, the sum or the norm; its own ``output`` is left out.
        other: what is subtracted from it.
    """

    target: Target
    other: Target


@dataclass(frozen=True)
class LogProbability(Target):
    """The logarithm of a class' or token's probability: ``torch.nn.functional.log_softmax`` over the last axis of an
    output, taken as logits.

    Args:
        target: the class, or the element of an output with further axes; its own ``output`` is left out.
    """

    target: Target


@dataclass(frozen=True)
class SequenceLogProbability(Target):
    """The logarithm of the probability that a language model writes given texts behind its prompts: why this text?

    It is the sum of the log-probabilities of the text's tokens, each behind the prompt and the tokens before it, from
    one pass. Hooks see the prompt and all tokens of the text but the last.

    Args:
        texts: one for all examples, or one an example; with their leading spaces.
        by_token: each token's log-probability is a target of its own, one after the other; a text that has fewer
            tokens than another has 0 at the end.
    """

    texts: tuple[str, ...]
    by_token: bool = False


@dataclass(frozen=True)
class MultiIndex(Target):
    """Given elements of an output with any number of axes.

    Args:
        indices: one position for all examples, or one an example; a position is one index an axis, from 0, the batch
            axis left out.
    """

    indices: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class TopK(Target):
    """The ``k`` largest classes of an output [batch, classes].

    Gradients then have one more axis, of size k, after axis 0 (a parameter's: before it); each attribution is returned
    k times, the largest class first.
    """

    k: Count


class LossReduction(StrEnum):
    """A reduction of the losses of a batch; an example's target is its share, and the shares sum to the loss."""

    SUM = "sum"
    """PyTorch's ``reduction="sum"``: a share does not depend on the other examples of the batch."""
    MEAN = "mean"
    """PyTorch's ``reduction="mean"``, over the examples of the request."""


@dataclass(frozen=True)
class CrossEntropy(Target):
    """``torch.nn.functional.cross_entropy`` of an output [batch, classes], taken as logits.

    Args:
        labels: one for all examples, or one an example; from 0.
        reduction: ``sum`` or ``mean``.
    """

    labels: tuple[int, ...]
    reduction: LossReduction = LossReduction.SUM


@dataclass(frozen=True)
class MeanSquaredError(Target):
    """``torch.nn.functional.mse_loss``.

    Args:
        values: the desired values, of the output's shape.
        reduction: ``sum`` or ``mean``.
    """

    values: ArrayLike
    reduction: LossReduction = LossReduction.SUM


@dataclass(frozen=True)
class Cotangent(Target):
    """The inner product of each example's output with a given tensor: gradients are vector-Jacobian products.

    Args:
        tensor: of the output's shape.
    """

    tensor: ArrayLike


@dataclass(frozen=True)
class OutputSum(Target):
    """The sum of each example's output."""


@dataclass(frozen=True)
class OutputNorm(Target):
    """The p-norm of each example's output.

    Args:
        order: p, above 0.
    """

    order: Annotated[float, bounded(lambda order: order > 0, "the order of a norm is above 0")] = 2.0


@dataclass(frozen=True)
class Neuron(Target):
    """One element of what a module's first call returned, or the sum of a block of its elements, in place of an output.

    Args:
        module: the module's name.
        index: one index an axis, from 0, the batch axis left out.
        slices: a block in place of the index: a range along each axis named, never axis 0, the whole of the others.
    """

    module: Annotated[str, given("name the module")]
    index: tuple[int, ...] = ()
    slices: tuple[Slice, ...] = ()


def is_several(target: Target) -> bool:
    """Returns whether ``target`` is several scalars of each example, which are explained one after the other."""
    return isinstance(target, TopK) or (isinstance(target, SequenceLogProbability) and target.by_token)
