"""Noise tunnels: Captum's own answers from the seed's noise, each copy held against the base method's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from captum import attr
from torch import Tensor

import cutaway as ca
from cutaway.contract.requests import (
    CheckMode,
    CheckRequest,
    ClassIndex,
    Combination,
    CrossEntropy,
)
from cutaway.contract.results import Cause, Verdict
from tests.support.broken_captum import spoiled
from tests.support.checked_attributions import CHECKED, RANDOM, ask, noise, verdict
from tests.support.expectation_models import GAINED, numbers
from tests.support.noise_models import MODULES, ROW, TWO
from tests.support.rounding import SMALL, close
from tests.support.state_snapshot import untouched

SEED = 11


def test_layer_lrp_goes_through_a_tunnel_that_captum_cannot_build_by_itself() -> None:
    """Captum's LayerLRP lacks what its own NoiseTunnel calls; here it has it; the answer is the mean over copies."""
    asked = ca.LayerLRP(layer="b", noise=ca.NoiseTunnel(n_samples=3, stdev=0.2))
    got = ask(MODULES(), ROW, asked, target=ClassIndex((1,)), seed=SEED).attributions[0]
    numbers = torch.Generator().manual_seed(SEED)
    total = torch.zeros(3, 6)
    for _ in range(3):
        model = MODULES()
        copy = ROW["x"] + 0.2 * torch.randn(3, 8, generator=numbers)
        total += attr.LayerLRP(model, model.get_submodule("b")).attribute(copy, target=1).detach()
    assert close(got.values["b"], total / 3, SMALL)
    assert verdict(got) is Verdict.AGREES


def test_noise_of_no_size_is_the_plain_explanation() -> None:
    """The mean of equal copies is the explanation; their variance is nothing, and the verdict says that it says
    nothing."""
    plain, still = (
        ask(MODULES(), ROW, ca.InputXGradient(noise=each), seed=SEED).attributions[0]
        for each in (None, ca.NoiseTunnel(n_samples=4, stdev=0.0))
    )
    assert close(still.values["x"], torch.from_numpy(plain.values["x"]), SMALL)
    assert verdict(still) is Verdict.AGREES
    for n, stdev in ((1, 0.5), (4, 0.0)):
        asked = ca.InputXGradient(noise=ca.NoiseTunnel(Combination.VARGRAD, n, stdev))
        for mode in CHECKED:
            check = ask(MODULES(), ROW, asked, seed=SEED, check=CheckRequest(mode)).attributions[0].checks[0]
            assert check.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("stdev", [1e-1, 1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_variance_that_is_rounding_is_never_called_wrong(stdev: float, dtype: torch.dtype) -> None:
    """The smaller the noise the less is left of the squares; Captum's weights of a path are float32 even in float64."""
    given = {"x": noise(4, 8, dtype=dtype)}
    tunnel = ca.NoiseTunnel(Combination.VARGRAD, 20, stdev)
    asked = (ca.InputXGradient(noise=tunnel), ca.Saliency(noise=tunnel), ca.IntegratedGradients(noise=tunnel))
    for mode in CHECKED:
        for got in ask(MODULES().to(dtype), given, *asked, seed=SEED, check=CheckRequest(mode)).attributions:
            assert verdict(got) is not Verdict.DISAGREES, got.checks


# Captum gone wrong.


def test_a_variance_is_known_as_well_as_what_it_is_made_of() -> None:
    """Errors of each copy that the method inside may have are no fault of the tunnel, however little varies."""
    signs: list[float] = []

    def a_little_off(values: Tensor) -> Tensor:
        signs.append(-signs[-1] if signs else 1.0)
        return values * (1 + 3e-5 * signs[-1])

    asked = ca.InputXGradient(noise=ca.NoiseTunnel(Combination.VARGRAD, 20, 0.05))
    with spoiled(attr.InputXGradient, values=a_little_off):
        check = ask(MODULES(), ROW, asked, seed=SEED).attributions[0].checks[0]
    assert check.max_relative_error > check.tolerance
    assert (check.verdict, check.cause) == (Verdict.INCONCLUSIVE, Cause.CANCELLATION)


# Rows, seeds, and what is left behind.


@pytest.mark.parametrize("mode", CHECKED)
def test_rows_keep_their_places_in_a_tunnel(mode: CheckMode) -> None:
    """An edit of one row is in force in every copy; a loss has its row's own label."""
    asked = ca.IntegratedGradients(inputs=("x",), n_steps=3, noise=ca.NoiseTunnel(n_samples=3, stdev=0.5))
    more: dict[str, Any] = {"check": CheckRequest(mode), "seed": SEED, "target": CrossEntropy(labels=(0, 1, 2))}
    plain = ask(GAINED(), TWO, asked, **more).attributions[0]
    edited = ask(GAINED(), TWO, asked, edits=(ca.Scale("a", factor=3.0, rows=(1,)),), **more).attributions[0]
    assert verdict(plain) is verdict(edited) is Verdict.AGREES
    assert np.array_equal(plain.values["x"][0], edited.values["x"][0])
    assert not np.array_equal(plain.values["x"][1], edited.values["x"][1])


def test_the_same_seed_gives_the_same_tunnel() -> None:
    """Also of a model that draws itself; without a seed one is drawn and stated."""
    asked = ca.Saliency(noise=ca.NoiseTunnel(n_samples=3, stdev=0.5))
    answers = []
    for seed, before in ((SEED, 1), (SEED, 2), (None, 2)):
        torch.manual_seed(before)
        result = ask(RANDOM(), ROW, asked, seed=seed, target=ClassIndex((0,)), check=CheckRequest(CheckMode.OFF))
        answers.append(result)
    values = [each.attributions[0].values["x"] for each in answers]
    assert np.array_equal(values[0], values[1])
    assert not np.array_equal(values[0], values[2])
    again = ask(RANDOM(), ROW, asked, seed=answers[2].provenance.seed, target=ClassIndex((0,)))
    assert np.array_equal(again.attributions[0].values["x"], values[2])


@pytest.mark.parametrize("fails", [False, True])
def test_a_tunnel_leaves_nothing_behind(fails: bool) -> None:
    """Not in the model and not in the generators, also where the model raises half-way."""
    model: Any = MODULES()
    inner, ran = model.wiring, []

    def failing(m: Any, x: Tensor) -> Tensor:
        ran.append(1)
        if fails and len(ran) == 4:
            raise ValueError("half-way")
        return inner(m, x)

    model.wiring = failing
    asked = (ca.GuidedBackprop(noise=ca.NoiseTunnel()), ca.LayerGradientXActivation(layer="b", noise=ca.NoiseTunnel()))
    before = numbers()
    for each in asked:
        ran.clear()
        with untouched(model):
            if fails:
                with pytest.raises(ca.InvalidArgument, match="half-way"):
                    ask(model, ROW, each, seed=SEED)
            else:
                ask(model, ROW, each, seed=SEED)
        assert len(ran) >= 4
    assert numbers() == before


# What cannot be asked.
