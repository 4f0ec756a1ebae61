"""What is asked of an attribution method, and what raw hooks saw while it was answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from itertools import zip_longest
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from cutaway.engine.features import Features
from cutaway.engine.hooks import observing
from cutaway.engine.landing import on_host
from cutaway.engine.seen import Call, Seen
from cutaway.engine.subject import Inputs, Subject, gradients
from cutaway.engine.tap import Numbered
from cutaway.engine.targets import Chosen
from cutaway.engine.wishes import watching
from cutaway.errors import Reason, error
from cutaway.requests import Attribution, Edit, Expectation, ExpectedGradient, Mix, NeuronAttribution, Point

T = TypeVar("T")

Values = dict[str, Tensor]
"""Attributions by name: inputs for input methods, the layer for layer methods."""

Changes: TypeAlias = Mapping[str, Sequence[Numbered]]
"""What a method changes in its passes, by module name and operator address."""


@dataclass(frozen=True)
class Question:
    """One attribution asked for, made definite for one batch.

    Attributes:
        subject: the model.
        request: the method and its parameters.
        inputs: everything that forward takes, [batch, ...] each.
        explained: names of the inputs that are attributed.
        chosen: the scalar of each row.
        layer: the layer's own name, or ``""``.
        baselines: by explained input, of the input's shape, or samples of a distribution; empty for methods without.
        edits: what is changed in every pass.
        features: what is perturbed; nothing, for methods that perturb nothing.
        seed: what random numbers are drawn from; None where none are.
        known: what was found out about it, by the function that did.
    """

    subject: Subject
    request: Attribution
    inputs: Inputs
    explained: tuple[str, ...]
    chosen: Chosen
    layer: str = ""
    baselines: Mapping[str, Tensor] = field(default_factory=dict)
    edits: tuple[Edit, ...] = ()
    features: Features = field(default_factory=Features)
    seed: int | None = None
    known: dict[Callable[..., Any], Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    @property
    def module(self) -> str:
        """The module that Captum is given besides the model: the layer, or the neuron's; ``""`` for neither."""
        if self.layer or not isinstance(self.request, NeuronAttribution):
            return self.layer
        return self.subject.tree.resolve(self.request.neuron.module)

    @property
    def keeps_rows(self) -> bool:
        """Whether each pass must have the batch's own rows in their places: edits and targets may tell them apart."""
        return bool(self.edits) or self.chosen.bound

    @property
    def mixes_rows(self) -> bool:
        """Whether an edit lets rows depend on each other."""
        return any(isinstance(edit, Mix) and not edit.point.is_gradient for edit in self.edits)

    @property
    def edits_gradients(self) -> bool:
        """Whether what flows upstream is no longer the gradient of what flowed downstream."""
        return any(edit.point.is_gradient for edit in self.edits)

    @property
    def rows(self) -> int:
        """The batch size."""
        return next(iter(self.inputs.values())).shape[0]

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """The explained inputs, as Captum takes them."""
        return tuple(self.inputs[name] for name in self.explained)

    @property
    def further(self) -> tuple[Tensor, ...]:
        """The inputs that are passed on unchanged."""
        return tuple(tensor for name, tensor in self.inputs.items() if name not in self.explained)

    @property
    def starts(self) -> list[Inputs]:
        """What the explained inputs are compared with, of their shapes: the baseline; of a distribution each sample,
        the same for all rows."""
        if not isinstance(self.request, Expectation):
            return [dict(self.baselines)]
        samples = zip(*(self.baselines[name] for name in self.explained))
        return [
            {name: each.expand_as(self.inputs[name]) for name, each in zip(self.explained, sample)}
            for sample in samples
        ]

    def by_batches(self, tensor: Tensor) -> Tensor:
        """``tensor``, [rows, ...], as one batch after the other: Captum's DeepLIFT runs each row once for each sample
        of a distribution, row by row, inputs first and then baselines; expected gradients once for each draw."""
        drawn = isinstance(self.request, ExpectedGradient)
        sides, samples = (1, self.request.n_samples) if drawn else (2, len(self.starts))  # type: ignore[attr-defined]
        if samples < 2 or tensor.shape[:1] != (sides * samples * self.rows,):
            return tensor
        return tensor.reshape(sides, self.rows, samples, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)

    def forward(self, *tensors: Tensor) -> Tensor:
        """The model as Captum calls it: explained inputs first, then the further ones; returns the output that the
        target is read from."""
        further = (name for name in self.inputs if name not in self.explained)
        given = dict(zip((*self.explained, *further), tensors))
        return self.read({name: given[name] for name in self.inputs})

    def read(self, inputs: Inputs) -> Tensor:
        """What the target is read from: an output, or for a neuron what its module returned."""
        if not self.chosen.is_neuron:
            return self.subject.run(inputs)[self.chosen.source]
        with observing(self.subject.tree, {}, alive=self.chosen.source) as seen, seen.forward():
            self.subject.run(inputs)
            return living(seen, self.chosen.source)


def once(find: Callable[[Question], T]) -> Callable[[Question], T]:
    """``find``, which runs the model to see something, made to do so once for each question."""

    @wraps(find)
    def found(question: Question) -> T:
        if find not in question.known:
            question.known[find] = find(question)
        answer: T = question.known[find]
        return answer

    return found


def living(seen: Seen, module: str) -> Tensor:
    """What the neuron's module returned, as a node of the graph.

    Raises:
        InvalidArgument: ``POINT_NOT_FOUND``.
    """
    if seen.neuron is None:
        raise error(Reason.POINT_NOT_FOUND, f"no tensor came out of {module!r} that has a neuron", "neuron.module")
    return seen.neuron


@dataclass
class Pass:
    """What the hooks saw of one forward pass and of the backward pass from it, on the host.

    Attributes:
        points: the explained inputs that went in, by name.
        further: the inputs that are passed on unchanged.
        output: what the target is read from.
        cotangent: what the backward pass began with, there; None without one.
        gradients: the target's gradients at the points; without those that no backward pass reached.
        layer: the calls of the question's layer.
    """

    points: Values
    further: Sequence[Tensor] = ()
    output: Tensor = field(default_factory=lambda: torch.empty(0))
    cotangent: Tensor | None = None
    gradients: Values = field(default_factory=dict)
    layer: Sequence[Call] = ()

    def begin_backward(self, gradient: Tensor) -> None:
        """Note that a backward pass began, and with what."""
        self.cotangent = on_host(gradient)


class Witness:
    """Raw hooks on the model's inputs and on one layer, listening while somebody runs passes.

    The hooks sit down anew for each pass, behind those of whoever runs it, and hook bare tensors: listening changes
    neither what the model computes nor what others' hooks see.

    Args:
        question: whose inputs and layer.
        edits: what is changed in each pass besides, because the method is made of such passes.
        at_layer: False listens at the inputs alone.
    """

    def __init__(self, question: Question, edits: Changes | None = None, *, at_layer: bool = True) -> None:
        self._question = question
        listens = bool(question.layer) and at_layer
        self._layer = question.layer if listens else ""
        self._taps = {question.layer: watching(Point.OUTPUT, Point.GRAD_OUTPUT)} if listens else {}
        self._edits = edits or {}
        self._seen = Seen()
        self._copies: list[Tensor] = []
        self.passes: list[Pass] = []

    def forward(self, *tensors: Tensor) -> Tensor:
        """`Question.forward`, with every pass noted."""
        names = self._question.explained
        rows = map(self._question.by_batches, tensors)
        self._copies = [_copied(tensor, last) for tensor, last in zip_longest(rows, self._copies)]
        noted = Pass(dict(zip(names, self._copies)), self._copies[len(names) :])
        for name, tensor in zip(names, tensors):
            if tensor.requires_grad and torch.is_grad_enabled():
                _note_gradient(tensor, noted, name, self._question.by_batches)
        before = self._layer_calls()
        tree = self._question.subject.tree
        with observing(tree, self._taps, self._edits, copies=False, seen=self._seen), self._seen.forward():
            output = self._question.forward(*tensors)
        if self._question.edits_gradients:
            output = output.clone()  # an edit of the gradient here must not be taken for what the pass began with
        if output.requires_grad and not output.is_leaf:
            output.register_hook(lambda gradient: noted.begin_backward(self._question.by_batches(gradient)))
        noted.output = on_host(self._question.by_batches(output))
        noted.layer = self._seen.calls[self._layer][before:] if self._layer else ()
        self.passes.append(noted)
        return output

    def visit(self, points: Values, differentiate: bool, *, to_inputs: bool = True) -> None:
        """Run a forward pass of its own at ``points``, and a backward pass where the method needs gradients.
        ``to_inputs``: go back as far as that, and not only to the layer."""
        with torch.set_grad_enabled(differentiate):
            given = [points[name].detach().clone() for name in self._question.explained]
            leaves = [tensor.requires_grad_() for tensor in given if differentiate and tensor.is_floating_point()]
            output = self.forward(*given, *self._question.further)
            wanted = [*map(get_gradient_edge, leaves if to_inputs else ()), *self._seen.gradient_roots]
            if differentiate and wanted and output.requires_grad:
                gradients(self._question.chosen.of(output), wanted)

    def release(self) -> None:
        """Let go of the graphs; what was seen of them stays."""
        self._seen.release()

    def _layer_calls(self) -> int:
        return len(self._seen.calls.get(self._layer, []))


def _copied(tensor: Tensor, last: Tensor | None) -> Tensor:
    """``tensor`` on the host; the copy that the pass before has, where it is the same: thousands of passes may be at
    one point."""
    copy = on_host(tensor)
    same = last is not None and (last.dtype, last.shape) == (copy.dtype, copy.shape) and torch.equal(last, copy)
    return last if same and last is not None else copy


def _note_gradient(tensor: Tensor, noted: Pass, name: str, by_batches: Callable[[Tensor], Tensor]) -> None:
    def note(gradient: Tensor) -> None:
        noted.gradients[name] = on_host(by_batches(gradient))

    tensor.register_hook(note)


def visits(
    question: Question,
    points: Sequence[Values],
    differentiate: bool,
    edits: Changes | None = None,
    *,
    to_inputs: bool = True,
    together: int = 1,
) -> Sequence[Pass]:
    """Passes of our own, and what the hooks saw of them.

    Args:
        question: what is asked.
        points: where.
        differentiate: whether gradients are taken.
        edits: what is changed besides the question's own edits.
        to_inputs: whether gradients go back to the inputs, and not only to the layer.
        together: how many points run in one pass. Near a kink a rounding decides what is on, and only batches of the
            size of Captum's round as its do.
    """
    passes: list[Pass] = []
    for first in range(0, len(points), together):
        chunk = points[first : first + together]
        witness = Witness(question if len(chunk) == 1 else widened(question, len(chunk)), edits)
        point = {name: torch.cat([each[name] for each in chunk]) for name in chunk[0]} if len(chunk) > 1 else chunk[0]
        try:
            witness.visit(point, differentiate, to_inputs=to_inputs)
        finally:
            witness.release()
        passes += witness.passes
    return passes


def widened(question: Question, times: int) -> Question:
    """``question`` with its batch several times over, one after the other. Only for rows without numbers of their
    own."""
    rows = torch.arange(question.rows, device=question.subject.device).repeat(times)
    inputs = {name: tensor[rows] for name, tensor in question.inputs.items()}
    return replace(question, inputs=inputs, chosen=question.chosen.taking(rows))
