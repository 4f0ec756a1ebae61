"""Explanations that replace units of a layer: Captum's own answers, held against raw outputs of forward passes."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch

import cutaway as ca
from cutaway.contract.requests import CheckMode, CheckRequest, ClassIndex, LayerAttribution
from cutaway.contract.results import Verdict
from cutaway.engine.methods.captum_call import method_of
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.passes.pass_recorder import Pass
from cutaway.engine.passes.targets import ResolvedTarget
from cutaway.engine.planning.attribution_setup import resolve_attribution
from tests.support.checked_attributions import CHECKED, MLP, ask, noise, verdict

SEED = 11
X = {"x": noise(4, 8)}


def asked(layer: str) -> tuple[LayerAttribution, ...]:
    """Every method, of ``layer``."""
    return (
        ca.LayerFeatureAblation(layer=layer),
        ca.LayerFeatureAblation(layer=layer, baseline=-0.5),
        ca.LayerFeaturePermutation(layer=layer),
    )


def test_ablation_is_the_drop_of_the_target_by_hand() -> None:
    """Each unit's attribution is the target's value less that of the network whose unit is the baseline, computed
    without a hook."""
    model: Any = MLP().double()
    x = noise(3, 8, dtype=torch.float64)
    got = ask(model, {"x": x}, ca.LayerFeatureAblation(layer="a", baseline=0.25), target=ClassIndex((0, 1, 2)))
    for unit in range(16):
        hidden = model.a(x)
        hidden[:, unit] = 0.25
        drop = model(x) - model.head(torch.relu(hidden))
        expected = drop[range(3), range(3)].detach().numpy()
        assert got.attributions[0].values["a"][:, unit] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize(
    "target",
    [ca.CrossEntropy(labels=(0, 1, 2, 0)), ca.OutputSum(), ca.Neuron("head", (0,)), ClassIndex((2, 0, 1, 1))],
    ids=lambda target: type(target).__name__,
)
def test_any_target_can_be_explained(target: ca.Target, mode: CheckMode) -> None:
    """Losses with labels of their own a row, sums and neurons too; the values tell them from another class."""
    for each in asked("a"):
        more: dict[str, Any] = {"check": CheckRequest(mode), "seed": SEED}
        got, beside = (ask(MLP(), X, each, target=one, **more).attributions[0] for one in (target, ClassIndex((1,))))
        assert verdict(got) is verdict(beside) is Verdict.AGREES
        assert not np.allclose(got.values["a"], beside.values["a"])


def test_two_rows_change_places_and_never_stay() -> None:
    """Of two rows there is one other order: each unit's attribution is what the other row's value does, by hand."""
    model: Any = MLP().double()
    x = noise(2, 8, dtype=torch.float64)
    got = ask(model, {"x": x}, ca.LayerFeaturePermutation(layer="a"), target=ClassIndex((1,)), seed=SEED).attributions[
        0
    ]
    for unit in range(16):
        hidden = model.a(x)
        hidden[:, unit] = hidden[:, unit].flip(0)
        drop = (model(x) - model.head(torch.relu(hidden)))[:, 1].detach().numpy()
        assert got.values["a"][:, unit] == pytest.approx(drop, abs=1e-12)
    assert verdict(got) is Verdict.AGREES


def test_a_permutation_keeps_the_batch_together() -> None:
    """Rows are exchanged with each other: a request that explains some of them only must not leave the others out."""
    assert [method_of(each).uses_randomness for each in asked("a")] == [False, False, True]


class Forgetful:
    """Gets passes, and keeps none."""

    def __init__(self) -> None:
        self.seen: list[weakref.ref[Pass]] = []
        self.most = 0

    def add(self, recorded: Pass) -> None:
        """Counts the passes that somebody keeps."""
        self.seen.append(weakref.ref(recorded))
        self.most = max(self.most, sum(ref() is not None for ref in self.seen))


def test_many_passes_are_not_kept() -> None:
    """Thousands of units of a large image would otherwise need a copy of it each."""
    model = MLP()
    subject = InspectedModel(model, lambda tensors: model(**tensors))
    chosen = ResolvedTarget("output", lambda output: output[:, 0])
    about = resolve_attribution(subject, asked("a")[0], dict(X), {}).at_target(chosen)
    witness = method_of(about.request).run_passes(about, Forgetful)
    assert len(witness.seen) == 17
    assert witness.most <= 3


# Nothing is left behind.
