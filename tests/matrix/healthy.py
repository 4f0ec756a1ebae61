"""Whether verdicts cry wolf: every method that applies, on models in which nothing is wrong.

    python -m tests.matrix.healthy               all models
    python -m tests.matrix.healthy lstm unet     these
    python -m tests.matrix.healthy --seed 3      other weights, other rows

Exits with status 1 where an answer gets DISAGREES, three percent of them or more get INCONCLUSIVE, a refusal blames the
model or the service, or a value is not what Captum gives when it is called by hand. An answer is one explanation under
one mode of its check; its verdict is the worst of its checks.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.errors import Reason
from cutaway.contract.requests import CheckMode, CheckRequest, InspectRequest, PathAttribution
from cutaway.contract.results import AttributionResult, Check, Verdict
from cutaway.contract.tensors import Array
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.runtime.numerics import PATH, to_numpy
from tests.matrix.asking import at_places
from tests.matrix.byhand import plain
from tests.matrix.expected import CLOSE, Exempt
from tests.matrix.healthy_models.functional import FUNCTIONAL
from tests.matrix.healthy_models.graphs import GRAPHS
from tests.matrix.healthy_models.hard import HARD
from tests.matrix.healthy_models.images import IMAGES
from tests.matrix.healthy_models.model import Healthy
from tests.matrix.healthy_models.operators import OPERATORS
from tests.matrix.healthy_models.outputs import OUTPUTS
from tests.matrix.healthy_models.recurrent import RECURRENT
from tests.matrix.healthy_models.sequences import SEQUENCES
from tests.matrix.healthy_models.siamese import SIAMESE
from tests.matrix.healthy_models.tables import TABLES
from tests.matrix.healthy_models.vectors import VECTORS
from tests.matrix.healthy_models.wirings import WIRINGS
from tests.matrix.matrix import words
from tests.support.device import DEVICE, on_device

HEALTHY: tuple[Healthy, ...] = (
    *(*VECTORS, *WIRINGS, *IMAGES, *SEQUENCES, *HARD, *TABLES, *RECURRENT, *SIAMESE, *GRAPHS, *OUTPUTS, *FUNCTIONAL),
    *OPERATORS,
)
MODES = (CheckMode.SAME_PASS, CheckMode.INDEPENDENT)
STEPS = 48
MOST_INCONCLUSIVE = 0.03


EXEMPT = (
    Exempt(
        ("experts-hard", "experts-of-tokens", "experts-of-tokens-two-best"),
        ("IntegratedGradients", "LayerConductance", "LayerIntegratedGradients", "NeuronIntegratedGradients"),
        "INCONCLUSIVE DISCONTINUOUS",
        "the router changes its mind on the path: the target jumps, and the sum misses",
    ),
    Exempt(
        ("quantisation-aware", "quantisation-aware-fused"),
        ("IntegratedGradients", "LayerConductance", "LayerIntegratedGradients", "NeuronIntegratedGradients"),
        "INCONCLUSIVE DISCONTINUOUS",
        "it rounds, and its gradient passes the rounding: the sum misses",
    ),
)


@dataclass(frozen=True)
class Answer:
    """One explanation of a model under one mode of its check, and what came back.

    ``off`` is how far it is from Captum's, called by hand; NaN where not compared.
    """

    model: str
    asked: ca.Attribution
    mode: CheckMode
    result: AttributionResult
    off: float = math.nan

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
    def is_blame(self) -> bool:
        """Whether a healthy model, or the service, is blamed."""
        error = self.result.error
        return error is not None and error.reason in (Reason.MODEL_FAILED.value, Reason.INTERNAL.value)

    @property
    def is_off(self) -> bool:
        """Whether Captum gives something else by hand. Coarse types round differently in batches of other sizes."""
        tolerance = self.worst.tolerance if self.worst else 0.0
        return self.off > (tolerance if tolerance > PATH.float32 else CLOSE)

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
        if self.is_off:
            begin += f", {self.off:.3g} off Captum by hand"
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
    """The same with as many steps as a path needs: conductance sums differences, which come closer more slowly."""
    if not isinstance(asked, PathAttribution) or asked.noise is not None:
        return asked
    return replace(asked, n_steps=4 * STEPS if isinstance(asked, ca.LayerConductance) else STEPS)


class _Called(nn.Module):
    """A model that takes its inputs by name, and returns numbers [batch, classes], of which one is explained."""

    def __init__(self, healthy: Healthy, model: nn.Module) -> None:
        super().__init__()
        self.healthy, self.model = healthy, model

    def forward(self, **inputs: Tensor) -> Tensor:
        output, target = self.healthy.read(self.model(*inputs.values())), self.healthy.target
        if isinstance(target, ca.OutputSum):
            return output.flatten(1).sum(1, keepdim=True)
        if isinstance(target, ca.MultiIndex):
            (place,) = target.indices
            for index in place:
                output = output[:, index]
        return output.unsqueeze(1) if output.ndim == 1 else output

    def get_submodule(self, target: str) -> nn.Module:
        return self.model.get_submodule(target)


def distance(
    called: _Called, inputs: dict[str, Tensor], asked: ca.Attribution, values: Collection[Array], seed: int
) -> float:
    """How far values are from Captum's, called by hand; relative to its largest magnitude, NaN where it has none."""
    target = called.healthy.target
    try:
        classes = called(**inputs).argmax(1)
        if isinstance(target, ca.ClassIndex):
            classes = torch.tensor(target.indices, device=DEVICE).expand_as(classes)
        theirs = plain(asked, called, inputs, lambda returned: returned, classes, seed)
    except Exception:  # what Captum cannot do by itself is nothing to compare with
        return math.nan
    if [one.shape for one in values] != [tuple(other.shape) for other in theirs]:
        return math.inf
    apart = max(float(np.abs(one - to_numpy(other)).max()) for one, other in zip(values, theirs, strict=True))
    return apart / max(1e-12, *(float(other.abs().max()) for other in theirs))


def answers(healthy: Healthy, seed: int) -> Iterator[Answer]:
    """Everything that is answered, or refused, about one model, compared with Captum by hand."""
    model, inputs = healthy.build(seed).to(DEVICE), on_device(healthy.examples(seed))
    names = list(inputs)
    subject = InspectedModel(model, lambda tensors: model(*(tensors[name] for name in names)))
    asked = asked_of(healthy, healthy.examples(seed))
    # Another one, because Captum's LRP leaves rules at its modules.
    called = _Called(healthy, healthy.build(seed).to(DEVICE))
    for mode in MODES:
        request = InspectRequest(
            "m", target=healthy.target, attributions=asked, attribution_errors_in_place=True, check=CheckRequest(mode),
            seed=seed,
        )  # fmt: skip
        for one, result in zip(asked, inspect(subject, request, dict(inputs)).attributions, strict=True):
            values = list(result.values.values())
            off = distance(called, inputs, one, values, seed) if values else math.nan
            yield Answer(healthy.name, one, mode, result, off)


class Tally:
    """The verdicts of answers, and the exempt and refused ones beside them."""

    def __init__(self, found: Iterable[Answer] = ()) -> None:
        self.verdicts: Counter[str] = Counter()
        self.exempt: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.blames = self.compared = self.off = 0
        for answer in found:
            self.add(answer)

    def add(self, answer: Answer) -> None:
        """Counts one."""
        kind = self.exempt if answer.is_exempt else self.refused if answer.result.error else self.verdicts
        kind[answer.verdict] += 1
        self.blames += answer.is_blame
        self.compared += not math.isnan(answer.off)
        self.off += answer.is_off and not answer.is_exempt

    def share(self, verdict: Verdict) -> float:
        """The share of a verdict among the answers that are neither exempt nor refused."""
        count = sum(number for name, number in self.verdicts.items() if name.startswith(verdict.value))
        return count / max(1, self.verdicts.total())

    def __str__(self) -> str:
        parts = [f"{self.verdicts.total()} answers"]
        for title, counts in (("", self.verdicts), ("exempt: ", self.exempt), ("", self.refused)):
            parts += [f"{title}{count} {verdict}" for verdict, count in counts.most_common()]
        return ", ".join(
            parts + [f"{self.compared} compared with Captum by hand, {self.off} off"] * (self.compared > 0)
        )


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
            if (answer.verdict != Verdict.AGREES.value or answer.is_off) and not answer.is_exempt:
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
    models = (healthy for healthy in HEALTHY if not asked.models or healthy.name in asked.models)
    total = run(models, asked.seed)
    wolf = total.share(Verdict.DISAGREES) > 0 or total.share(Verdict.INCONCLUSIVE) >= MOST_INCONCLUSIVE
    return int(wolf or total.blames > 0 or total.off > 0)


if __name__ == "__main__":
    raise SystemExit(main())
