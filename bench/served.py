"""The served models. This file is packed alone into an archive, so it imports only packages that servers have."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import ResNetConfig, ResNetForImageClassification

from cutaway.adapters import Adapter


class ResNet50(nn.Module):
    """transformers' default ResNet with seeded weights and its channel counts divided by ``divisor``."""

    def __init__(self, divisor: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        config: Any = ResNetConfig()
        config.embedding_size //= divisor
        config.hidden_sizes = [size // divisor for size in config.hidden_sizes]
        network: Any = ResNetForImageClassification(config)
        self.resnet = network.resnet
        self.classifier = network.classifier

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Returns logits [batch, classes] of ``pixel_values`` [batch, 3, height, width]."""
        logits: Tensor = self.classifier(self.resnet(pixel_values).pooler_output)
        return logits


class Wall(nn.Module):
    """A module with almost no computation and a large inner tensor: ``bricks`` float32 values per row."""

    def __init__(self, bricks: int) -> None:
        super().__init__()
        self.wall = Bricks(bricks)

    def forward(self, height: Tensor) -> Tensor:
        """Maps [batch, 1] to [batch, 1]."""
        bricks: Tensor = self.wall(height)
        return bricks[:, :1] + height


class Bricks(nn.Module):
    """The captured layer; its values are precomputed, so time goes into transport."""

    def __init__(self, bricks: int) -> None:
        super().__init__()
        self.bricks = nn.Parameter(torch.arange(bricks, dtype=torch.float32)[None], requires_grad=False)

    def forward(self, height: Tensor) -> Tensor:
        """Returns the stored values expanded to [batch, bricks]."""
        return self.bricks.expand(len(height), -1)


class ResNetAdapter(Adapter):
    """Serves `ResNet50`, with the channels divided by the option ``divisor``."""

    def build(self) -> nn.Module:
        """Returns the network."""
        return ResNet50(int(self.options.get("divisor", 1))).eval()


class WallAdapter(Adapter):
    """Serves a `Wall` of the size given by the option ``mebibytes``."""

    def build(self) -> nn.Module:
        """Returns the network."""
        return Wall(int(self.options["mebibytes"]) << 18).eval()
