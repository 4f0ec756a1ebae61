"""Methods that replace units of a layer and compare the target before and after: forward passes only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from captum import attr
from torch import Tensor

from cutaway.engine.methods.layer_output import readable_output
from cutaway.engine.methods.perturbations import single_row
from cutaway.engine.methods.spec import Method
from cutaway.engine.methods.validation import inapplicable
from cutaway.engine.model.inspected_model import Inputs, InspectedModel, dtype_text
from cutaway.engine.passes.features import MAX_EVALUATIONS
from cutaway.engine.passes.pass_recorder import AttributionProblem, Changes
from cutaway.engine.references import layer_ablation as references
from cutaway.engine.references.observation import module_calls
from cutaway.engine.runtime.oom import is_out_of_memory
from cutaway.errors import CutawayError, Reason, at, error
from cutaway.requests import Attribution, LayerFeatureAblation, LayerFeaturePermutation, Point, field_name


def _refuse_baseline(_: InspectedModel, request: Any, inputs: Inputs, edits: Changes) -> None:
    if not math.isfinite(request.baseline):
        raise error(Reason.INVALID_VALUE, f"{request.baseline}; a unit is replaced by a finite number", "baseline")


@contextmanager
def _replaceable_output(problem: AttributionProblem) -> Iterator[None]:
    """A context that requires a layer whose output Captum can replace, and names the layer if it cannot."""
    layer, field = problem.layer, f"{field_name(type(problem.request))}.layer"
    is_tuple = False
    try:
        refuse = partial(_refuse_outputs, layer)
        with readable_output(problem, "layer", refuse, several=True):
            outputs = module_calls(problem)[0].at(Point.OUTPUT)
            is_tuple = "" not in outputs
            for output in outputs.values():
                _refuse_out_of_range(problem, output)
            yield
    except Exception as failure:
        is_other = isinstance(failure, CutawayError) and failure.reason != Reason.MODEL_FAILED
        if is_out_of_memory(failure) or not is_tuple or is_other:
            raise
        with at(field):
            raise inapplicable(
                f"Captum replaces the list that {layer!r} returns by a bare tensor, on which the model fails; name a "
                "module that returns a tensor, alone or in a tuple"
            ) from failure


def _refuse_outputs(layer: str, outputs: Sequence[Sequence[Tensor]]) -> None:
    units = sum(output[0].numel() for output in outputs[0])
    if units > MAX_EVALUATIONS:
        raise error(
            Reason.INVALID_VALUE,
            f"the layer {layer!r} has {units} units, and a forward pass is run for each, at most {MAX_EVALUATIONS}: "
            "name a smaller layer, or ask LayerConductance, which takes few passes",
        )
    shapes = dict.fromkeys(" and ".join(str(list(tensor.shape)) for tensor in output) for output in outputs)
    if len(shapes) > 1:
        raise inapplicable(
            f"the layer {layer!r} is called {len(outputs)} times and returns the shapes {', '.join(shapes)}, and "
            "Captum replaces all of them by one: name a layer that is called once"
        )


def _ablation_arguments(problem: AttributionProblem) -> dict[str, Any]:
    baseline = cast(LayerFeatureAblation, problem.request).baseline
    if not baseline:
        return {}  # Captum's default
    return {"layer_baselines": (baseline,) * len(module_calls(problem)[-1].at(Point.OUTPUT))}


def _refuse_out_of_range(problem: AttributionProblem, output: Tensor) -> None:
    baseline = getattr(problem.request, "baseline", 0.0)
    if not bool(torch.tensor(baseline, dtype=output.dtype).isfinite()):
        with at(field_name(type(problem.request))):
            raise error(
                Reason.INVALID_VALUE,
                f"{baseline} is no number of {dtype_text(output)}, which the layer returns",
                "baseline",
            )


_row = partial(Method, forward_only=True, limitation=references.limitation, model_context=_replaceable_output)

ROWS: dict[type[Attribution], Method] = {
    LayerFeatureAblation: _row(
        attr.LayerFeatureAblation,
        references.unit_ablation,
        "f(x) - f(x with the layer's unit at the baseline) from raw outputs",
        points=references.ablation_points,
        attribute_arguments=_ablation_arguments,
        reference_passes=references.ablation_passes,
        refuse=_refuse_baseline,
    ),
    LayerFeaturePermutation: _row(
        attr.LayerFeaturePermutation,
        references.unit_ablation,
        "f(x) - f(x with the rows of the layer's unit in another order) from raw outputs",
        points=references.permutation_points,
        takes_target=False,
        uses_randomness=True,
        vacuous=single_row,
        reference_passes=references.permutation_passes,
    ),
}
