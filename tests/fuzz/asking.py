"""Random questions about random models. Most can be answered; some have a mistake on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from cutaway.contract.requests import Capture, InspectRequest, PredictedClass
from tests.fuzz import places
from tests.fuzz.captures import capture
from tests.fuzz.drawing import Draw, graphs
from tests.fuzz.edits import edit
from tests.fuzz.graphs import Graph
from tests.fuzz.mistakes import MISTAKES
from tests.fuzz.surveying import Asker, Survey, survey
from tests.fuzz.targets import target


@dataclass(frozen=True)
class Question:
    """A model and what is asked about it."""

    graph: Graph
    request: InspectRequest


@st.composite
def questions(draw: Draw) -> Question:
    """A model of three to eight nodes, with captures, edits and a target; one in eight with a mistake."""
    graph = draw(graphs())
    asker = Asker(draw, survey(graph))
    request = _request(asker)
    if draw(st.integers(0, 7)) == 7:
        request = asker.pick(MISTAKES)(asker, request)
    return Question(graph, request)


HOW_MANY = (1, 2, 0, 3, 2, 3, 4)  # the dice fall on the first more often


def _request(asker: Asker) -> InspectRequest:
    captures = [capture(asker) for _ in range(asker.pick(HOW_MANY))]
    edits = [edit(asker) for _ in range(asker.pick(HOW_MANY))]
    request = InspectRequest(
        "fuzz",
        captures=_apart(asker.survey, captures),
        edits=tuple(edits),
        target=target(asker),
        input_gradients=_inputs(asker),
        compare=asker.draw(st.booleans()),
        omit_predictions=asker.rarely(),
    )
    return _values_alone(asker, request) if asker.rarely() else request


def _values_alone(asker: Asker, request: InspectRequest) -> InspectRequest:
    """No gradients: forward may stop behind the last value that is asked for."""
    values = tuple(
        replace(each, at="output", call=0)
        for each in request.captures
        if not (each.parameter or places.is_glob(each.op))
    )
    captures = _apart(asker.survey, values)
    return replace(
        request, captures=captures, target=PredictedClass(), input_gradients=None, compare=False, omit_predictions=True
    )


def _inputs(asker: Asker) -> tuple[str, ...] | None:
    floats = [name for name, _ in asker.survey.graph.shapes if name != "ids"]
    chosen = asker.pick([*[()] * bool(floats), None, None, *((name,) for name in floats)])
    return None if chosen is None else tuple(chosen)


def _apart(survey: Survey, captures: Sequence[Capture]) -> tuple[Capture, ...]:
    """Without those that want a place in another way than one before them."""
    chosen: list[Capture] = []
    for new in captures:
        if not any(_clash(survey, new, old) for old in chosen):
            chosen.append(new)
    return tuple(chosen)


def _clash(survey: Survey, one: Capture, other: Capture) -> bool:
    if not _places(survey, one) & _places(survey, other):
        return False
    return one.call != other.call or replace(one, module="", op="", parameter="", at="output") != replace(
        other, module="", op="", parameter="", at="output"
    )


def _places(survey: Survey, wish: Capture) -> set[str]:
    """Everything that ``wish`` looks at."""
    if wish.parameter:
        there = places.parameters(survey.graph, survey.weights)
        return {f"weight {name}" for name in there if places.matches(wish.parameter, name)}
    if wish.op:
        return {name for name in survey.calls if ":" in name and places.matches(wish.op, name)}
    return {own for name, own in places.modules(survey.graph).items() if places.matches(wish.module, name)}
