"""Questions about a model's own example, whose checks run the tests of the model before anybody waits for them.

What a test finds here is not kept, only that it finds nothing: see `Proofs`. So a doubt comes from a caller's inputs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cutaway.contract import requests
from cutaway.contract.errors import CutawayError
from cutaway.contract.requests import Attribution, InspectRequest
from cutaway.contract.results import InputSpec
from cutaway.engine.checks.row_independence import other_rows
from cutaway.engine.cost.pass_count import costs
from cutaway.engine.execution.inspect import run_plan
from cutaway.engine.model.inspected_model import Inputs, InspectedModel, power_of_two
from cutaway.engine.model.session import NEVER_CANCELLED, Cancellation
from cutaway.engine.passes.pass_recorder import concatenated
from cutaway.engine.planning.embedded_inputs import embedded_inputs
from cutaway.engine.planning.plan import plan_request

_MOST_ROWS = 16
"""The rows of a path's steps, for several rows together: more steps are tested with the caller's own."""

_DEFAULT_STEPS = requests.IntegratedGradients().n_steps

_NUMBERS_OF_ROWS = (2, 4, 8)
"""The numbers of rows for which tests run, besides one: a test holds for numbers up to the next power of two."""

_FIRST_LAYERS = 12
"""How many layers come before larger batches."""

_SHORT, _LONG = range(9), range(9, 11)
"""Lengths, as powers of two, for which tests run where an input says that its length is free: those up to 256 come
before layers, those up to 1,024 last."""


class Question(NamedTuple):
    """Attributions that are asked together, and inputs."""

    attributions: Sequence[Attribution]
    inputs: Inputs

    @property
    def key(self) -> Hashable:
        """A key of the question, which is the same in every process."""
        asked = [(type(each), getattr(each, "layer", ""), getattr(each, "n_steps", 0)) for each in self.attributions]
        return "rehearsed", asked, [(name, tuple(tensor.shape)) for name, tensor in self.inputs.items()]


def rehearsals(model: InspectedModel, example: Inputs) -> Iterator[Question]:
    """Yields questions, the likeliest first.

    Args:
        model: the model.
        example: inputs of one row or several; the first is used, and others are derived from it.
    """
    row = {name: tensor[:1] for name, tensor in example.items()}
    embeddings = [name for name, module in model.tree.modules.items() if isinstance(module, nn.Embedding)]
    at_inputs = any(tensor.is_floating_point() for tensor in row.values())
    ablations, layers = [*_ablations(model, row)], iter(dict.fromkeys([*embeddings, *_likeliest_layers(model)]))

    def asked(n_steps: int) -> Iterator[Attribution]:
        if at_inputs:
            yield requests.Saliency()
            yield requests.IntegratedGradients(n_steps=n_steps)
        for name in embeddings[:1]:
            yield requests.LayerGradientXActivation(layer=name)
            yield requests.LayerIntegratedGradients(layer=name, n_steps=n_steps)
        yield from ablations

    def at_layers(most: int | None) -> Iterator[Question]:
        for name in islice(layers, most):
            yield Question([requests.LayerGradientXActivation(layer=name), requests.LayerGradCam(layer=name)], row)

    def at_lengths(powers: Iterable[int]) -> Iterator[Question]:
        for other in _of_other_lengths(model.inputs, row, powers):
            yield from (Question([attribution], other) for attribution in asked(_MOST_ROWS))

    likeliest = [Question([one], row) for steps in (_MOST_ROWS, _DEFAULT_STEPS) for one in asked(steps)]
    yield from sorted([*likeliest, *at_lengths(_SHORT)], key=_cost)
    yield from at_layers(_FIRST_LAYERS)
    batch = concatenated([row, *[other_rows(row)] * max(_NUMBERS_OF_ROWS)])
    for rows in _NUMBERS_OF_ROWS:
        several = {name: tensor[:rows] for name, tensor in batch.items()}
        yield from (Question([attribution], several) for attribution in asked(_MOST_ROWS // rows))
    yield from at_layers(None)
    yield from at_lengths(_LONG)


def _cost(question: Question) -> int:
    """Returns how many elements the passes of ``question`` have, about: those of a model of a billion parameters take
    minutes, and the cheapest are ready before."""
    elements = sum(tensor.numel() for tensor in question.inputs.values())
    return elements * max(getattr(attribution, "n_steps", 1) for attribution in question.attributions)


def _of_other_lengths(specs: Sequence[InputSpec], row: Inputs, powers: Iterable[int]) -> Iterator[Inputs]:
    """Yields ``row`` with other lengths of the inputs of which one axis is free, as texts have: a part of it, or it
    again and again."""
    free = {
        spec.name: spec.shape.index(-1, 1) for spec in specs if spec.name in row and list(spec.shape[1:]).count(-1) == 1
    }
    own = {power_of_two(row[name].shape[axis]) for name, axis in free.items()}
    for power in powers if len(own) == 1 else ():
        if power not in own:
            yield {**row, **{name: _repeated(row[name], axis, 1 << power) for name, axis in free.items()}}


def _repeated(values: Tensor, axis: int, length: int) -> Tensor:
    return values.index_select(axis, torch.arange(length, device=values.device) % values.shape[axis])


def _ablations(model: InspectedModel, row: Inputs) -> Iterator[Attribution]:
    """Yields an ablation of all that can be moved at once, which needs no gradient."""
    embedded = embedded_inputs(model, row, NEVER_CANCELLED, {})
    moved = {name: tensor for name, tensor in row.items() if tensor.is_floating_point() or name in embedded}
    if moved:
        masks = {name: torch.zeros_like(x, dtype=torch.int64).numpy(force=True) for name, x in moved.items()}
        yield requests.FeatureAblation(masks=masks)


def _likeliest_layers(model: InspectedModel) -> Iterator[str]:
    """Yields the layers, some twice: in turns one with few layers around it, and one that is near the end."""
    names = [name for name in reversed(model.tree.modules) if name]
    for pair in zip(sorted(names, key=lambda name: name.count(".")), names):
        yield from pair


def rehearse(model: InspectedModel, question: Question, cancellation: Cancellation) -> None:
    """Asks ``question``, whose answer nobody waits for; returns when it is answered, or refused.

    Raises:
        DeadlineExceeded: it was cancelled.
        Exception: of the model's own code.
    """
    request = InspectRequest("", attributions=tuple(question.attributions), attribution_errors_in_place=True)
    model.proofs.rehearses = True
    try:
        plan = plan_request(model, request, question.inputs, cancellation)
        [*costs(plan)]  # looks at layers too
        run_plan(plan)
    except CutawayError:  # of a question that does not fit the model
        cancellation.raise_if_cancelled()
    finally:
        model.proofs.rehearses = False
    model.proofs.keep(question.key, sound=True)
