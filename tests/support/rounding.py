"""How far two sound computations of the same numbers may be apart.

A floating-point operation rounds its result by at most half of ``eps``. In which order a sum is computed, and with
which instructions, depends on the CPU, on the number of threads and on the number of rows. After ``n`` operations in a
row the error is at most ``n * eps / 2``; as rounding errors have both signs, it is hardly ever more than
``2 * sqrt(n) * eps`` (Higham and Mary, "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput.
41(5), 2019, with ``lambda = 4``). Two computations differ by at most twice the error of one:

    rounding(dtype, n) = min(n, 4 * sqrt(n)) * eps(dtype)

relative to the largest magnitude of the tensor, because terms of a sum may cancel.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

SMALL = 64
"""Rounded operations in the small networks of these tests: sums of up to 16 products in two layers, there and back."""


def rounding(dtype: torch.dtype, operations: int) -> float:
    """Returns how far two computations in ``dtype`` may be apart, relative to the largest magnitude.

    Args:
        dtype: the floating-point type of the computation.
        operations: the number of operations on the way from the inputs to one value. A sum of ``k`` products counts as
            ``k``; layers add up, and so do the forward and the backward pass.
    """
    return float(min(operations, 4 * math.sqrt(operations)) * torch.finfo(dtype).eps)


def close(ours: Any, theirs: Any, operations: int) -> bool:
    """Returns whether two arrays or tensors have one shape and differ by no more than `rounding` of ``theirs``' dtype.

    Infinities must be the same infinities, and NaN must stand at the same positions.
    """
    dtype = theirs.dtype if isinstance(theirs, torch.Tensor) else torch.from_numpy(np.zeros(0, theirs.dtype)).dtype
    return within(ours, theirs, rounding(dtype, operations))


def within(ours: Any, theirs: Any, relative: float) -> bool:
    """Returns whether two arrays or tensors have one shape and differ by at most ``relative`` of the largest magnitude
    in ``theirs``; infinities and NaN must be the same."""
    one, other = _doubles(ours), _doubles(theirs)
    if one.shape != other.shape:
        return False
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    error = np.abs(np.where(same, 0.0, one - other)).max(initial=0.0)
    return bool(error <= relative * np.abs(other[np.isfinite(other)]).max(initial=0.0))


def _doubles(values: Any) -> Any:
    return np.asarray(values.detach().double() if isinstance(values, torch.Tensor) else values, np.float64)
