"""Compares an attribution with its reference from raw hooks, and gives a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import torch
from torch import Tensor

from cutaway.contract.requests import POINTS, CheckMode, CheckRequest, Expectation, Point, Surrogate
from cutaway.contract.results import Cause, Check, Verdict
from cutaway.engine.checks import diagnosis, model_properties
from cutaway.engine.checks.completeness import check_completeness, row_checks
from cutaway.engine.checks.forward_mode import operator_dtypes
from cutaway.engine.checks.visited_points import pass_mismatch, row_list, saturated
from cutaway.engine.methods.spec import Method
from cutaway.engine.model.inspected_model import Outputs
from cutaway.engine.passes.convergence_delta import CompletenessSums, row_sums
from cutaway.engine.passes.findings import Finding
from cutaway.engine.passes.pass_recorder import AttributionProblem, Pass, Values
from cutaway.engine.passes.reference_inputs import Evidence, MissingObservation, Reference
from cutaway.engine.references.comparison import Distance, RowDistance, distance, row_distances
from cutaway.engine.references.observation import target_values
from cutaway.engine.runtime.numerics import CONSTANT, PART_OF_BATCH, close_unmasked


def run_checks(
    problem: AttributionProblem,
    method: Method,
    values: Values,
    passes: Sequence[Pass],
    sums: CompletenessSums | None,
    outputs: Outputs,
    request: CheckRequest,
) -> tuple[Check, ...]:
    """Compares an attribution with its reference, and with the target's change where it should sum to that.

    See `_Comparison` for the arguments; ``sums`` has both sides of that sum, None if the method has no baseline.
    """
    comparison = _Comparison(problem, method, values, passes, outputs, request, sums)
    identity = comparison.check()
    if sums is None or not method.adds_up(problem):
        return (identity,)
    completeness = check_completeness(problem, method, sums, request, comparison.dtype)
    unexplained = identity.verdict is Verdict.AGREES and completeness.cause is Cause.UNKNOWN
    if unexplained and method.sums_prove_rules(problem):
        # Neither Captum nor the reference has a rule for some operation: then an agreement proves nothing.
        identity = replace(identity, verdict=Verdict.INCONCLUSIVE, reason=_NO_RULE.reason, cause=_NO_RULE.cause)
    return identity, completeness


@dataclass(frozen=True)
class _Comparison:
    """An attribution, and the passes from which its reference is computed.

    Attributes:
        problem: the attribution problem.
        method: its method.
        values: Captum's attributions.
        passes: Captum's passes, or separate ones if the request's mode is INDEPENDENT.
        outputs: what the request's first pass returned.
        request: the mode and the tolerance.
        sums: both sides of completeness; None without a baseline.
        separate_points: whether each point has a pass of its own.
    """

    problem: AttributionProblem
    method: Method
    values: Values
    passes: Sequence[Pass]
    outputs: Outputs
    request: CheckRequest
    sums: CompletenessSums | None = None
    separate_points: bool = False

    @cached_property
    def dtype(self) -> torch.dtype:
        """The least precise data type among inputs, parameters, operators, recorded tensors and attributions."""
        tensors = [*self.values.values(), *self.problem.inputs.values(), *self.problem.model.module.parameters()]
        for recorded in self.passes:
            tensors += [] if recorded.cotangent is None else [recorded.cotangent]
            tensors += [tensor for call in recorded.layer for point in POINTS for tensor in call.at(point).values()]
        dtypes = {tensor.dtype for tensor in tensors} | operator_dtypes(self.problem)
        return next((dtype for dtype in _BY_PRECISION if dtype in dtypes), torch.float32)

    def check(self) -> Check:
        """Returns the verdict, from further passes if these do not show everything."""
        problem, method, passes = self.problem, self.method, self.passes
        tolerance = self.request.relative_tolerance
        tolerance = method.tolerances.of(self.dtype) if tolerance is None else tolerance
        blank = Check(
            f"Captum's {type(problem.request).__name__} with {method.formula}",
            self.request.mode, 0.0, 0.0, 0.0, tolerance, Verdict.INCONCLUSIVE,
        )  # fmt: skip
        captums = self.request.mode is CheckMode.SAME_PASS
        if captums and (mismatch := pass_mismatch(problem, method.points(problem), passes)):
            return replace(blank, verdict=Verdict.DISAGREES, reason=mismatch, cause=Cause.OTHER_PASSES)
        if captums and method.reference_passes is not None:
            return self._check_again()
        calls = max(1, len(passes[-1].layer)) if passes else 1
        try:
            references = [method.reference(Evidence(problem, passes, call)) for call in range(calls)]
        except MissingObservation as missing:
            # Captum's passes do not show everything (of a layer that is called twice, say); separate passes do, but not
            # if several points share a pass and rows are not on axis 0: then each point needs a pass of its own.
            if captums:
                return self._check_again()
            if not self.separate_points and method.reference_passes is None and method.points_per_pass(problem) > 1:
                return self._check_again(separate_points=True)
            reason = f"the raw hooks saw nothing to compare with: {missing}"
            return replace(blank, reason=reason, cause=Cause.NOTHING_SEEN)
        if self.request.relative_tolerance is None:
            tolerance = max(tolerance, *(each.error for each in references))
            blank = replace(blank, tolerance=tolerance)
        if self._explains_a_constant(references):
            return replace(blank, reason=_CONSTANT.reason, cause=_CONSTANT.cause)
        distances = (distance(self.values, each, tolerance, self.dtype) for each in references)
        worst = max(distances, key=lambda each: math.inf if math.isnan(each.relative) else each.relative)
        verdict, finding = self._judge(worst, tolerance, calls)
        rows: list[RowDistance] = []
        by_row = problem.rows > 1 and calls == 1 and not (worst.relative <= tolerance or worst.undefined)
        if by_row and self._model_doubt() is None:  # a defect of the model concerns every row
            rows = row_distances(self.values, references[0], tolerance, self.dtype)
        return replace(
            blank,
            max_absolute_error=worst.absolute,
            max_relative_error=worst.relative,
            cosine=worst.cosine,
            verdict=verdict,
            reason=finding.reason if finding else "",
            cause=finding.cause if finding else None,
            rows=row_checks(problem, [(row.relative, *self._judge(row, tolerance, calls)) for row in rows]),
        )

    def _explains_a_constant(self, references: Sequence[Reference]) -> bool:
        """Whether attribution and references, which sum to the target's change, are smaller than the rounding errors of
        the terms of the target: then both consist of those."""
        output = self.outputs.get(self.problem.target.source)
        if self.sums is None or output is None or not self.method.adds_up(self.problem):
            return False
        terms = (self.problem.target.gradient_at(output) * output).detach().reshape(self.problem.rows, -1)
        largest = CONSTANT.of(self.dtype) * self._masses({"": terms})
        masses = chain([self.sums.mass], (self._masses(each.values) for each in references))
        return all(bool((mass <= largest).all() and mass.any()) for mass in masses)

    def _masses(self, values: Values) -> Tensor:
        return row_sums({name: value.abs() for name, value in values.items()}, self.problem.rows)

    def _check_again(self, separate_points: bool = False) -> Check:
        passes = self.method.passes(self.problem, separate_points=separate_points)
        request = replace(self.request, mode=CheckMode.INDEPENDENT)
        return replace(self, passes=passes, request=request, separate_points=separate_points).check()

    def _judge(self, measured: Distance | RowDistance, tolerance: float, calls: int) -> tuple[Verdict, Finding | None]:
        if measured.relative <= tolerance:  # False for NaN
            return (Verdict.AGREES if self._doubt is None else Verdict.INCONCLUSIVE), self._doubt
        if measured.undefined or measured.rounding:
            return Verdict.INCONCLUSIVE, _UNDEFINED if measured.undefined else _cancelled(measured.relative)
        if (open_fit := self.method.vacuous(self.problem)) and open_fit.cause is Cause.UNDERDETERMINED:
            return Verdict.INCONCLUSIVE, open_fit
        independent = self.request.mode is CheckMode.INDEPENDENT
        if independent and (random := model_properties.random_forward(self.problem) or self._drift):
            return Verdict.INCONCLUSIVE, random
        return Verdict.DISAGREES, self._fault(measured, calls)

    def _fault(self, measured: Distance | RowDistance, calls: int) -> Finding:
        """Returns why attribution and reference differ."""
        if limitation := self.method.limitation(self.problem):
            return limitation
        if calls > 1:
            return Finding(
                Cause.MODULE_REUSED,
                f"the layer was called {calls} times in one forward pass and Captum explains one call only; captures "
                "have every call",
            )
        return _UNKNOWN if math.isfinite(measured.relative) else _NOT_FINITE

    @cached_property
    def _doubt(self) -> Finding | None:
        """Why a match of attribution and reference proves nothing; None if it does."""
        problem, method, passes = self.problem, self.method, self.passes
        if random := model_properties.random_forward(problem):
            return random
        if limitation := method.limitation(problem):
            return Finding(limitation.cause, f"{limitation.reason}; for this input that makes no difference")
        if doubt := method.vacuous(problem) or self._model_doubt() or _baseline_is_input(problem):
            return doubt
        if method.forward_only and _target_unchanged(problem, passes):
            return _UNCHANGED
        if method.runs_backward and _no_gradient(passes):
            return diagnosis.no_gradient(problem)
        return saturated(problem, passes) if method.runs_backward and method.reference_passes is None else None

    @cached_property
    def _drift(self) -> Finding | None:
        """Compares the request's first pass with a later one at the same input: Captum's, or else one more."""
        problem, source = self.problem, self.problem.target.source
        if not problem.target.is_neuron and source not in self.outputs:
            return None
        first = self._one_more() if problem.target.is_neuron else self.outputs[source].detach()
        later = next((recorded.output for recorded in self._later if _is_at_input(problem, recorded)), None)
        later = self._one_more() if later is None else later.detach()
        return None if close_unmasked(first.cpu(), later.cpu(), PART_OF_BATCH) else _DRIFTED

    @property
    def _later(self) -> Sequence[Pass]:
        """The passes that may show that the model changes: of many without gradients, the first would not."""
        if self.problem.target.is_neuron:
            return self.passes
        many = self.method.forward_only and len(self.passes) >= _MANY
        apart = isinstance(self.problem.request, Surrogate)  # whose rows run each by itself
        return () if many or apart else self.passes

    def _one_more(self) -> Tensor:
        with model_properties.unrecorded(self.problem), torch.no_grad():
            return self.problem.read(self.problem.inputs).detach()

    def _model_doubt(self) -> Finding | None:
        """Returns what makes every attribution of this model doubtful."""
        if random := model_properties.random_forward(self.problem):
            return random
        alone = bool(self.passes) and all(recorded.rows == 1 for recorded in self.passes)
        if not alone and (dependent := model_properties.dependent_rows(self.problem)):
            return dependent
        if self._drift:
            return self._drift
        return model_properties.wrong_backward(self.problem) if self.method.runs_backward else None


_MANY = 8
"""One pass more is little beside so many."""

_BY_PRECISION = (torch.bfloat16, torch.float16, torch.float32, torch.float64)

_DRIFTED = Finding(
    Cause.RANDOM_FORWARD,
    "a later pass on the same input returned other values than the first: the model keeps something that changes from "
    "call to call (a counter, a cache, running statistics); make its forward a function of its inputs",
)
_NO_RULE = Finding(
    Cause.FUNCTIONAL_NONLINEARITY,
    "the attributions do not sum to the target's change, as they must if the method had a rule for each operation: "
    "some operation is neither linear nor a nonlinearity that has one (a product of activations, a normalisation, a "
    "function of the model's own), and its plain gradient was used",
)
_UNDEFINED = Finding(
    Cause.NOT_FINITE, "attribution and reference are not finite in the same places: no gradient exists there"
)
_UNCHANGED = Finding(
    Cause.NOTHING_CHANGED,
    "the target is exactly the same in every pass: it does not depend on the replaced features, or their replacement "
    "equals them",
)
_NOT_FINITE = Finding(
    Cause.NOT_FINITE,
    "attribution or reference is not finite where the other is, or their shapes differ; do not rely on it",
)
_UNKNOWN = Finding(Cause.UNKNOWN, "the attribution differs from its reference from raw hooks; do not rely on it")


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


def _is_at_input(problem: AttributionProblem, recorded: Pass) -> bool:
    points = recorded.points
    return all(torch.equal(points[name], problem.inputs[name].detach().cpu()) for name in problem.explained)


def _baseline_is_input(problem: AttributionProblem) -> Finding | None:
    pairs = [(problem.inputs[name], baseline) for name, baseline in problem.baselines.items()]
    if not pairs or isinstance(problem.request, Expectation):
        return None
    same = torch.stack([(x == baseline).reshape(problem.rows, -1).all(dim=1) for x, baseline in pairs]).all(dim=0)
    if not bool(same.any()):
        return None
    return Finding(
        Cause.BASELINE_IS_INPUT,
        f"the baseline equals the input in {row_list(same)}: there is no difference to explain; choose another "
        "baseline",
    )


def _target_unchanged(problem: AttributionProblem, passes: Sequence[Pass]) -> bool:
    targets = target_values(Evidence(problem, passes))
    return torch.equal(targets[1:], targets[:1].expand_as(targets[1:]))


def _no_gradient(passes: Sequence[Pass]) -> bool:
    gradients = [gradient for recorded in passes for gradient in recorded.gradients.values()]
    calls = [call for recorded in passes for call in recorded.layer]
    gradients += [gradient for call in calls for gradient in call.at(Point.GRAD_OUTPUT).values()]
    return not any(bool(gradient.any()) for gradient in gradients)
