"""Random targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from torch import Tensor

from cutaway.contract.requests import (
    ClassIndex,
    Contrast,
    Cotangent,
    CrossEntropy,
    LogProbability,
    LossReduction,
    MeanSquaredError,
    MultiIndex,
    Neuron,
    OutputNorm,
    OutputSum,
    PredictedClass,
    Target,
    TopK,
)
from tests.fuzz.surveying import Asker


def target(asker: Asker) -> Target:
    """One that fits the model's outputs, mostly."""
    name = asker.pick(list(asker.survey.outputs))
    output = asker.survey.outputs[name]
    first = name == next(iter(asker.survey.outputs))
    fitting = [kind for kind, fits in TARGETS.items() if fits(output)]
    if asker.sometimes():
        return neuron(asker)
    chosen = of_output(asker, asker.pick(fitting), output)
    return chosen if first and asker.draw(st.booleans()) else replace(chosen, output=name)


def position(asker: Asker, shape: Sequence[int]) -> tuple[int, ...]:
    """An element."""
    return tuple(asker.draw(st.integers(0, size - 1)) for size in shape)


def several(asker: Asker, one: Callable[[], Any]) -> tuple[Any, ...]:
    """One for all rows, or one for each."""
    return tuple(one() for _ in range(asker.pick([1, asker.survey.graph.batch])))


def of_output(asker: Asker, kind: type[Target], output: Tensor) -> Target:
    """A target of ``kind``."""
    whole = tuple(output.shape)
    sum_or_mean = asker.pick(list(LossReduction))
    make: Mapping[type[Target], Callable[[], Target]] = {
        PredictedClass: PredictedClass,
        OutputSum: OutputSum,
        OutputNorm: lambda: OutputNorm(asker.pick([1.0, 2.0, 3.0])),
        MultiIndex: lambda: MultiIndex(several(asker, lambda: position(asker, whole[1:]))),
        Contrast: lambda: Contrast(
            *(of_output(asker, asker.pick([OutputSum, OutputNorm, MultiIndex]), output) for _ in "ab")
        ),
        LogProbability: lambda: LogProbability(of_output(asker, MultiIndex, output)),
        Cotangent: lambda: Cotangent(asker.array(whole, output.dtype)),
        MeanSquaredError: lambda: MeanSquaredError(asker.array(whole, output.dtype), sum_or_mean),
        TopK: lambda: TopK(asker.draw(st.integers(1, whole[1]))),
        ClassIndex: lambda: ClassIndex(several(asker, lambda: asker.draw(st.integers(0, whole[1] - 1)))),
        CrossEntropy: lambda: CrossEntropy(
            several(asker, lambda: asker.draw(st.integers(0, whole[1] - 1))), sum_or_mean
        ),
    }
    return make[kind]()


def neuron(asker: Asker) -> Target:
    """One element inside the model."""
    modules = [name for name, calls in asker.survey.calls.items() if name and ":" not in name and calls[0][False]]
    first = [next(iter(asker.survey.calls[name][0][False].values())) for name in modules]
    if not modules:
        return OutputSum()
    index = asker.draw(st.integers(0, len(modules) - 1))
    return Neuron(asker.name(modules[index]), position(asker, first[index].shape[1:]))


TARGETS: Mapping[type[Target], Callable[[Tensor], bool]] = {
    **dict.fromkeys([OutputSum, OutputNorm, MultiIndex, Contrast, Cotangent, MeanSquaredError], lambda _: True),
    LogProbability: lambda output: output.ndim > 1,
    **dict.fromkeys([PredictedClass, TopK, ClassIndex, CrossEntropy], lambda output: output.ndim == 2),
}
"""Which targets fit which outputs."""
