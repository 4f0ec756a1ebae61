"""The flow of data as a graph: what the server found is what is drawn, chosen, opened and cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
from tests.support.pages import Inspector, opened


class Block(nn.Module):
    """A residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act = nn.Linear(4, 4), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.conv(x) + x)


class Two(nn.Module):
    """Two inputs, joined before two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.blocks = nn.Linear(4, 4), nn.Sequential(Block(), Block())

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.blocks(self.left(a) * b)


class Many(nn.Module):
    """Fifteen hundred layers in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Tanh() for _ in range(1500))

    def forward(self, a: Tensor) -> Tensor:
        for layer in self.layers:
            a = layer(a)
        return a


class Hidden(nn.Module):
    """Computes by numpy between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, a: Tensor) -> Tensor:
        return self.other(torch.from_numpy(self.one(a).detach().numpy() * 2))


class Simple(Adapter):
    """A module with rows of four numbers, and an example unless it shall have none."""

    def __init__(self, kind: type[nn.Module], *names: str, has_example: bool = True) -> None:
        super().__init__()
        self._kind, self._has_example = kind, has_example
        self.inputs = tuple(InputSpec(name, "float32", (-1, 4)) for name in names)

    def build(self) -> nn.Module:
        return self._kind()

    def forward(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        return model(**inputs)

    def example(self) -> dict[str, Tensor] | None:
        return {name: torch.ones(1, 4) for name in (spec.name for spec in self.inputs)} if self._has_example else None


@pytest.fixture(scope="module")
def flows() -> Iterator[Served]:
    models = {
        "two": Simple(Two, "a", "b"),
        "many": Simple(Many, "a"),
        "hidden": Simple(Hidden, "a"),
        "blank": Simple(Many, "a", has_example=False),
    }
    with serve(models, settings=Settings(http_address="127.0.0.1:0")) as server:
        yield server


def drawn(page: Inspector, model: str) -> None:
    """Chooses a model, and draws its flow."""
    page.choose(model)
    page.page.click(".graph button:text-is('Draw it')")
    page.page.wait_for_selector(".flow .box")


def titles(page: Inspector) -> set[str]:
    """What is drawn, by addresses."""
    return {box.get_attribute("title") or "" for box in page.page.query_selector_all(".flow .box")}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1920])
def test_what_the_server_found_is_drawn(browser: Browser, flows: Served, width: int, scheme: str) -> None:
    """Every layer with each edge between them; a sum has two edges that arrive and one that goes on."""
    with ca.Client(flows.address) as client:
        edges = client.get_model("two", data_flow=True).data_flow
    layers = {"left", *(f"blocks.{n}.{part}" for n in (0, 1) for part in ("conv", "act"))}
    ends = {
        (edge.input and f"{edge.input} →", edge.output and f"→ {edge.output}", edge.source, edge.target)
        for edge in edges
    }
    between = {
        tuple(a or (place.rpartition(":")[0] if place.rpartition(":")[0] in layers else place) for a, place in pair)
        for pair in (((one, source), (other, target)) for one, other, source, target in ends)
    }
    size: Any = {"width": width, "height": 900}
    with opened(browser, f"http://{flows.http_address}", viewport=size, color_scheme=scheme) as page:
        page.open()
        drawn(page, "two")
        assert titles(page) == {end for pair in between for end in pair}
        assert page.page.locator(".flow svg > path").count() == len(between)
        page.page.click(".flow [title='blocks.0:add#0']")
        assert page.page.locator(".flow path.chosen").count() == 3
        assert page.page.evaluate("document.documentElement.scrollWidth") == width
        assert page.serious() == []


def test_what_is_chosen_is_chosen_in_the_tree_too(browser: Browser, flows: Served) -> None:
    """A layer, an operator, which the tree then lists, and the other way round; arrow keys lead along edges."""
    with opened(browser, f"http://{flows.http_address}") as page:
        page.open()
        drawn(page, "two")
        tree, pressed = ".tree [aria-selected=true] .name bdi", ".flow [aria-pressed=true]"
        page.page.click(".flow [title='blocks.1.conv']")
        page.page.wait_for_selector(f"{tree}:text-is('conv')")
        page.page.wait_for_selector("#place:has-text('blocks.1.conv')")
        steps = {"ArrowDown": "blocks.1:add#0", "ArrowUp": "blocks.0.act", "ArrowRight": "blocks.0.act"}
        for key, found in steps.items():
            page.page.keyboard.press(key)
            page.page.wait_for_selector(f"{pressed}[title='{found}']")
            page.page.wait_for_function("title => document.activeElement.title === title", arg=found)
        page.page.click(".flow [title='blocks.0:add#0']")
        page.page.wait_for_selector(f"{tree}:text-is('add#0')")
        page.page.click(".tree .name bdi:text-is('left')")
        page.page.wait_for_selector(f"{pressed}[title='left']")
        page.page.click("button:text-is('Fold all')")
        page.page.click(".flow [title='blocks.0.act']")
        page.page.wait_for_selector(f"{tree}:text-is('act')")


def test_modules_are_closed_and_opened(browser: Browser, flows: Served) -> None:
    """A closed one is a box with the edges of what is inside; a double click opens it."""
    with opened(browser, f"http://{flows.http_address}") as page:
        page.open()
        drawn(page, "two")
        page.page.click(".flow [title='blocks.0.act']")
        page.page.click("button:text-is('Close blocks.0')")
        second = {f"blocks.1{each}" for each in (".conv", ".act", ":add#0")}
        assert titles(page) == {"a →", "b →", "left", ":mul#0", "blocks.0", *second, "→ output"}
        page.page.click("button:text-is('Close blocks')")
        assert titles(page) == {"a →", "b →", "left", ":mul#0", "blocks", "→ output"}
        page.page.dblclick(".flow [title='blocks']")
        assert titles(page) == {"a →", "b →", "left", ":mul#0", "blocks.0", *second, "→ output"}
        page.page.click(".flow [title='blocks.0']")
        page.page.click("button:text-is('Open 0')")
        assert {"blocks.0.conv", "blocks.0:add#0"} < titles(page)


def test_of_many_layers_the_nearest_are_drawn(browser: Browser, flows: Served) -> None:
    """A level of the tree at first; of an open one, what is around the layer that is chosen, as the page says."""
    with opened(browser, f"http://{flows.http_address}") as page:
        page.open()
        drawn(page, "many")
        assert titles(page) == {"a →", "layers", "→ output"}
        page.page.dblclick(".flow [title='layers']")
        page.page.wait_for_selector(".graph p:has-text('300 of 1,502, the nearest to the input')")
        assert {"a →", "layers.298"} < titles(page)
        assert "layers.299" not in titles(page)
        page.page.fill(".insides input[type=search]", "layers.750")
        page.page.click(".tree bdi[title='layers.750']")
        page.page.wait_for_selector(".graph p:has-text('the nearest to layers.750')")
        assert {"layers.610", "layers.890"} < titles(page)
        assert len(titles(page)) == 300


@pytest.mark.parametrize(
    ("model", "why"), [("hidden", "from code that PyTorch does not show"), ("blank", "no example to follow")]
)
def test_what_is_not_known_is_said(browser: Browser, flows: Served, model: str, why: str) -> None:
    """And no part of a graph is drawn."""
    with opened(browser, f"http://{flows.http_address}") as page:
        page.expected.append("400")
        page.open()
        page.choose(model)
        page.page.click(".graph button:text-is('Draw it')")
        page.page.wait_for_selector(f".graph .problem:has-text('{why}'):has-text('DATA_FLOW_UNKNOWN')")
        assert page.page.locator(".flow").count() == 0
