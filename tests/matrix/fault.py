"""What a fault is, how it is asked about, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import Attribution, CheckMode, CheckRequest
from cutaway.contract.results import AttributionResult, Cause, Verdict
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from tests.support.checked_attributions import CHECKED, Build
from tests.support.device import DEVICE, on_device
from tests.support.faults import VECTOR

SMALLEST = 0.05
DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Fault:
    """One way to be wrong.

    Attributes:
        kind: the kind of fault, and which of that kind.
        build: the faulty model; ``sound``: its sound twin; None if the fault is not in the model.
        causes: those that are right.
        around: what is done to Captum meanwhile.
        before: what is asked before, on inputs of its own; what matters is the last answer.
        prepare: changes the model between the two.
        check: which of the checks is to find it: 0 the identity, 1 completeness.
        options: further fields of the request.
        right: another question to which the sound twin has the right answer.
        worst: the faulty model where the fault strikes always, if it is rare: by that the effect is measured.
        sound_agrees: whether the sound twin must get AGREES.
        pick: which of several results counts.
        dtypes: in which data types.
    """

    kind: tuple[str, str]
    asked: Attribution
    build: Build
    sound: Build | None = None
    causes: frozenset[Cause] = frozenset({Cause.WRONG_BACKWARD})
    inputs: Mapping[str, Tensor] = field(default_factory=lambda: VECTOR)
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    before: Sequence[tuple[Attribution, Mapping[str, Tensor]]] = ()
    prepare: Callable[[nn.Module], Any] = lambda model: None
    check: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    right: Attribution | None = None
    worst: Build | None = None
    sound_agrees: bool = True
    pick: int = 0
    dtypes: Sequence[torch.dtype] = DTYPES

    @property
    def method(self) -> str:
        return type(self.asked).__name__ + (" in a noise tunnel" if self.asked.noise else "")


@dataclass(frozen=True)
class Outcome:
    """What became of one fault, in one data type and mode."""

    fault: Fault
    dtype: torch.dtype
    mode: CheckMode
    effect: float
    verdict: Verdict
    cause: Cause | None

    @property
    def complaint(self) -> str:
        """What is not as it must be; ``""`` if nothing."""
        if not self.effect >= SMALLEST:
            return f"an effect of {self.effect:.1%}"
        if self.verdict not in (Verdict.DISAGREES, Verdict.INCONCLUSIVE):
            return "NOT FOUND"
        return "" if self.cause in self.fault.causes else "another cause"

    def __str__(self) -> str:
        dtype, cause = str(self.dtype).removeprefix("torch."), self.cause.name if self.cause else "-"
        effect = f"{self.effect:.0%}" if self.effect < 100 else "> 9999%"
        return (
            f"{': '.join(self.fault.kind):72} {self.fault.method:28} {dtype:8} {self.mode.name:12} {effect:>8} "
            f"{self.verdict.name:13} {cause:24} {self.complaint}"
        ).rstrip()


# Asking.


def to(value: Any, dtype: torch.dtype) -> Any:
    """Returns ``value``, or the numbers in it, in another floating data type."""
    if isinstance(value, Tensor):
        value = value.to(dtype.to_complex()) if value.is_complex() else value
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return value.astype(str(dtype).removeprefix("torch."))
    if isinstance(value, Mapping):
        return {name: to(each, dtype) for name, each in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(to(each, dtype) for each in value)
    if isinstance(value, (Attribution, ca.Target, ca.Edit)):
        return replace(
            value, **{each.name: to(getattr(value, each.name), dtype) for each in fields(value) if each.init}
        )
    return value


Ask = Callable[[Attribution, Mapping[str, Tensor]], tuple[AttributionResult, ...]]


def asker(model: nn.Module, dtype: torch.dtype, mode: CheckMode, options: Mapping[str, Any]) -> Ask:
    """Asks a model, perhaps several times, for an explanation of inputs."""
    model._apply(lambda tensor: to(tensor, dtype).to(DEVICE))
    subject = InspectedModel(model, lambda tensors: model(*tensors.values()))
    further = {"check": CheckRequest(mode), "seed": 1, **to(dict(options), dtype)}
    return lambda asked, inputs: (
        inspect(
            subject, ca.InspectRequest("m", attributions=(to(asked, dtype),), **further), on_device(to(inputs, dtype))
        ).attributions
    )


def answer(fault: Fault, dtype: torch.dtype, mode: CheckMode) -> AttributionResult:
    """The faulty one."""
    torch.manual_seed(0)
    model = fault.build()
    ask = asker(model, dtype, mode, fault.options)
    with fault.around():
        for asked, inputs in fault.before:
            ask(asked, inputs)
        fault.prepare(model)
        return ask(fault.asked, fault.inputs)[fault.pick]


def right_answer(fault: Fault, dtype: torch.dtype, mode: CheckMode = CheckMode.OFF) -> AttributionResult:
    """That of the sound twin."""
    ask = asker((fault.sound or fault.build)(), dtype, mode, fault.options)
    return ask(fault.right or fault.asked, fault.inputs)[fault.pick]


def effect(one: AttributionResult, other: AttributionResult) -> float:
    """How far ``one`` is from ``other``, over the length of ``other``."""
    pairs = [(np.float64(one.values[name]), np.float64(value)) for name, value in other.values.items()]
    if any(a.shape != b.shape for a, b in pairs):
        return float("inf")
    length = sum(float((b**2).sum()) for _, b in pairs) ** 0.5
    distance = sum(float(((a - b) ** 2).sum()) for a, b in pairs) ** 0.5
    return float("inf") if not np.isfinite(distance) or not length else distance / length


def outcomes(fault: Fault) -> Iterator[Outcome]:
    for dtype in fault.dtypes:
        right = right_answer(fault, dtype)
        worst = right_answer(replace(fault, sound=fault.worst), dtype) if fault.worst else None
        for mode in CHECKED:
            found = answer(fault, dtype, mode)
            check = found.checks[fault.check]
            yield Outcome(fault, dtype, mode, effect(worst or found, right), check.verdict, check.cause)
