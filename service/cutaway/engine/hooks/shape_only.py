"""Tensors that have a shape and a data type but no values, and need no memory: for a dry run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cutaway.engine.hooks.capture_spec import CapturedValues, CaptureSpec


def expanded_zeros(shape: Sequence[int], like: Tensor, data_type: str = "") -> Tensor:
    """Returns zeros of ``shape`` in the memory of one element, on the host.

    Args:
        shape: the shape.
        like: a tensor of the data type.
        data_type: the data type instead, by name, if ``like`` is floating; ``""`` for none.
    """
    dtype = getattr(torch, data_type) if data_type and like.is_floating_point() else like.dtype
    return torch.zeros((), dtype=dtype).expand(tuple(shape))


class ValueShape(CaptureSpec):
    """A capture of an activation that is applied, so that its errors show, but keeps the shape only."""

    def apply(self, tensor: Tensor, result_field: str) -> CapturedValues:
        """Returns the captured part as meta tensors."""
        return super().apply(tensor, result_field).map(_to_meta)


class GradientShape(CaptureSpec):
    """A capture of a gradient, applied to its activation, which has the same shape."""

    def apply(self, tensor: Tensor, result_field: str) -> CapturedValues:
        """Returns the part captured of the gradient at ``tensor`` as meta tensors.

        Integers have no gradient: ``tensor`` itself is returned.
        """
        if not has_gradient(tensor):
            return CapturedValues(_to_meta(tensor))
        part = CaptureSpec(**{**vars(self), "data_type": ""}).apply(tensor.to("meta"), result_field)
        typed = self.data_type and part.values.is_floating_point()
        return part._replace(values=part.values.to(getattr(torch, self.data_type))) if typed else part


def has_gradient(tensor: Tensor) -> bool:
    """Returns whether tensors of this data type can have a gradient."""
    return tensor.is_floating_point() or tensor.is_complex()


def with_zeros(part: CapturedValues) -> CapturedValues:
    """Returns ``part`` with zeros in place of meta tensors."""
    return part.map(lambda tensor: expanded_zeros(tensor.shape, tensor))


def _to_meta(tensor: Tensor) -> Tensor:
    return tensor.to("meta")
