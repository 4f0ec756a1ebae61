"""Models of a kind that nobody had in mind: what the page shows is still right, and every way on leads on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec
from cutaway.gateway import serve
from cutaway.server.embedded import Served
from cutaway.server.settings import Settings
from tests.support.pages import Inspector

X = np.array([[0.5, -1.0, 2.0]], np.float32)


class Small(Adapter):
    """A seeded model, with an example."""

    labels: tuple[str, ...] = ("no", "yes")

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


class Photos(nn.Module):
    """A network for photos, with a functional ReLU, which Captum's guided backpropagation does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool, self.head = nn.Conv2d(3, 32, 7, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Linear(32, 2)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.pool(F.relu(self.conv(pixels))).flatten(1))


class Photo(Small):
    """It, with labels as those of photos are."""

    labels = tuple(f"{animal}, of a kind that few people have seen anywhere" for animal in ("hen", "ostrich"))


@pytest.fixture(scope="module")
def site() -> Iterator[Served]:
    """All of them, in place of the models of other tests."""
    torch.manual_seed(0)
    models = {
        "both": Small(Both()),
        "whole": Small(Whole()),
        "two": Small(Two(), *(InputSpec(name, "float32", (-1, 3)) for name in ("x", "more"))),
        "members": Small(Members()),
        "one": Small(nn.Linear(3, 2), InputSpec("input", "float32", (-1, 3))),
        "photo": Photo(Photos(), InputSpec("pixels", "float32", (-1, 3, 224, 224))),
    }
    with serve(models, settings=Settings(http_address="127.0.0.1:0")) as server:
        yield server


@pytest.mark.slow
def test_a_model_that_is_one_module_is_captured_and_changed(inspector: Inspector) -> None:
    """By the name that questions have for the model itself."""
    inspector.choose("one")
    inspector.ask()
    inspector.go("Activations")
    inspector.page.click("text=Capture every layer")
    inspector.page.wait_for_selector(".captured-place bdi:text-is('@output')")
    inspector.go("Gradients")
    inspector.page.click("text=Ask for the gradient everywhere")
    inspector.page.wait_for_selector("section:has(#by-layer) .named-bars")
    inspector.go("Edits")
    inspector.page.select_option("label:has-text('How') select", "zero")
    inspector.page.wait_for_selector(".before-after")
    assert inspector.values(".before-after [data-value]")[1::2] == [0.5, 0.5]


def test_outputs_may_have_any_name(inspector: Inspector) -> None:
    inspector.choose("members")
    inspector.ask()
    inspector.go("Ask")
    assert inspector.texts(".prediction figcaption bdi") == ["constructor", "__proto__"]


def test_a_layer_named_like_an_input_is_a_layer(inspector: Inspector, site: Served) -> None:
    """Its values have no names of features, and no numbers of the input."""
    inspector.open_question("both", attributions=[{"layerActivation": {"layer": "x"}}])
    inspector.go("Ask")
    inspector.page.click("button.example")
    inspector.ask()
    inspector.go("Explanations")
    with ca.Client(site.address) as client:
        found = client.inspect("both", np.ones((1, 3), np.float32), attributions=ca.LayerActivation(layer="x"))
    order = np.argsort(-np.abs(found.attributions[0].values["x"][0]))
    assert inspector.texts(".explanation .named-bars th") == [f"element {each}" for each in order]


def test_what_has_no_gradient_is_not_asked_for_one(inspector: Inspector) -> None:
    """As whole numbers inside."""
    inspector.choose("whole")
    inspector.ask()
    inspector.go("Activations")
    inspector.page.click("text=Capture every layer")
    inspector.page.click("text=Which parts matter most?")
    inspector.page.wait_for_selector(".strongest")
    inspector.go("Gradients")
    inspector.page.click("text=Ask for the gradient everywhere")
    inspector.page.wait_for_selector("section:has(#by-layer) p:has-text('of these 2 places')")
    assert inspector.page.locator("main .problem").count() == 0


@pytest.mark.slow
def test_a_change_is_shown_though_its_layers_cannot_be(inspector: Inspector) -> None:
    """What cannot be sent is told; the predictions before and after stay."""
    inspector.expected.append("400 (Bad Request)")
    inspector.choose("both")
    inspector.ask()
    inspector.go("Edits")
    inspector.page.select_option("label:has-text('Place') select", "head")
    inspector.page.select_option("label:has-text('How') select", "zero")
    inspector.page.wait_for_selector("main .problem:has-text('complex')")
    assert inspector.page.locator(".before-after").count() == 1


@pytest.mark.slow
def test_what_is_typed_into_one_input_leaves_the_others(inspector: Inspector, site: Served) -> None:
    """Also while it is no tensor yet; then nothing can be asked."""
    inspector.choose("two")
    inspector.go("Ask")
    for name, text in (("x", "[[0.5, -1, 2]]"), ("more", "[[1, 2, 3]]")):
        field = inspector.page.locator(f".one-input:has(legend:has-text('{name}'))")
        field.locator("label:has-text('Numbers')").click()
        field.locator("textarea").fill("")
        field.locator("textarea").press_sequentially(text[:-1])
        assert inspector.page.locator(".strip button.primary").is_disabled()
        field.locator("textarea").press_sequentially(text[-1:])
    inspector.ask()
    with ca.Client(site.address) as client:
        found = client.inspect("two", {"x": X, "more": np.array([[1, 2, 3]], np.float32)})
    assert inspector.values(".prediction .number")[0] == pytest.approx(found.classes[0].probability, rel=1e-6)


@pytest.mark.slow
def test_the_address_names_what_is_shown(inspector: Inspector) -> None:
    """A page that is loaded anew has the same model, and the question of a link."""
    inspector.choose("two")
    inspector.choose("whole")
    inspector.page.reload()
    inspector.page.wait_for_selector("#explanations, .strip")
    assert inspector.page.locator(".chooser select").input_value() == "models/whole/versions/1.0"
    inspector.open_question("both", captures=[{"module": "head"}])
    inspector.page.reload()
    inspector.page.wait_for_selector(".chips bdi:text-is('head')")


WIDER = """() => [...document.querySelectorAll("#app *")].filter((each) => {
    const around = each.parentElement, [own, room] = [each, around].map((it) => it.getBoundingClientRect());
    const styles = [each, around].map((it) => getComputedStyle(it));
    return own.width > 0 && (own.right > room.right + 1 || own.left < room.left - 1)
        && styles[0].position !== "absolute" && styles[1].overflowX === "visible" && !each.closest("svg, .save");
}).map((each) => `${each.tagName} ${each.className}`)"""
"""Script that returns what is drawn beyond the element that holds it."""


def test_nothing_of_a_photo_is_wider_than_what_holds_it(inspector: Inspector) -> None:
    """On a telephone, on a desk, and between, in every view; also where a verdict takes the room of the label."""
    methods = [{"saliency": {}}, {"guidedBackprop": {}}, {"layerGradCam": {"layer": "conv"}}]
    inspector.open_question("photo", attributions=methods, captures=[{"module": "conv"}], inputGradients={})
    inspector.page.click(".example")
    inspector.ask()
    assert inspector.texts(".strip .bad") == ["1 of 3 explanations wrong: the raw hooks disagree"]
    drawn = {"Explanations": ".frame canvas", "Activations": "canvas", "Edits": ".slider", "Gradients": ".frame canvas"}
    for view in inspector.texts("nav a"):
        inspector.go(view)
        inspector.page.wait_for_selector(f"main {drawn.get(view, 'section')}")
        for width in (360, 390, 768, 1280, 1440, 1920, 2560):
            inspector.page.set_viewport_size({"width": width, "height": 900})
            assert inspector.page.evaluate("document.documentElement.scrollWidth") <= width, (view, width)
            assert inspector.page.evaluate(WIDER) == [], (view, width)
            label = inspector.page.locator(".strip .said").bounding_box()
            assert label is not None
            assert label["width"] > 200, (view, width)
            for bar in inspector.page.locator("main .named-bars .bar:visible").all():
                box = bar.bounding_box()
                assert box is not None
                assert box["width"] > 32, (view, width)
