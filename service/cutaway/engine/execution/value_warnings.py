"""Warnings about the values of inputs and outputs: far from an adapter's, not finite, or equal to their baseline."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from cutaway.contract.requests.perturbations import BaselinePerturbation
from cutaway.contract.results import InspectResult, Warning, WarningCode
from cutaway.contract.values import changed
from cutaway.engine.execution.main_pass import MainPass
from cutaway.engine.model.failures import column_names
from cutaway.engine.model.inspected_model import Outputs
from cutaway.engine.passes.findings import row_list
from cutaway.engine.passes.pass_recorder import CannotShare, ResolvedAttribution, consecutive
from cutaway.engine.planning.embedded_inputs import known_embedded
from cutaway.engine.planning.plan import RequestPlan


def value_warnings(main: MainPass, target_values: Tensor | None) -> list[Warning]:
    """Returns the warnings about inputs, and about what the ``main`` pass returned; ``target_values`` are its own.

    Raises:
        CannotShare: several requests were joined, and some have a warning: see `with_own_warnings`.
    """
    found = [*_warnings(main.plan, main.outputs, target_values)]
    if found and len(main.plan.parts) > 1:
        raise CannotShare
    return found


def with_own_warnings(
    answers: list[InspectResult], main: MainPass, plans: Sequence[RequestPlan]
) -> list[InspectResult]:
    """Returns ``answers``, of ``plans`` that the ``main`` pass joined, with the warnings of each; of one as it is."""
    if len(plans) < 2:
        return answers
    outputs = {name: output for name, output in main.outputs.items() if output.shape[:1] == (main.plan.rows,)}
    values, found = main.target_values, list[InspectResult]()
    for answer, plan, rows in zip(answers, plans, consecutive([plan.rows for plan in plans])):
        own = {name: rows.of(output) for name, output in outputs.items()}
        further = _warnings(plan, own, None if values is None else rows.of(values))
        found.append(changed(answer, warnings=(*answer.warnings, *further)))
    return found


def _warnings(plan: RequestPlan, outputs: Outputs, target_values: Tensor | None) -> Iterator[Warning]:
    yield from _far_inputs(plan)
    yield from _not_finite(plan, outputs, target_values)
    for number, attribution in zip(plan.numbers, plan.attributions):
        for text in _equal_to_baseline(attribution):
            yield Warning(WarningCode.EQUALS_BASELINE, f"attributions[{number}].baselines", text)


def _far_inputs(plan: RequestPlan) -> Iterator[Warning]:
    """Yields a warning for each input that has numbers far outside of those that the adapter makes of pictures."""
    for name, (low, high) in plan.model.ranges.items():
        tensor = plan.inputs.get(name)
        if tensor is None or plan.request.raw:
            continue
        largest = tensor.nan_to_num(nan=-math.inf).max().item()
        if not largest > high + _FAR * (high - low):
            continue
        takes = f"this model takes pixels from {low:.3g} to {high:.3g}, as its adapter makes them"
        remedy = "send the file or a Pillow image without a name, or scale the array as the adapter does"
        yield Warning(WarningCode.INPUT_RANGE, name, f"the largest number is {largest:g}, and {takes}: {remedy}")


_FAR = 4
"""How many times the range of pixels a number lies above it that has a warning: pixels from 0 to 255 are further."""


def _not_finite(plan: RequestPlan, outputs: Outputs, target_values: Tensor | None) -> Iterator[Warning]:
    """Yields a warning for each output that is NaN in some rows, and one for other rows whose target is not finite.

    An infinity in an output may be meant, such as the logit of a class that is not allowed. So may NaN at the tokens or
    the pixels of a mask: of an output with several axes behind its rows, a row counts that has nothing else.
    """
    suspects = {name: output for name, output in outputs.items() if not _is_finite(output)}
    if not suspects and (target_values is None or _is_finite(target_values)):
        return
    told = torch.zeros(plan.rows, dtype=torch.bool)
    for name, output in suspects.items():
        if output.shape[:1] != told.shape or not bool(output.isnan().any()):
            continue
        by_row = output.isnan().reshape(len(told), -1).cpu()
        rows = by_row.any(dim=1) if output.ndim <= _TABLE else by_row.all(dim=1)
        if bool(rows.any()):
            told |= rows
            yield Warning(WarningCode.NOT_FINITE, name, f"the output is NaN in {_in_words(rows)}{_source(plan)}")
    if target_values is not None:
        rows = ~(target_values.isfinite().reshape(len(told), -1).all(dim=1).cpu() | told)
        if bool(rows.any()):
            text = f"the target is NaN or infinite in {_in_words(rows)}{_source(plan)}"
            yield Warning(WarningCode.NOT_FINITE, "target", text)


def _is_finite(tensor: Tensor) -> bool:
    """Returns whether the sum of ``tensor`` tells that all its numbers are finite; one that overflows does not."""
    has_sum = tensor.is_floating_point() and tensor.itemsize > 1  # which float8 and complex halves have not
    return (
        bool(abs(tensor.sum().item()) < math.inf)
        if has_sum
        else not (tensor.is_floating_point() or tensor.is_complex())
    )


def _in_words(rows: Tensor) -> str:
    return row_list(rows.nonzero().flatten().tolist(), len(rows))


def _source(plan: RequestPlan) -> str:
    floats = (name for name, tensor in plan.inputs.items() if tensor.is_floating_point())
    name = next((name for name in floats if not bool(plan.inputs[name].isfinite().all())), None)
    if name is not None:
        return f", and so are numbers of the input {name!r}: fill them in, or leave these rows out"
    return ": capture modules to see where this begins"


_TABLE = 2
"""The most axes of an output with one kind of numbers in each row."""


def _equal_to_baseline(attribution: ResolvedAttribution) -> Iterator[str]:
    """Yields, in words, the categories that equal the baseline that they have by default: the id 0 is a category as any
    other, so that a zero there says nothing of it.

    These are columns of a table, or one number a row: in a text, the id 0 is mostly padding.
    """
    request, model = attribution.request, attribution.model
    if not isinstance(request, BaselinePerturbation):
        return
    chosen = attribution.explained if "" in request.baselines else request.baselines
    for name in known_embedded(model, attribution.inputs).intersection(attribution.explained).difference(chosen):
        by_row = attribution.inputs[name].reshape(attribution.rows, -1)
        columns = column_names(model.inputs, name, by_row.shape[1])
        equal = by_row == attribution.baselines[name].reshape(attribution.rows, -1)
        for number, column in enumerate(columns or [name] * (by_row.shape[1] == 1)):
            if bool((rows := equal[:, number]).any()):
                same = f"{column!r} is 0 in {_in_words(rows)}, which is its baseline too"
                remedy = f"choose another category as the baseline, such as baselines={{{name!r}: ...}}"
                yield f"{same}: nothing is replaced there, and a zero says nothing of it; {remedy}"
