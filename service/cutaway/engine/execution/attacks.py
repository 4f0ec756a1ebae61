"""Runs attacks by Captum's classes, holds them against raw gradients, and tells what they change."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from cutaway.contract import requests, results
from cutaway.contract.errors import CutawayError, Reason, at, error
from cutaway.contract.requests import AttackNorm, CheckMode
from cutaway.contract.requests.attacks import Attack
from cutaway.contract.results import Cause, Check, RowCheck, Verdict
from cutaway.contract.results.arrays import examples_first
from cutaway.contract.results.changes import AttackedAttribution, AttackResult
from cutaway.contract.results.explanations import WORST_FIRST
from cutaway.contract.tensors import Array
from cutaway.contract.values import changed
from cutaway.engine.checks.model_properties import dependent_rows, random_forward, wrong_backward
from cutaway.engine.execution.collect import arrays, attribution_axes, with_attributions
from cutaway.engine.execution.fitting import in_passes_that_fit
from cutaway.engine.execution.main_pass import MainPass
from cutaway.engine.execution.row_parts import joined_parts, main_pass_that_fits
from cutaway.engine.hooks.observe import observing
from cutaway.engine.methods.captum_call import attack_mask, drawing, least_parameter, perturb
from cutaway.engine.methods.feature_metrics import spearman
from cutaway.engine.model.inspected_model import Inputs
from cutaway.engine.model.session import is_out_of_memory, timed
from cutaway.engine.passes.findings import Finding
from cutaway.engine.passes.pass_recorder import AttributionProblem, Pass, PassRecorder, Values, run_passes
from cutaway.engine.passes.targets import Loss
from cutaway.engine.runtime.numerics import ONE_PASS, from_numpy, to_numpy

Explain: TypeAlias = Callable[[MainPass, MainPass], Iterator[tuple[results.AttributionResult, ...]]]
"""Computes the attributions of a main pass at the inputs of another one."""

# The loss whose gradient an attack follows.


def classifies(main: MainPass) -> bool:
    """Returns whether the target of the request is one class among several."""
    (resolved,), source = main.targets, cast(Tensor, main.source)
    positions = resolved.positions if source.ndim > 1 and source.shape[-1] > 1 else None
    return positions is not None and (positions.shape[1] == 1 or main.plan.request.target.position is not None)


def loss_of(attack: Attack, main: MainPass) -> Loss:
    """Returns the loss of ``attack`` of the request's target.

    Raises:
        InvalidArgument: the target is no class or no probability, and the attack needs one.
    """
    (resolved,), target, source = main.targets, main.plan.request.target, cast(Tensor, main.source)
    is_class = classifies(main)
    if attack.search is not None and not is_class:
        what = "the search ends where the class changes, and the target is no class among several: leave it out"
        raise error(Reason.METHOD_INAPPLICABLE, what, "search")
    if not attack.of_probabilities:
        losses = (requests.CrossEntropy, requests.MeanSquaredError)
        kind = "cross_entropy" if is_class else "itself" if isinstance(target, losses) else "negative"
        return Loss.made(resolved, kind, is_class)
    if resolved.positions is None or not bool(((source >= 0) & (source <= 1)).all()):
        what = "the output has no probabilities, from 0 to 1: leave it out, and the loss is the cross-entropy"
        raise error(Reason.METHOD_INAPPLICABLE, what, "of_probabilities")
    return Loss.made(resolved, "negative_log", is_class)


def _slope(loss: Loss, output: Tensor) -> Tensor:
    """Returns the gradient of the sum of losses at ``output``, by its formula and in float64."""
    at_target = loss.of.gradient_at(output).double()
    if loss.kind == "cross_entropy":
        # The softmax of the row, or of the token, that the target is in.
        return output.double().softmax(dim=-1) * at_target.sum(dim=-1, keepdim=True) - at_target
    if loss.kind == "negative_log":
        return -at_target / output.double().where(at_target != 0, 1.0)
    return at_target if loss.kind == "itself" else -at_target


# The reference: each step from raw gradients, and the ball, the bounds and the masks.

_LEAST_SHARE = 0.01
"""The part of a row's gradient that may belong to elements that cannot move, before the attack is in doubt."""

_RENORM = 2e-7
"""PyTorch's projection on a ball divides by the norm and 1e-7."""


class _Followed:
    """Compares every point that Captum visits with the step from the one before, in float64.

    Args:
        attack: the attack, with the parameters that it has.
        problem: its problem, whose target is the loss.
        mode: in which passes raw hooks record.
    """

    def __init__(self, attack: Attack, problem: AttributionProblem, mode: CheckMode) -> None:
        self._attack, self._problem, self._mode = attack, problem, mode
        self._own = {name: problem.inputs[name].detach().cpu().double() for name in problem.explained}
        self._masks = {name: attack_mask(problem, name).cpu().double() for name in problem.explained}
        self._expected: Values = {} if getattr(attack, "random_start", False) else self._own
        self._dtype = problem.arguments[0].dtype
        self.eps = max(torch.finfo(tensor.dtype).eps for tensor in problem.arguments)
        self._size: float = attack.epsilon if isinstance(attack, requests.FGSM) else getattr(attack, "step_size", 0.0)
        self._reach: float = getattr(attack, "radius", self._size)
        self._is_round = getattr(attack, "norm", None) == AttackNorm.L2
        self._errors, self._outside, self._slopes, self._lost, self._total = torch.zeros(5, problem.rows).double()
        self._finite, self._passes, self._failure = self._total == 0, 0, ""

    def take(self, seen: Pass) -> None:
        """Takes Captum's next pass, and computes the point behind it. A failure is one of the check, not of the
        attack."""
        if not self._failure:
            try:
                self._take(seen)
            except Exception as failure:
                if isinstance(failure, CutawayError) or is_out_of_memory(failure):
                    raise
                self._failure = f"the check failed: {type(failure).__name__}: {failure}"[:500]

    def _take(self, seen: Pass) -> None:
        self._passes += 1
        points = {name: seen.points[name].double() for name in self._own}
        self._compare(points)
        if seen.cotangent is not None:
            self._compare_slopes(seen.output, seen.cotangent)
        raw = {name: seen.gradients[name].double() for name in self._own}
        if self._mode is CheckMode.INDEPENDENT:
            here = {name: seen.points[name].to(self._problem.model.device) for name in self._own}
            (again,) = run_passes(self._problem, [here], True)
            raw = {name: self._decided(again.gradients[name].double(), raw[name]) for name in self._own}
        self._expected = {name: self._step(name, points[name], raw[name]) for name in self._own}

    def end(self, values: Values) -> None:
        """Compares the last point with ``values``, which Captum returned."""
        if not self._failure:
            self._compare({name: values[name].detach().cpu().double() for name in self._own})

    def _decided(self, gradient: Tensor, seen: Tensor) -> Tensor:
        """Returns ``gradient``, of a second pass, but what Captum saw where rounding decides on the step."""
        size, rounding = gradient.abs(), ONE_PASS.of(self._dtype) * gradient.abs().max()
        is_open = (size <= rounding) | ((size - self._attack.zero_threshold).abs() <= rounding)
        return torch.where(is_open, seen, gradient)

    def _step(self, name: str, point: Tensor, gradient: Tensor) -> Tensor:
        dtype = self._problem.inputs[name].dtype  # Captum compares and adds in it
        moves = gradient.abs() > torch.tensor(self._attack.zero_threshold, dtype=dtype).double()
        stays = ~moves | (self._size < self.eps * point.abs() / 2) if self._size else ~moves
        mass = (gradient * self._masks[name]).abs()
        self._finite &= _of_rows(gradient.isfinite() & point.isfinite()).all(dim=1)
        self._total += _of_rows(mass).sum(dim=1)
        self._lost += _of_rows(mass.where(stays, 0.0)).sum(dim=1)
        step = (-self._size if self._attack.targeted else self._size) * gradient.sign() * self._masks[name]
        return self._bounded(self._in_ball(name, torch.where(moves, point + step, point).to(dtype).double()))

    def _in_ball(self, name: str, point: Tensor) -> Tensor:
        if not isinstance(self._attack, requests.PGD):
            return point
        change = point - self._own[name]
        if self._is_round:
            norm = _like(_of_rows(change).norm(dim=1), change)
            return self._own[name] + torch.where(norm > self._reach, change * self._reach / norm, change)
        return self._own[name] + change.clamp(-self._reach, self._reach)

    def _bounded(self, point: Tensor) -> Tensor:
        lower, upper = self._attack.lower_bound, self._attack.upper_bound
        return point if lower is upper is None else point.clamp(lower, upper)

    def _compare(self, points: Values) -> None:
        """Notes how far ``points`` are from those expected, and outside of ball, bounds and mask; each element relative
        to its own value and the change that it may have."""
        for name, own in self._own.items():
            point, scale = points[name], own.abs() + self._size + self._reach + torch.finfo(torch.float64).tiny
            change, rest = (point - own).abs(), _RENORM if self._is_round else 0.0
            if name in self._expected:
                _worst(self._errors, ((point - self._expected[name]).abs() - rest) / scale)
            _worst(self._outside, change * (self._masks[name] == 0) / scale)
            _worst(self._outside, (point - self._bounded(point)).abs() / scale)
            if self._is_round:
                length = _of_rows(change).norm(dim=1)
                _worst(self._outside, (length - self._reach) / (_of_rows(own).norm(dim=1) + self._reach))
            else:
                _worst(self._outside, (change - self._reach) / scale)

    def _compare_slopes(self, output: Tensor, cotangent: Tensor) -> None:
        loss: Any = self._problem.target
        with torch.no_grad():
            expected = _slope(loss, output.to(self._problem.model.device)).cpu().reshape(self._problem.rows, -1)
        difference = (cotangent.double().reshape(expected.shape) - expected).abs() - 4 * self.eps
        _worst(self._slopes, difference / expected.abs().amax(dim=1, keepdim=True).clamp(min=self.eps))

    def outcome(self, row: int) -> RowCheck:
        """Returns the outcome for one row of the comparison with raw gradients."""
        error, slope, total = float(self._errors[row]), float(self._slopes[row]), float(self._total[row])
        if self._failure:
            return RowCheck(error, Verdict.INCONCLUSIVE, self._failure, Cause.CHECK_FAILED)
        if not self._finite[row]:
            return RowCheck(error, Verdict.INCONCLUSIVE, "a gradient is not finite", Cause.NOT_FINITE)
        if slope > ONE_PASS.of(self._dtype):
            text = "Captum differentiated another scalar than the loss of this target"
            return RowCheck(slope, Verdict.DISAGREES, text, Cause.OTHER_PASSES)
        if error > 2 * self.eps:
            text = "a changed input is not the step along the sign of the raw gradient"
            return RowCheck(error, Verdict.DISAGREES, text, Cause.UNKNOWN)
        if not total and self._passes:
            text = "the gradient of the loss is zero: the attack has no direction"
            return RowCheck(error, Verdict.INCONCLUSIVE, text, Cause.NO_GRADIENT)
        if total and (share := float(self._lost[row]) / total) > _LEAST_SHARE:
            text = (
                f"{share:.0%} of the gradient is of elements that do not move: it is at most zero_threshold there, or "
            )
            text += "the step is less than a rounding of their value"
            return RowCheck(error, Verdict.INCONCLUSIVE, text, Cause.SATURATED)
        return RowCheck(error, Verdict.AGREES)

    def within(self, row: int) -> RowCheck:
        """Returns whether one row stayed inside of the ball, the bounds and the masks."""
        beyond = float(self._outside[row])
        if beyond <= 2 * self.eps:
            return RowCheck(beyond, Verdict.AGREES)
        text = "a point is outside of the ball, of the bounds or of the mask"
        return RowCheck(beyond, Verdict.DISAGREES, text, Cause.OUT_OF_BOUNDS)


def _of_rows(values: Tensor) -> Tensor:
    return values.reshape(len(values), -1)


def _like(by_row: Tensor, values: Tensor) -> Tensor:
    return by_row.reshape(-1, *[1] * (values.ndim - 1))


def _worst(known: Tensor, new: Tensor) -> None:
    """Puts the largest number of each row of ``new`` into ``known``, where it is larger; NaN is infinite."""
    torch.maximum(known, _of_rows(new).nan_to_num(nan=math.inf).amax(dim=1), out=known)


# One attack.


def _run(attack: Attack, problem: AttributionProblem, mode: CheckMode) -> tuple[Values, _Followed | None]:
    """Runs Captum's attack; returns the changed inputs by name, and the comparison with raw gradients, if any."""
    if mode is CheckMode.OFF:
        return perturb(attack, problem, problem.forward), None
    followed = _Followed(attack, problem, mode)
    recorder = PassRecorder(problem, take=followed.take)
    try:
        values = perturb(attack, problem, recorder.forward)
        recorder.release()  # which takes the last pass
    finally:
        recorder.recording.release()
    followed.end(values)
    return values, followed


def _attacked(attack: Attack, problem: AttributionProblem, main: MainPass) -> AttackResult:
    """Returns the changed inputs of all rows of ``problem``, and their checks."""
    mode = main.plan.request.check.mode
    with timed(main.timings, "attribution_ms"):
        values, followed = _run(attack, problem, mode)
    return AttackResult(type(attack).__name__, arrays(values), checks=_checks(attack, problem, main, followed))


def _checks(
    attack: Attack, problem: AttributionProblem, main: MainPass, followed: _Followed | None, *further: RowCheck
) -> tuple[Check, ...]:
    if followed is None:
        return ()
    with problem.model.proofs.billed_to(main.timings), timed(main.timings, "check_ms"):
        found = [*doubts(problem, random_forward, dependent_rows, wrong_backward)]
    rows = [doubted(followed.outcome(row), row, found) for row in range(problem.rows)]
    within = [followed.within(row) for row in range(problem.rows)]
    return attack_checks(attack, main.plan.request.check.mode, 2 * followed.eps, rows, within, further)


def attack_checks(
    attack: Attack, mode: CheckMode, tolerance: float = 1.0, *rows: Sequence[RowCheck]
) -> tuple[Check, ...]:
    """Returns the checks of an attack: of its steps, of its bounds, and of its search; ``rows``: the outcomes of each
    check by row, by default some that agree."""
    compared = [
        f"Captum's {type(attack).__name__} with steps along the signs of raw gradients",
        f"every point of {type(attack).__name__} with its ball, bounds and masks",
    ]
    if attack.search is not None:
        compared.append(f"the least {attack.search.parameter} with the attack one step below")
    if mode is CheckMode.OFF:
        return ()
    outcomes = rows or [[RowCheck(1.0, Verdict.AGREES)]] * len(compared)
    return tuple(check_of_rows(what, mode, tolerance, own) for what, own in zip(compared, outcomes))


def doubts(problem: AttributionProblem, *tests: Callable[[AttributionProblem], Finding | None]) -> Iterator[Finding]:
    """Yields what ``tests`` find wrong with the model, so that no gradient, or no output, is that of a row."""
    loss: Any = problem.target
    own = replace(problem, target=loss.of)
    for test in tests:
        if (finding := test(own)) is not None:
            yield finding


def doubted(outcome: RowCheck, row: int, found: Sequence[Finding]) -> RowCheck:
    """Returns the outcome of a row, in doubt if something of ``found`` concerns it."""
    finding = next((finding for finding in found if finding.concerns(row)), None)
    if finding is None or (outcome.verdict is Verdict.DISAGREES and outcome.cause is not Cause.UNKNOWN):
        return outcome
    verdict = outcome.verdict if outcome.verdict is Verdict.DISAGREES else Verdict.INCONCLUSIVE
    return replace(outcome, verdict=verdict, reason=finding.reason, cause=finding.cause)


def check_of_rows(compared: str, mode: CheckMode, tolerance: float, rows: Sequence[RowCheck]) -> Check:
    """Returns a check with the worst outcome of ``rows``, and each of them if they differ."""
    worst = min(rows, key=lambda row: WORST_FIRST.index(row.verdict))
    largest = max(row.max_relative_error for row in rows)
    alike = all((row.verdict, row.cause) == (worst.verdict, worst.cause) for row in rows)
    outcome = (worst.verdict, worst.reason, worst.cause, () if alike else tuple(rows))
    return Check(compared, mode, largest, largest, 1.0 if worst.verdict is Verdict.AGREES else 0.0, tolerance, *outcome)


# The search for the least value of a parameter.


def _searched(attack: Attack, problem: AttributionProblem, main: MainPass) -> AttackResult:
    """Searches for each row by itself: Captum's search ends at the first row of a batch that it changes."""
    if problem.rows == 1:
        return _searched_row(attack, problem, main)
    if problem.is_row_specific:
        what = "each row is searched by itself, and an edit or the target is about the batch: send one row"
        raise error(Reason.METHOD_INAPPLICABLE, what, "search")
    rows = [_searched_row(attack, problem.of_rows([row]), main) for row in range(problem.rows)]
    checks = (
        check_of_rows(of_all[0].compared, of_all[0].mode, of_all[0].tolerance, [check.of_row(0) for check in of_all])
        for of_all in zip(*(row.checks for row in rows))
    )
    return changed(joined_parts([(1, row) for row in rows]), checks=tuple(checks))


def _searched_row(attack: Attack, problem: AttributionProblem, main: MainPass) -> AttackResult:
    search, loss = cast(requests.MinParamPerturbation, attack.search), cast(Loss, problem.target)
    mode = main.plan.request.check.mode

    def fails(inputs: Sequence[Tensor], *additional: Tensor) -> bool:
        with torch.no_grad():
            return not bool(loss.reached(problem.forward(*inputs, *additional), attack.targeted).all())

    def fails_at(value: float) -> bool:
        moved = perturb(changed(attack, **{search.parameter: search.number(value)}), problem, problem.forward)
        return fails([*moved.values()], *problem.additional_inputs)

    with timed(main.timings, "attribution_ms"):
        values, value = least_parameter(attack, search, problem, fails)
    parameters = np.array([math.nan if value is None else float(value)])
    result = AttackResult(type(attack).__name__, arrays(values), parameters=parameters)
    if mode is CheckMode.OFF:
        return result
    steps = math.ceil((search.upper - search.lower) / search.step - _ROUNDING) - 1
    last = search.lower + steps * search.step if value is None else value
    _, followed = _run(changed(attack, **{search.parameter: search.number(last)}), problem, mode)
    if followed is not None and value is not None:
        followed.end(values)
    row, below = RowCheck(0.0, Verdict.AGREES), last - search.step
    if fails_at(last) is not (value is None):
        text = f"the search has another outcome than the attack with {search.parameter}={last:g}"
        row = RowCheck(1.0, Verdict.DISAGREES, text, Cause.UNKNOWN)
    elif value is not None and below >= search.lower - _ROUNDING and not fails_at(below):
        text = f"{search.parameter}={below:g} reaches the aim too: search linearly"
        row = RowCheck(1.0, Verdict.DISAGREES, text, Cause.NOT_LEAST)
    return changed(result, checks=_checks(attack, problem, main, followed, row))


_ROUNDING = 1e-9


# All attacks of a request, and what they change.


def with_attacks(result: results.InspectResult, main: MainPass, explain: Explain) -> results.InspectResult:
    """Returns ``result`` with the attacks of the request of ``main``, if it asks for some; the model is in its session.

    Raises:
        CutawayError: with the attack at fault.
    """
    attacks = []
    for number, attack in enumerate(main.plan.request.attacks):
        with at(f"attacks[{number}]"):
            attacks.append(_with_outcome(number, attack, result, main, explain))
    axes = {**result.example_axes, **attribution_axes(main, results.InspectResult({}, attacks=tuple(attacks)))}
    return changed(result, attacks=tuple(attacks), example_axes=axes)


def _with_outcome(
    number: int, attack: Attack, result: results.InspectResult, main: MainPass, explain: Explain
) -> AttackResult:
    plan, before = main.plan, cast(Tensor, main.source)
    loss = loss_of(attack, main)
    problem = plan.attacks[number].at_target(loss)
    run = partial(_attacked if attack.search is None else _searched, attack)
    with (
        observing(plan.model.tree, {}, plan.edits, batch=main.batch) as edited,
        plan.model.passes_inside(edited.forward),
        drawing(problem),
    ):
        found: AttackResult = in_passes_that_fit(problem, main, run)
    tensors = {name: from_numpy(array).to(problem.inputs[name]) for name, array in found.inputs.items()}
    moved = moved_to(main, {**plan.inputs, **tensors})
    after = cast(Tensor, moved.source)
    explained = tuple(each for several in explain(main, moved) for each in several)
    changes = [(tensors[name].double() - problem.inputs[name].double()).reshape(plan.rows, -1) for name in tensors]
    change = torch.cat(changes, dim=1)
    classes, probabilities = classes_of(loss, moved, of_probabilities=attack.of_probabilities)
    return changed(
        found,
        predictions={} if plan.request.omit_predictions else arrays(moved.outputs),
        classes=classes,
        probabilities=probabilities,
        target_values=to_numpy(loss.of.scalars(after).double()),
        losses_before=to_numpy(loss.scalars(before).double()),
        losses=to_numpy(loss.scalars(after).double()),
        succeeded=to_numpy(loss.reached(after, attack.targeted)) if loss.classifies else None,
        linf=to_numpy(change.abs().amax(dim=1)),
        l2=to_numpy(change.norm(dim=1)),
        attributions=tuple(_beside(result, explained, main)),
    )


def moved_to(main: MainPass, inputs: Inputs) -> MainPass:
    """Returns the main pass at other inputs, with the targets of ``main``."""
    plan = replace(
        main.plan, inputs=inputs, sites={}, parameters={}, gradients_of=(), attributions=(), numbers=(), missing=None
    )
    moved = main_pass_that_fits(plan)
    main.timings.forward_ms += moved.timings.forward_ms
    whole = replace(main.plan, inputs=inputs)
    return moved._replace(plan=whole, targets=main.targets, timings=main.timings)


def classes_of(loss: Loss, moved: MainPass, *, of_probabilities: bool = False) -> tuple[Array | None, Array | None]:
    """Returns the classes of a model that has some, and their probabilities."""
    if loss.classifies:
        scores = loss.scores(cast(Tensor, moved.source)).double()
        found = scores.argmax(dim=1, keepdim=True)
        shares = scores if of_probabilities else scores.softmax(dim=1)
        return to_numpy(found[:, 0]), to_numpy(shares.gather(1, found)[:, 0])
    if not (predicted := moved.predictions):
        return None, None
    return np.array([each.index for each in predicted]), np.array([each.probability for each in predicted])


def _beside(
    result: results.InspectResult, explained: Sequence[results.AttributionResult], main: MainPass
) -> Iterator[AttackedAttribution]:
    """Yields the attributions at the changed inputs with their likeness to those of ``result``."""
    before = examples_first(result).attributions
    after = examples_first(with_attributions(result, explained, main)).attributions
    for one, other, whole in zip(before, after, explained):
        first, second = (_by_row(each, main.plan.rows) for each in (one, other))
        if first is None or second is None or first.shape != second.shape:
            nothing = np.full(main.plan.rows, math.nan)
            yield AttackedAttribution(whole, nothing, nothing)
            continue
        cosine = (first * second).sum(dim=1) / (first.norm(dim=1) * second.norm(dim=1))
        yield AttackedAttribution(whole, to_numpy(cosine), to_numpy(spearman(first, second)))


def _by_row(attribution: results.AttributionResult, rows: int) -> Tensor | None:
    """Returns all numbers of an attribution, [batch, numbers]; None where there are none, or no axis of rows."""
    tensors = [from_numpy(values).double() for values in attribution.values.values()]
    if not tensors or any(tensor.shape[:1] != (rows,) for tensor in tensors):
        return None
    return torch.cat([tensor.reshape(rows, -1) for tensor in tensors], dim=1)
