"""Four times as many calls as can be answered, for a minute, whether anybody answers or not."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import cutaway as ca
from examples.digits.data import held_out
from tests.soak.probe import probing
from tests.support.processes import family
from tests.support.serving import Server

SECONDS = 60
MEASURED_S = 10
TIMES = 4
CALLERS = 16
SAMPLED_S = 1.0
LATE_S = 0.1
"""By when 99 of 100 refusals must have come, to the flood itself and to a caller beside it, in a process of its own."""

ASKED: dict[str, Any] = {"attributions": [ca.IntegratedGradients(n_steps=64)]}


def trial(server: Server, _: Path) -> list[str]:
    """What is accepted is answered; the rest is refused at once; memory stays."""
    return asyncio.run(_trial(server))


async def _trial(server: Server) -> list[str]:
    image = held_out().images[:1]
    async with ca.AsyncClient(server.address, timeout=60) as client:
        capacity = await _capacity(client, image)
        door = psutil.Process(server.process.pid)
        before = _memory(server)
        answered: list[float] = []
        refused: list[float] = []
        failed: list[ca.CutawayError] = []

        async def call() -> None:
            start = time.monotonic()
            try:
                await client.inspect("digits", {"image": image}, **ASKED)
                answered.append(time.monotonic() - start)
            except ca.ResourceExhausted:
                refused.append(time.monotonic() - start)
            except ca.CutawayError as failure:
                failed.append(failure)

        under_way: set[asyncio.Task[None]] = set()
        sent = 0
        gc.freeze()  # a collection of all that this process has imported takes a quarter of a second
        with probing(server.address, SECONDS) as probed:
            sampling = asyncio.create_task(asyncio.to_thread(_most, server, SECONDS))
            begin = time.monotonic()
            while (now := time.monotonic() - begin) < SECONDS:
                while sent < int(now * capacity * TIMES):
                    under_way.add(task := asyncio.create_task(call()))
                    task.add_done_callback(under_way.discard)
                    sent += 1
                await asyncio.sleep(0.005)
            await asyncio.gather(*under_way)
            most = await sampling
            seen = await asyncio.to_thread(probed)
        after = _memory(server)
    late, late_there = (sorted(each)[int(len(each) * 0.99)] for each in (seen, refused))
    lines = [
        f"capacity {capacity:.0f} calls/s; {sent / SECONDS:.0f} a second were asked for {SECONDS} s",
        f"{len(answered)} answered, {len(refused)} refused as OVERLOADED, {len(failed)} otherwise",
        f"refusals of a caller beside these: {len(seen)}, median {np.median(seen) * 1000:.0f} ms, 99 of 100 within "
        f"{late * 1000:.0f} ms; where all of them are sent, {late_there * 1000:.0f} ms",
        f"memory of all processes: {before:.0f} MiB before, {most:.0f} at most, {after:.0f} after",
        f"open files of the gateway: {door.num_fds()}",
    ]
    if failed or not answered or max(late, late_there) > LATE_S:
        raise AssertionError("\n".join([*lines, *map(str, failed[:3])]))
    return lines


async def _capacity(client: ca.AsyncClient, image: np.ndarray) -> float:
    """Calls a second of callers who wait for their answers."""
    count, until = 0, time.monotonic() + MEASURED_S

    async def caller() -> None:
        nonlocal count
        while time.monotonic() < until:
            await client.inspect("digits", {"image": image}, **ASKED)
            count += 1

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return count / MEASURED_S


def _most(server: Server, seconds: float) -> float:
    """The most memory seen; looked at beside the calls, which looking would hold up."""
    most, until = 0.0, time.monotonic() + seconds
    while time.monotonic() < until:
        most = max(most, _memory(server))
        time.sleep(SAMPLED_S)
    return most


def _memory(server: Server) -> float:
    return sum(each.memory_info().rss for each, _ in family(server)) / (1 << 20)
