"""The attributions of tokens: those of an embedding of token ids, summed over its width."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import nn

from cutaway.contract import results
from cutaway.contract.requests import Point
from cutaway.engine.execution.layer_axes import summed_channels
from cutaway.engine.hooks.capture_spec import watching
from cutaway.engine.hooks.hook_site import Batch
from cutaway.engine.hooks.observe import observing
from cutaway.engine.hooks.recording import RecordedCall, StopForward
from cutaway.engine.passes.pass_recorder import AttributionProblem, Values
from cutaway.engine.runtime.numerics import to_numpy


def token_attribution(
    problem: AttributionProblem, values: Values, batch: Batch, call: RecordedCall | None = None
) -> results.TokenAttribution | None:
    """Returns the sums ``[batch, tokens]`` if ``values`` are of an embedding of token ids; else None.

    Args:
        problem: the attribution.
        values: its values, ``[batch, tokens, features]``, or of Grad-CAM ``[batch, 1, tokens]``.
        batch: the rows, and where they are.
        call: the embedding's first call; by default from a forward pass.
    """
    module = problem.model.tree.modules[problem.layer] if problem.layer else None
    if problem.further_layers or not isinstance(module, nn.Embedding):
        return None
    value, call = values.get(problem.layer), call or _first_call(problem)
    taken = [] if call is None else list(call.at(Point.INPUT).values())
    if value is None or call is None or len(taken) != 1 or taken[0].is_floating_point():
        return None
    (path,), (ids,) = call.at(Point.INPUT), taken
    if channels := summed_channels(problem, batch):
        value = value.movedim(1, channels[""])
    axis = batch.axes.of(problem.layer, (Point.INPUT, path, 0), ids.shape, batch.rows)
    if axis is None or value.shape[:-1] != (ids := ids.movedim(axis, 0)).shape:
        return None
    source = next((name for name, tensor in problem.inputs.items() if torch.equal(tensor.cpu(), ids)), "")
    return results.TokenAttribution(source, to_numpy(ids), to_numpy(value.sum(dim=-1)))


def _first_call(problem: AttributionProblem) -> RecordedCall | None:
    """Returns the embedding's first call; forward stops behind it."""
    with torch.no_grad(), observing(problem.model.tree, {problem.layer: watching(Point.INPUT)}) as recording:
        recording.pending = {(problem.layer, Point.INPUT)}
        with suppress(StopForward), recording.forward():
            problem.model.run(problem.inputs)
    return next(iter(recording.calls[problem.layer]), None)
