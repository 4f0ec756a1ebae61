"""Trains the tumours network: ``python -m examples.tumours.train tumours.safetensors``, a second or two."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from examples.tumours.data import Examples, held_out, training
from examples.tumours.tumours_adapter import TumoursNet

_STEPS = 200
_LEARNING_RATE = 1e-2
_SEED = 0


def train() -> TumoursNet:
    """A trained network, the same one each time on the same machine."""
    examples = training()
    features, classes = torch.from_numpy(examples.features), torch.from_numpy(examples.classes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        network = TumoursNet()
    network.mean, network.scale = features.mean(dim=0), features.std(dim=0)
    optimiser = torch.optim.AdamW(network.parameters(), _LEARNING_RATE, weight_decay=0.1)
    for _ in range(_STEPS):
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(features), classes).backward()
        optimiser.step()
    return network.eval()


def accuracy(network: nn.Module, examples: Examples) -> float:
    """The fraction of ``examples`` whose class the network predicts."""
    with torch.no_grad():
        predicted = network(torch.from_numpy(examples.features)).argmax(dim=1).numpy()
    return float((predicted == examples.classes).mean())


def train_and_save(weights: Path) -> float:
    """Trains, writes the weights and returns the accuracy on the tumours that training never saw."""
    network = train()
    save_file(network.state_dict(), weights)
    return accuracy(network, held_out())


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m examples.tumours.train WEIGHTS.safetensors")
    weights = Path(sys.argv[1])
    print(f"held-out accuracy {train_and_save(weights):.2%}; weights in {weights}")


if __name__ == "__main__":
    main()
