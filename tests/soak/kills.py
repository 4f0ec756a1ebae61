"""Sixteen callers for a minute, and a worker that is killed every ten seconds."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import cutaway as ca
from examples.digits.data import held_out
from tests.support.processes import worker
from tests.support.serving import Server

CALLERS = 16
SECONDS = 60
EVERY_S = 10


def trial(server: Server, _: Path) -> list[str]:
    """No call is lost, and none is answered wrongly."""
    images = held_out().images
    took: list[float] = []
    wrong: list[int] = []
    over = threading.Event()
    with ca.Client(server.address, timeout=60) as client, ThreadPoolExecutor(CALLERS) as callers:
        expected = [_asked(client, images[number : number + 1]) for number in range(CALLERS)]

        def call(number: int) -> None:
            while not over.is_set():
                start = time.monotonic()
                found = _asked(client, images[number : number + 1])
                took.append(time.monotonic() - start)
                if not all(
                    np.allclose(one, other, rtol=1e-4, atol=1e-5) for one, other in zip(found, expected[number])
                ):
                    wrong.append(number)

        calling = [callers.submit(call, number) for number in range(CALLERS)]
        kills = 0
        for _kill in range(SECONDS // EVERY_S):
            if over.wait(EVERY_S):
                break
            worker(server, "digits").kill()
            kills += 1
        over.set()
        lost = [each.exception() for each in calling if each.exception() is not None]
    if lost or wrong:
        raise AssertionError(f"{len(lost)} calls lost ({lost[:1]}), {len(wrong)} answered wrongly")
    return [
        f"{len(took)} calls by {CALLERS} callers in {SECONDS} s, {kills} kills: 0 lost, 0 wrong",
        f"the slowest took {max(took):.1f} s, the median {sorted(took)[len(took) // 2] * 1000:.0f} ms",
    ]


def _asked(client: ca.Client, image: np.ndarray) -> list[np.ndarray]:
    found = client.inspect("digits", {"image": image}, captures=["conv1", "fc1"], input_gradients=True)
    layers = [found.captures[name].output for name in ("conv1", "fc1")]
    return [found.predictions["output"], *layers, found.input_gradients["image"]]
