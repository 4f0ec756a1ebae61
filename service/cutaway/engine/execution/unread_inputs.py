"""Finds inputs and arguments that a model does not read: a misspelt name vanishes in the ``**kwargs`` of a forward.

Names in its signature are not tested. Any other is read if the model returns something else, or fails, without what was
sent under it or with other values there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch

from cutaway.contract.errors import InvalidArgument, at
from cutaway.contract.requests import Argument
from cutaway.contract.results import Warning, WarningCode
from cutaway.contract.values import near_names
from cutaway.engine.checks.row_independence import variants
from cutaway.engine.model.input_validation import unknown_input
from cutaway.engine.model.inspected_model import Inputs, Outputs
from cutaway.engine.planning.plan import RequestPlan
from cutaway.engine.runtime.numerics import equal


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
