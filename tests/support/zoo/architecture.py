"""What a row of the zoo is, and how its weights are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Architecture:
    """One kind of network, and one batch for it.

    Attributes:
        name: what it is served as.
        make: makes it, with whatever weights.
        inputs: a batch, by forward-argument name.
        target: the class differentiated, one an example.
        read: the output [batch, classes] that the target is read from, out of what the network returns.
        output: the name of that output; empty where it is the first.
        silent: modules that this batch never calls, but for lists of modules, which are never called at all.
    """

    name: str
    make: Callable[[], nn.Module]
    inputs: Mapping[str, Tensor]
    target: tuple[int, ...]
    read: Callable[[Any], Tensor] = lambda returned: returned
    output: str = ""
    silent: frozenset[str] = frozenset()

    def build(self) -> nn.Module:
        """The network in float64 and evaluation mode; the same weights each time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = self.make().double().eval()
            _shake(module)
        return module


def noise(*shape: int, seed: int = 1) -> Tensor:
    """Seeded normal noise, float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@torch.no_grad()
def _shake(module: nn.Module) -> None:
    # Freshly made networks are full of zeros and ones (biases, scales, running statistics), beside which a wrong
    # gradient may look right.
    for parameter in module.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=0.1)
    for each in module.modules():
        if isinstance(each, nn.BatchNorm2d) and each.running_mean is not None and each.running_var is not None:
            each.running_mean.normal_()
            each.running_var.uniform_(0.5, 1.5)
