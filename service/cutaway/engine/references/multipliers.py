"""Multipliers instead of gradients: a pass at the baseline, and one at the input whose nonlinearities hand back what
the Rescale rule says."""

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

from cutaway.engine.edits import Override
from cutaway.engine.landing import on_host
from cutaway.engine.leaves import Path, incoming, leaves, map_leaves, put_back
from cutaway.engine.operators import operator_name
from cutaway.engine.references.nonlinear import Place
from cutaway.engine.references.rescale import OF_FUNCTIONS, Again, Ends, unpool, windows_share_a_maximum
from cutaway.engine.seen import in_backward
from cutaway.engine.tap import Numbered
from cutaway.engine.targets import Chosen
from cutaway.engine.witness import Changes, Pass, Question, visits
from cutaway.requests import Point

Returned: TypeAlias = tuple[str, "ref[Tensor]"]
"""A module, and the tensor that it returned."""


class Flow:
    """One call of a nonlinearity, and what flows through it in both passes.

    Attributes:
        place: the nonlinearity.
        call: which call of it.
        arriving: the multiplier that reached it; None where none did.
        again: it, to be run on other tensors.
        dtype: what it computes in.
        edge: where the tensor that it takes lies in the graph; None where no gradient can reach it.
        is_bypassed: whether something beside it uses that tensor as well, on another way to the target.
        behind: the module of the kinds that Captum overrides which returned the very tensor that it takes; ``""`` for
            none.
    """

    def __init__(self, place: Place, call: int, again: Again, returned: list[Returned]) -> None:
        self.place = place
        self.call = call
        self.again = again
        self.arriving: Tensor | None = None
        self.dtype = torch.float64
        self.edge: GradientEdge | None = None
        self.is_bypassed = False
        self.behind = ""
        self._returned = returned
        self._kept: dict[Point, list[Tensor]] = {Point.INPUT: [], Point.OUTPUT: []}
        self._handed: Tensor | None = None

    @property
    def matters(self) -> bool:
        """Whether a multiplier went on from it, and something moved."""
        return self._handed is not None and self.ends is not None and bool(self.ends.change_in.any())

    @property
    def ends(self) -> Ends | None:
        """What it took and returned; None where the two passes do not fit together."""
        taken, returned = self._kept[Point.INPUT], self._kept[Point.OUTPUT]
        if not len(taken) == len(returned) == 2:
            return None
        ends = Ends(taken[1], returned[1], taken[0], returned[0])
        return ends if ends.fit else None

    @property
    def shares_maxima(self) -> bool:
        """Of windows: whether two that hand something back have their maximum at the same element."""
        ends = self.ends
        return (
            ends is not None and self.arriving is not None and windows_share_a_maximum(ends, self.arriving, self.again)
        )

    def keep(self, latest: Callable[[], Again] | None = None) -> Iterator[Numbered]:
        """Edits that change nothing, and keep what goes in and out; with what runs it again, for an operator."""
        port = self.place.calls[self.call]

        def take(value: Tensor) -> Tensor:
            if in_backward():  # checkpointing computes again what was kept before
                return value
            self._kept[Point.INPUT].append(_copied(value))
            self.dtype = value.dtype
            self.behind = self.behind or next((name for name, each in self._returned if each() is value), "")
            if value.requires_grad:
                self.edge = get_gradient_edge(value)
            return value

        def give(value: Tensor) -> Tensor:
            if in_backward():
                return value
            self._kept[Point.OUTPUT].append(_copied(value))
            if self.place.is_module:
                self._returned.append((self.place.name, ref(value)))
            if latest is not None and self.place.rule is unpool and not self.place.is_module:
                self.again = latest()
            return value

        yield 0, Override(at=Point.INPUT, call=self.call, path=port.taken, change=take)
        yield 0, Override(at=Point.OUTPUT, call=self.call, path=port.returned, change=give)

    def override(self) -> Iterator[Numbered]:
        """Edits that let the multiplier pass in place of the derivative."""
        port = self.place.calls[self.call]

        def arrive(gradient: Tensor) -> Tensor:
            self.arriving = _copied(gradient)
            return gradient

        def hand_on(derivative: Tensor) -> Tensor:
            ends = self.ends
            if self.arriving is None or ends is None:
                return derivative
            multiplier = self.place.rule(ends, self.arriving, _copied(derivative), self.again)
            self._handed = multiplier.to(derivative)
            return self._handed

        yield 0, Override(at=Point.GRAD_OUTPUT, call=self.call, path=port.returned, change=arrive)
        yield 0, Override(at=Point.GRAD_INPUT, call=self.call, path=port.taken, change=hand_on)


class Rescaled(NamedTuple):
    """A pass at the baseline, and one at the input in which multipliers flow back."""

    at_baseline: Pass
    at_input: Pass
    flows: Sequence[Flow]


def rescaled(question: Question, places: Sequence[Place]) -> Rescaled:
    """Run both."""
    returned: list[Returned] = []
    flows = [
        Flow(place, call, _module(question, place), returned) for place in places for call in range(len(place.calls))
    ]
    start = dict(question.baselines)
    (before,) = visits(question, [start], differentiate=False, edits=_edits(flows, lambda flow: [*flow.keep()]))
    now = _back(question, flows)
    if any(flow.arriving is not None and flow.ends is None for flow in flows):
        now.gradients, now.layer = {}, ()  # the model computes something else at the baseline: nothing can be compared
    return Rescaled(before, now, flows)


def _back(question: Question, flows: Sequence[Flow]) -> Pass:
    """A pass at the input, through which multipliers flow back."""
    latest, way = _Latest(), _Way(question.chosen)
    edits = _edits(flows, lambda flow: [*flow.keep(latest.again), *flow.override()])
    point = {name: question.inputs[name] for name in question.explained}
    has_pools = any(flow.place.rule is unpool and not flow.place.is_module for flow in flows)
    noting = replace(question, chosen=replace(question.chosen, scalars=way.of))
    with latest if has_pools else nullcontext():
        # Of a layer, what lies before it has no part in the answer, and is not to be reached.
        (now,) = visits(noting, [point], differentiate=True, edits=edits, to_inputs=not question.layer)
    way.compare(flows)
    return now


class _Way:
    """The graph of one pass, from the target back."""

    def __init__(self, chosen: Chosen) -> None:
        self._chosen = chosen
        self._end: Node | None = None

    def of(self, output: Tensor) -> Tensor:
        """The target's scalars."""
        scalars = self._chosen.of(output)
        self._end = scalars.grad_fn
        return scalars

    def compare(self, flows: Sequence[Flow]) -> None:
        """Say of each of ``flows`` whether it is bypassed; and let go of the graph, whose hooks lead back to them in a
        circle that Python's collector cannot see."""
        uses = _uses(self._end) if self._end is not None else Counter()
        for flow in flows:
            flow.is_bypassed = flow.edge is not None and uses[flow.edge.node, flow.edge.output_nr] > 1
            flow.edge = None
        self._end = None


def _uses(end: Node) -> Counter[tuple[Node, int]]:
    """How many operations on the way to ``end`` use what each node of the graph returns, and which of it."""
    found: Counter[tuple[Node, int]] = Counter()
    reached, further = {end}, [end]
    while further:
        for node, number in further.pop().next_functions:
            if node is not None:
                found[node, number] += 1
                if node not in reached:
                    reached.add(node)
                    further.append(node)
    return found


def _copied(tensor: Tensor) -> Tensor:
    """In float64 on the host, as it is now: the model may change it in place."""
    return on_host(tensor).double()


def _edits(flows: Sequence[Flow], of: Callable[[Flow], list[Numbered]]) -> Changes:
    edits: dict[str, list[Numbered]] = {}
    for flow in flows:
        edits.setdefault(flow.place.name, []).extend(of(flow))
    return edits


def _module(question: Question, place: Place) -> Again:
    """The module, without its hooks; for an operator nothing that could be run."""
    module = question.subject.tree.modules.get(place.name)
    return _first if module is None else lambda value: _first(module.forward(value))


def _first(returned: Any) -> Tensor:
    return next(iter(leaves(returned).values()))


def _detached(_: Path, tensor: Tensor) -> Tensor:
    return tensor.detach()


class _Latest(TorchFunctionMode):
    """Remembers the operator that ran last, among those that take maxima over windows, with its other arguments."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if OF_FUNCTIONS.get(operator_name(func)) is unpool:
            # Out of the graph, whose hooks lead back here in a circle that Python's collector cannot see.
            self._ran = func, map_leaves(args, _detached), map_leaves(kwargs or {}, _detached)
        return func(*args, **(kwargs or {}))

    def again(self) -> Again:
        """The operator, to be run on another tensor."""
        func, args, kwargs = self._ran
        path = next(iter(incoming(args, kwargs)))

        def run(value: Tensor) -> Tensor:
            positional, named = put_back(args, kwargs, {path: value})
            return _first(func(*positional, **named))

        return run
