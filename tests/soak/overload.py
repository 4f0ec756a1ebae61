"""Four times as many calls as can be answered, for a minute, whether anybody answers or not.

A caller beside the flood, in a process of its own, tells how long it waits for a refusal:
``python -m tests.soak.overload ADDRESS SECONDS``.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import cutaway as ca
from examples.digits.data import held_out
from tests.chaos.observer import Observer
from tests.support.mixed.callers import CALLERS, beside
from tests.support.processes import resident_bytes
from tests.support.serving import Server

SECONDS = 60
MEASURED_S = 10
TIMES = 4
PAUSE_S = 0.03
SAMPLED_S = 1.0  # looking more often would hold up the calls
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
        before, observer = resident_bytes(server), Observer(server, every_s=SAMPLED_S)
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
        with probing(server.address, SECONDS) as probed, beside(observer.look):
            begin = time.monotonic()
            while (now := time.monotonic() - begin) < SECONDS:
                while sent < int(now * capacity * TIMES):
                    under_way.add(task := asyncio.create_task(call()))
                    task.add_done_callback(under_way.discard)
                    sent += 1
                await asyncio.sleep(0.005)
            await asyncio.gather(*under_way)
            seen = await asyncio.to_thread(probed)
        after = resident_bytes(server)
    late, late_there = (sorted(each)[int(len(each) * 0.99)] for each in (seen, refused))
    lines = [
        f"capacity {capacity:.0f} calls/s; {sent / SECONDS:.0f} a second were asked for {SECONDS} s",
        f"{len(answered)} answered, {len(refused)} refused as OVERLOADED, {len(failed)} otherwise",
        f"refusals of a caller beside these: {len(seen)}, median {np.median(seen) * 1000:.0f} ms, 99 of 100 within "
        f"{late * 1000:.0f} ms; where all of them are sent, {late_there * 1000:.0f} ms",
        f"MiB of all processes: {before >> 20} before, {observer.most_bytes >> 20} at most, {after >> 20} after",
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


@contextmanager
def probing(address: str, seconds: float) -> Iterator[Callable[[], list[float]]]:
    """A caller beside the flood, for ``seconds``; the block is given what waits for it and returns the seconds of each
    of its refusals."""
    command = [sys.executable, "-m", "tests.soak.overload", address, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield lambda: list(json.loads(process.communicate()[0]))
        finally:
            process.kill()


def main(address: str, seconds: float) -> None:
    """Call, one call after the other, and tell how long refusals took."""
    refused = []
    image = held_out().images[:1]  # loading it takes longer than a refusal
    until = time.monotonic() + seconds
    with ca.Client(address, timeout=60) as client:
        while time.monotonic() < until:
            start = time.monotonic()
            try:
                client.inspect("digits", {"image": image}, attributions=[ca.IntegratedGradients()])
            except ca.ResourceExhausted:
                refused.append(time.monotonic() - start)
            time.sleep(PAUSE_S)
    print(json.dumps(refused))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
