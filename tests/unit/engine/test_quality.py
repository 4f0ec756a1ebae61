"""The quality report: each metric held against its formula, written out row by row and step by step."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import pearsonr, spearmanr
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import cutaway as ca
from cutaway.adapters import TensorAdapter, load_model
from cutaway.contract.errors import CutawayError
from cutaway.contract.requests import Attribution, CheckMode, CheckRequest, ClassIndex
from cutaway.contract.results import AttributionResult, Better
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from tests.support.attribution_models import RECTIFIED
from tests.support.checked_attributions import ask, noise, wired
from tests.support.state_snapshot import untouched

SEED, ROWS, FEATURES = 11, 3, 8
GIVEN = {"x": noise(ROWS, FEATURES, dtype=torch.float64)}
CLASSES = (0, 1, 2)
OFF = CheckRequest(CheckMode.OFF)
Array = NDArray[Any]
Score = Callable[[int, Array], float]
"""The target of a row at another input."""


def judged(model: nn.Module, given: Mapping[str, Tensor], asked: Attribution, **more: Any) -> AttributionResult:
    more = {"seed": SEED, "target": ClassIndex(CLASSES), **more}
    return ask(model, given, asked, **more).attributions[0]


def explained(model: nn.Module, x: Array, kind: type[Attribution] = ca.InputXGradient, target: Any = CLASSES) -> Array:
    given = {"x": torch.from_numpy(np.array(x))}
    return judged(model, given, kind(), target=ClassIndex(tuple(target)), check=OFF).values["x"]


def scores(model: nn.Module, given: Mapping[str, Tensor] = GIVEN) -> Score:
    def score(row: int, x: Array) -> float:
        with torch.no_grad():
            return float(model(**{**given, "x": torch.from_numpy(np.array(x))[None]})[0, CLASSES[row]])

    return score


# Each formula, for one row: x, its attribution a, its number, and the target at other inputs.


def removed(x: Array, gone: Any) -> Array:
    return np.where(np.isin(np.arange(len(x)), list(gone)), 0.25, x)


def curve(x: Array, order: Any, row: int, score: Score, steps: int, keeps: bool = False) -> Array:
    points = []
    for step in range(steps + 1):
        first = list(order)[: round(len(x) * step / steps)]
        points.append(score(row, removed(x, set(order) - set(first) if keeps else first)))
    return np.array(points)


def area(points: Array) -> float:
    return float(np.trapezoid(points) / (len(points) - 1))


def most(a: Array) -> list[int]:
    return sorted(range(len(a)), key=lambda index: -a[index])


def least(a: Array) -> list[int]:
    return sorted(range(len(a)), key=lambda index: a[index])


def correlation(x: Array, a: Array, row: int, score: Score) -> float:
    numbers = torch.Generator().manual_seed(SEED)
    sums, falls = [], []
    for _ in range(12):
        draw = torch.rand(ROWS, FEATURES, generator=numbers)[row].numpy()
        chosen = least(draw)[:4]
        sums.append(a[chosen].sum())
        falls.append(score(row, x) - score(row, removed(x, chosen)))
    return float(pearsonr(sums, falls)[0])


def gini(x: Array, a: Array, *_: Any) -> float:
    """The mean absolute difference of all pairs, over twice the mean."""
    sizes = np.abs(a)
    return float(np.abs(sizes[:, None] - sizes[None]).mean() / (2 * sizes.mean()))


def entropy(x: Array, a: Array, *_: Any) -> float:
    parts = [size / sum(map(abs, a)) for size in map(abs, a)]
    return -sum(part * math.log(part) for part in parts if part)


FILL = {"x": 0.25}
FIRST = {"x": np.arange(FEATURES) < 3}
FORMULAS: tuple[tuple[Any, Callable[[Array, Array, int, Score], float]], ...] = (
    (ca.Deletion(n_steps=4, baselines=FILL), lambda x, a, row, score: area(curve(x, most(a), row, score, 4))),
    (ca.Insertion(n_steps=3, baselines=FILL), lambda x, a, row, score: area(curve(x, most(a), row, score, 3, True))),
    (
        ca.SymmetricRelevanceGain(n_steps=8, baselines=FILL),
        lambda x, a, row, score: area(curve(x, least(a), row, score, 8)) - area(curve(x, most(a), row, score, 8)),
    ),
    (ca.FaithfulnessCorrelation(n_samples=12, fraction=0.5, baselines=FILL), correlation),
    (
        ca.Sufficiency(fraction=0.25, baselines=FILL),
        lambda x, a, row, score: score(row, x) - score(row, removed(x, most(a)[2:])),
    ),
    (
        ca.Comprehensiveness(fraction=0.4, baselines=FILL),
        lambda x, a, row, score: score(row, x) - score(row, removed(x, most(a)[:3])),
    ),
    (ca.Sparseness(), gini),
    (ca.Complexity(), entropy),
    (ca.EffectiveComplexity(threshold=0.3), lambda x, a, *_: sum(abs(one) > 0.3 * max(map(abs, a)) for one in a)),
    (ca.PointingGame(regions=FIRST), lambda x, a, *_: float(most(a)[0] < 3)),
    (ca.RelevanceMass(regions=FIRST), lambda x, a, *_: np.maximum(a[:3], 0).sum() / np.maximum(a, 0).sum()),
    (ca.RelevanceRank(regions=FIRST), lambda x, a, *_: len({0, 1, 2} & set(most(a)[:3])) / 3),
)


@pytest.mark.parametrize(("metric", "formula"), FORMULAS, ids=[type(metric).__name__ for metric, _ in FORMULAS])
def test_a_metric_of_features_is_its_formula(metric: Any, formula: Callable[..., float]) -> None:
    """Each row by itself, and that of random attributions lies elsewhere."""
    model = RECTIFIED().double()
    result = judged(model, GIVEN, ca.InputXGradient(metrics=(metric,)))
    (found,), score = result.metrics, scores(model)
    for row, (x, a) in enumerate(zip(GIVEN["x"].numpy(), result.values["x"])):
        assert found.values[row] == pytest.approx(formula(x, a, row, score), abs=1e-9)
    assert found.random is not None
    assert found.random.shape == (ROWS,)
    assert not np.allclose(found.random, found.values)


def test_curves_have_the_target_at_each_step() -> None:
    """The first point has all features, and the last one none; of an insertion it is the other way round."""
    model, score = RECTIFIED().double(), scores(RECTIFIED().double())
    result = judged(
        model, GIVEN, ca.InputXGradient(metrics=(ca.Deletion(), ca.Insertion(), ca.SymmetricRelevanceGain()))
    )
    deletion, insertion, gain = result.metrics
    for row, (x, _a) in enumerate(zip(GIVEN["x"].numpy(), result.values["x"])):
        assert deletion.curve is not None
        assert insertion.curve is not None
        assert gain.curve is not None
        assert deletion.curve[row, 0] == pytest.approx(score(row, x))
        assert deletion.curve[row, -1] == pytest.approx(score(row, 0 * x))
        assert insertion.curve[row, [0, -1]] == pytest.approx(deletion.curve[row, [-1, 0]])
        assert gain.curve[row, [0, -1]] == pytest.approx([0, 0], abs=1e-12)
    assert (deletion.better, insertion.better, gain.better) == (Better.LOWER, Better.HIGHER, Better.HIGHER)


# Explanations of inputs nearby, of other weights and of other classes.


def moves(count: int, radius: float) -> Tensor:
    numbers = torch.Generator().manual_seed(SEED)
    return torch.stack([torch.empty(ROWS, FEATURES).uniform_(-radius, radius, generator=numbers) for _ in range(count)])


def outputs(model: nn.Module, x: Array) -> Array:
    with torch.no_grad():
        return model(x=torch.from_numpy(x)).numpy()


def hidden(model: nn.Module, x: Array) -> Array:
    with torch.no_grad():
        return model.a(torch.from_numpy(x)).numpy()  # type: ignore[operator]


def ratio(change: Array, value: Array) -> float:
    return float(np.linalg.norm(change / np.where(value != 0, value, 1e-6)))


NEARBY: tuple[tuple[Any, Callable[..., float]], ...] = (
    (ca.SensitivityMean, lambda a, b, *_: np.linalg.norm(b - a) / np.linalg.norm(a)),
    (ca.LocalLipschitz, lambda a, b, x, y, *_: np.linalg.norm(b - a) / np.linalg.norm(y - x)),
    (ca.RelativeInputStability, lambda a, b, x, y, *_: ratio(b - a, a) / max(ratio(y - x, x), 1e-6)),
    (
        ca.RelativeOutputStability,
        lambda a, b, x, y, o, p, *_: ratio(b - a, a) / max(float(np.linalg.norm(p - o)), 1e-6),
    ),
    (
        lambda *ball: ca.RelativeRepresentationStability(*ball, module="a"),
        lambda a, b, x, y, o, p, h, i: ratio(b - a, a) / max(ratio(i - h, h), 1e-6),
    ),
)


@pytest.mark.parametrize(("kind", "formula"), NEARBY)
def test_a_metric_of_inputs_nearby_is_its_formula(kind: Any, formula: Callable[..., float]) -> None:
    """The mean or the largest over the same moves; a move that changes the class does not count for stabilities."""
    model, x = RECTIFIED().double(), GIVEN["x"].numpy()
    (found,) = judged(model, GIVEN, ca.InputXGradient(metrics=(kind(6, 0.3),))).metrics
    here, score, known = explained(model, x), outputs(model, x), hidden(model, x)
    by_row: list[list[float]] = [[] for _ in range(ROWS)]
    for move in moves(6, 0.3).double().numpy():
        y = x + move
        there, moved, inner = explained(model, y), outputs(model, y), hidden(model, y)
        for row in range(ROWS):
            if kind in (ca.SensitivityMean, ca.LocalLipschitz) or score[row].argmax() == moved[row].argmax():
                several = (here, there, x, y, score, moved, known, inner)
                by_row[row].append(formula(*(each[row] for each in several)))
    reduced = np.mean if kind is ca.SensitivityMean else np.max
    assert found.values == pytest.approx([reduced(each) for each in by_row], rel=1e-6)
    assert found.random is None


def randomised(model: nn.Module, layers: int) -> nn.Module:
    """A copy whose last ``layers`` modules have random weights."""
    other, numbers = copy.deepcopy(model), torch.Generator().manual_seed(SEED)
    owners = [module for module in other.modules() if list(module.parameters(recurse=False))][::-1]
    for place, owner in enumerate(owners):
        for parameter in owner.parameters(recurse=False):
            values = parameter.detach().double()
            drawn = torch.randn(parameter.shape, generator=numbers) * values.std(correction=0) + values.mean()
            if place < layers:
                parameter.data = drawn.to(parameter)
    return other


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(2, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x.reshape(len(x), 4, 2))[0][:, -1])


def recurrent() -> nn.Module:
    torch.manual_seed(0)
    return Recurrent().eval()


@pytest.mark.parametrize("build", [RECTIFIED, recurrent])
def test_weights_are_randomised_from_the_output_on(build: Callable[[], nn.Module]) -> None:
    """Each step has one more layer of the same random weights than the one before; the model keeps its own."""
    model, x = build().double(), GIVEN["x"].numpy()
    layers = sum(bool(list(module.parameters(recurse=False))) for module in model.modules())
    metrics = ca.ParameterRandomisation(n_steps=layers), ca.RandomisedComplexity()
    with untouched(model):
        curve, rise = judged(model, GIVEN, ca.InputXGradient(metrics=metrics)).metrics
    here = explained(model, x)
    others = [explained(randomised(model, count), x) for count in range(1, layers + 1)]
    assert curve.curve is not None
    for row in range(ROWS):
        assert curve.curve[row] == pytest.approx([spearmanr(here[row], other[row])[0] for other in others])
        before, after = (entropy(x, values[row]) for values in (here, others[-1]))
        assert rise.values[row] == pytest.approx((after - before) / before)
    assert np.array_equal(curve.values, curve.curve[:, -1])


def test_random_weights_meet_the_edits_of_the_request() -> None:
    """Each pass of them is edited too, and its calls are counted from 0."""
    model, asked = RECTIFIED().double(), ca.InputXGradient(metrics=(ca.ParameterRandomisation(n_steps=1),))
    edits = (ca.Zero("a", slices=(ca.Slice(1, 0, 4),), call=0),)
    result = judged(model, GIVEN, asked, edits=edits)
    layers = sum(bool(list(module.parameters(recurse=False))) for module in model.modules())
    other = judged(randomised(model, layers), GIVEN, ca.InputXGradient(), edits=edits, check=OFF).values["x"]
    for row, found in enumerate(result.metrics[0].values):
        assert found == pytest.approx(spearmanr(result.values["x"][row], other[row])[0])


def test_targets_that_share_passes_share_none_of_random_weights() -> None:
    """Of two classes each is as by itself: outputs of the served weights say nothing of others."""
    asked = ca.FeatureAblation(metrics=(ca.ParameterRandomisation(),))
    several = ask(RECTIFIED().double(), GIVEN, replace(asked, target=ca.TopK(2)), seed=SEED).attributions
    for result in several:
        assert result.targets is not None
        alone = judged(RECTIFIED().double(), GIVEN, asked, target=ClassIndex(tuple(result.targets.tolist())))
        assert np.array_equal(result.metrics[0].values, alone.metrics[0].values)
        assert result.metrics[0].values.max() < 1


def test_between_two_passes_of_a_randomised_model_others_find_their_own() -> None:
    """After every pass the model has the weights that it is served with."""
    model, seen = InspectedModel(RECTIFIED(), lambda tensors: None), []
    own = {name: value.clone() for name, value in model.module.state_dict().items()}
    inside: list[bool] = []

    def same() -> bool:
        return all(torch.equal(value, own[name]) for name, value in model.module.state_dict().items())

    def call(tensors: dict[str, Any]) -> Tensor:
        inside.append(same())
        return model.module(**tensors)

    model.call = call
    model.passes.watcher = lambda _: seen.append(same())
    asked = ca.Saliency(metrics=(ca.ParameterRandomisation(),))
    inspect(model, ca.InspectRequest("m", attributions=(asked,), seed=SEED), {"x": GIVEN["x"].float()})
    assert all(seen)
    assert not all(inside)


def test_the_explanation_of_another_class() -> None:
    """Drawn for each row among the other ones."""
    model, x = RECTIFIED().double(), GIVEN["x"].numpy()
    (found,) = judged(model, GIVEN, ca.InputXGradient(metrics=(ca.RandomLogit(),))).metrics
    drawn = torch.randint(1, 3, (ROWS,), generator=torch.Generator().manual_seed(SEED))
    others = [(target + int(other)) % 3 for target, other in zip(CLASSES, drawn)]
    assert not set(zip(others, CLASSES)) & {(each, each) for each in CLASSES}
    here, there = explained(model, x), explained(model, x, target=others)
    assert found.values == pytest.approx([spearmanr(a, b)[0] for a, b in zip(here, there)])


def test_a_shift_that_the_model_takes_off_moves_some_methods() -> None:
    """The gradient is the same; gradient * input is not. Kindermans et al. 2017, figure 2."""
    model, x = RECTIFIED().double(), GIVEN["x"].numpy()
    gradient, product = (
        judged(model, GIVEN, kind(metrics=(ca.InputInvariance(shift=2.0),))).metrics[0].values
        for kind in (ca.Saliency, ca.InputXGradient)
    )
    assert gradient == pytest.approx(np.zeros(ROWS), abs=1e-12)
    slopes, here = explained(model, x) / x, explained(model, x)
    moved = np.linalg.norm((x + 2) * slopes - here, axis=1) / np.linalg.norm(here, axis=1)
    assert product == pytest.approx(moved)


# Doubts.

PICTURES = wired(
    lambda m, x: m.b(m.a(x).relu().mean(dim=(2, 3))),
    a=lambda: nn.Conv2d(3, 6, 3, padding=1),
    b=lambda: nn.Linear(6, 3),
)
SEVEN = {"x": noise(2, 3, 6, 7)}
SHOWN = wired(lambda m, x: m.b(m.same(x).relu()), same=nn.Identity, b=lambda: nn.Linear(24, 3))


def test_an_explanation_that_survives_random_weights_is_in_doubt() -> None:
    """What a layer shows before any weights is the same with all of them."""
    given = {"x": noise(2, 24)}
    asked = ca.LayerActivation(layer="same", metrics=(ca.ParameterRandomisation(),))
    result = ask(SHOWN(), given, asked, seed=SEED).attributions[0]
    assert result.worst_check is not None
    assert result.worst_check.cause is ca.Cause.INSENSITIVE_TO_WEIGHTS
    assert result.worst_check.verdict is ca.Verdict.INCONCLUSIVE
    assert result.metrics[0].values == pytest.approx([1, 1])
    assert not ask(SHOWN(), given, asked, seed=SEED, check=OFF).attributions[0].checks


def _run(model: nn.Module, tensors: dict[str, Any]) -> Tensor:
    return model(tensors["x"])


@pytest.mark.parametrize("asked", [ca.Saliency, ca.InputXGradient, ca.IntegratedGradients, ca.FeatureAblation])
def test_explanations_that_follow_the_weights_are_not_doubted(asked: type[Attribution]) -> None:
    for seed in range(8):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 4)).eval()
        result = inspect(
            InspectedModel(model, partial(_run, model)),
            ca.InspectRequest("m", attributions=(asked(metrics=(ca.ParameterRandomisation(),)),), seed=seed),
            {"x": noise(3, 24, seed=seed)},
        ).attributions[0]
        assert {check.verdict for check in result.checks} == {ca.Verdict.AGREES}, (seed, result.metrics)


# What features are.


def test_a_pixel_is_all_its_channels_and_a_mask_groups_elements() -> None:
    """Removing all of one picture's pixels one by one gives the same areas as the loops."""
    model = PICTURES().double()
    given = {"x": SEVEN["x"].double()}
    blocks = np.broadcast_to(np.arange(42).reshape(6, 7) // 14, (1, 3, 6, 7))
    for masks, parts in (({}, 42), ({"x": blocks}, 3)):
        metric = ca.Deletion(n_steps=parts, masks=masks)
        result = ask(model, given, ca.InputXGradient(metrics=(metric,)), target=ClassIndex((0, 1)), seed=SEED)
        found = result.attributions[0].metrics[0].curve
        assert found is not None
        numbers = np.arange(42) if not masks else blocks[0, 0].reshape(-1)
        for row, a in enumerate(result.attributions[0].values["x"]):
            by_pixel = a.sum(axis=0).reshape(-1)
            relevance = [by_pixel[numbers == part].sum() for part in range(parts)]
            left = given["x"][row].clone().reshape(3, -1)
            for step, part in enumerate([None, *most(np.array(relevance))]):
                if part is not None:
                    left[:, torch.from_numpy(numbers == part)] = 0
                with torch.no_grad():
                    target = float(model(x=left.reshape(1, 3, 6, 7))[0, row])
                assert found[row, step] == pytest.approx(target, abs=1e-9)


def test_a_methods_own_masks_are_its_features_whatever_their_size() -> None:
    """Each element of a feature has the feature's value: a large one is no more relevant for its size."""
    slope = torch.tensor([[3.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]])
    model = wired(lambda m, x: (x * m.slope).sum(dim=1, keepdim=True), slope=lambda: nn.Parameter(slope))
    masks = {"x": np.array([[0, 1, 1, 1, 1, 2, 2, 2]])}
    asked = ca.FeatureAblation(masks=masks, metrics=(ca.Deletion(n_steps=3),))
    result = ask(model(), {"x": torch.ones(1, 8)}, asked, target=ClassIndex((0,)), seed=SEED).attributions[0]
    assert result.values["x"].tolist() == [[3, 2, 2, 2, 2, 1.5, 1.5, 1.5]]
    assert result.metrics[0].curve is not None
    assert result.metrics[0].curve.tolist() == [[6.5, 3.5, 1.5, 0]]


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20, 4), nn.Linear(4, 3)

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask.unsqueeze(-1).to(self.words.weight.dtype)
        return self.head((self.words(ids).tanh() * mask).sum(dim=1))


def test_tokens_are_removed_and_padding_is_none() -> None:
    """An attribution of an embedding is summed by token; its ids are replaced by the baseline's."""
    torch.manual_seed(0)
    model, ids = Reader().double().eval(), torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0]])
    given = {"ids": ids, "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])}
    asked = ca.LayerGradientXActivation(layer="words", metrics=(ca.Deletion(n_steps=2, baselines={"ids": 9}),))
    result = ask(model, given, asked, target=ClassIndex((0, 1)), seed=SEED).attributions[0]
    assert result.tokens is not None
    found = result.metrics[0].curve
    assert found is not None
    for row, own in enumerate((4, 2)):
        order = most(result.tokens.values[row][:own])
        for step in range(3):
            other = ids.clone()
            other[row, order[: own * step // 2]] = 9
            with torch.no_grad():
                assert found[row, step] == pytest.approx(float(model(other, given["attention_mask"])[row, row]))


def test_removed_pixels_get_the_mean_of_their_neighbours() -> None:
    """A slope in a picture goes on through a hole, but for the noise; a baseline would show there."""
    slope = (torch.arange(8.0)[:, None] + 2 * torch.arange(8.0)).expand(1, 2, 8, 8)
    weights = torch.zeros(2, 8, 8)
    weights[:, 3:5, 3:5] = 1
    model = wired(
        lambda m, x: (x * m.weights).sum(dim=(1, 2, 3), keepdim=False)[:, None], weights=lambda: nn.Parameter(weights)
    )
    hole = ca.Comprehensiveness(fraction=4 / 64, imputation=ca.Imputation.NOISY_LINEAR)
    asked = ca.InputXGradient(metrics=(hole, ca.Comprehensiveness(fraction=4 / 64)))
    filled, emptied = ask(model(), {"x": slope}, asked, target=ClassIndex((0,)), seed=SEED).attributions[0].metrics
    assert emptied.values[0] == pytest.approx(float((slope * weights).sum()))
    assert abs(filled.values[0]) < 8 * 4 * 0.01 * float(slope.std())
    assert filled.values[0] != 0


def test_a_neighbour_beside_weighs_twice_as_much_as_one_at_a_corner() -> None:
    """One hole: 4 / 6 less 4 / 12, where equal weights would give nothing; the noise is small."""
    picture, weights = torch.zeros(1, 1, 5, 5), torch.zeros(1, 5, 5)
    for y, x in ((1, 3), (3, 3), (2, 2), (2, 4)):
        picture[0, 0, y, x] = 1
    for y, x in ((1, 2), (1, 4), (3, 2), (3, 4)):
        picture[0, 0, y, x] = -1
    weights[0, 2, 3] = 1
    model = wired(lambda m, x: (x * m.weights).sum(dim=(1, 2, 3))[:, None], weights=lambda: nn.Parameter(weights))
    hole = ca.Comprehensiveness(fraction=1 / 25, imputation=ca.Imputation.NOISY_LINEAR)
    asked = ca.Saliency(metrics=(hole,))
    (found,) = ask(model(), {"x": picture}, asked, target=ClassIndex((0,)), seed=SEED).attributions[0].metrics
    assert -found.values[0] == pytest.approx(1 / 3, abs=0.06)


# The report as a whole.


def test_a_report_has_all_that_applies_and_names_nothing_twice() -> None:
    everything = {
        metric.name
        for metric in judged(RECTIFIED(), {"x": GIVEN["x"].float()}, ca.Saliency(quality=ca.Quality())).metrics
    }
    assert len(everything) == 19
    lrp = ask(RECTIFIED(), {"x": GIVEN["x"].float()}, ca.LRP(quality=ca.Quality()), seed=SEED).attributions[0].metrics
    assert everything - {metric.name for metric in lrp} == {"parameter_randomisation", "randomised_complexity"}
    less = judged(RECTIFIED(), {"x": GIVEN["x"].float()}, ca.Saliency(quality=ca.Quality(randomisation=False))).metrics
    assert [metric.name for metric in less] == [metric.name for metric in lrp]
    layer = ask(PICTURES(), SEVEN, ca.LayerGradCam(layer="a", quality=ca.Quality()), seed=SEED).attributions[0].metrics
    assert {"deletion", "infidelity"} & {metric.name for metric in layer} == set()
    assert "sparseness" in {metric.name for metric in layer}


SATURATED = wired(
    lambda m, x: torch.stack([x[:, 5].clamp(0, 1) * 5 + m.weight * x.sum(dim=1), x.sum(dim=1)], dim=1),
    weight=lambda: nn.Parameter(torch.tensor(0.01)),
)


def test_the_method_that_finds_the_planted_feature_ranks_first() -> None:
    """The gradient at a saturated feature is no larger than at the others; the path from the baseline finds it."""
    x = noise(4, 16).abs() + 0.1
    x[:, 5] = 3
    metrics = (
        *(ca.Deletion(), ca.Insertion(), ca.SymmetricRelevanceGain(), ca.FaithfulnessCorrelation()),
        *(ca.Sufficiency(), ca.Comprehensiveness(), ca.PointingGame(regions={"x": np.arange(16) == 5})),
    )
    right, wrong = (
        ask(SATURATED(), {"x": x}, asked, target=ClassIndex((0,)), seed=SEED).attributions[0].metrics
        for asked in (ca.IntegratedGradients(metrics=metrics), ca.Saliency(metrics=metrics))
    )
    for good, bad in zip(right, wrong):
        better = np.less if good.better is Better.LOWER else np.greater
        assert (better(good.values, bad.values) | np.isnan(bad.values)).all(), good.name  # all alike: no correlation
        assert good.random is not None
        assert better(good.values, good.random).all(), good.name


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(checkpoint(lambda y: F.relu(self.a(y)), x, use_reentrant=False))


REFUSED: tuple[tuple[Any, Any, str, str], ...] = (
    (RECTIFIED, ca.Saliency(metrics=(ca.Deletion(n_steps=0),)), "metrics[0].deletion.n_steps", "0 steps; from 1"),
    (RECTIFIED, ca.Saliency(metrics=(ca.Deletion(masks={"y": np.zeros((1, 8), int)}),)), "masks.by_input.y", "'y'"),
    (RECTIFIED, ca.Saliency(metrics=(ca.Deletion(baselines={"y": 1}),)), "baselines.by_input.y", "'y'"),
    (RECTIFIED, ca.Saliency(metrics=(ca.RelevanceMass(regions={"x": np.ones(5)}),)), "regions.by_input.x", "[5]"),
    (RECTIFIED, ca.LayerConductance(layer="a", metrics=(ca.Insertion(),)), "metrics[0]", "a layer"),
    (RECTIFIED, ca.LRP(metrics=(ca.ParameterRandomisation(),)), "metrics[0]", "use another method"),
    (
        RECTIFIED,
        ca.Saliency(metrics=(ca.RelativeRepresentationStability(module="zz"),)),
        "relative_representation_stability.module",
        "zz",
    ),
    (RECTIFIED, ca.Saliency(target=ca.OutputSum(), metrics=(ca.RandomLogit(),)), "metrics[0]", "no class among"),
    (
        RECTIFIED,
        ca.Saliency(metrics=(ca.Deletion(imputation=ca.Imputation.NOISY_LINEAR),)),
        "metrics[0]",
        "for pictures",
    ),
    (Checkpointed, ca.Saliency(metrics=(ca.ParameterRandomisation(),)), "metrics[0]", "activation checkpointing"),
)


@pytest.mark.parametrize(("build", "asked", "field", "text"), REFUSED)
def test_what_cannot_be_measured_is_an_error(build: Any, asked: Attribution, field: str, text: str) -> None:
    model = build().eval()
    with untouched(model), pytest.raises(CutawayError) as refused:
        ask(model, {"x": GIVEN["x"].float()}, asked, seed=SEED)
    assert field in refused.value.field
    assert text in refused.value.message


def test_a_metric_of_removal_takes_its_own_fields_in_order() -> None:
    """As the page writes them: what all of them have in common is named."""
    assert ca.Sufficiency(0.1) == ca.Sufficiency(fraction=0.1)
    assert ca.FaithfulnessCorrelation(50, 0.3) == ca.FaithfulnessCorrelation(n_samples=50, fraction=0.3)
    assert ca.Deletion(4, baselines={"x": 1.0}).n_steps == 4


@pytest.mark.parametrize("rows", [3, 5])
def test_what_a_module_returns_has_its_rows_where_they_are(rows: int) -> None:
    """Also with as many time steps as rows, the time first: figures are those of the rows moved to axis 0."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.rnn, self.turned, self.head = nn.GRU(4, 6), nn.Identity(), nn.Linear(6, 3)
            self.table = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            states = self.rnn(x.transpose(0, 1))[0]
            logits: Tensor = self.head(self.turned(states.transpose(0, 1))[:, -1])
            return logits + self.table(x.new_zeros(5, 3))[0]

    x = torch.randn(rows, 5, 4, generator=torch.Generator().manual_seed(1))
    model = load_model(TensorAdapter(Recurrent()), "cpu")

    def stability(module: str) -> Any:
        metrics = (ca.RelativeRepresentationStability(module=module),)
        request = ca.InspectRequest("m", attributions=(ca.Saliency(metrics=metrics),), seed=1)
        return inspect(model, request, {"x": x}).attributions[0].metrics[0].values

    np.testing.assert_allclose(stability("rnn"), stability("turned"), rtol=1e-5)
    with pytest.raises(CutawayError, match=rf"METHOD_INAPPLICABLE .*module\].*no tensor with the {rows} rows"):
        stability("table")
