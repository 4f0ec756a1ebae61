"""A caller who is not the flood, in a process of its own: how long it waits for a refusal.

python -m tests.soak.probe ADDRESS SECONDS
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import cutaway as ca
from examples.digits.data import held_out

PAUSE_S = 0.03


@contextmanager
def probing(address: str, seconds: float) -> Iterator[Callable[[], list[float]]]:
    """A probe that runs for ``seconds``; the block is given what waits for it, and returns the seconds of each of its
    refusals."""
    command = [sys.executable, "-m", "tests.soak.probe", address, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:

        def found() -> list[float]:
            said, _ = process.communicate()
            refused: list[float] = json.loads(said)
            return refused

        try:
            yield found
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
