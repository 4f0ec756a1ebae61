"""Collects the result of a request from its passes, as arrays on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import captum
import numpy as np
import torch
from torch import Tensor

from cutaway.contract.requests import POINTS, Point
from cutaway.contract.results import AttributionResult, CapturedCall, InspectResult, ModuleCapture, Provenance
from cutaway.contract.tensors import Array
from cutaway.contract.values import changed
from cutaway.engine.checks.row_independence import dependence_warnings
from cutaway.engine.execution.explain_if import qualifying_rows, unexplained_rows
from cutaway.engine.execution.main_pass import MainPass, predicted_classes
from cutaway.engine.execution.missing import (
    capture_warnings,
    captured_calls,
    comparison_warnings,
    edit_warnings,
    gradient_warnings,
)
from cutaway.engine.hooks.capture_spec import CaptureSpec
from cutaway.engine.hooks.recording import RecordedCall
from cutaway.engine.model.inspected_model import InspectedModel, Outputs
from cutaway.engine.runtime.numerics import to_numpy


def collect_result(main: MainPass, attributions: Sequence[AttributionResult], unedited: Outputs) -> InspectResult:
    """Returns the result of a request: what its main pass returned, its ``attributions``, and warnings.

    Args:
        main: the request's main pass.
        attributions: the request's attributions.
        unedited: what the model returns without edits, by name; empty where the request does not compare.
    """
    plan, recording, model, shows = main.plan, main.recording, main.plan.model, not main.plan.request.omit_predictions
    classes, target_values, rows = main.target_classes, main.target_values, qualifying_rows(main)
    return InspectResult(
        predictions=arrays(main.outputs) if shows else {},
        classes=main.predictions if shows else (),
        targets=None if classes is None else to_numpy(classes),
        target_values=None if target_values is None else to_numpy(target_values),
        captures={
            name: _capture(recording.calls[name], specs) for name, specs in main.sites.items() if recording.calls[name]
        },
        input_gradients=arrays(main.input_gradients),
        parameter_gradients=arrays(main.parameter_gradients),
        attributions=tuple(attributions),
        unedited=arrays(unedited),
        unedited_classes=predicted_classes(model, unedited),
        warnings=(
            *gradient_warnings(plan, main.input_gradients, main.parameter_gradients),
            *capture_warnings(main.sites, recording, model.tree),
            *edit_warnings(plan, recording),
            *comparison_warnings(plan, unedited, main.outputs),
            *unexplained_rows(main),
            *dependence_warnings(model, plan.inputs),
        ),
        provenance=changed(provenance(model), seed=plan.seed or 0),
        timings=main.timings,
        explained_rows=None if rows is None else np.isin(np.arange(plan.rows), rows),
    )


def arrays(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    """Returns ``tensors`` as arrays on the host, by name."""
    return {name: to_numpy(tensor) for name, tensor in tensors.items()}


def _capture(calls: Sequence[RecordedCall], specs: Mapping[Point, CaptureSpec]) -> ModuleCapture:
    return ModuleCapture(tuple(_captured_call(call, specs) for call in captured_calls(calls, specs)))


def _captured_call(call: RecordedCall, specs: Mapping[Point, CaptureSpec]) -> CapturedCall:
    values: dict[Point, dict[str, Array]] = {}
    positions: dict[Point, dict[str, Array]] = {}
    for point in POINTS:
        for path, part in call.captured(point).items() if point in specs else ():
            values.setdefault(point, {})[path] = to_numpy(part.values)
            if part.positions is not None:
                positions.setdefault(point, {})[path] = to_numpy(part.positions)
    return CapturedCall(values, positions)


def provenance(model: InspectedModel) -> Provenance:
    """Returns the versions, weights and device of ``model``, and its passes since the counters were reset."""
    return Provenance(
        weights_sha256=model.weights_sha256,
        torch_version=torch.__version__,
        captum_version=captum.__version__,
        device=str(model.device),
        data_type=str(model.dtype).removeprefix("torch."),
        forwards=model.passes.forwards,
        backwards=model.passes.backwards,
    )
