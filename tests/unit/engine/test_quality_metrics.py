"""Metrics: Captum's own numbers from the seed's draws, held against the formulas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from captum import attr, metrics
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import (
    Attribution,
    CheckMode,
    CheckRequest,
    ClassIndex,
    Combination,
    CrossEntropy,
    Infidelity,
    Metric,
    Neuron,
    SensitivityMax,
)
from tests.support.attribution_models import GAINED, RECTIFIED, SEVERAL
from tests.support.checked_attributions import ask, noise, wired
from tests.support.rounding import SMALL, rounding
from tests.support.state_snapshot import untouched
from tests.unit.engine.test_plain_captum import generators

SEED = 11
ROW = {"x": noise(3, 8)}
TWO = {name: tensor[:3] for name, tensor in SEVERAL.items()}
LINEAR = wired(lambda m, x: m.a(x), a=lambda: nn.Linear(8, 3))
BOTH = (Infidelity(n_samples=7, stdev=0.1), SensitivityMax(n_samples=5, radius=0.1))
TARGET = ClassIndex((0, 1, 2))
OFF = CheckRequest(CheckMode.OFF)


def judged(model: nn.Module, given: Mapping[str, Tensor], asked: Attribution, **more: Any) -> dict[str, Any]:
    """The metrics' values by name."""
    more = {"seed": SEED, "target": TARGET, "check": OFF, **more}
    found = ask(model, given, asked, **more).attributions[0].metrics
    assert all(each.values.dtype == np.float64 for each in found)
    return {each.name: each.values for each in found}


def by_hand(model: nn.Module, given: Mapping[str, Tensor], kind: type[Any], metric: Metric) -> Tensor:
    """``metric`` of the explanation of the inputs "x" and "y", as Captum's documentation has it."""
    names = [name for name in given if name in ("x", "y")]
    order = names + [name for name in given if name not in names]
    target = torch.tensor(TARGET.indices)[: len(given["x"])]
    rest = tuple(given[name] for name in order[len(names) :]) or None
    tensors = tuple(given[name] for name in names)
    options: dict[str, Any] = {"target": target, "additional_forward_args": rest}

    def forward(*tensors: Tensor) -> Tensor:
        return model(**dict(zip(order, tensors)))

    def perturbed(given: Any) -> Any:
        several = given if isinstance(given, tuple) else (given,)
        noise = tuple(metric.stdev * torch.randn_like(each) for each in several)  # type: ignore[attr-defined]
        return noise, tuple(each - some for each, some in zip(several, noise))

    explainer = kind(forward)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        if isinstance(metric, SensitivityMax):
            return metrics.sensitivity_max(
                explainer.attribute, tensors, perturb_radius=metric.radius, n_perturb_samples=metric.n_samples,
                **options,
            )  # fmt: skip
        attributions = explainer.attribute(tensors, **options)
        count = metric.n_samples  # type: ignore[attr-defined]
        return metrics.infidelity(forward, perturbed, tensors, attributions, n_perturb_samples=count, **options)


KINDS = {attr.Saliency: ca.Saliency, attr.InputXGradient: ca.InputXGradient}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("theirs", list(KINDS))
def test_metrics_are_plain_captums(theirs: type[Any], rows: int, dtype: torch.dtype) -> None:
    """Captum called by hand with the same seed, but for rounding, of one input and of some of several."""
    for build, whole, names in ((RECTIFIED, ROW, ()), (GAINED, TWO, ("x", "y"))):
        given = {name: tensor[:rows].to(dtype) for name, tensor in whole.items()}
        asked = KINDS[theirs](inputs=names, metrics=BOTH)
        found = judged(build().to(dtype), given, asked, target=ClassIndex(TARGET.indices[:rows]))
        assert list(found) == ["infidelity", "sensitivity_max"]
        for metric, values in zip(BOTH, found.values()):
            assert values.shape == (rows,)
            assert np.allclose(
                values, by_hand(build().to(dtype), given, theirs, metric), rtol=rounding(dtype, SMALL), atol=1e-12
            )


def test_infidelity_is_the_papers_formula() -> None:
    """Yeh et al. 2019, equation 1, computed in float64 from its definition."""
    asked = ca.InputXGradient(metrics=(Infidelity(n_samples=4, stdev=0.5),))
    given = {"x": noise(3, 8, dtype=torch.float64)}
    result = ask(RECTIFIED().double(), given, asked, seed=SEED, target=TARGET).attributions[0]
    attribution, model = torch.from_numpy(result.values["x"]), RECTIFIED().double()
    drawn = 0.5 * torch.randn(12, 8, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64)
    with torch.no_grad():
        for row, target in enumerate(TARGET.indices):
            at_input = model(x=given["x"][row : row + 1])[0, target]
            errors = [
                (
                    float(
                        (some * attribution[row]).sum()
                        - (at_input - model(x=given["x"][row : row + 1] - some)[0, target])
                    )
                )
                for some in drawn[4 * row : 4 * row + 4].unsqueeze(1)
            ]
            assert result.metrics[0].values[row] == pytest.approx(np.square(errors).mean(), rel=1e-9)


def test_sensitivity_is_the_largest_relative_move() -> None:
    """Yeh et al. 2019, definition 2, from explanations of perturbed inputs."""
    n, radius = 4, 0.3
    asked = ca.InputXGradient(metrics=(SensitivityMax(n_samples=n, radius=radius),))
    found = judged(RECTIFIED(), ROW, asked)["sensitivity_max"]
    numbers = torch.Generator().manual_seed(SEED)
    moves = torch.empty(3 * n, 8).uniform_(-radius, radius, generator=numbers).reshape(3, n, 8)
    at_input = ask(RECTIFIED(), ROW, ca.InputXGradient(), target=TARGET, check=OFF).attributions[0].values["x"]
    for row in range(3):
        others = {"x": ROW["x"][row] + moves[row]}
        target = ClassIndex((TARGET.indices[row],))
        moved = ask(RECTIFIED(), others, ca.InputXGradient(), target=target, check=OFF).attributions[0].values["x"]
        lengths = np.linalg.norm(moved - at_input[row], axis=1) / np.linalg.norm(at_input[row])
        assert found[row] == pytest.approx(lengths.max(), rel=1e-5)


def test_the_gradient_of_a_linear_model_is_faithful_and_does_not_move() -> None:
    """Both are 0 up to rounding; an explanation that is the wrong one for the metric is less faithful."""
    given = {"x": ROW["x"].double()}
    gradient = judged(LINEAR().double(), given, ca.Saliency(absolute=False, metrics=BOTH))
    assert gradient["infidelity"].max() < 1e-25
    assert gradient["sensitivity_max"].max() < 1e-12
    other = judged(LINEAR().double(), given, ca.InputXGradient(metrics=BOTH))
    assert (other["infidelity"] > 1e-6).all()
    assert (other["sensitivity_max"] > 1e-3).all()


PLACED: tuple[Attribution, ...] = (
    ca.LayerGradCam(layer="a"),
    ca.LayerActivation(layer="b"),
    ca.LayerConductance(layer="b", n_steps=3),
    ca.NeuronGradient(neuron=Neuron("b", (1,))),
    ca.GuidedBackprop(),
    ca.DeepLift(baselines={"x": 1.0}),
    ca.FeatureAblation(baselines={"x": 1.0}),
    ca.IntegratedGradients(n_steps=3, noise=ca.NoiseTunnel(Combination.SMOOTHGRAD, 3, 0.2)),
    ca.GradientShap(baselines={"x": noise(4, 8, seed=6).numpy()}),
    ca.KernelShap(n_samples=20),
)


@pytest.mark.parametrize("asked", PLACED, ids=lambda asked: type(asked).__name__)
def test_every_method_is_judged_with_draws_of_its_own_repeated(asked: Attribution) -> None:
    """Explanations move with the input, by little where it moves by little; those that draw do so from the same
    numbers each time; the explanation itself is as without metrics."""
    small, large = SensitivityMax(n_samples=3, radius=1e-5), SensitivityMax(n_samples=3, radius=0.5)
    model, of_neuron = RECTIFIED(), isinstance(asked, ca.NeuronGradient)
    more: dict[str, Any] = {"seed": SEED, "check": OFF, **({} if of_neuron else {"target": TARGET})}
    plain = ask(model, ROW, asked, **more).attributions[0]
    with untouched(model):
        result = ask(model, ROW, replace(asked, metrics=(small, large)), **more).attributions[0]
    for name, values in plain.values.items():
        assert np.array_equal(values, result.values[name])
    little, much = (each.values for each in result.metrics)
    assert (little < 5e-3).all()
    assert (little <= much).all()


def test_a_neurons_explanation_is_judged_by_the_neuron() -> None:
    """Infidelity is about what is explained: the gradient of a neuron before the first kink is faithful to it."""
    asked = ca.NeuronGradient(neuron=Neuron("a", (1,)), metrics=BOTH)
    assert (
        ask(RECTIFIED().double(), {"x": ROW["x"].double()}, asked, seed=SEED).attributions[0].metrics[0].values.max()
        < 1e-25
    )


def test_metrics_see_edits_and_targets_of_rows() -> None:
    """Perturbed copies of a row are edited like the row, and have its own label."""
    more: dict[str, Any] = {"target": CrossEntropy(labels=(0, 1, 2))}
    asked = ca.Saliency(inputs=("x",), absolute=False, metrics=BOTH)
    plain = judged(GAINED(), TWO, asked, **more)
    edited = judged(GAINED(), TWO, asked, edits=(ca.Scale("a", factor=3.0, rows=(1,)),), **more)
    for name, values in plain.items():
        assert values[[0, 2]] == pytest.approx(edited[name][[0, 2]], rel=1e-6)
        assert values[1] != pytest.approx(edited[name][1], rel=1e-3)
    silenced = judged(GAINED(), TWO, asked, edits=(ca.Zero("a", rows=(1,)),), **more)
    assert silenced["infidelity"][1] == 0 < silenced["infidelity"][0]


def test_many_samples_are_run_a_batch_at_a_time() -> None:
    """However many samples are drawn, a pass has a bounded number of rows; the number is the same."""
    model: Any = RECTIFIED()
    inner, rows = model.wiring, []

    def watched(m: Any, x: Tensor) -> Tensor:
        rows.append(len(x))
        return inner(m, x)

    model.wiring = watched
    metric = Infidelity(n_samples=200, stdev=0.5)
    found = judged(model, ROW, ca.InputXGradient(metrics=(metric,)))["infidelity"]
    assert max(rows) == 3
    assert found == pytest.approx(by_hand(RECTIFIED(), ROW, attr.InputXGradient, metric).numpy(), rel=1e-4)


def test_coarse_floats_are_judged_too() -> None:
    """Captum's perturbations are float32; the model gets its own data type."""
    given = {"x": ROW["x"].bfloat16()}
    found = judged(RECTIFIED().bfloat16(), given, ca.InputXGradient(metrics=BOTH))
    assert all(np.isfinite(values).all() for values in found.values())


def test_metrics_are_of_the_seed_and_leave_the_generators_alone() -> None:
    """The same seed, the same numbers; without one, a seed is drawn and stated, though nothing else draws."""
    asked = ca.InputXGradient(metrics=BOTH)
    before = generators()
    first = ask(RECTIFIED(), ROW, asked, target=TARGET)
    again = ask(RECTIFIED(), ROW, asked, target=TARGET, seed=first.provenance.seed)
    other = ask(RECTIFIED(), ROW, asked, target=TARGET, seed=first.provenance.seed ^ 1)
    assert generators() == before
    one, two, three = ([each.values for each in result.attributions[0].metrics] for result in (first, again, other))
    assert all(map(np.array_equal, one, two))
    assert not any(map(np.array_equal, one, three))


@pytest.mark.parametrize("metric", BOTH, ids=lambda metric: type(metric).__name__)
def test_a_metric_that_fails_half_way_leaves_nothing_behind(metric: Metric) -> None:
    """Not in the model and not in the generators."""
    model: Any = RECTIFIED()
    inner, ran = model.wiring, []

    def failing(m: Any, x: Tensor) -> Tensor:
        ran.append(1)
        if len(ran) >= 5:  # behind two that find the axis of the rows, the main pass and the one of Captum
            raise ValueError("half-way")
        return inner(m, x)

    model.wiring = failing
    before = generators()
    with untouched(model), pytest.raises(ca.InvalidArgument, match="half-way") as refused:
        ask(model, ROW, ca.GuidedBackprop(metrics=(metric,)), target=TARGET, seed=SEED, check=OFF)
    assert refused.value.field == "attributions[0].metrics[0]"
    assert generators() == before


# What cannot be asked.


@pytest.mark.parametrize("asked", PLACED, ids=lambda asked: type(asked).__name__)
def test_every_method_has_a_report(asked: Attribution) -> None:
    """All that applies is finite, but correlations of one number; the explanation, and the model, are as without it."""
    model, of_neuron = RECTIFIED(), isinstance(asked, ca.NeuronGradient)
    more: dict[str, Any] = {"seed": SEED, "check": OFF, **({} if of_neuron else {"target": TARGET})}
    plain = ask(model, ROW, asked, **more).attributions[0]
    with untouched(model):
        result = ask(model, ROW, replace(asked, quality=ca.Quality()), **more).attributions[0]
    assert len(result.metrics) > 10
    has_ranks = sum(values[0].size for values in result.values.values()) > 1
    for metric in result.metrics:
        assert np.isfinite(metric.values).all() or not has_ranks, metric
    for name, values in plain.values.items():
        assert np.array_equal(values, result.values[name])
