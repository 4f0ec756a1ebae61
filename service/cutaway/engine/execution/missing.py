"""Names of a request that a pass did not show: errors if no input can show them, warnings if this one did not."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from cutaway.contract.errors import CutawayError, InvalidArgument, Reason, at, error
from cutaway.contract.requests import POINTS, Argument, Point
from cutaway.contract.requests.captures import WEIGHTS
from cutaway.contract.results import Warning, WarningCode
from cutaway.contract.values import near_names
from cutaway.engine.checks.row_independence import variants
from cutaway.engine.hooks.capture_spec import CaptureSpec, merge_specs
from cutaway.engine.hooks.hook_site import VALUE_POINTS
from cutaway.engine.hooks.operators import is_address, nearest_addresses, operator_matcher
from cutaway.engine.hooks.recording import RecordedCall, Recording
from cutaway.engine.hooks.tokens import position_field
from cutaway.engine.model.input_validation import unknown_input
from cutaway.engine.model.inspected_model import Inputs, Outputs
from cutaway.engine.model.module_tree import ModuleTree, is_glob
from cutaway.engine.planning.attribution_setup import embedding_hint
from cutaway.engine.planning.plan import CaptureSites, RequestPlan
from cutaway.engine.runtime.numerics import equal


def resolve_operators(plan: RequestPlan, recording: Recording) -> CaptureSites:
    """Returns the plan's sites, with globs of operators replaced by the addresses that ran.

    Raises:
        InvalidArgument: ``OP_NOT_FOUND``, where none ran.
    """
    resolved: CaptureSites = {}
    for name, specs in plan.sites.items():
        addresses = [name]
        if is_address(name):
            matches = operator_matcher(plan.model.tree, name) if is_glob(name) else None
            ran = recording.operators if matches else [name] if recording.calls[name] else []
            addresses = [address for address in ran if matches is None or matches(address)]
        if not addresses:
            raise _no_operator(name, recording, f"{next(iter(specs.values())).field}.op")
        for address in addresses:
            merge_specs(address, resolved.setdefault(address, {}), specs)
    return resolved


def _no_operator(address: str, recording: Recording, field: str) -> CutawayError:
    hint = nearest_addresses(address, list(recording.operators))
    return error(Reason.OP_NOT_FOUND, f"no operator {address!r} ran{hint}", field)


def captured_calls(calls: Sequence[RecordedCall], specs: Mapping[Point, CaptureSpec]) -> list[RecordedCall]:
    """Returns the calls of one module or operator that ``specs`` capture; all specs of one place name the same call."""
    spec = next(iter(specs.values()))
    return [call for call in calls if spec.takes(call)]


def are_left_out(calls: Sequence[RecordedCall]) -> bool:
    """Returns whether a glob leaves out all that it would capture of ``calls``, those of one module."""
    return bool(calls) and all(call.is_left_out for call in calls)


def refuse_captures(sites: CaptureSites, recording: Recording, tree: ModuleTree) -> None:
    """Refuses captures that name a call, a point or a path that does not exist for any input.

    Raises:
        InvalidArgument: ``CALL_NOT_FOUND``, ``POINT_NOT_FOUND``, ``PATH_NOT_FOUND`` or ``POINT_NOT_DIFFERENTIABLE``;
            ``AXIS_RANGE`` for a glob that leaves all out.
    """
    recorded = [(call, name, specs) for name, specs in sites.items() for call in recording.calls[name]]
    left_out = {
        specs[point].field: (name, specs[point]) for call, name, specs in recorded for point, _ in call.left_out
    }
    kept = {specs[point].field for call, _, specs in recorded for point, *_ in call.entries()} if left_out else set()
    for field, (name, spec) in left_out.items():
        if field not in kept:
            raise error(Reason.AXIS_RANGE, f"{_NO_TOKENS}, as {name!r}", f"{field}.{position_field(spec.position)}")
    for name, specs in sites.items():
        calls = captured_calls(recording.calls[name], specs)
        for point, spec in specs.items():
            taken = (path for call in calls for path in call.captured(point) if spec.matches(call, path))
            if spec.exact and next(taken, None) is None:
                with at(spec.field):
                    _refuse_call(name, spec.call, recording.calls[name])
                    _refuse_point(name, point, spec.path, calls, tree, "points")


def refuse_edits(plan: RequestPlan, recording: Recording, tree: ModuleTree) -> None:
    """Refuses edits as `refuse_captures`; after a forward pass that stopped early, what exists is not known."""
    reached = {number for number, _ in recording.edited}
    for number, place in recording.left_out if not recording.stopped_early else ():
        if number not in reached:
            field = f"edits[{number}].{position_field(plan.request.edits[number].position)}"
            raise error(Reason.AXIS_RANGE, f"{_NO_TOKENS}, as {place}", field)
    for name, edits in plan.edits.items() if not recording.stopped_early else ():
        for number, edit in edits:
            if is_glob(edit.module):  # some of whose modules may have no such point
                continue
            with at(f"edits[{number}]"):
                if is_address(name) and not recording.calls[name]:
                    raise _no_operator(name, recording, "op")
                _refuse_call(name, edit.call, recording.calls[name])
                calls = [call for call in recording.calls[name] if edit.call in (None, call.number)]
                _refuse_point(name, edit.point, edit.path, calls, tree, "point")


def _refuse_call(name: str, number: int | None, calls: Sequence[RecordedCall]) -> None:
    numbers = {call.number for call in calls}
    if number is not None and number not in numbers and None not in numbers:
        times = "never" if not calls else "once" if len(numbers) == 1 else f"{len(numbers)} times"
        raise error(Reason.CALL_NOT_FOUND, f"there is no call {number} of {name!r}: it was called {times}", "call")


def _refuse_point(
    name: str, point: Point, path: str, calls: Sequence[RecordedCall], tree: ModuleTree, field: str
) -> None:
    if not calls:
        return
    value = {Point.GRAD_INPUT: Point.INPUT, Point.GRAD_OUTPUT: Point.OUTPUT}.get(point, point)
    dtypes = [pair for call in calls for pair in call.dtypes.get(value, {}).items()]
    if not dtypes:
        verb = "takes" if value is Point.INPUT else "returns"
        raise error(Reason.POINT_NOT_FOUND, f"{name!r} {verb} no tensor: it has no {point.value}", field)
    at_path = [dtype for other, dtype in dtypes if path in ("", other)]
    if not at_path:
        paths = ", ".join(map(repr, dict(dtypes)))
        text = f"no tensor at {path!r} of the {value.value} of {name!r}; there is {paths}"
        if value is Point.OUTPUT and "Attention" in type(tree.modules.get(name)).__name__:
            text += f". The weights of fused attention are op='{name}:{WEIGHTS}#0'"
        raise error(Reason.PATH_NOT_FOUND, text, "path")
    if point.is_gradient and not any(dtype.is_floating_point or dtype.is_complex for dtype in at_path):
        text = f"the {value.value} of {name!r} is {str(at_path[0]).removeprefix('torch.')} and has no gradient"
        raise error(Reason.POINT_NOT_DIFFERENTIABLE, text + embedding_hint(tree), field)


def capture_warnings(sites: CaptureSites, recording: Recording, tree: ModuleTree) -> Iterator[Warning]:
    """Yields a warning for each place that was not called, or that had no tensor or gradient, for this input."""
    for name, specs in sites.items():
        if not recording.calls[name]:
            yield Warning(WarningCode.MODULE_NOT_CALLED, name, _why_not_called(name, tree))
            continue
        calls = captured_calls(recording.calls[name], specs)
        for point in (point for point in POINTS if point in specs):
            empty = [call for call in calls if not (call.captured(point) or call.left_out)]
            numbers = ", ".join(str(call.number) for call in empty)
            which = f"the {point.value} of call {numbers} of {name!r}"
            tokenless = dict.fromkeys(path for call in calls for other, path in call.left_out if other is point)
            if tokenless:
                text = f"the {point.value} {', '.join(tokenless)}".rstrip() + f" of {name!r} {_WITHOUT_TOKENS}"
                yield Warning(WarningCode.NO_TOKENS, name, text)
            left_out = [path for call in calls for path in _without_array(call, point, specs[point])]
            if left_out:
                paths = ", ".join(dict.fromkeys(left_out))
                text = f"the {point.value} {paths} of {name!r} {_NO_ARRAY}" if paths else f"{which} {_NO_ARRAY}"
                yield Warning(WarningCode.NOT_A_TENSOR, name, text)
            elif numbers and point.is_gradient:
                yield Warning(WarningCode.NO_GRADIENT, name, f"the target's gradient does not reach {which}")
            elif numbers:
                yield Warning(WarningCode.NOT_A_TENSOR, name, f"there is no tensor at {which}")


_NO_TOKENS = "all modules that the glob matches are without an axis of tokens"
_WITHOUT_TOKENS = "is left out: no axis of it has the tokens of each row, of which the position is one"
_NO_ARRAY = "is nested or inside torch.vmap, and no array has its values: name a module before or behind it"


def _without_array(call: RecordedCall, point: Point, spec: CaptureSpec) -> list[str]:
    """Returns the paths of tensors at ``point`` that no array can hold; of a gradient, those of its values."""
    value = VALUE_POINTS[point]
    return [path for other, path in call.without_array if other is value and spec.matches(call, path)]


def _why_not_called(name: str, tree: ModuleTree) -> str:
    parent = name.rpartition(".")[0]
    nothing = f"the model never called {name!r}: there is nothing to capture; "
    if isinstance(tree.modules[name], (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)):
        return f"{nothing}it is a container, whose members are called one by one: {name}.*"
    if isinstance(tree.modules.get(parent), nn.MultiheadAttention):
        remedy = f"capture {parent!r}, or the operator '{parent}:multi_head_attention_forward#0'"
        return f"{nothing}its parent, an nn.MultiheadAttention, uses its weights without calling it: {remedy}"
    return f"{nothing}forward did not reach it for this input, or uses its weights without calling it"


def edit_warnings(plan: RequestPlan, recording: Recording) -> Iterator[Warning]:
    """Yields a warning for each edit that changed nothing: its experiment shows nothing."""
    told: set[int] = set()
    for name, edits in plan.edits.items():
        for number, edit in edits:
            if number in told:
                continue
            told.add(number)
            receipt = recording.receipts.get(number)
            if receipt is not None and receipt.changed:
                continue
            if receipt is not None:
                why = f"the {edit.point.value} of {name!r} already was what the edit makes of it"
            elif not recording.calls[name] and recording.stopped_early:
                why = f"forward stopped before {name!r}, behind the last capture"
            elif not recording.calls[name]:
                why = f"the model never called {name!r} for this input"
            elif not edit.point.is_gradient:
                why = f"the {edit.point.value} of {name!r} {_NO_ARRAY}"
            elif not plan.differentiates:
                why = "the request needs no backward pass"
            else:
                why = f"no gradient reached the {edit.point.value} of {name!r}"
            yield Warning(WarningCode.EDIT_WITHOUT_EFFECT, f"edits[{number}]", f"the edit changed nothing: {why}")


def gradient_warnings(
    plan: RequestPlan, inputs: Mapping[str, Tensor], parameters: Mapping[str, Tensor]
) -> Iterator[Warning]:
    """Yields a warning for each gradient that the request returns and that did not arrive."""
    missing = [("input", name) for name in plan.gradients_of if name not in inputs]
    missing += [("parameter", name) for name in plan.parameters if name not in parameters]
    for kind, name in missing:
        yield Warning(WarningCode.NO_GRADIENT, name, f"the target does not depend on the {kind} {name!r}")


def comparison_warnings(plan: RequestPlan, unedited: Outputs, edited: Outputs) -> Iterator[Warning]:
    """Yields a warning if edits of values changed no prediction: the model may not use what was edited."""
    if any(plan.value_edits.values()) and unedited and all(equal(unedited[name], edited[name]) for name in unedited):
        yield Warning(
            WarningCode.EDIT_WITHOUT_EFFECT, "edits", "the edited and the unedited prediction are the same to the bit"
        )


# Inputs and arguments that a model does not read: a misspelt name vanishes in the ``**kwargs`` of a forward.
#
# Names in its signature are not tested. Any other is read if the model returns something else, or fails, without what
# was sent under it or with other values there.


def untested_names(plan: RequestPlan) -> list[str]:
    """Returns the inputs and arguments that are in no signature, and that the model is not known to read."""
    if not plan.model.takes_any_name:
        return []
    declared = {spec.name for spec in plan.model.inputs}
    sent = (*plan.inputs, *plan.request.arguments)
    return [name for name in sent if name not in declared and _key(plan, name) not in plan.model.properties]


def with_unread_inputs(plan: RequestPlan) -> RequestPlan:
    """Returns ``plan`` with what the model does not read; runs passes, which no request counts, for unknown names.

    An argument that changes nothing may be one that has its default value.

    Raises:
        InvalidArgument: ``INPUT_UNKNOWN``, if the model has names for its inputs: for a tensor, and for an argument
            with almost such a name.
    """
    unread = tuple(name for name in untested_names(plan) if not _reads(plan, name))
    known = [spec.name for spec in plan.model.inputs]
    for name in unread if known else ():
        section = "arguments" if name in plan.request.arguments else "raw" if plan.request.raw else "tensors.by_name"
        if section != "arguments" or near_names(name, known):
            with at(section), at(name):
                raise unknown_input(name, known)
    return replace(plan, unread=unread) if unread else plan


def unread_warnings(plan: RequestPlan) -> Iterator[Warning]:
    """Yields a warning for each input and argument that the model does not read."""
    for name in plan.unread:
        what = f"the model takes any names, and returns the same without {name!r}, or with other values there"
        yield Warning(WarningCode.INPUT_NOT_READ, name, f"{what}: is it the right name?")


def _key(plan: RequestPlan, name: str) -> Hashable:
    return with_unread_inputs, name, plan.model.kind_of(plan.inputs)


def _reads(plan: RequestPlan, name: str) -> bool:
    """Returns whether the model reads ``name``; if so, it is remembered."""
    model, arguments = plan.model, plan.request.arguments

    def run(inputs: Inputs, arguments: Mapping[str, Argument]) -> Outputs:
        with model.with_arguments(arguments):
            return {name: output.clone() for name, output in model.run(inputs).items()}

    if name in arguments:
        others = (_without(arguments, name), {**arguments, name: _another(arguments[name])})
        changes: list[tuple[Inputs, Mapping[str, Argument]]] = [(plan.inputs, other) for other in others]
    else:
        values = ({**plan.inputs, name: other} for other in variants(plan.inputs[name]))
        changes = [(tensors, arguments) for tensors in (_without(plan.inputs, name), *values)]
    # Each pass draws the same random numbers, so that only what was changed changes the outputs.
    with torch.no_grad(), model.unrecorded(), model.drawing_from(0):
        try:
            before = run(plan.inputs, arguments)
        except InvalidArgument:
            return True  # the request's own pass reports such a model
        if any(not _same(before, partial(run, *change)) for change in changes):
            return model.remembered(_key(plan, name), lambda: True)
    return False


T = TypeVar("T")


def _without(values: Mapping[str, T], name: str) -> dict[str, T]:
    return {other: value for other, value in values.items() if other != name}


def _same(before: Outputs, change: Callable[[], Outputs]) -> bool:
    """Returns whether a pass returns what ``before`` has; one that fails does not."""
    with suppress(InvalidArgument):
        after = change()
        return before.keys() == after.keys() and all(equal(before[name], after[name]) for name in before)
    return False


def _another(value: Argument) -> Argument:
    """Returns another value of the same type."""
    if isinstance(value, bool) or value is None:
        return not value
    return f"{value}?" if isinstance(value, str) else value + 1
