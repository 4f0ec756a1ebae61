"""Quadrature rules: the points and weights of a path integral from 0 to 1."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64

from cutaway.requests import Quadrature
from cutaway.schema.tensors import Array


class Rule(NamedTuple):
    """``integral of f from 0 to 1 = sum(weights * f(alphas))``; the weights sum to 1."""

    alphas: Float64[Array, "n"]
    weights: Float64[Array, "n"]


gauss_legendre = lru_cache(maxsize=64)(np.polynomial.legendre.leggauss)
"""Returns nodes and weights of so many points from -1 to 1; cached, since 64 points take a millisecond."""


def rule(quadrature: Quadrature, n: int) -> Rule:
    """Returns the rule with ``n`` points from its textbook definition, in float64.

    Equidistant points are rounded to float32, as Captum's are: others would not equal Captum's points in float64.
    """
    if quadrature is Quadrature.GAUSS_LEGENDRE:
        nodes, weights = gauss_legendre(n)
        return Rule((nodes + 1) / 2, weights / 2)
    if quadrature is Quadrature.RIEMANN_TRAPEZOID:
        ends = np.full(n, 1 / (n - 1))
        ends[[0, -1]] /= 2
        return Rule(_even(0.0, 1.0, n), ends)
    shift = {
        Quadrature.RIEMANN_LEFT: 0.0,
        Quadrature.RIEMANN_MIDDLE: 0.5,
        Quadrature.RIEMANN_RIGHT: 1.0,
    }[quadrature]
    return Rule(_even(shift / n, 1 - (1 - shift) / n, n), np.full(n, 1 / n))


def _even(first: float, last: float, n: int) -> Float64[Array, "{n}"]:
    alphas: Array = torch.linspace(first, last, n, dtype=torch.float32).double().numpy()
    return alphas
