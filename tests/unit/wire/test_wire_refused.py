"""Edits, captures and targets that cannot be meant: each is refused with its reason and the field at fault, whatever
client sent it."""

from __future__ import annotations

from typing import Any

import pytest

from cutaway.contract.errors import InvalidArgument, Reason
from cutaway.v1 import inspection_pb2
from tests.support.contract_fields import asked, refusal

NAN, INF = float("nan"), float("inf")
INVALID, MISMATCH = Reason.INVALID_VALUE, Reason.TARGET_MISMATCH
FLOATING = "DATA_TYPE_FLOAT16, DATA_TYPE_BFLOAT16, DATA_TYPE_FLOAT32, DATA_TYPE_FLOAT64"
POINTS = "HOOK_POINT_INPUT, HOOK_POINT_OUTPUT, HOOK_POINT_GRAD_INPUT, HOOK_POINT_GRAD_OUTPUT"
IN_ORDER = {"module": "m", "point": 2, "zero": {}}


def second_edit(**fields: Any) -> inspection_pb2.InspectRequest:
    """A request whose first edit is in order, and whose second, at the output of a module, has ``fields``."""
    return asked(edits=[IN_ORDER, {"module": "m", "point": 2} | fields])


def second_capture(**fields: Any) -> inspection_pb2.InspectRequest:
    """A request whose first capture is in order, and whose second, of a module or of what ``fields`` name, has
    ``fields``."""
    where = {} if {"op", "parameter"} & set(fields) else {"module": "m"}
    return asked(captures=[{"module": "m"}, where | fields])


def target(**fields: Any) -> inspection_pb2.InspectRequest:
    """A request with a target of ``fields``."""
    return asked(target=fields)


WRONG: dict[str, tuple[inspection_pb2.InspectRequest, Reason, str, str]] = {
    # Edits: where.
    "edit nowhere": (
        asked(edits=[IN_ORDER, {"point": 2, "zero": {}}]), INVALID, "edits[1].where", "name a module or an operator"),
    "edit of no module": (second_edit(module="", zero={}), INVALID, "edits[1].module", "name a module or an operator"),
    "edit of no operator": (
        second_edit(module=None, op="", zero={}), INVALID, "edits[1].op", "name a module or an operator"),
    "edit at no point": (second_edit(point=0, zero={}), INVALID, "edits[1].point", f"0 is none of {POINTS}"),
    "row twice": (
        second_edit(rows=[3, 0, 3], zero={}), INVALID, "edits[1].rows[2]", "3 is there already; name each once"),
    "edit of a slice backwards": (
        second_edit(slices=[{}, {"step": -1}], zero={}), INVALID, "edits[1].slices[1].step", "-1; at least 1"),
    # Edits: how.
    "edit without a verb": (
        second_edit(), INVALID, "edits[1].kind",
        "say what to do: scale, add, replace, zero, clamp, mix, add_vector, clamp_direction or swap_directions"),
    "scale by NaN": (
        second_edit(scale={"factor": NAN}), INVALID, "edits[1].scale.factor", "NaN is no number; send one"),
    "add nothing": (second_edit(add={}), INVALID, "edits[1].add.addend", "send a scalar or a tensor to add"),
    "add NaN": (second_edit(add={"scalar": NAN}), INVALID, "edits[1].add.scalar", "NaN is no number; send one"),
    "replace by nothing": (second_edit(replace={}), INVALID, "edits[1].replace.tensor", "send a tensor"),
    "clamp without bounds": (second_edit(clamp={}), INVALID, "edits[1].clamp", "send a minimum, a maximum or both"),
    "clamp from NaN": (
        second_edit(clamp={"minimum": NAN}), INVALID, "edits[1].clamp.minimum", "NaN is no number; send one"),
    "clamp to NaN": (
        second_edit(clamp={"minimum": 0, "maximum": NAN}), INVALID, "edits[1].clamp.maximum",
        "NaN is no number; send one"),
    "clamp between nothing": (
        second_edit(clamp={"minimum": 1, "maximum": -1}), INVALID, "edits[1].clamp",
        "the minimum 1.0 is above the maximum -1.0"),
    "mix below 0": (second_edit(mix={"lambda": -0.1}), INVALID, "edits[1].mix.lambda", "-0.1; from 0 to 1"),
    "mix above 1": (second_edit(mix={"lambda": 1.5}), INVALID, "edits[1].mix.lambda", "1.5; from 0 to 1"),
    "mix by NaN": (second_edit(mix={"lambda": NAN}), INVALID, "edits[1].mix.lambda", "nan; from 0 to 1"),
    "mix by infinity": (second_edit(mix={"lambda": INF}), INVALID, "edits[1].mix.lambda", "inf; from 0 to 1"),
    "nothing to compare": (
        asked(compare=True), INVALID, "compare", "comparing needs edits: without them both models are the same"),
    # Captures.
    "capture of no module": (
        second_capture(module=""), INVALID, "captures[1].module", "name a module, an operator or a parameter"),
    "capture of no operator": (
        second_capture(op=""), INVALID, "captures[1].op", "name a module, an operator or a parameter"),
    "capture of no parameter": (
        second_capture(parameter=""), INVALID, "captures[1].parameter", "name a module, an operator or a parameter"),
    "parameter at a point": (
        second_capture(parameter="w", points=[2]), INVALID, "captures[1].points",
        "a parameter has no points; leave it out"),
    "parameter in a call": (
        second_capture(parameter="w", call=0), INVALID, "captures[1].call", "a parameter has no call; leave it out"),
    "parameter at a path": (
        second_capture(parameter="w", path="[0]"), INVALID, "captures[1].path",
        "a parameter has no path; leave it out"),
    "slice with no step": (
        second_capture(slices=[{}, {"axis": 1, "step": 0}]), INVALID, "captures[1].slices[1].step", "0; at least 1"),
    "no reduction": (
        second_capture(reduction={}), INVALID, "captures[1].reduction.kind",
        "name a reduction: mean, max, norm, top_k or project"),
    "mean over no axis": (
        second_capture(reduction={"mean": {}}), INVALID, "captures[1].reduction.mean.axes", "name at least one axis"),
    "maximum over no axis": (
        second_capture(reduction={"max": {}}), INVALID, "captures[1].reduction.max.axes", "name at least one axis"),
    "norm over no axis": (
        second_capture(reduction={"norm": {}}), INVALID, "captures[1].reduction.norm.axes", "name at least one axis"),
    "no largest element": (
        second_capture(reduction={"top_k": {}}), INVALID, "captures[1].reduction.top_k.k", "0; at least 1"),
    "capture as integers": (
        second_capture(data_type=8), INVALID, "captures[1].data_type", f"8 is none of {FLOATING}"),
    "capture as booleans": (
        second_capture(data_type=10), INVALID, "captures[1].data_type", f"10 is none of {FLOATING}"),
    # Targets.
    "no position": (
        target(multi_index={}), MISMATCH, "target.multi_index", "no position; send one for all, or one an example"),
    "no largest class": (target(top_k={}), INVALID, "target.top_k.k", "0; at least 1"),
    "no label": (
        target(cross_entropy={}), MISMATCH, "target.cross_entropy", "no label; send one for all, or one an example"),
    "loss of a newer client": (
        target(cross_entropy={"labels": [0], "reduction": 3}), INVALID, "target.cross_entropy.reduction",
        "3 is none of LOSS_REDUCTION_SUM, LOSS_REDUCTION_MEAN"),
    "no wished values": (
        target(mean_squared_error={}), INVALID, "target.mean_squared_error.values", "send a tensor"),
    "no cotangent": (target(cotangent={}), INVALID, "target.cotangent.tensor", "send a tensor"),
    "norm of order 0": (
        target(norm={"order": 0}), INVALID, "target.norm.order", "0.0; the order of a norm is above 0"),
    "norm of negative order": (
        target(norm={"order": -INF}), INVALID, "target.norm.order", "-inf; the order of a norm is above 0"),
    "norm of order NaN": (
        target(norm={"order": NAN}), INVALID, "target.norm.order", "nan; the order of a norm is above 0"),
    "neuron of no module": (
        target(neuron={"index": {"positions": [1]}}), INVALID, "target.neuron.module", "name the module"),
    "an attribution's own": (
        asked(attributions=[{"saliency": {}}, {"saliency": {}, "target": {"top_k": {}}}]), INVALID,
        "attributions[1].target.top_k.k", "0; at least 1"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_meant_is_refused(wrong: str) -> None:
    """The error names the element and the field at fault and says, in words, what to send instead."""
    message, reason, field, text = WRONG[wrong]
    failure = refusal(message)
    assert isinstance(failure, InvalidArgument)
    assert (failure.reason, failure.field, failure.message) == (reason, field, text)


RIGHT = {
    "infinite factor": second_edit(scale={"factor": -INF}),
    "clamp above only": second_edit(clamp={"maximum": 0}),
    "clamp to one number": second_edit(clamp={"minimum": 0, "maximum": 0}),
    "clamp without end": second_edit(clamp={"minimum": -INF, "maximum": INF}),
    "mix with nothing": second_edit(mix={"lambda": 1}),
    "norm of infinite order": target(norm={"order": INF}),
    "neuron of a module with one number": target(neuron={"module": "m"}),
    "default of a parameter": second_capture(parameter="w"),
    "infinite addend": second_edit(add={"scalar": INF}),
}


@pytest.mark.parametrize("right", RIGHT)
def test_what_can_be_meant_is_not_refused(right: str) -> None:
    """The edge of what is allowed is allowed."""
    assert refusal(RIGHT[right]) is None
