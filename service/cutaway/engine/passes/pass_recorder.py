"""Attribution problems, and the recorder of what raw hooks see in the passes that solve them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from itertools import accumulate, islice
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from cutaway.contract import requests
from cutaway.contract.errors import Reason, error
from cutaway.engine.hooks.capture_spec import SpecsBySite, watching
from cutaway.engine.hooks.edits import NumberedEdit
from cutaway.engine.hooks.observe import observing
from cutaway.engine.hooks.recording import RecordedCall, Recording, copy_to_host
from cutaway.engine.model.inspected_model import Inputs, InspectedModel, gradients
from cutaway.engine.passes.features import Features
from cutaway.engine.passes.pass_memory import SharedPasses, run_in_parts
from cutaway.engine.passes.targets import ResolvedTarget

# Joined and repeated batches: Captum puts all copies of a row next to each other.


class CannotShare(Exception):
    """A tensor of a shared pass cannot be split by request: each request has to run alone."""


class RowRange(NamedTuple):
    """The rows of one request inside a batch of several requests.

    Attributes:
        start: the first row.
        stop: the row behind the last one.
        total: the number of rows of the batch.
    """

    start: int
    stop: int
    total: int

    @property
    def is_whole(self) -> bool:
        """Whether these are all rows of the batch."""
        return self.stop - self.start == self.total

    def of(self, tensor: Tensor, axis: int | None = 0) -> Tensor:
        """Returns these rows of ``tensor``, along ``axis``; the tensor itself where they are the whole batch.

        Raises:
            CannotShare: the axis does not have the rows of the batch.
        """
        if self.is_whole:
            return tensor
        if axis is None or tensor.shape[axis : axis + 1] != (self.total,):
            raise CannotShare
        return tensor.narrow(axis, self.start, self.stop - self.start)

    def of_copies(self, tensor: Tensor) -> Tensor:
        """Returns these rows of ``tensor`` ``[copies * total, ...]``, which holds the batch several times, one copy
        after the other; raises as `of`."""
        if self.is_whole:
            return tensor
        copies, rest = divmod(len(tensor), self.total) if tensor.ndim else (0, 1)
        if rest or not copies:
            raise CannotShare
        by_copy = tensor.reshape(copies, self.total, *tensor.shape[1:])
        return by_copy[:, self.start : self.stop].flatten(0, 1)


def consecutive(sizes: Sequence[int]) -> list[RowRange]:
    """Returns the rows of each request in a batch of requests of ``sizes`` rows, one behind the other."""
    return [RowRange(stop - size, stop, sum(sizes)) for size, stop in zip(sizes, accumulate(sizes))]


def concatenated(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Returns the tensors of all ``parts`` by name, one behind the other along axis 0; of one part its own tensors."""
    return dict(parts[0]) if len(parts) == 1 else {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def split_copies(tensors: Sequence[Tensor], copies: int) -> list[tuple[Tensor, ...]]:
    """Returns tensors ``[batch * copies, ...]`` as ``copies`` batches, ``[batch, ...]`` each."""
    return [tuple(tensor[number::copies] for tensor in tensors) for number in range(copies)]


def interleave_copies(batches: Sequence[Shaped[Tensor, "batch *axes"]]) -> Shaped[Tensor, "rows *axes"]:
    """Returns batches ``[batch, ...]`` as one tensor ``[batch * copies, ...]``; inverse of `split_copies`."""
    return torch.stack(tuple(batches), dim=1).flatten(0, 1)


def run_copies_separately(forward: Callable[..., Tensor], copies: int) -> Callable[..., Tensor]:
    """Returns ``forward`` with a pass for each of ``copies`` of a batch, so that edits and targets meet their rows."""

    def run(*tensors: Tensor) -> Tensor:
        return interleave_copies([forward(*batch) for batch in split_copies(tensors, copies)])

    return run


def run_in_batches(forward: Callable[..., Tensor], size: int, tensors: Sequence[Tensor]) -> Tensor:
    """Returns ``forward`` of copies of a batch, which lie next to each other, in passes of ``size`` rows; fewer rows
    are filled up with copies of the last one."""
    rows = len(tensors[0])
    if rows >= size:
        return run_copies_separately(forward, rows // size)(*tensors)
    filled = [*range(rows), *[rows - 1] * (size - rows)]
    return forward(*(tensor[filled] for tensor in tensors))[:rows]


def is_row_specific_edit(edit: requests.Edit) -> bool:
    """Returns whether ``edit`` differs from row to row, so that it needs passes of the batch as it is."""
    adds_tensor = isinstance(edit, requests.Add) and not isinstance(edit.addend, (int, float))
    is_of_rows = adds_tensor or isinstance(edit, (requests.Replace, requests.Mix)) or edit.position is not None
    return bool(edit.rows or edit.slices or is_of_rows)


T = TypeVar("T")

Values = dict[str, Tensor]
"""Attributions by name: of input methods by input, of layer methods by layer."""

Changes: TypeAlias = Mapping[str, Sequence[NumberedEdit]]
"""Edits by module name and operator address."""


@dataclass(frozen=True)
class ResolvedAttribution:
    """One attribution of a request, validated and resolved for its batch before anything runs.

    Attributes:
        model: the model.
        request: the method and its parameters.
        inputs: all inputs of the model, ``[batch, ...]`` each.
        explained: names of the inputs that are attributed.
        layer: the layer's own name, or ``""``.
        further_layers: the own names of layers that are explained together with it.
        is_batch_first: whether axis 0 of what the layers return was seen to be the batch.
        baselines: by explained input, ``[batch, ...]``, or samples of a distribution, ``[samples, ...]``; empty for
            methods without.
        edits: what is changed in every pass.
        features: what is perturbed; empty for methods that perturb nothing.
        seed: the seed of random numbers; None where none are drawn.
        batch_size: the number of rows of every pass, for a model that fails on others; 0 for any number.
        most_rows: the most rows of a pass that can be divided; 0 where memory allows any number.
        shared: what passes for several targets returned; None where they share none.
    """

    model: InspectedModel
    request: requests.Attribution
    inputs: Inputs
    explained: tuple[str, ...]
    layer: str = ""
    baselines: Mapping[str, Tensor] = field(default_factory=dict)
    edits: tuple[requests.Edit, ...] = ()
    features: Features = field(default_factory=Features)
    seed: int | None = None
    further_layers: tuple[str, ...] = ()
    is_batch_first: bool = False
    batch_size: int = 0
    most_rows: int = 0
    shared: SharedPasses | None = None

    def at_target(self, target: ResolvedTarget) -> AttributionProblem:
        """Returns the problem of attributing ``target``."""
        return AttributionProblem(**vars(self), target=target)

    @property
    def modules(self) -> dict[str, str]:
        """The layer and the neuron's module, by own name: the request field of each, below the method's own."""
        modules = {self.layer: "layer"} if self.layer else {}
        modules |= {name: f"further_layers[{number}]" for number, name in enumerate(self.further_layers)}
        if isinstance(self.request, requests.NeuronAttribution):
            modules[self.model.tree.resolve(self.request.neuron.module)] = "neuron.module"
        return modules

    @property
    def module(self) -> str:
        """The module that Captum gets besides the model: the layer, else the neuron's; ``""`` for neither."""
        return next(iter(self.modules), "")

    @property
    def layers(self) -> tuple[str, ...]:
        """All layers that are explained."""
        return (self.layer, *self.further_layers) if self.layer else ()

    @property
    def channels(self) -> tuple[str, int | None] | None:
        """The layer over whose channels Grad-CAM sums, and their axis if the request names it; None elsewhere."""
        if not isinstance(self.request, (requests.LayerGradCam, requests.GuidedGradCam)):
            return None
        return self.layer, self.request.channel_axis

    @property
    def rows(self) -> int:
        """The batch size."""
        return next(iter(self.inputs.values())).shape[0]


@dataclass(frozen=True)
class AttributionProblem(ResolvedAttribution):
    """A resolved attribution, and its target.

    Attributes:
        target: the scalar of each row.
        unreached: explained inputs that the target does not depend on, and whose gradients are zeros.
        cache: results of `cached_per_problem` functions, and of tests of the model.
    """

    target: ResolvedTarget = field(kw_only=True)
    unreached: tuple[str, ...] = ()
    cache: dict[Hashable, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    @property
    def is_row_specific(self) -> bool:
        """Whether edits or the target may differ from row to row, or the model takes batches of one size, so that each
        pass must have the batch as it is."""
        return bool(self.edits) or self.target.is_row_specific or bool(self.batch_size)

    @property
    def mixes_rows(self) -> bool:
        """Whether an edit makes rows depend on each other."""
        return any(isinstance(edit, requests.Mix) and not edit.point.is_gradient for edit in self.edits)

    @property
    def edits_gradients(self) -> bool:
        """Whether an edit changes gradients, which then are not those of the forward pass."""
        return any(edit.point.is_gradient for edit in self.edits)

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """The explained inputs, in the order in which Captum gets them."""
        return tuple(self.inputs[name] for name in self.explained)

    @property
    def additional_inputs(self) -> tuple[Tensor, ...]:
        """The other inputs, which every pass gets unchanged."""
        return tuple(tensor for name, tensor in self.inputs.items() if name not in self.explained)

    @property
    def baseline_points(self) -> list[Inputs]:
        """The explained inputs at the baseline, ``[batch, ...]``; of a distribution at each sample, for all rows."""
        if not isinstance(self.request, requests.Expectation):
            return [dict(self.baselines)]
        samples = zip(*(self.baselines[name] for name in self.explained))
        return [
            {name: baseline.expand_as(self.inputs[name]) for name, baseline in zip(self.explained, sample)}
            for sample in samples
        ]

    def of_rows(self, rows: Sequence[int]) -> AttributionProblem:
        """Returns the problem for a batch of the rows with the numbers ``rows``, some of them several times; it must
        not be row-specific."""
        index, batch, features = list(rows), self.rows, self.features

        def own(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: tensor[index] for name, tensor in tensors.items()}

        numbers = {name: mask[index] if len(mask) == batch > 1 else mask for name, mask in features.numbers.items()}
        return replace(
            self,
            inputs=own(self.inputs),
            target=self.target.for_rows(torch.tensor(index, device=self.model.device)),
            baselines=self.baselines if isinstance(self.request, requests.Expectation) else own(self.baselines),
            features=replace(features, numbers=numbers),
        )

    def in_batch_order(self, tensor: Tensor) -> Tensor:
        """Returns ``tensor`` ``[copies * batch, ...]`` with one copy of the batch after the other.

        Captum's DeepLIFT runs each row once for each sample of a distribution, row by row, inputs first and then
        baselines. Expected gradients run each row once for each draw.
        """
        drawn = isinstance(self.request, requests.ExpectedGradient)
        sides, samples = (1, self.request.n_samples) if drawn else (2, len(self.baseline_points))  # type: ignore[attr-defined]
        if samples < 2 or tensor.shape[:1] != (sides * samples * self.rows,):
            return tensor
        return tensor.reshape(sides, self.rows, samples, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)

    def forward(self, *tensors: Tensor) -> Tensor:
        """Runs the model as Captum calls it, with the explained inputs first; returns what `read` does."""
        additional = (name for name in self.inputs if name not in self.explained)
        names = (*self.explained, *additional)

        def run(*tensors: Tensor) -> Tensor:
            by_name = dict(zip(names, tensors))
            output = self.read({name: by_name[name] for name in self.inputs})
            for name in self.unreached:  # nothing of it is added, so that its gradient is zeros and not missing
                output = output + by_name[name].reshape(-1)[:0].sum().to(output.dtype)
            return output

        if self.most_rows and not self.batch_size and not self.module:
            return run_in_parts(run, self.most_rows, tensors)
        return run_in_batches(run, self.batch_size, tensors) if self._is_split(len(tensors[0])) else run(*tensors)

    def _is_split(self, rows: int) -> bool:
        """Returns whether a pass of ``rows`` needs other batches.

        Raises:
            InvalidArgument: ``METHOD_INAPPLICABLE``, where Captum reads a module, of which it sees the last call.
        """
        if self.batch_size in (0, rows):
            return False
        if self.module:
            raise error(
                Reason.METHOD_INAPPLICABLE,
                f"Captum's {type(self.request).__name__} runs passes of {rows} rows, and the model fails on other "
                f"batches than of {self.batch_size}: ask {'Layer' if self.layer else 'Neuron'}IntegratedGradients, "
                "which runs step by step",
            )
        return True

    def read(self, inputs: Inputs) -> Tensor:
        """Runs the model, and returns what the target is read from: an output, or a neuron's module's activation."""
        run = partial(read_target, self.model, self.target, inputs)
        return run() if self.shared is None else self.shared.output(inputs, run)


def cached_per_problem(function: Callable[[AttributionProblem], T]) -> Callable[[AttributionProblem], T]:
    """Decorates a function that runs the model: its result is computed once for each problem."""

    @wraps(function)
    def cached(problem: AttributionProblem) -> T:
        if function not in problem.cache:
            problem.cache[function] = function(problem)
        return cast(T, problem.cache[function])

    return cached


def read_target(model: InspectedModel, target: ResolvedTarget, inputs: Inputs) -> Tensor:
    """Runs the model, and returns what ``target`` is read from: an output, or a neuron's module's activation."""
    return run_to_neuron(model, inputs, target.source) if target.is_neuron else model.run(inputs)[target.source]


def run_to_neuron(model: InspectedModel, inputs: Inputs, module: str) -> Tensor:
    """Runs the model and returns the first tensor that the neuron's ``module`` returned, as a node of the graph."""
    with observing(model.tree, {}, keep_output_of=module) as recording, recording.forward():
        model.run(inputs)
        return neuron_output(recording.kept_output, module)


def neuron_output(output: Tensor | None, module: str) -> Tensor:
    """Returns ``output``, the first tensor that a neuron's module returned.

    Raises:
        InvalidArgument: ``POINT_NOT_FOUND``, where it returned none.
    """
    if output is None:
        raise error(Reason.POINT_NOT_FOUND, f"no tensor came out of {module!r} that has a neuron", "neuron.module")
    return output


@dataclass
class Pass:
    """The record of one forward pass and of its backward pass, on the host.

    Attributes:
        points: the explained inputs that the model got, by name.
        additional_inputs: the other inputs.
        output: what the target is read from.
        cotangent: the gradient at ``output`` that the backward pass began with; None without one.
        gradients: the target's gradients at the points; without those that no backward pass reached.
        layer: the calls of the problem's layer.
        copy: the number of the noisy copy of the inputs that the pass belongs to.
    """

    points: Values
    additional_inputs: Sequence[Tensor] = ()
    output: Tensor = field(default_factory=lambda: torch.empty(0))
    cotangent: Tensor | None = None
    gradients: Values = field(default_factory=dict)
    layer: Sequence[RecordedCall] = ()
    copy: int = 0

    @property
    def rows(self) -> int:
        """The number of rows that ran together."""
        return len(next(iter(self.points.values())))

    def note_backward(self, gradient: Tensor) -> None:
        """Records the gradient that a backward pass begins with."""
        self.cotangent = copy_to_host(gradient)


class PassRecorder:
    """A recorder with raw hooks on the model's inputs and on one layer, in passes that this class or Captum runs.

    The hooks are registered anew for each pass, behind Captum's, and on tensors only. They change neither the model's
    values nor those that other hooks see.

    Args:
        problem: the problem, with inputs and layer.
        edits: what is changed in each pass besides, for methods that are made of such passes.
        at_layer: False records the inputs only.
        sites: what is observed besides, in ``recording``.
        take: gets each pass when it has ended; by default they are kept in ``passes``.
    """

    def __init__(
        self,
        problem: AttributionProblem,
        edits: Changes | None = None,
        *,
        at_layer: bool = True,
        sites: SpecsBySite | None = None,
        take: Callable[[Pass], None] | None = None,
    ) -> None:
        self._problem = problem
        self._layer = problem.layer if at_layer else ""
        self._sites = dict(sites or {})
        if self._layer:
            self._sites[self._layer] = watching(requests.Point.OUTPUT, requests.Point.GRAD_OUTPUT)
        self._edits = edits or {}
        self.recording = Recording()
        self.passes: list[Pass] = []
        self._take = self.passes.append if take is None else take
        self._running: Pass | None = None

    def forward(self, *tensors: Tensor) -> Tensor:
        """Runs `AttributionProblem.forward`, which begins a pass: its backward pass may follow, up to the next one."""
        self.release()
        self.recording.calls.pop(self._layer, None)
        problem, in_order = self._problem, self._problem.in_batch_order
        copies, count = [copy_to_host(in_order(tensor)) for tensor in tensors], len(problem.explained)
        recorded = Pass(dict(zip(problem.explained, copies)), copies[count:])
        for name, tensor in zip(problem.explained, tensors):
            if tensor.requires_grad and torch.is_grad_enabled():
                _record_gradient(tensor, recorded, name, in_order)
        observed = observing(problem.model.tree, self._sites, self._edits, copies=False, recording=self.recording)
        with observed, self.recording.forward():
            output = problem.forward(*tensors)
        if problem.edits_gradients:
            output = output.clone()  # the pass begins with the gradient before an edit of the gradient here
        if output.requires_grad and not output.is_leaf:
            output.register_hook(lambda gradient: recorded.note_backward(in_order(gradient)))
        recorded.output = copy_to_host(in_order(output))
        recorded.layer = self.recording.calls[self._layer] if self._layer else ()
        self._running = recorded
        return output

    def visit(self, points: Values, differentiate: bool, *, to_inputs: bool = True) -> None:
        """Runs a forward pass at ``points``, and a backward pass if ``differentiate``; without ``to_inputs`` only as
        far as the layer."""
        with torch.set_grad_enabled(differentiate):
            arguments = [points[name].detach().clone() for name in self._problem.explained]
            leaves = [tensor.requires_grad_() for tensor in arguments if differentiate and tensor.is_floating_point()]
            output = self.forward(*arguments, *self._problem.additional_inputs)
            edges = [*map(get_gradient_edge, leaves if to_inputs else ()), *self.recording.gradient_roots]
            if differentiate and edges and output.requires_grad:
                gradients(self._problem.target.scalars(output), edges)

    def release(self) -> None:
        """Releases the autograd graph of the last pass, and hands over the pass that was running, if any."""
        self.recording.release()
        ended, self._running = self._running, None
        if ended is not None:
            self._take(ended)


def _record_gradient(tensor: Tensor, recorded: Pass, name: str, in_order: Callable[[Tensor], Tensor]) -> None:
    def record(gradient: Tensor) -> None:
        recorded.gradients[name] = copy_to_host(in_order(gradient))

    tensor.register_hook(record)


def run_passes(
    problem: AttributionProblem,
    points: Iterable[Values],
    differentiate: bool,
    edits: Changes | None = None,
    *,
    to_inputs: bool = True,
    points_per_pass: int = 1,
) -> Iterator[Pass]:
    """Runs passes of our own, each when it is asked for, and yields what the hooks recorded.

    Args:
        problem: the problem.
        points: the explained inputs of each pass, by name, ``[batch, ...]``.
        differentiate: whether backward passes are run.
        edits: what is changed besides the problem's edits.
        to_inputs: whether backward passes go back to the inputs, and not only to the layer.
        points_per_pass: how many points run in one pass. Near a kink a rounding decides which side is active, and only
            batches of the size of Captum's round as Captum's do.
    """
    further = iter(points)
    while chunk := list(islice(further, points_per_pass)):
        rows = [*range(problem.rows)] * len(chunk)
        recorder = PassRecorder(problem if len(chunk) == 1 else problem.of_rows(rows), edits)
        try:
            recorder.visit(concatenated(chunk), differentiate, to_inputs=to_inputs)
        finally:
            recorder.release()
        yield from recorder.passes
