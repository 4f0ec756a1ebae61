"""The combinations, and what became of each over gRPC."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import cutaway as ca
from cutaway.contract.results import AttributionResult, Cause, Check, Verdict
from cutaway.gateway import serve
from tests.matrix.asking import every
from tests.matrix.byhand import plain
from tests.support.zoo.architecture import Architecture
from tests.support.zoo.table import ZOO

DTYPES = (torch.float64, torch.float32)
BATCHES = (1, 4)
SEED = 11


@dataclass(frozen=True)
class Combination:
    """One explanation of some rows by one architecture, in a data type and a mode of its check."""

    architecture: Architecture
    asked: ca.Attribution
    dtype: torch.dtype
    batch: int
    mode: ca.CheckMode

    @property
    def name(self) -> str:
        """For people."""
        noise = "+noise" if self.asked.noise else ""
        kind = f"{type(self.asked).__name__}{noise}"
        return f"{self.architecture.name} {kind} {str(self.dtype)[6:]} batch {self.batch} {self.mode.value}"


@dataclass(frozen=True)
class Outcome:
    """What came back: the identity's check and further ones, or the reason of a refusal.

    ``error`` is how far the answer is from Captum's by hand, relative to its largest magnitude; NaN where not compared.
    """

    check: Check | None
    further: tuple[Check, ...] = ()
    error: float = float("nan")
    refusal: str = ""

    @property
    def verdict(self) -> str:
        """The verdict, with its cause."""
        return f"refused: {self.refusal}" if self.check is None else words(self.check)


def words(check: Check) -> str:
    """The verdict, with its cause if there is one."""
    return check.verdict.value if check.cause is None else f"{check.verdict.value} {check.cause.value}"


def batch_of(architecture: Architecture, rows: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """So many rows of the architecture's own batch: over again, moved a little, where it has fewer."""
    found = {}
    for name, tensor in architecture.inputs.items():
        index = torch.arange(rows) % len(tensor)
        each = tensor[index]
        if each.is_floating_point():
            moved = torch.arange(rows).reshape(-1, *[1] * (each.ndim - 1)) // len(tensor)
            each = (each * (1 + 0.25 * moved)).to(dtype)
        found[name] = each
    return found


def combinations() -> Iterator[Combination]:
    """All of them."""
    for architecture in ZOO:
        for dtype in DTYPES:
            for batch in BATCHES:
                for asked in every(architecture.name, batch_of(architecture, batch, dtype)):
                    for mode in (ca.CheckMode.SAME_PASS, ca.CheckMode.INDEPENDENT):
                        yield Combination(architecture, asked, dtype, batch, mode)


@contextmanager
def served() -> Iterator[ca.Client]:
    """The zoo in both data types, served by one process."""
    models = {_served_as(each, dtype): each.build().to(dtype) for each in ZOO for dtype in DTYPES}
    with serve(models) as server, ca.Client(server.address) as client:
        yield client


def _served_as(architecture: Architecture, dtype: torch.dtype) -> str:
    return f"{architecture.name}-{str(dtype)[6:]}"


def outcome(client: ca.Client, each: Combination, *, compare: bool) -> Outcome:
    """Ask over gRPC; with ``compare``, ask Captum by hand too."""
    inputs = batch_of(each.architecture, each.batch, each.dtype)
    try:
        result = client.inspect(
            _served_as(each.architecture, each.dtype),
            inputs,
            target=ca.ClassIndex(tuple(_target(each)), output=each.architecture.output),
            attributions=[each.asked],
            check=each.mode,
            seed=SEED,
        ).attributions[0]
    except ca.CutawayError as failure:
        return Outcome(None, refusal=f"{failure.reason} {failure.message}")
    error = _error(each, result, inputs) if compare else float("nan")
    return Outcome(result.checks[0], result.checks[1:], error)


def _target(each: Combination) -> list[int]:
    return [each.architecture.target[row % len(each.architecture.target)] for row in range(each.batch)]


def _error(each: Combination, result: AttributionResult, inputs: Mapping[str, Tensor]) -> float:
    theirs = plain(
        each.asked,
        each.architecture.build().to(each.dtype),
        inputs,
        each.architecture.read,
        torch.tensor(_target(each)),
        SEED,
    )
    ours = list(result.values.values())
    if [one.shape for one in ours] != [tuple(other.shape) for other in theirs]:
        return float("inf")
    largest = max(float(other.abs().max()) for other in theirs)
    apart = max(float(np.abs(one - other.numpy()).max()) for one, other in zip(ours, theirs))
    return 0.0 if apart == 0 else apart / largest if largest else float("inf")


def is_silent(check: Check) -> bool:
    """Whether it raises no doubt."""
    return check.verdict in (Verdict.AGREES, Verdict.NOT_APPLICABLE) or check.cause is Cause.TOO_FEW_STEPS
