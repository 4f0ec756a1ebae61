"""Whether verdicts cry wolf: every method that applies, on models in which nothing is wrong.

    python -m tests.matrix.healthy               all models
    python -m tests.matrix.healthy lstm unet     these
    python -m tests.matrix.healthy --seed 3      other weights, other rows

Exits with status 1 where an answer gets DISAGREES, or three percent of them or more get INCONCLUSIVE. An answer is one
explanation under one mode of its check; its verdict is the worst of its checks.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import cutaway as ca
from cutaway.contract.requests import CheckMode, CheckRequest, InspectRequest, PathAttribution
from cutaway.contract.results import AttributionResult, Check, Verdict
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from tests.matrix.asking import at_places
from tests.matrix.expected import Exempt
from tests.matrix.healthy_models.hard import HARD
from tests.matrix.healthy_models.images import IMAGES
from tests.matrix.healthy_models.model import Healthy
from tests.matrix.healthy_models.sequences import SEQUENCES
from tests.matrix.healthy_models.vectors import VECTORS
from tests.matrix.healthy_models.wirings import WIRINGS
from tests.matrix.matrix import words

HEALTHY: tuple[Healthy, ...] = (*VECTORS, *WIRINGS, *IMAGES, *SEQUENCES, *HARD)
MODES = (CheckMode.SAME_PASS, CheckMode.INDEPENDENT)
STEPS = 48
MOST_INCONCLUSIVE = 0.03


EXEMPT = (
    Exempt(
        ("experts-hard",),
        ("IntegratedGradients", "LayerConductance", "LayerIntegratedGradients", "NeuronIntegratedGradients"),
        "INCONCLUSIVE UNKNOWN",
        "the router changes its mind on the path: the target jumps, and the sum misses",
    ),
)


@dataclass(frozen=True)
class Answer:
    """One explanation of a model under one mode of its check, and what came back."""

    model: str
    asked: ca.Attribution
    mode: CheckMode
    result: AttributionResult

    @property
    def worst(self) -> Check | None:
        """The check with the worst verdict; None where the explanation was refused."""
        return max(self.result.checks, key=lambda check: _BADNESS.index(check.verdict), default=None)

    @property
    def verdict(self) -> str:
        """The worst verdict, with its cause, or the reason of the refusal."""
        if self.result.error is not None:
            return f"refused: {self.result.error.reason}"
        check = self.worst
        if check is None:
            return "not checked"
        if check.verdict is Verdict.NOT_APPLICABLE and check is not self.result.checks[0]:
            return Verdict.AGREES.value  # of a further check, which does not fit this model
        return words(check)

    @property
    def is_exempt(self) -> bool:
        """Whether it is known not to be plainly right."""
        return any(one.covers(self.model, self.asked) and self.verdict.startswith(one.begins) for one in EXEMPT)

    def describe(self) -> str:
        """Everything about a verdict that is not as it should be."""
        noise = "+noise" if self.asked.noise else ""
        begin = f"{self.model} {type(self.asked).__name__}{noise} {self.mode.value}: {self.verdict}"
        if self.result.error is not None:
            return f"{begin}: {self.result.error.message}"
        check = self.worst
        if check is None:
            return begin
        error = f"error {check.max_relative_error:.3g}, tolerance {check.tolerance:.3g}"
        return f"{begin}: {check.compared}: {error}: {check.reason}"


_BADNESS = (Verdict.AGREES, Verdict.NOT_APPLICABLE, Verdict.INCONCLUSIVE, Verdict.DISAGREES)


def asked_of(healthy: Healthy, inputs: dict[str, Tensor]) -> tuple[ca.Attribution, ...]:
    """All that applies to the model."""
    every = (_finely(one) for one in at_places(healthy.places, inputs))
    return tuple(one for one in every if type(one).__name__ not in healthy.lacks)


def _finely(asked: ca.Attribution) -> ca.Attribution:
    """The same with as many steps as a path needs."""
    return replace(asked, n_steps=STEPS) if isinstance(asked, PathAttribution) and asked.noise is None else asked


def answers(healthy: Healthy, seed: int) -> Iterator[Answer]:
    """Everything that is answered, or refused, about one model."""
    model, inputs = healthy.build(seed), healthy.examples(seed)
    names = list(inputs)
    subject = InspectedModel(model, lambda tensors: model(*(tensors[name] for name in names)))
    asked = asked_of(healthy, inputs)
    for mode in MODES:
        request = InspectRequest(
            "m", target=healthy.target, attributions=asked, attribution_errors_in_place=True, check=CheckRequest(mode),
            seed=seed,
        )  # fmt: skip
        for one, result in zip(asked, inspect(subject, request, dict(inputs)).attributions, strict=True):
            yield Answer(healthy.name, one, mode, result)


class Tally:
    """The verdicts of answers, and the exempt and refused ones beside them."""

    def __init__(self, found: Iterable[Answer] = ()) -> None:
        self.verdicts: Counter[str] = Counter()
        self.exempt: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        for answer in found:
            self.add(answer)

    def add(self, answer: Answer) -> None:
        """Counts one."""
        kind = self.exempt if answer.is_exempt else self.refused if answer.result.error else self.verdicts
        kind[answer.verdict] += 1

    def share(self, verdict: Verdict) -> float:
        """The share of a verdict among the answers that are neither exempt nor refused."""
        count = sum(number for name, number in self.verdicts.items() if name.startswith(verdict.value))
        return count / max(1, self.verdicts.total())

    def __str__(self) -> str:
        parts = [f"{self.verdicts.total()} answers"]
        for title, counts in (("", self.verdicts), ("exempt: ", self.exempt), ("", self.refused)):
            parts += [f"{title}{count} {verdict}" for verdict, count in counts.most_common()]
        return ", ".join(parts)


def run(models: Iterable[Healthy], seed: int) -> Tally:
    """Asks everything of each, and prints what became of it."""
    total, trained, began, count = Tally(), 0, time.monotonic(), 0
    for healthy in models:
        start = time.monotonic()
        found = list(answers(healthy, seed))
        count, trained = count + 1, trained + (healthy.loss is not None)
        print(f"{healthy.name} ({time.monotonic() - start:.1f} s): {Tally(found)}", flush=True)
        for answer in found:
            total.add(answer)
            if answer.verdict != Verdict.AGREES.value and not answer.is_exempt:
                print(f"    {answer.describe()}", flush=True)
    print(f"{count} models, {trained} of them trained: {total}, in {time.monotonic() - began:.0f} s")
    return total


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="healthy", description="Every method on models in which nothing is wrong.")
    parser.add_argument("models", nargs="*", help="only these")
    parser.add_argument("--seed", type=int, default=0, help="of weights, rows and draws")
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)  # tensors are tiny
    total = run((healthy for healthy in HEALTHY if not asked.models or healthy.name in asked.models), asked.seed)
    wolf = total.share(Verdict.DISAGREES) > 0 or total.share(Verdict.INCONCLUSIVE) >= MOST_INCONCLUSIVE
    return int(wolf)


if __name__ == "__main__":
    raise SystemExit(main())
