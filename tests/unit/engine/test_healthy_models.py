"""Verdicts do not cry wolf: every method on models in which nothing is wrong."""

from __future__ import annotations

import pytest

from cutaway.contract.results import Verdict
from tests.matrix.healthy import HEALTHY, MOST_INCONCLUSIVE, run


@pytest.mark.slow
def test_healthy_models_are_believed() -> None:
    """Nothing disagrees, and hardly anything is inconclusive; the output names each that is."""
    total = run(HEALTHY, seed=0)
    assert total.share(Verdict.DISAGREES) == 0
    assert total.share(Verdict.INCONCLUSIVE) < MOST_INCONCLUSIVE
