"""Proves what a generation wrote, by one pass over the whole texts: the replay.

It runs without what the model keeps of earlier tokens (its cache), and with the same edits at the same tokens. A causal
model computes the same in both: the log-probabilities of its tokens, and all that was captured. The seed gives the same
draws again. So a stale cache shows, an edit that reached some steps only, or a row that read another one's cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from cutaway.contract.errors import CutawayError, DeadlineExceeded, Reason, error, release_frames
from cutaway.contract.requests import CheckMode, Edit, Generate, Point
from cutaway.contract.results import Cause, Check, FinishReason, GeneratedStep, RowCheck, Verdict
from cutaway.contract.results.explanations import WORST_FIRST
from cutaway.contract.values import changed
from cutaway.engine.hooks.capture_spec import CaptureSpec
from cutaway.engine.hooks.edits import NumberedEdit, Override, apply_edit
from cutaway.engine.hooks.hook_site import Batch, Share
from cutaway.engine.hooks.observe import observing, observing_together
from cutaway.engine.hooks.recording import RecordedCall, Recording
from cutaway.engine.hooks.tokens import MASK, RowTexts, has_tokens, text_ranges
from cutaway.engine.model.inspected_model import Generation, Inputs, InspectedModel, Outputs
from cutaway.engine.model.module_tree import is_glob
from cutaway.engine.model.session import is_out_of_memory
from cutaway.engine.planning.plan import CaptureSites, RequestPlan
from cutaway.engine.runtime.numerics import (
    REPEATED,
    SAME_SHAPES,
    Path,
    Tolerances,
    errors,
    largest_error,
    largest_magnitude,
)
from cutaway.engine.runtime.rng import new_seed

EditsBySite: TypeAlias = Mapping[str, Sequence[NumberedEdit]]


@dataclass
class Written:
    """Holds what a generation wrote so far.

    Attributes:
        steps: the steps.
        reasons: why each row ended; empty before all have.
    """

    steps: list[GeneratedStep] = field(default_factory=list)
    reasons: Sequence[FinishReason] = ()

    @property
    def tokens(self) -> Tensor:
        """[batch, steps], int64; -1 behind the end of a row."""
        return torch.tensor([step.tokens for step in self.steps], device="cpu").T

    @property
    def log_probabilities(self) -> Tensor:
        """[batch, steps], float64; 0 behind the end of a row."""
        return torch.tensor([step.log_probabilities for step in self.steps], dtype=torch.float64, device="cpu").T

    @property
    def texts(self) -> tuple[str, ...]:
        """The text of each row."""
        return tuple(map("".join, zip(*(step.texts for step in self.steps))))

    def outputs(self, alternatives: int) -> Outputs:
        """Returns tokens, and what belongs to them, as outputs of a model; ``alternatives`` is their number."""
        found = {"tokens": self.tokens, "log_probabilities": self.log_probabilities}
        if alternatives:
            shape = (len(self.steps), -1, alternatives)
            for name, dtype in (("alternatives", torch.int64), ("alternative_log_probabilities", torch.float64)):
                values = torch.tensor([getattr(step, name) for step in self.steps], dtype=dtype, device="cpu")
                found[name] = values.reshape(shape).transpose(0, 1)
        return found


class Generated(NamedTuple):
    """A generation that has run.

    Attributes:
        plan: the plan of its request; the inputs are aligned.
        batch: its rows.
        sites: what was captured.
        recording: what the hooks recorded.
        written: what was written.
    """

    plan: RequestPlan
    batch: Batch
    sites: CaptureSites
    recording: Recording
    written: Written


def chosen_of(plan: RequestPlan) -> Generate:
    """Returns the options of a request that writes tokens."""
    if plan.request.generate is None:
        raise error(Reason.INTERNAL, "the request writes no tokens")
    return plan.request.generate


def way_of(model: InspectedModel) -> Generation:
    """Returns how a model writes tokens.

    Raises:
        FailedPrecondition: ``METHOD_INAPPLICABLE``, if it does not.
    """
    if model.generate is None:
        raise error(Reason.METHOD_INAPPLICABLE, "this model writes no tokens", "generate")
    return model.generate


def seeds_of(plan: RequestPlan) -> list[int]:
    """Returns the seeds of the rows; any for a request that draws nothing."""
    return [((plan.seed or 0) + row) % 2**63 for row in range(plan.rows)]


@dataclass(frozen=True)
class _Segments:
    """The tokens of each step in the pass of the replay: first the prompt, then one token each.

    Attributes:
        prompt: the number of tokens of the prompt, with padding.
        is_apart: whether an encoder reads the prompt.
        steps: the number of steps.
        rows: the number of rows.
        texts: the rows' own texts in the prompt.
    """

    prompt: int
    is_apart: bool
    steps: int
    rows: int
    texts: RowTexts

    def of(self, value: Tensor) -> list[slice] | None:
        """Returns the tokens of each step along axis 1 of ``value``; None if that axis may be another.

        Four axes are those of heads, ``[batch, heads, tokens, ...]``.
        """
        tokens, written = self.prompt + self.steps - 1, self.steps
        if self.is_apart:
            tokens, written = self.prompt, self.steps + (self.steps == self.prompt)  # as `Generation.score` says
        if not 2 <= value.ndim <= 3 or value.shape[0] != self.rows or value.shape[1] not in (tokens, written):
            return None
        if value.shape[1] != tokens and tokens in value.shape[2:] and not self.is_apart:  # which has the tokens
            return None
        if value.shape[1] == tokens:
            return [slice(0, self.prompt), *(slice(at, at + 1) for at in range(self.prompt, tokens))]
        return [slice(at, at + 1) for at in range(self.steps)]  # of the last tokens alone, as logits are

    def edited(self, edit: Edit, value: Tensor) -> Tensor:
        """Applies ``edit`` to the tokens of each of its steps."""
        once, segments = changed(edit, steps=(), path="", call=None), self.of(value)
        if segments is None:
            if edit.steps or edit.slices or edit.rows or edit.position is not None:
                what = "an edit is of tensors without tokens on axis 1, and cannot be repeated in one pass"
                raise error(Reason.EDIT_INAPPLICABLE, what)
            return apply_edit(once, value, None)
        parts = []
        for step, tokens in enumerate(segments):
            own = value[:, tokens]
            is_edited = step in (edit.steps or (step,))
            texts = self._texts(own, step)
            is_left_out = edit.position is not None and not has_tokens(edit.position, own.shape, 0, texts)
            is_edited &= not (is_left_out and is_glob(edit.module))
            parts.append(apply_edit(once, own, 0, texts) if is_edited else own)
        return torch.cat([*parts, value[:, segments[-1].stop :]], dim=1)

    def _texts(self, value: Tensor, step: int) -> RowTexts | None:
        """Returns the tokens of each row of ``value``, the tokens of ``step``, that are no padding."""
        return None if step or (self.is_apart and value.shape[1] != self.prompt) else self.texts

    def taken(self, spec: CaptureSpec, value: Tensor, step: int) -> Tensor:
        """Returns what ``spec`` takes of ``value``, the tokens of ``step``."""
        return spec.apply(value, "a capture", 0, self._texts(value, step)).values

    def padding(self, spec: CaptureSpec, value: Tensor, step: int) -> Tensor:
        """Returns which elements of what ``spec`` takes of ``value``, the tokens of ``step``, are of padding."""
        is_text, texts = torch.ones_like(value), self._texts(value, step)
        if spec.position is None and texts is not None:
            for row, (start, stop) in enumerate(texts.of(value.shape[1]) or ()):
                is_text[row, :start] = is_text[row, stop:] = 0
        if spec.reduce is None:
            return self.taken(replace(spec, data_type=""), is_text, step) == 0
        like = self.taken(spec, value, step)  # of several tokens: all of a padded row
        has_padding = (is_text == 0).reshape(self.rows, -1).any(dim=1)
        return has_padding.reshape(-1, *[1] * (like.ndim - 1)).expand_as(like)


@dataclass(frozen=True)
class _Replay:
    """Holds what the replay computed.

    Attributes:
        log_probabilities: of the tokens that were written, [batch, steps], float64.
        scale: the largest magnitude of the log-probabilities of all tokens.
        shortfalls: by how much the logit of each token is below that of the one to choose, [batch, steps].
        recording: the captured tensors, whole.
        segments: the tokens of each step.
    """

    log_probabilities: Tensor
    scale: float
    shortfalls: Tensor
    recording: Recording
    segments: _Segments


OF_CAPTURES = Tolerances(1e-7, 1e-4, 5e-2, 1e-2)
"""The error of a captured token vector in 2-norm, relative to its own: one pass over all tokens and one for each have
other kernels, and other orders of sums. Twelve layers showed 1.2e-2 for bfloat16 and 1.5e-3 for float16, two layers up
to 2e-2 and 4e-3."""

OF_TOKENS = Tolerances(1e-6, 2e-5, 1e-2, 2e-3)
"""The error of a log-probability, or of the logit of the token to choose, relative to the largest log-probability. It
averages over the width of the model: twelve layers showed 1.1e-3 for bfloat16, 1.4e-4 for float16. Log-probabilities
are float32."""


def replayed(generated: Generated, replay: _Replay | None = None) -> Check:
    """Returns what the replay says about a generation: the outcome of each row, and the cause where it disagrees.

    Args:
        generated: the generation.
        replay: its replay, if that has run beside others.

    Raises:
        DeadlineExceeded: the caller no longer waits.
    """
    plan, written = generated.plan, generated.written
    tolerance = OF_CAPTURES.of(plan.model.dtype)
    try:
        finite = written.log_probabilities.isfinite().all(dim=1)
        found = _errors(generated, replay or _replay(generated, plan.edits))
        if replay is not None and (found > tolerance).any():  # others may be what differs
            found = _errors(generated, _replay(generated, plan.edits))
        is_wrong = (found.amax(dim=1) > tolerance) & finite
        cause, why = _cause(generated, found, tolerance) if is_wrong.any() else (None, "")
    except DeadlineExceeded:
        raise
    except Exception as failure:  # a check never costs the answer
        failed = RowCheck(0.0, Verdict.INCONCLUSIVE, _why(failure), Cause.CHECK_FAILED)
        return _check(plan, [failed] * plan.rows, tolerance)
    rows = []
    for row, largest in enumerate(found.amax(dim=1).tolist()):
        if is_wrong[row]:
            rows.append(RowCheck(largest, Verdict.DISAGREES, why, cause))
        elif finite[row]:
            rows.append(RowCheck(largest, Verdict.AGREES))
        else:
            not_finite = "the model's logits are NaN or infinite"
            rows.append(RowCheck(largest, Verdict.INCONCLUSIVE, not_finite, Cause.NOT_FINITE))
    return _check(plan, rows, tolerance)


def _why(failure: Exception) -> str:
    """Returns why the replay says nothing, and releases its frames."""
    release_frames(failure)
    if is_out_of_memory(failure):
        return "the pass over the whole texts needs more memory than is free"
    return failure.message if isinstance(failure, CutawayError) else f"{type(failure).__name__}: {failure}"[:300]


def _check(plan: RequestPlan, rows: Sequence[RowCheck], tolerance: float) -> Check:
    worst = min(rows, key=lambda row: WORST_FIRST.index(row.verdict))
    largest = max(row.max_relative_error for row in rows)
    what = "log-probabilities, draws and captures of each step with one pass over the whole texts, without a cache"
    several = tuple(rows) if len({row.verdict for row in rows}) > 1 else ()
    outcome = (worst.verdict, worst.reason, worst.cause)
    return Check(what, plan.request.check.mode, largest, largest, 0.0, tolerance, *outcome, several)


def replayed_together(several: Sequence[Generated]) -> list[Check]:
    """Returns what `replayed` does for requests that wrote together; few enough replays run together, in the reverse
    order, so that rows of others show. A check that is to be independent has a replay of its own."""
    checks: list[Check] = []
    while len(checks) < len(several):
        group: list[Generated] = []
        for one in several[len(checks) :]:
            steps = max(len(other.written.steps) for other in (*group, one))
            is_apart = any(other.plan.request.check.mode is CheckMode.INDEPENDENT for other in (*group, one))
            if group and (is_apart or steps * sum(other.plan.rows for other in (*group, one)) > _MOST_LOGITS):
                break
            group.append(one)
        checks += map(replayed, group, reversed(_replays(group[::-1])))
    return checks


_MOST_LOGITS = 512
"""The most tokens whose logits are in memory at one time, where several replays run together."""


def _replays(several: Sequence[Generated]) -> Sequence[_Replay | None]:
    """Returns the replays of ``several`` in one pass; None where each must run by itself."""
    try:
        is_together = len(several) > 1 and not way_of(several[0].plan.model).encoder
        return _replay_together(several) if is_together else [None] * len(several)
    except DeadlineExceeded:
        raise
    except Exception as failure:
        release_frames(failure)
        return [None] * len(several)


def _replay(generated: Generated, edits: EditsBySite) -> _Replay:
    """Runs the replay with ``edits``."""
    plan, segments = generated.plan, _segments(generated)
    sites, repeated = _again(generated, segments, edits)
    batch = generated.batch._replace(texts=None)
    with observing(plan.model.tree, sites, repeated, batch=batch) as recording:
        logits = _scored(plan, plan.inputs, generated.written.tokens, recording)
    return _scores(generated, logits, recording, segments)


def _replay_together(several: Sequence[Generated]) -> list[_Replay]:
    """Runs the replays of requests that wrote together in one pass."""
    first, prompts = several[0].plan, [_segments(one).prompt for one in several]
    width, steps = max(prompts), max(len(one.written.steps) for one in several)
    shares: list[Share] = []
    inputs: dict[str, list[Tensor]] = {}
    tokens: list[Tensor] = []
    start = 0
    for one, prompt in zip(several, prompts):
        sites, edits = _again(one, _segments(one), one.plan.edits)
        rows, tail = slice(start, start + one.plan.rows), steps - len(one.written.steps)
        own = (Recording(), sites, edits, one.batch._replace(texts=None), rows, width - prompt, lambda: True, tail)
        shares.append(Share(*own))
        for name, tensor in one.plan.inputs.items():
            inputs.setdefault(name, []).append(pad(tensor, (width - prompt, 0)))
        tokens.append(pad(one.written.tokens, (0, tail), value=-1))
        start = rows.stop
    together = {name: torch.cat(parts) for name, parts in inputs.items()}
    with observing_together(first.model.tree, shares, start, width + steps - 1, steps) as recording:
        logits = _scored(first, together, torch.cat(tokens), recording)
    return [
        _scores(one, logits[share.rows, : len(one.written.steps)], share.recording, _segments(one))
        for one, share in zip(several, shares)
    ]


def _segments(generated: Generated) -> _Segments:
    inputs = generated.plan.inputs
    mask = inputs.get(MASK)
    prompt = max(tensor.shape[1] for tensor in inputs.values() if tensor.ndim > 1)
    ranges = None if mask is None else text_ranges(mask)
    texts = (generated.batch.texts or RowTexts())._replace(ranges=ranges, size=prompt)
    is_apart = bool(way_of(generated.plan.model).encoder)
    return _Segments(prompt, is_apart, len(generated.written.steps), generated.plan.rows, texts)


def _again(generated: Generated, segments: _Segments, edits: EditsBySite) -> tuple[CaptureSites, EditsBySite]:
    """Returns what the replay captures, whole, and its edits."""
    repeated = {
        name: [
            _repeated(segments, number, changed(edit, path=path))
            for number, edit in several
            for path in _edited_paths(generated.recording, name, number, edit)
        ]
        for name, several in edits.items()
    }
    whole = {
        name: {point: CaptureSpec(call=spec.call, path=spec.path) for point, spec in specs.items()}
        for name, specs in generated.sites.items()
    }
    return whole, repeated


def _scored(plan: RequestPlan, inputs: Inputs, tokens: Tensor, recording: Recording) -> Tensor:
    """Returns the logits of ``tokens`` behind ``inputs``, [batch, steps, vocabulary], in a pass that hooks observe."""
    model = plan.model
    found: list[Tensor] = []

    def score(given: Inputs) -> Outputs:
        found.append(way_of(model).score(given, tokens.to(model.device)))
        return {"logits": found[0]}

    with model.kept_rng_state(), torch.no_grad(), recording.forward():
        model.run(inputs, score)
    return found[0]


def _scores(generated: Generated, logits: Tensor, recording: Recording, segments: _Segments) -> _Replay:
    """Returns what the ``logits`` of a replay say of the tokens that were written."""
    plan, tokens = generated.plan, generated.written.tokens.to(logits.device)
    sums = logits.float().logsumexp(dim=-1)
    own = logits.gather(2, tokens.clamp(min=0).unsqueeze(2)).squeeze(2).float() - sums
    scale = largest_magnitude(sums - logits.amin(dim=-1)) or 1.0
    lacks = way_of(plan.model).shortfalls(plan.inputs, tokens, logits, chosen_of(plan), seeds_of(plan))
    return _Replay(own.double().cpu(), scale, lacks.cpu(), recording, segments)


def _edited_paths(recording: Recording, name: str, number: int, edit: Edit) -> Sequence[Path]:
    """Returns the paths of an edit at a module: those that it was applied to, where it leaves others out."""
    at_point = (name, edit.point)
    if not any(numbered == number and place[:2] == at_point for numbered, place in recording.left_out):
        return (edit.path,)
    return sorted(place.path for numbered, place in recording.edited if numbered == number and place[:2] == at_point)


def _repeated(segments: _Segments, number: int, edit: Edit) -> NumberedEdit:
    """Returns ``edit`` for the replay."""
    change = partial(segments.edited, edit)
    return number, Override(edit.module, edit.at, op=edit.op, call=edit.call, path=edit.path, change=change)


def _errors(generated: Generated, replay: _Replay) -> Tensor:
    """Returns the largest relative error of each row in each step [batch, steps], 0 behind the end of a row: of all
    that was captured, and of log-probabilities and choices of tokens, larger by as much as these are more precise."""
    dtype = generated.plan.model.dtype
    of_tokens = errors(generated.written.log_probabilities, replay.log_probabilities)
    found = torch.maximum(of_tokens, replay.shortfalls) / replay.scale * (OF_CAPTURES.of(dtype) / OF_TOKENS.of(dtype))
    for name, specs in generated.sites.items():
        by_number = {call.number: call for call in replay.recording.calls[name]}
        for call in generated.recording.calls[name]:
            if call.number in by_number:
                of_call = _capture_errors(call, by_number[call.number], specs, replay.segments)
                found[:, call.step] = torch.maximum(found[:, call.step], of_call)
    return torch.where(generated.written.tokens >= 0, found.nan_to_num(torch.inf, torch.inf), 0.0)


def _capture_errors(
    call: RecordedCall, again: RecordedCall, specs: Mapping[Point, CaptureSpec], segments: _Segments
) -> Tensor:
    """Returns the largest relative error of each row in what was captured of one call of one step [batch]. Padding, and
    values that have no tokens on axis 1, are not compared."""
    found = torch.zeros(segments.rows, dtype=torch.float64)
    for point, path, part in call.entries():
        whole = again.captured(point).get(path)
        tokens = None if whole is None else segments.of(whole.values)
        if part is None or whole is None or tokens is None or not part.values.is_floating_point():
            continue
        if part.row_axis != 0 or call.step >= len(tokens):
            continue
        spec, own = specs[point], whole.values[:, tokens[call.step]]
        expected = segments.taken(spec, own, call.step)
        differences = errors(part.values, expected)
        if differences.shape != expected.shape:
            return torch.full_like(found, torch.inf)
        is_padding = segments.padding(spec, own, call.step)
        typical = segments.taken(spec, _noise_like(own, whole.values), call.step)
        norms, own_norms, typical_norms = (
            values.double().masked_fill(is_padding, 0.0).nan_to_num(torch.inf).reshape(segments.rows, -1).norm(dim=1)
            for values in (differences, expected, typical)
        )
        # A type of the reply that is coarser than the model's rounds once more.
        own_type, sent_type = (OF_CAPTURES.of(values.dtype) for values in (whole.values, part.values))
        scale = torch.maximum(own_norms.nan_to_num(0.0, 0.0), typical_norms).clamp(min=torch.finfo(torch.float64).tiny)
        found = torch.maximum(found, norms / scale * min(1.0, own_type / sent_type))
    return found


def _noise_like(own: Tensor, whole: Tensor) -> Tensor:
    """Returns random numbers of the size of ``own``, by row, or of a hundredth of the largest of ``whole``: rounding
    errors of a part, a reduction or a projection are relative to what it makes of them."""
    numbers = torch.randn(own.shape, generator=torch.Generator("cpu").manual_seed(0), dtype=torch.float64)
    finite = own.double().nan_to_num(0.0, 0.0, 0.0).reshape(len(own), -1)
    sizes = finite.square().mean(dim=1).sqrt().clamp(min=1e-2 * largest_magnitude(whole))
    return (numbers * sizes.reshape(-1, *[1] * (own.ndim - 1))).to(own.dtype)


def _cause(generated: Generated, found: Tensor, tolerance: float) -> tuple[Cause, str]:
    """Returns why a generation and its replay differ, from replays of other kinds, and what that means."""
    plan = generated.plan

    def is_replay(edits: EditsBySite) -> bool:
        return bool((_errors(generated, _replay(generated, edits)) <= tolerance).all())

    once = _replay(generated, plan.edits)
    with plan.model.drawing_from(new_seed()):
        again = _replay(generated, plan.edits)
    differ = largest_error(once.log_probabilities, again.log_probabilities)
    repeated = REPEATED if plan.model.device.type == "cpu" else SAME_SHAPES
    if differ > repeated.of(plan.model.dtype) * once.scale:
        return Cause.RANDOM_FORWARD, "two replays of the same texts differ: the model draws random numbers"
    if plan.edits and is_replay({}):
        return Cause.EDIT_NOT_APPLIED, "the texts are those of the model without the edits"
    in_prompt = {
        name: [(number, changed(edit, steps=(0,))) for number, edit in several if 0 in (edit.steps or (0,))]
        for name, several in plan.edits.items()
    }
    if plan.edits and found.shape[1] > 1 and is_replay(in_prompt):
        return Cause.EDIT_NOT_APPLIED, "the edits reached the prompt, and none of the tokens behind it"
    first = int((found > tolerance).any(dim=0).nonzero()[0])
    if first:
        what = f"what the model keeps of earlier tokens is not what one pass over them computes, from step {first} on"
        return Cause.STALE_CACHE, what
    return Cause.UNKNOWN, "the pass of the prompt is not what the replay computes"
