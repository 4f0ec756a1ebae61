"""Gradients that rectifiers let through in another way than by their own derivative."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from cutaway.engine.edits import Override
from cutaway.engine.evidence import Evidence, Reference, Silent, at_input, exact
from cutaway.engine.finding import Finding
from cutaway.engine.hooks import observing
from cutaway.engine.references.gradients import layer_grad_cam
from cutaway.engine.wishes import watching
from cutaway.engine.witness import Changes, Pass, Question, Values, once, visits
from cutaway.requests import Edit, Point
from cutaway.results import Cause


class Rectifiers(NamedTuple):
    """The ReLUs that run in one forward, and how often each is called.

    Attributes:
        modules: by the names of the ``nn.ReLU``.
        functions: by the addresses of those that are no module: ``block2:relu#0``.
    """

    modules: Mapping[str, int]
    functions: Mapping[str, int]


@once
def rectifiers(question: Question) -> Rectifiers:
    """Run forward once, and see."""
    subject = question.subject
    inside = {name: watching() for name, module in subject.tree.modules.items() if isinstance(module, nn.ReLU)}
    taps = {**inside, **{f"**:{function}#*": watching(Point.OUTPUT) for function in ("relu", "relu_")}}
    with torch.no_grad(), observing(subject.tree, taps) as seen, seen.forward():
        question.read(question.inputs)
    ran = {name: len(calls) for name, calls in seen.calls.items() if calls}
    return Rectifiers(
        {name: ran[name] for name in inside if name in ran},
        {name: ran[name] for name in ran if name not in inside and name.rpartition(":")[0] not in inside},
    )


def overlooked(question: Question) -> Finding | None:
    """What Captum overlooks: it overrides modules, and a model may call functions."""
    found = rectifiers(question)
    if not found.functions:
        return None
    who = "Captum overrides nn.ReLU modules only" if found.modules else "no nn.ReLU fired"
    return Finding(
        Cause.FUNCTIONAL_NONLINEARITY,
        f"{who}; functional relu at {', '.join(list(found.functions)[:3])}, which Captum differentiates as it is: "
        "build the model with nn.ReLU modules, one for each place",
    )


def moot(question: Question) -> Finding | None:
    """Why the answer is no more than the gradient."""
    found = rectifiers(question)
    if found.modules or found.functions:
        return None
    return Finding(Cause.NOT_MOVED, "no ReLU ran: with nothing to override, this is the gradient")


def guided_passes(question: Question) -> Sequence[Pass]:
    """One pass, in which of the gradient that leaves a ReLU only what is positive goes on."""
    return _overridden(question, _let_positive_pass)


def deconvolved_passes(question: Question) -> Sequence[Pass]:
    """One pass, in which a ReLU sends on what is positive of the gradient that arrives, whatever its input was."""
    return _overridden(question, _rectify_what_arrives)


def gradient(evidence: Evidence) -> Reference:
    """``df/dx``, of the pass that was run last."""
    last = Evidence(evidence.question, evidence.passes[-1:])
    return exact({name: last.gradients(name) for name in evidence.question.explained})


def _overridden(question: Question, override: Callable[[int], Iterator[Edit]]) -> Sequence[Pass]:
    found = rectifiers(question)
    edits: Changes = {
        place: [(call, edit) for call in range(calls) for edit in override(call)]
        for place, calls in {**found.modules, **found.functions}.items()
    }
    return visits(question, at_input(question), differentiate=True, edits=edits)


def _let_positive_pass(call: int) -> Iterator[Edit]:
    yield Override(at=Point.GRAD_INPUT, call=call, change=_positive)


def _rectify_what_arrives(call: int) -> Iterator[Edit]:
    arrived: list[Tensor] = []

    def keep(gradient: Tensor) -> Tensor:
        arrived[:] = [gradient]
        return gradient

    yield Override(at=Point.GRAD_OUTPUT, call=call, change=keep)
    yield Override(at=Point.GRAD_INPUT, call=call, change=lambda _: _positive(arrived[0]))


def _positive(gradient: Tensor) -> Tensor:
    return gradient.clamp(min=0)


def at_input_twice(question: Question) -> list[Values]:
    """Captum's Guided Grad-CAM is two methods, a pass each."""
    return at_input(question) * 2


def guided_cam_passes(question: Question) -> Sequence[Pass]:
    """A plain pass, for Grad-CAM, and a guided one."""
    return [*visits(question, at_input(question), differentiate=True), *guided_passes(question)]


def guided_grad_cam(evidence: Evidence) -> Reference:
    """``guided gradient * the layer's Grad-CAM where it is positive``, the latter scaled to the input by its nearest
    positions."""
    plain = Evidence(evidence.question, evidence.passes[:1], evidence.call)
    cam, terms = (next(iter(each.values())) for each in layer_grad_cam(plain))
    guided = gradient(evidence).values
    return Reference(
        {name: each * _scaled(cam.clamp(min=0), each) for name, each in guided.items()},
        {name: each.abs() * _scaled(terms, each) for name, each in guided.items()},
    )


def _scaled(cam: Tensor, like: Tensor) -> Tensor:
    if cam.ndim != like.ndim or cam.ndim < 3:
        raise Silent("the layer's map cannot be scaled to the input")
    return functional.interpolate(cam, like.shape[2:], mode="nearest")
