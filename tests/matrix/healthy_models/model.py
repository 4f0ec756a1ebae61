"""What a healthy model is, and how it is trained."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from tests.matrix.asking import Places
from tests.matrix.healthy_models.data import Data

Loss = Callable[[Tensor, Tensor], Tensor]
"""Of what the model returned and what should have come out."""

ROWS = 3
"""How many examples are explained at once."""

BATCH = 64

PREDICTED = ca.PredictedClass()

GUIDED = ("GuidedBackprop", "Deconvolution", "GuidedGradCam", "NeuronGuidedBackprop", "NeuronDeconvolution")
DEEP_LIFT = ("DeepLift", "DeepLiftShap", "NeuronDeepLift", "NeuronDeepLiftShap", "LayerDeepLift", "LayerDeepLiftShap")
LRP = ("LRP", "LayerLRP")
BY_MODULES = GUIDED + DEEP_LIFT + LRP
"""Methods that need every nonlinearity to be a module of a certain kind."""


@dataclass(frozen=True)
class Healthy:
    """One model, and what it is asked.

    Attributes:
        make: makes it, with whatever weights.
        data: what it learns from, and what is explained.
        lacks: methods that do not apply to it.
        loss: what training makes small; None where it is not trained.
        dtype: what it computes in when it is explained.
        read: the output [batch, classes] or [batch] that the target is read from, out of what the model returns.
    """

    name: str
    make: Callable[[], nn.Module]
    data: Callable[[], Data]
    places: Places
    lacks: tuple[str, ...] = ()
    loss: Loss | None = F.cross_entropy
    steps: int = 80
    rate: float = 0.01
    target: ca.Target = PREDICTED
    dtype: torch.dtype = torch.float32
    read: Callable[[Any], Tensor] = lambda returned: returned

    def build(self, seed: int = 0) -> nn.Module:
        """The model in evaluation mode; the same weights for the same seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(zlib.crc32(self.name.encode()) + seed)
            model = self.make()
            if self.loss is None:
                _shake(model)
            else:
                _train(model, self.data(), self.loss, self.steps, self.rate)
        # Conversion to a real data type would make real numbers of complex ones.
        return (model if self.dtype is torch.float32 else model.to(self.dtype)).eval()

    def examples(self, seed: int = 0) -> dict[str, Tensor]:
        """The rows that are explained."""
        count = len(self.data().aims)
        rows = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:ROWS]
        found = {name: every[rows] for name, every in self.data().inputs.items()}
        return {name: rows.to(self.dtype) if rows.is_floating_point() else rows for name, rows in found.items()}


def _train(model: nn.Module, data: Data, loss: Loss, steps: int, rate: float) -> None:
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(learning, lr=rate)
    model.train()
    for _ in range(steps):
        rows = torch.randint(0, len(data.aims), (BATCH,))
        optimizer.zero_grad()
        loss(model(*(every[rows] for every in data.inputs.values())), data.aims[rows]).backward()
        optimizer.step()
    model.zero_grad()


@torch.no_grad()
def _shake(model: nn.Module) -> None:
    """Moves what is freshly made of zeros and ones (biases, scales), beside which a wrong gradient may look right."""
    for parameter in model.parameters():
        if parameter.is_floating_point() and not parameter.is_complex():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
