"""Texts that a model writes for many callers, some of whom leave, while workers are killed."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import cutaway as ca
from tests.support.causal_lms import saved
from tests.support.cli import said
from tests.support.processes import resident_bytes, worker
from tests.support.serving import serving

GENERATIONS, CALLERS, KINDS = 2000, 12, 120
KILL_EVERY_S = 8.0
MOST_GROWTH_MIB = 100
TEXTS = ("the hooks see layers of the layers", "hooks", "see the hooks", "the", "see see see the hooks")


def question(number: int) -> tuple[str, dict[str, Any]]:
    """One of the kinds of questions: of any length, drawn or not, steered or not, with captures or without."""
    draw = random.Random(number)
    steps = draw.randint(1, 30)
    options = {"temperature": draw.choice([0.7, 1.2]), "top_k": draw.choice([0, 5])} if draw.random() < 0.6 else {}
    asked: dict[str, Any] = {"generate": {"max_new_tokens": steps, **options}, "seed": number}
    if draw.random() < 0.5:
        vector = np.random.default_rng(number).normal(size=16).astype(np.float32)
        some = range(draw.randint(0, steps - 1), steps)
        asked["edits"] = [ca.AddVector("transformer.h.0", vector, norm="match", steps=some)]
    if draw.random() < 0.5:
        asked["captures"] = [ca.Capture("transformer.h.*", position=-1)]
    return draw.choice(TEXTS), asked


def trial(directory: Path) -> list[str]:
    """Every call that stays gets what it gets alone; nothing grows."""
    store = directory / "store"
    saved(directory / "saved")
    said("package", "gpt", "--transformers", directory / "saved", "--output", store, "--workers", 2)
    processes = serving(store, directory / "logs", "--engine", "processes")
    with processes as server, ca.Client(server.address, timeout=120) as client:
        alone = [client.inspect("gpt", text, **asked) for text, asked in map(question, range(KINDS))]
        before = resident_bytes(server)
        counts, kills = Counter[str](), 0
        numbers = iter(range(GENERATIONS))
        callers = [
            threading.Thread(target=_call, args=(client, alone, numbers, seed, counts)) for seed in range(CALLERS)
        ]
        for caller in callers:
            caller.start()
        while any(caller.is_alive() for caller in callers):
            time.sleep(KILL_EVERY_S)
            if any(caller.is_alive() for caller in callers):
                worker(server, "gpt").kill()
                kills += 1
        grown = (resident_bytes(server) - before) / 2**20
    if counts["wrong"] or counts["lost"] or grown > MOST_GROWTH_MIB:
        raise AssertionError(f"{dict(counts)}, {grown:.0f} MiB more")
    told = ", ".join(f"{counts[name]} {name}" for name in ("right", "left", "broken off", "together"))
    return [
        f"{GENERATIONS} generations of {CALLERS} callers and {kills} kills: {told}, 0 wrong or lost; {grown:+.0f} MiB"
    ]


_lock = threading.Lock()


def _call(client: ca.Client, alone: list[Any], numbers: Iterator[int], seed: int, counts: Counter[str]) -> None:
    draw = random.Random(seed)
    while True:
        with _lock:
            if next(numbers, None) is None:
                return
        kind = draw.randrange(KINDS)
        try:
            outcomes = _outcomes(client, alone[kind], kind, draw)
        except ca.CutawayError as failure:
            is_begun = failure.reason == "WORKER_DIED"  # a stream whose first tokens were sent cannot begin anew
            print(failure, flush=True)
            outcomes = ["broken off" if is_begun else "lost"]
        with _lock:
            counts.update(outcomes)


def _outcomes(client: ca.Client, alone: Any, kind: int, draw: random.Random) -> list[str]:
    text, asked = question(kind)
    if draw.random() < 0.15:
        with client.inspect_stream("gpt", text, **asked) as stream:
            for number, _ in enumerate(stream.tokens()):
                if number == 2:
                    break
        return ["left"]
    streams = draw.random() < 0.4
    result = client.inspect_stream("gpt", text, **asked).result() if streams else client.inspect("gpt", text, **asked)
    is_right = result.texts == alone.texts and result.replay is not None and result.replay.verdict == "AGREES"
    for name, capture in alone.captures.items():
        pairs = zip(result.captures[name].calls, capture.calls, strict=True)
        is_right &= all(np.allclose(one.output, other.output, rtol=0, atol=1e-4) for one, other in pairs)
    return ["right" if is_right else "wrong", *["together"] * (result.provenance.companions > 0)]
