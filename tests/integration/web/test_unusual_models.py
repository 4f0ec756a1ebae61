"""Models of a kind that nobody had in mind: what the page shows is still right, and every way on leads on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import Adapter
from cutaway.config.settings import Settings
from cutaway.gateway import serve
from cutaway.gateway.embedded import Served
from cutaway.results import InputSpec
from tests.support.pages import Inspector, opened

X = np.array([[0.5, -1.0, 2.0]], np.float32)


class Small(Adapter):
    """A seeded model, with an example."""

    labels = ("no", "yes")

    def __init__(self, model: nn.Module, *inputs: InputSpec) -> None:
        super().__init__()
        self.model, self.inputs = model, inputs or (InputSpec("x", "float32", (-1, 3)),)

    def build(self) -> nn.Module:
        return self.model

    def example(self) -> dict[str, Tensor]:
        return {each.name: torch.ones(1, *each.shape[1:]) for each in self.inputs}


class Both(nn.Module):
    """A layer that is named like the input; whole numbers inside, and a number that no message can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.steps, self.waves, self.head = nn.Linear(3, 4), Steps(), Waves(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        inside = self.x(x)
        return self.head(inside) + self.steps(inside).sum() * 0 + self.waves(inside).abs().sum() * 0


class Steps(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.long()


class Waves(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.complex64)


class Whole(nn.Module):
    """As `Both`, without the numbers that no message can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.steps, self.b = nn.Linear(3, 4), Steps(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        inside = self.a(x)
        return self.b(inside) + self.steps(inside).sum() * 0


class Two(nn.Module):
    """Two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: Tensor, more: Tensor) -> Tensor:
        return self.fc(x + more)


class Members(nn.Module):
    """Outputs that are named like members of every object of JavaScript."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"constructor": self.fc(x), "__proto__": self.fc(x) * 2}


@pytest.fixture(scope="module")
def unusual() -> Iterator[Served]:
    """All of them."""
    torch.manual_seed(0)
    models = {
        "both": Small(Both()),
        "whole": Small(Whole()),
        "two": Small(Two(), *(InputSpec(name, "float32", (-1, 3)) for name in ("x", "more"))),
        "members": Small(Members()),
        "one": Small(nn.Linear(3, 2), InputSpec("input", "float32", (-1, 3))),
    }
    with serve(models, settings=Settings(http_address="127.0.0.1:0")) as server:
        yield server


@pytest.fixture
def page(browser: Browser, unusual: Served) -> Iterator[Inspector]:
    with opened(browser, f"http://{unusual.http_address}") as inspector:
        inspector.open()
        yield inspector


def test_a_model_that_is_one_module_is_captured_and_changed(page: Inspector) -> None:
    """By the name that questions have for the model itself."""
    page.choose("one")
    page.ask()
    page.go("Activations")
    page.page.click("text=Capture every layer")
    page.page.wait_for_selector(".captured-place bdi:text-is('@output')")
    page.go("Gradients")
    page.page.click("text=Ask for the gradient everywhere")
    page.page.wait_for_selector("section:has(#by-layer) .named-bars")
    page.go("Edits")
    page.page.select_option("label:has-text('How') select", "zero")
    page.page.wait_for_selector(".before-after")
    assert page.values(".before-after td.number[data-value]")[1::2] == [0.5, 0.5]


def test_outputs_may_have_any_name(page: Inspector) -> None:
    page.choose("members")
    page.ask()
    page.go("Ask")
    assert page.texts(".prediction figcaption bdi") == ["constructor", "__proto__"]


def test_a_layer_named_like_an_input_is_a_layer(page: Inspector, unusual: Served) -> None:
    """Its values have no names of features, and no numbers of the input."""
    asked = {"model": "both", "attributions": [{"layerActivation": {"layer": "x"}}]}
    page.open(f"#/ask?question={quote(json.dumps(asked))}")
    page.go("Ask")
    page.page.click("button.example")
    page.ask()
    page.go("Explanations")
    with ca.Client(unusual.address) as client:
        found = client.inspect("both", np.ones((1, 3), np.float32), attributions=ca.LayerActivation(layer="x"))
    order = np.argsort(-np.abs(found.attributions[0].values["x"][0]))
    assert page.texts(".explanation .named-bars th") == [f"element {each}" for each in order]


def test_what_has_no_gradient_is_not_asked_for_one(page: Inspector) -> None:
    """As whole numbers inside."""
    page.choose("whole")
    page.ask()
    page.go("Activations")
    page.page.click("text=Capture every layer")
    page.page.click("text=Which parts matter most?")
    page.page.wait_for_selector(".strongest")
    page.go("Gradients")
    page.page.click("text=Ask for the gradient everywhere")
    page.page.wait_for_selector("section:has(#by-layer) p:has-text('of these 2 places')")
    assert page.page.locator("main .problem").count() == 0


def test_a_change_is_shown_though_its_layers_cannot_be(page: Inspector) -> None:
    """What cannot be sent is told; the predictions before and after stay."""
    page.expected.append("400 (Bad Request)")
    page.choose("both")
    page.ask()
    page.go("Edits")
    page.page.select_option("label:has-text('Place') select", "head")
    page.page.select_option("label:has-text('How') select", "zero")
    page.page.wait_for_selector("main .problem:has-text('complex')")
    assert page.page.locator(".before-after").count() == 1


def test_what_is_typed_into_one_input_leaves_the_others(page: Inspector, unusual: Served) -> None:
    """Also while it is no tensor yet; then nothing can be asked."""
    page.choose("two")
    page.go("Ask")
    for name, text in (("x", "[[0.5, -1, 2]]"), ("more", "[[1, 2, 3]]")):
        field = page.page.locator(f".one-input:has(legend:has-text('{name}'))")
        field.locator("label:has-text('Numbers')").click()
        field.locator("textarea").fill("")
        field.locator("textarea").press_sequentially(text[:-1])
        assert page.page.locator(".strip button.primary").is_disabled()
        field.locator("textarea").press_sequentially(text[-1:])
    page.ask()
    with ca.Client(unusual.address) as client:
        found = client.inspect("two", {"x": X, "more": np.array([[1, 2, 3]], np.float32)})
    assert page.values(".prediction .number")[0] == pytest.approx(found.classes[0].probability, rel=1e-6)


def test_the_address_names_what_is_shown(page: Inspector) -> None:
    """A page that is loaded anew has the same model, and the question of a link."""
    page.choose("two")
    page.choose("whole")
    page.page.reload()
    page.page.wait_for_selector("#explanations, .strip")
    assert page.page.locator(".chooser select").input_value() == "models/whole/versions/1.0"
    asked = {"model": "both", "captures": [{"module": "head"}]}
    page.open(f"#/ask?question={quote(json.dumps(asked))}")
    page.page.reload()
    page.page.wait_for_selector(".chips bdi:text-is('head')")
