"""Where in a model something happens: the innermost module, or the operator inside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from cutaway.engine.edits import Override
from cutaway.engine.hooks import observing
from cutaway.engine.seen import Call
from cutaway.engine.subject import Inputs, Subject, gradients
from cutaway.engine.wishes import watching
from cutaway.engine.witness import Question
from cutaway.requests import Point

Calls = Mapping[str, Sequence[Call]]


def where_apart(subject: Subject, one: Inputs, other: Inputs, rows: slice = slice(None)) -> str:
    """The first place that returns different ``rows`` in passes on ``one`` and ``other`` although it is given the same:
    an operator's address, or a module's name; ``""`` where nothing can be told."""
    names = list(subject.tree.modules)
    apart = _apart(_calls(subject, one, names), _calls(subject, other, names), rows)
    inner = [name for name in apart if not any(_inside(name, each) for each in apart)]
    for name in inner:
        glob = [f"{name}:*#*"]
        operators = _apart(_calls(subject, one, glob), _calls(subject, other, glob), rows)
        return operators[0] if operators else name
    return ""


def _inside(outer: str, name: str) -> bool:
    return name != outer and name.startswith(f"{outer}." if outer else "")


def _calls(subject: Subject, inputs: Inputs, names: Sequence[str]) -> Calls:
    taps = {name: watching(Point.INPUT, Point.OUTPUT) for name in names}
    with torch.no_grad(), observing(subject.tree, taps) as seen, seen.forward():
        subject.run(inputs)
    return seen.calls


def _apart(one: Calls, other: Calls, rows: slice) -> list[str]:
    return [
        name
        for name in one
        if any(
            _same(mine, theirs, Point.INPUT, rows) and not _same(mine, theirs, Point.OUTPUT, rows)
            for mine, theirs in zip(one[name], other.get(name, ()))
        )
    ]


def _same(one: Call, other: Call, point: Point, rows: slice) -> bool:
    mine, theirs = one.at(point), other.at(point)
    return mine.keys() == theirs.keys() and all(_equal(mine[path], theirs[path], rows) for path in mine)


def _equal(one: Tensor, other: Tensor, rows: slice) -> bool:
    if one.shape != other.shape:
        return False
    mine, theirs = (each[rows] if each.ndim else each for each in (one, other))
    return bool(((mine == theirs) | ((mine != mine) & (theirs != theirs))).all())  # NaN is NaN


def outputs_alive(question: Question, look: Callable[[str, Tensor], None]) -> Tensor:
    """Run a differentiable pass at the question's input, and ``look`` at every floating tensor that a module returns,
    alive in the graph, in the order in which the modules end; returns what the target is read from."""

    def seeing(name: str) -> Callable[[Tensor], Tensor]:
        def see(tensor: Tensor) -> Tensor:
            look(name, tensor)
            return tensor

        return see

    tree = question.subject.tree
    edits = {name: [(0, Override(change=seeing(name)))] for name in tree.modules}
    floating = [name for name in question.explained if question.inputs[name].is_floating_point()]
    leaves = {name: question.inputs[name].detach().clone().requires_grad_() for name in floating}
    with torch.enable_grad(), observing(tree, {}, edits, batch=question.rows) as seen, seen.forward():
        return question.read({**question.inputs, **leaves})


def where_cut(question: Question) -> tuple[str, str]:
    """The last module that no gradient reaches, or only zeros, and the first one behind it that one does; ``""`` for
    what there is none of. Modules that hold others are passed over."""
    order: list[str] = []
    alive: dict[str, Tensor] = {}

    def look(name: str, tensor: Tensor) -> None:
        if name and not list(question.subject.tree.modules[name].children()):
            order.append(name)
            if tensor.requires_grad:
                alive[name] = tensor

    read = outputs_alive(question, look)
    reached = set(_reached(question, read, alive))
    last = max((index for index, name in enumerate(order) if name not in reached), default=-1)
    behind = [name for name in order[last + 1 :] if name in reached]
    return (order[last] if last >= 0 else ""), (behind[0] if behind else "")


def _reached(question: Question, read: Tensor, alive: Mapping[str, Tensor]) -> Iterator[str]:
    if not alive:
        return
    found = gradients(question.chosen.of(read), list(alive.values()))
    for name, gradient in zip(alive, found):
        if gradient is not None and bool(gradient.any()):
            yield name


def custom_functions(question: Question) -> dict[str, str]:
    """The ``torch.autograd.Function`` of the model's own that its graph is made of, by name; and the module in which
    each is called first."""
    found: dict[str, str] = {}
    known: set[object] = set()

    def look(name: str, tensor: Tensor) -> None:
        for node in _new_nodes(tensor.grad_fn, known):
            if isinstance(node, torch.autograd.function.BackwardCFunction):
                found.setdefault(node.name().removesuffix("Backward"), name)

    look("", outputs_alive(question, look))
    return found


def _new_nodes(root: torch.autograd.graph.Node | None, known: set[object]) -> Iterator[torch.autograd.graph.Node]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node is None or node in known:
            continue
        known.add(node)
        yield node
        waiting += [each for each, _ in node.next_functions]
