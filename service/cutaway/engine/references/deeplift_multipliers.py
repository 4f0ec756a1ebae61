"""Runs a model as DeepLIFT does: at the baseline, and at the input with multipliers in place of gradients.

Nonlinearities pass back what the Rescale rule says, and everything else its gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias
from weakref import ref

import torch
from jaxtyping import Float64
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.overrides import TorchFunctionMode

from cutaway.contract.requests import Point
from cutaway.engine.hooks.capture_spec import watching
from cutaway.engine.hooks.edits import NumberedEdit, Override
from cutaway.engine.hooks.operators import operator_name
from cutaway.engine.hooks.recording import RecordedCall, copy_to_host, in_backward
from cutaway.engine.model.inspected_model import graph_nodes
from cutaway.engine.passes.pass_recorder import AttributionProblem, Pass, cached_per_problem, run_passes
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


def _over_change(sent: Input, activations: PairedActivations, derivative: Input) -> Input:
    delta = activations.delta_in
    moved = delta.abs() >= EPSILON
    return torch.where(moved, sent / torch.where(moved, delta, 1.0), derivative)


def rescale(activations: PairedActivations, multiplier: Output, derivative: Input, function: TensorFunction) -> Input:
    """Returns ``m * (y - y0) / (x - x0)``, element by element: equation 10 with the chain rule, equation 3.

    A softmax has the same rule. Section 3.6 centres contributions over the classes only where the logits are explained.
    """
    return _over_change(multiplier * activations.delta_out, activations, derivative)


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
    return _over_change(sent, activations, derivative)


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
    **dict.fromkeys((nn.ReLU, nn.ELU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Softmax), rescale),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), rescale_max_pool),
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
    **dict.fromkeys(("softmax", "_softmax", "softmin"), rescale),
    **dict.fromkeys(_POOLS, rescale_max_pool),
}
"""Operators by name; Captum differentiates them as they are."""


ModuleOutput: TypeAlias = tuple[str, "ref[Tensor]"]
"""A module's name, and the tensor that it returned."""


@dataclass(eq=False)
class NonlinearityCall:
    """One call of a nonlinearity in both passes.

    Attributes:
        nonlinearity: the module or operator.
        number: the number of the call.
        function: the nonlinearity, to be applied to other tensors.
        module_outputs: what modules of classes that Captum overrides have returned in both passes, of all calls.
        last_pool: knows the pooling operator that ran last.
        arriving: the multiplier that reached the output; None if none did.
        dtype: the data type of its input.
        edge: the position of its input in the graph; None if no gradient can reach it.
        is_bypassed: whether another operation uses its input too, on another way to the target.
        previous_module: the module of a class that Captum overrides whose output is its very input; ``""`` for none.
        kept: its inputs and outputs at the baseline, then at the input.
        passed_back: the multiplier that reached the input; None if none did.
    """

    nonlinearity: Nonlinearity
    number: int
    function: TensorFunction
    module_outputs: list[ModuleOutput]
    last_pool: _LastPool
    arriving: Tensor | None = None
    dtype: torch.dtype = torch.float64
    edge: GradientEdge | None = None
    is_bypassed: bool = False
    previous_module: str = ""
    kept: dict[Point, list[Tensor]] = field(default_factory=lambda: {Point.INPUT: [], Point.OUTPUT: []})
    passed_back: Tensor | None = None

    @property
    def name(self) -> str:
        """The name of the module, or the address of the operator."""
        return self.nonlinearity.name

    @property
    def times(self) -> int:
        """The number of calls of the nonlinearity."""
        return len(self.nonlinearity.calls)

    @property
    def paths(self) -> TensorPaths:
        """The paths of this call's input and output."""
        return self.nonlinearity.calls[self.number]

    @property
    def has_effect(self) -> bool:
        """Whether it passed a multiplier back, and its input differs from the baseline's."""
        activations = self.activations
        return self.passed_back is not None and activations is not None and bool(activations.delta_in.any())

    @property
    def activations(self) -> PairedActivations | None:
        """The activations of both passes; None if the two have different shapes or only one called it."""
        inputs, outputs = self.kept[Point.INPUT], self.kept[Point.OUTPUT]
        if not len(inputs) == len(outputs) == 2:
            return None
        activations = PairedActivations(inputs[1], outputs[1], inputs[0], outputs[0])
        return activations if activations.same_shapes else None

    @property
    def shares_maxima(self) -> bool:
        """Whether this is a max pool with two windows that have a multiplier and their maximum at the same element."""
        is_pool, activations = self.nonlinearity.rule is rescale_max_pool, self.activations
        if not is_pool or activations is None or self.arriving is None:
            return False
        return windows_share_maximum(activations, self.arriving, self.function)

    @property
    def divides_zeros(self) -> bool:
        """Whether Captum divides 0 by 0, because `EPSILON` is 0 in the data type."""
        activations = self.activations
        return self.dtype is torch.float16 and activations is not None and bool((activations.delta_in == 0).any())

    def keep_input(self, value: Tensor) -> Tensor:
        """Keeps the input, which it returns."""
        if not in_backward():  # checkpointing computes again what was kept before
            self.kept[Point.INPUT].append(_float64_on_host(value))
            self.dtype = value.dtype
            previous = (name for name, output in self.module_outputs if output() is value)
            self.previous_module = self.previous_module or next(previous, "")
            if value.requires_grad:
                self.edge = get_gradient_edge(value)
        return value

    def keep_output(self, value: Tensor) -> Tensor:
        """Keeps the output, which it returns, and what ran if it is a pooling operator."""
        if not in_backward():
            self.kept[Point.OUTPUT].append(_float64_on_host(value))
            if self.nonlinearity.is_module:
                self.module_outputs.append((self.name, ref(value)))
            elif self.nonlinearity.rule is rescale_max_pool:
                self.function = self.last_pool.function()
        return value

    def arrive(self, gradient: Tensor) -> Tensor:
        """Keeps the multiplier at the output, which it returns."""
        self.arriving = _float64_on_host(gradient)
        return gradient

    def pass_back(self, derivative: Tensor) -> Tensor:
        """Returns the rule's multiplier in place of the gradient at the input."""
        activations = self.activations
        if self.arriving is None or activations is None:
            return derivative
        rule = self.nonlinearity.rule
        multiplier = rule(activations, self.arriving, _float64_on_host(derivative), self.function)
        self.passed_back = multiplier.to(derivative)
        return self.passed_back

    def edits(self, *, multipliers: bool) -> Iterator[NumberedEdit]:
        """Yields edits that keep input and output, and with ``multipliers`` pass back the rule's multiplier."""
        changes: dict[Point, TensorFunction] = {Point.INPUT: self.keep_input, Point.OUTPUT: self.keep_output}
        if multipliers:
            changes |= {Point.GRAD_OUTPUT: self.arrive, Point.GRAD_INPUT: self.pass_back}
        for point, change in changes.items():
            path = self.paths.input if point in (Point.INPUT, Point.GRAD_INPUT) else self.paths.output
            yield 0, Override(at=point, call=self.number, path=path, change=change)


class RescaledPasses(NamedTuple):
    """A pass at the baseline, one at the input in which multipliers flow back, and the nonlinearities in them."""

    at_baseline: Pass
    at_input: Pass
    calls: Sequence[NonlinearityCall]


def run_both(problem: AttributionProblem, nonlinearities: Sequence[Nonlinearity]) -> RescaledPasses:
    """Runs the pass at the baseline, and the one at the input in which multipliers flow back."""
    outputs: list[ModuleOutput] = []
    last_pool = _LastPool()
    calls = [
        NonlinearityCall(nonlinearity, number, _function(problem, nonlinearity), outputs, last_pool)
        for nonlinearity in nonlinearities
        for number in range(len(nonlinearity.calls))
    ]
    has_pools = any(kind.rule is rescale_max_pool and not kind.is_module for kind in nonlinearities)
    with last_pool if has_pools else nullcontext():
        edits = _edits(calls, multipliers=False)
        (at_baseline,) = run_passes(problem, [dict(problem.baselines)], differentiate=False, edits=edits)
        at_input = _run_at_input(problem, calls)
    if any(call.arriving is not None and call.activations is None for call in calls):
        at_input.gradients, at_input.layer = {}, ()  # the model computes something else at the baseline
    return RescaledPasses(at_baseline, at_input, calls)


def _run_at_input(problem: AttributionProblem, calls: Sequence[NonlinearityCall]) -> Pass:
    """Runs a pass at the input, in which multipliers take the place of gradients. Notes the calls whose input is used
    elsewhere too."""
    ends: list[Node | None] = [None]

    def target(output: Tensor) -> Tensor:
        values = problem.target.scalars(output)
        ends.append(values.grad_fn)
        return values

    edits, point = _edits(calls, multipliers=True), input_point(problem)
    with_graph = replace(problem, target=replace(problem.target, function=target))
    # For a layer, what comes before it has no part in the result, and gradients stop there.
    (at_input,) = run_passes(with_graph, point, differentiate=True, edits=edits, to_inputs=not problem.layer)
    # How many operations on the way to the target use each output of each node. The graph is released: its hooks lead
    # back to the calls in a cycle that Python's collector cannot see.
    uses = Counter(used for node in graph_nodes(ends.pop()) for used in node.next_functions)
    for call in calls:
        call.is_bypassed = call.edge is not None and uses[call.edge.node, call.edge.output_nr] > 1
        call.edge = None
    return at_input


def _float64_on_host(tensor: Tensor) -> Tensor:
    """Returns a copy with the values of now: the model may change the tensor in place."""
    return copy_to_host(tensor).double()


def _edits(calls: Sequence[NonlinearityCall], *, multipliers: bool) -> dict[str, list[NumberedEdit]]:
    edits: dict[str, list[NumberedEdit]] = {}
    for call in calls:
        edits.setdefault(call.name, []).extend(call.edits(multipliers=multipliers))
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
