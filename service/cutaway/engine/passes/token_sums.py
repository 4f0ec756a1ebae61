"""The attribution of each token: the attribution of its embedding, summed over the embedding's axis."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import nn

from cutaway.engine.hooks.capture_spec import watching
from cutaway.engine.hooks.observe import observing
from cutaway.engine.hooks.recording import RecordedCall, StopForward
from cutaway.engine.passes.pass_recorder import AttributionProblem, Values
from cutaway.engine.runtime.numpy_bridge import to_numpy
from cutaway.requests import Point
from cutaway.results import TokenAttribution


def token_attribution(
    problem: AttributionProblem, values: Values, call: RecordedCall | None = None
) -> TokenAttribution | None:
    """Returns the sums ``[batch, tokens]`` if ``values`` are of an embedding of token ids; else None.

    ``call``: the embedding's first call; by default from a forward pass.
    """
    if (
        not problem.layer
        or problem.further_layers
        or not isinstance(problem.model.tree.modules[problem.layer], nn.Embedding)
    ):
        return None
    value, call = values.get(problem.layer), call or _first_call(problem)
    taken = [] if call is None else list(call.at(Point.INPUT).values())
    if value is None or len(taken) != 1 or taken[0].is_floating_point():
        return None
    ids = taken[0]
    if value.shape[:-1] != ids.shape or ids.shape[:1] != (problem.rows,):
        return None
    source = next((name for name, tensor in problem.inputs.items() if torch.equal(tensor.cpu(), ids)), "")
    return TokenAttribution(source, to_numpy(ids), to_numpy(value.sum(dim=-1)))


def _first_call(problem: AttributionProblem) -> RecordedCall | None:
    """Returns the embedding's first call; forward stops behind it."""
    with torch.no_grad(), observing(problem.model.tree, {problem.layer: watching(Point.INPUT)}) as recording:
        recording.pending = {(problem.layer, Point.INPUT)}
        with suppress(StopForward), recording.forward():
            problem.model.run(problem.inputs)
    return next(iter(recording.calls[problem.layer]), None)
