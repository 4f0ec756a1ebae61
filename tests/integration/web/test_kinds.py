"""Each kind of data is drawn as what it is: series as lines, tables as bars of one scale, photos below their maps."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import PIL.Image
import pytest
import torch
from playwright.sync_api import Browser, FilePayload
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import Adapter, ImageAdapter
from cutaway.contract.results import InputSpec
from cutaway.gateway import serve
from cutaway.server.embedded import Served
from cutaway.server.settings import Settings
from tests.support.pages import Inspector, opened
from tests.support.waiting import until

VITALS = ("heart rate", "breaths", "blood pressure, systolic")
STEPS = 48


class Trend(nn.Module):
    """A series to three logits; the first feature counts least."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(STEPS * 3, 3)

    def forward(self, vitals: Tensor) -> Tensor:
        return self.head((vitals * torch.tensor([0.01, 1.0, 0.1])).flatten(1))


class Ward(Adapter):
    """A series with named features."""

    inputs = (InputSpec("vitals", "float32", (-1, STEPS, 3), feature_names=VITALS),)
    labels = ("stable", "watch", "act")

    def build(self) -> nn.Module:
        return Trend()

    def example(self) -> dict[str, Tensor]:
        return {"vitals": SERIES}


SERIES = torch.stack([torch.sin(torch.arange(STEPS) * rate) for rate in (0.2, 0.4, 0.1)], dim=1)[None]


class Loan(nn.Module):
    """Two numbers and a category to one number."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.region, self.head = nn.Embedding(4, 2), nn.Linear(4, 1)

    def forward(self, money: Tensor, region: Tensor) -> Tensor:
        return self.head(torch.cat([money, self.region(region)], dim=1)) + 200


class Bank(Adapter):
    """A table, and a regression."""

    inputs = (
        InputSpec("money", "float32", (-1, 2), feature_names=("income", "debt")),
        InputSpec("region", "int64", (-1,)),
    )

    def build(self) -> nn.Module:
        return Loan()

    def example(self) -> dict[str, Tensor]:
        return {"money": torch.tensor([[5.0, -2.5]]), "region": torch.tensor([3])}


class Coarse(nn.Module):
    """A photo that is wider than high to many logits, by a coarse layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.pool, self.head = nn.Conv2d(3, 20, 8, 8), nn.AdaptiveAvgPool2d(1), nn.Linear(20, 40)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.pool(torch.relu(self.conv(pixels))).flatten(1))


class Photo(ImageAdapter):
    """With labels that all begin alike."""

    size = (32, 48)
    argument = "pixels"
    labels = tuple(f"n0000{index:02} garden animal" for index in range(40))

    def build(self) -> nn.Module:
        return Coarse()


@pytest.fixture(scope="module")
def site() -> Iterator[Served]:
    """All of them, in place of the models of other tests."""
    models: dict[str, Adapter] = {"ward": Ward(), "bank": Bank(), "photo": Photo()}
    with serve(models, settings=Settings(http_address="127.0.0.1:0")) as server:
        yield server


@pytest.mark.parametrize("size", [(1280, 900), (390, 800)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_series_is_lines_over_time(size: tuple[int, int], scheme: str, browser: Browser, site: Served) -> None:
    """Named, the feature first that counts most, its attribution below it; readable on a phone, and in the dark."""
    with ca.Client(site.address) as client:
        values = client.inspect("ward", {"vitals": SERIES.numpy()}, attributions=ca.InputXGradient()).attributions[0]
    order = np.argsort(-np.abs(values.values["vitals"][0]).sum(axis=0))
    view = {"width": size[0], "height": size[1]}
    with opened(browser, f"http://{site.http_address}", viewport=view, color_scheme=scheme) as page:
        page.open_question("ward", attributions=[{"inputXGradient": {}}])
        page.page.click(".example")
        page.ask()
        page.page.evaluate("location.hash = '#/explanations'")
        page.page.wait_for_selector(".series canvas")
        assert page.texts(".series figcaption") == [VITALS[feature] for feature in order]
        lines = page.page.eval_on_selector_all(
            ".series polyline", "all => all.map(each => each.getAttribute('points'))"
        )
        for points, feature in zip(lines, order, strict=True):
            sent = SERIES[0, :, feature].numpy().astype(float)
            heights = [float(pair.split(",")[1]) for pair in points.split()]
            np.testing.assert_allclose(heights, 100 - 100 * (sent - sent.min()) / np.ptp(sent), atol=1e-3)
        boxes = [each.bounding_box() for each in page.page.locator(".series svg, .series figure canvas").all()]
        for above, below in zip(boxes[::2], boxes[1::2], strict=True):
            assert above is not None
            assert below is not None
            assert below["y"] >= above["y"] + above["height"]
            assert below["width"] > 100
            assert abs(above["x"] - below["x"]) + abs(above["width"] - below["width"]) < 1
        page.page.hover(".series figure canvas >> nth=0", position={"x": 1, "y": 2})
        (told,) = page.texts(".series output")
        assert told.startswith(f"{VITALS[order[0]]}, time 0: ")
        assert page.serious() == []


def test_numbers_and_vectors_are_bars_of_one_scale(inspector: Inspector, site: Served) -> None:
    """Each with its name and what was sent, the largest first; the one number of a regression is told."""
    inspector.open_question("bank", attributions=[{"featureAblation": {}}])
    inspector.page.click(".example")
    inspector.ask()
    sent = {name: value.numpy() for name, value in Bank().example().items()}
    with ca.Client(site.address) as client:
        result = client.inspect("bank", sent, attributions=ca.FeatureAblation())
    values = result.attributions[0].values
    assert inspector.texts(".strip .said") == [f"output {float(result.predictions['output'][0, 0]):.4g}"]
    assert inspector.texts(".prediction th") == ["output"]
    inspector.go("Explanations")
    expected = {"income": ("5", values["money"][0, 0]), "debt": ("-2.5", values["money"][0, 1])}
    expected["region"] = ("3", values["region"][0])
    order = sorted(expected, key=lambda name: -abs(expected[name][1]))
    assert inspector.texts(".explanation th bdi") == order
    assert inspector.texts(".explanation th span") == [expected[name][0] for name in order]
    assert inspector.values(".explanation td.number") == pytest.approx([float(expected[name][1]) for name in order])
    widths = [
        float(each.get_attribute("width") or 0) for each in inspector.page.locator(".explanation .bar rect").all()
    ]
    sizes = np.abs([float(expected[name][1]) for name in order])
    np.testing.assert_allclose(np.array(widths) / max(widths), sizes / sizes.max(), rtol=1e-4)


def test_a_photo_shows_through_a_smooth_map_with_its_grid_on_demand(inspector: Inspector) -> None:
    """Of the file as it was sent, which is larger than the model's image; its place is beside each answer; labels keep
    what differs."""
    picture = np.random.default_rng(0).integers(0, 255, (64, 96, 3), np.uint8)
    file = io.BytesIO()
    PIL.Image.fromarray(picture).save(file, "PNG")
    inspector.open_question("photo", attributions=[{"layerGradCam": {"layer": "conv"}}])
    photo: FilePayload = {"name": "photo.png", "mimeType": "image/png", "buffer": file.getvalue()}
    inspector.page.set_input_files(".files input", photo)
    inspector.ask()
    inspector.page.wait_for_selector(".strip canvas.preview")
    assert all(
        label.startswith("…") and label.endswith(" garden animal") for label in inspector.texts(".prediction th")
    )
    assert len(set(inspector.texts(".prediction th"))) == 10
    inspector.go("Explanations")
    below, above = ".overlay .frame canvas[aria-hidden]", ".overlay .frame canvas[role=img]"
    read = "canvas => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]"
    inspector.page.wait_for_selector(below)
    shown = np.array(inspector.page.eval_on_selector(below, read)).reshape(64, 96, 4)
    np.testing.assert_array_equal(shown[:, :, :3], picture)
    opaque = np.array(inspector.page.eval_on_selector(above, read)).reshape(4, 6, 4)[:, :, 3]
    assert opaque.max() == 255
    assert opaque.min() < 128
    rendering = f"getComputedStyle(document.querySelector('{above}')).imageRendering"
    assert inspector.page.evaluate(rendering) == "auto"
    inspector.page.click(".overlay label:has-text('Grid')")
    until(lambda: inspector.page.evaluate(rendering) == "pixelated")
