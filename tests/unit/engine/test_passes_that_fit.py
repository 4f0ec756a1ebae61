"""Attributions where memory is short: passes of fewer points or rows, and errors in their places where none fits."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from captum import attr
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import CheckMode, CheckRequest, InspectRequest
from cutaway.contract.results import Verdict
from cutaway.engine.batching import inspect_batch
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.planning.plan import plan_request
from cutaway.server.memory import RequestMemory, return_memory
from tests.support.checked_attributions import noise

SIZES: list[int] = []
"""The rows of all passes with a graph; a model's own counter would be restored."""


class Small(nn.Module):
    """A network that runs out of memory, as PyTorch's allocator says it, where a graph has more than ``most`` rows."""

    def __init__(self, most: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.most = most
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            if len(x) > self.most:
                raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory")
            SIZES.append(len(x))
        output: Tensor = self.last(torch.tanh(self.first(x)))
        return output


def asked(net: nn.Module, x: Tensor, *attributions: ca.Attribution, **more: Any) -> ca.InspectResult:
    model = InspectedModel(net, lambda arguments: net(**arguments))
    model.request_bytes = more.pop("request_bytes", None)
    return inspect(model, InspectRequest("m", attributions=attributions, **more), {"x": x})


METHODS: dict[str, tuple[int, int, ca.Attribution]] = {
    "steps": (1, 1, ca.IntegratedGradients(n_steps=20)),
    "ten thousand steps": (1, 64, ca.IntegratedGradients(n_steps=10_000)),
    "steps, two rows": (2, 2, ca.IntegratedGradients(n_steps=20)),
    "rows of a step": (3, 1, ca.IntegratedGradients(n_steps=20)),
    "steps at a layer": (2, 2, ca.InternalInfluence(layer="first", n_steps=20)),
    "steps and their differences": (2, 4, ca.LayerConductance(layer="first", n_steps=20)),
    "steps between two outputs": (2, 2, ca.LayerIntegratedGradients(layer="first", n_steps=20)),
    "steps at a neuron": (1, 1, ca.NeuronIntegratedGradients(neuron=ca.Neuron("first", (2,)), n_steps=20)),
    "rows": (5, 2, ca.Saliency()),
    "samples": (2, 3, ca.GradientShap(n_samples=6, baselines={"x": np.zeros((3, 4), np.float32)})),
    "copies": (3, 1, ca.InputXGradient(noise=ca.NoiseTunnel(n_samples=4))),
}


@pytest.mark.parametrize("mode", [CheckMode.SAME_PASS, CheckMode.INDEPENDENT])
@pytest.mark.parametrize(("rows", "most", "attribution"), METHODS.values(), ids=METHODS)
def test_values_and_verdicts_are_as_with_plenty(
    rows: int, most: int, attribution: ca.Attribution, mode: CheckMode
) -> None:
    """Never an error while one row, or one point of the batch at a layer, fits.

    Tests of the model that need the whole batch leave the verdict open, and never cost the values.
    """
    x = noise(rows, 4)
    more = {"seed": 1, "check": CheckRequest(mode)}
    plenty = asked(Small(1000), x, attribution, **more).attributions[0]
    tight = asked(Small(most), x, attribution, **more).attributions[0]
    verdicts = {check.verdict for check in tight.checks}
    assert verdicts == {Verdict.AGREES} or (rows > most and verdicts == {Verdict.INCONCLUSIVE}), tight.checks
    for name, values in plenty.values.items():
        np.testing.assert_allclose(tight.values[name], values, rtol=1e-5, atol=1e-6)


def test_captum_by_hand_agrees() -> None:
    x, net = noise(1, 4), Small(1)
    found = asked(net, x, ca.IntegratedGradients(n_steps=20, target=ca.ClassIndex((1,)))).attributions[0]
    net.most = 1000
    expected = attr.IntegratedGradients(net).attribute(x, target=1, n_steps=20)
    np.testing.assert_allclose(found.values["x"], expected.detach().numpy(), rtol=1e-5, atol=1e-7)


def test_passes_are_small_before_any_fails() -> None:
    """The memory of a row, measured once, says how many fit."""
    net = Small(1000)
    row = 4 * (5 + 5 + 3) + 4 * 4  # what three operators return, and the model's copy of the input
    SIZES.clear()
    asked(net, noise(1, 4), ca.IntegratedGradients(n_steps=50), request_bytes=4 * 3 * row)
    assert SIZES[0] == 1
    assert set(SIZES[1:13]) == {4}


@pytest.mark.parametrize("mode", [CheckMode.SAME_PASS, CheckMode.INDEPENDENT])
def test_a_check_that_keeps_too_much_costs_no_value(mode: CheckMode) -> None:
    """Nothing runs twice for it, and the verdict says why."""
    explained, more = ca.IntegratedGradients(n_steps=64), {"check": CheckRequest(mode)}
    plenty = asked(Small(1000), noise(1, 4), explained, **more).attributions[0]
    tight = asked(Small(1000), noise(1, 4), explained, request_bytes=2 * 64 * 16, **more).attributions[0]
    np.testing.assert_allclose(tight.values["x"], plenty.values["x"], rtol=1e-5, atol=1e-7)
    assert tight.verdict is Verdict.INCONCLUSIVE
    assert "ask fewer steps" in tight.checks[0].reason


def test_what_does_not_fit_fails_in_its_place() -> None:
    """The prediction, captures and other attributions arrive; the advice is about a request of one row."""
    bad, good = ca.Saliency(), ca.FeatureAblation()
    result = asked(Small(0), noise(1, 4), bad, good, attribution_errors_in_place=True, captures=(ca.Capture("first"),))
    failed, fine = result.attributions
    assert failed.error is not None
    assert (failed.error.reason, failed.error.field) == ("OUT_OF_MEMORY", "attributions[0].saliency")
    assert "one row" in failed.error.message
    assert "fewer rows" not in failed.error.message
    assert fine.error is None
    assert result.predictions
    assert result.captures


def test_without_places_the_request_fails() -> None:
    with pytest.raises(ca.ResourceExhausted, match=r"Saliency of 2 rows .*: send fewer rows, or") as caught:
        asked(Small(0), noise(2, 4), ca.Saliency())
    assert caught.value.field == "attributions[0].saliency"


@pytest.mark.parametrize(("rows", "advice"), [(1, ": let the operator"), (3, ": send fewer rows, or let")])
def test_a_main_pass_that_does_not_fit_says_what_to_do(rows: int, advice: str) -> None:
    net = Small(0)
    model = InspectedModel(net, lambda arguments: net(**arguments))
    plan = plan_request(model, InspectRequest("m", input_gradients=()), {"x": noise(rows, 4)})
    (outcome,) = inspect_batch([plan])
    assert isinstance(outcome, ca.ResourceExhausted)
    assert advice in outcome.message


class Wide(nn.Module):
    """A network whose graph takes 16 MiB a row of 4 × 256 × 256."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(8))
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        output: Tensor = self.last(x.mean((2, 3)))
        return output


@contextmanager
def limited(memory: RequestMemory) -> Iterator[None]:
    """Limits this process while the block runs."""
    if sys.platform != "linux":
        pytest.skip("only Linux limits memory so")
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    return_memory()
    memory.enforce()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def test_under_a_real_limit() -> None:
    """Sixteen steps of one row, whose graph together takes 256 MiB, in 240 MiB."""
    x, explained, memory = noise(1, 4, 256, 256), ca.IntegratedGradients(n_steps=16), RequestMemory(240 << 20)
    asked(Small(1000), noise(1, 4), explained)  # what is imported for the first explanation is no memory of this one
    with limited(memory):
        tight = asked(Wide(), x, explained, request_bytes=memory.own).attributions[0]
    plenty = asked(Wide(), x, explained).attributions[0]
    assert tight.verdict is Verdict.AGREES
    np.testing.assert_allclose(tight.values["x"], plenty.values["x"], rtol=1e-3, atol=1e-7)
