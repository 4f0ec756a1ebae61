"""Superpixels as features: regions of each picture itself, in every method and metric that takes masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.ndimage import label
from skimage.segmentation import slic
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.errors import CutawayError
from cutaway.contract.requests import Attribution, CheckMode, CheckRequest, ClassIndex
from cutaway.contract.results import AttributionResult, InspectResult, Verdict
from cutaway.contract.tensors import Array
from cutaway.engine.batching import inspect_batch
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.passes import features
from cutaway.engine.planning.plan import plan_request
from tests.support.checked_attributions import ask, noise, wired

SIDE = 40
Y, X = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
DISC = (Y - 15) ** 2 + (X - 22) ** 2 < 100
BAR = (Y > 8) & (Y < 18) & (X < 30)
SHAPES = torch.stack([DISC, BAR])


def pictures(channels: int = 3) -> Tensor:
    """Shapes of lighter colours on a dark ground, with noise."""
    colours = torch.linspace(0.3, 0.9, channels).reshape(1, channels, 1, 1)
    return SHAPES.unsqueeze(1) * colours + 0.05 * noise(2, channels, SIDE, SIDE)


SEES_SHAPE = wired(
    lambda m, image: torch.stack([(image * m.where).sum((1, 2, 3)), -image.sum((1, 2, 3))], 1),
    where=lambda: nn.Parameter((SHAPES[:1] & (Y < 15)).float().expand(3, SIDE, SIDE).clone(), requires_grad=False),
)  # fmt: skip
TARGET = ClassIndex((0,))
TEN = ca.Superpixels(10)
LOOSE = ca.Superpixels(10, compactness=0.1)


def one(asked: Attribution, images: Tensor | None = None, **more: Any) -> AttributionResult:
    inputs = {"image": pictures() if images is None else images}
    (result,) = ask(SEES_SHAPE(), inputs, asked, target=TARGET, seed=3, **more).attributions
    return result


def regions(segments: int = 10, images: Tensor | None = None, **more: Any) -> Array:
    asked = ca.FeatureAblation(masks={"image": ca.Superpixels(segments, **more)})
    return one(asked, images, check=CheckRequest(CheckMode.OFF)).features["image"]


# The regions.


@pytest.mark.parametrize("segments", [4, 10, 30])
def test_regions_are_in_one_piece_and_about_as_many_as_asked(segments: int) -> None:
    for row in regions(segments):
        numbers = np.unique(row)
        assert numbers.tolist() == [*range(len(numbers))]
        assert segments / 2 <= len(numbers) <= 1.5 * segments
        assert all(label(row == number)[1] == 1 for number in numbers)


def test_regions_keep_to_the_edges_of_each_picture() -> None:
    """Squares would not: of their pixels a part is on the other side of a shape's edge."""
    assert mixed(regions()) < 0.02
    assert mixed(regions(compactness=1000.0)) > 0.05


def mixed(found: Array) -> float:
    """The part of the pixels that are on the side of an edge that fewer pixels of their region are on."""
    inside = SHAPES.numpy()
    parts = [inside[row][found[row] == number] for row in range(2) for number in np.unique(found[row])]
    return sum(min(part.sum(), (~part).sum()) for part in parts) / found.size


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_regions_are_those_of_scikit_image_by_hand(channels: int) -> None:
    images = 5.0 * pictures(channels) - 2.0  # as normalised for a model
    for row, found in enumerate(features._superpixels("image", ca.Superpixels(12), images)[:, 0]):
        expected = slic(images[row].permute(1, 2, 0).numpy(), 12, 1.0, start_label=0, convert2lab=False)
        np.testing.assert_array_equal(np.unique(expected, return_inverse=True)[1].reshape(SIDE, SIDE), found)


def test_without_colours_regions_are_a_grid() -> None:
    (found, _) = regions(16, torch.full((2, 3, SIDE, SIDE), 0.5))
    assert {int((found == number).sum()) for number in range(16)} <= {*range(80, 125)}


def test_a_row_has_the_regions_that_it_has_alone() -> None:
    together = regions()
    for row in range(2):
        np.testing.assert_array_equal(together[row], regions(images=pictures()[row : row + 1])[0])
    assert not np.array_equal(*together)


# The methods.

METHODS: dict[str, Attribution] = {
    "ablation": ca.FeatureAblation(masks={"image": LOOSE}),
    "shapley": ca.ShapleyValueSampling(masks={"image": LOOSE}, n_samples=3),
    "kernel": ca.KernelShap(masks={"image": LOOSE}, n_samples=60),
    "lime": ca.Lime(masks={"image": LOOSE}, n_samples=60),
}


@pytest.mark.parametrize("mode", [CheckMode.SAME_PASS, CheckMode.INDEPENDENT])
@pytest.mark.parametrize("method", [*METHODS])
def test_methods_agree_with_masks_that_differ_by_row(method: str, mode: CheckMode) -> None:
    """Also where a row has fewer regions than another one."""
    images = pictures()
    images[1] = (X // 2 % 2).float()  # stripes
    result = one(METHODS[method], images, check=CheckRequest(mode))
    assert len({int(numbers.max()) for numbers in result.features["image"]}) == 2
    assert {check.verdict for check in result.checks} == {Verdict.AGREES}
    for values, numbers in zip(result.values["image"], result.features["image"]):
        assert all(len(np.unique(values[:, numbers == number])) == 1 for number in np.unique(numbers))


def test_ablation_is_what_each_region_adds_by_hand() -> None:
    result, images, where = one(METHODS["ablation"]), pictures(), SEES_SHAPE().get_parameter("where")
    for row in range(2):
        for number in np.unique(result.features["image"][row]):
            inside = torch.from_numpy(result.features["image"][row] == number)
            expected = float((images[row] * where * inside).sum())
            np.testing.assert_allclose(result.values["image"][row][:, inside], expected, atol=1e-3)


def test_a_mask_sent_as_numbers_gives_the_same() -> None:
    result = one(METHODS["ablation"])
    mask = np.repeat(result.features["image"][:, None], 3, axis=1)
    sent = one(ca.FeatureAblation(masks={"image": mask}))
    np.testing.assert_array_equal(result.values["image"], sent.values["image"])
    assert not sent.features


def test_metrics_remove_regions_of_each_row() -> None:
    """Those of the method, and those of the metric: the most relevant one is gone after the first of ten steps."""
    asked = ca.FeatureAblation(masks={"image": LOOSE}, metrics=(ca.Deletion(), ca.Comprehensiveness(fraction=0.1)))
    by_method = one(asked)
    by_metric = one(ca.InputXGradient(metrics=(ca.Deletion(masks={"": LOOSE}),)))
    numbers = by_method.features["image"]
    for row in range(2):
        falls = [by_method.values["image"][row, 0][numbers[row] == number][0] for number in np.unique(numbers[row])]
        assert by_method.metrics[1].values[row] == pytest.approx(max(falls), rel=1e-3)
        curve = by_metric.metrics[0].curve
        assert curve is not None
        assert curve[row, 0] - curve[row, 1] == pytest.approx(max(falls), rel=1e-3)


def test_regions_of_two_inputs_are_different_features() -> None:
    model = wired(lambda m, a, b: torch.stack([a.sum((1, 2, 3)) - b.sum((1, 2, 3)), b.sum((1, 2, 3))], 1))()
    inputs = {"a": pictures(), "b": pictures(1)}
    (result,) = ask(model, inputs, ca.FeatureAblation(masks={"": TEN}), target=TARGET).attributions
    assert result.checks[0].verdict is Verdict.AGREES
    assert result.features["b"].min() == result.features["a"].max() + 1


def test_requests_do_not_share_each_others_regions() -> None:
    """Requests of one row each, that ask the same: one pass for all would have the first one's regions."""
    model = SEES_SHAPE()
    subject = InspectedModel(model, lambda tensors: model(**tensors))
    question = ca.InspectRequest("m", attributions=(METHODS["ablation"],), target=TARGET)
    plans = [plan_request(subject, question, {"image": pictures()[row : row + 1]}) for row in range(2)]
    for row, found in enumerate(inspect_batch(plans)):
        assert isinstance(found, InspectResult)
        np.testing.assert_array_equal(found.attributions[0].features["image"], regions(compactness=0.1)[row : row + 1])


@pytest.mark.parametrize(
    ("asked", "images", "field"),
    [
        (ca.FeaturePermutation(masks={"image": TEN}), pictures(), "feature_permutation.masks.superpixels.image"),
        (ca.FeatureAblation(masks={"image": TEN}), noise(2, SIDE), "feature_ablation.masks.superpixels.image"),
        (ca.FeatureAblation(masks={"": TEN}), noise(2, SIDE), "feature_ablation.masks.superpixels"),
        (ca.FeatureAblation(masks={"picture": TEN}), pictures(), "feature_ablation.masks.superpixels.picture"),
    ],
)
def test_what_has_no_regions_is_refused(asked: Attribution, images: Tensor, field: str) -> None:
    model = wired(lambda m, image: image.flatten(1)[:, :3])()
    with pytest.raises(CutawayError) as failure:
        ask(model, {"image": images}, asked, target=TARGET)
    assert failure.value.field == f"attributions[0].{field}"


def test_more_pixels_than_are_divided_in_some_seconds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "MAX_PIXELS", 2 * SIDE * SIDE - 1)
    with pytest.raises(CutawayError, match="send fewer rows") as failure:
        regions()
    assert failure.value.reason == "LIMIT_EXCEEDED"


def test_numbers_that_are_none_and_single_colours_have_regions_too() -> None:
    images = pictures()
    images[0, :, 3, 5] = torch.nan
    images[1] *= 1e30
    assert regions(images=images).shape == (2, SIDE, SIDE)
