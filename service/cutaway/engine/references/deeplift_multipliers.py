"""Multipliers in place of gradients: a pass at the baseline, and one at the input in which nonlinearities pass back
what the Rescale rule says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.overrides import TorchFunctionMode

from cutaway.engine.hooks.edits import Override
from cutaway.engine.hooks.hook_site import NumberedEdit
from cutaway.engine.hooks.host_copy import copy_to_host
from cutaway.engine.hooks.operator_names import operator_name
from cutaway.engine.hooks.recording import in_backward
from cutaway.engine.model.inspected_model import graph_nodes
from cutaway.engine.passes.pass_recorder import AttributionProblem, Changes, Pass, run_passes
from cutaway.engine.passes.reference_inputs import input_point
from cutaway.engine.references import rescale_rule
from cutaway.engine.references.nonlinearities import Nonlinearity
from cutaway.engine.references.rescale_rule import Activations, Function
from cutaway.engine.runtime.pytree import Path, argument_tensors, leaves, map_leaves, replace_arguments
from cutaway.requests import Point

ModuleOutput: TypeAlias = tuple[str, "ref[Tensor]"]
"""A module's name, and the tensor that it returned."""


class NonlinearityCall:
    """One call of a nonlinearity in both passes.

    Attributes:
        nonlinearity: the module or operator.
        call: the number of the call.
        arriving: the multiplier that reached the output; None if none did.
        function: the nonlinearity, to be applied to other tensors.
        dtype: the data type of its input.
        edge: the position of its input in the graph; None if no gradient can reach it.
        is_bypassed: whether another operation uses its input too, on another way to the target.
        previous_module: the module of a class that Captum overrides whose output is its very input; ``""`` for none.
    """

    def __init__(self, nonlinearity: Nonlinearity, call: int, function: Function, outputs: list[ModuleOutput]) -> None:
        self.nonlinearity = nonlinearity
        self.call = call
        self.function = function
        self.arriving: Tensor | None = None
        self.dtype = torch.float64
        self.edge: GradientEdge | None = None
        self.is_bypassed = False
        self.previous_module = ""
        self._module_outputs = outputs
        self._kept: dict[Point, list[Tensor]] = {Point.INPUT: [], Point.OUTPUT: []}
        self._passed_back: Tensor | None = None

    @property
    def has_effect(self) -> bool:
        """Whether it passed a multiplier back, and its input differs from the baseline's."""
        activations = self.activations
        return self._passed_back is not None and activations is not None and bool(activations.delta_in.any())

    @property
    def activations(self) -> Activations | None:
        """What it took and returned in both passes; None if the two have different shapes or only one called it."""
        inputs, outputs = self._kept[Point.INPUT], self._kept[Point.OUTPUT]
        if not len(inputs) == len(outputs) == 2:
            return None
        activations = Activations(inputs[1], outputs[1], inputs[0], outputs[0])
        return activations if activations.same_shapes else None

    @property
    def shares_maxima(self) -> bool:
        """Whether this is a max pool with two windows that have a multiplier and their maximum at the same element."""
        activations = self.activations
        if activations is None or self.arriving is None:
            return False
        return rescale_rule.windows_share_maximum(activations, self.arriving, self.function)

    def recording_edits(self, last_pool: Callable[[], Function] | None = None) -> Iterator[NumberedEdit]:
        """Yields edits that change nothing and keep the input and the output.

        ``last_pool``: returns the pooling operator that ran last, to be kept as this operator's function.
        """
        paths = self.nonlinearity.calls[self.call]

        def keep_input(value: Tensor) -> Tensor:
            if in_backward():  # checkpointing computes again what was kept before
                return value
            self._kept[Point.INPUT].append(_float64_on_host(value))
            self.dtype = value.dtype
            previous = (name for name, output in self._module_outputs if output() is value)
            self.previous_module = self.previous_module or next(previous, "")
            if value.requires_grad:
                self.edge = get_gradient_edge(value)
            return value

        def keep_output(value: Tensor) -> Tensor:
            if in_backward():
                return value
            self._kept[Point.OUTPUT].append(_float64_on_host(value))
            if self.nonlinearity.is_module:
                self._module_outputs.append((self.nonlinearity.name, ref(value)))
            elif last_pool is not None and self.nonlinearity.rule is rescale_rule.rescale_max_pool:
                self.function = last_pool()
            return value

        yield 0, Override(at=Point.INPUT, call=self.call, path=paths.input, change=keep_input)
        yield 0, Override(at=Point.OUTPUT, call=self.call, path=paths.output, change=keep_output)

    def multiplier_edits(self) -> Iterator[NumberedEdit]:
        """Yields edits that replace the gradient at the input by the rule's multiplier."""
        paths = self.nonlinearity.calls[self.call]

        def arrive(gradient: Tensor) -> Tensor:
            self.arriving = _float64_on_host(gradient)
            return gradient

        def pass_back(derivative: Tensor) -> Tensor:
            activations = self.activations
            if self.arriving is None or activations is None:
                return derivative
            rule = self.nonlinearity.rule
            multiplier = rule(activations, self.arriving, _float64_on_host(derivative), self.function)
            self._passed_back = multiplier.to(derivative)
            return self._passed_back

        yield 0, Override(at=Point.GRAD_OUTPUT, call=self.call, path=paths.output, change=arrive)
        yield 0, Override(at=Point.GRAD_INPUT, call=self.call, path=paths.input, change=pass_back)


class RescaledPasses(NamedTuple):
    """A pass at the baseline, one at the input in which multipliers flow back, and the nonlinearities in them."""

    at_baseline: Pass
    at_input: Pass
    calls: Sequence[NonlinearityCall]


def run_rescaled(problem: AttributionProblem, nonlinearities: Sequence[Nonlinearity]) -> RescaledPasses:
    """Runs both passes."""
    outputs: list[ModuleOutput] = []
    calls = [
        NonlinearityCall(nonlinearity, call, _function(problem, nonlinearity), outputs)
        for nonlinearity in nonlinearities
        for call in range(len(nonlinearity.calls))
    ]
    edits = _edits(calls, lambda call: [*call.recording_edits()])
    (at_baseline,) = run_passes(problem, [dict(problem.baselines)], differentiate=False, edits=edits)
    at_input = _run_at_input(problem, calls)
    if any(call.arriving is not None and call.activations is None for call in calls):
        at_input.gradients, at_input.layer = {}, ()  # the model computes something else at the baseline
    return RescaledPasses(at_baseline, at_input, calls)


def _run_at_input(problem: AttributionProblem, calls: Sequence[NonlinearityCall]) -> Pass:
    last_pool, target_nodes = _LastPool(), list[Node | None]()

    def target(output: Tensor) -> Tensor:
        values = problem.target.scalars(output)
        target_nodes.append(values.grad_fn)
        return values

    edits = _edits(calls, lambda call: [*call.recording_edits(last_pool.function), *call.multiplier_edits()])
    point = input_point(problem)
    operators = [call.nonlinearity for call in calls if not call.nonlinearity.is_module]
    has_pools = any(operator.rule is rescale_rule.rescale_max_pool for operator in operators)
    with_graph = replace(problem, target=replace(problem.target, function=target))
    with last_pool if has_pools else nullcontext():
        # For a layer, what comes before it has no part in the result, and gradients stop there.
        (at_input,) = run_passes(with_graph, point, differentiate=True, edits=edits, to_inputs=not problem.layer)
    # Releases the graph, whose hooks lead back to the calls in a cycle that Python's collector cannot see.
    _find_bypassed(calls, target_nodes.pop() if target_nodes else None)
    return at_input


def _find_bypassed(calls: Sequence[NonlinearityCall], end: Node | None) -> None:
    """Sets ``is_bypassed`` of each call, in the graph that leads to ``end``."""
    # How many operations on the way to ``end`` use each output of each node.
    uses = Counter(used for node in graph_nodes(end) for used in node.next_functions)
    for call in calls:
        call.is_bypassed = call.edge is not None and uses[call.edge.node, call.edge.output_nr] > 1
        call.edge = None


def _float64_on_host(tensor: Tensor) -> Tensor:
    """Returns a copy with the values of now: the model may change the tensor in place."""
    return copy_to_host(tensor).double()


def _edits(calls: Sequence[NonlinearityCall], edits_of: Callable[[NonlinearityCall], list[NumberedEdit]]) -> Changes:
    edits: dict[str, list[NumberedEdit]] = {}
    for call in calls:
        edits.setdefault(call.nonlinearity.name, []).extend(edits_of(call))
    return edits


def _function(problem: AttributionProblem, nonlinearity: Nonlinearity) -> Function:
    """Returns the module without its hooks; for an operator a function that is never called."""
    module = problem.model.tree.modules.get(nonlinearity.name)
    return _first_tensor if module is None else lambda value: _first_tensor(module.forward(value))


def _first_tensor(output: Any) -> Tensor:
    return next(iter(leaves(output).values()))


def _detached(_: Path, tensor: Tensor) -> Tensor:
    return tensor.detach()


class _LastPool(TorchFunctionMode):
    """Keeps the pooling operator that ran last, with its arguments."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if rescale_rule.OPERATOR_RULES.get(operator_name(func)) is rescale_rule.rescale_max_pool:
            # Outside of the graph, whose hooks lead back here in a cycle that Python's collector cannot see.
            self._call = func, map_leaves(args, _detached), map_leaves(kwargs or {}, _detached)
        return func(*args, **(kwargs or {}))

    def function(self) -> Function:
        """Returns the operator as a function of its first tensor."""
        func, args, kwargs = self._call
        path = next(iter(argument_tensors(args, kwargs)))

        def apply(value: Tensor) -> Tensor:
            positional, named = replace_arguments(args, kwargs, {path: value})
            return _first_tensor(func(*positional, **named))

        return apply
