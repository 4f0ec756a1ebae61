"""The scalar of each row that is differentiated: targets, resolved for what the model returned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, cast

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

from cutaway.contract import requests
from cutaway.contract.errors import Reason, at, error
from cutaway.contract.tensors import Array, as_array
from cutaway.contract.values import changed
from cutaway.engine.hooks.capture_spec import slice_index
from cutaway.engine.hooks.hook_site import Batch
from cutaway.engine.hooks.tokens import token_index
from cutaway.engine.model.inspected_model import CONTINUATION, Inputs, InspectedModel, Outputs, dtype_text
from cutaway.engine.runtime.numerics import tensor_like

ScalarFunction: TypeAlias = Callable[[Tensor], Tensor]
"""From an output ``[batch, ...]`` to ``[batch]``; differentiable."""


@dataclass(frozen=True)
class ResolvedTarget:
    """A target, resolved for one batch.

    Attributes:
        source: the name of the output that it is read from; for a neuron that of the module.
        function: returns the target of each row from that output.
        positions: ``[batch, axes]`` int64, the element of each row, one index for each axis behind the batch; None for
            targets that are more than one element.
        tokens: ``[batch]`` int64, the token of each row that a target of a text is about, -1 for none.
        is_neuron: whether ``source`` names a module.
        is_row_specific: whether ``function`` differs from row to row, or is of the whole batch, so that rows must keep
            their places and the batch its size.
    """

    source: str
    function: ScalarFunction
    positions: Int64[Tensor, "batch axes"] | None = None
    tokens: Int64[Tensor, "batch"] | None = None
    is_neuron: bool = False
    is_row_specific: bool = False

    @property
    def classes(self) -> Int64[Tensor, "batch"] | None:
        """The class or token of each row, ``[batch]``; None for targets that are none."""
        if self.tokens is not None:
            return self.tokens
        return self.positions[:, 0] if self.positions is not None and self.positions.shape[1] == 1 else None

    @property
    def captum_target(self) -> Int64[Tensor, "batch"] | list[tuple[int, ...]] | None:
        """The value of Captum's ``target``; None where Captum cannot express the target."""
        if self.positions is None:
            return None
        if self.positions.shape[1] == 1:
            return self.positions[:, 0]
        return [tuple(position) for position in self.positions.tolist()]

    def scalars(self, output: Float[Tensor, "*axes"]) -> Float[Tensor, "batch"]:
        """Returns the target of each row, ``[batch]``; differentiable."""
        return self.function(output.reshape(1) if output.ndim == 0 else output)

    def gradient_at(self, output: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
        """Returns the gradient of the targets' sum at ``output``: for an element of each row, 1 there and else 0."""
        if self.positions is not None:
            gradient = torch.zeros_like(output)
            elements = (torch.arange(len(self.positions)), *self.positions.unbind(dim=1))
            gradient[elements] = 1
            return gradient
        with torch.enable_grad():
            leaf = output.detach().clone().requires_grad_()
            (gradient,) = torch.autograd.grad(self.scalars(leaf).sum(), leaf)
        return gradient

    def for_rows(self, rows: Int64[Tensor, "rows"]) -> ResolvedTarget:
        """Returns the target for a batch of the rows with the numbers ``rows``; it must not be row-specific."""
        if self.positions is None:
            return self if self.tokens is None else replace(self, tokens=self.tokens[rows])
        return element(self.source, self.positions[rows])


def explained_outputs(model: InspectedModel, outputs: Outputs, rows: int) -> list[str]:
    """Returns the outputs that are explained where a target names none: one, or several between which nothing decides.

    That is the one ``[rows, classes]`` of a model with classes, else the first. A loss before others does not count:
    transformers' models return it first if they get labels. Of the others, the least nested ones with rows remain.
    """
    by_row = [name for name, output in outputs.items() if output.is_floating_point() and output.shape[:1] == (rows,)]
    classes = [name for name in by_row if model.labels and outputs[name].shape[1:] == (len(model.labels),)]
    first, *others = outputs
    if first in classes or not others:
        return [first]
    if classes or not _is_loss(first, outputs[first]):
        return classes or [first]
    left = [name for name in by_row if not _is_loss(name, outputs[name])]
    depths = [name.count("[") + name.count(".") for name in left]
    return [name for name, depth in zip(left, depths) if depth == min(depths)] or [first]


def _is_loss(name: str, output: Tensor) -> bool:
    return output.ndim == 0 or name.lower().endswith("loss")


def resolve_target(
    model: InspectedModel, target: requests.Target, outputs: Outputs, batch: Batch, read_neuron: Callable[[str], Tensor]
) -> tuple[tuple[ResolvedTarget, ...], Tensor]:
    """Resolves ``target`` for one batch.

    Args:
        model: the model.
        target: the target of a request or of an attribution.
        outputs: what the model returned, by name.
        batch: the rows, and where they are.
        read_neuron: returns, by a module's name, the first tensor that its first call returned.

    Returns:
        One target, or for a top-k target k of them, the largest class first; and the tensor that they are read from.

    Raises:
        InvalidArgument: ``MODULE_NOT_FOUND``, ``OUTPUT_NOT_FOUND``, or as `resolve_for_output`.
    """
    if isinstance(target, requests.Neuron):
        with at("neuron.module"):
            name = model.tree.resolve(target.module)
        source = read_neuron(name)
        axis = next(iter(batch.axes.at_output(name).values()), 0)
    else:
        name, *others = [target.output] if target.output else explained_outputs(model, outputs, batch.rows)
        if others:
            several = ", ".join(map(repr, (name, *others)))
            raise error(Reason.OUTPUT_NOT_FOUND, f"name the output to explain, which may be {several}", "output")
        if name not in outputs:
            returned = ", ".join(outputs)
            raise error(Reason.OUTPUT_NOT_FOUND, f"no output {name!r}; the model returns {returned}", "output")
        source = outputs[name]
        axis = batch.axes.of_output(name, source, batch.rows)
    if axis:
        text = f"axis 0 is not the batch of {batch.rows}, but axis {axis} is; a target needs rows on axis 0"
        raise error(Reason.TARGET_SHAPE, f"{name!r} has shape {list(source.shape)}: {text}")
    if target.position is not None:
        return _at_position(target, name, source, batch), source
    return resolve_for_output(target, name, source, batch.rows, model), source


def _at_position(target: requests.Target, name: str, output: Tensor, batch: Batch) -> tuple[ResolvedTarget, ...]:
    """Resolves a target of one token of each row of ``output`` [batch, tokens, ...]."""
    if not isinstance(target, (*_SIDES, requests.TopK, requests.Contrast, requests.LogProbability)):
        what = f"a {requests.field_name(type(target))} is of the whole output: leave it out"
        raise error(Reason.INVALID_VALUE, what, "position")
    if output.ndim < 3:
        what = f"{name!r} has shape {list(output.shape)}; a token's target needs [batch, tokens, ...]"
        raise error(Reason.TARGET_SHAPE, what, "position")
    rows, places = token_index(target.position or 0, output.shape, 0, batch.texts and batch.texts.written)
    places = places.to(output.device)
    resolved = resolve_for_output(changed(target, position=None), name, output[rows, places], batch.rows)
    is_uniform = bool((places == places[:1]).all())
    index = (slice(None), int(places[0])) if is_uniform else (rows, places)
    return tuple(_of_token(one, places, index, is_uniform) for one in resolved)


def _of_token(one: ResolvedTarget, places: Tensor, index: tuple[Any, ...], is_uniform: bool) -> ResolvedTarget:
    """Returns the target of an output with tokens, from the one of the output at ``index``, one token of each row."""
    if one.positions is not None:
        return element(one.source, torch.cat([places.unsqueeze(1), one.positions], dim=1))
    is_row_specific = one.is_row_specific or not is_uniform
    return replace(one, function=lambda output: one.function(output[index]), is_row_specific=is_row_specific)


def resolve_for_output(
    target: requests.Target, name: str, output: Tensor, rows: int, model: InspectedModel | None = None
) -> tuple[ResolvedTarget, ...]:
    """Resolves ``target`` for ``output`` ``[batch, ...]``, which ``model``, or a neuron's module, ``name`` returned.

    Returns:
        One target, or for a top-k target k of them, the largest class first.

    Raises:
        InvalidArgument: ``TARGET_SHAPE``, ``TARGET_RANGE`` or ``TARGET_MISMATCH``.
    """
    if not output.is_floating_point():
        raise error(Reason.TARGET_SHAPE, f"{name!r} is {dtype_text(output)}: only floats have gradients")
    by_row = output.reshape(1) if output.ndim == 0 and rows == 1 else output
    if by_row.ndim == 0 or by_row.shape[0] != rows:
        text = f"axis 0 is not the batch of {rows}, so no scalar belongs to an example"
        remedy = (model and model.tree.rows_on_axis_1()) or "let Adapter.forward return a tensor with rows on axis 0"
        raise error(Reason.TARGET_SHAPE, f"{name!r} has shape {list(output.shape)}: {text}; {remedy}")
    with at(requests.field_name(type(target)).removeprefix("output_")):
        resolved = _RESOLVERS[type(target)](target, name, by_row)
    several = resolved if isinstance(resolved, tuple) else (resolved,)
    # One number for the whole batch, such as a mean loss, is another one in a batch of another size.
    return tuple(replace(one, is_row_specific=True) for one in several) if output.ndim == 0 else several


def identity(output: Tensor) -> Tensor:
    """Returns ``output``, which has one number for each row."""
    return output


def element(name: str, positions: Int64[Tensor, "batch axes"]) -> ResolvedTarget:
    """Returns the target that is the element of each row at ``positions`` of the output ``name``."""
    if positions.shape[1] == 1:
        return ResolvedTarget(name, lambda output: output.gather(1, positions).squeeze(1), positions)
    picked = (torch.arange(len(positions), device=positions.device), *positions.unbind(dim=1))
    return ResolvedTarget(name, lambda output: output[picked], positions)


def _predicted(_: requests.PredictedClass, name: str, output: Tensor) -> ResolvedTarget:
    if output.ndim == 1:
        return ResolvedTarget(name, identity)
    return element(name, _classes(name, output).argmax(dim=1, keepdim=True))


def _given_class(target: requests.ClassIndex, name: str, output: Tensor) -> ResolvedTarget:
    if output.ndim > 1:
        return element(name, _indices(target.indices, _classes(name, output)).unsqueeze(1))
    _one_per_row(torch.tensor(target.indices), len(output))
    if any(index != 0 for index in target.indices):
        text = f"the output has one number an example, of shape {list(output.shape)}; the only target is 0"
        raise error(Reason.TARGET_RANGE, text)
    return ResolvedTarget(name, identity)


def _top_k(target: requests.TopK, name: str, output: Tensor) -> tuple[ResolvedTarget, ...]:
    classes = _classes(name, output)
    if not 1 <= target.k <= classes.shape[1]:
        raise error(Reason.TARGET_RANGE, f"the output has {classes.shape[1]} classes, not {target.k}", "k")
    return tuple(element(name, ranked) for ranked in classes.topk(target.k, dim=1).indices.split(1, dim=1))


def _classes(name: str, output: Float[Tensor, "batch *axes"]) -> Float[Tensor, "batch classes"]:
    if output.ndim != 2:
        text = f"{name!r} has shape {list(output.shape)}; a class target needs [batch, classes]"
        remedy = "name one element by multi_index, or ask for the sum or the norm" if output.ndim > 2 else ""
        raise error(Reason.TARGET_SHAPE, f"{text}: {remedy}" if remedy else text)
    return output.detach()


def _indices(indices: tuple[int, ...], classes: Float[Tensor, "batch classes"]) -> Int64[Tensor, "batch"]:
    rows, count = classes.shape
    for index in indices:
        if not 0 <= index < count:
            raise error(Reason.TARGET_RANGE, f"target {index} is out of range; the output has classes 0 to {count - 1}")
    return _one_per_row(torch.tensor(indices, dtype=torch.int64, device=classes.device), rows)


def _one_per_row(values: Tensor, rows: int) -> Tensor:
    if len(values) not in (1, rows):
        raise error(Reason.TARGET_MISMATCH, f"{len(values)} targets for a batch of {rows}; send one for all, or {rows}")
    return values.expand(rows, *values.shape[1:]) if len(values) == 1 else values


def _multi_index(target: requests.MultiIndex, name: str, output: Tensor) -> ResolvedTarget:
    for number, position in enumerate(target.indices):
        with at(f"indices[{number}]"):
            _refuse_out_of_range(position, output)
    index = _one_per_row(torch.tensor(target.indices, dtype=torch.int64, device=output.device), len(output))
    return element(name, index) if output.ndim > 1 else ResolvedTarget(name, identity)


_ELEMENTS = (requests.PredictedClass, requests.ClassIndex, requests.MultiIndex)
"""The kinds of targets that a probability is of."""
_SIDES = (*_ELEMENTS, requests.OutputSum, requests.OutputNorm)
"""The kinds of targets that a contrast takes."""


def _log_probability(target: requests.LogProbability, name: str, output: Tensor) -> ResolvedTarget:
    what = "a probability is of a class or an element, and its output is named in the probability itself"
    one = _inner(target.target, "target", _ELEMENTS, what, name, output)
    if one.positions is None:
        what = f"{name!r} has one number an example, of shape {list(output.shape)}: a probability is of one of several"
        raise error(Reason.TARGET_SHAPE, what)
    element = _of_every_row(one)
    return ResolvedTarget(
        name,
        lambda output: element(functional.log_softmax(output, dim=-1)),
        is_row_specific=not _is_uniform(one),
    )


@dataclass(frozen=True)
class Continuation(requests.SequenceLogProbability):
    """The log-probability of texts as ``tokens`` [batch, steps], -1 behind the end of one."""

    tokens: Tensor = field(kw_only=True, compare=False)


def _continuation(target: Continuation, name: str, output: Tensor) -> tuple[ResolvedTarget, ...]:
    """Resolves the target for log-probabilities [batch, steps]: their sum, or one of each step."""
    if not target.by_token:
        return (ResolvedTarget(name, lambda output: output.sum(dim=1)),)
    steps = enumerate(target.tokens.unbind(dim=1))
    return tuple(ResolvedTarget(name, partial(_step, step), tokens=tokens) for step, tokens in steps)


def _step(step: int, output: Tensor) -> Tensor:
    return output[:, step]


def number_of_scalars(target: requests.Target, inputs: Inputs) -> int:
    """Returns how many scalars of each example ``target`` is, of a model with ``inputs``; 0 for one alone."""
    if not requests.is_several(target):
        return 0
    return target.k if isinstance(target, requests.TopK) else inputs[CONTINUATION].shape[1]


def _contrast(target: requests.Contrast, name: str, output: Tensor) -> ResolvedTarget:
    what = "a contrast is of classes, elements, sums or norms, and its output is named in the contrast itself"
    one, other = (_inner(getattr(target, each), each, _SIDES, what, name, output) for each in ("target", "other"))
    first, second = _of_every_row(one), _of_every_row(other)
    is_row_specific = not (_is_uniform(one) and _is_uniform(other))
    return ResolvedTarget(name, lambda output: first(output) - second(output), is_row_specific=is_row_specific)


def _inner(
    target: requests.Target,
    field: str,
    kinds: tuple[type[requests.Target], ...],
    refusal: str,
    name: str,
    output: Tensor,
) -> ResolvedTarget:
    """Resolves a target inside another one, which takes those ``kinds`` alone."""
    with at(field):
        if not isinstance(target, kinds) or target.output or target.position is not None:
            raise error(Reason.INVALID_VALUE, refusal)
        (resolved,) = resolve_for_output(target, name, output, len(output))
        return resolved


def _is_uniform(target: ResolvedTarget) -> bool:
    return target.positions is None or bool((target.positions == target.positions[:1]).all())


def _of_every_row(target: ResolvedTarget) -> ScalarFunction:
    """Returns the function of ``target``, for a batch of any size if it reads the same element of each row."""
    if target.positions is None or not _is_uniform(target):
        return target.function
    element = (slice(None), *target.positions[0].tolist())
    return lambda output: output[element]


def _refuse_out_of_range(position: tuple[int, ...], output: Tensor) -> None:
    sizes = output.shape[1:]
    if len(position) != len(sizes):
        text = f"{len(position)} indices for the {len(sizes)} axes behind the batch: {list(sizes)}"
        raise error(Reason.TARGET_SHAPE, text)
    if not all(0 <= index < size for index, size in zip(position, sizes)):
        raise error(Reason.TARGET_RANGE, f"{list(position)} is outside of the axes {list(sizes)}")


def _cross_entropy(target: requests.CrossEntropy, name: str, output: Tensor) -> ResolvedTarget:
    """Resolves a cross-entropy loss. For a mean over the batch, the target of each row is the row's share of the
    mean."""
    labels = _indices(target.labels, _classes(name, output))
    share = len(output) if target.reduction is requests.LossReduction.MEAN else 1

    def shares(output: Tensor) -> Tensor:
        return functional.cross_entropy(output, labels, reduction="none") / share

    return ResolvedTarget(name, shares, is_row_specific=True)


def _squared_error(target: requests.MeanSquaredError, name: str, output: Tensor) -> ResolvedTarget:
    values = _like(target.values, output, "values")
    share = output.numel() if target.reduction is requests.LossReduction.MEAN else 1

    def shares(output: Tensor) -> Tensor:
        return _flat((output - values) ** 2).sum(dim=1) / share

    return ResolvedTarget(name, shares, is_row_specific=True)


def _cotangent(target: requests.Cotangent, name: str, output: Tensor) -> ResolvedTarget:
    vector = _like(target.tensor, output, "tensor")
    return ResolvedTarget(name, lambda output: _flat(output * vector).sum(dim=1), is_row_specific=True)


def _like(value: Any, output: Tensor, field: str) -> Tensor:
    array: Array = as_array(value)
    if array.ndim == 0 and output.numel() == 1:  # a batch of one row, for which the model returns a number
        array = array.reshape(output.shape)
    if array.shape != tuple(output.shape):
        text = f"a tensor of shape {list(array.shape)}; the output has {list(output.shape)}"
        raise error(Reason.TARGET_SHAPE, text, field)
    with at(field):
        return tensor_like(array, output)


def _flat(values: Float[Tensor, "batch *axes"]) -> Float[Tensor, "batch elements"]:
    return values.reshape(len(values), -1)


def _neuron(target: requests.Neuron, name: str, output: Tensor) -> ResolvedTarget:
    selector = neuron_selector(target, output)
    picked: tuple[slice | int, ...] = (slice(None), *selector)

    def selected(output: Tensor) -> Tensor:
        return _flat(output[picked]).sum(dim=1) if target.slices else output[picked]

    return ResolvedTarget(name, selected, is_neuron=True)


def neuron_selector(neuron: requests.Neuron, output: Tensor) -> tuple[slice | int, ...]:
    """Returns what selects the neuron's elements in each row of ``output`` ``[batch, ...]``.

    Raises:
        InvalidArgument: ``TARGET_SHAPE``, ``TARGET_RANGE``, ``TARGET_MISMATCH``, ``AXIS_RANGE`` or ``SLICE_RANGE``.
    """
    if not neuron.slices:
        with at("index"):
            _refuse_out_of_range(neuron.index, output)
        return neuron.index
    if neuron.index:
        raise error(Reason.TARGET_MISMATCH, "a neuron is one element or a block: leave index or slices out", "index")
    with at("slices"):
        index = slice_index(neuron.slices, output.shape)
        ranges = [part for part in index if isinstance(part, slice)]
        if len(ranges) < len(index):
            raise error(Reason.TARGET_MISMATCH, "a neuron is a block: its slices are ranges, without indices")
    batch, *selector = ranges
    if batch != slice(None):
        raise error(Reason.AXIS_RANGE, "axis 0 is the batch: each example has its own neuron", "slices")
    return tuple(selector)


_RESOLVERS: dict[type[requests.Target], Callable[[Any, str, Tensor], ResolvedTarget | tuple[ResolvedTarget, ...]]] = {
    requests.PredictedClass: _predicted,
    requests.ClassIndex: _given_class,
    requests.MultiIndex: _multi_index,
    requests.Contrast: _contrast,
    requests.LogProbability: _log_probability,
    Continuation: _continuation,
    requests.TopK: _top_k,
    requests.CrossEntropy: _cross_entropy,
    requests.MeanSquaredError: _squared_error,
    requests.Cotangent: _cotangent,
    requests.OutputSum: lambda _, name, __: ResolvedTarget(name, lambda output: _flat(output).sum(dim=1)),
    requests.OutputNorm: lambda target, name, _: ResolvedTarget(
        name, lambda output: torch.linalg.vector_norm(_flat(output), target.order, dim=1)
    ),
    requests.Neuron: _neuron,
}
"""The resolvers by kind of target; a new kind is a new row."""


# The loss that an attack raises or lowers.

_LOSSES: dict[str, Callable[[ResolvedTarget, Tensor], Tensor]] = {
    "cross_entropy": lambda target, output: -target.scalars(output.log_softmax(dim=-1)),
    "negative_log": lambda target, output: -target.scalars(output).log(),
    "negative": lambda target, output: -target.scalars(output),
    "itself": lambda target, output: target.scalars(output),
}


@dataclass(frozen=True)
class Loss(ResolvedTarget):
    """The loss of each row, in the place of its target.

    Attributes:
        of: the target.
        kind: a name in `_LOSSES`.
        classifies: whether the target is one of several classes.
    """

    of: ResolvedTarget = field(kw_only=True)
    kind: str = field(kw_only=True)
    classifies: bool = field(kw_only=True)

    @classmethod
    def made(cls, of: ResolvedTarget, kind: str, classifies: bool) -> Loss:
        """Returns the loss of the target ``of``."""
        function = partial(_LOSSES[kind], of)
        return cls(
            of.source, function, None, None, of.is_neuron, of.is_row_specific, of=of, kind=kind, classifies=classifies
        )

    def for_rows(self, rows: Int64[Tensor, "rows"]) -> Loss:
        """Returns the loss for a batch of the rows with the numbers ``rows``; it must not be row-specific."""
        return self.made(self.of.for_rows(rows), self.kind, self.classifies)

    def scores(self, output: Tensor) -> Float[Tensor, "batch classes"]:
        """Returns the scores of all classes, of one of which it is the loss."""
        *axes, _ = cast(Tensor, self.of.positions).unbind(dim=1)
        index = (torch.arange(len(output), device=output.device), *axes)
        return output[index]

    def reached(self, output: Tensor, targeted: bool) -> Tensor:
        """Returns which rows have another class, or with ``targeted`` that of the loss; [batch] of bool."""
        same = self.scores(output).argmax(dim=1) == cast(Tensor, self.of.positions)[:, -1]
        return same if targeted else ~same
