"""What Captum's LRP overlooks in a model: places where relevance is not what modules and their rules say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from cutaway.engine.edits import Override
from cutaway.engine.finding import Finding
from cutaway.engine.hooks import observing
from cutaway.engine.references.passage import passage
from cutaway.engine.references.relevance import RECTIFIERS, ROUTES, UNCHANGED, Place, places, rules_of
from cutaway.engine.subject import gradients
from cutaway.engine.wishes import watching
from cutaway.engine.witness import Changes, Question, once
from cutaway.requests import Epsilon, Point, RelevanceIdentity
from cutaway.results import Cause


@dataclass
class Taken:
    """A tensor on the way from the inputs to the target, or to where the layer is.

    Attributes:
        giver: the place that made it; None for what goes into the model.
        asked: who takes it.
        takers: those of them through which relevance comes back.
    """

    giver: Place | None = None
    asked: list[Place] = field(default_factory=list)
    takers: list[Place] = field(default_factory=list)


class Wiring:
    """Which place takes what from which; and where gradients come by on their way from the target.

    Attributes:
        reached: the places whose output a gradient reached.
        tensors: what went from one place to another.
        crossed: modules of which a later call takes what was there before an earlier call began.
        mirrors: places that return the very tensor that they take.
        output: what the target is read from; None where no place made it.
    """

    def __init__(self, question: Question) -> None:
        self.reached: dict[Place, None] = {}
        self.tensors: dict[tuple[int, int], Taken] = {}
        self.crossed: dict[Place, None] = {}
        self.mirrors: dict[Place, None] = {}
        self.output: Taken | None = None
        self._kept: list[Tensor] = []  # so that no tensor gets another's id
        self._made: dict[int, tuple[int, Place]] = {}
        self._began: dict[Place, int] = {}
        self._entered: dict[int, Place] = {}
        self._clock = 0
        try:
            self._run(question)
        finally:
            self._kept.clear()  # the graph leads here, in a circle that Python's collector cannot see

    def _run(self, question: Question) -> None:
        edits: Changes = {
            place.name: [
                each
                for call in place.calls
                for each in (
                    (call, Override(at=Point.INPUT, call=call, change=self._entering(place))),
                    (call, Override(at=Point.OUTPUT, call=call, change=self._leaving(place))),
                )
            ]
            for place in places(question)
        }
        taps = {question.layer: watching(Point.GRAD_OUTPUT)} if question.layer else {}
        given = {name: question.inputs[name].detach().clone().requires_grad_() for name in question.explained}
        with observing(question.subject.tree, taps, edits) as seen:
            with seen.forward():
                output = question.read({**question.inputs, **given})
            self.output = self.tensors.get((id(output), output._version))
            ends = seen.gradient_roots if question.layer else [get_gradient_edge(each) for each in given.values()]
            if ends and output.requires_grad:
                gradients(question.chosen.of(output), list(ends))

    def _entering(self, place: Place) -> Callable[[Tensor], Tensor]:
        def enter(tensor: Tensor) -> Tensor:
            self._clock += 1
            self._kept.append(tensor)
            made, giver = self._made.get(id(tensor), (0, None))
            if made < self._began.get(place, 0):
                self.crossed[place] = None
            self._began[place] = self._clock
            taken = self.tensors.setdefault((id(tensor), tensor._version), Taken(giver))
            taken.asked.append(place)
            through = passage(tensor, self._noting(lambda: taken.takers.append(place)))
            self._kept.append(through)
            self._entered[id(through)] = place
            return through

        return enter

    def _leaving(self, place: Place) -> Callable[[Tensor], Tensor]:
        def leave(tensor: Tensor) -> Tensor:
            self._clock += 1
            if self._entered.get(id(tensor)) == place:
                self.mirrors[place] = None
            through = passage(tensor, self._noting(lambda: self.reached.update({place: None})))
            self._kept.append(through)
            self._made[id(through)] = self._clock, place
            return through

        return leave

    @staticmethod
    def _noting(note: Callable[[], None]) -> Callable[[Tensor], Tensor]:
        def back(gradient: Tensor) -> Tensor:
            note()
            return gradient

        return back


@once
def overlooked(question: Question) -> Finding | None:
    """What Captum overlooks: it rules modules, one tensor at a time."""
    wiring = Wiring(question)
    looks = (_functions, _crossed, _shared, _chained, _mirrored, _taken_on)
    return next((found for look in looks if (found := look(question, wiring)) is not None), None)


def _functions(question: Question, wiring: Wiring) -> Finding | None:
    # Where all rules are epsilon, relevance is 0 wherever a rectifier stops it.
    harmless = RECTIFIERS if all(isinstance(rule, Epsilon) for rule in rules_of(question).values()) else set[str]()
    found = [place.name for place in wiring.reached if place.operator and place.operator not in ROUTES | harmless]
    if not found:
        return None
    return Finding(
        Cause.FUNCTIONAL_NONLINEARITY,
        f"Captum rules modules only; at {', '.join(sorted(found)[:3])} the plain gradient takes the place of "
        "relevance: build the model with a module for each, such as Captum's Addition_Module, nn.AdaptiveAvgPool2d or "
        "nn.Tanh",
    )


def _crossed(question: Question, wiring: Wiring) -> Finding | None:
    found = [place.name for place in wiring.crossed if _is_unchanged(question, place) and place in wiring.reached]
    if not found:
        return None
    return Finding(
        Cause.MODULE_REUSED,
        f"{found[0]!r} is called again with what was computed before its earlier call, and Captum confuses the "
        "relevance of the two calls: build the model with a module of its own for each place",
    )


def _shared(question: Question, wiring: Wiring) -> Finding | None:
    for taken in wiring.tensors.values():
        hooked = [place for place in taken.takers if not place.operator]
        if len(taken.takers) > 1 and hooked and not all(_multiplies(wiring, place) for place in taken.takers):
            names = ", ".join(dict.fromkeys(place.name for place in taken.takers))
            return Finding(
                Cause.OVERRIDE_LOST,
                f"one tensor goes to each of {names}, and Captum hands back the relevance of one of them for all: let "
                f"each branch begin with {_COPYING}",
            )
    return None


def _chained(question: Question, wiring: Wiring) -> Finding | None:
    for taken in wiring.tensors.values():
        for place in taken.takers:
            if taken.giver is not None and _is_unchanged(question, taken.giver) and _bends(question, wiring, place):
                return Finding(
                    Cause.FUNCTIONAL_NONLINEARITY,
                    f"{place.name!r} follows {taken.giver.name!r} directly, and Captum hands back the plain gradient "
                    f"of the one through the other: let {_COPYING} stand between them",
                )
    return None


def _mirrored(question: Question, wiring: Wiring) -> Finding | None:
    if question.layer not in (place.name for place in wiring.mirrors):
        return None
    return Finding(
        Cause.OVERRIDE_LOST,
        f"{question.layer!r} returns the very tensor that it takes, and Captum reads the relevance there multiplied by "
        "it: explain the layer before",
    )


def _taken_on(question: Question, wiring: Wiring) -> Finding | None:
    if wiring.output is None:
        return None
    further = ", ".join(dict.fromkeys(place.name for place in wiring.output.asked))
    return Finding(
        Cause.OVERRIDE_LOST,
        f"the output that is explained goes on to {further}, and Captum changes its relevance there: let the model "
        "return a copy of it",
    )


_COPYING = "a module of its own that returns a copy, x.clone(), under the rule Epsilon()"


def _bends(question: Question, wiring: Wiring, place: Place) -> bool:
    """Whether what relevance does at ``place``, which takes what a module returns that relevance passes unchanged, is
    not what Captum hands that module."""
    if _is_unchanged(question, place):
        return isinstance(question.subject.tree.modules[place.name], nn.Tanh)
    return not place.operator and not _multiplies(wiring, place)


def _is_unchanged(question: Question, place: Place) -> bool:
    return type(question.subject.tree.modules.get(place.name)) in UNCHANGED


def _multiplies(wiring: Wiring, place: Place) -> bool:
    """Whether Captum multiplies all that comes back to a tensor by the tensor: that fits any number of such takers."""
    return not (place.operator or isinstance(place.rule, RelevanceIdentity) or place in wiring.mirrors)
