"""The digits model as it is served: the network, and how to feed it.

This file travels alone inside the archive, so the network is in it too: the adapter imports nothing but what a
server has installed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cutaway.adapters import ImageAdapter

THREE = ("006egg20", "05gdbg00", "0072fc00", "0007gd10", "00006fa0", "00000f90", "003b8g60", "007gg800")
"""A three as somebody wrote it: a digit of base 17 for each pixel, g for white."""


class DigitsCNN(nn.Module):
    """8 x 8 grey pixels, 0 to 1, to ten logits; 21,546 parameters.

    Every step is a module of its own, so that a hook can sit on it; none works in place, so that what a hook saw
    stays what it was.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, kernel_size=3, padding=1)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(16, 32, kernel_size=3, padding=1)
        self.relu2 = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.flatten = nn.Flatten()
        self.fc1 = nn.Linear(32 * 4 * 4, 32)
        self.relu3 = nn.ReLU()
        self.fc2 = nn.Linear(32, 10)

    def forward(self, image: Tensor) -> Tensor:
        """Logits [batch, 10] of ``image`` [batch, 1, 8, 8]."""
        features = self.relu1(self.conv1(image))
        features = self.pool(self.relu2(self.conv2(features)))
        hidden = self.relu3(self.fc1(self.flatten(features)))
        logits: Tensor = self.fc2(hidden)
        return logits


class Digits(ImageAdapter):
    """Reads an image file as 8 x 8 grey pixels, and names the classes."""

    size = (8, 8)
    mode = "L"
    labels = tuple("0123456789")

    def build(self) -> nn.Module:
        """The network, untrained."""
        return DigitsCNN()

    def example(self) -> dict[str, Tensor]:
        """A three."""
        pixels = [[int(pixel, 17) / 16 for pixel in row] for row in THREE]
        return {"image": torch.tensor(pixels).reshape(1, 1, 8, 8)}
