"""The attribution of each token: the attribution of its embedding, summed over the embedding's axis."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from cutaway.engine.hooks.capture_spec import watching
from cutaway.engine.hooks.observe import observing
from cutaway.engine.hooks.recording import RecordedCall, StopForward
from cutaway.engine.passes.pass_recorder import AttributionProblem, Values
from cutaway.engine.runtime.numpy_bridge import to_numpy
from cutaway.requests import Point
from cutaway.results import TokenAttribution


def token_attribution(problem: AttributionProblem, values: Values) -> TokenAttribution | None:
    """Returns the sums ``[batch, tokens]`` if ``values`` are of an embedding of token ids; else None."""
    if not problem.layer or not isinstance(problem.model.tree.modules[problem.layer], nn.Embedding):
        return None
    value, call = values.get(problem.layer), _first_call(problem)
    ids = None if value is None or call is None else token_ids(problem, call, value.shape)
    if value is None or ids is None:
        return None
    return TokenAttribution(input_holding(problem, ids), to_numpy(ids), to_numpy(value.sum(dim=-1)))


def token_ids(
    problem: AttributionProblem, call: RecordedCall, shape: Sequence[int]
) -> Shaped[Tensor, "batch *tokens"] | None:
    """Returns the ids that the embedding's ``call`` took, if ``shape`` is that of their embeddings;
    else None."""
    taken = list(call.at(Point.INPUT).values())
    if len(taken) != 1 or taken[0].is_floating_point():
        return None
    fits = tuple(shape[:-1]) == taken[0].shape and taken[0].shape[:1] == (problem.rows,)
    return taken[0] if fits else None


def input_holding(problem: AttributionProblem, ids: Tensor) -> str:
    """Returns the name of the input that equals ``ids``; ``""`` without one."""
    return next((name for name, tensor in problem.inputs.items() if torch.equal(tensor.cpu(), ids)), "")


def _first_call(problem: AttributionProblem) -> RecordedCall | None:
    """Returns the embedding's first call; forward stops behind it."""
    with torch.no_grad(), observing(problem.model.tree, {problem.layer: watching(Point.INPUT)}) as recording:
        recording.pending = {(problem.layer, Point.INPUT)}
        try:
            with recording.forward():
                problem.model.run(problem.inputs)
        except StopForward:
            pass
    return next(iter(recording.calls[problem.layer]), None)
