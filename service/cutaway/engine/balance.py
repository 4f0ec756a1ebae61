"""Whether attributions add up: the explained scalar at both ends of a path, and the sum of what is attributed."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from cutaway.engine.subject import Outputs
from cutaway.engine.witness import Question, Values


@dataclass(frozen=True)
class Balance:
    """The two sides of completeness, [batch] each, float64 on the host.

    Attributes:
        at_input: the explained scalar at the input.
        at_baseline: the same at the baseline.
        total: the sum of each row's attributions.
        mass: the sum of their magnitudes.
    """

    at_input: Tensor
    at_baseline: Tensor
    total: Tensor
    mass: Tensor

    @property
    def change(self) -> Tensor:
        """What the attributions are to add up to."""
        return self.at_input - self.at_baseline

    @property
    def delta(self) -> Tensor:
        """By how much they do not: the convergence delta."""
        return self.total - self.change

    def together(self) -> Balance:
        """The same for the batch as a whole, [1]: all that can add up where rows depend on each other."""
        return Balance(*(side.sum(dim=0, keepdim=True) for side in astuple(self)))


def balance(question: Question, values: Values, outputs: Outputs) -> Balance:
    """Hold the sum of ``values`` against the target's change from the baseline to ``outputs``; of a distribution, from
    the mean over its samples; without a baseline, from nought."""
    if not question.baselines:
        return _balanced(question, values, at_input(question, outputs), torch.zeros(question.rows, dtype=torch.float64))
    with torch.no_grad():
        reads = (question.read({**question.inputs, **start}) for start in question.starts)
        at_baseline = torch.stack([question.chosen.of(read).cpu().double() for read in reads]).mean(dim=0)
    return _balanced(question, values, at_input(question, outputs), at_baseline)


def balance_of(question: Question, values: Values, like: Balance) -> Balance:
    """Other ``values`` between the same ends as ``like``."""
    return _balanced(question, values, like.at_input, like.at_baseline)


def _balanced(question: Question, values: Values, at_input: Tensor, at_baseline: Tensor) -> Balance:
    values = _once(question, values)
    magnitudes = {name: value.abs() for name, value in values.items()}
    return Balance(at_input, at_baseline, _row_sums(values, question.rows), _row_sums(magnitudes, question.rows))


def at_input(question: Question, outputs: Outputs) -> Tensor:
    """[batch], the explained scalar for what the model returned, float64 on the host. A neuron is none of what it
    returned, and takes a pass."""
    with torch.no_grad():
        read = question.read(question.inputs) if question.chosen.is_neuron else outputs[question.chosen.source]
        return question.chosen.of(read).cpu().double()


def _once(question: Question, values: Values) -> Values:
    """``values``, in which a feature of several elements counts once: each of them has the whole of it."""
    if not question.features.numbers:
        return values
    return {name: values[name].cpu().double() * share for name, share in question.features.shares().items()}


def _row_sums(values: Values, rows: int) -> Tensor:
    if any(value.shape[:1] != (rows,) for value in values.values()):
        return torch.full((rows,), float("nan"), dtype=torch.float64)  # axis 0 of a layer need not be the batch
    sums = [value.detach().cpu().double().reshape(rows, -1).sum(dim=1) for value in values.values()]
    return torch.stack(sums).sum(dim=0)
