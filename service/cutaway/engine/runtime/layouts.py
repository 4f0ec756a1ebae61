"""Tensors that are no plain arrays: sparse, nested, quantised, of oneDNN, and subclasses that hold other tensors.

The rest of the engine copies, compares and cuts arrays. It gets the array of the same values from `dense`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

_INDICES: dict[torch.layout, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    torch.sparse_csr: lambda tensor: (tensor.crow_indices(), tensor.col_indices()),
    torch.sparse_bsr: lambda tensor: (tensor.crow_indices(), tensor.col_indices()),
    torch.sparse_csc: lambda tensor: (tensor.ccol_indices(), tensor.row_indices()),
    torch.sparse_bsc: lambda tensor: (tensor.ccol_indices(), tensor.row_indices()),
}
"""The indices of the compressed sparse layouts."""


def has_array(tensor: Tensor) -> bool:
    """Returns whether an array has the values of ``tensor``.

    The rows of a nested tensor have lengths of their own, and a tensor inside ``torch.vmap`` stands for many.
    """
    return not (tensor.is_nested or torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def is_array(tensor: Tensor) -> bool:
    """Returns whether ``tensor`` has strides and memory of its own."""
    return tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_quantized or _is_wrapper(tensor))


def dense(tensor: Tensor) -> Tensor:
    """Returns a tensor with strides of the same values, in the same graph; ``tensor`` itself if it has strides."""
    if is_array(tensor):
        return tensor
    if tensor.is_quantized:
        return tensor.dequantize()
    if tensor.layout is not torch.strided:
        return tensor.to_dense()
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def in_layout_of(tensor: Tensor, array: Tensor) -> Tensor:
    """Returns ``array`` in the layout of ``tensor``, which is of the same shape and has no strides."""
    if tensor.is_mkldnn:
        return array.to_mkldnn()
    if tensor.layout is torch.sparse_coo:
        return array.to_sparse(tensor.sparse_dim())
    blocks = tensor.values().shape[1:3] if tensor.layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    return array.to_sparse(layout=tensor.layout, blocksize=blocks, dense_dim=tensor.dense_dim())


def arrays_of(tensor: Tensor) -> list[Tensor]:
    """Returns the tensors with strides that ``tensor`` consists of; copies where it does not show its memory."""
    if _is_wrapper(tensor) and hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return [array for name in names for array in arrays_of(getattr(tensor, name))]
    if tensor.is_nested:
        return [tensor.values(), tensor._nested_tensor_size()]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in _INDICES:
        return [*_INDICES[tensor.layout](tensor), tensor.values()]
    if tensor.is_quantized:
        return [tensor.int_repr(), tensor.dequantize()]
    return [dense(tensor)]


def _is_wrapper(tensor: Tensor) -> bool:
    """Returns whether a subclass computes with tensors that it holds; its own memory then has no values."""
    return type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__


def digest(state: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of the tensors of a state by name; what else is in it does not count."""
    found = hashlib.sha256()
    for name, tensor in state.items():
        if isinstance(tensor, Tensor):
            for array in arrays_of(tensor.detach()):
                found.update(f"{name}:{array.dtype}:{list(array.shape)}".encode())
                found.update(array.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()
