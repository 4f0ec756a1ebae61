"""Our engine on the MLP: a plain forward pass, one with twelve captured layers, and one that stops at layer three."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

import cutaway as ca
from bench.nets import LAYERS, Mlp, batch
from bench.pipe import answer, seconds
from cutaway.adapters import TensorAdapter, load_model
from cutaway.engine.execution.inspect import inspect

STOP = 3
"""The captured layer when the forward pass may stop early."""


def main(rows: int, width: int, device: str) -> None:
    network, given = Mlp(width).eval().to(device), batch(rows, width).to(device)
    model = load_model(TensorAdapter(network), device)
    every = ca.InspectRequest("m", captures=tuple(ca.Capture(f"layers.{layer}", call=0) for layer in range(LAYERS)))
    early = ca.InspectRequest("m", captures=(ca.Capture(f"layers.{STOP - 1}", call=0),), omit_predictions=True)

    def plain() -> None:
        with torch.no_grad():
            network(given)
        _wait(device)

    def captured() -> None:
        _expect(inspect(model, every, {"features": given}), range(LAYERS))

    def stopped() -> None:
        _expect(inspect(model, early, {"features": given}), [STOP - 1])

    runs = {"plain": plain, "captured": captured, "stopped": stopped}
    answer(lambda what: seconds(runs[what["run"]], what["count"]))


def _expect(result: ca.InspectResult, layers: Sequence[int]) -> None:
    if set(result.captures) != {f"layers.{layer}" for layer in layers}:
        raise RuntimeError(f"captured {sorted(result.captures)}")


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
