"""DeepLIFT, with the Rescale rule, from one baseline or from a distribution of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from captum import attr

from cutaway.engine.copies import tells_rows_apart
from cutaway.engine.method import EXACT, Method
from cutaway.engine.methods import neurons
from cutaway.engine.methods.failed import explained
from cutaway.engine.references import deeplift as references
from cutaway.engine.references.overlooked import overlooked
from cutaway.engine.references.rescale import OF_MODULES
from cutaway.engine.subject import Inputs, Subject
from cutaway.engine.witness import Changes, Question
from cutaway.errors import Reason, error
from cutaway.requests import (
    Attribution,
    DeepLift,
    DeepLiftShap,
    Edit,
    Expectation,
    LayerDeepLift,
    LayerDeepLiftShap,
    NeuronDeepLift,
    NeuronDeepLiftShap,
    NeuronGradient,
)

_KEPT = ("input", "output")
"""What Captum sets on each module that it hooks, and leaves there where no gradient comes by."""


def _refuse(subject: Subject, request: Any, inputs: Inputs, edits: Changes) -> None:
    for name, numbered in edits.items():
        for _, edit in numbered:
            _refuse_edit(subject, request, name, edit)
    if isinstance(request, Expectation):
        _refuse_one_sample(request)


def _refuse_edit(subject: Subject, request: Attribution, name: str, edit: Edit) -> None:
    if tells_rows_apart(edit):
        raise error(
            Reason.METHOD_INAPPLICABLE,
            f"Captum's {type(request).__name__} runs inputs and baselines in one pass, where the rows that the edit of "
            f"{name!r} is for have other numbers: edit all rows alike, by a number",
        )
    owner = name if name in subject.tree.modules else name.rpartition(":")[0]
    if edit.point.is_gradient and type(subject.tree.modules.get(owner)) in OF_MODULES:
        raise error(
            Reason.EDIT_INAPPLICABLE,
            f"the gradient at {name!r} is edited, and the method overrides it: it can do one only",
        )


def _refuse_one_sample(request: Expectation) -> None:
    for name, samples in request.baselines.items():
        if len(samples) < 2:
            raise error(
                Reason.INVALID_VALUE,
                "one sample is no distribution: send two or more, or ask "
                f"{type(request).__name__.removesuffix('Shap')}",
                f"baselines.by_input.{name}",
            )


def _options(question: Question) -> dict[str, Any]:
    if question.chosen.bound:
        raise error(
            Reason.METHOD_INAPPLICABLE,
            f"Captum's {type(question.request).__name__} runs inputs and baselines in one pass, where the target's "
            "rows have other numbers: ask for a class, a neuron, or a sum or norm of the output",
        )
    return {"baselines": tuple(question.baselines[name] for name in question.explained)}


@contextmanager
def _cleaned(question: Question) -> Iterator[None]:
    """What Captum sets on modules is gone afterwards, and what it stumbles over is said of the module."""
    hooked = [module for module in question.subject.tree.modules.values() if type(module) in OF_MODULES]
    before = [{name: vars(module)[name] for name in _KEPT if name in vars(module)} for module in hooked]
    try:
        yield
    except Exception as failure:
        raise explained(question, failure) from failure
    finally:
        for module, own in zip(hooked, before):
            for name in _KEPT:
                vars(module).pop(name, None)
            vars(module).update(own)


@contextmanager
def _neuron_cleaned(question: Question) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(neurons.ROWS[NeuronGradient].prepared(question))
        stack.enter_context(_cleaned(question))
        yield


_RULE = "multipliers of a pass in which raw hooks let (y - y0) / (x - x0) pass back through each nonlinearity"


def _row(
    captum: Callable[..., Any],
    *,
    shap: bool = False,
    of_layer: bool = False,
    of_neuron: bool = False,
    prepared: Callable[[Question], AbstractContextManager[None]] = _cleaned,
) -> Method:
    what = "raw output at x - raw output at the baseline" if of_layer else "x - baseline"
    return Method(
        captum,
        references.attributed_at_layer if of_layer else references.attributed,
        references.beside_baselines,
        f"({what}) * {_RULE}{', the mean over the samples' if shap else ''}",
        options=_options,
        adds_up=lambda _: True,
        sums=EXACT,
        own=references.passes,
        overlooked=overlooked,
        applies_to_modules=True,
        of_neuron=of_neuron,
        refuse=_refuse,
        prepared=prepared,
    )


ROWS: dict[type[Attribution], Method] = {
    DeepLift: _row(attr.DeepLift),
    LayerDeepLift: _row(attr.LayerDeepLift, of_layer=True),
    NeuronDeepLift: _row(attr.NeuronDeepLift, of_neuron=True, prepared=_neuron_cleaned),
    DeepLiftShap: _row(attr.DeepLiftShap, shap=True),
    LayerDeepLiftShap: _row(attr.LayerDeepLiftShap, shap=True, of_layer=True),
    NeuronDeepLiftShap: _row(attr.NeuronDeepLiftShap, shap=True, of_neuron=True, prepared=_neuron_cleaned),
}
