"""Noise tunnels: Captum's own answers from the seed's noise, each copy held against the base method's reference."""

from __future__ import annotations

import pytest
import torch
from captum import attr
from torch import Tensor

import cutaway as ca
from cutaway.contract.requests import (
    CheckRequest,
    ClassIndex,
    Combination,
)
from cutaway.contract.results import Cause, Verdict
from tests.support.attribution_models import RECTIFIED
from tests.support.broken_captum import spoiled
from tests.support.checked_attributions import CHECKED, ask, noise, verdict
from tests.support.rounding import SMALL, close

SEED = 11
ROW = {"x": noise(3, 8)}


def test_layer_lrp_goes_through_a_tunnel_that_captum_cannot_build_by_itself() -> None:
    """Captum's LayerLRP lacks what its own NoiseTunnel calls; here it has it; the answer is the mean over copies."""
    asked = ca.LayerLRP(layer="b", noise=ca.NoiseTunnel(n_samples=3, stdev=0.2))
    got = ask(RECTIFIED(), ROW, asked, target=ClassIndex((1,)), seed=SEED).attributions[0]
    numbers = torch.Generator().manual_seed(SEED)
    total = torch.zeros(3, 8)
    for _ in range(3):
        model = RECTIFIED()
        copy = ROW["x"] + 0.2 * torch.randn(3, 8, generator=numbers)
        total += attr.LayerLRP(model, model.get_submodule("b")).attribute(copy, target=1).detach()
    assert close(got.values["b"], total / 3, SMALL)
    assert verdict(got) is Verdict.AGREES


def test_noise_of_no_size_is_the_plain_explanation() -> None:
    """The mean of equal copies is the explanation; their variance is nothing, and the verdict says that it says
    nothing."""
    plain, still = (
        ask(RECTIFIED(), ROW, ca.InputXGradient(noise=each), seed=SEED).attributions[0]
        for each in (None, ca.NoiseTunnel(n_samples=4, stdev=0.0))
    )
    assert close(still.values["x"], torch.from_numpy(plain.values["x"]), SMALL)
    assert verdict(still) is Verdict.AGREES
    for n, stdev in ((1, 0.5), (4, 0.0)):
        asked = ca.InputXGradient(noise=ca.NoiseTunnel(Combination.VARGRAD, n, stdev))
        for mode in CHECKED:
            check = ask(RECTIFIED(), ROW, asked, seed=SEED, check=CheckRequest(mode)).attributions[0].checks[0]
            assert check.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("stdev", [1e-1, 1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_variance_that_is_rounding_is_never_called_wrong(stdev: float, dtype: torch.dtype) -> None:
    """The smaller the noise the less is left of the squares; Captum's weights of a path are float32 even in float64."""
    given = {"x": noise(4, 8, dtype=dtype)}
    tunnel = ca.NoiseTunnel(Combination.VARGRAD, 20, stdev)
    asked = (ca.InputXGradient(noise=tunnel), ca.Saliency(noise=tunnel), ca.IntegratedGradients(noise=tunnel))
    for mode in CHECKED:
        for got in ask(RECTIFIED().to(dtype), given, *asked, seed=SEED, check=CheckRequest(mode)).attributions:
            assert verdict(got) is not Verdict.DISAGREES, got.checks


def test_a_variance_is_known_as_well_as_what_it_is_made_of() -> None:
    """Errors of each copy that the method inside may have are no fault of the tunnel, however little varies."""
    signs: list[float] = []

    def a_little_off(values: Tensor) -> Tensor:
        signs.append(-signs[-1] if signs else 1.0)
        return values * (1 + 3e-5 * signs[-1])

    asked = ca.InputXGradient(noise=ca.NoiseTunnel(Combination.VARGRAD, 20, 0.05))
    with spoiled(attr.InputXGradient, values=a_little_off):
        check = ask(RECTIFIED(), ROW, asked, seed=SEED).attributions[0].checks[0]
    assert check.max_relative_error > check.tolerance
    assert (check.verdict, check.cause) == (Verdict.INCONCLUSIVE, Cause.CANCELLATION)


# What cannot be asked.
