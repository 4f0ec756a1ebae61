"""Between numpy, which the wire carries, and torch."""

from __future__ import annotations

import ml_dtypes
import torch

from cutaway.tensors import Array


def from_numpy(array: Array) -> torch.Tensor:
    """A tensor with a copy of ``array``: wire arrays are read-only, and the model may write into its inputs."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view("int16").copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def to_numpy(tensor: torch.Tensor) -> Array:
    """``tensor`` as an array on the host."""
    host = tensor.detach().cpu()
    if host.dtype == torch.bfloat16:
        return host.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    array: Array = host.numpy()
    return array
