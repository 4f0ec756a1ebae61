"""Sixteen callers at once: most of them on one channel, some on channels of their own, one of them with asyncio."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import NamedTuple, TypeAlias

import cutaway as ca
from tests.support.mixed.mix import Outcome, Request

CALLERS = 16
ON_ONE_CHANNEL = 12
ON_THEIR_OWN = 3
AWAITED_AT_ONCE = 4

Waiting: TypeAlias = "SimpleQueue[tuple[int, Request]]"


def ask_all(address: str, requests: Sequence[Request]) -> list[Outcome]:
    """What comes of each of ``requests``, in order."""
    waiting: Waiting = SimpleQueue()
    for each in enumerate(requests):
        waiting.put(each)
    found: dict[int, Outcome] = {}
    with ca.Client(address) as shared, ThreadPoolExecutor(ON_ONE_CHANNEL + ON_THEIR_OWN + 1) as threads:
        callers = [threads.submit(_work, waiting, found, shared) for _ in range(ON_ONE_CHANNEL)]
        callers += [threads.submit(_work_alone, waiting, found, address) for _ in range(ON_THEIR_OWN)]
        callers.append(threads.submit(asyncio.run, _await(waiting, found, address)))
        for caller in callers:
            caller.result()
    return [found[index] for index in range(len(requests))]


def _work(waiting: Waiting, found: dict[int, Outcome], client: ca.Client) -> None:
    for index, request in _next(waiting):
        found[index] = ask(client, request)


def _work_alone(waiting: Waiting, found: dict[int, Outcome], address: str) -> None:
    with ca.Client(address) as own:
        _work(waiting, found, own)


async def _await(waiting: Waiting, found: dict[int, Outcome], address: str) -> None:
    async with ca.AsyncClient(address) as client:

        async def work() -> None:
            for index, request in _next(waiting):
                try:
                    found[index] = await client.inspect(request.model, request.inputs, **request.asked)
                except ca.CutawayError as failure:
                    found[index] = failure

        await asyncio.gather(*(work() for _ in range(AWAITED_AT_ONCE)))


def _next(waiting: Waiting) -> Iterator[tuple[int, Request]]:
    while True:
        try:
            yield waiting.get_nowait()
        except Empty:
            return


def ask(client: ca.Client, request: Request) -> Outcome:
    """What comes of ``request``."""
    try:
        return client.inspect(request.model, request.inputs, **request.asked)
    except ca.CutawayError as failure:
        return failure


@contextmanager
def beside(*works: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run each of ``works`` in a thread of its own beside the block; the event that it is given is set at the end."""
    over = threading.Event()
    with ThreadPoolExecutor(len(works)) as threads:
        running = [threads.submit(work, over) for work in works]
        try:
            yield
        finally:
            over.set()
        for each in running:
            each.result()


class Answered(NamedTuple):
    """When a call that was answered began, and when its answer was there, in monotonic seconds."""

    asked_at: float
    at: float


@dataclass
class Callers:
    """Callers who ask ``requests`` in turn, each by one of ``clients``, and note what they get.

    A call is lost if it fails, unless ``tries_again`` and the error says when; then it is made again until
    ``deadline_s`` have passed, which is another outcome.
    """

    clients: Sequence[ca.Client]
    requests: Sequence[Request]
    deadline_s: float
    tries_again: bool
    outcomes: Counter[str] = field(default_factory=Counter)
    took: list[float] = field(default_factory=list)
    answered: dict[str, list[Answered]] = field(default_factory=lambda: defaultdict(list))
    faults: list[str] = field(default_factory=list)
    """Wrong answers and lost calls, in words."""

    def asking(self) -> list[Callable[[threading.Event], None]]:
        """The work of each of sixteen callers, for `beside`."""
        return [lambda over, first=first: self._ask(first, over) for first in range(CALLERS)]  # type: ignore[misc]

    def pause_s(self, failure: ca.CutawayError) -> float | None:
        """Returns the seconds until the call is made again; None if it is not."""
        return failure.retry_after_s

    def _ask(self, number: int, over: threading.Event) -> None:
        client = self.clients[number % len(self.clients)]
        while not over.is_set():
            request, since = self.requests[number % len(self.requests)], time.monotonic()
            self.outcomes[self._outcome(client, request)] += 1
            self.took.append(time.monotonic() - since)
            number += 1

    def _outcome(self, client: ca.Client, request: Request) -> str:
        until = time.monotonic() + self.deadline_s
        while (left := until - time.monotonic()) > 0:
            request, asked_at = replace(request, asked={**request.asked, "timeout": left}), time.monotonic()
            found = ask(client, request)
            if isinstance(found, ca.CutawayError) and self.tries_again and found.reason == "DEADLINE_EXCEEDED":
                break
            if isinstance(found, ca.CutawayError) and self.tries_again and (wait := self.pause_s(found)) is not None:
                time.sleep(wait)
                continue
            if not isinstance(found, ca.CutawayError):
                self.answered[request.model].append(Answered(asked_at, time.monotonic()))
            wrong = request.wrong(found)
            self.faults += [wrong] if wrong else []
            return "lost" if isinstance(found, ca.CutawayError) else "wrong" if wrong else "answered"
        return "deadline passed"
