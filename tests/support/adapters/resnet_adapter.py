"""A ResNet-50 as transformers defines it, with seeded random weights: a real, deep network without a download."""

import torch
from torch import nn
from transformers import ResNetConfig, ResNetForImageClassification

from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec


class ResNet(Adapter):
    """Seeded, so that two processes build the same one."""

    inputs = (InputSpec("pixel_values", "float32", (-1, 3, -1, -1)),)
    labels = ("cat", "dog")

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return ResNetForImageClassification(ResNetConfig())
