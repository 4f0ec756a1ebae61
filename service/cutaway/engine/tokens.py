"""What each token of a text adds: an explanation at an embedding, summed over the embedding's width."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cutaway.engine.arrays import to_numpy
from cutaway.engine.hooks import observing
from cutaway.engine.seen import Call, Enough
from cutaway.engine.wishes import watching
from cutaway.engine.witness import Question, Values
from cutaway.requests import Point
from cutaway.results import TokenAttribution


def by_token(asked: Question, values: Values) -> TokenAttribution | None:
    """The sums, where ``values`` are of an embedding of token ids [batch, tokens]; else None."""
    if not asked.layer or not isinstance(asked.subject.tree.modules[asked.layer], nn.Embedding):
        return None
    value, call = values.get(asked.layer), _first_call(asked)
    ids = None if value is None or call is None else token_ids(asked, call, value.shape)
    if value is None or ids is None:
        return None
    return TokenAttribution(input_of(asked, ids), to_numpy(ids), to_numpy(value.sum(dim=-1)))


def token_ids(asked: Question, call: Call, shape: Sequence[int]) -> Tensor | None:
    """What the embedding's ``call`` took, if explanations of ``shape`` have a row of numbers for each of it."""
    taken = list(call.at(Point.INPUT).values())
    if len(taken) != 1 or taken[0].is_floating_point():
        return None
    fits = tuple(shape[:-1]) == taken[0].shape and taken[0].shape[:1] == (asked.rows,)
    return taken[0] if fits else None


def input_of(asked: Question, ids: Tensor) -> str:
    """The input that holds ``ids``; ``""`` where none does."""
    return next((name for name, tensor in asked.inputs.items() if torch.equal(tensor.cpu(), ids)), "")


def _first_call(asked: Question) -> Call | None:
    """What the embedding's first call takes; forward stops behind it."""
    with torch.no_grad(), observing(asked.subject.tree, {asked.layer: watching(Point.INPUT)}) as seen:
        seen.missing = {(asked.layer, Point.INPUT)}
        try:
            with seen.forward():
                asked.subject.run(asked.inputs)
        except Enough:
            pass
    return next(iter(seen.calls[asked.layer]), None)
