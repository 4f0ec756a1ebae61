"""Multipliers in place of gradients: a pass at the baseline, and one at the input in which nonlinearities pass back
what the Rescale rule says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias
from weakref import ref

import torch
from jaxtyping import Float64
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.overrides import TorchFunctionMode

from cutaway.contract.requests import Point
from cutaway.engine.hooks.hook_site import NumberedEdit, Override
from cutaway.engine.hooks.operators import operator_name
from cutaway.engine.hooks.recording import RecordedCall, copy_to_host, in_backward, watching
from cutaway.engine.model.inspected_model import graph_nodes
from cutaway.engine.passes.pass_recorder import AttributionProblem, Changes, Pass, cached_per_problem, run_passes
from cutaway.engine.passes.reference_inputs import input_point
from cutaway.engine.references.observation import observe_forward, operator_of
from cutaway.engine.runtime.numerics import Path, argument_tensors, leaves, map_leaves, replace_arguments

# The nonlinearities of one forward pass: modules that Captum's DeepLIFT overrides, and operators that it does not.


class TensorPaths(NamedTuple):
    """The paths of one call's input tensor, and of the output tensor that is a function of it."""

    input: Path
    output: Path


class Nonlinearity(NamedTuple):
    """A nonlinearity of the model.

    Attributes:
        name: the name of a module, or the address of an operator: ``block2:relu#0``.
        rule: how it passes multipliers back.
        calls: its calls in one forward pass.
        is_module: whether it is a module of a class that Captum overrides.
    """

    name: str
    rule: Rule
    calls: Sequence[TensorPaths]
    is_module: bool


@cached_per_problem
def nonlinearities(problem: AttributionProblem) -> list[Nonlinearity]:
    """Returns the nonlinearities that run in one forward pass."""
    modules = problem.model.tree.modules
    rules = {name: MODULE_RULES[type(module)] for name, module in modules.items() if type(module) in MODULE_RULES}
    both = watching(Point.INPUT, Point.OUTPUT)
    sites = {**dict.fromkeys(rules, both), **{f"**:{operator}#*": both for operator in OPERATOR_RULES}}
    calls = observe_forward(problem, sites)
    operators = {name: OPERATOR_RULES.get(operator_of(name), rescale) for name in calls if name not in rules}
    return [
        Nonlinearity(name, rule, paths, is_module=name in rules)
        for name, rule in {**rules, **operators}.items()
        if (paths := _paths(rule, calls[name]))
    ]


def _paths(rule: Rule, calls: Sequence[RecordedCall]) -> list[TensorPaths]:
    paths = [_call_paths(rule, call.at(Point.INPUT), call.at(Point.OUTPUT)) for call in calls]
    # A call that is not a function of one tensor has no rule. Nor then have the other calls, which are known by number.
    return [call_paths for call_paths in paths if call_paths is not None] if all(paths) else []


def _call_paths(rule: Rule, inputs: Mapping[Path, Tensor], outputs: Mapping[Path, Tensor]) -> TensorPaths | None:
    """Returns the paths of the first floating output and of the one floating input that fits it."""
    for path, output in outputs.items():
        if output.is_floating_point():
            fitting = [
                input_path
                for input_path, tensor in inputs.items()
                if tensor.is_floating_point() and (rule is rescale_max_pool or tensor.shape == output.shape)
            ]
            return TensorPaths(fitting[0], path) if len(fitting) == 1 else None
    return None


# DeepLIFT's Rescale rule on the host: Shrikumar et al. 2017, arXiv:1704.02685, sections 3.5.2 and 3.6.

EPSILON = 1e-10
"""If the input differs from the baseline's by less, the derivative replaces the quotient."""

Input: TypeAlias = Float64[Tensor, "*input"]
Output: TypeAlias = Float64[Tensor, "*output"]

TensorFunction: TypeAlias = Callable[[Tensor], Tensor]
"""A nonlinearity as a function of one tensor."""


class PairedActivations(NamedTuple):
    """The inputs and outputs of one nonlinearity, at the input and at the baseline."""

    input: Input
    output: Output
    baseline_input: Input
    baseline_output: Output

    @property
    def delta_in(self) -> Input:
        """The difference of the inputs, ``x - x0``."""
        return self.input - self.baseline_input

    @property
    def delta_out(self) -> Output:
        """The difference of the outputs, ``y - y0``."""
        return self.output - self.baseline_output

    @property
    def same_shapes(self) -> bool:
        """Whether the shapes at the input are those at the baseline."""
        return self.input.shape == self.baseline_input.shape and self.output.shape == self.baseline_output.shape


Rule: TypeAlias = Callable[[PairedActivations, Tensor, Tensor, TensorFunction], Tensor]
"""Returns the multiplier that is passed back to the input.

Arguments: the activations, the multiplier that arrives at the output, that multiplier times the derivative, and the
nonlinearity.
"""


def rescale(activations: PairedActivations, multiplier: Output, derivative: Input, function: TensorFunction) -> Input:
    """Returns ``m * (y - y0) / (x - x0)``, element by element."""
    delta = activations.delta_in
    moved = delta.abs() >= EPSILON
    return torch.where(moved, multiplier * activations.delta_out / torch.where(moved, delta, 1.0), derivative)


def rescale_softmax(
    activations: PairedActivations, multiplier: Output, derivative: Input, function: TensorFunction
) -> Input:
    """Returns the same minus its mean over the softmax axis, because adding a number to all logits changes nothing."""
    rescaled = rescale(activations, multiplier, derivative, function)
    return rescaled - rescaled.mean(dim=softmax_axis(activations.output), keepdim=True)


def softmax_axis(output: Output) -> int:
    """Returns the axis along which probabilities sum to 1."""
    return min(range(output.ndim), key=lambda axis: float((output.sum(dim=axis) - 1).abs().max()))


def rescale_max_pool(
    activations: PairedActivations, multiplier: Output, derivative: Input, function: TensorFunction
) -> Input:
    """Returns the multiplier for a maximum over windows.

    ``m * max(0, y - y0)`` goes to the position of the maximum at the input, and ``m * min(0, y - y0)`` to that at the
    baseline; their sum over windows is divided by ``x - x0``.
    """
    rise, fall = activations.delta_out.clamp(min=0), activations.delta_out.clamp(max=0)
    sent = _to_maxima(function, activations.input, multiplier * rise)
    sent = sent + _to_maxima(function, activations.baseline_input, multiplier * fall)
    delta = activations.delta_in
    moved = delta.abs() >= EPSILON
    return torch.where(moved, sent / torch.where(moved, delta, 1.0), derivative)


def windows_share_maximum(activations: PairedActivations, multiplier: Output, function: TensorFunction) -> bool:
    """Returns whether two windows that pass a multiplier back have their maximum at the same element."""
    passes = multiplier != 0
    rising = _to_maxima(function, activations.input, (passes & (activations.delta_out > 0)).double())
    falling = _to_maxima(function, activations.baseline_input, (passes & (activations.delta_out < 0)).double())
    return bool((rising > 1).any() or (falling > 1).any())


def _to_maxima(function: TensorFunction, tensor: Input, cotangent: Output) -> Input:
    """Returns the sum of the windows' ``cotangent`` at the elements of ``tensor`` that are their maxima."""
    with torch.enable_grad():
        leaf = tensor.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(function(leaf), leaf, cotangent)
    return gradient


MODULE_RULES: dict[type[nn.Module], Rule] = {
    **dict.fromkeys((nn.ReLU, nn.ELU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.Softplus), rescale),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), rescale_max_pool),
    nn.Softmax: rescale_softmax,
}
"""The modules that Captum overrides, by their exact class."""

_ELEMENTWISE = (
    *("relu", "relu6", "elu", "leaky_relu", "rrelu", "prelu", "selu", "celu", "gelu", "silu", "mish", "threshold"),
    *("sigmoid", "tanh", "softplus", "softsign", "log_sigmoid", "logsigmoid", "tanhshrink", "hardshrink", "_threshold"),
    *("softshrink", "hardtanh", "hardsigmoid", "hardswish", "clamp", "clamp_min", "clamp_max", "clip", "erf", "abs"),
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "square", "pow", "reciprocal"),
    *("sin", "cos", "tan", "sinh", "cosh", "atan", "arctan", "asinh", "arcsinh"),
)

_POOLS = (
    *(f"{kind}max_pool{axes}d" for kind in ("", "adaptive_") for axes in (1, 2, 3)),
    *(f"{kind}max_pool{axes}d_with_indices" for kind in ("", "adaptive_") for axes in (1, 2, 3)),
)

OPERATOR_RULES: dict[str, Rule] = {
    **{f"{name}{in_place}": rescale for name in _ELEMENTWISE for in_place in ("", "_")},
    **dict.fromkeys(("softmax", "_softmax", "softmin"), rescale_softmax),
    **dict.fromkeys(_POOLS, rescale_max_pool),
}
"""Operators by name; Captum differentiates them as they are."""


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

    def __init__(
        self, nonlinearity: Nonlinearity, call: int, function: TensorFunction, outputs: list[ModuleOutput]
    ) -> None:
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
    def activations(self) -> PairedActivations | None:
        """The activations of both passes; None if the two have different shapes or only one called it."""
        inputs, outputs = self._kept[Point.INPUT], self._kept[Point.OUTPUT]
        if not len(inputs) == len(outputs) == 2:
            return None
        activations = PairedActivations(inputs[1], outputs[1], inputs[0], outputs[0])
        return activations if activations.same_shapes else None

    @property
    def shares_maxima(self) -> bool:
        """Whether this is a max pool with two windows that have a multiplier and their maximum at the same element."""
        activations = self.activations
        if activations is None or self.arriving is None:
            return False
        return windows_share_maximum(activations, self.arriving, self.function)

    def recording_edits(self, last_pool: Callable[[], TensorFunction] | None = None) -> Iterator[NumberedEdit]:
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
            elif last_pool is not None and self.nonlinearity.rule is rescale_max_pool:
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
    has_pools = any(operator.rule is rescale_max_pool for operator in operators)
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


def _function(problem: AttributionProblem, nonlinearity: Nonlinearity) -> TensorFunction:
    """Returns the module without its hooks; for an operator a function that is never called."""
    module = problem.model.tree.modules.get(nonlinearity.name)
    return _first_tensor if module is None else lambda value: _first_tensor(module.forward(value))


def _first_tensor(output: Any) -> Tensor:
    return next(iter(leaves(output).values()))


def _detached(_: Path, tensor: Tensor) -> Tensor:
    return tensor.detach()


class _LastPool(TorchFunctionMode):
    """A mode that keeps the pooling operator that ran last, with its arguments."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if OPERATOR_RULES.get(operator_name(func)) is rescale_max_pool:
            # Detached: the hooks of the graph hold this object, a cycle that Python's garbage collector cannot see.
            self._call = func, map_leaves(args, _detached), map_leaves(kwargs or {}, _detached)
        return func(*args, **(kwargs or {}))

    def function(self) -> TensorFunction:
        """Returns the operator as a function of its first tensor."""
        func, args, kwargs = self._call
        path = next(iter(argument_tensors(args, kwargs)))

        def apply(value: Tensor) -> Tensor:
            positional, named = replace_arguments(args, kwargs, {path: value})
            return _first_tensor(func(*positional, **named))

        return apply
