"""Layer-wise relevance propagation (LRP): each call of a layer passes relevance back by the formula of its rule.

Bach et al. 2015, doi:10.1371/journal.pone.0130140; rules: Montavon et al. 2019, doi:10.1007/978-3-030-28954-6_10.
Notation: ``a`` is a layer's input, ``w`` its weights, ``z = a w + b`` its output, ``R`` relevance:
``R_j = a_j * sum over k of w_jk * R_k / (z_k + epsilon * sign z_k)``. Operators outside of modules without children are
layers here too. Captum passes the plain gradient through them, so that its result differs from the reference.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from cutaway.contract import requests
from cutaway.engine.hooks.capture_spec import watching
from cutaway.engine.hooks.edits import Override
from cutaway.engine.hooks.recording import RecordedCall
from cutaway.engine.model.module_tree import ModuleTree
from cutaway.engine.passes.pass_recorder import AttributionProblem, Changes, Pass, cached_per_problem, run_passes
from cutaway.engine.passes.reference_inputs import Evidence, Reference, input_point
from cutaway.engine.references.observation import expand_rows, observe_forward, operator_of, target_values

GradientChange: TypeAlias = Callable[[Tensor], Tensor]
"""Returns the tensor that replaces another."""

STABILIZER = 1e-9
"""Keeps a division by ``z`` finite in rules that have no epsilon."""

JITTER = 1e-4
"""The relative change of a sum's terms that shows how far rounding errors can move relevance."""

IDENTITY_MODULES: tuple[type[nn.Module], ...] = (nn.ReLU, nn.Dropout, nn.Tanh)
"""Modules that pass relevance unchanged, whatever their rule."""

ROUTING_OPERATORS = {
    *("adaptive_max_pool1d", "adaptive_max_pool2d", "cat", "chunk", "concat", "concatenate", "contiguous", "cpu"),
    *("cuda", "double", "dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "flatten", "flip"),
    *("float", "getitem", "half", "hstack", "index_select", "masked_fill", "max_pool1d", "max_pool2d", "max_pool3d"),
    *("moveaxis", "movedim", "narrow", "pad", "permute", "pixel_shuffle", "ravel", "reshape", "reshape_as", "roll"),
    *("select", "setitem", "split", "squeeze", "stack", "swapaxes", "swapdims", "t", "T", "mT", "to"),
    *("tensor_split", "transpose", "type", "type_as", "unbind", "unflatten", "unsqueeze", "view", "view_as"),
    "vstack",
}
"""Operators that move values without computing: their gradient passes relevance unchanged to where values came from."""

RECTIFIERS = {"relu", "relu_"}
"""Operators whose gradient stops relevance only where their output is 0."""

ACTIVATIONS = RECTIFIERS | {
    *("celu", "elu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "leaky_relu_", "logsigmoid"),
    *("mish", "prelu", "relu6", "selu", "sigmoid", "sigmoid_", "silu", "softplus", "softsign", "tanh", "tanh_"),
}
"""Elementwise operators, which should pass relevance unchanged."""


class RelevanceLayer(NamedTuple):
    """A layer that relevance passes.

    Attributes:
        name: the name of a module without children, or the address of an operator outside of such modules.
        calls: the numbers of its calls that take and return floats.
        rule: how relevance passes through it; None passes the plain gradient.
    """

    name: str
    calls: tuple[int, ...]
    rule: requests.LrpRule | None

    @property
    def operator(self) -> str:
        """The operator's name; ``""`` for a module."""
        return operator_of(self.name)


def leaf_modules(tree: ModuleTree) -> dict[str, nn.Module]:
    """Returns the modules without children, which are those that Captum hooks."""
    return {name: module for name, module in tree.modules.items() if not any(True for _ in module.children())}


def requested_rules(problem: AttributionProblem) -> dict[str, requests.LrpRule]:
    """Returns the request's rules by the modules' names in ``named_modules()``."""
    rules = cast(requests.Propagation, problem.request).rules
    return {problem.model.tree.resolve(name): rule for name, rule in rules.items()}


@cached_per_problem
def relevance_layers(problem: AttributionProblem) -> list[RelevanceLayer]:
    """Returns the layers that run in one forward pass, with their rules."""
    leaves, rules = leaf_modules(problem.model.tree), requested_rules(problem)
    # Without a graph, hooks at gradients copy nothing: they only count calls and note data types.
    sites = {name: watching(requests.Point.GRAD_OUTPUT) for name in (*leaves, "**:*#*")}
    return [
        RelevanceLayer(
            name,
            tuple(call.number for call in calls if call.number is not None and _is_of_floats(call)),
            _module_rule(leaves[name], rules.get(name)) if name in leaves else _operator_rule(operator_of(name)),
        )
        for name, calls in observe_forward(problem, sites).items()
    ]


def _is_of_floats(call: RecordedCall) -> bool:
    sides = [call.dtypes.get(point, {}).values() for point in (requests.Point.INPUT, requests.Point.OUTPUT)]
    return all(any(dtype.is_floating_point for dtype in dtypes) for dtypes in sides)


def _module_rule(module: nn.Module, requested: requests.LrpRule | None) -> requests.LrpRule:
    return (
        requests.RelevanceIdentity() if type(module) in IDENTITY_MODULES else requested or requests.Epsilon(STABILIZER)
    )


def _operator_rule(operator: str) -> requests.LrpRule | None:
    if operator in ROUTING_OPERATORS:
        return None
    return requests.RelevanceIdentity() if operator in ACTIVATIONS else requests.Epsilon(STABILIZER)


# Passes.


def relevance_passes(problem: AttributionProblem) -> Sequence[Pass]:
    """Runs a pass in which relevance flows back, and one with jitter, which shows how far rounding can move it."""
    return [
        recorded
        for kind in (RelevancePropagation, JitteredPropagation)
        for recorded in run_passes(problem, input_point(problem), differentiate=True, edits=_propagation(problem, kind))
    ]


def _propagation(problem: AttributionProblem, kind: type[RelevancePropagation]) -> Changes:
    modules = problem.model.tree.modules

    def changes(layer: RelevanceLayer) -> tuple[GradientChange, GradientChange]:
        propagation = kind(cast(requests.LrpRule, layer.rule), modules.get(layer.name))
        return propagation.enter, propagation.leave

    return layer_edits((layer for layer in relevance_layers(problem) if layer.rule is not None), changes)


def layer_edits(
    layers: Iterable[RelevanceLayer], changes: Callable[[RelevanceLayer], tuple[GradientChange, GradientChange]]
) -> Changes:
    """Returns edits that apply ``changes``, made anew for each call, to the inputs and the outputs of ``layers``."""
    return {
        layer.name: [
            (call, Override(at=point, call=call, change=change))
            for call in layer.calls
            for point, change in zip((requests.Point.INPUT, requests.Point.OUTPUT), changes(layer))
        ]
        for layer in layers
    }


# Reference.


def relevance(evidence: Evidence) -> Reference:
    """Returns the target's value times the share of relevance that arrives at the inputs, or at the layer's output.

    The share is what is left of 1 at the target. Formula and sources: see the module.
    """
    targets = target_values(evidence)[0]
    shares, jittered = (
        Evidence(evidence.problem, [one], evidence.call).explained_gradients() for one in evidence.passes
    )
    return Reference(
        {name: share * expand_rows(targets, share) for name, share in shares.items()},
        {name: _terms(share, jittered[name]) * expand_rows(targets.abs(), share) for name, share in shares.items()},
    )


def _terms(
    share: Float64[Tensor, "rows *features"], jittered: Float64[Tensor, "rows *features"]
) -> Float64[Tensor, "rows *features"]:
    """Returns the magnitude of the terms whose rounding errors a share contains: in each row, that of the element that
    jitter moves most."""
    moved = (jittered - share).abs().flatten(1).amax(dim=1) / JITTER
    return share.abs() + expand_rows(moved, share)


# Rules.


class _WithBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, backward: GradientChange) -> Tensor:
        ctx.function = backward
        return tensor.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.function(gradient), None


def with_backward(tensor: Float[Tensor, "*shape"], backward: GradientChange) -> Float[Tensor, "*shape"]:
    """Returns a copy of ``tensor`` at which the gradient becomes ``backward(gradient)``, in the tensor's data type."""
    copied: Tensor = _WithBackward.apply(tensor, backward)  # type: ignore[no-untyped-call]
    return copied


class RelevancePropagation:
    """One call of a layer, through which relevance flows in place of the gradient.

    Args:
        rule: the layer's rule.
        module: the layer; None for an operator, which has no weights.
    """

    def __init__(self, rule: requests.LrpRule, module: nn.Module | None) -> None:
        self._rule = rule
        self._module = module
        self._inputs: list[Tensor] = []
        self._output_relevance: Tensor

    def enter(self, tensor: Tensor) -> Tensor:
        """Takes an input of the layer; its gradient becomes its relevance."""
        number = len(self._inputs)
        self._inputs.append(tensor.detach().double().clone())
        return with_backward(tensor, lambda gradient: self._relevance(number, gradient.double()))

    def leave(self, tensor: Tensor) -> Tensor:
        """Takes the layer's output, at which relevance arrives as a gradient."""
        output = tensor.detach().double().clone()

        def begin(relevance: Tensor) -> Tensor:
            self._output_relevance = relevance.double()
            if not isinstance(self._rule, requests.Epsilon):
                return self._output_relevance
            return self._quotient(output, self._output_relevance)

        return with_backward(tensor, begin)

    def _relevance(self, number: int, gradient: Tensor) -> Tensor:
        """Returns the relevance of input ``number``."""
        if isinstance(self._rule, requests.RelevanceIdentity):
            return self._output_relevance
        if isinstance(self._rule, requests.Epsilon):
            # The layer's own backward, so that an edit between the layer and the next one takes part.
            return self._inputs[number] * gradient
        output, backward = self._apply(self._weights)
        return self._inputs[number] * backward(self._quotient(self._recomputed(output), self._output_relevance))[number]

    def _apply(
        self, weights: Mapping[str, Tensor], change: GradientChange = torch.clone
    ) -> tuple[Tensor, Callable[[Tensor], Sequence[Tensor]]]:
        """Applies the layer with ``weights`` to its changed inputs; returns the output and its backward function."""
        module = _float64_copy(cast(nn.Module, self._module), weights)
        with torch.enable_grad():
            inputs = [change(tensor).requires_grad_() for tensor in self._inputs]
            output = module.forward(*[tensor.clone() for tensor in inputs])  # which it may change in place
        return output.detach(), lambda cotangent: torch.autograd.grad(output, inputs, cotangent, retain_graph=True)

    @property
    def _weights(self) -> dict[str, Tensor]:
        """The layer's weights as changed by the rule. Montavon et al. 2019; Captum leaves the bias unchanged."""
        tensors = _weights_of(cast(nn.Module, self._module))
        weights = {name: tensor.detach().double() for name, tensor in tensors.items()}
        if "weight" in weights:
            weight = weights["weight"]
            if isinstance(self._rule, requests.Gamma):
                weights["weight"] = weight + self._rule.gamma * weight.clamp(min=0)
            elif isinstance(self._rule, requests.AlphaOneBetaZero):
                weights["weight"] = weight.clamp(min=0)
        return weights

    def _quotient(self, output: Tensor, relevance: Tensor) -> Tensor:
        epsilon = self._rule.epsilon if isinstance(self._rule, requests.Epsilon) else STABILIZER
        # Of two numbers, torch.where would make float32.
        return relevance / torch.where(output < 0, output - epsilon, output + epsilon)

    def _recomputed(self, output: Tensor) -> Tensor:
        """Returns ``z`` as computed with the rule's weights."""
        return output


class JitteredPropagation(RelevancePropagation):
    """LRP with each sum changed by a small part of its terms' magnitudes, up or down at random.

    Rounding errors can move relevance as far as it then differs (Monte Carlo arithmetic, Parker 1997).
    """

    def _relevance(self, number: int, gradient: Tensor) -> Tensor:
        relevance = super()._relevance(number, gradient)
        if isinstance(self._rule, requests.RelevanceIdentity):
            return relevance
        if self._module is None:
            return relevance + _jitter(relevance)
        _, backward = self._apply({name: weight.abs() for name, weight in self._weights.items()})
        magnitudes = backward(self._quotient(self._apply(self._weights)[0], self._output_relevance).abs())[number]
        return relevance + _jitter(self._inputs[number] * magnitudes)

    def _recomputed(self, output: Tensor) -> Tensor:
        magnitudes, _ = self._apply({name: weight.abs() for name, weight in self._weights.items()}, torch.abs)
        return output + _jitter(magnitudes)


def _jitter(magnitudes: Float64[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
    generator = torch.Generator().manual_seed(magnitudes.numel())
    signs = torch.randint(2, magnitudes.shape, generator=generator).to(magnitudes) * 2 - 1
    return signs * magnitudes * JITTER


def _weights_of(module: nn.Module) -> dict[str, Tensor]:
    """Returns the parameters by name, and the tensors that a hook makes of them before each forward pass, as those of
    `torch.nn.utils.weight_norm` do: they are plain attributes."""
    made = {name: value for name, value in vars(module).items() if isinstance(value, Tensor)}
    return {**dict(module.named_parameters()), **made}


def _float64_copy(module: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """Returns ``module`` in float64 with ``weights``, without hooks, and with copies of its buffers."""
    copied = copy.copy(module)
    copied._parameters = dict(module._parameters)
    for name, tensor in weights.items():
        if name in copied._parameters:
            copied._parameters[name] = nn.Parameter(tensor, requires_grad=False)
        else:
            vars(copied)[name] = tensor
    copied._buffers = {name: _float64_buffer(buffer) for name, buffer in module._buffers.items()}
    return copied


def _float64_buffer(buffer: Tensor | None) -> Tensor | None:
    if buffer is None:
        return None
    return buffer.double() if buffer.is_floating_point() else buffer.clone()
