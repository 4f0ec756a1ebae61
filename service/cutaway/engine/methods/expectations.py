"""Expected gradients: the mean over points drawn between baselines and noisy copies of the input."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from captum import attr

from cutaway.engine.copies import MAX_SAMPLES, tells_rows_apart
from cutaway.engine.method import Method
from cutaway.engine.methods import neurons
from cutaway.engine.methods.returned import only_tensor, read_by_captum
from cutaway.engine.references import expectations as references
from cutaway.engine.references.neurons import calls, reused
from cutaway.engine.subject import Inputs, Subject, dtype_text
from cutaway.engine.witness import Changes, Question
from cutaway.errors import Reason, at, error
from cutaway.requests import (
    Attribution,
    ExpectedGradient,
    GradientShap,
    LayerGradientShap,
    NeuronGradient,
    NeuronGradientShap,
    Point,
    field_name,
)


def _options(question: Question) -> dict[str, Any]:
    request = cast(ExpectedGradient, question.request)
    if question.chosen.bound and request.n_samples > 1:
        raise error(
            Reason.METHOD_INAPPLICABLE,
            f"Captum's {type(request).__name__} runs all samples in one pass, where the target's rows have other "
            "numbers: ask for a class, a neuron, or a sum or norm of the output",
        )
    return {
        "baselines": tuple(question.baselines[name] for name in question.explained),
        "n_samples": request.n_samples,
        "stdevs": float(request.stdev),
    }


def _refuse(_: Subject, request: ExpectedGradient, inputs: Inputs, edits: Changes) -> None:
    if not 1 <= request.n_samples <= MAX_SAMPLES:
        raise error(Reason.INVALID_VALUE, f"{request.n_samples} samples; from 1 to {MAX_SAMPLES}", "n_samples")
    if not 0 <= request.stdev < math.inf:
        raise error(Reason.INVALID_VALUE, f"{request.stdev}; a finite number from 0 up", "stdev")
    for name in request.baselines:
        if torch.finfo(inputs[name].dtype).bits < 32:
            raise error(
                Reason.METHOD_INAPPLICABLE,
                f"Captum adds float32 noise, also of no size, and the input {name!r} is {dtype_text(inputs[name])}: "
                "ask IntegratedGradients, or load the model in float32",
            )
    _refuse_rows(request, edits)


def _refuse_rows(request: ExpectedGradient, edits: Changes) -> None:
    apart = [name for name, numbered in edits.items() if any(tells_rows_apart(edit) for _, edit in numbered)]
    if apart and request.n_samples > 1:
        raise error(
            Reason.METHOD_INAPPLICABLE,
            f"Captum's {type(request).__name__} runs all samples in one pass, where the rows that the edit of "
            f"{apart[0]!r} is for have other numbers: edit all rows alike, by a number",
        )


@contextmanager
def _readable(question: Question) -> Iterator[None]:
    """The layer returns what Captum can cut into samples: it takes axis 0 for the samples of all rows."""
    field = f"{field_name(type(question.request))}.layer"
    with at(field):
        for call in calls(question):
            only_tensor(question.layer, call.at(Point.OUTPUT), question.rows)
    with read_by_captum(question.layer, field):
        yield


_DRAWS = "the mean over the seed's draws"

ROWS: dict[type[Attribution], Method] = {
    GradientShap: Method(
        attr.GradientShap,
        references.expected_gradients,
        references.between,
        f"(noisy x - baseline) * the raw gradient between the two, {_DRAWS}",
        together=references.draws_a_pass,
        options=_options,
        draws=True,
        refuse=_refuse,
    ),
    LayerGradientShap: Method(
        attr.LayerGradientShap,
        references.expected_layer_gradients,
        references.between_and_ends,
        f"(raw output at noisy x - raw output at the baseline) * the layer's raw gradient between the two, {_DRAWS}",
        options=_options,
        draws=True,
        own=references.to_layer,
        refuse=_refuse,
        prepared=_readable,
    ),
    NeuronGradientShap: Method(
        attr.NeuronGradientShap,
        references.expected_gradients,
        references.between,
        f"(noisy x - baseline) * the neuron's raw gradient between the two, {_DRAWS}",
        options=_options,
        draws=True,
        own=references.to_inputs,
        overlooked=reused,
        of_neuron=True,
        refuse=_refuse,
        prepared=neurons.ROWS[NeuronGradient].prepared,
    ),
}
