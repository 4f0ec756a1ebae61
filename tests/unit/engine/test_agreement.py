"""How far attributions of one request agree: held against numpy and scipy, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import nn

import cutaway as ca
from cutaway.contract.results import InspectResult
from cutaway.contract.results.arrays import entries
from cutaway.engine.batching import inspect_batch
from cutaway.engine.cost.estimate import estimate
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.planning.plan import plan_request
from cutaway.views import tables
from cutaway.views.inspection import Inspection
from tests.support.checked_attributions import ask, noise, wired

PICTURE = wired(
    lambda m, image: m.head(torch.tanh(m.b(torch.tanh(m.a(image)))).flatten(1)),
    a=lambda: nn.Conv2d(2, 4, 3), b=lambda: nn.Conv2d(4, 3, 3), head=lambda: nn.Linear(3 * 16, 4),
)  # fmt: skip
IMAGES = {"image": noise(3, 2, 8, 8)}
WORDS = wired(
    lambda m, input_ids, attention_mask: m.head((torch.tanh(m.words(input_ids)) * attention_mask.unsqueeze(2)).sum(1)),
    words=lambda: nn.Embedding(30, 5), head=lambda: nn.Linear(5, 3),
)  # fmt: skip
THREE = (ca.Saliency(), ca.IntegratedGradients(n_steps=4), ca.InputXGradient())


def by_hand(one: Any, other: Any) -> tuple[float, float, float]:
    """Slow and obvious: the cosine, scipy's rank correlation, and the largest tenth in common."""
    one, other = (np.asarray(each, np.float64).ravel() for each in (one, other))
    count = max(1, round(one.size / 10))
    tops = [{*np.flatnonzero(abs(each) >= sorted(abs(each))[-count])} for each in (one, other)]
    cosine = sum(one * other) / np.sqrt(sum(one**2)) / np.sqrt(sum(other**2))
    return cosine, spearmanr(one, other).statistic, len(tops[0] & tops[1]) / max(map(len, tops))


def agreed(result: InspectResult) -> dict[tuple[int, int], Any]:
    return {(each.first, each.second): each for each in result.agreements}


def test_figures_are_those_of_numpy_and_scipy_row_by_row() -> None:
    """Magnitudes are compared where one of the methods has no signs."""
    result = ask(PICTURE(), IMAGES, *THREE, ca.GuidedBackprop(), target=ca.ClassIndex((1,)), agreement=True)
    values = [each.values["image"] for each in result.attributions]
    found = agreed(result)
    assert [*found] == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    for (first, second), each in found.items():
        assert each.of_magnitudes is (first == 0)
        for row in range(3):
            one, other = values[first][row], values[second][row]
            one, other = (abs(one), abs(other)) if first == 0 else (one, other)
            np.testing.assert_allclose([array[row] for array in each.figures], by_hand(one, other), atol=1e-12)


def test_only_the_same_places_and_the_same_target_are_compared() -> None:
    """Not a layer with the input, not another class, not another neuron, not what has no target."""
    other = ca.InputXGradient(target=ca.ClassIndex((2,)))
    neurons = [ca.NeuronGradient(neuron=ca.Neuron("a", (0, 1, index))) for index in (1, 2)]
    layers = [ca.LayerActivation(layer="b"), ca.LayerGradientXActivation(layer="b"), ca.InternalInfluence(layer="b")]
    same = ca.InputXGradient(target=ca.ClassIndex((1,)))
    result = ask(
        PICTURE(), IMAGES, *THREE[:2], other, *neurons, *layers, same, target=ca.ClassIndex((1,)), agreement=True
    )
    assert [*agreed(result)] == [(0, 1), (0, 8), (1, 8), (6, 7)]


def test_of_several_classes_each_is_compared_with_itself() -> None:
    result = ask(PICTURE(), IMAGES, *THREE[1:], target=ca.TopK(2), agreement=True)
    assert [*agreed(result)] == [(0, 2), (1, 3)]


def test_tokens_are_compared_without_padding() -> None:
    """Each row has what it has alone, whatever its company; an embedding's sums stand beside an input's tokens."""
    ids, mask = torch.randint(1, 30, (2, 9), generator=torch.Generator().manual_seed(3)), torch.ones(2, 9)
    mask[1, 5:] = 0
    asked = (ca.LayerIntegratedGradients(layer="words", n_steps=4), ca.LayerGradientXActivation(layer="words"),
             ca.FeatureAblation(inputs=("input_ids",)))  # fmt: skip
    more: dict[str, Any] = {"target": ca.ClassIndex((1,)), "agreement": True}
    result = ask(WORDS(), {"input_ids": ids, "attention_mask": mask}, *asked, **more)
    alone = ask(WORDS(), {"input_ids": ids[1:, :5], "attention_mask": mask[1:, :5]}, *asked, **more)
    assert [*agreed(result)] == [(0, 1), (0, 2), (1, 2)] == [*agreed(alone)]
    for each, own in zip(result.agreements, alone.agreements):
        np.testing.assert_allclose(
            [figure[1] for figure in each.figures], [figure[0] for figure in own.figures], atol=1e-5
        )
    tokens = result.attributions[0].tokens
    assert tokens is not None
    expected = by_hand(tokens.values[1, :5], result.attributions[2].values["input_ids"][1, :5])
    np.testing.assert_allclose([figure[1] for figure in agreed(result)[0, 2].figures], expected, atol=1e-6)


def test_zero_and_not_finite_rows_have_no_figures() -> None:
    """And nothing else does: a row beside them keeps its own."""
    inputs = {"image": IMAGES["image"].clone()}
    inputs["image"][1], inputs["image"][2, 0, 0, 0] = 0, torch.nan
    with np.errstate(all="raise"):
        result = ask(PICTURE(), inputs, *THREE[1:], target=ca.ClassIndex((1,)), agreement=True)
    (each,) = result.agreements
    assert all(np.isnan(figure).tolist() == [False, True, True] for figure in each.figures)


def test_zeros_are_in_no_largest_tenth() -> None:
    """Of an attribution with few numbers but 0, the others are not filled up from the same end."""
    model = wired(lambda m, x: torch.stack([x[:, 3] * 2 + x[:, 7], -x[:, 0]], 1))()
    inputs = {"x": torch.arange(1.0, 41).reshape(1, 40)}
    (each,) = ask(
        model,
        inputs,
        ca.InputXGradient(),
        ca.FeatureAblation(baselines={"x": 1.0}),
        target=ca.ClassIndex((0,)),
        agreement=True,
    ).agreements
    assert each.top_in_common.tolist() == [1.0]
    masks = {"x": np.repeat(np.arange(10), 4)[None]}
    (each,) = ask(
        model, inputs, ca.InputXGradient(), ca.FeatureAblation(masks=masks), target=ca.ClassIndex((0,)), agreement=True
    ).agreements
    assert each.top_in_common.tolist() == [0.25]  # a group of four, of which two are the others


def test_nothing_is_compared_unless_it_is_asked_for() -> None:
    assert ask(PICTURE(), IMAGES, *THREE, target=ca.ClassIndex((1,))).agreements == ()


def test_one_that_failed_is_left_out() -> None:
    asked = (*THREE[:2], ca.LayerGradCam(layer="nowhere"), THREE[2])
    result = ask(
        PICTURE(), IMAGES, *asked, target=ca.ClassIndex((1,)), agreement=True, attribution_errors_in_place=True
    )
    assert [*agreed(result)] == [(0, 1), (0, 3), (1, 3)]


def test_requests_that_run_together_have_what_each_has_alone() -> None:
    """Also if one class is the request's and another the attribution's own."""
    model, plans = PICTURE(), []
    subject = InspectedModel(model, lambda tensors: model(**tensors))
    for row, label in enumerate((1, 2, 1)):
        asked = (THREE[1], ca.InputXGradient(target=ca.ClassIndex((1,))), THREE[2])
        question = ca.InspectRequest("m", attributions=asked, target=ca.ClassIndex((label,)), agreement=True)
        plans.append(plan_request(subject, question, {"image": IMAGES["image"][row : row + 1]}))
    together = inspect_batch(plans)
    for plan, each in zip(plans, together):
        assert isinstance(each, InspectResult)
        (alone,) = inspect_batch([plan])
        assert isinstance(alone, InspectResult)
        assert [*agreed(each)] == [*agreed(alone)]
        for one, other in zip(each.agreements, alone.agreements):
            np.testing.assert_allclose(one.figures, other.figures, atol=1e-5)
    assert [len(each.agreements) for each in together if isinstance(each, InspectResult)] == [3, 1, 3]


def test_a_dry_run_lists_the_figures_and_computes_none() -> None:
    result = ask(PICTURE(), IMAGES, *THREE, target=ca.ClassIndex((1,)), agreement=True)
    model = PICTURE()
    question = ca.InspectRequest("m", attributions=THREE, target=ca.ClassIndex((1,)), agreement=True, dry_run=True)
    dry = estimate(plan_request(InspectedModel(model, lambda tensors: model(**tensors)), question, IMAGES))
    of = [entry.name for entry in entries(result) if entry.kind.startswith("agreement")]
    assert of == [entry.name for entry in entries(dry) if entry.kind.startswith("agreement")]
    assert "agreement_rank_correlation:0:2" in of
    assert len(of) == 9


def test_print_table_page_and_pandas_show_it() -> None:
    found = ask(PICTURE(), IMAGES, *THREE, target=ca.ClassIndex((1,)), agreement=True)
    result = Inspection.of(found, ca.InspectRequest("m", attributions=THREE))
    cosine = np.mean(found.agreements[0].cosine)
    assert f"Saliency and IntegratedGradients: cosine {cosine:.2f}" in str(result)
    row = found.agreements[2].cosine[1]
    assert f"IntegratedGradients and InputXGradient: cosine {row:.2f}" in result._repr_html_()
    assert tables.agreement_table(result).row_count == 3
    frame = result.to_pandas("agreement")
    assert frame.shape == (9, 7)
    chosen = frame[(frame.example == 1) & (frame.title == "IntegratedGradients")]
    assert chosen.cosine.tolist() == [row]
