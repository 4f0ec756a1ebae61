"""Expected gradients: Captum's own answers from the seed's draws, held against raw gradients at the same draws."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from captum import attr
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import TensorAdapter, load_model
from cutaway.contract.errors import CutawayError
from cutaway.contract.requests import CheckMode, CheckRequest, ClassIndex, ExpectedGradient, Neuron
from cutaway.contract.results import AttributionResult
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.runtime.rng import seeded
from tests.support.checked_attributions import CNN, Build, ask, noise, wired
from tests.support.expectation_models import GAINED, TWICE
from tests.support.rounding import SMALL, close, within

SEED = 11
N = 6

IDS = wired(
    lambda m, ids, weight: m.head(torch.tanh(m.words(ids) * weight.unsqueeze(-1)).sum(1)),
    words=lambda: nn.Embedding(20, 6), head=lambda: nn.Linear(6, 3),
)  # fmt: skip
ONE_NUMBER = wired(lambda m, x: torch.tanh(m.a(x)).prod(1), a=lambda: nn.Linear(6, 3))


def inputs(build: Build, rows: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    if build is GAINED:
        shapes: dict[str, tuple[int, ...]] = {"x": (4,), "y": (3,), "gain": ()}
    else:
        shapes = {"x": {CNN: (3, 8, 8), ONE_NUMBER: (6,)}.get(build, (8,))}
    if build is IDS:
        ids = torch.randint(1, 20, (rows, 5), generator=torch.Generator().manual_seed(2))
        return {"ids": ids, "weight": noise(rows, 5, dtype=dtype)}
    return {name: noise(rows, *shape, dtype=dtype, seed=k) for k, (name, shape) in enumerate(shapes.items())}


def asked(kind: type[Any], build: Build, *names: str, samples: int = 5, **more: Any) -> ExpectedGradient:
    """A request about the inputs ``names``, with as many baselines as ``samples``."""
    place: dict[str, Any] = {}
    if kind is not ca.GradientShap:
        layer = {CNN: "conv", IDS: "words"}.get(build, "a")
        index = {CNN: (2, 1, 3), IDS: (2, 3)}.get(build, (2,))
        place = {"layer": layer} if kind is ca.LayerGradientShap else {"neuron": Neuron(layer, index)}
    shapes = {name: tensor.shape[1:] for name, tensor in inputs(build, 1).items()}
    chosen = names or tuple(shapes)
    baselines = {name: noise(samples, *shapes[name], seed=40 + k).numpy() for k, name in enumerate(chosen)}
    return kind(inputs=names, baselines=baselines, n_samples=N, **{"stdev": 0.3, **place, **more})


def by_hand(model: nn.Module, given: Mapping[str, Tensor], request: Any) -> list[Tensor]:
    """``request``, answered by Captum as its documentation uses it, both generators seeded alike."""
    explained = list(request.inputs) or list(given)
    rest = [name for name in given if name not in explained]
    output = model(**given)
    options: dict[str, Any] = {"target": None if output.ndim == 1 else output.argmax(1)}
    at = getattr(request, "layer", "")
    if isinstance(request, ca.NeuronGradientShap):
        options, at = {"neuron_selector": request.neuron.index}, request.neuron.module
    kind: Any = getattr(attr, type(request).__name__)
    layer = (model.get_submodule(at),) if at else ()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        np.random.seed(SEED)
        found = kind(lambda *tensors: model(**dict(zip(explained + rest, tensors))), *layer).attribute(
            tuple(given[name] for name in explained),
            baselines=tuple(torch.as_tensor(request.baselines[name]) for name in explained),
            n_samples=request.n_samples, stdevs=request.stdev,
            additional_forward_args=tuple(given[name] for name in rest) or None, **options,
        )  # fmt: skip
    return list(found) if isinstance(found, tuple) else [found]


def test_of_a_linear_model_they_are_the_weights_times_the_distance_to_the_mean() -> None:
    """With one baseline and no noise exactly so; with many and with noise, the more draws the closer."""
    linear = wired(lambda m, x: m.a(x), a=lambda: nn.Linear(4, 3))
    x, samples = noise(2, 4), noise(30, 4, seed=9)
    weight = linear().state_dict()["a.weight"][1]

    def answer(samples: Tensor, n: int, stdev: float) -> Any:
        request = ca.GradientShap(baselines={"x": samples.numpy()}, n_samples=n, stdev=stdev)
        return ask(linear(), {"x": x}, request, target=ClassIndex((1,)), seed=SEED).attributions[0].values["x"]

    assert close(answer(samples[:1], 3, 0.0), weight * (x - samples[:1]), SMALL)
    mean = weight * (x - samples.mean(0))
    assert within(answer(samples, 4096, 0.1), mean, 0.05)
    assert not within(answer(samples, 4, 0.1), mean, 0.05)


# Captum gone wrong.

INPUTS = inputs(GAINED, 3)
TARGET = ClassIndex((0, 1, 2))


def answer(request: ExpectedGradient, mode: CheckMode, given: Mapping[str, Tensor] = INPUTS) -> AttributionResult:
    of_neuron = isinstance(request, ca.NeuronGradientShap)
    more = {} if of_neuron else {"target": TARGET}
    return ask(GAINED(), given, request, check=CheckRequest(mode), seed=SEED, **more).attributions[0]


def test_a_model_that_draws_from_numpy_does_not_disturb_captum() -> None:
    """The same seed gives the same answer, whatever the generators did before and whatever the model draws; and the
    draws are those that Captum makes by itself."""

    def seeded(m: Any, x: Tensor) -> Tensor:
        return m.a(x) + float(np.random.uniform()) + torch.rand(())

    linear = wired(lambda m, x: m.a(x), a=lambda: nn.Linear(8, 3))
    given = inputs(TWICE, 4)
    request = asked(ca.GradientShap, TWICE)
    expected = by_hand(linear(), given, request)[0]
    for before in (1, 2):
        np.random.seed(before)
        torch.manual_seed(before)
        target = ClassIndex(tuple(linear()(**given).argmax(1).tolist()))
        model = wired(seeded, a=lambda: nn.Linear(8, 3))()
        result = ask(model, given, request, target=target, seed=SEED, check=CheckRequest(CheckMode.OFF))
        assert close(result.attributions[0].values["x"], expected, SMALL)


def test_draws_aside_are_of_a_seed_of_their_own() -> None:
    """What is drawn inside is as if nothing were drawn aside, and what is drawn aside is the same each time."""

    def draws(inside: bool, aside: bool) -> tuple[list[float], list[float]]:
        found: tuple[list[float], list[float]] = ([], [])
        with seeded(SEED, torch.device("cpu")):
            for _ in range(3):
                if inside:
                    found[0].extend((float(torch.rand(())), np.random.uniform()))
                if aside:
                    with seeded(SEED + 1, torch.device("cpu")):
                        found[1].extend((float(torch.rand(())), np.random.uniform()))
        return found

    both = draws(inside=True, aside=True)
    assert both == (draws(inside=True, aside=False)[0], draws(inside=False, aside=True)[1])
    assert both[1] == both[1][:2] * 3
    assert not set(both[0]) & set(both[1])


VALUES: dict[str | tuple[str, ...], Any] = {"age": [30, 65, 80], ("city", "zone"): [(3, 1), (5, 2)], "debt": [0.5]}


@pytest.mark.parametrize("values", [VALUES, [[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]]], ids=["by name", "in order"])
def test_product_baselines_are_captums(values: Any) -> None:
    """Sample by sample, from the same seed; features that belong together are drawn together."""
    ours, captums = ca.ProductBaselines(values), attr.ProductBaselines(values)
    random.seed(3)
    expected = [captums() for _ in range(50)]
    rows = [[each[name] for name in ours.names] if isinstance(each, dict) else each for each in expected]
    found = ours(samples=50, seed=3)
    np.testing.assert_array_equal(found, rows)
    np.testing.assert_array_equal(found, ours(samples=50, seed=3))
    assert len(np.unique(found, axis=0)) == 6


def test_product_baselines_are_a_distribution_like_another() -> None:
    """The verdict is about what was drawn; of a linear model the attribution is that of their mean."""
    torch.manual_seed(0)
    net, x = nn.Linear(4, 3).double(), torch.randn(2, 4, dtype=torch.float64)
    model = load_model(TensorAdapter(net), "cpu")
    name = model.inputs[0].name
    drawn = ca.ProductBaselines(VALUES)(samples=6, seed=1)
    request = ca.InspectRequest("m", attributions=(ca.DeepLiftShap(baselines={name: drawn}),), target=ClassIndex((0,)))
    (found,) = inspect(model, request, {name: x}).attributions
    assert all(check.verdict is ca.Verdict.AGREES for check in found.checks)
    expected = net.weight[0].detach() * (x - torch.from_numpy(drawn.mean(axis=0)))
    np.testing.assert_allclose(found.values[name], expected, rtol=1e-9)


@pytest.mark.parametrize("values", [{"age": []}, [[1.0], []], {("a", "b"): [(1, 2, 3)]}])
def test_product_baselines_without_values_are_refused(values: Any) -> None:
    with pytest.raises(CutawayError, match=r"INVALID_VALUE \[baselines\]"):
        ca.ProductBaselines(values)
