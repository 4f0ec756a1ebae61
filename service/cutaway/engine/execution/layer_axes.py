"""The axes of what a layer returns: those of the rows and of the channels are shown in front while it is explained."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np
from torch import nn

from cutaway.contract import results
from cutaway.contract.errors import CutawayError, Reason, at, error
from cutaway.contract.requests import GuidedGradCam, field_name
from cutaway.contract.results.arrays import ArrayField, with_arrays
from cutaway.contract.tensors import Array
from cutaway.engine.hooks.hook_site import Batch
from cutaway.engine.methods.captum_call import method_of
from cutaway.engine.passes.pass_recorder import AttributionProblem, ResolvedAttribution
from cutaway.engine.runtime.numerics import Path


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
