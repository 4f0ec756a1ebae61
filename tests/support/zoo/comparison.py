"""Whether what the service captured is what the reference saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

import cutaway as ca
from cutaway.contract.requests import PointName
from tests.support.zoo.reference import Array, Call

POINTS: tuple[PointName, ...] = ("input", "output", "grad_input", "grad_output")


def compare(
    captures: Mapping[str, ca.ModuleCapture], wanted: Mapping[str, Sequence[Call]], points: Sequence[str]
) -> int:
    """Assert that the two have the same modules, calls and tensors.

    Returns:
        How many tensors were compared.
    """
    assert set(captures) == set(wanted)
    return sum(_compare_module(name, captures[name].calls, calls, points) for name, calls in wanted.items())


def _compare_module(name: str, got: Sequence[ca.CapturedCall], wanted: Sequence[Call], points: Sequence[str]) -> int:
    assert len(got) == len(wanted), f"{name or 'the model'}: {len(got)} calls, not {len(wanted)}"
    return sum(
        assert_equal(call.leaves.get(ca.Point(point), {}), expected[point], f"{name or 'the model'}#{index}, {point}")
        for index, (call, expected) in enumerate(zip(got, wanted))
        for point in points
    )


def assert_equal(found: Mapping[str, Array], expected: Mapping[str, Array], where: str) -> int:
    """Assert that there are the same tensors at the same paths; returns how many."""
    assert set(found) == set(expected), f"{where}: {sorted(found)}, not {sorted(expected)}"
    for path, tensor in expected.items():
        assert same(found[path], tensor), f"{where} {path}: {found[path]} is not {tensor}"
    return len(expected)


def same(got: Array, wanted: Array) -> bool:
    """Whether the two agree within 1e-9: of an element's own size, or of 1, or of the largest element where that is
    less than 1."""
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return False
    finite = np.abs(wanted[np.isfinite(wanted)], dtype=np.float64)
    scale = float(finite.max(initial=0.0))
    return np.allclose(got, wanted, rtol=1e-9, atol=1e-9 * min(scale, 1.0))
