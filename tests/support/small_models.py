"""Small models and adapters for tests that need no large one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cutaway.adapters import Adapter, ImageAdapter
from cutaway.contract.results import InputSpec


class Net(nn.Module):
    """An image [batch, 1, 8, 8] to ten logits, in steps with names."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(4, 8, 3)
        self.unused = nn.Linear(3, 3)
        self.fc = nn.Linear(8 * 4 * 4, 10)

    def forward(self, image: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.fc(self.conv2(self.relu(self.conv1(image))).flatten(1))
        return logits


class Images(ImageAdapter):
    """`Net`, reading image files."""

    size = (8, 8)
    mode = "L"
    labels = tuple("0123456789")

    def build(self) -> nn.Module:
        """A seeded net."""
        torch.manual_seed(0)
        return Net()


class Tokens(nn.Module):
    """Token ids and weights of tokens, to three logits; the mask has a default."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, ids: Tensor, weight: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits."""
        words = self.words(ids) * weight.unsqueeze(-1)
        if mask is not None:
            words = words * mask.unsqueeze(-1)
        logits: Tensor = self.head(words.mean(dim=1))
        return logits


class Words(Adapter):
    """`Tokens`, with its inputs declared."""

    inputs = (
        InputSpec("ids", "int64", (-1, -1)),
        InputSpec("weight", "float32", (-1, -1)),
        InputSpec("mask", "bool", (-1, -1), optional=True),
    )

    def build(self) -> nn.Module:
        """A seeded model."""
        torch.manual_seed(0)
        return Tokens()


class Slow(nn.Module):
    """Takes its time: for deadlines and queues."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(256, 256)

    def forward(self, x: Tensor) -> Tensor:
        """About a second of work for each thousand of ``x[0, 0]``."""
        for _ in range(int(x[0, 0])):
            x = x * 0 + torch.tanh(self.step(torch.ones(256, 256)))[: x.shape[0]] * 0 + x
        return self.step(x)
