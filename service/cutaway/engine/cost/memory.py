"""Estimates, before a request runs, how much memory the activations of its batch take at least."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import NamedTuple

import torch

from cutaway.contract.errors import CutawayError
from cutaway.contract.requests import Point
from cutaway.contract.requests.captures import names_weights
from cutaway.engine.execution.row_parts import plan_divides
from cutaway.engine.hooks.capture_spec import CaptureSpec, ShapeSpec
from cutaway.engine.hooks.observe import observing
from cutaway.engine.methods.captum_call import method_of
from cutaway.engine.model.inspected_model import arguments_kind
from cutaway.engine.passes.pass_memory import LiveBytes
from cutaway.engine.passes.pass_recorder import concatenated
from cutaway.engine.planning.plan import RequestPlan

FEW_ROWS = 32
"""Smaller requests are not estimated: three rows more would cost them too much."""


_PART = 4
"""The part of the allowed bytes that the rows may take that show whether a refusal is right."""


def least_bytes(plan: RequestPlan, allowed: int) -> int:
    """Returns the least bytes that the request's batch takes; 0 where that is not known.

    The model runs on the first row once and twice, once for each kind of rows: what the second one adds, every row
    takes. Counted are tensors that are alive at the same time, and captures of whole outputs of modules. The workspace
    of kernels is not seen. Several passes need no more, because they run one after the other.

    Where that is more than ``allowed``, the model runs on many rows too: one that divides its batch takes less. Rows
    that may run apart take what one takes at work, and what of all of them is in the reply.
    """
    if plan.rows < FEW_ROWS or plan.missing is not None:  # a pass that stops early takes less
        return 0
    try:
        one, two = _bytes_of(plan, 1), _bytes_of(plan, 2)
        row = max(1, two.most - one.most)
        if plan.rows * row > allowed:
            many = max(2, min(plan.rows, allowed // _PART // row))
            row = min(row, (_bytes_of(plan, many).most - one.most) // (many - 1))
        if plan.rows * row > allowed and _divides(plan):
            return row + plan.rows * one.replied
        return plan.rows * row
    except CutawayError:  # the request itself gets this error, in its place
        return 0


class _Bytes(NamedTuple):
    """The most bytes of all tensors at one time of a forward pass, and those of captures and outputs."""

    most: int
    replied: int


def _divides(plan: RequestPlan) -> bool:
    with plan.model.session(plan.cancellation, plan.request.arguments):
        return plan_divides(plan)


def _bytes_of(plan: RequestPlan, copies: int) -> _Bytes:
    return plan.model.remembered((kind_of_request(plan), copies), lambda: _most_bytes(plan, copies))


def kind_of_request(plan: RequestPlan) -> Hashable:
    """Returns what requests have in common whose rows take the same memory."""
    tensors = tuple((name, tensor.dtype, tensor.shape[1:]) for name, tensor in plan.inputs.items())
    return "bytes", tensors, arguments_kind(plan.request.arguments), _runs_backward(plan), tuple(_captured(plan))


def _runs_backward(plan: RequestPlan) -> bool:
    return plan.differentiates or any(method_of(part.request).runs_backward for part in plan.attributions)


def _captured(plan: RequestPlan) -> Iterator[tuple[str, bool]]:
    """Yields the modules whose whole output is kept for the reply, and weights of attention, with whether all of them
    are kept: they are computed whole."""
    for name, specs in plan.sites.items():
        is_whole = specs.get(Point.OUTPUT) in (CaptureSpec(), CaptureSpec(of_weights=True))
        if names_weights(name) or (name in plan.model.tree.modules and is_whole):
            yield name, is_whole


def _most_bytes(plan: RequestPlan, copies: int) -> _Bytes:
    """Returns the bytes of a forward pass of ``copies`` of the first row."""
    model, backward = plan.model, _runs_backward(plan)
    kept = {name: {Point.OUTPUT: CaptureSpec() if is_whole else ShapeSpec()} for name, is_whole in _captured(plan)}
    with model.session(plan.cancellation, plan.request.arguments), model.unrecorded():
        inputs = concatenated([{name: tensor[:1] for name, tensor in plan.inputs.items()}] * copies)
        if backward:
            inputs = {name: x.requires_grad_() if x.is_floating_point() else x for name, x in inputs.items()}
        with torch.set_grad_enabled(backward), LiveBytes() as live, observing(model.tree, kept) as recording:
            live.ignore([*model.module.parameters(), *model.module.buffers(), *inputs.values()])
            with recording.forward():
                outputs = model.run(inputs)
    entries = (entry for calls in recording.calls.values() for call in calls for entry in call.entries())
    captured = (part.values for *_, part in entries if part is not None and not part.values.is_meta)
    return _Bytes(live.most, sum(tensor.nbytes for tensor in (*outputs.values(), *captured)))
