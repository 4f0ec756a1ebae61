"""Relevance, handed back call by call by the formula of each layer's rule.

Written ``a`` for what goes into a layer, ``w`` for its weights, ``z = a w + b`` for what comes out, and ``R`` for
relevance: ``R_j = a_j * sum over k of w_jk * R_k / (z_k + epsilon * sign z_k)``. What is no module is a layer too here,
so that Captum, which lets the plain gradient pass there, is found out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from cutaway.engine.edits import Override
from cutaway.engine.evidence import Evidence, Reference, at_input, host
from cutaway.engine.hooks import observing
from cutaway.engine.modules import ModuleTree
from cutaway.engine.operators import is_address
from cutaway.engine.references.passage import passage
from cutaway.engine.seen import Call
from cutaway.engine.wishes import watching
from cutaway.engine.witness import Pass, Question, Values, once, visits
from cutaway.requests import (
    AlphaOneBetaZero,
    Edit,
    Epsilon,
    Gamma,
    LayerLRP,
    LrpRule,
    Point,
    Propagation,
    RelevanceIdentity,
)

STABILISER = 1e-9
"""What keeps a division by ``z`` finite, in rules that say nothing of an epsilon."""

JITTER = 1e-4
"""By which part of its terms' magnitudes a sum is moved, to see where rounding would carry relevance."""

UNCHANGED: tuple[type[nn.Module], ...] = (nn.ReLU, nn.Dropout, nn.Tanh)
"""Modules that relevance passes unchanged, whatever their rule."""

ROUTES = {
    *("adaptive_max_pool1d", "adaptive_max_pool2d", "cat", "chunk", "concat", "concatenate", "contiguous", "cpu"),
    *("cuda", "double", "dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "flatten", "flip"),
    *("float", "getitem", "half", "hstack", "index_select", "masked_fill", "max_pool1d", "max_pool2d", "max_pool3d"),
    *("moveaxis", "movedim", "narrow", "pad", "permute", "pixel_shuffle", "ravel", "reshape", "reshape_as", "roll"),
    *("select", "setitem", "split", "squeeze", "stack", "swapaxes", "swapdims", "t", "T", "mT", "to"),
    *("tensor_split", "transpose", "type", "type_as", "unbind", "unflatten", "unsqueeze", "view", "view_as"),
    "vstack",
}
"""Operators whose gradient hands relevance on as it is, to where the numbers came from."""

RECTIFIERS = {"relu", "relu_"}
"""Operators whose gradient stops relevance only where their output is 0."""

ACTIVATIONS = RECTIFIERS | {
    *("celu", "elu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "leaky_relu_", "logsigmoid"),
    *("mish", "prelu", "relu6", "selu", "sigmoid", "sigmoid_", "silu", "softplus", "softsign", "tanh", "tanh_"),
}
"""Operators that act on each element alone, which relevance should pass unchanged."""


class Place(NamedTuple):
    """Where relevance passes.

    Attributes:
        name: the name of a module that has no children, or the address of an operator outside of such modules.
        calls: the numbers of its calls that take and return floats.
        rule: how relevance passes through it; None hands it on through the plain gradient.
    """

    name: str
    calls: tuple[int, ...]
    rule: LrpRule | None

    @property
    def operator(self) -> str:
        """The operator's name; ``""`` for a module."""
        return self.name.rpartition(":")[2].partition("#")[0] if is_address(self.name) else ""


def leaf_modules(tree: ModuleTree) -> dict[str, nn.Module]:
    """The modules without children: those that Captum knows."""
    return {name: module for name, module in tree.modules.items() if not any(True for _ in module.children())}


def rules_of(question: Question) -> dict[str, LrpRule]:
    """The rules that were given, by the modules' own names."""
    given = cast(Propagation, question.request).rules
    return {question.subject.tree.resolve(name): rule for name, rule in given.items()}


@once
def places(question: Question) -> list[Place]:
    """Run forward once, and see."""
    tree = question.subject.tree
    leaves = leaf_modules(tree)
    # Without a graph, watching gradients copies nothing: it only counts calls, and notes data types.
    taps = {name: watching(Point.GRAD_OUTPUT) for name in (*leaves, "**:*#*")}
    with torch.no_grad(), observing(tree, taps) as seen, seen.forward():
        question.read(question.inputs)
    given = rules_of(question)
    found = []
    for name, calls in seen.calls.items():
        if name.rpartition(":")[0] in leaves and is_address(name):
            continue
        numbers = tuple(call.number for call in calls if call.number is not None and _floats(call))
        rule = _operators_rule(name) if name not in leaves else _modules_rule(leaves[name], given.get(name))
        found.append(Place(name, numbers, rule))
    return found


def _floats(call: Call) -> bool:
    kinds = [call.kinds.get(point, {}).values() for point in (Point.INPUT, Point.OUTPUT)]
    return all(any(kind.is_floating_point for kind in side) for side in kinds)


def _modules_rule(module: nn.Module, given: LrpRule | None) -> LrpRule:
    return RelevanceIdentity() if type(module) in UNCHANGED else given or Epsilon(STABILISER)


def _operators_rule(address: str) -> LrpRule | None:
    name = Place(address, (), None).operator
    if name in ROUTES:
        return None
    return RelevanceIdentity() if name in ACTIVATIONS else Epsilon(STABILISER)


# Passes.


def at_input_twice(question: Question) -> list[Values]:
    """Captum runs once to see what goes into each layer, and once for the way back."""
    return at_input(question) * 2


def relevance_passes(question: Question) -> Sequence[Pass]:
    """A pass in which relevance flows back; and one in which it is jittered, to see what rounding does to it."""
    where = [place for place in places(question) if place.rule is not None]
    return [
        *visits(question, at_input(question), differentiate=True, edits=_edits(question, where, Share)),
        *visits(question, at_input(question), differentiate=True, edits=_edits(question, where, Jittered)),
    ]


def relevance(evidence: Evidence) -> Reference:
    """What arrives of 1 at the target, times the target."""
    question = evidence.question
    with torch.no_grad():
        scalars = host(question.chosen.of(evidence.passes[0].output.to(question.subject.device)))
    shares, jittered = (_arrived(evidence, number) for number in (0, 1))
    return Reference(
        {name: share * _by_row(scalars, share) for name, share in shares.items()},
        {name: _terms(share, jittered[name]) * _by_row(scalars.abs(), share) for name, share in shares.items()},
    )


def _terms(share: Tensor, jittered: Tensor) -> Tensor:
    """How large the terms are that relevance holds the rounding of: in each row as large as where it moves most."""
    moved = (jittered - share).abs().flatten(1).amax(dim=1) / JITTER
    return share.abs() + _by_row(moved, share)


def _arrived(evidence: Evidence, number: int) -> Values:
    each = Evidence(evidence.question, evidence.passes[number : number + 1], evidence.call)
    if isinstance(evidence.question.request, LayerLRP):
        return each.layer(Point.GRAD_OUTPUT)
    return {name: each.gradients(name) for name in evidence.question.explained}


def _by_row(scalars: Tensor, like: Tensor) -> Tensor:
    return scalars.reshape(-1, *[1] * (like.ndim - 1))


def _edits(
    question: Question, where: Sequence[Place], kind: Callable[[LrpRule, nn.Module | None], Share]
) -> dict[str, list[tuple[int, Edit]]]:
    modules = question.subject.tree.modules
    return {
        place.name: [
            (call, edit) for call in place.calls for edit in _sides(call, place, kind, modules.get(place.name))
        ]
        for place in where
    }


def _sides(
    call: int, place: Place, kind: Callable[[LrpRule, nn.Module | None], Share], module: nn.Module | None
) -> Iterator[Edit]:
    share = kind(cast(LrpRule, place.rule), module)
    yield Override(at=Point.INPUT, call=call, change=share.enter)
    yield Override(at=Point.OUTPUT, call=call, change=share.leave)


# Rules.


class Share:
    """One call of a layer: what relevance does on its way back.

    Args:
        rule: the layer's.
        module: the layer; None for an operator, which has no weights.
    """

    def __init__(self, rule: LrpRule, module: nn.Module | None) -> None:
        self._rule = rule
        self._module = module
        self._activations: list[Tensor] = []
        self._arrived: Tensor

    def enter(self, activation: Tensor) -> Tensor:
        """``activation`` goes in; its relevance will come out here."""
        number = len(self._activations)
        self._activations.append(activation.detach().double().clone())
        return passage(activation, lambda gradient: self._share(number, gradient.double()))

    def leave(self, output: Tensor) -> Tensor:
        """``output`` comes out; its relevance will go in here."""
        kept = output.detach().double().clone()
        return passage(output, lambda relevance: self._begin(kept, relevance.double()))

    def _begin(self, output: Tensor, relevance: Tensor) -> Tensor:
        self._arrived = relevance
        return self._quotient(output, relevance) if isinstance(self._rule, Epsilon) else relevance

    def _share(self, number: int, gradient: Tensor) -> Tensor:
        if isinstance(self._rule, RelevanceIdentity):
            return self._arrived
        if isinstance(self._rule, Epsilon):
            # The layer's own backward, so that an edit between the layer and what follows takes part.
            return self._activations[number] * gradient
        return self._activations[number] * self._handed_back(number)

    def _handed_back(self, number: int) -> Tensor:
        """``sum over k of w_jk R_k / z_k``, of the layer with the weights that its rule makes of its own."""
        output, backward = self._linear(self._weights)
        return backward(self._quotient(self._recomputed(output), self._arrived))[number]

    def _linear(
        self, weights: Mapping[str, Tensor], change: Callable[[Tensor], Tensor] = torch.clone
    ) -> tuple[Tensor, Callable[[Tensor], Sequence[Tensor]]]:
        """What the layer returns with ``weights``, in float64, and how it differentiates."""
        twin = _twin(cast(nn.Module, self._module), weights)
        with torch.enable_grad():
            inputs = [change(each).requires_grad_() for each in self._activations]
            output = twin.forward(*[each.clone() for each in inputs])  # which it may change in place
        return output.detach(), lambda cotangent: torch.autograd.grad(output, inputs, cotangent, retain_graph=True)

    @property
    def _weights(self) -> dict[str, Tensor]:
        own = cast(nn.Module, self._module).named_parameters(recurse=False)
        return {name: self._ruled(name, tensor.detach().double()) for name, tensor in own}

    def _ruled(self, name: str, tensor: Tensor) -> Tensor:
        """Montavon et al. 2019, of weights; Captum leaves the bias as it is."""
        if name != "weight":
            return tensor
        if isinstance(self._rule, Gamma):
            return tensor + self._rule.gamma * tensor.clamp(min=0)
        return tensor.clamp(min=0) if isinstance(self._rule, AlphaOneBetaZero) else tensor

    def _quotient(self, output: Tensor, relevance: Tensor) -> Tensor:
        epsilon = self._rule.epsilon if isinstance(self._rule, Epsilon) else STABILISER
        return relevance / (output + torch.where(output < 0, -epsilon, epsilon))

    def _recomputed(self, output: Tensor) -> Tensor:
        """``z`` of other weights than the model's."""
        return output


class Jittered(Share):
    """The same, with each sum off by a little of its terms' magnitudes, up or down by chance: as far as relevance then
    lies from its own, so far can rounding carry it (Parker 1997, Monte Carlo arithmetic)."""

    def _share(self, number: int, gradient: Tensor) -> Tensor:
        share = super()._share(number, gradient)
        if isinstance(self._rule, RelevanceIdentity):
            return share
        if self._module is None:
            return share + _by_chance(share)
        weights = {name: each.abs() for name, each in self._weights.items()}
        _, backward = self._linear(weights)
        magnitudes = backward(self._quotient(self._linear(self._weights)[0], self._arrived).abs())[number]
        return share + _by_chance(self._activations[number] * magnitudes)

    def _recomputed(self, output: Tensor) -> Tensor:
        magnitudes, _ = self._linear({name: each.abs() for name, each in self._weights.items()}, torch.abs)
        return output + _by_chance(magnitudes)


def _by_chance(magnitudes: Tensor) -> Tensor:
    numbers = torch.Generator().manual_seed(magnitudes.numel())
    signs = torch.randint(2, magnitudes.shape, generator=numbers).to(magnitudes) * 2 - 1
    return signs * magnitudes * JITTER


def _twin(module: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """``module`` without its hooks, in float64, with ``weights``. Its buffers are copies."""
    twin = copy.copy(module)
    twin._parameters = dict(module._parameters)
    twin._parameters.update({name: nn.Parameter(tensor, requires_grad=False) for name, tensor in weights.items()})
    twin._buffers = {name: _double(buffer) for name, buffer in module._buffers.items()}
    return twin


def _double(buffer: Tensor | None) -> Tensor | None:
    if buffer is None:
        return None
    return buffer.double() if buffer.is_floating_point() else buffer.clone()
