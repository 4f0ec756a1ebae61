"""Finds the place in a model where something happens: the innermost module, or the operator inside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node

from cutaway.engine.hooks.capture_spec import watching
from cutaway.engine.hooks.edits import Override
from cutaway.engine.hooks.observe import observing
from cutaway.engine.hooks.recording import RecordedCall
from cutaway.engine.model.inspected_model import Inputs, InspectedModel, gradients, graph_nodes
from cutaway.engine.passes.pass_recorder import AttributionProblem
from cutaway.engine.runtime.numerics import equal
from cutaway.requests import Point

Calls = Mapping[str, Sequence[RecordedCall]]


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


def _calls(model: InspectedModel, inputs: Inputs, names: Sequence[str]) -> Calls:
    sites = {name: watching(Point.INPUT, Point.OUTPUT) for name in names}
    with torch.no_grad(), observing(model.tree, sites) as seen, seen.forward():
        model.run(inputs)
    return seen.calls


def _differing(one: Calls, other: Calls, rows: slice) -> list[str]:
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
