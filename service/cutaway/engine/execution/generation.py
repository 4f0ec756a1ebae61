"""Runs requests that write tokens: many passes with one set of hooks, one pass a step.

Requests that wait write together: their texts are the rows of one batch, padded on the left, for an encoder on the
right, and each has its own hooks, options and seeds. They join a running batch, and leave it. A row writes what it
writes alone, but for the rounding of another batch size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple, Protocol

import torch
from torch.nn.functional import pad

from cutaway.contract import results
from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.requests import CheckMode
from cutaway.contract.results import FinishReason, GeneratedStep
from cutaway.contract.values import changed
from cutaway.engine.checks.replay import Generated, Written, chosen_of, replayed, replayed_together, seeds_of, way_of
from cutaway.engine.execution.collect import Tell, captured_call, collect_main_pass, whole_result, with_attributions
from cutaway.engine.execution.main_pass import MainPass, batch_of, check_forward
from cutaway.engine.execution.missing import are_left_out, captured_calls
from cutaway.engine.hooks.hook_site import Batch, Shapes, Share
from cutaway.engine.hooks.observe import observing, observing_together
from cutaway.engine.hooks.recording import Recording
from cutaway.engine.model.inspected_model import Inputs, Outputs, Texts
from cutaway.engine.model.session import EVERY_S, FIRST_S, latest, timed
from cutaway.engine.planning.plan import RequestPlan


def generate(plan: RequestPlan, tell: Tell | None) -> results.InspectResult:
    """Answers a request that writes tokens; the model is in its session.

    Args:
        plan: the plan of the request.
        tell: called with the result so far, after each step.

    Raises:
        CutawayError: the request cannot be answered.
    """
    one = _Writing(replace(plan, inputs=way_of(plan.model).aligned(plan.inputs)), tell)
    try:
        _write([one], one.begun(), one.hooks())
        main = one.main()
        with timed(one.timings, "check_ms"):
            replay = replayed(one.generated(main)) if one.is_checked else None
        return one.result(main, replay)
    finally:
        one.recording.release()


class Arrival(NamedTuple):
    """A request that writes tokens beside others; all its hooks are on modules.

    Attributes:
        plan: its plan.
        tell: as in `generate`.
        done: gets its result; None if it was cancelled, or its result is an error.
    """

    plan: RequestPlan
    tell: Tell | None
    done: Callable[[results.InspectResult | None], None]


class Arrivals(Protocol):
    """Requests that wait to be written beside those that are."""

    def are_waiting(self, rows: int) -> bool:
        """Returns whether there are any that fit beside so many ``rows``. Called after each step."""

    def take(self, rows: int) -> Sequence[Arrival]:
        """Returns those that fit beside so many ``rows``; the model has none of its hooks."""


def generate_together(first: Sequence[Arrival], arrivals: Arrivals) -> None:
    """Answers requests that write tokens with one model, in passes that they share.

    Each is answered, and leaves, when its own text is written; others join the rest between two steps, if the model's
    cache allows it.

    Args:
        first: those that begin together; the model is in a session.
        arrivals: the requests that wait.

    Raises:
        Exception: one of them fails in passes that are shared: those without an answer must run alone.
    """
    batch = _Batch(first)
    while batch.several:
        if not batch.has_ended:
            batch.write(lambda: batch.has_ended or arrivals.are_waiting(batch.rows))
        _conclude(batch.taken_ended())
        if batch.several and batch.texts.may_join and (more := arrivals.take(batch.rows)):
            other = _Batch(more)
            other.write(lambda: True)
            batch.join(other)


class _Batch:
    """Requests that are written together: the rows of one batch, one request behind the other."""

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        plans = [arrival.plan for arrival in arrivals]
        self._model, self._way = plans[0].model, way_of(plans[0].model)
        aligned = [self._way.aligned(plan.inputs) for plan in plans]
        width = max(inputs["input_ids"].shape[1] for inputs in aligned)
        self.several: list[_Writing] = []
        for arrival, inputs in zip(arrivals, aligned):
            plan, padding = replace(arrival.plan, inputs=inputs), width - inputs["input_ids"].shape[1]
            self.several.append(_Writing(plan, arrival.tell, arrival.done, self.rows, padding))
        together = {
            name: torch.cat([pad(one.plan.inputs[name], one.sides) for one in self.several]) for name in aligned[0]
        }
        chosen = [chosen_of(plan) for plan in plans for _ in range(plan.rows)]
        self.texts = self._way.begin(together, chosen, [seed for plan in plans for seed in seeds_of(plan)])
        self._shapes: Shapes = {}

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.several[-1].rows.stop if self.several else 0

    @property
    def has_ended(self) -> bool:
        """Whether one of the requests has."""
        return not all(one.is_open for one in self.several)

    def write(self, pauses: Callable[[], bool]) -> None:
        """Writes until all have ended, or until ``pauses`` says so behind a step."""
        for one in self.several:
            one.companions = max(one.companions, len(self.several) - 1)
        with self._model.cancelled_by(latest([one.plan.cancellation for one in self.several])):
            _write(self.several, self.texts, self._hooks(), pauses)

    def _hooks(self) -> AbstractContextManager[Recording]:
        """Returns the hooks of all; those of one whose tokens are all its own see whole tensors."""
        if len(self.several) == 1 and not self.several[0].padding:
            return self.several[0].hooks()
        shares, width, last = [one.share for one in self.several], self.texts.width, int(not self._way.encoder)
        return observing_together(self._model.tree, shares, self.rows, width, last, self._shapes)

    def join(self, other: _Batch) -> None:
        """Adds the requests of ``other``, which has begun, behind its own."""
        width, rows = max(self.texts.width, other.texts.width), self.rows
        for batch in (self, other):
            for one in batch.several:
                one.padding += width - batch.texts.width
        for one in other.several:
            one.first += rows
        self.texts.take(other.texts)
        self.several += other.several

    def taken_ended(self) -> list[_Writing]:
        """Returns the requests that have ended, and keeps the others."""
        ended = [one for one in self.several if not one.is_open]
        kept = [one for one in self.several if one.is_open]
        if ended and kept:
            before = self.texts.width - 1
            unused = self.texts.keep([row for one in kept for row in range(one.rows.start, one.rows.stop)])
            for one, first in zip(kept, accumulate([0, *(one.plan.rows for one in kept)])):
                one.first, one.padding = first, one.padding - unused
            if unused:  # an axis of tokens is shorter now, and must not look like one of another kind
                for key, shape in self._shapes.items():
                    self._shapes[key] = [-1 if size == before else size for size in shape]
        self.several = kept
        return ended


def _conclude(ended: Sequence[_Writing]) -> None:
    """Tells the results of requests that have ended; their replays run together."""
    mains = {one: main for one in ended if (main := one.main_or_none()) is not None}
    checked, timings = [one for one in mains if one.is_checked], results.Timings()
    with timed(timings, "check_ms"):
        replays = dict(zip(checked, replayed_together([one.generated(mains[one]) for one in checked])))
    for one in ended:
        one.timings.check_ms += timings.check_ms if one in replays else 0
        result = one.result(mains[one], replays.get(one)) if one in mains else None
        if result is not None:
            result = changed(result, provenance=replace(result.provenance, companions=one.companions))
        one.done(result)


@dataclass(eq=False)
class _Writing:
    """A request that writes tokens, by itself or beside others.

    Attributes:
        plan: its plan; the inputs are aligned.
        tell: called with the result so far, after each step.
        done: gets its result, beside others.
        first: the number of its first row in the batch.
        padding: the tokens of padding that others need beside its prompt.
        companions: the most requests that were beside it.
        recording: what its hooks record.
        written: what it wrote so far.
        timings: how long its passes took.
    """

    plan: RequestPlan
    tell: Tell | None
    done: Callable[[results.InspectResult | None], None] = lambda _: None
    first: int = 0
    padding: int = 0
    companions: int = 0
    recording: Recording = field(default_factory=Recording)
    written: Written = field(default_factory=Written)
    timings: results.Timings = field(default_factory=results.Timings)

    def __post_init__(self) -> None:
        self.batch: Batch = batch_of(self.plan)
        self._began = time.perf_counter()
        self._told = self._began + FIRST_S - EVERY_S
        self._calls: dict[str, list[results.CapturedCall]] = {}
        self._seen: dict[str, int] = {}

    def begun(self) -> Texts:
        """Begins its texts by themselves."""
        plan = self.plan
        return way_of(plan.model).begin(plan.inputs, [chosen_of(plan)] * plan.rows, seeds_of(plan))

    @property
    def rows(self) -> slice:
        """Its rows in the batch."""
        return slice(self.first, self.first + self.plan.rows)

    @property
    def sides(self) -> tuple[int, int]:
        """The tokens of padding in front of its prompt, and behind it: those of an encoder begin together."""
        return (0, self.padding) if way_of(self.plan.model).encoder else (self.padding, 0)

    def hooks(self) -> AbstractContextManager[Recording]:
        """Returns its hooks, for passes with its rows and tokens alone."""
        plan = self.plan
        return observing(plan.model.tree, plan.hook_sites, plan.edits, batch=self.batch, recording=self.recording)

    @property
    def share(self) -> Share:
        """Its part of passes that several share."""
        plan, (before, tail) = self.plan, self.sides
        return Share(self.recording, plan.sites, plan.edits, self.batch, self.rows, before, lambda: self.is_open, tail)

    @property
    def is_open(self) -> bool:
        """Whether one of its rows still writes, and its caller waits."""
        return not self.written.reasons and not self.plan.cancellation.is_cancelled

    def add(self, step: GeneratedStep, reasons: Sequence[FinishReason | None]) -> None:
        """Takes its rows of a step, and why its rows ended."""
        self.written.steps.append(_of_rows(step, self.rows, chosen_of(self.plan).alternatives))
        ended = [reason for reason in reasons[self.rows] if reason is not None]
        if len(ended) == self.plan.rows:
            self.written.reasons = ended
        self.recording.next_step()
        if self.tell is not None:
            self.tell(self._so_far())
        self._tell_progress()

    def _tell_progress(self) -> None:
        """Tells a listener how far the texts are, if they take a while; they may end sooner."""
        now, listener = time.perf_counter(), self.plan.listener
        if listener is None or now - self._told < EVERY_S:
            return
        self._told, done, most = now, len(self.written.steps), chosen_of(self.plan).max_new_tokens
        left_s = (now - self._began) / done * (most - done)
        listener.progress(results.Progress(done * self.plan.rows, most * self.plan.rows, left_s, 0))

    def _so_far(self) -> results.InspectResult:
        """Returns the steps so far, and their captures; operators that a glob names are in the whole result only."""
        for name, specs in self.plan.sites.items():
            new = self.recording.calls[name][self._seen.get(name, 0) :]
            self._seen[name] = len(self.recording.calls[name])
            if captured := captured_calls(new, specs):
                self._calls.setdefault(name, []).extend(captured_call(call, specs) for call in captured)
        captures = {
            name: results.ModuleCapture(tuple(calls))
            for name, calls in self._calls.items()
            if not are_left_out(self.recording.calls[name])
        }
        return results.InspectResult({}, captures=captures, generated=tuple(self.written.steps))

    @property
    def is_checked(self) -> bool:
        """Whether a replay is requested."""
        return self.plan.request.check.mode is not CheckMode.OFF

    def main(self) -> MainPass:
        """Returns the outcome of its passes.

        Raises:
            CutawayError: something to capture or to edit does not exist, or the caller no longer waits.
        """
        plan = self.plan
        plan.cancellation.raise_if_cancelled()
        outputs = self.written.outputs(chosen_of(plan).alternatives)
        main = check_forward(plan, outputs, self.recording, self.timings, self.batch)
        _refuse_edits_without_steps(plan, self.recording)
        return main

    def main_or_none(self) -> MainPass | None:
        """Returns `main`; None after an error."""
        try:
            return self.main()
        except CutawayError:
            return None

    def generated(self, main: MainPass) -> Generated:
        """Returns what a replay proves."""
        return Generated(self.plan, self.batch, main.sites, self.recording, self.written)

    def result(self, main: MainPass, replay: results.Check | None) -> results.InspectResult:
        """Returns the result of a request that has written all its tokens."""
        plan, written, alternatives = self.plan, self.written, chosen_of(self.plan).alternatives
        unedited = _unedited(plan, self.timings) if plan.request.compare else Written()
        result = collect_main_pass(main, unedited.outputs(alternatives) if unedited.steps else {})
        result = changed(
            result,
            generated=tuple(written.steps),
            finish_reasons=tuple(written.reasons),
            unedited_texts=unedited.texts,
            replay=replay,
            warnings=(*result.warnings, *_unreached_steps(plan, len(written.steps))),
        )
        return whole_result(with_attributions(result, (), main), main)


def _of_rows(step: GeneratedStep, rows: slice, alternatives: int) -> GeneratedStep:
    """Returns ``rows`` of a step, with the first ``alternatives`` of each."""
    total = len(step.tokens)
    most = len(step.alternatives) // total
    kept = [row * most + rank for row in range(*rows.indices(total)) for rank in range(alternatives)]
    return GeneratedStep(
        step.tokens[rows],
        step.texts[rows],
        step.log_probabilities[rows],
        tuple(step.alternatives[index] for index in kept),
        tuple(step.alternative_log_probabilities[index] for index in kept),
    )


def _write(
    several: Sequence[_Writing],
    texts: Texts,
    hooks: AbstractContextManager[Recording],
    pauses: Callable[[], bool] = lambda: False,
) -> None:
    """Writes the tokens of requests whose rows are those of ``texts``, one behind the other. Between steps, others may
    run."""
    model, timings = several[0].plan.model, results.Timings()
    steps = 0

    def step(one: GeneratedStep, reasons: Sequence[FinishReason | None]) -> Iterator[int]:
        nonlocal steps
        model.passes.forwards += bool(steps)
        steps += 1
        for writing in several:
            if writing.is_open:
                writing.add(one, reasons)
        if seen.step < steps:
            seen.next_step()
        model.cancellation.raise_if_cancelled()
        model.give_way()
        for writing in several:
            if not writing.is_open:
                yield from range(*writing.rows.indices(len(reasons)))

    def write(_: Inputs) -> Outputs:
        texts.write(step, pauses)
        return {"steps": torch.tensor([steps])}

    with hooks as seen, timed(timings, "forward_ms"), torch.no_grad(), seen.forward():
        model.run(several[0].plan.inputs, write)
    for writing in several:
        writing.timings.forward_ms += timings.forward_ms


def _unedited(plan: RequestPlan, timings: results.Timings) -> Written:
    """Returns what the model writes without the edits, from the same seeds."""
    without = replace(plan, request=changed(plan.request, edits=()), edits={}, sites={})
    one = _Writing(without, None)
    with plan.model.kept_rng_state():
        _write([one], one.begun(), one.hooks())
    one.recording.release()
    timings.forward_ms += one.timings.forward_ms
    return one.written


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
