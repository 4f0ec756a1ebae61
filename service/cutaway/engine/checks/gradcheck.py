"""Compares a model's backward pass with central differences of its forward pass, along random directions.

The gradient is wrong if the slopes of a step ahead and a step back agree and the gradient's slope differs. This must
hold for two lengths of step and along every direction. Where the slopes do not agree (kinks, rounding), nothing is
concluded: the test may miss a wrong backward pass, and never accuses a right one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from cutaway.contract.requests import Point
from cutaway.engine.hooks.hook_site import Override
from cutaway.engine.hooks.observe import observing
from cutaway.engine.hooks.recording import RecordedCall, watching
from cutaway.engine.model.inspected_model import Inputs, InspectedModel, gradients, graph_nodes
from cutaway.engine.passes.pass_recorder import AttributionProblem
from cutaway.engine.passes.reference_inputs import host
from cutaway.engine.runtime.numerics import SUM, equal

# Localisation of a fault: the innermost module, or the operator inside it.

CallsBySite = Mapping[str, Sequence[RecordedCall]]


def first_difference(model: InspectedModel, one: Inputs, other: Inputs, rows: slice = slice(None)) -> str:
    """Compares passes on two inputs, and returns where they begin to differ in ``rows``.

    That is the first operator's address, or module's name, that returns different values for equal inputs; ``""`` if
    there is none.
    """
    names = list(model.tree.modules)
    differing = _differing(_calls(model, one, names), _calls(model, other, names), rows)
    for name in differing:
        if any(_is_inside(inner, name) for inner in differing):
            continue
        operators = [f"{name}:*#*"]
        addresses = _differing(_calls(model, one, operators), _calls(model, other, operators), rows)
        return addresses[0] if addresses else name
    return ""


def _is_inside(name: str, outer: str) -> bool:
    return name != outer and name.startswith(f"{outer}." if outer else "")


def _calls(model: InspectedModel, inputs: Inputs, names: Sequence[str]) -> CallsBySite:
    sites = {name: watching(Point.INPUT, Point.OUTPUT) for name in names}
    with torch.no_grad(), observing(model.tree, sites) as seen, seen.forward():
        model.run(inputs)
    return seen.calls


def _differing(one: CallsBySite, other: CallsBySite, rows: slice) -> list[str]:
    return [
        name
        for name in one
        if any(
            _same(call, counterpart, Point.INPUT, rows) and not _same(call, counterpart, Point.OUTPUT, rows)
            for call, counterpart in zip(one[name], other.get(name, ()))
        )
    ]


def _same(one: RecordedCall, other: RecordedCall, point: Point, rows: slice) -> bool:
    ours, theirs = one.at(point), other.at(point)
    return ours.keys() == theirs.keys() and all(_equal(ours[path], theirs[path], rows) for path in ours)


def _equal(one: Tensor, other: Tensor, rows: slice) -> bool:
    return one.shape == other.shape and (equal(one[rows], other[rows]) if one.ndim else equal(one, other))


def _visit_outputs(problem: AttributionProblem, visit: Callable[[str, Tensor], None]) -> Tensor:
    """Runs a differentiable pass at the problem's input, and returns the tensor from which the target is read.

    ``visit`` gets the name and each floating output of every module, in the graph, in the order in which modules end.
    """

    def visiting(name: str) -> Callable[[Tensor], Tensor]:
        def change(tensor: Tensor) -> Tensor:
            visit(name, tensor)
            return tensor

        return change

    tree = problem.model.tree
    edits = {name: [(0, Override(change=visiting(name)))] for name in tree.modules}
    floating = [name for name in problem.explained if problem.inputs[name].is_floating_point()]
    leaves = {name: problem.inputs[name].detach().clone().requires_grad_() for name in floating}
    with torch.enable_grad(), observing(tree, {}, edits, batch=problem.rows) as seen, seen.forward():
        return problem.read({**problem.inputs, **leaves})


def where_gradient_ends(problem: AttributionProblem) -> tuple[str, str]:
    """Returns the last module that no gradient reaches, or only zeros, and the first one behind it that has a gradient.

    Either is ``""`` if there is none. Only modules without children count.
    """
    order: list[str] = []
    outputs: dict[str, Tensor] = {}

    def visit(name: str, tensor: Tensor) -> None:
        if name and not list(problem.model.tree.modules[name].children()):
            order.append(name)
            if tensor.requires_grad:
                outputs[name] = tensor

    read = _visit_outputs(problem, visit)
    arrived = gradients(problem.target.scalars(read), list(outputs.values())) if outputs else ()
    reached = {name for name, gradient in zip(outputs, arrived) if gradient is not None and bool(gradient.any())}
    last = max((index for index, name in enumerate(order) if name not in reached), default=-1)
    behind = [name for name in order[last + 1 :] if name in reached]
    return (order[last] if last >= 0 else ""), (behind[0] if behind else "")


def custom_functions(problem: AttributionProblem) -> dict[str, str]:
    """Returns each custom ``torch.autograd.Function`` in the model's graph, with the module that calls it first."""
    modules: dict[str, str] = {}
    known: set[Node] = set()

    def visit(name: str, tensor: Tensor) -> None:
        for node in graph_nodes(tensor.grad_fn, known):
            if isinstance(node, torch.autograd.function.BackwardCFunction):
                modules.setdefault(node.name().removesuffix("Backward"), name)

    visit("", _visit_outputs(problem, visit))
    return modules


_DIRECTIONS = 4

_STEP = 1 / 10
_OTHER_STEPS = (1 / 3, 1 / 30)
"""The lengths of the steps of which one must confirm the first, like that in units of eps^(1/3).

At eps^(1/3), the errors from curvature and from rounding are about equal.
"""

_NEGLIGIBLE = 0.02
"""A slope that differs by less than this fraction counts as right."""

_CERTAINTY = 10
"""How many times its own uncertainty a difference must be, to count against the gradient."""


class Slope(NamedTuple):
    """The slope of one row's target along a direction, by central differences and by the gradient."""

    forward: float
    gradient: float


_Targets: TypeAlias = Callable[[Callable[[Tensor], Tensor]], Tensor]
"""Returns the targets, [batch], after a change of one tensor."""


class _Probe(NamedTuple):
    """The tensor that is shifted, the target's gradient at it, and the function of its change: all [batch, ...]."""

    value: Tensor
    gradient: Tensor
    targets: _Targets

    def shifted(self, by: Tensor) -> Tensor:
        """Returns the targets, [batch], with ``by`` added to the tensor; float64 on the host."""
        with torch.no_grad():
            return host(self.targets(lambda tensor: tensor + by))


def wrong_slope(problem: AttributionProblem) -> Slope | None:
    """Returns the slopes of a row whose gradient is wrong along each of several random directions.

    None if there is none, or nothing can be concluded. For a right gradient this takes four passes, one of them with
    a backward pass.
    """
    probe = _probe(problem)
    if probe is None:
        return None
    generator = torch.Generator().manual_seed(0)
    here = probe.shifted(torch.zeros_like(probe.value))
    wrong: dict[int, Slope] = {}
    rows = set(range(len(probe.value)))
    for _ in range(_DIRECTIONS):
        wrong = _wrong_rows(probe, here, generator)
        rows &= set(wrong)
        if not rows:
            return None
    return wrong[min(rows)]


def _wrong_rows(probe: _Probe, here: Tensor, generator: torch.Generator) -> dict[int, Slope]:
    """Returns the rows whose slopes differ along one random direction."""
    rows = len(probe.value)
    size = probe.value.abs().reshape(rows, -1).mean(dim=1)
    size = torch.where(size > 0, size, torch.ones_like(size)).reshape(-1, *[1] * (probe.value.ndim - 1))
    signs = torch.randint(0, 2, probe.value.shape, generator=generator).to(probe.value) * 2 - 1
    direction = signs * size
    expected = (host(probe.gradient) * host(direction)).reshape(rows, -1).sum(dim=1)
    slopes, differ = _compare(probe, here, direction, expected, _STEP)
    if not bool(differ.any()):
        return {}
    confirmed = torch.stack([_compare(probe, here, direction, expected, step)[1] for step in _OTHER_STEPS]).any(dim=0)
    wrong = (differ & confirmed).nonzero().flatten().tolist()
    return {row: Slope(float(slopes[row]), float(expected[row])) for row in wrong}


def _compare(probe: _Probe, here: Tensor, direction: Tensor, expected: Tensor, length: float) -> tuple[Tensor, Tensor]:
    """Returns, [batch] each, the slopes (f(x + h d) - f(x - h d)) / 2h and whether they contradict ``expected``.

    Their uncertainty is the difference between the slopes ahead and behind, and the rounding of the targets.
    """
    step = length * torch.finfo(direction.dtype).eps ** (1 / 3)
    ahead, behind = (probe.shifted(sign * step * direction) for sign in (1, -1))
    slopes = (ahead - behind) / (2 * step)
    rounding = SUM.of(direction.dtype) * torch.stack([here, ahead, behind]).abs().amax(dim=0) / step
    uncertainty = (ahead - 2 * here + behind).abs() / step + rounding
    largest = torch.maximum(slopes.abs(), expected.abs())
    return slopes, (expected - slopes).abs() > torch.maximum(_CERTAINTY * uncertainty, _NEGLIGIBLE * largest)


def _probe(problem: AttributionProblem) -> _Probe | None:
    """Returns a probe of the first floating explained input, or of the first embedding with a gradient: behind token
    ids, floating values begin there."""
    inputs = [name for name in problem.explained if problem.inputs[name].is_floating_point()]
    for targets in [partial(_at_input, problem, inputs[0])] if inputs else _embeddings(problem):
        leaves: list[Tensor] = []

        def leaf(tensor: Tensor, leaves: list[Tensor] = leaves) -> Tensor:
            leaves.append(tensor.detach().clone().requires_grad_())
            return leaves[-1]

        with torch.enable_grad():
            scalars = targets(leaf)
            if not leaves or len(leaves[0]) != problem.rows or not (inputs or scalars.requires_grad):
                continue
            gradient = gradients(scalars, leaves[:1])[0] if scalars.requires_grad else None
        value = leaves[0].detach()
        return _Probe(value, torch.zeros_like(value) if gradient is None else gradient, targets)
    return None


def _at_input(problem: AttributionProblem, name: str, change: Callable[[Tensor], Tensor]) -> Tensor:
    return problem.target.scalars(problem.read({**problem.inputs, name: change(problem.inputs[name])}))


def _embeddings(problem: AttributionProblem) -> Iterator[_Targets]:
    for name, module in problem.model.tree.modules.items():
        if isinstance(module, nn.Embedding):
            yield partial(_at_output, problem, name)


def _at_output(problem: AttributionProblem, name: str, change: Callable[[Tensor], Tensor]) -> Tensor:
    edits = {name: [(0, Override(change=change, call=0))]}
    with observing(problem.model.tree, {}, edits, batch=problem.rows) as seen, seen.forward():
        return problem.target.scalars(problem.read(problem.inputs))
