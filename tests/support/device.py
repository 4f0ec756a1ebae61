"""Where models of proofs run: on the CPU, or on a GPU with ``TEST_DEVICE=cuda``."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch
from torch import Tensor

DEVICE = torch.device(os.environ.get("TEST_DEVICE", "cpu"))


def on_device(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by name, on the device."""
    return {name: torch.as_tensor(tensor).to(DEVICE) for name, tensor in tensors.items()}
