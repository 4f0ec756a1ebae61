"""Runs a request that writes tokens: many passes with one set of hooks, one pass a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from cutaway.contract import results
from cutaway.contract.errors import Reason, error
from cutaway.contract.requests import CheckMode
from cutaway.contract.results import GeneratedStep
from cutaway.contract.values import changed
from cutaway.engine.checks.replay import Generated, Written, chosen_of, replayed, seeds_of, way_of
from cutaway.engine.execution.collect import captured_call, collect_main_pass, whole_result, with_attributions
from cutaway.engine.execution.main_pass import batch_of, check_forward
from cutaway.engine.execution.missing import captured_calls
from cutaway.engine.hooks.observe import observing
from cutaway.engine.hooks.recording import Recording
from cutaway.engine.model.inspected_model import Inputs, Outputs
from cutaway.engine.model.session import timed
from cutaway.engine.planning.plan import RequestPlan


def generate(plan: RequestPlan, tell: Callable[[results.InspectResult], object] | None) -> results.InspectResult:
    """Answers a request that writes tokens; the model is in its session.

    Args:
        plan: the plan of the request.
        tell: called with the result so far, after each step.

    Raises:
        CutawayError: the request cannot be answered.
    """
    chosen, model, timings = chosen_of(plan), plan.model, results.Timings()
    plan = replace(plan, inputs=way_of(model).aligned(plan.inputs))
    written, unedited, batch = Written(), Written(), batch_of(plan)
    with observing(model.tree, plan.hook_sites, plan.edits, batch=batch) as recording:
        shown = _Shown(plan, recording, written)

        def told() -> None:
            recording.next_step()
            if tell is not None:
                tell(shown.so_far())

        with timed(timings, "forward_ms"), torch.no_grad(), recording.forward():
            outputs = model.run(plan.inputs, _writing(plan, written, told))
    main = check_forward(plan, outputs, recording, timings, batch)
    _refuse_edits_without_steps(plan, recording)
    if plan.request.compare:
        with timed(timings, "forward_ms"), model.kept_rng_state(), torch.no_grad():
            model.run(plan.inputs, _writing(plan, unedited, lambda: None))
    replay = None
    if plan.request.check.mode is not CheckMode.OFF:
        with timed(timings, "check_ms"):
            replay = replayed(Generated(plan, batch, main.sites, recording, written))
    result = collect_main_pass(main, unedited.outputs(chosen.alternatives) if unedited.steps else {})
    result = changed(
        result,
        generated=tuple(written.steps),
        finish_reasons=tuple(written.reasons),
        unedited_texts=unedited.texts,
        replay=replay,
        warnings=(*result.warnings, *_unreached_steps(plan, len(written.steps))),
    )
    return whole_result(with_attributions(result, (), main), main)


def _writing(plan: RequestPlan, written: Written, told: Callable[[], None]) -> Callable[[Inputs], Outputs]:
    """Returns what runs the model in place of one forward pass. Between two steps, others may run."""
    chosen, model = chosen_of(plan), plan.model

    def step(one: GeneratedStep) -> None:
        if written.steps:
            model.passes.forwards += 1
        written.steps.append(one)
        told()
        model.cancellation.raise_if_cancelled()
        model.give_way()

    def write(inputs: Inputs) -> Outputs:
        written.reasons = way_of(model).write(inputs, chosen, seeds_of(plan), step)
        return written.outputs(chosen.alternatives)

    return write


class _Shown:
    """The part of the result that exists while the model writes: steps, and their captures.

    Args:
        plan: the plan of the request.
        recording: what its hooks record.
        written: the steps so far.
    """

    def __init__(self, plan: RequestPlan, recording: Recording, written: Written) -> None:
        self._plan, self._recording, self._written = plan, recording, written
        self._calls: dict[str, list[results.CapturedCall]] = {}
        self._seen: dict[str, int] = {}

    def so_far(self) -> results.InspectResult:
        """Returns the steps so far; operators that a glob names are in the whole result only."""
        for name, specs in self._plan.sites.items():
            new = self._recording.calls[name][self._seen.get(name, 0) :]
            self._seen[name] = len(self._recording.calls[name])
            if captured := captured_calls(new, specs):
                self._calls.setdefault(name, []).extend(captured_call(call, specs) for call in captured)
        captures = {name: results.ModuleCapture(tuple(calls)) for name, calls in self._calls.items()}
        return results.InspectResult({}, captures=captures, generated=tuple(self._written.steps))


def _refuse_edits_without_steps(plan: RequestPlan, recording: Recording) -> None:
    """Refuses edits of steps that the texts did not reach.

    Raises:
        FailedPrecondition: ``EDIT_INAPPLICABLE``.
    """
    for number, edit in enumerate(plan.request.edits):
        if edit.steps and number not in recording.receipts:
            what = f"the edit never ran: there were the steps 0 to {recording.step - 1}"
            raise error(Reason.EDIT_INAPPLICABLE, what, f"edits[{number}].steps")


def _unreached_steps(plan: RequestPlan, steps: int) -> Iterator[results.Warning]:
    """Yields a warning for each capture of steps that the texts did not reach."""
    for number, capture in enumerate(plan.request.captures):
        if late := [step for step in capture.steps if step >= steps]:
            text = f"the texts ended after {steps} steps: there is nothing of step {late[0]} and later ones"
            yield results.Warning(results.WarningCode.STEP_NOT_REACHED, f"captures[{number}].steps", text)
