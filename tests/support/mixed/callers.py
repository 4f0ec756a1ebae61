"""Sixteen callers at once: most of them on one channel, some on channels of their own, one of them with asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import TypeAlias

import cutaway as ca
from tests.support.mixed.mix import Outcome, Request

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
