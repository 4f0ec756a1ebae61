"""What lets the main pass serve several requests: which of them may share it, one plan for all, and its parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cutaway.contract.module_globs import is_glob
from cutaway.contract.requests import InspectRequest, Neuron, Point, TopK
from cutaway.engine.hooks.capture_spec import CapturedValues, CaptureSpec
from cutaway.engine.hooks.recording import RecordedCall, Recording
from cutaway.engine.passes.repeated_batch import RowRange, concatenated
from cutaway.engine.planning.name_resolution import CaptureSites
from cutaway.engine.planning.plan import Plan
from cutaway.engine.runtime.pytree import Path


def may_share(request: InspectRequest) -> bool:
    """Whether the main pass of ``request`` may serve other requests too.

    Edits make it a pass of another model; gradients of parameters are sums over the batch; a top-k target takes several
    backward passes; a neuron is read inside the model; which operators a glob names is known only afterwards.
    """
    return not (
        request.dry_run
        or request.edits
        or isinstance(request.target, (TopK, Neuron))
        or any(capture.parameter or (capture.op and is_glob(capture.op)) for capture in request.captures)
    )


def joint_plan(plans: Sequence[Plan]) -> Plan:
    """Returns one plan that does what all ``plans`` do, for the rows of all of them; of one plan, that plan."""
    if len(plans) == 1:
        return plans[0]
    all_stop = all(plan.missing is not None for plan in plans)
    return replace(
        plans[0],
        inputs=concatenated([plan.inputs for plan in plans]),
        sites=_merged([plan.hook_sites for plan in plans]),
        gradients_of=tuple(dict.fromkeys(name for plan in plans for name in plan.gradients_of)),
        missing={place for plan in plans for place in plan.missing or ()} if all_stop else None,
    )


def _merged(several: Iterable[CaptureSites]) -> CaptureSites:
    """Where two requests want different parts of one tensor, all of it is captured, and cut afterwards."""
    merged: CaptureSites = {}
    for sites in several:
        for name, specs in sites.items():
            taken = merged.setdefault(name, {})
            for point, spec in specs.items():
                taken[point] = _of_all_rows(spec) if taken.get(point) in (None, spec) else CaptureSpec()
    return merged


def _of_all_rows(spec: CaptureSpec) -> CaptureSpec:
    """A spec that takes some rows means those of its own request, which are cut out afterwards."""
    return CaptureSpec() if any(part.axis <= 0 for part in spec.slices) else spec


def recording_of(recording: Recording, plan: Plan, joint: Plan, rows: RowRange) -> Recording:
    """Returns what the request of ``plan`` would have recorded alone; it has the rows ``rows`` of the joint pass.

    Raises:
        CannotShare: axis 0 of a captured tensor is not the batch.
    """
    if plan is joint:
        return recording
    own = Recording()
    for name, specs in plan.hook_sites.items():
        own.calls[name] = [_call_of(call, specs, joint.sites[name], rows) for call in recording.calls[name]]
    return own


def _call_of(
    call: RecordedCall, specs: Mapping[Point, CaptureSpec], taken: Mapping[Point, CaptureSpec], rows: RowRange
) -> RecordedCall:
    own = RecordedCall(call.number)
    own.dtypes = call.dtypes
    for point, path, part in _parts(call, specs, taken, rows):
        own.store(point, path, part)
    return own


def _parts(
    call: RecordedCall, specs: Mapping[Point, CaptureSpec], taken: Mapping[Point, CaptureSpec], rows: RowRange
) -> Iterable[tuple[Point, Path, CapturedValues | None]]:
    for point, path, part in call.entries():
        if point in specs and specs[point].matches(call.number, path):
            yield point, path, None if part is None else _part(part.map(rows.of), specs[point], taken[point])


def _part(part: CapturedValues, spec: CaptureSpec, taken: CaptureSpec) -> CapturedValues:
    return part if spec == taken else spec.apply(part.values, "a capture")  # it fails alone
