"""Tensors of a shape and a data type that hold no numbers, and take no memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cutaway.engine.arrays import to_numpy
from cutaway.engine.wishes import Part, Wish
from cutaway.tensors import Array


def zeros(shape: Sequence[int], like: Tensor) -> Tensor:
    """One number that stands for all of a tensor, of the data type of ``like``."""
    device = "cpu" if like.is_meta else like.device
    return torch.zeros((), dtype=like.dtype, device=device).expand(tuple(shape))


def array(shape: Sequence[int], like: Tensor, data_type: str = "") -> Array:
    """The same for the host, as ``data_type`` where that is asked for and ``like`` holds fractions."""
    dtype = getattr(torch, data_type) if data_type and like.is_floating_point() else like.dtype
    return to_numpy(torch.zeros((), dtype=dtype).expand(tuple(shape)))


class OfValue(Wish):
    """A wish that is granted, so that whatever is wrong with it shows; only the shape is kept."""

    def of(self, tensor: Tensor, place: str) -> Part:
        """What is wanted of ``tensor``, without numbers."""
        return _shapes(super().of(tensor, place))


class OfGradient(Wish):
    """A wish for a gradient, at its value: that is another tensor, of the same shape."""

    def of(self, tensor: Tensor, place: str) -> Part:
        """What is wanted of the gradient at ``tensor``, without numbers; ``tensor`` itself where none comes."""
        if not has_gradient(tensor):
            return _shapes(Part(tensor))
        part = Wish(**{**vars(self), "data_type": ""}).of(tensor.to("meta"), place)
        typed = self.data_type and part.values.is_floating_point()
        return part._replace(values=part.values.to(getattr(torch, self.data_type))) if typed else part


def has_gradient(tensor: Tensor) -> bool:
    """Whether gradients arrive at tensors of its data type."""
    return tensor.is_floating_point() or tensor.is_complex()


def filled(part: Part) -> Part:
    """``part`` with zeros for its numbers."""
    return Part(*(None if each is None else zeros(each.shape, each) for each in part))  # type: ignore[arg-type]


def _shapes(part: Part) -> Part:
    return Part(*(None if each is None else each.to("meta") for each in part))  # type: ignore[arg-type]
