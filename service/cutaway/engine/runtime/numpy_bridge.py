"""Conversion between numpy arrays, which messages carry, and torch tensors."""

from __future__ import annotations

import ml_dtypes
import torch

from cutaway.schema.tensors import Array


def from_numpy(array: Array) -> torch.Tensor:
    """Returns a tensor with a copy of ``array``: arrays of messages are read-only, and models may write to inputs."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view("int16").copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def to_numpy(tensor: torch.Tensor) -> Array:
    """Returns ``tensor`` as an array on the host."""
    host = tensor.detach() if tensor.requires_grad else tensor
    host = host if host.device.type == "cpu" else host.cpu()
    if host.dtype == torch.bfloat16:
        return host.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    array: Array = host.numpy()
    return array
