"""Ten thousand mixed requests, a fifth of which fail; and callers whose worker is killed every ten seconds."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import torch

import cutaway as ca
from tests.support.adapters.mirror_adapter import COUNTS
from tests.support.mixed import mirror
from tests.support.mixed.callers import CALLERS, Callers, ask_all, beside
from tests.support.mixed.mix import Request, draw, requests, small_models
from tests.support.processes import family, worker
from tests.support.serving import Server

A_ROUND = 1_000
WARMING = 5
"""Rounds before anything is counted: every kind of request has been in many turns, and memory has been cut to fit."""

ROUNDS = 10
GROWTH = 0.05
"""By how much memory may grow from the end of the warm-up to the last round."""

KILLS = 6
EVERY_S = 10


def killed(server: Server, store: Path) -> list[str]:
    """No call is lost, and none is answered wrongly, while the worker is killed every ten seconds for a minute."""
    with ca.Client(server.address) as client:
        callers = Callers([client], requests(small_models(store)[0])[0], deadline_s=60.0, tries_again=False)
        with beside(*callers.asking()):
            for _ in range(KILLS):
                time.sleep(EVERY_S)
                worker(server, "digits").kill()
    if callers.faults:
        raise AssertionError(f"{dict(callers.outcomes)}: {callers.faults[:3]}")
    took = sorted(callers.took)
    return [
        f"{len(took)} calls by {CALLERS} callers in {KILLS * EVERY_S} s, {KILLS} kills: 0 lost, 0 wrong",
        f"the slowest took {took[-1]:.1f} s, the median {took[len(took) // 2] * 1000:.0f} ms",
    ]


def trial(server: Server, store: Path) -> list[str]:
    """After a warm-up: no wrong reply, no hook left, no growth, no open file more."""
    subjects = small_models(store)
    sizes, files = [], []
    wrong: list[str] = []
    for number in range(WARMING + ROUNDS):
        drawn: list[Request] = draw(subjects, A_ROUND, number)
        outcomes = ask_all(server.address, drawn)
        wrong += [fault for request, outcome in zip(drawn, outcomes) if (fault := request.wrong(outcome))]
        sizes.append(_memory(server))
        files.append(psutil.Process(server.process.pid).num_fds())
    left = _left(server)
    sizes, files = sizes[WARMING - 1 :], files[WARMING - 1 :]
    grown = {name: sizes[-1][name] / sizes[0][name] - 1 for name in sizes[0]}
    growth = ", ".join(f"{name} {sizes[0][name]:.0f} to {sizes[-1][name]:.0f} MiB" for name in grown)
    lines = [
        f"{ROUNDS * A_ROUND} requests after {WARMING * A_ROUND} to warm up, a fifth failing: {len(wrong)} wrong",
        f"hooks, modes and gradients left: {left}",
        f"memory after warm-up: {growth} ({max(grown.values()):+.1%} at most)",
        f"open files of the gateway, round by round: {files}",
    ]
    if wrong or any(left.values()) or max(grown.values()) > GROWTH or files[-1] > files[0] + 2:
        raise AssertionError("\n".join([*lines, *wrong[:5]]))
    return lines


def _memory(server: Server) -> dict[str, float]:
    """MiB of the gateway, and of the workers together; the JVM's heap is its own to fill."""
    found = {"gateway": 0.0, "workers": 0.0}
    for each, words in family(server):
        if any("model_service_worker" in word for word in words):
            found["workers"] += each.memory_info().rss / (1 << 20)
        elif each.pid == server.process.pid:
            found["gateway"] = each.memory_info().rss / (1 << 20)
    return found


def _left(server: Server) -> dict[str, int]:
    with ca.Client(server.address) as client:
        asked = {**mirror.inputs(), "ask": torch.zeros(mirror.ROWS, dtype=torch.int64)}
        counts = client.inspect("mirror", asked).predictions["counts"][0].tolist()
    state = dict(zip(COUNTS, counts))
    return {name: state[name] for name in ("hooks", "modes", "training", "gradients")}
