"""The tumours model as it is served: the network, and the names of its features and classes.

This file travels alone inside the archive, so the network is in it too.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec

FEATURES = (
    "mean radius",
    "mean texture",
    "mean perimeter",
    "mean area",
    "mean smoothness",
    "mean compactness",
    "mean concavity",
    "mean concave points",
    "mean symmetry",
    "mean fractal dimension",
    "radius error",
    "texture error",
    "perimeter error",
    "area error",
    "smoothness error",
    "compactness error",
    "concavity error",
    "concave points error",
    "symmetry error",
    "fractal dimension error",
    "worst radius",
    "worst texture",
    "worst perimeter",
    "worst area",
    "worst smoothness",
    "worst compactness",
    "worst concavity",
    "worst concave points",
    "worst symmetry",
    "worst fractal dimension",
)  # fmt: skip
"""What is measured of the nuclei in one image, in the order of the network's input."""

LABELS = ("malignant", "benign")
"""The classes, in the order of their index."""

_EXAMPLE = (
    *(17.08, 27.15, 111.2, 930.9, 0.09898, 0.111, 0.1007, 0.06431, 0.1793, 0.06281),
    *(0.9291, 1.152, 6.051, 115.2, 0.00874, 0.02219, 0.02721, 0.01458, 0.02045, 0.004417),
    *(22.96, 34.49, 152.1, 1648.0, 0.16, 0.2444, 0.2639, 0.1555, 0.301, 0.0906),
)
"""A malignant tumour that the network was not trained on."""

_HIDDEN = 16


class TumoursNet(nn.Module):
    """30 measurements to two logits; 530 parameters, and the mean and scale of each feature."""

    mean: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(len(FEATURES)))
        self.register_buffer("scale", torch.ones(len(FEATURES)))
        self.fc1 = nn.Linear(len(FEATURES), _HIDDEN)
        self.tanh = nn.Tanh()
        self.fc2 = nn.Linear(_HIDDEN, len(LABELS))

    def forward(self, features: Tensor) -> Tensor:
        """Logits [batch, 2] of ``features`` [batch, 30], in the units of the data set."""
        logits: Tensor = self.fc2(self.tanh(self.fc1((features - self.mean) / self.scale)))
        return logits


class Tumours(Adapter):
    """Names the features and the classes."""

    inputs = (InputSpec("features", "float32", (-1, len(FEATURES)), feature_names=FEATURES),)
    labels = LABELS

    def build(self) -> nn.Module:
        """The network, untrained."""
        return TumoursNet()

    def example(self) -> dict[str, Tensor]:
        """One row of the data set."""
        return {"features": torch.tensor([_EXAMPLE])}
