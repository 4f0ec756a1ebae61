"""Verdicts do not cry wolf: every method on models in which nothing is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cutaway.contract.results import Verdict
from tests.matrix.healthy import HEALTHY, MOST_INCONCLUSIVE, run

SAMPLE = ("table-products", "steps-first-rnn", "siamese-absolute", "complex-filter")
"""One model of some kinds; the slow test has all."""


@pytest.mark.parametrize("name", SAMPLE)
def test_a_healthy_model_is_believed_and_explained_as_captum_does(name: str) -> None:
    """Untrained, so that it is the same on every machine: nothing disagrees, no refusal blames the model, and every
    value is Captum's."""
    (healthy,) = (each for each in HEALTHY if each.name == name)
    total = run([replace(healthy, loss=None)], seed=0)
    assert total.share(Verdict.AGREES) > 0.9
    assert (total.share(Verdict.DISAGREES), total.blames, total.off) == (0, 0, 0)
    assert total.compared == total.verdicts.total() > 0


@pytest.mark.slow
def test_healthy_models_are_believed() -> None:
    """Nothing disagrees, and hardly anything is inconclusive; the output names each that is."""
    total = run(HEALTHY, seed=0)
    assert total.share(Verdict.DISAGREES) == 0
    assert total.share(Verdict.INCONCLUSIVE) < MOST_INCONCLUSIVE
    assert (total.blames, total.off) == (0, 0)
