"""Finds the integer inputs that an embedding takes: token ids, and the categories of a table; and reads further inputs,
examples of concepts and training rows.

Methods that replace values by a baseline may move these too. A mask, a length or a position is an integer as well, and
a model may fail, or return no numbers, if it becomes 0. So it is not the data type that tells, but a test: one element
of the input is replaced, and exactly one id of an embedding changes, by as much.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cutaway.contract import requests
from cutaway.contract.errors import InvalidArgument, Reason, at, error
from cutaway.contract.requests import Argument, Point
from cutaway.contract.tensors import ArrayLike, as_array
from cutaway.engine.hooks.capture_spec import watching
from cutaway.engine.hooks.observe import observing
from cutaway.engine.methods.influence import method_of
from cutaway.engine.model.input_validation import named, validate_inputs
from cutaway.engine.model.inspected_model import CONTINUATION, Inputs, InspectedModel, dtype_text
from cutaway.engine.model.session import Cancellation
from cutaway.engine.runtime.numerics import from_numpy

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
        return model.remembered(_key(model, inputs), lambda: _find(model, inputs, embeddings, integers))


def known_embedded(model: InspectedModel, inputs: Inputs) -> frozenset[str]:
    """Returns what `embedded_inputs` found for inputs of this kind; nothing if it was not asked."""
    found: frozenset[str] = model.properties.get(_key(model, inputs), frozenset())
    return found


def _key(model: InspectedModel, inputs: Inputs) -> Hashable:
    return embedded_inputs, model.kind_of(inputs)


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
    """Runs a pass, and returns the ids and the vectors of each call of the embeddings, by module and then by call; an
    embedding of positions may be told a size, and get no ids."""
    sites = {name: watching(Point.INPUT, Point.OUTPUT) for name in embeddings}
    with observing(model.tree, sites) as seen, seen.forward():
        model.run(inputs)
    calls = (call for name in embeddings for call in seen.calls[name])
    sides = ([[*call.at(point).values()] for point in (Point.INPUT, Point.OUTPUT)] for call in calls)
    return [_Lookup(ids[0], vectors[0]) for ids, vectors in sides if ids and vectors]


# Inputs of the examples of concepts, and of training rows.


def concept_examples(
    model: InspectedModel, request: requests.InspectRequest, inputs: Inputs
) -> tuple[tuple[str, Inputs], ...]:
    """Returns the examples of concepts, by name, and those of random sets, by the field of the request below its own.

    Raises:
        InvalidArgument: they are not what the model takes, or too few; or the request has edits, or several targets.
    """
    asked, found = request.concepts, list[tuple[str, Inputs]]()
    if asked is None:
        return ()
    _refuse_others(request, "concepts")
    if not asked.concepts or "" in asked.concepts:
        what = "a concept has a name" if asked.concepts else "send the examples of at least one concept"
        raise error(Reason.INVALID_VALUE, what, "concepts.concepts")
    if len(asked.random) < 2:
        what = f"{len(asked.random)} sets of random examples; a test needs two, better twenty"
        raise error(Reason.INVALID_VALUE, what, "concepts.random")
    sets = {f"concepts.{name}": asked.concepts[name] for name in sorted(asked.concepts)}
    sets |= {f"random[{number}]": examples for number, examples in enumerate(asked.random)}
    for field, examples in sets.items():
        with at(f"concepts.{field}"):
            found.append((field, _as_inputs(model, examples, inputs, _FEWEST_EXAMPLES)))
    return tuple(found)


def training_rows(model: InspectedModel, request: requests.InspectRequest, inputs: Inputs) -> Inputs | None:
    """Returns the rows of the training data that influence is asked of; None without it.

    Raises:
        InvalidArgument: they are not what the model takes; or the request has edits, or another fault.
    """
    asked = request.influence
    if asked is None:
        return None
    _refuse_others(request, "influence")
    method = method_of(asked)
    if method.needs_layer and not asked.layer:
        raise error(Reason.INVALID_VALUE, f"{asked.method} needs a module: name one", "influence.layer")
    if method.is_similarity and asked.labels:
        raise error(
            Reason.INVALID_VALUE, f"{asked.method} compares no losses: leave the labels out", "influence.labels"
        )
    owner = model.module
    if asked.layer:
        with at("influence.layer"):
            owner = model.tree[model.tree.resolve(asked.layer)]
    if method.has_hessian:
        _refuse_hessian(model, asked, owner)
    with at("influence.training"):
        return _as_inputs(model, asked.training, inputs, 1)


_MOST_PARAMETERS = 2048
"""The most parameters of which a Hessian is computed, with a backward pass for each and each training row."""

_MOST_NUMBERS = 1 << 26
"""The most numbers of the vectors of Arnoldi's iteration, one of all parameters for each step; 8 bytes each."""


_FEWEST = 3
"""The fewest steps of Arnoldi's iteration: it finds one eigenvalue fewer."""


def _refuse_hessian(model: InspectedModel, asked: requests.Influence, owner: nn.Module) -> None:
    """Refuses a Hessian that is too large.

    Raises:
        InvalidArgument: ``METHOD_INAPPLICABLE``, with the size that is allowed.
    """
    size = sum(parameter.numel() for parameter in owner.parameters() if parameter.is_floating_point())
    if model.dtype not in (torch.float32, torch.float64):
        what = f"a Hessian needs weights in float32 or float64, and these are {model.dtype}: ask another method"
        raise error(Reason.METHOD_INAPPLICABLE, what, "influence.method")
    most = _MOST_PARAMETERS
    what = f"a Hessian of {size:,} parameters: at most {most:,} are allowed; name a smaller layer, or ask arnoldi"
    if asked.method == requests.InfluenceMethod.ARNOLDI:
        if asked.iterations < _FEWEST:
            raise error(Reason.INVALID_VALUE, f"{asked.iterations}; at least {_FEWEST}", "influence.iterations")
        most = _MOST_NUMBERS // asked.iterations
        what = f"{asked.iterations} iterations with {size:,} parameters: at most {most:,} are allowed"
        fewer = _MOST_NUMBERS // max(1, size)
        what += "; name a smaller layer" + (f", or ask for {fewer} iterations" if fewer >= _FEWEST else "")
    if size > most:
        raise error(Reason.METHOD_INAPPLICABLE, what, "influence.layer" if asked.layer else "influence.method")


def _refuse_others(request: requests.InspectRequest, field: str) -> None:
    """Refuses what a test of the model as it is, for all rows, does not take.

    Raises:
        InvalidArgument: with the field at fault.
    """
    if request.edits or request.explain_if is not None:
        what = f"{field} is about the model as it is, and about all rows: send this in a request of its own"
        raise error(Reason.INVALID_VALUE, what, "edits" if request.edits else "explain_if")
    if requests.is_several(request.target):
        raise error(Reason.INVALID_VALUE, f"{field} is about one number of each row: name one target", "target")


def _as_inputs(model: InspectedModel, examples: requests.ConceptExamples, inputs: Inputs, fewest: int) -> Inputs:
    """Returns examples as tensors on the model's device, in the order of ``inputs``.

    Raises:
        InvalidArgument: they are not what the model takes, or not as many.
    """
    if examples.raw:
        raise error(Reason.RAW_UNSUPPORTED, "this model decodes no examples: send tensors", "raw")
    with at("tensors"):
        tensors = named(model.inputs, {name: _as_input(name, each, inputs) for name, each in examples.tensors.items()})
        tensors = validate_inputs(model.inputs, tensors, any_name=model.takes_any_name)
        if tensors.keys() != inputs.keys():
            what = f"got {', '.join(tensors)}; the rows have {', '.join(inputs)}: send the same inputs"
            raise error(Reason.INPUT_MISSING, what)
        for name, tensor in tensors.items():
            if tensor.dtype != inputs[name].dtype:
                what = f"{dtype_text(tensor)}; the rows have {dtype_text(inputs[name])}: send that"
                raise error(Reason.INPUT_DTYPE, what, name)
        if (count := len(next(iter(tensors.values())))) < fewest:
            raise error(Reason.INPUT_SHAPE, f"{count} examples; at least {fewest} are needed")
    return {name: tensors[name].to(model.device) for name in inputs}


_FEWEST_EXAMPLES = 4


def _as_input(name: str, given: ArrayLike, inputs: Inputs) -> Tensor:
    """Returns an array of examples as a tensor; floating numbers get the data type of the request's own."""
    tensor = given if isinstance(given, Tensor) else from_numpy(as_array(given))
    own = inputs[name] if name in inputs else next(iter(inputs.values()))
    return tensor.to(own.dtype) if tensor.is_floating_point() and own.is_floating_point() else tensor
