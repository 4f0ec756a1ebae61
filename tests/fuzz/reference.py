"""The answer that a question must get, computed slowly and without the engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from cutaway.contract.errors import Reason
from cutaway.contract.requests import (
    Capture,
    Edit,
    InspectRequest,
    Mix,
    Neuron,
    Point,
    PredictedClass,
    TopElements,
    TopK,
)
from tests.fuzz import places
from tests.fuzz.arithmetic import Part, Refused, Scalars, refuse_unless, scalars
from tests.fuzz.graphs import Graph
from tests.fuzz.interpreter import Interpreter, Tensors
from tests.fuzz.ledger import Effect, Key, Ledger, Notes, Stop, effect, part


@dataclass
class Expected:
    """The answer, or why there is none.

    Attributes:
        refusals: reasons, of which one must be given; empty where there is an answer.
        perhaps: reasons that may be given in place of an answer.
        captures: by place, one element for each call.
        effects: what each edit did.
        all_edits: what all edits of values together did to the predictions, where that was asked for.
        warnings: code and subject, without those about edits.
    """

    refusals: set[Reason] = field(default_factory=set)
    perhaps: set[Reason] = field(default_factory=set)
    predictions: Tensors = field(default_factory=dict)
    unedited: Tensors = field(default_factory=dict)
    targets: Tensor | None = None
    target_values: Tensor | None = None
    captures: dict[str, list[Notes]] = field(default_factory=dict)
    input_gradients: Tensors = field(default_factory=dict)
    parameter_gradients: Tensors = field(default_factory=dict)
    effects: dict[int, Effect] = field(default_factory=dict)
    all_edits: Effect = Effect.CHANGED
    warnings: list[tuple[str, str]] = field(default_factory=list)


def answer(graph: Graph, weights: Tensors, inputs: Tensors, request: InspectRequest) -> Expected:
    """What ``request`` must get; ``weights`` are the model's parameters by their own names."""
    asking = Asking(graph, weights, inputs, request)
    try:
        for stage in (asking.resolve, asking.forward, asking.look_for, asking.choose, asking.backward):
            stage()
            if asking.expected.refusals:
                break
        else:
            asking.collect()
    except Refused as refused:
        asking.expected.refusals.add(refused.reason)
    return asking.expected


class Asking:
    """One question, answered in stages; each may find reasons why there is no answer."""

    def __init__(self, graph: Graph, weights: Tensors, inputs: Tensors, request: InspectRequest) -> None:
        self._graph = graph
        self._request = request
        self._names = places.modules(graph)
        self._parameter_names = places.parameters(graph, weights)
        self._weights = {name: each.clone().requires_grad_(not graph.frozen) for name, each in weights.items()}
        self._inputs = {name: each.clone() for name, each in inputs.items()}
        self._edits: dict[str, list[tuple[int, Edit]]] = defaultdict(list)
        self._wishes: dict[str, list[Capture]] = defaultdict(list)
        self._ops: dict[str, list[Capture]] = defaultdict(list)
        self._parameters: dict[str, Capture] = {}
        self._inputs_asked: tuple[str, ...] = ()
        self._scalars: list[Scalars] = []
        self._outputs: Tensors = {}
        self._stopped = False
        self.expected = Expected()

    # What is asked, and where.

    def resolve(self) -> None:
        """Names become places."""
        for capture in self._request.captures:
            self._try(self._resolve_capture, capture)
        for number, edit in enumerate(self._request.edits):
            self._try(self._resolve_edit, number, edit)
        self._try(self._resolve_inputs)
        if isinstance(self._request.target, Neuron):
            self._try(self._matching, self._request.target.module)
        for wishes in [*self._wishes.values(), *self._ops.values()]:
            self._refuse_conflict(wishes)

    def _try(self, step: Callable[..., object], *given: Any) -> None:
        try:
            step(*given)
        except Refused as refused:
            self.expected.refusals.add(refused.reason)

    def _resolve_capture(self, capture: Capture) -> None:
        if capture.parameter:
            self._try(self._resolve_parameter, capture)
            refuse_unless(not isinstance(capture.reduce, TopElements), Reason.INVALID_VALUE)  # no place for positions
        elif capture.op:
            self._ops[self._address(capture.op)].append(capture)
        else:
            for name in self._matching(capture.module):
                self._wishes[name].append(capture)

    def _matching(self, module: str) -> set[str]:
        if not places.is_glob(module):
            refuse_unless(bool(module) and module in self._names, Reason.MODULE_NOT_FOUND)
            return {self._names[module]}
        found = {
            own for name, own in self._names.items() if places.matches(module, name) and (name != "" or module == "**")
        }
        refuse_unless(bool(found), Reason.MODULE_NOT_FOUND)
        return found

    def _address(self, op: str) -> str:
        refuse_unless(places.is_address(op), Reason.OP_NOT_FOUND)
        own = op if places.is_glob(op) else places.own_address(op, self._names)
        if own is None:
            raise Refused(Reason.MODULE_NOT_FOUND)
        return own

    def _resolve_parameter(self, capture: Capture) -> None:
        found = [name for name in self._parameter_names if places.matches(capture.parameter, name)]
        refuse_unless(bool(found), Reason.PARAMETER_NOT_FOUND)
        for name in found:
            known = self._parameters.setdefault(name, capture)
            refuse_unless(_looks_alike(known, capture), Reason.INVALID_VALUE)

    def _resolve_edit(self, number: int, edit: Edit) -> None:
        rows = range(self._graph.batch)
        refuse_unless(all(row in rows for row in edit.rows), Reason.ROW_RANGE)
        if isinstance(edit, Mix):
            is_one_each = len(edit.permutation) == len(rows) and {*edit.permutation} <= {*rows}
            refuse_unless(is_one_each, Reason.PERMUTATION_INVALID)
        refuse_unless(not places.is_glob(edit.op), Reason.INVALID_VALUE)
        for own in {self._address(edit.op)} if edit.op else self._matching(edit.module):
            self._edits[own].append((number, edit))

    def _resolve_inputs(self) -> None:
        if self._request.input_gradients is not None:
            floats = [name for name, tensor in self._inputs.items() if tensor.is_floating_point()]
            refuse_unless(set(self._request.input_gradients) <= set(self._inputs), Reason.INPUT_UNKNOWN)
            self._inputs_asked = self._request.input_gradients or tuple(floats)
            fits = bool(self._inputs_asked) and set(self._inputs_asked) <= set(floats)
            refuse_unless(fits, Reason.INPUT_NOT_DIFFERENTIABLE)

    def _refuse_conflict(self, wishes: list[Capture]) -> None:
        for one in wishes:
            for other in wishes:
                meet = set(one.points) & set(other.points)
                if one.call != other.call or (meet and not _looks_alike(one, other)):
                    self.expected.refusals.add(Reason.INVALID_VALUE)

    @property
    def _differentiates(self) -> bool:
        wishes = [wish for there in (*self._wishes.values(), *self._ops.values()) for wish in there]
        inside = any(point.is_gradient for wish in wishes for point in wish.points)
        return bool(self._inputs_asked or self._parameters or inside)

    def _missing(self) -> set[tuple[str, int, Point]] | None:
        request = self._request
        needed = self._differentiates or request.compare or request.target != PredictedClass()
        found = set()
        for name, wishes in [*self._wishes.items(), *self._ops.items()]:
            for wish in wishes:
                if wish.call is None or (wish.op and places.is_glob(name)):
                    return None
                found |= {(name, wish.call, point) for point in wish.points}
        return found if found and request.omit_predictions and not needed else None

    # The pass.

    def forward(self) -> None:
        """Run it, and beforehand without edits where the two are compared."""
        asked = [self._parameter_names[name] for name in self._parameters]
        for name in asked:
            self._weights[name].requires_grad_()
        for name in self._inputs_asked:
            self._inputs[name].requires_grad_()
        if self._request.compare:
            self.expected.unedited = Interpreter(self._graph, self._weights).run(self._inputs)
        self._ledger = Ledger(
            self._edits,
            self._wishes,
            self._ops,
            self._graph.batch,
            self._differentiates,
            self._missing(),
            self._weights.values(),
        )
        run = Interpreter(self._graph, self._weights, self._ledger.passing, self._ledger.replaces)
        try:
            self._outputs = run.run(self._inputs)
        except Stop:
            self._stopped = True
        self.expected.perhaps |= {Reason.NOT_DIFFERENTIABLE} if run.split else set()
        for name in {*self._ledger.kinds, *self._edits, *(op for op in self._ops if not places.is_glob(op))}:
            self._refuse_conflict(self._ledger.wishes(name))
        self.expected.refusals |= self._ledger.refusals

    def look_for(self) -> None:
        """Refuse what was named and is nowhere."""
        ran = [name for name in self._ledger.kinds if ":" in name]
        for address, wishes in self._ops.items():
            if not any(places.matches(address, name) for name in ran):
                self.expected.refusals.add(Reason.OP_NOT_FOUND)
            elif not places.is_glob(address):
                self._look(address, wishes)
        for name, wishes in self._wishes.items():
            self._look(name, [wish for wish in wishes if not places.is_glob(wish.module)])
        for name, edits in () if self._stopped else self._edits.items():  # nobody knows what would have run
            if ":" in name and name not in ran:
                self.expected.refusals.add(Reason.OP_NOT_FOUND)
            for _, edit in edits:
                if not places.is_glob(edit.module):
                    self._absent(name, edit.call, edit.path, (edit.point,))

    def _look(self, name: str, wishes: list[Capture]) -> None:
        for wish in wishes:
            self._absent(name, wish.call, wish.path, wish.points)

    def _absent(self, name: str, call: int | None, path: str, points: tuple[Point, ...]) -> None:
        calls = self._ledger.kinds.get(name, [])
        if call is not None and call >= len(calls):
            self.expected.refusals.add(Reason.CALL_NOT_FOUND)
            return
        for point in points if calls else ():
            value = {Point.GRAD_INPUT: Point.INPUT, Point.GRAD_OUTPUT: Point.OUTPUT}.get(point, point)
            asked = calls if call is None else [calls[call]]
            kinds = [kind for each in asked for kind in each.get(value, {}).items()]
            there = [kind for here, kind in kinds if path in ("", here)]
            if not kinds:
                self.expected.refusals.add(Reason.POINT_NOT_FOUND)
            elif not there:
                self.expected.refusals.add(Reason.PATH_NOT_FOUND)
            elif point.is_gradient and not any(kind.is_floating_point for kind in there):
                self.expected.refusals.add(Reason.POINT_NOT_DIFFERENTIABLE)

    # The target and its gradients.

    def choose(self) -> None:
        """The scalars, where somebody needs them, or asked for others than usual."""
        target = self._request.target
        if not self._differentiates and target == PredictedClass():
            return
        if isinstance(target, Neuron):
            there = self._ledger.outputs.get(self._names[target.module], {})
            refuse_unless(bool(there), Reason.POINT_NOT_FOUND)
            output = next(iter(there.values()))
        else:
            refuse_unless(not target.output or target.output in self._outputs, Reason.OUTPUT_NOT_FOUND)
            output = self._outputs[target.output or next(iter(self._outputs))]
        self._scalars = scalars(target, output, self._graph.batch)
        values = torch.stack([each.values.detach() for each in self._scalars], dim=1)
        one = not isinstance(target, TopK)
        self.expected.target_values = values[:, 0] if one else values
        if self._scalars[0].classes is not None:
            classes = torch.tensor([each.classes for each in self._scalars]).T
            self.expected.targets = classes[:, 0] if one else classes

    def backward(self) -> None:
        """Gradients, once for each scalar."""
        if not self._differentiates:
            return
        inputs = {f"input {name}": self._inputs[name] for name in self._inputs_asked}
        weights = {f"weight {name}": self._weights[self._parameter_names[name]] for name in self._parameters}
        looked_at = [cut for cut in self._ledger.cuts if cut.wish is not None]
        if not (inputs or weights or looked_at):
            return
        refuse_unless(all(each.values.requires_grad for each in self._scalars), Reason.NOT_DIFFERENTIABLE)
        passes = [self._ledger.backward(each.values.sum(), {**inputs, **weights}) for each in self._scalars]
        self.expected.refusals |= self._ledger.refusals
        if not self.expected.refusals:
            self._keep([arrived for arrived, _ in passes], [noted for _, noted in passes])

    def _keep(self, arrived: list[Tensors], noted: list[dict[Key, Part]]) -> None:
        for name in self._inputs_asked:
            found = self._joined([each.get(f"input {name}") for each in arrived], axis=1)
            self.expected.input_gradients |= {} if found is None else {name: found}
        for name, wish in self._parameters.items():
            several = [each.get(f"weight {name}") for each in arrived]
            parts = [None if each is None else part(wish, each, batched=False).values for each in several]
            found = self._joined(parts, axis=0)
            self.expected.parameter_gradients |= {} if found is None else {name: found}
        for key in {key for each in noted for key in each}:
            values = self._joined([each[key].values if key in each else None for each in noted], axis=1)
            positions = self._joined([each[key].positions if key in each else None for each in noted], axis=1)
            if values is not None:
                self._ledger.notes[key[0]][key[1]][key[2:]] = Part(values, positions)

    def _joined(self, several: list[Tensor | None], axis: int) -> Tensor | None:
        """One, or for a top-k target all of them along a new axis; what did not arrive is zero."""
        like = next((each for each in several if each is not None), None)
        if like is None:
            return None
        filled = [torch.zeros_like(like) if each is None else each for each in several]
        return torch.stack(filled, dim=axis) if isinstance(self._request.target, TopK) else filled[0]

    # The reply.

    def collect(self) -> None:
        """What is shown, and what there is to say about it."""
        expected = self.expected
        expected.predictions = {} if self._request.omit_predictions else self._outputs
        expected.effects = {
            number: self._ledger.effects[number] for edits in self._edits.values() for number, _ in edits
        }
        if expected.unedited and any(not edit.point.is_gradient for edit in self._request.edits):
            pairs = [(self._outputs[name], each) for name, each in expected.unedited.items()]
            expected.all_edits = max(effect(edited, unedited) for edited, unedited in pairs)
        for name in self._looked_at():
            calls = dict(enumerate(self._ledger.notes.get(name, [])))
            only = next(wish.call for wish in self._ledger.wishes(name))
            if calls:
                expected.captures[name] = [each for call, each in calls.items() if only in (None, call)]
        expected.warnings = [*self._silences(), *self._gradients_missing()]

    def _looked_at(self) -> Iterator[str]:
        yield from self._wishes
        yield from (name for name in self._ledger.kinds if ":" in name and self._ledger.wishes(name))

    def _silences(self) -> Iterator[tuple[str, str]]:
        for name in self._looked_at():
            calls = self.expected.captures.get(name)
            if calls is None:
                yield "MODULE_NOT_CALLED", name
                continue
            for point in {point for wish in self._ledger.wishes(name) for point in wish.points}:
                if any(not any(key[0] is point for key in notes) for notes in calls):
                    yield "NO_GRADIENT" if point.is_gradient else "NOT_A_TENSOR", name

    def _gradients_missing(self) -> Iterator[tuple[str, str]]:
        found = {**self.expected.input_gradients, **self.expected.parameter_gradients}
        yield from (("NO_GRADIENT", name) for name in (*self._inputs_asked, *self._parameters) if name not in found)


def _looks_alike(one: Capture, other: Capture) -> bool:
    """Whether two captures want the same of a tensor."""
    return replace(one, module="", op="", parameter="", at="output") == replace(
        other, module="", op="", parameter="", at="output"
    )
