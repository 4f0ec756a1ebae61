"""nnsight on the MLP: a plain forward pass, and one that saves the outputs of twelve layers."""

from __future__ import annotations

import sys

import nnsight  # type: ignore[import-not-found]
import torch

from bench.nets import LAYERS, Mlp, batch
from bench.pipe import answer, seconds


def main(rows: int, width: int) -> None:
    network, given = Mlp(width).eval(), batch(rows, width)
    wrapped = nnsight.NNsight(network)

    def plain() -> None:
        with torch.no_grad():
            network(given)

    def captured() -> None:
        with torch.no_grad(), wrapped.trace(given):
            saved = nnsight.save([wrapped.layers[layer].output for layer in range(LAYERS)])
        if len(saved) != LAYERS:
            raise RuntimeError("nnsight did not save every layer")

    runs = {"plain": plain, "captured": captured}
    answer(lambda what: seconds(runs[what["run"]], what["count"]))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
