"""`Method`: the type of a row of the table of attribution methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from cutaway.engine.model.inspected_model import Inputs, InspectedModel
from cutaway.engine.passes.finding import Finding
from cutaway.engine.passes.pass_recorder import AttributionProblem, Changes, Pass, Values, run_passes
from cutaway.engine.passes.reference_inputs import Evidence, Reference, input_point
from cutaway.engine.runtime.numerics import APPROXIMATE, ONE_PASS, Tolerances


@dataclass(frozen=True)
class Method:
    """One attribution method: how to call Captum, and what its result must equal.

    Attributes:
        captum: the Captum class.
        reference: computes the reference attribution from raw hook outputs.
        formula: the reference in words, for the documentation and for check results.
        points: the inputs at which Captum must run the model, in order.
        init_arguments: keyword arguments for the Captum class, from the request.
        attribute_arguments: keyword arguments for its ``attribute`` method.
        differentiates: whether the method has a target.
        takes_target: whether Captum can select the target by itself. LayerFeaturePermutation of Captum 0.9 selects it a
            second time from what it has selected, and so gets a function that returns the target's values instead.
        forward_only: whether it runs forward passes only, on changed inputs.
        uses_randomness: whether it draws random numbers, and therefore needs a seed.
        vacuous: why a result of this method carries no information for this problem; None if it does.
        standard_errors: for methods that estimate from draws: the standard error of each attribution.
        satisfies_completeness: whether attributions sum to the target's change from the baseline.
        completeness_tolerances: the largest error of that sum, as a fraction of the sum of the attributions'
            magnitudes.
        sums_prove_rules: whether completeness holds exactly if the method has a rule for each operation of the model.
        satisfies_conservation: whether attributions sum to the target itself, except for what biases absorb (LRP).
        tolerances: the largest relative error between Captum's attribution and the reference.
        points_per_pass: how many points Captum runs in one pass.
        repetitions: how many times Captum repeats the method, each time in passes of its own; ``points`` lists the
            points of all repetitions.
        batchable: whether Captum's passes process each row independently, so that several requests can share them.
        reference_passes: runs separate passes for the reference. Needed where Captum overrides gradients: its own
            passes cannot prove that the override happened. None: any passes that visit ``points`` serve.
        limitation: what Captum computes wrongly or omits for this model, so that even a match with the reference proves
            nothing; None if there is nothing.
        applies_to_modules: whether Captum needs an ``nn.Module`` instead of a function, because it hooks submodules.
        explains_neuron: whether a neuron is explained instead of the target.
        refuse: raises for parameters, inputs and edits that the method does not support, before anything runs. Field
            names in errors are relative to the method's message.
        refuse_features: raises, as ``refuse``, for a number of perturbed features that the method does not support.
        model_context: a context that prepares the model for Captum and restores it.
    """

    captum: Callable[..., Any]
    reference: Callable[[Evidence], Reference]
    formula: str
    points: Callable[[AttributionProblem], list[Values]] = input_point
    init_arguments: Callable[[Any], dict[str, Any]] = lambda _: {}
    attribute_arguments: Callable[[AttributionProblem], dict[str, Any]] = lambda _: {}
    differentiates: bool = True
    takes_target: bool = True
    forward_only: bool = False
    uses_randomness: bool = False
    vacuous: Callable[[AttributionProblem], Finding | None] = lambda _: None
    standard_errors: Callable[[AttributionProblem], Values] = lambda _: {}
    satisfies_completeness: Callable[[Any], bool] = lambda _: False
    completeness_tolerances: Tolerances = APPROXIMATE
    sums_prove_rules: Callable[[AttributionProblem], bool] = lambda _: False
    satisfies_conservation: bool = False
    tolerances: Tolerances = ONE_PASS
    points_per_pass: Callable[[AttributionProblem], int] = lambda _: 1
    repetitions: Callable[[AttributionProblem], int] = lambda _: 1
    batchable: bool = False
    reference_passes: Callable[[AttributionProblem], Sequence[Pass]] | None = None
    limitation: Callable[[AttributionProblem], Finding | None] = lambda _: None
    applies_to_modules: bool = False
    explains_neuron: bool = False
    refuse: Callable[[InspectedModel, Any, Inputs, Changes], None] = lambda *_: None
    refuse_features: Callable[[Any, int], None] = lambda *_: None
    model_context: Callable[[AttributionProblem], AbstractContextManager[None]] = lambda _: nullcontext()

    def passes(self, problem: AttributionProblem, *, separate_points: bool = False) -> Sequence[Pass]:
        """Runs separate passes for the reference. ``separate_points``: each point in a pass of its own."""
        if self.reference_passes is not None:
            return self.reference_passes(problem)
        points = self.points(problem)
        together = 1 if separate_points else self.points_per_pass(problem)
        repetition = len(points) // self.repetitions(problem)
        passes: list[Pass] = []
        for first in range(0, len(points), repetition):
            chunk = points[first : first + repetition]
            passes += run_passes(
                problem, chunk, self.runs_backward, to_inputs=not problem.layer, points_per_pass=together
            )
        return passes

    def adds_up(self, problem: AttributionProblem) -> bool:
        """Whether the attributions of ``problem`` must sum to the target, or to its change from the baseline."""
        complete = bool(problem.baselines) and self.satisfies_completeness(problem.request)
        return self.satisfies_conservation or complete

    @property
    def has_target(self) -> bool:
        """Whether the request's target is explained."""
        return self.differentiates and not self.explains_neuron

    @property
    def runs_backward(self) -> bool:
        """Whether the method computes gradients."""
        return self.differentiates and not self.forward_only


def passes_at(
    points: Callable[[AttributionProblem], list[Values]],
    points_per_pass: Callable[[AttributionProblem], int] = lambda _: 1,
) -> Callable[[AttributionProblem], Sequence[Pass]]:
    """Returns a value for ``reference_passes``: separate passes, with gradients, at ``points``.

    Methods that explain a neuron need them: Captum's passes do not show at which neuron a backward pass began.
    """
    return lambda problem: run_passes(
        problem, points(problem), differentiate=True, points_per_pass=points_per_pass(problem)
    )
