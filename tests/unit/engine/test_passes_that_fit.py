"""Attributions where memory is short: passes of fewer points or rows, and errors in their places where none fits."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from captum import attr
from captum.attr._utils import batching
from captum.attr._utils.approximation_methods import approximation_parameters
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import CheckMode, CheckRequest, InspectRequest
from cutaway.contract.results import Cause, Verdict
from cutaway.contract.results.arrays import entries
from cutaway.engine.batching import inspect_batch
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.passes.pass_memory import LiveBytes
from cutaway.engine.planning.plan import plan_request
from cutaway.server.memory import RequestMemory, return_memory
from tests.support.broken_captum import spoiled
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


class Rows(Small):
    """A network with modules that DeepLIFT and LRP know, of which ``most`` rows fit with a graph."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and len(x) > self.most:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        output: Tensor = self.last(self.act(self.first(x)))
        return output


EVERY_ROW: dict[str, ca.Attribution] = {
    "gradients": ca.Saliency(),
    "steps": ca.IntegratedGradients(n_steps=20),
    "steps at a layer": ca.LayerConductance(layer="first", n_steps=20),
    "a layer's gradients": ca.LayerGradientXActivation(layer="first"),
    "a layer's maps": ca.LayerGradCam(layer="first"),
    "rescaled differences": ca.DeepLift(),
    "rescaled differences of samples": ca.DeepLiftShap(baselines={"x": noise(2, 4, seed=2).numpy()}),
    "rescaled differences at a layer": ca.LayerDeepLift(layer="first"),
    "relevance": ca.LRP(),
    "guided gradients": ca.GuidedBackprop(),
    "a neuron": ca.NeuronGradient(neuron=ca.Neuron("first", (2,))),
    "draws": ca.GradientShap(n_samples=2, baselines={"x": np.zeros((3, 4), np.float32)}),
    "classes by row": ca.Saliency(target=ca.ClassIndex((0, 1, 2) * 3)),
}


@pytest.mark.parametrize("mode", [CheckMode.SAME_PASS, CheckMode.INDEPENDENT])
@pytest.mark.parametrize("attribution", EVERY_ROW.values(), ids=EVERY_ROW)
def test_rows_run_in_parts_where_all_do_not_fit(attribution: ca.Attribution, mode: CheckMode) -> None:
    """Nine rows, of which four fit: the prediction, captures, gradients and every method have the values of plenty."""
    x = noise(9, 4)
    x[7] = 0  # the baseline, which only this row's verdict must tell
    captured = (ca.Capture("first", at=("output", "grad_output")),)
    more = {"seed": 1, "check": CheckRequest(mode), "captures": captured, "input_gradients": ()}
    plenty, tight = (asked(Rows(most), x, attribution, **more) for most in (1000, 4))
    for one, other in zip(entries(plenty), entries(tight), strict=True):
        assert one.name == other.name
        np.testing.assert_allclose(other.array, one.array, rtol=1e-5, atol=1e-6, err_msg=one.name)
    if isinstance(attribution, ca.GradientShap):
        return  # its samples are drawn for all rows at once, so that tests of the model do not fit
    for whole, joined in zip(plenty.attributions[0].checks, tight.attributions[0].checks, strict=True):
        wanted, found = ([(each.of_row(row).verdict, each.of_row(row).cause) for row in range(9)]
                         for each in (whole, joined))  # fmt: skip
        assert wanted == found, (whole, joined)


MADE: list[weakref.ref[Tensor]] = []
LEFT: list[int] = []
"""The workspaces of all passes, and how many of them were in memory when the next pass began."""


class Watched(Rows):
    """A network that has a workspace in each pass."""

    def forward(self, x: Tensor) -> Tensor:
        LEFT.append(sum(made() is not None for made in MADE))
        workspace = torch.ones(3)
        MADE.append(weakref.ref(workspace))
        return super().forward(x)


@pytest.mark.parametrize("asked_for", [{"input_gradients": ()}, {}], ids=["main pass", "attribution"])
def test_what_failed_leaves_its_memory_to_its_parts(asked_for: dict[str, Any]) -> None:
    """A traceback would hold the tensors of the pass that did not fit, while its rows run apart."""
    MADE.clear()
    LEFT.clear()
    asked(Watched(4), noise(9, 4), *([] if asked_for else [ca.GuidedBackprop()]), **asked_for)
    assert len(LEFT) > 6
    assert not any(LEFT), LEFT


class Coupled(Rows):
    """A network whose rows depend on each other."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x.sum()


def test_rows_that_depend_on_each_other_never_run_apart() -> None:
    """The error says what to do; values of other batches would be wrong."""
    with pytest.raises(ca.ResourceExhausted, match="send fewer rows"):
        asked(Coupled(4), noise(9, 4), ca.LayerGradCam(layer="first"))
    with pytest.raises(RuntimeError, match="can't allocate"):
        asked(Coupled(4), noise(9, 4), input_gradients=())


@pytest.mark.parametrize(
    "of_batch",
    [
        {"edits": (ca.Scale(module="first", factor=2.0),)},
        {"target": ca.CrossEntropy((0,) * 9)},
        {"captures": (ca.Capture("first", slices=(ca.Slice(0, 1, 3),)),)},
    ],
    ids=["edits", "a loss", "rows by number"],
)
def test_what_is_about_the_batch_never_runs_apart(of_batch: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match="can't allocate"):
        asked(Rows(4), noise(9, 4), input_gradients=(), **of_batch)


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


WIDTH = 1 << 15
HALVES = {"x": np.arange(WIDTH).reshape(1, WIDTH) // (WIDTH // 2)}

FLAT: dict[str, tuple[ca.Attribution, ca.Attribution]] = {
    "steps": (ca.IntegratedGradients(n_steps=40), ca.IntegratedGradients(n_steps=200)),
    "steps at a layer": (
        ca.InternalInfluence(layer="first", n_steps=40),
        ca.InternalInfluence(layer="first", n_steps=200),
    ),
    "steps and their differences": (
        ca.LayerConductance(layer="first", n_steps=40),
        ca.LayerConductance(layer="first", n_steps=200),
    ),
    "steps between two outputs": (
        ca.LayerIntegratedGradients(layer="first", n_steps=40),
        ca.LayerIntegratedGradients(layer="first", n_steps=200),
    ),
    "steps at a neuron": (
        ca.NeuronConductance(neuron=ca.Neuron("first", (2,)), n_steps=40),
        ca.NeuronConductance(neuron=ca.Neuron("first", (2,)), n_steps=200),
    ),
    "steps of noisy copies": (
        ca.IntegratedGradients(n_steps=8, noise=ca.NoiseTunnel(n_samples=4)),
        ca.IntegratedGradients(n_steps=8, noise=ca.NoiseTunnel(n_samples=40)),
    ),
    "noisy copies": (
        ca.Saliency(noise=ca.NoiseTunnel(n_samples=10, combination=ca.Combination.SMOOTHGRAD_SQUARE)),
        ca.Saliency(noise=ca.NoiseTunnel(n_samples=60, combination=ca.Combination.SMOOTHGRAD_SQUARE)),
    ),
    "windows": (
        ca.Occlusion(windows={"x": (1 << 12,)}, strides={"x": (1 << 12,)}),
        ca.Occlusion(windows={"x": (1 << 10,)}, strides={"x": (1 << 9,)}),
    ),
    "orders": (
        ca.ShapleyValueSampling(n_samples=1, masks=HALVES),
        ca.ShapleyValueSampling(n_samples=5, masks=HALVES),
    ),
    "draws": (
        ca.KernelShap(n_samples=8, masks=HALVES),
        ca.KernelShap(n_samples=40, masks=HALVES),
    ),
}


class Broad(nn.Module):
    """A network whose inputs take more memory than all else."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(WIDTH, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.last(torch.tanh(self.first(x) / 50))
        return output


@pytest.mark.parametrize("mode", [CheckMode.SAME_PASS, CheckMode.INDEPENDENT])
@pytest.mark.parametrize(("few", "many"), FLAT.values(), ids=FLAT)
def test_a_check_takes_no_more_memory_for_more_passes(
    few: ca.Attribution, many: ca.Attribution, mode: CheckMode
) -> None:
    """Ten thousand steps of a large image need no more room than twenty, and their verdict says as much."""
    model, most = Broad(), []
    x, more = noise(1, WIDTH), {"request_bytes": 1 << 22, "seed": 1, "check": CheckRequest(mode)}
    asked(model, x, few, **more)  # whose tests of the model are made once
    for explained in (few, many):
        with LiveBytes() as live:
            found = asked(model, x, explained, **more).attributions[0]
        assert found.verdict is Verdict.AGREES, found.checks
        most.append(live.most)
    assert most[1] < 1.5 * most[0], most


def heavier(method: str, intact: Any = approximation_parameters) -> Any:
    weights, points = intact(method)
    return lambda n: [40 * weights(n)[0], *weights(n)[1:]], points


def skipping(method: str, intact: Any = approximation_parameters) -> Any:
    weights, points = intact(method)
    return weights, lambda n: [*points(n)[:700], points(n)[699], *points(n)[701:]]


def steeper(captums: Any, options: dict[str, Any]) -> None:
    intact = captums.gradient_func
    captums.gradient_func = lambda **given: tuple(1.01 * gradient for gradient in intact(**given))


@pytest.mark.parametrize("mode", [CheckMode.SAME_PASS, CheckMode.INDEPENDENT])
def test_faults_of_long_paths_are_found_in_little_memory(mode: CheckMode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A skipped step shows in the points of Captum's own passes; a weight and a gradient show in the values."""
    x, more = noise(2, 4), {"request_bytes": 4 * 3 * 800, "check": CheckRequest(mode)}
    model, explained = Small(64), ca.IntegratedGradients(n_steps=1000, quadrature=ca.Quadrature.RIEMANN_MIDDLE)

    def verdict() -> tuple[Verdict, Any]:
        check = asked(model, x, explained, **more).attributions[0].checks[0]
        return check.verdict, check.cause

    assert verdict() == (Verdict.AGREES, None)
    with spoiled(ca.IntegratedGradients, arguments=steeper):
        assert verdict() == (Verdict.DISAGREES, Cause.UNKNOWN)
    monkeypatch.setattr(batching, "approximation_parameters", heavier)
    assert verdict() == (Verdict.DISAGREES, Cause.UNKNOWN)
    if mode is CheckMode.SAME_PASS:
        monkeypatch.setattr(batching, "approximation_parameters", skipping)
        assert verdict() == (Verdict.DISAGREES, Cause.OTHER_PASSES)


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


@pytest.mark.slow  # PyTorch may end a process that is at its limit: so it runs beside no others
def test_under_a_real_limit() -> None:
    """Sixteen steps of one row, whose graph together takes 256 MiB, in 240 MiB."""
    x, explained, memory = noise(1, 4, 256, 256), ca.IntegratedGradients(n_steps=16), RequestMemory(240 << 20)
    asked(Small(1000), noise(1, 4), explained)  # what is imported for the first explanation is no memory of this one
    with limited(memory):
        tight = asked(Wide(), x, explained, request_bytes=memory.own).attributions[0]
    plenty = asked(Wide(), x, explained).attributions[0]
    assert tight.verdict is Verdict.AGREES
    np.testing.assert_allclose(tight.values["x"], plenty.values["x"], rtol=1e-3, atol=1e-7)
