"""Finds models for which Captum's LRP is wrong: Captum hooks modules, and keeps one relevance for each tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from cutaway.contract.requests import Epsilon, Point, RelevanceIdentity
from cutaway.contract.results import Cause
from cutaway.engine.hooks.capture_spec import watching
from cutaway.engine.hooks.observe import observing
from cutaway.engine.model.inspected_model import gradients
from cutaway.engine.passes.findings import Finding
from cutaway.engine.passes.pass_recorder import AttributionProblem, cached_per_problem
from cutaway.engine.references import lrp
from cutaway.engine.references.lrp import RelevanceLayer


@dataclass
class GraphTensor:
    """A tensor between layers.

    Attributes:
        producer: the layer that returned it; None for an input of the model.
        consumers: the layers that take it.
        relevance_consumers: those of them through which relevance comes back to it.
    """

    producer: RelevanceLayer | None = None
    consumers: list[RelevanceLayer] = field(default_factory=list)
    relevance_consumers: list[RelevanceLayer] = field(default_factory=list)


class LayerGraph:
    """The graph of layers: which takes the output of which, and which of them the target's gradient reaches.

    Attributes:
        reached: the layers whose output a gradient reached.
        tensors: the tensors between layers, by id and version.
        out_of_order: layers of which a later call takes a tensor that existed before an earlier call began.
        pass_through: layers that return the very tensor that they take.
        output: the tensor from which the target is read; None if no layer took it.
    """

    def __init__(self, problem: AttributionProblem) -> None:
        self.reached: dict[RelevanceLayer, None] = {}
        self.tensors: dict[tuple[int, int], GraphTensor] = {}
        self.out_of_order: dict[RelevanceLayer, None] = {}
        self.pass_through: dict[RelevanceLayer, None] = {}
        self.output: GraphTensor | None = None
        self._kept: list[Tensor] = []  # so that no tensor gets another's id
        self._produced: dict[int, tuple[int, RelevanceLayer]] = {}
        self._began: dict[RelevanceLayer, int] = {}
        self._entered: dict[int, RelevanceLayer] = {}
        self._clock = 0
        try:
            self._run(problem)
        finally:
            self._kept.clear()  # the graph leads back here, in a cycle that Python's collector cannot see

    def _run(self, problem: AttributionProblem) -> None:
        edits = lrp.layer_edits(
            lrp.relevance_layers(problem), lambda layer: (self._entering(layer), self._leaving(layer))
        )
        sites = {problem.layer: watching(Point.GRAD_OUTPUT)} if problem.layer else {}
        inputs = {name: problem.inputs[name].detach().clone().requires_grad_() for name in problem.explained}
        with observing(problem.model.tree, sites, edits) as recording:
            with recording.forward():
                output = problem.read({**problem.inputs, **inputs})
            self.output = self.tensors.get((id(output), output._version))
            roots = recording.gradient_roots if problem.layer else [*map(get_gradient_edge, inputs.values())]
            if roots and output.requires_grad:
                gradients(problem.target.scalars(output), list(roots))

    def _entering(self, layer: RelevanceLayer) -> Callable[[Tensor], Tensor]:
        """Returns a function that copies a tensor which enters ``layer``. The function notes the tensor's producer, its
        consumers and the order of calls."""

        def enter(tensor: Tensor) -> Tensor:
            self._clock += 1
            self._kept.append(tensor)
            produced, producer = self._produced.get(id(tensor), (0, None))
            if produced < self._began.get(layer, 0):
                self.out_of_order[layer] = None
            self._began[layer] = self._clock
            between = self.tensors.setdefault((id(tensor), tensor._version), GraphTensor(producer))
            between.consumers.append(layer)
            copied = self._copied(tensor, lambda: between.relevance_consumers.append(layer))
            self._entered[id(copied)] = layer
            return copied

        return enter

    def _leaving(self, layer: RelevanceLayer) -> Callable[[Tensor], Tensor]:
        def leave(tensor: Tensor) -> Tensor:
            self._clock += 1
            if self._entered.get(id(tensor)) == layer:
                self.pass_through[layer] = None
            copied = self._copied(tensor, lambda: self.reached.update({layer: None}))
            self._produced[id(copied)] = self._clock, layer
            return copied

        return leave

    def _copied(self, tensor: Tensor, on_gradient: Callable[[], None]) -> Tensor:
        """Returns a copy that calls ``on_gradient`` when a gradient arrives at it."""

        def backward(gradient: Tensor) -> Tensor:
            on_gradient()
            return gradient

        copied = lrp.with_backward(tensor, backward)
        self._kept.append(copied)
        return copied


@cached_per_problem
def limitation(problem: AttributionProblem) -> Finding | None:
    """Reports the first property of the model for which Captum's relevance is wrong."""
    graph = LayerGraph(problem)
    checks = (_functions, _out_of_order, _shared_tensor, _chained, _pass_through, _consumed_output)
    return next((finding for check in checks for finding in check(problem, graph)), None)


def _functions(problem: AttributionProblem, graph: LayerGraph) -> Iterator[Finding]:
    # If all rules are epsilon, relevance is 0 wherever a rectifier stops it.
    all_epsilon = all(isinstance(rule, Epsilon) for rule in lrp.requested_rules(problem).values())
    harmless = lrp.ROUTING_OPERATORS | (lrp.RECTIFIERS if all_epsilon else set())
    names = [layer.name for layer in graph.reached if layer.operator and layer.operator not in harmless]
    if names:
        yield Finding(
            Cause.FUNCTIONAL_NONLINEARITY,
            f"Captum has rules for modules only; at {', '.join(sorted(names)[:3])} it uses the plain gradient in place "
            "of relevance: build the model with a module for each, such as Captum's Addition_Module, "
            "nn.AdaptiveAvgPool2d or nn.Tanh",
        )


def _out_of_order(problem: AttributionProblem, graph: LayerGraph) -> Iterator[Finding]:
    """Reports identity modules that are called again with a tensor from before their earlier call."""
    for layer in graph.out_of_order:
        if _is_identity(problem, layer) and layer in graph.reached:
            yield Finding(
                Cause.MODULE_REUSED,
                f"{layer.name!r} is called again with what was computed before its earlier call, and Captum confuses "
                "the relevance of the two calls: build the model with a module for each call",
            )


def _shared_tensor(problem: AttributionProblem, graph: LayerGraph) -> Iterator[Finding]:
    for tensor in graph.tensors.values():
        layers = tensor.relevance_consumers
        has_module = any(not layer.operator for layer in layers)
        if len(layers) > 1 and has_module and not all(_is_multiplied(graph, layer) for layer in layers):
            names = ", ".join(dict.fromkeys(layer.name for layer in layers))
            yield Finding(
                Cause.OVERRIDE_LOST,
                f"one tensor goes to each of {names}, and Captum hands back the relevance of one of them for all: let "
                f"each branch begin with {_COPY}",
            )


def _chained(problem: AttributionProblem, graph: LayerGraph) -> Iterator[Finding]:
    for tensor in graph.tensors.values():
        for layer in tensor.relevance_consumers:
            producer = tensor.producer
            if producer and _is_identity(problem, producer) and _differs_behind_identity(problem, graph, layer):
                yield Finding(
                    Cause.FUNCTIONAL_NONLINEARITY,
                    f"{layer.name!r} follows {producer.name!r} directly, and Captum hands back the plain gradient of "
                    f"the one through the other: put {_COPY} between them",
                )


def _pass_through(problem: AttributionProblem, graph: LayerGraph) -> Iterator[Finding]:
    """Reports an explained layer that returns its input tensor itself, as ``nn.Identity`` does."""
    if problem.layer in (layer.name for layer in graph.pass_through):
        yield Finding(
            Cause.OVERRIDE_LOST,
            f"{problem.layer!r} returns the very tensor that it takes, and Captum multiplies the relevance there by "
            "that tensor: explain the layer before",
        )


def _consumed_output(problem: AttributionProblem, graph: LayerGraph) -> Iterator[Finding]:
    if graph.output is not None:
        consumers = ", ".join(dict.fromkeys(layer.name for layer in graph.output.consumers))
        yield Finding(
            Cause.OVERRIDE_LOST,
            f"the output that is explained goes on to {consumers}, and Captum changes its relevance there: let the "
            "model return a copy of it",
        )


_COPY = "a separate module that returns a copy, x.clone(), under the rule Epsilon()"


def _differs_behind_identity(problem: AttributionProblem, graph: LayerGraph, layer: RelevanceLayer) -> bool:
    """Returns whether ``layer``, behind an identity module, passes back another relevance than Captum."""
    if _is_identity(problem, layer):
        return isinstance(problem.model.tree.modules[layer.name], nn.Tanh)
    return not layer.operator and not _is_multiplied(graph, layer)


def _is_identity(problem: AttributionProblem, layer: RelevanceLayer) -> bool:
    return type(problem.model.tree.modules.get(layer.name)) in lrp.IDENTITY_MODULES


def _is_multiplied(graph: LayerGraph, layer: RelevanceLayer) -> bool:
    """Returns whether Captum multiplies the sum that comes back to the layer's input by the input.

    That is right for any number of such layers.
    """
    return not (layer.operator or isinstance(layer.rule, RelevanceIdentity) or layer in graph.pass_through)
