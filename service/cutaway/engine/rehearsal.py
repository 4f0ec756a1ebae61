"""Questions about a model's own example, whose checks run the tests of the model before anybody waits for them.

What a test finds here is not kept, only that it finds nothing: see `Proofs`. So a doubt comes from a caller's inputs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import nn

from cutaway.contract import requests
from cutaway.contract.errors import CutawayError
from cutaway.contract.requests import Attribution, InspectRequest
from cutaway.engine.checks.row_independence import other_rows
from cutaway.engine.cost.pass_count import costs
from cutaway.engine.execution.inspect import run_plan
from cutaway.engine.model.inspected_model import Inputs, InspectedModel
from cutaway.engine.model.session import NEVER_CANCELLED, Cancellation
from cutaway.engine.passes.pass_recorder import concatenated
from cutaway.engine.planning.embedded_inputs import embedded_inputs
from cutaway.engine.planning.plan import plan_request

_MOST_ROWS = 16
"""The rows of a path's steps, for several rows together: more steps are tested with the caller's own."""

_NUMBERS_OF_ROWS = (2, 4, 8)
"""The numbers of rows for which tests run, besides one: a test holds for numbers up to the next power of two."""

_FIRST_LAYERS = 12
"""How many layers come before larger batches."""


class Question(NamedTuple):
    """Attributions that are asked together, and inputs."""

    attributions: Sequence[Attribution]
    inputs: Inputs

    @property
    def key(self) -> Hashable:
        """A key of the question, which is the same in every process."""
        asked = [(type(each), getattr(each, "layer", "")) for each in self.attributions]
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

    yield from (Question([attribution], row) for attribution in asked(requests.IntegratedGradients().n_steps))
    yield from at_layers(_FIRST_LAYERS)
    batch = concatenated([row, *[other_rows(row)] * max(_NUMBERS_OF_ROWS)])
    for rows in _NUMBERS_OF_ROWS:
        several = {name: tensor[:rows] for name, tensor in batch.items()}
        yield from (Question([attribution], several) for attribution in asked(_MOST_ROWS // rows))
    yield from at_layers(None)


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
