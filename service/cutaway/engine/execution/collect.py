"""Collects the result of a request from its passes, as arrays on the host, and tells listeners of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import replace
from typing import TypeAlias

import captum
import numpy as np
import torch
from torch import Tensor, nn

from cutaway.contract import results
from cutaway.contract.errors import CutawayError, Reason, at, error
from cutaway.contract.requests import POINTS, Expectation, GuidedGradCam, Point, field_name
from cutaway.contract.results.arrays import CAPTURE, POSITIONS, ArrayField, Place, entries, with_arrays
from cutaway.contract.tensors import Array
from cutaway.contract.values import changed
from cutaway.engine.checks.row_independence import dependence_warnings
from cutaway.engine.execution import missing
from cutaway.engine.execution.main_pass import MainPass, predicted_classes
from cutaway.engine.execution.value_warnings import value_warnings
from cutaway.engine.hooks.capture_spec import CaptureSpec, watching
from cutaway.engine.hooks.hook_site import Batch
from cutaway.engine.hooks.observe import observing
from cutaway.engine.hooks.recording import RecordedCall, Recording, StopForward
from cutaway.engine.methods.captum_call import method_of
from cutaway.engine.model.inspected_model import Inputs, InspectedModel, Outputs
from cutaway.engine.model.session import EVERY_S, FIRST_S
from cutaway.engine.passes.pass_recorder import AttributionProblem, ResolvedAttribution, Values
from cutaway.engine.planning.attribution_setup import left_out
from cutaway.engine.planning.plan import RequestPlan
from cutaway.engine.runtime.numerics import Path, to_numpy

# Attributions of only those rows whose prediction meets the request's ``explain_if``.


def qualifying_rows(main: MainPass) -> list[int] | None:
    """Returns the rows that meet the request's ``explain_if``; None without one.

    Raises:
        InvalidArgument: the model has no classes.
    """
    condition = main.plan.request.explain_if
    if condition is None:
        return None
    if not (predictions := main.predictions):
        what = "the model has no classes, and so no probability to ask for: leave it out"
        raise error(Reason.INVALID_VALUE, what, "explain_if")
    return [row for row, one in enumerate(predictions) if condition.qualifies(one.index, one.probability)]


def unexplained_rows(main: MainPass) -> Iterator[results.Warning]:
    """Yields a warning that names the rows that do not qualify, if there are any."""
    rows = qualifying_rows(main)
    predictions = () if rows is None else main.predictions
    if rows is not None and len(rows) < len(predictions):
        others = [(row, predicted) for row, predicted in enumerate(predictions) if row not in rows]
        listed = ", ".join(f"{row} (class {one.index}, {one.probability:.3g})" for row, one in others[:8])
        more = ", ..." if len(others) > 8 else ""
        what = f"rows do not qualify, and their attributions {'are zeros' if rows else 'were not computed'}"
        text = f"{len(others)} of {len(predictions)} {what}: {listed}{more}"
        yield results.Warning(results.WarningCode.NOT_EXPLAINED, "explain_if", text)


def _unreached_inputs(main: MainPass) -> Iterator[results.Warning]:
    """Yields a warning for each explained input that no gradient of a target reaches."""
    for name in main.recording.unreached_inputs:
        text = (
            f"no gradient of a target that is explained reaches the input {name!r}, and its attribution is zero: the "
            "target does not depend on it, or the model cuts the graph between them (detach, no_grad, integers)"
        )
        yield results.Warning(results.WarningCode.NO_GRADIENT, name, text)


def _left_out_inputs(main: MainPass) -> Iterator[results.Warning]:
    """Yields a warning for each attribution that leaves inputs out."""
    for number, attribution in zip(main.plan.numbers, main.plan.attributions):
        if names := left_out(attribution):
            explained = ", ".join(attribution.explained)
            text = f"explained: {explained}; not explained, and the same in every pass: {', '.join(names)}"
            text += "; to explain others, name all of them in inputs"
            yield results.Warning(results.WarningCode.INPUT_NOT_EXPLAINED, f"attributions[{number}].inputs", text)


_NOT_CHECKED = results.RowCheck(0.0, results.Verdict.NOT_APPLICABLE)
"""The check of a row that does not qualify."""


def placed_rows(
    result: results.AttributionResult, rows: Sequence[int], batch: int, *, whole: bool
) -> results.AttributionResult:
    """Returns every array of ``result`` with zeros in the other rows, of an attribution of some rows.

    Args:
        result: arrays ``[batch, ...]``, or without ``whole`` ``[len(rows), ...]``.
        rows: the rows that qualify.
        batch: the batch size.
        whole: whether ``result`` is of the whole batch.
    """
    count, index = batch if whole else len(rows), list(rows)

    def placed(array: Array, *_: object) -> Array:
        if array.shape[:1] != (count,):
            text = f"the explanation has shape {list(array.shape)}, and no axis of rows to leave some out"
            raise error(Reason.METHOD_INAPPLICABLE, f"{text}: ask without explain_if", "explain_if")
        zeros = np.zeros((batch, *array.shape[1:]), array.dtype)
        zeros[index] = array[index] if whole else array
        return zeros

    def with_all_rows(check: results.Check) -> results.Check:
        """Adds the rows that were not explained, as not checked, so that the check has one outcome for each row."""
        if whole or not check.rows:
            return check
        by_row = dict(zip(rows, check.rows))
        return replace(check, rows=tuple(by_row.get(row, _NOT_CHECKED) for row in range(batch)))

    return with_arrays(replace(result, checks=tuple(map(with_all_rows, result.checks))), placed)


def collect_main_pass(main: MainPass, unedited: Outputs) -> results.InspectResult:
    """Returns what the main pass of a request returned, and the warnings that no attribution changes.

    Args:
        main: the request's main pass.
        unedited: what the model returns without edits, by name; empty where the request does not compare.
    """
    plan, recording, shows = main.plan, main.recording, not main.plan.request.omit_predictions
    classes, target_values, rows = main.target_classes, main.target_values, qualifying_rows(main)
    return results.InspectResult(
        predictions=arrays({name: output for name, output in main.outputs.items() if name not in plan.unasked})
        if shows
        else {},
        classes=main.predictions if shows else (),
        targets=None if classes is None else to_numpy(classes),
        target_values=None if target_values is None else to_numpy(target_values),
        captures={
            name: _capture(recording.calls[name], specs)
            for name, specs in main.sites.items()
            if recording.calls[name] and not missing.are_left_out(recording.calls[name])
        },
        input_gradients=arrays(main.input_gradients),
        parameter_gradients=arrays(main.parameter_gradients),
        unedited=arrays(unedited),
        unedited_classes=predicted_classes(plan, unedited),
        warnings=(
            *missing.gradient_warnings(plan, main.input_gradients, main.parameter_gradients),
            *missing.capture_warnings(main.sites, recording, plan.model.tree),
            *missing.comparison_warnings(plan, unedited, main.outputs),
            *unexplained_rows(main),
            *_left_out_inputs(main),
            *(value_warnings(main, target_values) if len(plan.parts) < 2 else ()),  # joined requests have their own
            *missing.unread_warnings(plan),
        ),
        example_axes=_example_axes(main, unedited),
        explained_rows=None if rows is None else np.isin(np.arange(plan.rows), rows),
    )


def with_attributions(
    result: results.InspectResult, attributions: Sequence[results.AttributionResult], main: MainPass
) -> results.InspectResult:
    """Returns ``result``, that of the ``main`` pass, with the first or all of the request's attributions."""
    axes = {
        **result.example_axes,
        **attribution_axes(main, results.InspectResult({}, attributions=tuple(attributions))),
    }
    return changed(result, attributions=tuple(attributions), example_axes=axes)


def whole_result(result: results.InspectResult, main: MainPass) -> results.InspectResult:
    """Returns ``result``, which has all attributions, with what is known only after them."""
    plan, model = main.plan, main.plan.model
    return changed(
        result,
        receipts=tuple(_receipt(main.recording, number) for number, _ in enumerate(plan.request.edits)),
        warnings=(
            *result.warnings,
            *missing.edit_warnings(plan, main.recording),
            *_unreached_inputs(main),
            *dependence_warnings(model, plan.inputs),
        ),
        provenance=changed(provenance(model), seed=plan.seed or 0),
        timings=main.timings,
    )


def _receipt(recording: Recording, number: int) -> results.EditReceipt:
    places = tuple(str(place) for numbered, place in recording.left_out if numbered == number)
    return replace(recording.receipts.get(number, results.EditReceipt()), left_out=places)


def arrays(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    """Returns ``tensors`` as arrays on the host, by name."""
    return {name: to_numpy(tensor) for name, tensor in tensors.items()}


def _capture(calls: Sequence[RecordedCall], specs: Mapping[Point, CaptureSpec]) -> results.ModuleCapture:
    return results.ModuleCapture(tuple(captured_call(call, specs) for call in missing.captured_calls(calls, specs)))


def captured_call(call: RecordedCall, specs: Mapping[Point, CaptureSpec]) -> results.CapturedCall:
    """Returns what was recorded of a call, at the points of ``specs``."""
    values: dict[Point, dict[str, Array]] = {}
    positions: dict[Point, dict[str, Array]] = {}
    for point in POINTS:
        for path, part in call.captured(point).items() if point in specs else ():
            values.setdefault(point, {})[path] = to_numpy(part.values)
            if part.positions is not None:
                positions.setdefault(point, {})[path] = to_numpy(part.positions)
    return results.CapturedCall(values, positions)


def attribution_axes(main: MainPass, part: results.InspectResult) -> dict[str, int | None]:
    """Returns the axes of the rows by the names of the arrays of attributions in ``part``, where they are not 0; None
    also where a layer was given other rows than the request's, such as those of an expert."""
    layers = {name for attribution in main.plan.attributions for name in attribution.layers}
    by_value = {f"{name}{path}": axis for name in layers for path, axis in main.batch.axes.at_output(name).items()}
    found: dict[str, int | None] = {}
    for entry in entries(part) if by_value else ():
        axis = by_value.get(str(entry.key), 0)
        if str(entry.key) in by_value and entry.field.by_row and axis is not None:
            axis = axis if entry.array.shape[axis : axis + 1] == (main.plan.rows,) else None
        found[entry.name] = axis
    return {name: axis for name, axis in found.items() if axis != 0}


def _example_axes(main: MainPass, unedited: Outputs) -> dict[str, int | None]:
    """Returns the axes of the rows by the names of the main pass's arrays, where they are not 0."""
    batch = main.batch
    axes: dict[str, int | None] = {}
    for prefix, outputs in (("", main.outputs), ("unedited:", unedited)):
        axes |= {f"{prefix}{name}": batch.axes.of_output(name, output, batch.rows) for name, output in outputs.items()}
    for name, specs in main.sites.items():
        for number, call in enumerate(missing.captured_calls(main.recording.calls[name], specs)):
            for point, path, part in call.entries():
                if part is not None and part.row_axis != 0:
                    place = Place(name, point, path, number)
                    axes[f"{CAPTURE}:{place}"] = part.row_axis
                    if part.positions is not None:
                        axes[f"{POSITIONS}:{place}"] = part.row_axis
    return {name: axis for name, axis in axes.items() if axis != 0}


def provenance(model: InspectedModel) -> results.Provenance:
    """Returns the versions, weights and device of ``model``, and its passes since the counters were reset."""
    return results.Provenance(
        weights_sha256=model.weights_sha256,
        torch_version=torch.__version__,
        captum_version=captum.__version__,
        device=str(model.device),
        data_type=str(model.dtype).removeprefix("torch."),
        forwards=model.passes.forwards,
        backwards=model.passes.backwards,
    )


# The attributions of tokens: those of an embedding of token ids, summed over its width.


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
    if module is not None and problem.request.llm_attribution is not None:
        sums = next(iter(values.values()))
        return _of_tokens(problem, "input_ids", problem.inputs["input_ids"], sums)
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
    return _of_tokens(problem, source, ids, value.sum(dim=-1))


def _of_tokens(problem: AttributionProblem, source: str, ids: Tensor, sums: Tensor) -> results.TokenAttribution:
    """Returns ``sums`` of the tokens ``ids`` of the input ``source``, with the baseline of that input if it has one."""
    start = problem.baselines.get(source)
    has_one = start is not None and start.shape == ids.shape and not isinstance(problem.request, Expectation)
    baseline = to_numpy(start) if start is not None and has_one else None
    return results.TokenAttribution(source, to_numpy(ids), to_numpy(sums), baseline_ids=baseline)


def _first_call(problem: AttributionProblem) -> RecordedCall | None:
    """Returns the embedding's first call; forward stops behind it."""
    with torch.no_grad(), observing(problem.model.tree, {problem.layer: watching(Point.INPUT)}) as recording:
        recording.pending = {(problem.layer, Point.INPUT)}
        with suppress(StopForward), recording.forward():
            problem.model.run(problem.inputs)
    return next(iter(recording.calls[problem.layer]), None)


# The axes of what a layer returns: those of the rows and of the channels are shown in front while it is explained.


def with_known_axes(attribution: ResolvedAttribution, batch: Batch) -> ResolvedAttribution:
    """Returns ``attribution`` with what is known of the rows in what its layers return.

    Raises:
        InvalidArgument: ``METHOD_INAPPLICABLE``: the method needs rows, or channels, on other axes.
    """
    _refuse_other_axes(attribution, batch)
    _refuse_unlike_input(attribution, batch)
    path = attribution.request.layer_path
    by_path = [item for layer in attribution.layers for item in batch.axes.at_output(layer).items()]
    axes = [axis for other, axis in by_path if path in ("", other)]
    return replace(attribution, is_batch_first=bool(axes) and None not in axes)


def _refuse_other_axes(attribution: ResolvedAttribution, batch: Batch) -> None:
    """Refuses a layer whose rows are not on axis 0, for methods that read them there in modules inside the model."""
    axes = batch.axes.at_output(attribution.layer) if method_of(attribution.request).applies_to_modules else {}
    if axis := axes.get(attribution.request.layer_path):
        text = (
            f"axis 0 of what the layer {attribution.layer!r} returns is not the batch, but axis {axis} is, and the "
            "method reads rows on axis 0; name a layer before or behind it"
        )
        raise error(Reason.METHOD_INAPPLICABLE, text, f"{field_name(type(attribution.request))}.layer")


def _refuse_unlike_input(attribution: ResolvedAttribution, batch: Batch) -> None:
    """Refuses layers whose channels are not on axis 1, where Guided Grad-CAM cannot have a map of the input.

    Raises:
        InvalidArgument: also if the axis of the channels is not known.
    """
    behind = any(axis != 1 for axis in summed_channels(attribution, batch).values())
    if not behind or not isinstance(attribution.request, GuidedGradCam):
        return
    flat = next((name for name in attribution.explained if attribution.inputs[name].ndim == 3), None)
    if flat is not None:
        text = (
            f"the channels of {attribution.layer!r} are behind its positions, and those of the input {flat!r} on axis 1"
        )
    elif isinstance(attribution.model.tree.modules[attribution.layer], nn.ReLU):
        text = (
            f"the channels of the nn.ReLU {attribution.layer!r}, whose gradient is replaced, are behind its positions"
        )
    else:
        return
    text += ": multiply LayerGradCam with GuidedBackprop where the input's positions are"
    raise error(Reason.METHOD_INAPPLICABLE, text, "guided_grad_cam.channel_axis")


def axes_in_front(problem: AttributionProblem, batch: Batch) -> dict[str, dict[Path, tuple[int, ...]]]:
    """Returns, by layer and by path, the axes of the rows, and of channels if they are summed over, in what it returns,
    where these are not axes 0 and 1."""
    by_layer: dict[str, dict[Path, tuple[int, ...]]] = {}
    for layer in problem.layers:
        channels = summed_channels(problem, batch)
        rows = {**dict.fromkeys(channels), **batch.axes.at_output(layer)}
        axes = {path: (row or 0, *([channels[path]] if path in channels else [])) for path, row in rows.items()}
        by_layer[layer] = {path: own for path, own in axes.items() if own != tuple(range(len(own)))}
    return {layer: axes for layer, axes in by_layer.items() if axes}


def summed_channels(attribution: ResolvedAttribution, batch: Batch) -> dict[Path, int]:
    """Returns the axes over which Grad-CAM sums, by path; empty for other methods."""
    found = {} if attribution.channels is None else batch.axes.channels[attribution.channels]
    if isinstance(found, CutawayError):
        with at(f"{field_name(type(attribution.request))}.channel_axis"):
            raise copy(found)  # whose field is not prefixed yet
    return found


def in_own_axes(
    result: results.AttributionResult, problem: AttributionProblem, batch: Batch
) -> results.AttributionResult:
    """Returns ``result``, whose arrays have other axes in front, with values in the axes of the layer's output."""
    axes = {
        f"{layer}{path}": axes for layer, own in axes_in_front(problem, batch).items() for path, axes in own.items()
    }
    if not axes:
        return result

    def moved(array: Array, field: ArrayField, key: object, _: object) -> Array:
        own = axes.get(str(key)) or axes.get(f"{key}[0]", ())  # the only tensor of a tuple has the layer's name
        return np.moveaxis(array, range(len(own)), own) if field.named else array

    return with_arrays(result, moved)


# Listeners: the results so far, and how far the attributions are.

Tell: TypeAlias = Callable[[results.InspectResult], object]
"""Takes a result so far."""


def telling(
    plans: Sequence[RequestPlan], split: Callable[[results.InspectResult], Sequence[results.InspectResult]]
) -> AbstractContextManager[Tell | None]:
    """Returns a context with a function that sends a result so far to the listeners of ``plans``, which run together;
    with None if there are no listeners.

    Args:
        plans: the requests.
        split: returns the result of each of them.
    """
    return nullcontext() if all(plan.listener is None for plan in plans) else _telling(plans, split)


@contextmanager
def _telling(
    plans: Sequence[RequestPlan], split: Callable[[results.InspectResult], Sequence[results.InspectResult]]
) -> Iterator[Tell]:
    meter = _Meter(plans)

    def tell(result: results.InspectResult) -> None:
        for plan, own in zip(plans, split(result)):
            if plan.listener is not None:
                plan.listener.so_far(own)
        meter.next_attribution()

    with plans[0].model.passes.watched_by(meter.ran):
        yield tell


class _Meter:
    """A meter of the passes of requests that run together; more than the expected passes count as these.

    The time that is left never rises: where it was estimated too small, it stands still.
    """

    def __init__(self, plans: Sequence[RequestPlan]) -> None:
        first = plans[0]
        self._numbers = sorted({*first.numbers, *first.failed})
        self._listeners = [(plan.listener, plan.rows) for plan in plans if plan.listener is not None]
        self._rows = sum(plan.rows for plan in plans)
        by_number = dict(zip(first.numbers, self._listeners[0][0].passes))
        self._expected = [by_number.get(number, 0) for number in self._numbers]
        self._current = -1
        self._examples = 0
        self._began = self._told = 0.0
        self._left_s = math.inf

    def next_attribution(self) -> None:
        """Notes that the first attribution begins, or the next one."""
        if self._current < 0:
            self._began = time.perf_counter()
            self._told = self._began + FIRST_S - EVERY_S
        self._current, self._examples = self._current + 1, 0

    def ran(self, inputs: Inputs) -> None:
        """Counts a forward pass, and tells listeners if they heard nothing for a while."""
        self._examples += len(next(iter(inputs.values())))
        now = time.perf_counter()
        if now - self._told > EVERY_S and 0 <= self._current < len(self._numbers):
            self._told = now
            self._tell(now - self._began)

    def _tell(self, seconds: float) -> None:
        total = sum(self._expected)
        own = min(self._examples / self._rows, self._expected[self._current])
        done = sum(self._expected[: self._current]) + own
        if not done:  # nothing is known yet
            return
        self._left_s = min(self._left_s, seconds * (total - done) / done)
        for listener, rows in self._listeners:
            progress = results.Progress(round(done * rows), total * rows, self._left_s, self._numbers[self._current])
            listener.progress(progress)
