"""Compares an attribution with its reference from raw hooks, and gives a verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from cutaway.contract import requests
from cutaway.contract.requests import CheckMode, CheckRequest
from cutaway.contract.results import Cause, Check, RowCheck, Verdict
from cutaway.contract.values import cached_property
from cutaway.engine.checks import completeness, model_properties
from cutaway.engine.checks.fault_location import baseline_is_input, no_gradient, unchanged, unmoved
from cutaway.engine.checks.pass_summary import GradientEffects, Mismatch, PassSummary, summarized
from cutaway.engine.methods.spec import Method
from cutaway.engine.model.inspected_model import Outputs
from cutaway.engine.passes import reference_inputs
from cutaway.engine.passes.findings import Finding
from cutaway.engine.passes.pass_recorder import AttributionProblem, CannotShare, RowRange, Values
from cutaway.engine.passes.reference_inputs import CompletenessSums, MissingObservation, Reference, exact
from cutaway.engine.runtime.numerics import CONSTANT, PART_OF_BATCH, close_unmasked


def run_checks(
    problem: AttributionProblem,
    method: Method,
    values: Values,
    summary: PassSummary,
    sums: CompletenessSums | None,
    outputs: Outputs,
    request: CheckRequest,
) -> tuple[tuple[Check, ...], Values]:
    """Compares an attribution with its reference, and with the target's change where it should sum to that.

    What rows have in common is computed once. The verdict on a part depends on its own rows only, and on properties of
    the model.

    Args:
        problem: the attribution problem.
        method: its method.
        values: Captum's attributions.
        summary: of Captum's passes, or of separate ones if the request's mode is INDEPENDENT.
        sums: both sides of completeness; None if the method has no baseline.
        outputs: what the request's first pass returned.
        request: the mode and the tolerance.

    Returns:
        The checks of each part, one part behind the other; and the reference, where the request has it returned.

    Raises:
        CannotShare: it cannot be told which part a fault belongs to.
    """
    summary.require_sound()
    own = [
        _Part(rows, problem if rows.is_whole else problem.of_rows(range(rows.start, rows.stop)))
        for rows in summary.parts
    ]
    comparison = _Comparison(problem, method, values, summary, outputs, request, sums, own)
    identities, references = comparison.checks(), comparison.whole_reference() if request.references else {}
    if sums is None or not method.adds_up(problem):
        return tuple(identities), references
    checks: list[Check] = []
    for part, identity in zip(own, identities):
        rows, its = part
        known = [completeness.spoils_sum(identity.of_row(row)) for row in range(its.rows)]
        summed = completeness.check_completeness(its, method, sums.of_rows(rows), request, comparison.dtype, known)
        if method.sums_prove_rules:
            identity = completeness.with_unproven(identity, summed, lambda check: comparison.rows_of(part, check))  # noqa: B023
        checks += identity, completeness.with_causes_of(identity, summed)
    return tuple(checks), references


_Measured: TypeAlias = reference_inputs.Distance | reference_inputs.RowDistance


class _Part(NamedTuple):
    """The rows of one request, and the attribution problem of these rows by themselves."""

    rows: RowRange
    problem: AttributionProblem


@dataclass(frozen=True)
class _Comparison:
    """An attribution of all rows that ran together: what they have in common, and facts of each row.

    Attributes:
        parts: the requests.
        separate_points: whether each point has a pass of its own.
        references: those with which parts were compared, by their first rows.

    The others are arguments of `run_checks`.
    """

    problem: AttributionProblem
    method: Method
    values: Values
    summary: PassSummary
    outputs: Outputs
    request: CheckRequest
    sums: CompletenessSums | None
    parts: Sequence[_Part]
    separate_points: bool = False
    references: dict[int, Values] = field(default_factory=dict)

    def whole_reference(self) -> Values:
        """Returns the reference of all rows; empty if there is none."""
        found = [self.references.get(part.rows.start, {}) for part in self.parts]
        known = [name for name in self.values if all(name in reference for reference in found)]
        return {name: torch.cat([reference[name] for reference in found]) for name in known}

    def rows_of(self, part: _Part, check: Check) -> Sequence[RowCheck]:
        """Returns the outcome of each row of a part, of which ``check`` may have only that of all."""
        if check.rows or part.problem.rows == 1 or not (reference := self.references.get(part.rows.start)):
            return [check.of_row(row) for row in range(part.problem.rows)]
        values = {name: part.rows.of(value) for name, value in self.values.items()}
        measured = reference_inputs.row_distances(values, exact(reference), check.tolerance, self.dtype)
        return [replace(check.of_row(0), max_relative_error=row.relative) for row in measured]

    @cached_property
    def dtype(self) -> torch.dtype:
        """The least precise data type among inputs, parameters, operators, recorded tensors and attributions."""
        tensors = [*self.values.values(), *self.problem.inputs.values(), *self.problem.model.module.parameters()]
        dtypes = {tensor.dtype for tensor in tensors} | self.summary.dtypes
        dtypes |= reference_inputs.operator_dtypes(self.problem)
        return next((dtype for dtype in _BY_PRECISION if dtype in dtypes), torch.float32)

    def checks(self) -> list[Check]:
        """Returns the check of each part, from further passes if these do not show everything."""
        tolerance = self.request.relative_tolerance
        blank = Check(
            self.method.compares(self.problem.request),
            self.request.mode, 0.0, 0.0, 0.0,
            self.method.tolerances.of(self.dtype) if tolerance is None else tolerance, Verdict.INCONCLUSIVE,
        )  # fmt: skip
        if self.request.mode is not CheckMode.SAME_PASS:
            return self._compared(blank)
        mismatches = self.summary.mismatches()
        if self.request.references and any(mismatches):  # whose passes have no reference of the method
            self._compared_again()
        by_part = [mismatches[part.rows.start : part.rows.stop] for part in self.parts]
        if all(mismatch and not mismatch.of_undefined for mismatch in mismatches):
            return [_of_other_passes(blank, blank, found, None) for found in by_part]
        undefined = self.limitation if any(mismatch and mismatch.of_undefined for mismatch in mismatches) else None
        return [_of_other_passes(blank, own, found, undefined) for own, found in zip(self._compared(blank), by_part)]

    def _compared(self, blank: Check) -> list[Check]:
        """Compares each part with its reference. Runs separate passes first where Captum's passes do not show what the
        reference needs."""
        problem, method, captums = self.problem, self.method, self.request.mode is CheckMode.SAME_PASS
        if captums and (not method.reads_captum or self._replaced_several):
            return self._compared_again()
        try:
            errors = [reference.error for reference in self.summary.references]
        except MissingObservation as missing:
            # Captum's passes do not show everything (of a layer that is called twice, say); separate passes do, but not
            # if several points share a pass and rows are not on axis 0: then each point needs a pass of its own.
            if captums:
                return self._compared_again()
            if not self.separate_points and method.reference_passes is None and method.points_per_pass(problem) > 1:
                return self._compared_again(separate_points=True)
            reason = f"the raw hooks saw nothing to compare with: {missing}"
            return [replace(blank, reason=reason, cause=Cause.NOTHING_SEEN)] * len(self.parts)
        if self.request.relative_tolerance is None:
            blank = replace(blank, tolerance=max(blank.tolerance, *errors))
        return [_PartComparison(self, part, blank).check() for part in self.parts]

    @property
    def _replaced_several(self) -> bool:
        """Whether Captum replaced the output of several calls, or of several layers, in its passes, by one value."""
        return self.method.replaces_layer and (self.summary.calls > 1 or bool(self.problem.further_layers))

    def _compared_again(self, separate_points: bool = False) -> list[Check]:
        parts = self.summary.parts
        summary = summarized(self.problem, self.method, parts, separate_points=separate_points)
        request = replace(self.request, mode=CheckMode.INDEPENDENT)
        return replace(self, summary=summary, request=request, separate_points=separate_points).checks()

    @cached_property
    def of_model(self) -> Finding | None:
        """The cause that makes every attribution of this model doubtful, whatever the rows are."""
        if random := model_properties.random_forward(self.problem):
            return random
        largest = self.summary.most_rows
        dependent = None if largest == 1 else model_properties.dependent_rows(self.problem, largest)
        if dependent and len(self.parts) > 1:
            raise CannotShare
        return dependent

    @cached_property
    def of_method(self) -> Finding | None:
        """Why the method tells nothing of this model; None if it does."""
        if self.limitation:
            reason, *own = (
                f"{each}; for this input that makes no difference"
                for each in (self.limitation.reason, *self.limitation.own)
            )
            return self.limitation._replace(reason=reason, own=tuple(own))
        return self.method.vacuous(self.problem)

    @cached_property
    def limitation(self) -> Finding | None:
        """Why Captum is wrong about this model."""
        return self.method.limitation(self.problem)

    @cached_property
    def runs_at_input(self) -> tuple[Tensor, Tensor] | None:
        """The outputs of the request's first pass and of a later one at the same input: Captum's, or else one more."""
        problem, source = self.problem, self.problem.target.source
        if not problem.target.is_neuron and source not in self.outputs:
            return None
        first = self._one_more() if problem.target.is_neuron else self.outputs[source].detach()
        later = self.summary.output_at_input
        return first.cpu(), (self._one_more() if later is None else later.detach()).cpu()

    @cached_property
    def undefined_rows(self) -> Tensor:
        """Whether the target of each row is NaN or infinite, [batch] of booleans."""
        if self.runs_at_input is None or not self.method.differentiates:
            return torch.zeros(self.problem.rows, dtype=torch.bool)
        output = self.runs_at_input[0].to(self.problem.model.device)
        return ~self.problem.target.scalars(output).isfinite().cpu()

    def _one_more(self) -> Tensor:
        """Runs another forward pass at the input, which the reply's number of passes leaves out. Returns the output of
        the target."""
        model, shared = self.problem.model, self.problem.shared
        if shared is not None and shared.again is not None:
            return shared.again
        draws = model_properties.random_forward(self.problem)
        with model.unrecorded() if draws else model.passes.uncounted(), torch.no_grad():
            output = self.problem.read(self.problem.inputs).detach()
        if shared is not None:
            shared.again = output
        return output


def _of_other_passes(
    blank: Check, own: Check, mismatches: Sequence[Mismatch | None], limitation: Finding | None
) -> Check:
    """Returns the check ``own``, with DISAGREES in each row for which Captum's passes differ from those of the method.

    Captum makes NaN of an input that is not finite. If the attribution is not finite there either, that is no fault,
    unless ``limitation`` says that the NaN is of another row.
    """
    rows = own.rows or [RowCheck(own.max_relative_error, own.verdict, own.reason, own.cause)] * len(mismatches)
    faults = [
        found and _fault_of_passes(found, row, limitation if limitation and number in limitation.rows else None)
        for number, (found, row) in enumerate(zip(mismatches, rows))
    ]
    if not any(faults):
        return own
    by_row = [
        replace(row, verdict=Verdict.DISAGREES, reason=fault.of_row(number), cause=fault.cause) if fault else row
        for number, (row, fault) in enumerate(zip(rows, faults))
    ]
    first = next(filter(None, faults))
    listed = () if all(fault == faults[0] for fault in faults) else tuple(by_row)
    return replace(blank, verdict=Verdict.DISAGREES, reason=first.reason, cause=first.cause, rows=listed)


def _fault_of_passes(found: Mismatch, row: RowCheck, limitation: Finding | None) -> Finding | None:
    if found.of_undefined and row.cause is Cause.NOT_FINITE:
        return limitation
    return Finding(Cause.OTHER_PASSES, found.reason)


@dataclass(frozen=True)
class _PartComparison:
    """The rows of one request in a comparison.

    Attributes:
        whole: the comparison.
        part: the rows.
        blank: the check without what is found here.
    """

    whole: _Comparison
    part: _Part
    blank: Check

    def check(self) -> Check:
        """Returns the verdict on these rows."""
        rows, tolerance, dtype = self.part.rows, self.blank.tolerance, self.whole.dtype
        values = {name: rows.of(value) for name, value in self.whole.values.items()}
        references = [reference.of_rows(rows) for reference in self.whole.summary.references]
        distances = ((reference_inputs.distance(values, each, tolerance, dtype), each.values) for each in references)
        worst, compared = max(distances, key=lambda one: math.inf if math.isnan(one[0].relative) else one[0].relative)
        self.whole.references.setdefault(rows.start, compared)
        if self._explains_a_constant(references):
            return replace(self.blank, reason=_CONSTANT.reason, cause=_CONSTANT.cause)
        verdict, finding = self._judge(worst)
        by_row: list[reference_inputs.RowDistance] = []
        single = self.part.problem.rows == 1 or len(references) > 1
        differ = not worst.relative <= tolerance or any(doubt.rows for doubt in self._doubts)
        if differ and not single and self._model_doubt is None:  # a defect of the model concerns every row
            by_row = reference_inputs.row_distances(values, references[0], tolerance, dtype)
        return replace(
            self.blank,
            max_absolute_error=worst.absolute,
            max_relative_error=worst.relative,
            cosine=worst.cosine,
            verdict=verdict,
            reason=finding.reason if finding else "",
            cause=finding.cause if finding else None,
            rows=completeness.row_checks(
                self.part.problem, [(row.relative, *self._judge(row, number)) for number, row in enumerate(by_row)]
            ),
        )

    def _explains_a_constant(self, references: Sequence[Reference]) -> bool:
        """Returns whether attribution and references are only rounding errors, because the target is constant.

        This concerns methods whose attributions sum to the target's change. The magnitudes of attribution and
        references must be below the rounding errors of the target's terms.
        """
        whole, rows, problem = self.whole, *self.part
        if whole.sums is None or problem.target.source not in whole.outputs or not whole.method.adds_up(problem):
            return False
        output = rows.of(whole.outputs[problem.target.source])
        terms = (problem.target.gradient_at(output) * output).detach().reshape(problem.rows, -1)
        largest = CONSTANT.of(whole.dtype) * self._masses({"": terms})
        masses = chain([rows.of(whole.sums.mass)], (self._masses(reference.values) for reference in references))
        return all(bool((mass <= largest).all() and mass.any()) for mass in masses)

    def _masses(self, values: Values) -> Tensor:
        return reference_inputs.row_sums({name: value.abs() for name, value in values.items()}, self.part.problem.rows)

    def _judge(self, measured: _Measured, row: int | None = None) -> tuple[Verdict, Finding | None]:
        """Returns the verdict on one row, or on all of them, and why it is no better."""
        if measured.relative <= self.blank.tolerance:  # False for NaN
            doubt = next((doubt for doubt in self._doubts if doubt.concerns(row)), None)
            return (Verdict.AGREES if doubt is None else Verdict.INCONCLUSIVE), doubt
        if measured.undefined or measured.rounding:
            return Verdict.INCONCLUSIVE, _UNDEFINED if measured.undefined else _cancelled(measured.relative)
        independent = self.blank.mode is CheckMode.INDEPENDENT
        if independent and (random := model_properties.random_forward(self.whole.problem) or self._drift):
            return Verdict.INCONCLUSIVE, random
        return Verdict.DISAGREES, self._fault(measured, row)

    def _fault(self, measured: _Measured, row: int | None) -> Finding:
        """Returns why attribution and reference differ."""
        if self.whole.limitation and self.whole.limitation.concerns(row):
            return self.whole.limitation
        if self._has_weights_of_trapezoids:
            return _TRAPEZOIDS
        if (calls := self.whole.summary.calls) > 1:
            return Finding(
                Cause.MODULE_REUSED,
                f"the layer was called {calls} times in one forward pass and Captum explains one call only; "
                "captures have every call",
            )
        return _UNKNOWN if math.isfinite(measured.relative) else _NOT_FINITE

    @cached_property
    def _has_weights_of_trapezoids(self) -> bool:
        """Whether the attribution matches its reference once Captum's weights, which sum to (n - 1) / n, sum to 1."""
        request, rows, dtype = self.whole.problem.request, self.part.rows, self.whole.dtype
        if getattr(request, "quadrature", None) is not requests.Quadrature.RIEMANN_TRAPEZOID:
            return False
        n_steps = cast(requests.PathAttribution, request).n_steps
        power = 1 if request.noise is None or request.noise.combination is requests.Combination.SMOOTHGRAD else 2
        scale = (n_steps / (n_steps - 1)) ** power
        scaled = {name: rows.of(value) * scale for name, value in self.whole.values.items()}
        reference = self.whole.summary.references[0].of_rows(rows)
        return (
            reference_inputs.distance(scaled, reference, self.blank.tolerance, dtype).relative <= self.blank.tolerance
        )

    @cached_property
    def _doubts(self) -> list[Finding]:
        """Why a match of attribution and reference proves nothing: of some rows first, then of every row, if at all."""
        whole, of_method = self.whole, self.whole.of_method
        of_rows = of_method if of_method and of_method.rows else None
        random = model_properties.random_forward(whole.problem)
        if doubt := random or (None if of_rows else of_method) or self._model_doubt:
            return [doubt]
        found = (
            of_rows,
            self._not_finite(),
            baseline_is_input(self.part.problem),
            *self._doubts_of_effects(),
            self._rounded(),
        )
        return [doubt for doubt in found if doubt]

    def _not_finite(self) -> Finding | None:
        """Finds rows whose target is no number: a finite gradient beside it, such as that of a ReLU, proves nothing."""
        rows = self.part.rows.of(self.whole.undefined_rows)
        if not bool(rows.any()):
            return None
        return Finding.of_rows(
            Cause.NOT_FINITE, rows, lambda which: f"the target of {which} is NaN or infinite: nothing explains that"
        )

    def _doubts_of_effects(self) -> Iterator[Finding]:
        """Yields why a match proves nothing in some rows: the target or the layer never changed, or no gradient had an
        effect."""
        whole, method, of, problem = self.whole, self.whole.method, self.part.rows.of, self.part.problem
        summary = whole.summary
        moves = of(summary.moves) if method.forward_only else torch.ones(1, dtype=torch.bool)
        stays = isinstance(whole.problem.request, _EXCHANGES_ROWS) and bool(moves.any())  # a row in its own place
        if not (stays or bool(moves.all())):
            yield unchanged(~moves)
        if not bool((moves := of(summary.layer_moves)).all()):
            yield unmoved(problem, ~moves)
        zero = ~of(summary.has_gradient) if method.runs_backward else torch.zeros(1, dtype=torch.bool)
        if bool(zero.all()) or (bool(zero.any()) and method.reference_passes is not None):
            yield no_gradient(problem, zero)
        elif method.runs_backward and method.reference_passes is None:
            yield from completeness.saturated(problem, GradientEffects(*map(of, summary.effects)))

    def _rounded(self) -> Finding | None:
        """Finds rows whose attributions, differences of the target, are hardly larger than its rounding errors.

        What a surrogate is fitted to is judged with its own reference.
        """
        whole, rows = self.whole, self.part.rows
        if not whole.method.forward_only or isinstance(whole.problem.request, requests.Surrogate):
            return None
        values = whole.summary.references[0].of_rows(rows).values.values()
        if any(len(value) != self.part.problem.rows or not value.numel() for value in values):
            return None
        largest = torch.stack([value.reshape(len(value), -1).abs().amax(dim=1).cpu() for value in values]).amax(dim=0)
        rounding = CONSTANT.of(whole.dtype) * rows.of(whole.summary.largest_target)
        lost = (rounding > _NOTICED * largest) & (largest > 0) & rounding.isfinite()
        return Finding.of_rows(Cause.CANCELLATION, lost, _ROUNDED.format) if bool(lost.any()) else None

    @cached_property
    def _model_doubt(self) -> Finding | None:
        """The cause that makes every attribution of this model doubtful."""
        if doubt := self.whole.of_model or self._drift:
            return doubt
        differentiates = self.whole.method.runs_backward
        return model_properties.wrong_backward(self.part.problem, self.whole.problem) if differentiates else None

    @cached_property
    def _drift(self) -> Finding | None:
        """The finding that a later pass at the same input returned other values than the first; None if it did not."""
        if self.whole.runs_at_input is None:
            return None
        first, later = map(self.part.rows.of, self.whole.runs_at_input)
        tolerances = PART_OF_BATCH.computed_in(reference_inputs.operator_dtypes(self.part.problem))
        return None if close_unmasked(first, later, tolerances) else _DRIFTED


_NOTICED = 0.05
"""The part of a row's largest attribution from which on errors are told."""

_ROUNDED = (
    "the effects in {} are small beside the target, whose rounding errors may be more than five percent of the largest "
    "at this precision; load the model in float64, or explain a target without a large constant"
)

_EXCHANGES_ROWS = (requests.FeaturePermutation, requests.LayerFeaturePermutation)

_BY_PRECISION = (torch.bfloat16, torch.float16, torch.float32, torch.float64)

_DRIFTED = Finding(
    Cause.RANDOM_FORWARD,
    "a later pass on the same input returned other values than the first: the model keeps something that changes from "
    "call to call (a counter, a cache, running statistics); make its forward a function of its inputs",
)
_UNDEFINED = Finding(
    Cause.NOT_FINITE, "attribution and reference are not finite in the same places: there is nothing to compare there"
)
_NOT_FINITE = Finding(
    Cause.NOT_FINITE,
    "attribution or reference is not finite where the other is, or their shapes differ; do not rely on it",
)
_UNKNOWN = Finding(Cause.UNKNOWN, "the attribution differs from its reference from raw hooks; do not rely on it")

_TRAPEZOIDS = Finding(
    Cause.QUADRATURE_WEIGHTS,
    "Captum's weights of the trapezoidal rule sum to (n_steps - 1) / n_steps and not to 1, and its attributions are "
    "too small by that factor; use another quadrature",
)

_CONSTANT = Finding(
    Cause.CANCELLATION,
    "the target is constant up to rounding: the attributions, whose terms cancel, are smaller than its rounding errors "
    "and explain nothing",
)


def _cancelled(relative: float) -> Finding:
    share = f"{relative:.2%}" if relative < 1 else "all"
    return Finding(
        Cause.CANCELLATION,
        f"the terms of the attribution cancel: rounding errors are {share} of what is left of them at this precision",
    )
