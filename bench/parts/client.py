"""One caller with `cutaway.Client`; the time includes decoding the reply to numpy."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import cutaway as ca
from bench.pipe import answer, seconds
from bench.requests import REQUESTS


def main(address: str) -> None:
    client = ca.Client(address, timeout=3600)

    def asked(what: dict[str, Any]) -> Any:
        model, inputs, options = REQUESTS[what["question"]](**what.get("given", {}))

        def run() -> ca.InspectResult:
            return client.inspect(model, inputs, **options)

        if what.get("stages"):
            return [_staged(run) for _ in range(what["count"])]
        return seconds(run, what["count"])

    answer(asked)


def _staged(run: Callable[[], ca.InspectResult]) -> dict[str, float]:
    """Returns milliseconds by stage from the reply, and the latency at the caller."""
    start = time.perf_counter()
    timings = asdict(run().timings)
    return {**timings, "whole_ms": (time.perf_counter() - start) * 1000}


if __name__ == "__main__":
    main(sys.argv[1])
