"""Models of one process draw from the same generators: each request gets the numbers of its own seed all the same."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.gateway import serve
from tests.support.reply_equality import differences
from tests.support.waiting import PATIENCE_S

X = {"input": np.random.default_rng(0).random((1, 6), np.float32)}

SAMPLED = (
    ca.GradientShap(n_samples=4, baselines={"input": np.zeros((3, 6), np.float32)}),
    ca.Saliency(noise=ca.NoiseTunnel(n_samples=4, stdev=0.1)),
    ca.ShapleyValueSampling(n_samples=3),
    ca.KernelShap(n_samples=20),
)


class Gelus(nn.Sequential):
    """A few layers with weights of their own."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        super().__init__(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 3))


def test_models_that_are_asked_at_once_draw_from_their_own_seeds() -> None:
    """Values and verdicts of sampled methods are those of each model alone."""
    models: dict[str, Any] = {f"model{seed}": Gelus(seed).eval() for seed in range(4)}
    with serve(models) as server, ca.Client(server.address, timeout=PATIENCE_S) as client:

        def ask(name: str) -> ca.InspectResult:
            return client.inspect(name, X, attributions=SAMPLED, seed=3)

        alone = {name: ask(name) for name in models}
        with ThreadPoolExecutor(len(models)) as callers:
            names = [*models] * 6
            for name, result in zip(names, callers.map(ask, names), strict=True):
                assert not [*differences(result, alone[name], 1e-6)]


class Waits(nn.Module):
    """Takes its time in each pass behind the first ones, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.free = threading.Event(), threading.Event()
        self.wait_s = 0.01
        self.head = nn.Linear(6, 3)

    def forward(self, input: Tensor) -> Tensor:
        self.begun.set()
        self.free.wait(self.wait_s)
        logits: Tensor = self.head(input)
        return logits


def test_a_long_request_lends_the_generators_between_its_passes() -> None:
    """A sampled explanation of another model ends while one of a thousand passes is at work."""
    slow, order = Waits().eval(), list[str]()
    with (
        serve({"slow": slow, "quick": Gelus(0).eval()}) as server,
        ca.Client(server.address, timeout=PATIENCE_S) as client,
    ):

        def ask(name: str, method: ca.Attribution) -> None:
            client.inspect(name, X, attributions=[method], check="off", seed=1)
            order.append(name)

        with ThreadPoolExecutor(1) as callers:
            long = callers.submit(ask, "slow", ca.ShapleyValueSampling(n_samples=150))
            slow.begun.wait(PATIENCE_S)
            ask("quick", ca.ShapleyValueSampling(n_samples=2))
            slow.free.set()
            long.result()
    assert order == ["quick", "slow"]


def test_a_model_that_never_returns_keeps_nobody_from_drawing() -> None:
    """Its caller gives up; other models explain as before."""
    stuck = Waits().eval()
    stuck.wait_s = PATIENCE_S
    models: dict[str, Any] = {"stuck": stuck, "quick": Gelus(0).eval()}
    with (
        serve(models) as server,
        ca.Client(server.address, timeout=PATIENCE_S) as client,
        ThreadPoolExecutor(1) as callers,
    ):
        asked = callers.submit(client.inspect, "stuck", X, attributions=SAMPLED[1:2], seed=1)
        stuck.begun.wait(PATIENCE_S)
        before = client.inspect("quick", X, attributions=SAMPLED, seed=3)
        assert not asked.done()
        stuck.free.set()
        asked.result()
        assert not [*differences(client.inspect("quick", X, attributions=SAMPLED, seed=3), before, 1e-6)]
