"""DeepLIFT, of inputs, layers and neurons, from a baseline and from a distribution: Captum's own answer, and a verdict
on it that can be believed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from captum import attr
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import Attribution, CheckMode, CheckRequest, ClassIndex
from cutaway.contract.results import AttributionResult, Verdict
from cutaway.engine.references.deeplift_multipliers import MODULE_RULES
from tests.support.checked_attributions import CHECKED, Build, ask, noise, verdict, wired
from tests.support.rounding import SMALL, close

SAMPLES = 3
WIDTH = 6


def net(wiring: Callable[..., Any], **parts: Callable[[], Any]) -> Build:
    """Linear layers ``a``, ``b`` and ``head`` of vectors, and whatever nonlinearities."""
    layers = {"a": lambda: nn.Linear(WIDTH, WIDTH), "b": lambda: nn.Linear(WIDTH, WIDTH)}
    return wired(wiring, **layers, head=lambda: nn.Linear(WIDTH, 3), **parts)


def one_after_another(first: Callable[[], nn.Module], second: Callable[[], nn.Module]) -> Build:
    return net(lambda m, x: m.head(m.r2(m.b(m.r1(m.a(x))))), r1=first, r2=second)


PLAIN = one_after_another(nn.ReLU, nn.Tanh)
TWO_INPUTS = net(lambda m, x, y: m.head(m.r2(m.b(m.r1(m.a(x))) * y)), r1=nn.Sigmoid, r2=nn.ELU)


def given(build: Build, rows: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    model = build()
    image = isinstance(model.a, nn.Conv2d)
    inputs = {"x": noise(rows, *((3, 8, 8) if image else (WIDTH,)), dtype=dtype)}
    return {**inputs, "y": noise(rows, WIDTH, dtype=dtype, seed=4)} if build is TWO_INPUTS else inputs


def all_six(inputs: Mapping[str, Tensor], layer: str = "b") -> tuple[Attribution, ...]:
    """Each method, of the layer ``layer`` and of a neuron of its."""
    x = inputs["x"]
    base: Any = {"x": noise(1, *x.shape[1:], dtype=x.dtype, seed=2).numpy()}
    samples: Any = {"x": noise(SAMPLES, *x.shape[1:], dtype=x.dtype, seed=3).numpy()}
    neuron = ca.Neuron(layer, (1,) * (x.ndim - 1))
    return (
        ca.DeepLift(inputs=("x",), baselines=base),
        ca.LayerDeepLift(layer=layer, inputs=("x",), baselines=base),
        ca.NeuronDeepLift(neuron=neuron, inputs=("x",), baselines=base),
        ca.DeepLiftShap(inputs=("x",), baselines=samples),
        ca.LayerDeepLiftShap(layer=layer, inputs=("x",), baselines=samples),
        ca.NeuronDeepLiftShap(neuron=neuron, inputs=("x",), baselines=samples),
    )


def named(asked: Any) -> str:
    return type(asked).__name__


def targets(rows: int) -> ClassIndex:
    return ClassIndex(tuple(row % 3 for row in range(rows)))


def explained(build: Build, asked: Attribution, mode: CheckMode, rows: int = 4, **more: Any) -> AttributionResult:
    return ask(build(), given(build, rows), asked, check=CheckRequest(mode), **more).attributions[0]


def test_attributions_add_up_to_the_change_from_the_mean_over_the_samples() -> None:
    """The sum is the target's change from its value at the baseline: of a distribution, from the mean of its values."""
    inputs = given(PLAIN, 4)
    for asked in (all_six(inputs)[0], all_six(inputs)[3]):
        result = explained(PLAIN, asked, CheckMode.OFF, target=targets(4))
        starts = torch.from_numpy(asked.baselines["x"])  # type: ignore[attr-defined]
        at_starts = PLAIN()(starts).detach().mean(0)[torch.arange(4) % 3]
        assert result.value_at_input is not None
        assert result.value_at_baseline is not None
        assert result.convergence_delta is not None
        assert np.allclose(result.value_at_baseline, at_starts, atol=1e-6)
        assert np.allclose(result.values["x"].sum(1), result.value_at_input - at_starts.numpy(), atol=1e-6)
        assert np.allclose(result.convergence_delta, 0, atol=1e-6)


@pytest.mark.parametrize("kind", [nn.Tanh, lambda: nn.MaxPool1d(2)])
def test_where_nothing_changes_the_derivative_stands_for_the_quotient(kind: Callable[[], nn.Module]) -> None:
    """Two channels that differ as little as the baseline's: 0 / 0 is the derivative, and each has its part."""
    build = wired(lambda m, x: m.r(x[:, :1] - x[:, 1:]).sum((1, 2)), r=kind)
    inputs = {"x": noise(1, 1, 4).expand(1, 2, 4)}
    result = ask(build(), inputs, ca.DeepLift(), check=CheckRequest(CheckMode.INDEPENDENT)).attributions[0]
    theirs = attr.DeepLift(build()).attribute(inputs["x"].clone().requires_grad_())
    assert close(result.values["x"], theirs, SMALL)
    assert result.values["x"].any()
    assert verdict(result) is Verdict.AGREES


# What cannot be done.


GRID = wired(
    lambda m, x: m.b(m.r(m.a(x))).reshape(-1, 2, 3), a=lambda: nn.Linear(8, 6), r=nn.ReLU, b=lambda: nn.Linear(6, 6)
)


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize(
    "asked",
    [
        ca.DeepLift(), ca.LayerDeepLift(layer="a"), ca.DeepLiftShap(baselines={"x": noise(4, 8, seed=5).numpy()}),
        ca.GradientShap(baselines={"x": noise(4, 8, seed=5).numpy()}, n_samples=4), ca.LayerConductance(layer="a"),
        ca.KernelShap(n_samples=40), ca.Lime(n_samples=40),
    ],
    ids=named,
)  # fmt: skip
def test_an_element_for_each_row_is_a_target_of_every_method(asked: Attribution, mode: CheckMode) -> None:
    """As of each row by itself; all in one request."""
    places = ((0, 1), (1, 2), (1, 0))
    inputs = {"x": noise(3, 8)}
    more: dict[str, Any] = {"check": CheckRequest(mode), "seed": 3}
    (whole,) = ask(GRID(), inputs, asked, target=ca.MultiIndex(places), **more).attributions
    assert verdict(whole) is Verdict.AGREES, whole.checks
    (first,) = ask(GRID(), {"x": inputs["x"][:1]}, asked, target=ca.MultiIndex(places[:1]), **more).attributions
    for name, values in whole.values.items():
        assert np.allclose(values[:1], first.values[name], rtol=1e-4, atol=1e-6) or "Shap" in named(asked)


# Nothing is left behind.


def test_the_kinds_are_those_that_captum_overrides() -> None:
    """A newer Captum that knows another kind needs a rule for it here."""
    from captum.attr._core.deep_lift import SUPPORTED_NON_LINEAR

    assert set(MODULE_RULES) == set(SUPPORTED_NON_LINEAR)
