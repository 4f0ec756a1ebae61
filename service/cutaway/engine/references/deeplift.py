"""DeepLIFT: attributions from the multipliers that flow back to the input, or to a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cutaway.engine.evidence import Evidence, Reference, Silent, host
from cutaway.engine.references.multipliers import Rescaled, rescaled
from cutaway.engine.references.nonlinear import nonlinearities
from cutaway.engine.subject import Inputs
from cutaway.engine.targets import Chosen
from cutaway.engine.witness import Pass, Question, Values, once
from cutaway.requests import Point


def beside_baselines(question: Question) -> list[Values]:
    """The input, for each baseline once, then the baselines: Captum runs all of them as one batch."""
    point = {name: question.inputs[name] for name in question.explained}
    return [point] * len(question.starts) + question.starts


def passes(question: Question) -> Sequence[Pass]:
    """A pass at the baselines, and one at the input through which multipliers flow back."""
    pair = rescaling(question)
    return [pair.at_baseline, pair.at_input]


@once
def rescaling(question: Question) -> Rescaled:
    """What the passes showed, and what flows through each nonlinearity."""
    return rescaled(spread(question), nonlinearities(question))


def spread(question: Question) -> Question:
    """``question`` with each row once for each baseline, and then all of it again, beside which Captum has baselines.

    The quotients of the Rescale rule are ill-conditioned where little changes: only in a batch of the size of Captum's
    do the model's kernels round as they do there. The target is that of the rows' first half.
    """
    samples, rows = len(question.starts), question.rows
    starts = {
        name: torch.stack([start[name] for start in question.starts], dim=1).flatten(0, 1)
        for name in question.explained
    }
    own = question.chosen.taking(torch.arange(rows, device=question.subject.device).repeat_interleave(samples))

    def first_half(output: Tensor) -> Tensor:
        return own.of(output[: samples * rows])

    return replace(
        question,
        inputs=_twice({name: each.repeat_interleave(samples, dim=0) for name, each in question.inputs.items()}),
        baselines=_twice(starts),
        chosen=Chosen(own.source, first_half, is_neuron=own.is_neuron),
    )


def _twice(inputs: Inputs) -> Inputs:
    return {name: torch.cat([tensor, tensor]) for name, tensor in inputs.items()}


def attributed(evidence: Evidence) -> Reference:
    """``(x - x0) * multiplier``, the mean over the baselines."""
    question = spread(evidence.question)
    ends = {name: host(question.inputs[name]) for name in question.explained}
    starts = {name: host(start) for name, start in question.baselines.items()}
    multipliers = {name: Evidence(evidence.question, evidence.passes[1:]).gradients(name) for name in ends}
    return _flows(evidence.question, ends, starts, multipliers)


def attributed_at_layer(evidence: Evidence) -> Reference:
    """``(a(x) - a(x0)) * multiplier`` for the layer's output ``a``, the mean over the baselines."""
    before, now = (Evidence(evidence.question, [each], evidence.call) for each in evidence.passes)
    return _flows(evidence.question, now.layer(Point.OUTPUT), before.layer(Point.OUTPUT), now.layer(Point.GRAD_OUTPUT))


def _flows(question: Question, ends: Values, starts: Values, multipliers: Values) -> Reference:
    if any(ends[name].shape != each.shape or starts[name].shape != each.shape for name, each in multipliers.items()):
        raise Silent(f"the layer {question.layer!r} returns other tensors for the baseline than for the input")
    values, terms = {}, {}
    for name, multiplier in multipliers.items():
        values[name] = _mean(question, (ends[name] - starts[name]) * multiplier)
        terms[name] = _mean(question, (ends[name].abs() + starts[name].abs()) * multiplier.abs())
    return Reference(values, terms)


def _mean(question: Question, spread_out: Tensor) -> Tensor:
    """[2 x rows x baselines, ...] to [rows, ...]: mostly the batch's rows, or some for each of them."""
    half, samples = spread_out[: len(spread_out) // 2], len(question.starts)
    if 2 * len(half) != len(spread_out) or len(half) % samples:
        raise Silent(f"axis 0 of what the layer {question.layer!r} returns is not the batch")
    return half.reshape(-1, samples, *half.shape[1:]).mean(dim=1)
