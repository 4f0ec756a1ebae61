"""Methods that walk a path at a layer, and methods that override rectifiers: the answer is Captum's own, and a verdict
on it can be believed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from captum import attr
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from cutaway.contract.requests import Attribution, CheckMode, CheckRequest, Quadrature
from cutaway.contract.results import AttributionResult, Verdict
from tests.support.checked_attributions import CHECKED, Build, ask, verdict
from tests.support.path_models import MODULES, end, given, net

STEPS = 6


IN_PLACE = net(
    lambda m, x: end(m, m.r2(m.b(m.r1(m.a(x))))), r1=lambda: nn.ReLU(inplace=True), r2=lambda: nn.ReLU(inplace=True)
)
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


PATH_KINDS = (ca.LayerConductance, ca.InternalInfluence, ca.LayerIntegratedGradients)


# Captum gone wrong.

Change = Callable[[Any, dict[str, Any]], None]


def option(name: str, change: Callable[[Any], Any]) -> Change:
    def arguments(method: Any, options: dict[str, Any]) -> None:
        options[name] = change(options.get(name))

    return arguments


def other_layer(method: Any, options: dict[str, Any]) -> None:
    getattr(method, "grad_cam", method).layer = OTHER[0]


OTHER: list[Any] = []


def not_installed(method: Any, options: dict[str, Any]) -> None:
    getattr(method, "guided_backprop", method)._register_hooks = lambda module: None


def installed_elsewhere(method: Any, options: dict[str, Any]) -> None:
    holder = getattr(method, "guided_backprop", method)
    whole = holder._register_hooks
    holder._register_hooks = lambda module: whole(module) if module is OTHER[1] else None


def the_other_override(method: Any, options: dict[str, Any]) -> None:
    holder = getattr(method, "guided_backprop", method)
    holder.use_relu_grad_output = not holder.use_relu_grad_output


def nothing(method: Any, options: dict[str, Any]) -> None:
    pass


VALUES: dict[str, Callable[[Tensor], Tensor]] = {
    "a hundredth too large": lambda values: values * 1.01,
    "rows exchanged": lambda values: values.flip(0),
    "shifted by a pixel": lambda values: values.roll(1, -1),
    "one row's sign": lambda values: torch.cat([-values[:1], values[1:]]),
    "nothing but zeros": torch.zeros_like,
    "one element not a number": lambda values: values.index_fill(3, torch.tensor([2]), float("nan")),
}
ANY: dict[str, Change] = {
    "another target": option("target", lambda target: (target + 1) % 3),
    "another input": lambda method, options: options.update(shift=0.1),
}
ON_PATHS: dict[str, Change] = {
    **ANY,
    "another layer": other_layer,
    "another baseline": option("baselines", lambda start: tuple(each + 0.3 for each in start)),
    "half the steps": option("n_steps", lambda steps: steps // 2),
    "a step more": option("n_steps", lambda steps: steps + 1),
    "another quadrature": option("method", lambda _: "riemann_left"),
    "the layer's input": option("attribute_to_layer_input", lambda _: True),
}
AT_RECTIFIERS: dict[str, Change] = {
    **ANY,
    "hooks not installed": not_installed,
    "one hook not installed": installed_elsewhere,
    "the other override": the_other_override,
}


def spoiled(asked: Attribution, change: Change, values: Callable[[Tensor], Tensor], mode: CheckMode) -> Verdict:
    """What is found where Captum's class is called with other arguments, or answers something else."""
    kind: Any = getattr(attr, type(asked).__name__)
    model = MODULES()
    OTHER[:] = [model.a, model.r1]

    def attribute(self: Any, inputs: Any, **options: Any) -> Any:
        change(self, options)
        shift = options.pop("shift", 0.0)
        found = intact(self, tuple((each + shift).detach().requires_grad_() for each in inputs), **options)
        return tuple(map(values, found)) if isinstance(found, tuple) else values(found)

    with pytest.MonkeyPatch.context() as patch:
        intact = kind.attribute
        patch.setattr(kind, "attribute", attribute)
        inputs = given(MODULES, 4, torch.float32)
        return verdict(ask(model, inputs, asked, target=TARGET, check=CheckRequest(mode)).attributions[0])


TARGET = ca.ClassIndex((0, 1, 2, 0))
METHODS = {type(asked).__name__: asked for asked in (*PATHS[::2], *BACKPROP)}


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("name", list(METHODS))
def test_a_wrong_answer_is_never_missed(name: str, mode: CheckMode) -> None:
    """Whatever is wrong with Captum's answer, or with the passes that it comes from, no verdict is AGREES."""
    asked = METHODS[name]
    found = {what: spoiled(asked, nothing, values, mode) for what, values in VALUES.items()}
    changes = dict(ON_PATHS if isinstance(asked, PATH_KINDS) else AT_RECTIFIERS)
    if isinstance(asked, ca.GuidedGradCam):
        changes["another layer"] = other_layer
    if isinstance(asked, ca.Deconvolution):  # it does not depend on the input
        del changes["another input"]
    found |= {what: spoiled(asked, change, lambda each: each, mode) for what, change in changes.items()}
    assert set(found.values()) == {Verdict.DISAGREES}, found
    assert spoiled(asked, nothing, lambda each: each, mode) is Verdict.AGREES


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("name", list(METHODS))
def test_a_stale_answer_is_never_missed(name: str, mode: CheckMode) -> None:
    """The answer to an earlier question, of the right shape, is found out."""
    kept: list[Tensor] = []

    def first(values: Tensor) -> Tensor:
        kept.append(values)
        return kept[0]

    # A deconvolution depends on the target, and on the input not at all.
    other = option("target", lambda target: target.flip(0)) if name == "Deconvolution" else option("shift", lambda _: 1)
    spoiled(METHODS[name], other, first, mode)
    assert spoiled(METHODS[name], nothing, first, mode) is Verdict.DISAGREES


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


@pytest.mark.parametrize("mode", list(CheckMode))
def test_captum_cannot_replace_what_is_then_changed_in_place(mode: CheckMode) -> None:
    """Captum puts leaves in the layer's place, which no operation may change in place: an error, in every mode."""
    with pytest.raises(ca.InvalidArgument, match="changes in place: explain the module that does so") as refused:
        explained(IN_PLACE, PATHS[4], mode)
    assert refused.value.reason == "METHOD_INAPPLICABLE"


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
