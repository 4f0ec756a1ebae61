"""Methods that replace units of a layer and look at what changes: forward passes only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from captum import attr
from torch import Tensor, nn

from cutaway.engine.features import MAX_EVALUATIONS
from cutaway.engine.memory import ran_out
from cutaway.engine.method import Method
from cutaway.engine.methods import perturbations
from cutaway.engine.methods.returned import only_tensor, read_by_captum
from cutaway.engine.references import units as references
from cutaway.engine.references.neurons import calls
from cutaway.engine.subject import Inputs, Subject
from cutaway.engine.witness import Changes, Question
from cutaway.errors import CutawayError, Reason, at, error
from cutaway.requests import (
    Attribution,
    FeaturePermutation,
    LayerFeatureAblation,
    LayerFeaturePermutation,
    Point,
    field_name,
)


class _Permutation:
    """Captum 0.9 selects the target from what it has selected already, and so takes no target: it is given a function
    that returns the target's scalars."""

    def __init__(self, forward: Callable[..., Tensor], layer: nn.Module) -> None:
        self._forward = forward
        self._layer = layer

    def attribute(self, inputs: tuple[Tensor, ...], target: Tensor | None = None, **options: Any) -> Any:
        """Attributions of the layer's units; ``target``: the class of each row, [batch]."""

        def scalars(*tensors: Tensor) -> Tensor:
            output = self._forward(*tensors)
            return output if target is None else output.gather(1, target.unsqueeze(1)).squeeze(1)

        return attr.LayerFeaturePermutation(scalars, self._layer).attribute(inputs, **options)


def _refuse_baseline(_: Subject, request: Any, inputs: Inputs, edits: Changes) -> None:
    if not math.isfinite(request.baseline):
        raise error(Reason.INVALID_VALUE, f"{request.baseline}; a unit is replaced by a finite number", "baseline")


@contextmanager
def _replaceable(question: Question) -> Iterator[None]:
    field = field_name(type(question.request))
    with at(field):
        with at("layer"):
            found = calls(question)
            each_call = [only_tensor(question.layer, call.at(Point.OUTPUT), question.rows) for call in found]
            _refuse_many(question.layer, each_call[0])
            _refuse_other_shapes(question.layer, each_call)
        _refuse_out_of_range(question.request, each_call[0])
    boxed = "" not in found[0].at(Point.OUTPUT)
    with _put_back(question.layer, f"{field}.layer", boxed), read_by_captum(question.layer, f"{field}.layer"):
        yield


@contextmanager
def _put_back(layer: str, field: str, boxed: bool) -> Iterator[None]:
    """Captum puts a bare tensor in place of a list, on which the model then fails, or Captum on what it returns."""
    try:
        yield
    except Exception as failure:
        if (
            ran_out(failure)
            or not boxed
            or (isinstance(failure, CutawayError) and failure.reason != Reason.MODEL_FAILED)
        ):
            raise
        with at(field):
            raise error(
                Reason.METHOD_INAPPLICABLE,
                f"the model fails on what Captum puts in place of what {layer!r} returns: a bare tensor, where that is "
                "a list; name a module that returns a tensor, alone or in a tuple",
            ) from failure


def _refuse_many(layer: str, output: Tensor) -> None:
    if output[0].numel() > MAX_EVALUATIONS:
        raise error(
            Reason.INVALID_VALUE,
            f"the layer {layer!r} has {output[0].numel()} units, and a forward pass is run for each, at most "
            f"{MAX_EVALUATIONS}: name a smaller layer, or ask LayerConductance, which takes few passes",
        )


def _refuse_other_shapes(layer: str, each_call: Sequence[Tensor]) -> None:
    shapes = dict.fromkeys(str(list(output.shape)) for output in each_call)
    if len(shapes) > 1:
        raise error(
            Reason.METHOD_INAPPLICABLE,
            f"the layer {layer!r} is called {len(each_call)} times and returns the shapes {', '.join(shapes)}, and "
            "Captum puts one in place of all: name a layer that is called once",
        )


def _refuse_out_of_range(request: Any, output: Tensor) -> None:
    baseline = getattr(request, "baseline", 0.0)
    if not bool(torch.tensor(baseline, dtype=output.dtype).isfinite()):
        dtype = str(output.dtype).removeprefix("torch.")
        raise error(Reason.INVALID_VALUE, f"{baseline} is no number of {dtype}, which the layer returns", "baseline")


ROWS: dict[type[Attribution], Method] = {
    LayerFeatureAblation: Method(
        attr.LayerFeatureAblation,
        references.drop,
        references.ablating,
        "f(x) - f(x with the layer's unit at the baseline) from raw outputs",
        options=lambda question: {"layer_baselines": question.request.baseline},  # type: ignore[attr-defined]
        perturbs=True,
        own=references.ablated,
        overlooked=references.overlooked,
        refuse=_refuse_baseline,
        prepared=_replaceable,
    ),
    LayerFeaturePermutation: Method(
        _Permutation,
        references.drop,
        references.permuting,
        "f(x) - f(x with the rows of the layer's unit in another order) from raw outputs",
        perturbs=True,
        draws=True,
        moot=perturbations.ROWS[FeaturePermutation].moot,
        own=references.permuted,
        overlooked=references.overlooked,
        prepared=_replaceable,
    ),
}
