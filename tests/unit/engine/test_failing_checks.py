"""A check that fails costs no answer: whichever of its steps breaks, the values arrive, and the verdict says so."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import unwrap
from types import FrameType, FunctionType
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.errors import CutawayError
from cutaway.contract.requests import Attribution, CheckMode, CheckRequest
from cutaway.contract.results import AttributionResult, Cause, InspectResult, Verdict
from cutaway.engine.batching import inspect_batch
from cutaway.engine.checks import pass_summary
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.passes.pass_recorder import Pass
from cutaway.engine.planning.plan import plan_request
from tests.support.checked_attributions import ask, noise

STEPS_OF_CHECKS = ("cutaway.engine.checks.", "cutaway.engine.references.")

SAMPLES = {"x": np.zeros((3, 4), np.float32)}
ASKED: list[Attribution] = [
    ca.Saliency(),
    ca.IntegratedGradients(n_steps=8),
    ca.LayerConductance(layer="a", n_steps=8),
    ca.LayerIntegratedGradients(layer="a", n_steps=8),
    ca.DeepLift(),
    ca.LayerDeepLift(layer="a"),
    ca.GradientShap(baselines=SAMPLES, n_samples=3),
    ca.GuidedBackprop(),
    ca.LRP(),
    ca.FeatureAblation(),
    ca.KernelShap(n_samples=10),
]


class Net(nn.Module):
    """Two linear maps with a rectifier between."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.a, self.r, self.b = nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Returns three scores."""
        y: Tensor = self.b(self.r(self.a(x)))
        return y


def explained(asked: Attribution, mode: CheckMode) -> AttributionResult:
    """Returns the attribution of two rows by a network that no check has seen yet."""
    request: dict[str, Any] = {"check": CheckRequest(mode), "target": ca.ClassIndex((1,)), "seed": 1}
    return ask(Net().eval(), {"x": noise(2, 4)}, asked, **request).attributions[0]


def steps_run(asked: Attribution, mode: CheckMode) -> dict[str, FunctionType]:
    """Returns the functions of checks and references that a sound request runs, by module and name."""
    ran: dict[str, FunctionType] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if event == "call" and module.startswith(STEPS_OF_CHECKS):
            function = unwrap(frame.f_globals.get(name, note))
            if function.__code__ is frame.f_code:  # and no method or inner function of that name
                ran[f"{module}.{name}"] = function

    sys.setprofile(note)
    try:
        explained(asked, mode)
    finally:
        sys.setprofile(None)
    return ran


@contextmanager
def sabotaged(function: FunctionType) -> Iterator[None]:
    """Makes ``function`` raise, wherever it was imported or stored."""
    intact = function.__code__
    function.__code__ = sabotage.__code__
    try:
        yield
    finally:
        function.__code__ = intact


def sabotage(*_: object, **__: object) -> None:
    """Raises: this code stands in place of a step's own."""
    raise RuntimeError("sabotage")


@pytest.mark.parametrize(
    ("asked", "mode"),
    [(asked, CheckMode.SAME_PASS) for asked in ASKED] + [(asked, CheckMode.INDEPENDENT) for asked in ASKED[:6:5]],
    ids=lambda value: getattr(value, "value", type(value).__name__),
)
def test_a_check_that_breaks_costs_no_value(asked: Attribution, mode: CheckMode) -> None:
    """Each step that runs for the request breaks in turn; those that compute the values themselves are left out."""
    sound = explained(asked, mode)
    assert sound.checks[0].verdict is Verdict.AGREES, sound.checks
    broken = []
    for name, step in steps_run(asked, mode).items():
        with sabotaged(step):
            try:
                explained(asked, CheckMode.OFF)
            except (RuntimeError, CutawayError):
                continue
            result = explained(asked, mode)
        assert result.values.keys() == sound.values.keys()
        for key, values in sound.values.items():
            np.testing.assert_array_equal(result.values[key], values, err_msg=name)
        if result.checks != sound.checks:
            (check,) = result.checks
            assert check.verdict is Verdict.INCONCLUSIVE
            assert check.cause is Cause.CHECK_FAILED, (name, check)
            assert "sabotage" in check.reason
            assert "cutaway.engine." in check.reason
            broken.append(name)
    assert len(broken) > 5, broken


@pytest.mark.parametrize(
    "text",
    [
        *("could not create a primitive", "std::bad_alloc", "DefaultCPUAllocator: can't allocate memory"),
        *("CUDA error: out of memory", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    ],
)
def test_a_check_without_memory_says_so(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever words a library says it; a failure of another kind keeps its own."""
    for failure, said in ((RuntimeError(text), "more memory than is free"), (RuntimeError("sabotage"), "sabotage")):
        monkeypatch.setattr(pass_summary.PassSummary, "mismatches", Mock(side_effect=failure))
        (check,) = explained(ca.Saliency(), CheckMode.SAME_PASS).checks
        assert check.cause is Cause.CHECK_FAILED
        assert said in check.reason
        assert text not in check.reason


def test_a_hook_that_fails_in_captums_own_pass_costs_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captum runs a second time, without the hooks of the check."""
    sound = explained(ca.Saliency(), CheckMode.SAME_PASS)
    monkeypatch.setattr(Pass, "note_backward", sabotage)
    result = explained(ca.Saliency(), CheckMode.SAME_PASS)
    np.testing.assert_array_equal(result.values["x"], sound.values["x"])
    assert [check.cause for check in result.checks] == [Cause.CHECK_FAILED]


def test_requests_that_ran_together_each_have_their_failed_check() -> None:
    """Of a check that fails for both, each request has its own, with its values."""
    net = Net().eval()
    subject = InspectedModel(net, lambda tensors: net(**tensors))
    request = ca.InspectRequest("m", attributions=(ca.Saliency(),), target=ca.ClassIndex((1,)))
    inputs = [{"x": noise(2, 4, seed=seed)} for seed in (1, 2)]
    with sabotaged(unwrap(pass_summary.PassSummary._read_gradients)):
        results = inspect_batch([plan_request(subject, request, x) for x in inputs])
    for x, result in zip(inputs, results):
        assert isinstance(result, InspectResult), result
        (attribution,) = result.attributions
        alone = ask(Net().eval(), x, ca.Saliency(), target=ca.ClassIndex((1,)), check=CheckRequest(CheckMode.OFF))
        np.testing.assert_allclose(attribution.values["x"], alone.attributions[0].values["x"], rtol=1e-5)
        assert [check.cause for check in attribution.checks] == [Cause.CHECK_FAILED]


class Loop(nn.Module):
    """A linear map that is called three times in series."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.core, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Returns three scores."""
        state = self.first(x)
        for _ in range(3):
            state = torch.tanh(self.core(state))
        y: Tensor = self.head(state)
        return y


@pytest.mark.parametrize("mode", [CheckMode.SAME_PASS, CheckMode.INDEPENDENT])
@pytest.mark.parametrize(
    "asked",
    [ca.LayerDeepLift(layer="core"), ca.LayerConductance(layer="core", n_steps=8)],
    ids=lambda asked: type(asked).__name__,
)
def test_a_layer_in_series_is_checked_and_not_failed(asked: Attribution, mode: CheckMode) -> None:
    """Captum explains one of the calls, which is told of the module: the check itself runs to its end."""
    request: dict[str, Any] = {"check": CheckRequest(mode), "target": ca.ClassIndex((1,)), "seed": 1}
    checks = ask(Loop().eval(), {"x": noise(2, 4)}, asked, **request).attributions[0].checks
    assert checks[0].cause in (Cause.MODULE_REUSED, Cause.FUNCTIONAL_NONLINEARITY), checks
