"""Methods that walk a path at a layer, and methods that override rectifiers: the answer is Captum's own, and a verdict
on it can be believed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import cutaway as ca
from cutaway.contract.requests import Attribution, CheckMode, CheckRequest, Quadrature
from cutaway.contract.results import AttributionResult, Verdict
from tests.support.checked_attributions import CHECKED, Build, ask, verdict
from tests.support.path_models import MODULES, end, given, net

STEPS = 6


FUNCTIONAL = net(lambda m, x: end(m, torch.relu(m.b(F.relu(m.a(x))))))
FUNCTIONAL_IN_PLACE = net(lambda m, x: end(m, m.b(F.relu(m.a(x), inplace=True)).relu_()))
BOTH = net(lambda m, x: end(m, torch.relu(m.b(m.r(m.a(x))))), r=nn.ReLU)
NONE = net(lambda m, x: end(m, torch.tanh(m.b(F.gelu(m.a(x))))))

PATHS: tuple[Attribution, ...] = (
    ca.LayerConductance(layer="b", n_steps=STEPS),
    ca.LayerConductance(layer="b", n_steps=STEPS, quadrature=Quadrature.RIEMANN_MIDDLE, baselines={"x": 0.5}),
    ca.InternalInfluence(layer="b", n_steps=STEPS),
    ca.InternalInfluence(layer="b", n_steps=STEPS, quadrature=Quadrature.RIEMANN_LEFT, baselines={"x": 0.5}),
    ca.LayerIntegratedGradients(layer="b", n_steps=STEPS),
    ca.LayerIntegratedGradients(layer="b", n_steps=STEPS, quadrature=Quadrature.RIEMANN_RIGHT, baselines={"x": 0.5}),
)
BACKPROP: tuple[Attribution, ...] = (ca.GuidedBackprop(), ca.Deconvolution(), ca.GuidedGradCam(layer="b"))


def explained(build: Build, asked: Attribution, mode: CheckMode, rows: int = 4, **more: Any) -> AttributionResult:
    inputs = given(build, rows, more.pop("dtype", torch.float32))
    return ask(build(), inputs, asked, check=CheckRequest(mode), **more).attributions[0]


# Captum gone wrong.


# What Captum overlooks.


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("asked", BACKPROP, ids=lambda asked: type(asked).__name__)
@pytest.mark.parametrize(
    ("build", "places", "modules_run"),
    [
        (FUNCTIONAL, ":relu#0, :relu#1", False),
        (FUNCTIONAL_IN_PLACE, ":relu#0, :relu_#0", False),
        (BOTH, ":relu#0", True),
    ],
)
def test_functional_relu_is_found_out_and_named(
    build: Build, places: str, modules_run: bool, asked: Attribution, mode: CheckMode
) -> None:
    """Captum overrides nn.ReLU modules and passes over functions in silence: the verdict says so, and where they
    are."""
    result = explained(build, asked, mode)
    assert verdict(result) is Verdict.DISAGREES
    others = "" if modules_run else " (none ran)"
    assert result.checks[0].reason.startswith(
        f"functional relu at {places}, which Captum differentiates as it is, because it overrides nn.ReLU modules "
        f"only{others}: "
    )


@pytest.mark.parametrize("asked", BACKPROP, ids=lambda asked: type(asked).__name__)
def test_functional_relu_is_named_also_where_it_makes_no_difference(asked: Attribution) -> None:
    """A match by chance proves nothing."""
    positive = net(lambda m, x: F.relu(end(m, m.r(m.b(m.a(x)))) + 1e3), r=nn.ReLU)
    result = explained(positive, asked, CheckMode.SAME_PASS)
    assert verdict(result) is Verdict.INCONCLUSIVE
    assert "functional relu at :relu#0" in result.checks[0].reason


@pytest.mark.parametrize("asked", BACKPROP, ids=lambda asked: type(asked).__name__)
def test_a_model_without_rectifiers_has_nothing_to_override(asked: Attribution) -> None:
    """The answer is the plain gradient, and the verdict says that it is no more."""
    result = explained(NONE, asked, CheckMode.SAME_PASS)
    assert verdict(result) is Verdict.INCONCLUSIVE
    assert result.checks[0].reason == "no ReLU ran: with nothing to override, this is the gradient"


@pytest.mark.parametrize("asked", BACKPROP[:2], ids=lambda asked: type(asked).__name__)
def test_a_way_around_a_rectifier_is_not_the_rectifiers(asked: Attribution) -> None:
    """Captum overrides the whole gradient of the tensor that a rectifier takes, also what comes by another way."""
    around = net(lambda m, x: (lambda h: end(m, m.b(m.r(h) + h)))(m.a(x)), r=nn.ReLU)
    assert verdict(explained(around, asked, CheckMode.SAME_PASS)) is Verdict.DISAGREES


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("asked", PATHS[::2], ids=lambda asked: type(asked).__name__)
def test_a_layer_called_twice_is_found_out(asked: Attribution, mode: CheckMode) -> None:
    """Captum explains one call of a layer that is called twice: DISAGREES, and the reason says so."""
    twice = net(lambda m, x: end(m, m.b(torch.relu(m.b(m.a(x))))))
    result = explained(twice, asked, mode)
    assert verdict(result) is Verdict.DISAGREES
    assert "called 2 times" in result.checks[0].reason


# Completeness.


def test_what_flows_through_the_layer_adds_up() -> None:
    """All of the target's change flows through the layer: with steps enough its attributions add up to it."""
    for asked in (PATHS[0], PATHS[4]):
        result = explained(MODULES, replace(asked, n_steps=200), CheckMode.SAME_PASS)  # type: ignore[call-arg]
        assert [check.verdict for check in result.checks] == [Verdict.AGREES] * 2
        assert result.convergence_delta is not None
        assert result.value_at_input is not None
        assert result.value_at_baseline is not None
        change = result.value_at_input - result.value_at_baseline
        summed = result.values["b"].reshape(4, -1).sum(1)
        assert np.allclose(summed - change, result.convergence_delta, atol=1e-6)


def test_a_way_around_the_layer_is_named_where_the_sum_misses() -> None:
    """The identity AGREES, and the sum need not be the target's change: the check does not apply, and says why."""
    around = net(lambda m, x: end(m, m.b(m.a(x)) + 3 * m.a(x)))
    result = explained(around, replace(PATHS[4], layer="b"), CheckMode.SAME_PASS)  # type: ignore[call-arg]
    assert [check.verdict for check in result.checks] == [Verdict.AGREES, Verdict.NOT_APPLICABLE]
    assert "lead around 'b'" in result.checks[1].reason
