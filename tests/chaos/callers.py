"""Honest callers: they ask what is known, try again where they are told to, and note what they get."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

import cutaway as ca
from cutaway.contract.results import InspectResult, arrays
from cutaway.contract.tensors import Array

CALLERS = 16
DEADLINE_S = 10.0
TOKEN = "app"


@dataclass(frozen=True)
class Question:
    """A question, and how to ask it.

    Attributes:
        model: the model that answers.
        ask: asks it, with so many seconds until the deadline.
    """

    model: str
    ask: Callable[[ca.Client, float], InspectResult]


@dataclass
class Record:
    """What the callers got.

    Attributes:
        outcomes: how many calls were answered, and how many ended at their deadline.
        answered: when each model answered, in monotonic seconds.
        faults: wrong answers and lost calls, in words.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    answered: dict[str, list[float]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def questions() -> Sequence[Question]:
    """Returns what is asked: captures and gradients, a checked explanation, a reply in pieces."""
    image = np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 1, 8, 8)
    numbers = np.linspace(-1, 1, 3, dtype=np.float32).reshape(1, 3)
    steps = ca.IntegratedGradients(n_steps=8)
    return (
        Question("digits", lambda client, left: client.inspect(
            "digits", {"image": image}, captures=["conv1", "fc1"], input_gradients=True, timeout=left)),
        Question("digits", lambda client, left: client.inspect(
            "digits", {"image": image}, attributions=[steps], timeout=left)),
        Question("fragile", lambda client, left: client.inspect(
            "fragile", {"x": numbers}, captures=["linear"], timeout=left)),
        Question("fragile", lambda client, left: client.inspect(
            "fragile", {"x": numbers}, captures=["wide"], stream=True, timeout=left)),
    )  # fmt: skip


def tensors(result: InspectResult) -> list[Array]:
    """Returns the tensors of an answer, which a caller compares."""
    return [entry.array for entry in arrays.tensors(result)]


class Callers:
    """Callers that ask from `start` to `stop`.

    Args:
        address: of the gateway.
    """

    def __init__(self, address: str) -> None:
        self.record = Record()
        self._over = threading.Event()
        self._client = ca.Client(address, token=TOKEN)
        self._questions = questions()
        self._expected = [tensors(question.ask(self._client, 600.0)) for question in self._questions]
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(CALLERS)]

    def start(self) -> None:
        """Lets all of them ask."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> Record:
        """Waits for their last answers, and returns what they got."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._client.close()
        return self.record

    def _run(self, number: int) -> None:
        while not self._over.is_set():
            which = number % len(self._questions)
            self.record.outcomes[self._call(which)] += 1

    def _call(self, which: int) -> str:
        question, until = self._questions[which], time.monotonic() + DEADLINE_S
        while (left := until - time.monotonic()) > 0:
            try:
                found = tensors(question.ask(self._client, left))
            except ca.CutawayError as failure:
                if failure.reason == "DEADLINE_EXCEEDED":
                    return "deadline passed"
                if failure.retry_after_s is None:
                    self.record.faults.append(f"lost: {question.model}: {failure}")
                    return "lost"
                time.sleep(failure.retry_after_s)
            else:
                return self._compared(which, found)
        return "deadline passed"

    def _compared(self, which: int, found: Sequence[Array]) -> str:
        model = self._questions[which].model
        expected = self._expected[which]
        alike = len(found) == len(expected) and all(
            one.shape == other.shape and np.allclose(one, other, rtol=1e-4, atol=1e-5)
            for one, other in zip(found, expected)
        )
        self.record.answered.setdefault(model, []).append(time.monotonic())
        if not alike:
            self.record.faults.append(f"wrong: {model}, question {which}")
        return "answered" if alike else "wrong"
