"""Finds the integer inputs that an embedding takes: token ids, and the categories of a table.

Methods that replace values by a baseline may move these too. A mask, a length or a position is an integer as well, and
a model may fail, or return no numbers, if it becomes 0. So it is not the data type that tells, but a test: one element
of the input is replaced, and exactly one id of an embedding changes, by as much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cutaway.contract.errors import InvalidArgument
from cutaway.contract.requests import Argument, Point
from cutaway.engine.hooks.capture_spec import watching
from cutaway.engine.hooks.observe import observing
from cutaway.engine.model.inspected_model import CONTINUATION, Inputs, InspectedModel
from cutaway.engine.model.session import Cancellation

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


def embedded_inputs(
    model: InspectedModel, inputs: Inputs, cancellation: Cancellation, arguments: Mapping[str, Argument]
) -> frozenset[str]:
    """Returns the names of integer ``inputs`` whose values are the ids of an embedding.

    The first call for a kind of inputs runs passes, which no request counts.

    Raises:
        DeadlineExceeded: the caller no longer waits.
    """
    embeddings = [name for name, module in model.tree.modules.items() if isinstance(module, _EMBEDDINGS)]
    integers = [
        name for name, tensor in inputs.items() if name != CONTINUATION and _is_integer(tensor) and tensor.numel()
    ]
    if not (embeddings and integers):
        return frozenset()
    with model.session(cancellation, arguments):
        return model.remembered(
            ("embedded inputs", model.kind_of(inputs)), lambda: _find(model, inputs, embeddings, integers)
        )


def _is_integer(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)


def _find(model: InspectedModel, inputs: Inputs, embeddings: Sequence[str], integers: Sequence[str]) -> frozenset[str]:
    with torch.no_grad(), model.unrecorded(), suppress(InvalidArgument):
        before = _lookups(model, inputs, embeddings)
        return frozenset(name for name in integers if _is_taken(model, inputs, name, embeddings, before))
    return frozenset()  # the request's own pass reports a model that cannot run


def _is_taken(
    model: InspectedModel, inputs: Inputs, name: str, embeddings: Sequence[str], before: Sequence[_Lookup]
) -> bool:
    """Returns whether an embedding takes the first element of an input that any embedding depends on."""
    for element in range(min(2, inputs[name].numel())):
        changed = inputs[name].clone().reshape(-1)
        old, new = int(changed[element]), int(changed[element] == 0)
        changed[element] = new
        with suppress(InvalidArgument):  # an id that the model does not know
            after = _lookups(model, {**inputs, name: changed.reshape(inputs[name].shape)}, embeddings)
            if len(before) != len(after) or any(one.ids.shape != other.ids.shape for one, other in zip(before, after)):
                return False
            differing = [pair for pair in zip(before, after) if not torch.equal(pair[0].ids, pair[1].ids)]
            if differing:
                return any(one.differs_in_one(other, new - old) for one, other in differing)
    return False


class _Lookup(NamedTuple):
    """One call of an embedding."""

    ids: Tensor
    vectors: Tensor

    def differs_in_one(self, other: _Lookup, change: int) -> bool:
        """Returns whether one id differs, by ``change``, and no vector but its own: an embedding of positions may take
        a mask, and count in its forward."""
        difference = other.ids - self.ids
        if int(difference.count_nonzero()) != 1 or int(difference.sum()) != change:
            return False
        if self.vectors.shape[:-1] != self.ids.shape or self.vectors.shape != other.vectors.shape:
            return True  # the sums of an embedding bag
        return int((self.vectors != other.vectors).any(dim=-1).count_nonzero()) <= 1


def _lookups(model: InspectedModel, inputs: Inputs, embeddings: Sequence[str]) -> list[_Lookup]:
    """Runs a pass, and returns the ids and the vectors of each call of the embeddings, by module and then by call."""
    sites = {name: watching(Point.INPUT, Point.OUTPUT) for name in embeddings}
    with observing(model.tree, sites) as seen, seen.forward():
        model.run(inputs)
    calls = (call for name in embeddings for call in seen.calls[name])
    return [_Lookup(*(next(iter(call.at(point).values())) for point in (Point.INPUT, Point.OUTPUT))) for call in calls]
