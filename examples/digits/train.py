"""Trains the digits network: ``python -m examples.digits.train build/digits.safetensors``, a few seconds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from examples.digits.data import Examples, held_out, training
from examples.digits.digits_adapter import DigitsCNN
from examples.training import reproducible

REQUIRED_ACCURACY = 0.97
_EPOCHS = 25
_BATCH = 64
_PEAK_LEARNING_RATE = 5e-3
_SEED = 0


def train() -> DigitsCNN:
    """A trained network, the same one each time."""
    images, labels = _tensors(training())
    with reproducible(_SEED):
        network = DigitsCNN()
        optimiser = torch.optim.AdamW(network.parameters(), weight_decay=1e-2)
        steps = _EPOCHS * -(-len(images) // _BATCH)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, _PEAK_LEARNING_RATE, total_steps=steps)
        for batch in _batches(len(images)):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(network(_shifted(images[batch])), labels[batch], label_smoothing=0.05)
            loss.backward()
            optimiser.step()
            schedule.step()
    return network.eval()


def accuracy(network: nn.Module) -> float:
    """The fraction of held-out digits that ``network`` reads right."""
    images, labels = _tensors(held_out())
    with torch.inference_mode():
        return float((network(images).argmax(dim=1) == labels).double().mean())


def train_and_save(weights: Path) -> float:
    """Train, save the weights to ``weights`` and return the accuracy on held-out digits.

    Raises:
        SystemExit: the network reads fewer than 97 % of them right, and is not saved.
    """
    network = train()
    reached = accuracy(network)
    if reached < REQUIRED_ACCURACY:
        raise SystemExit(f"held-out accuracy is {reached:.1%}, below the {REQUIRED_ACCURACY:.0%} that must be reached")
    weights.parent.mkdir(parents=True, exist_ok=True)
    save_file(network.state_dict(), weights)
    return reached


def _tensors(examples: Examples) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(examples.images), torch.from_numpy(examples.labels)


def _batches(count: int) -> Iterator[Tensor]:
    for _ in range(_EPOCHS):
        yield from torch.randperm(count).split(_BATCH)


def _shifted(images: Tensor) -> Tensor:
    """The batch, moved by up to a pixel in any direction: nobody writes dead centre."""
    down, right = (int(offset) for offset in torch.randint(0, 3, (2,)))
    return nn.functional.pad(images, (1, 1, 1, 1))[..., down : down + 8, right : right + 8]


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m examples.digits.train WEIGHTS.safetensors")
    weights = Path(sys.argv[1])
    print(f"held-out accuracy {train_and_save(weights):.2%}; weights in {weights}")


if __name__ == "__main__":
    main()
