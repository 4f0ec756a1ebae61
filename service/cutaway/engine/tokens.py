"""What each token of a text adds: an explanation at an embedding, summed over the embedding's width."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cutaway.engine.arrays import to_numpy
from cutaway.engine.hooks import observing
from cutaway.engine.seen import Enough
from cutaway.engine.wishes import watching
from cutaway.engine.witness import Question, Values
from cutaway.requests import Point
from cutaway.results import TokenAttribution


def by_token(asked: Question, values: Values) -> TokenAttribution | None:
    """The sums, where ``values`` are of an embedding of token ids [batch, tokens]; else None."""
    if not asked.layer or not isinstance(asked.subject.tree.modules[asked.layer], nn.Embedding):
        return None
    value = values.get(asked.layer)
    ids = _taken(asked)
    if value is None or ids is None or value.shape[:-1] != ids.shape or ids.shape[:1] != (asked.rows,):
        return None
    names = [name for name, tensor in asked.inputs.items() if torch.equal(tensor.cpu(), ids)]
    return TokenAttribution(names[0] if names else "", to_numpy(ids), to_numpy(value.sum(dim=-1)))


def _taken(asked: Question) -> Tensor | None:
    """What the embedding's first call takes; forward stops behind it."""
    with torch.no_grad(), observing(asked.subject.tree, {asked.layer: watching(Point.INPUT)}) as seen:
        seen.missing = {(asked.layer, Point.INPUT)}
        try:
            with seen.forward():
                asked.subject.run(asked.inputs)
        except Enough:
            pass
    taken = list(seen.calls[asked.layer][0].at(Point.INPUT).values()) if seen.calls[asked.layer] else []
    return taken[0] if len(taken) == 1 and not taken[0].is_floating_point() else None
