"""Places of every kind: structures, further calls, any number of axes, several targets. A click tries what it shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec
from cutaway.gateway import serve
from cutaway.server.embedded import Served
from cutaway.server.settings import Settings
from tests.support.pages import Inspector, asking
from tests.support.waiting import until

CLIPS = np.random.default_rng(0).normal(size=(2, 2, 3, 4, 4)).astype(np.float32)


class Clips(nn.Module):
    """A three-dimensional convolution, a layer that is called twice, one that returns a structure, one time first."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act, self.lstm = nn.Conv3d(2, 4, 1), nn.Tanh(), nn.LSTM(4, 5, batch_first=True)
        self.times, self.head = nn.Identity(), nn.Linear(5, 3)

    def forward(self, clips: Tensor) -> Tensor:
        steps, _ = self.lstm(self.act(self.conv(clips)).mean((3, 4)).transpose(1, 2))
        return self.head(self.act(self.times(steps.transpose(0, 1))[-1]))


class Odd(Adapter):
    """It, with labels."""

    inputs = (InputSpec("clips", "float32", (-1, 2, 3, 4, 4)),)
    labels = ("a", "b", "c")

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return Clips()


@pytest.fixture(scope="module")
def odd() -> Iterator[Served]:
    with serve({"odd": Odd()}, settings=Settings(http_address="127.0.0.1:0")) as server:
        yield server


@contextmanager
def answered(browser: Browser, odd: Served, **parts: Any) -> Iterator[Inspector]:
    """The page with an answer about the clips."""
    with asking(browser, odd.http_address, "odd", **parts) as page:
        page.page.fill(".one-input textarea", json.dumps(CLIPS.tolist()))
        page.ask()
        yield page


def wait_for(page: Inspector, odd: Served, edit: ca.Edit, row: int = 0) -> None:
    """Waits until the page shows what the Python client gets with ``edit``: the logits of an example."""
    with ca.Client(odd.address) as client:
        result = client.inspect("odd", {"clips": CLIPS}, edits=[edit], compare=True)
    order = np.argsort(-result.unedited["output"][row])
    expected = [f"{each:.3g}".replace("-", "−") for each in result.predictions["output"][row][order]]
    until(lambda: [each.split(" ")[0] for each in page.texts(".before-after td:last-child")] == expected)


def test_what_is_clicked_is_what_is_changed(browser: Browser, odd: Served) -> None:
    """A step of one tensor of a structure, a unit of the second call of a layer, one channel and depth of a clip."""
    captures = [{"module": name} for name in ("lstm", "act", "conv", "times")]
    with answered(browser, odd, captures=captures) as page:
        page.go("Activations")
        page.page.click(".captured-place:has(bdi:text-is('lstm@output:[0]'))")
        page.page.focus(".shown .picture canvas")
        for key in ("ArrowDown", "ArrowDown", "ArrowRight", "Enter"):
            page.page.keyboard.press(key)
        assert page.texts(".shown .tools button") == [
            "What happens without position 2?",
            "What happens without feature 1?",
        ]
        page.page.click("button:has-text('without position 2')")
        wait_for(page, odd, ca.Zero("lstm", path="[0]", slices=(ca.Slice(1, 2, 3),)))
        assert page.page.input_value("label:has-text('Place') select") == "lstm, tensor [0]"

        page.go("Activations")
        page.page.click(".captured-place:has(bdi:text-is('act@output#1'))")
        page.page.select_option(".strip select", "1")
        page.page.focus(".shown .picture canvas")
        page.page.keyboard.press("Enter")
        page.page.click("button:has-text('without unit 0')")
        edit = ca.Zero("act", call=1, slices=(ca.Slice(1, 0, 1),))
        wait_for(page, odd, edit, row=1)

        page.go("Activations")
        page.page.click(".captured-place:has(bdi:text-is('conv@output'))")
        page.page.focus(".grid :checked")
        for _ in range(5):
            page.page.keyboard.press("ArrowRight")
        page.page.wait_for_selector(".large figcaption:has-text('channel 1, depth 2')")
        page.page.click("button:text-is('What happens without it?')")
        slices = (ca.Slice(1, 1, 2), ca.Slice(2, 2, 3))
        wait_for(page, odd, ca.Zero("conv", slices=slices), row=1)
        page.page.fill("label:has-text('Which depth') input", "")
        wait_for(page, odd, ca.Zero("conv", slices=slices[:1]), row=1)

        page.go("Activations")
        page.page.click(".captured-place:has(bdi:text-is('times@output'))")
        page.page.wait_for_selector(".shown h2 .muted:text-is('3 × 5')")  # of one example, though the steps come first
        assert page.texts("button:has-text('without')") == []


def test_what_was_cut_cannot_be_changed_by_its_indices(browser: Browser, odd: Served) -> None:
    """Channel 0 of a capture that begins with the third is another one in the model."""
    with answered(browser, odd, captures=[{"module": "conv", "slices": [{"axis": 1, "start": 2}]}]) as page:
        page.go("Activations")
        page.page.wait_for_selector(".large canvas")
        assert page.texts("button:has-text('without')") == []


@pytest.mark.slow
def test_of_several_targets_the_largest_is_shown(browser: Browser, odd: Served) -> None:
    """Effects of channels, gradients at the input, and their product: those of the predicted class."""
    wanted = {"captures": [{"module": "conv", "points": ["HOOK_POINT_OUTPUT", "HOOK_POINT_GRAD_OUTPUT"]}]}
    with ca.Client(odd.address) as client:
        capture = ca.Capture("conv", at=("output", "grad_output"))
        result = client.inspect("odd", {"clips": CLIPS}, captures=[capture], input_gradients=True)
    label = ("a", "b", "c")[result.classes[1].index]
    (call,) = result.captures["conv"].calls
    effects = (call.leaves[ca.Point.OUTPUT][""] * call.leaves[ca.Point.GRAD_OUTPUT][""])[1].sum((2, 3)).ravel()
    gradient = result.input_gradients["clips"][1]
    with answered(browser, odd, target={"topK": {"k": 2}}, inputGradients={}, **wanted) as page:
        page.page.select_option(".strip select", "1")
        page.go("Activations")
        page.page.click(".choice label:has-text('effect')")
        page.page.wait_for_selector(f"p:has-text('the logit of “{label}”')")
        text = page.texts(".large figcaption .muted")[0].replace("−", "-")
        assert float(text.rpartition(" ")[2]) == pytest.approx(effects[np.abs(effects).argmax()], rel=2e-3)
        page.go("Gradients")
        norm = page.page.locator("section:has(h2:has-text('At the input')) .line-of-facts dd").nth(4).inner_text()
        assert float(norm) == pytest.approx(np.linalg.norm(gradient), rel=1e-3)
        titles = page.texts("section:has(h2:has-text('At the input')) figcaption")
        assert titles == ["Gradient", "Gradient × input"]


@pytest.mark.slow
def test_rows_that_were_not_explained_are_told(browser: Browser, odd: Served) -> None:
    """Zeros are no explanation."""
    with ca.Client(odd.address) as client:
        probabilities = [each.probability for each in client.inspect("odd", {"clips": CLIPS}).classes]
    least = sum(probabilities) / 2
    method: list[dict[str, Any]] = [{"saliency": {}}]
    with answered(browser, odd, attributions=method, explainIf={"probabilityAtLeast": least}) as page:
        page.go("Explanations")
        for row, probability in enumerate(probabilities):
            page.page.select_option(".strip select", str(row))
            page.page.wait_for_selector(".explanation")
            told = page.page.locator(".explanation p:has-text('was not explained')").count()
            assert (told, page.page.locator(".explanation figure").count()) == (
                (0, 1) if probability > least else (1, 0)
            )


class Pair(nn.Module):
    """Two images of different sizes; two outputs, of which the first one's name is no number and the second's is."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(16, 3), nn.Linear(36, 3)

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        logits = self.left(left.flatten(1)) + self.right(right.flatten(1))
        return {"logits": logits, "0": -logits}


class Images(Adapter):
    """It, of half precision."""

    inputs = (InputSpec("left", "bfloat16", (-1, 1, 4, 4)), InputSpec("right", "bfloat16", (-1, 1, 6, 6)))
    labels = ("a", "b", "c")

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return Pair().to(torch.bfloat16)


@pytest.mark.slow
def test_each_image_has_its_own_explanation(browser: Browser) -> None:
    """Numbers and places are those of the image below it; half precision is sent as such; outputs keep their order."""
    images = {name: np.arange(size * size, dtype=np.float32).reshape(1, 1, size, size) / 64 for name, size in SIZES}
    method: list[dict[str, Any]] = [{"saliency": {}}]
    with (
        serve({"pair": Images()}, settings=Settings(http_address="127.0.0.1:0")) as served,
        asking(browser, served.http_address, "pair", attributions=method) as page,
    ):
        for index, image in enumerate(images.values()):
            page.page.click(f".one-input >> nth={index} >> .choice label:has-text('Numbers')")
            page.page.fill(f".one-input >> nth={index} >> textarea", json.dumps(image.tolist()))
        page.ask()
        halves = {name: torch.from_numpy(image).to(torch.bfloat16) for name, image in images.items()}
        with ca.Client(served.address) as client:
            result = client.inspect("pair", halves, attributions=ca.Saliency())
        assert page.texts(".prediction figcaption bdi") == ["logits", "0"]
        assert page.texts(".strip .said") == [result.classes[0].label]
        best = result.classes[0].probability
        assert page.values(".prediction td.number")[0] == pytest.approx(best, abs=5e-3)
        page.go("Explanations")
        page.page.wait_for_selector(".explanation figure:nth-of-type(2) canvas")
        for number, (name, size) in enumerate(SIZES):
            page.page.focus(f".explanation .picture [role=img] >> nth={number}")
            for key in ["ArrowDown"] * size + ["ArrowRight"] * (size - 1):
                page.page.keyboard.press(key)
            told = page.texts(".explanation .picture output")[number]
            value = float(np.asarray(result.attributions[0].values[name], np.float32)[0, 0, -1, -1])
            assert told.startswith(f"row {size - 1}, column {size - 1}: ")
            assert float(told.rpartition(" ")[2]) == pytest.approx(value, rel=1e-3)
            below = np.rint(255 * images[name][0, 0] / images[name].max()).ravel()
            until(partial(shows, page, number, below))


def shows(page: Inspector, number: int, below: Any) -> bool:
    """Whether the image below an explanation has these shades of grey."""
    return float(abs(np.asarray(page.page.evaluate(REDS, number)) - below).max()) <= 1


REDS = """(number) => {
    const drawn = document.querySelectorAll(".explanation .picture [aria-hidden=true]")[number];
    const { data } = drawn.getContext("2d").getImageData(0, 0, drawn.width, drawn.height);
    return [...data].filter((_, index) => index % 4 === 0);
}"""
"""The red of every pixel of an image below an explanation."""

SIZES = (("left", 4), ("right", 6))
