"""Comparisons of tensors: what counts as equal, and what an infinity or a NaN may hide."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from cutaway.engine.passes import reference_inputs
from cutaway.engine.passes.reference_inputs import gauss_legendre, rounds_to_tf32
from cutaway.engine.runtime.numerics import REPEATED, SAME_SHAPES, close, equal, largest_error, largest_magnitude

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("one", "other", "error"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([INF, NAN], [INF, NAN], 0.0),
        ([INF, 1.0], [-INF, 1.0], INF),
        ([NAN], [1.0], INF),
        ([1.0], [NAN], INF),
        ([1.0], [1.0, 1.0], INF),
        ([], [], 0.0),
    ],
)
def test_largest_error(one: list[float], other: list[float], error: float) -> None:
    """Equal infinities and NaNs are no error; others, and other shapes, are an infinite one."""
    sides = torch.tensor(one), torch.tensor(other)
    assert largest_error(*sides) == error
    assert equal(*sides) is (error == 0)
    assert close(*sides, REPEATED) is (error == 0)


def test_an_infinity_hides_no_error() -> None:
    """Errors are measured against the largest finite magnitude, also beside a masked logit of minus infinity."""
    logits, others = torch.tensor([-INF, 1.0, 2.0]), torch.tensor([-INF, 1.0, 2.1])
    assert largest_magnitude(logits) == 2.0
    assert not close(logits, others, SAME_SHAPES)
    assert close(logits, logits + 1e-6, SAME_SHAPES)


def test_integers_are_equal_or_not() -> None:
    """No tolerance applies to integers."""
    ids = torch.tensor([10**6])
    assert close(ids, ids.clone(), SAME_SHAPES)
    assert not close(ids, ids + 1, SAME_SHAPES)
    assert largest_magnitude(ids) == 0


def test_thousands_of_nodes_are_those_of_the_rule() -> None:
    """Ten thousand points in a second; they integrate polynomials exactly, and are distinct and in order."""
    nodes, weights = gauss_legendre(10_000)
    for power in (0, 2, 4, 20):
        assert abs(float(weights @ nodes**power) - 2 / (power + 1)) < 1e-13
    assert (np.diff(nodes) > 0).all()
    assert float(np.abs(nodes + nodes[::-1]).max()) < 1e-15


def test_both_ways_to_nodes_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    known = gauss_legendre(300)
    monkeypatch.setattr(reference_inputs, "_EIGENVALUES", 1)
    gauss_legendre.cache_clear()
    nodes, weights = gauss_legendre(300)
    gauss_legendre.cache_clear()
    np.testing.assert_allclose(nodes, known[0], rtol=0, atol=1e-15)
    np.testing.assert_allclose(weights, known[1], rtol=1e-9)


def test_which_operators_may_round_to_tf32() -> None:
    """By the settings of their libraries: convolutions and recurrent layers by default, products if allowed."""
    operators = {"conv": F.conv2d, "lstm": torch.lstm, "linear": F.linear, "product": torch.matmul, "relu": torch.relu}
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, products.allow_tf32
    try:
        for convolves, multiplies in ((True, False), (False, False), (False, True)):
            cudnn.allow_tf32, products.allow_tf32 = convolves, multiplies
            rounding = {name for name, operator in operators.items() if rounds_to_tf32(operator)}
            convolving = {"conv", "lstm"} if convolves else set()
            assert rounding == convolving | ({"linear", "product", "lstm"} if multiplies else set())
    finally:
        cudnn.allow_tf32, products.allow_tf32 = before
