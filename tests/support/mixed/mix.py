"""The models, the requests to each of them, and draws from all of these."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor, nn

import cutaway as ca
from tests.support.mixed import digits, failing, mirror, transformers
from tests.support.mixed.answers import differences, doubts, flat
from tests.support.mixed.by_hand import Answer
from tests.support.mixed.hand import Hand
from tests.support.mixed.kind import Failing, Kind
from tests.support.models import SUBJECTS

Outcome: TypeAlias = "ca.InspectResult | ca.CutawayError"
"""What came of a request."""


@dataclass(frozen=True)
class Model:
    """One of the models, built in the test's own process.

    Attributes:
        forward: runs the network; returns the output that targets are read from, whose name is ``output``.
        kinds: what is asked of it, and can be answered.
        failing: what is asked of it, and cannot.
        share: how many of a thousand requests are for it.
    """

    name: str
    network: nn.Module
    inputs: Mapping[str, Tensor]
    forward: Callable[..., Tensor]
    output: str
    kinds: Sequence[Kind]
    failing: Sequence[Failing]
    share: int


def models(store: Path) -> list[Model]:
    """All of them."""
    small = small_models(store)
    return [
        small[0],
        _of_archive(store, "sentences", "embedding", transformers.SENTENCES, failing.SENTENCES, 90),
        _of_archive(store, "resnet", "logits", transformers.RESNET, (), 10),
        *small[1:],
    ]


def small_models(store: Path) -> list[Model]:
    """Those that answer in milliseconds."""
    twin = mirror.Twin().eval()
    return [
        _of_archive(store, "digits", "output", digits.KINDS, failing.DIGITS, 600),
        Model("mirror", twin, mirror.inputs(), twin, "output", mirror.KINDS, failing.MIRROR, 300),
    ]


def _of_archive(
    store: Path, name: str, output: str, kinds: Sequence[Kind], failures: Sequence[Failing], share: int
) -> Model:
    subject = SUBJECTS[name](store)
    inputs = digits.inputs() if name == "digits" else subject.inputs
    return Model(name, subject.model, inputs, subject.forward, output, kinds, failures, share)


@dataclass(frozen=True)
class Request:
    """One request, with what must come of it: an answer, or a failure with a reason and a field."""

    name: str
    model: str
    inputs: Any
    asked: Mapping[str, Any]
    answer: Answer | None = None
    failure: tuple[str, str] = ("", "")

    def wrong(self, outcome: Outcome) -> str:
        """What is wrong with ``outcome``; nothing where it is what must come of this request."""
        if isinstance(outcome, ca.CutawayError):
            told = (outcome.reason, outcome.field)
            return "" if told == self.failure else f"{self.model}: {self.name}: {outcome}"
        if self.answer is None:
            return f"{self.model}: {self.name}: answered"
        return "; ".join(f"{self.model}: {self.name}: {each}" for each in self._faults(outcome, self.answer))

    def _faults(self, result: ca.InspectResult, answer: Answer) -> Iterator[str]:
        yield from differences(flat(result), answer, company=True)
        if result.warnings:
            yield f"warnings: {result.warnings}"
        yield from doubts(result)


def requests(model: Model) -> tuple[list[Request], list[Request]]:
    """Those that are answered, each with PyTorch's own answer, and those that fail."""
    good = [
        Request(kind.name, model.name, kind.inputs or model.inputs, kind.asked, _answer(model, kind))
        for kind in model.kinds
    ]
    bad = [
        Request(each.name, each.model or model.name, each.inputs or model.inputs, each.asked, None, _told(each))
        for each in model.failing
    ]
    return good, bad


def _answer(model: Model, kind: Kind) -> Answer:
    return Hand(model.network, model.inputs, model.forward, model.output, kind.asked).answer()


def _told(failing: Failing) -> tuple[str, str]:
    return str(failing.reason), failing.field


def draw(several: Sequence[Model], count: int, seed: int) -> list[Request]:
    """``count`` requests at random, a fifth of which fail."""
    dice = random.Random(seed)
    made = {model.name: requests(model) for model in several}
    fails = count // 5
    good = [dice.choice(made[model.name][0]) for model in _weighted(dice, several, count - fails)]
    bad = [dice.choice(made[model.name][1]) for model in _weighted(dice, [m for m in several if m.failing], fails)]
    drawn = good + bad
    dice.shuffle(drawn)
    return drawn


def one_of_each(requests: Sequence[Request]) -> list[Request]:
    """The first of ``requests`` of each kind and model."""
    return list({(each.model, each.name): each for each in reversed(requests)}.values())


def _weighted(dice: random.Random, several: Sequence[Model], count: int) -> list[Model]:
    return dice.choices(several, [model.share for model in several], k=count)
