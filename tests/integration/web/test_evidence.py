"""What an answer rests on: counterfactuals, training rows and concepts, with the numbers of the client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser
from safetensors.torch import save_file
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec, InspectResult
from cutaway.gateway import serve
from cutaway.server.embedded import Served
from cutaway.server.settings import Settings
from examples.digits.digits_adapter import Digits
from tests.integration.web.conftest import IMAGE
from tests.support.digits import WEIGHTS
from tests.support.pages import Inspector, opened

DRAW = torch.Generator().manual_seed(0)
TRAINING, LABELS = torch.randn(30, 4, generator=DRAW), torch.arange(30) % 3
RANDOM = 4
ROWS = torch.randn(2, 4, generator=DRAW)
NAMES = ("age", "income", "height", "debt")


class Table(nn.Module):
    """Four columns to three classes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.hidden(x).tanh())
        return logits


class Packaged(Adapter):
    """It, with data sets."""

    inputs, labels = (InputSpec("x", "float32", (-1, 4), feature_names=NAMES),), ("red", "green", "blue")

    def build(self) -> nn.Module:
        """A network with random weights."""
        return Table()


class Words(nn.Module):
    """Adds up what each word says of two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(4, 2)
        with torch.no_grad():
            self.words.weight.copy_(torch.tensor([[0.0, 0.1], [3.0, 0.0], [0.0, 1.0], [0.2, 0.2]]))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return (self.words(input_ids) * attention_mask.unsqueeze(2)).sum(dim=1)


class Opinions(Adapter):
    """Texts of four words."""

    media_types, labels = ("text/plain",), ("bad", "good")
    inputs = InputSpec("input_ids", "int64", (-1, -1)), InputSpec("attention_mask", "int64", (-1, -1))

    def build(self) -> nn.Module:
        """With weights by hand."""
        return Words()

    def preprocess(self, data: bytes, media_type: str) -> dict[str, Tensor]:
        """A number for each word."""
        ids = torch.tensor([[("the", "awful", "fine", "film").index(word) for word in data.decode().split()]])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with a model that has data sets, and one that has none."""
    folder = tmp_path_factory.mktemp("packaged")
    sets = {"training": {"x": TRAINING, "labels": LABELS}, "rich": {"x": TRAINING[:12] + torch.tensor([0, 3.0, 0, 0])}}
    sets |= {f"random{number}": {"x": torch.randn(12, 4, generator=DRAW)} for number in range(RANDOM)}
    (folder / "data_sets").mkdir()
    for name, tensors in sets.items():
        save_file(tensors, folder / "data_sets" / f"{name}.safetensors")
    models: dict[str, Adapter] = {"table": Packaged(directory=folder), "digits": Digits(weights=WEIGHTS)}
    models["opinions"] = Opinions()
    with serve(models, settings=Settings(http_address="127.0.0.1:0")) as server:
        yield server


@pytest.fixture
def evidence(browser: Browser, packaged: Served) -> Iterator[Inspector]:
    """The page with an answer about two rows."""
    with opened(browser, f"http://{packaged.http_address}") as page:
        page.open()
        page.choose("table")
        page.go("Ask")
        page.give(ROWS.tolist())
        page.ask()
        page.go("Evidence")
        yield page


def found(page: Inspector, panel: str, button: str, passes: int) -> str:
    """What a panel shows when its question was asked, whose cost it told before."""
    page.page.click(f"section:has(> div > #{panel}) button:text-is('What does it cost?')")
    cost = page.page.locator(f"section:has(> div > #{panel}) p.tools").inner_text()
    assert f"At most {passes:,} passes of one example." in cost
    page.page.click(f"section:has(> div > #{panel}) button:text-is('{button}')")
    page.page.wait_for_selector(f"section:has(> div > #{panel}) :is(.checks, .named-bars)")
    page.page.wait_for_selector(".strip button.primary")
    return " ".join(" ".join(page.texts(f"section:has(> div > #{panel})")).split())


def asked(server: Served, model: str, inputs: dict[str, Any], **parts: Any) -> tuple[int, InspectResult]:
    """What the client is told of the cost, and its answer."""
    with ca.Client(server.address) as client:
        estimate = client.inspect(model, inputs, dry_run=True, **parts).estimate
        assert estimate is not None
        return estimate.passes, client.inspect(model, inputs, **parts)


def test_changed_columns_are_beside_their_own_values(evidence: Inspector, packaged: Served) -> None:
    """Of each example that is shown; with the prediction, and how many passes the search took."""
    panel = "section:has(> div > #counterfactual)"
    evidence.page.fill(f"{panel} label:has-text('Least value') input", "-2")
    evidence.page.fill(f"{panel} label:has-text('Largest value') input", "2")
    columns = {f"x[{at}]": ca.Column(-2, 2) for at in range(4)}
    asked_for = ca.Counterfactual(columns=columns, max_changes=10)
    passes, expected = asked(packaged, "table", {"x": ROWS.numpy()}, counterfactual=asked_for)
    text, result = found(evidence, "counterfactual", "Search", passes), expected.counterfactual
    assert result is not None
    assert result.succeeded[0]
    assert f"It is “{Packaged.labels[int(result.classes[0])]}” then." in text
    assert f"changes {result.changes[0]} passes {result.passes[0]}" in text
    for at in np.flatnonzero(result.changed["x"][0]):
        assert f"{NAMES[at]} {float(ROWS[0, at]):.4g} {float(result.inputs['x'][0, at]):.4g}".replace("-", "−") in text
    assert text.count("agrees") == len(result.checks)


def test_changed_regions_are_pictures(evidence: Inspector, packaged: Served) -> None:
    """Before and now, of the picture that was sent."""
    evidence.choose("digits")
    evidence.go("Ask")
    evidence.give(IMAGE.tolist())
    evidence.ask()
    evidence.go("Evidence")
    asked_for = ca.Counterfactual(masks={"": ca.Superpixels(20)}, max_changes=10)
    passes, expected = asked(packaged, "digits", {"image": IMAGE}, counterfactual=asked_for)
    text, result = found(evidence, "counterfactual", "Search", passes), expected.counterfactual
    assert result is not None
    assert f"changes {result.changes[0]} passes {result.passes[0]}" in text
    assert evidence.page.locator("section:has(> div > #counterfactual) .attacked canvas").count() == 2
    assert "This model has 0." in " ".join(evidence.texts("section:has(> div > #concepts)"))


def test_words_are_masked(evidence: Inspector, packaged: Served) -> None:
    """Of a text that the model's adapter reads: the places of the words that make the class what it is."""
    evidence.choose("opinions")
    evidence.go("Ask")
    evidence.page.fill(".texts textarea", "the awful film fine fine")
    evidence.ask()
    evidence.go("Evidence")
    tokens = ca.Counterfactual(tokens=ca.TokenChanges(remove=True), max_changes=10)
    with ca.Client(packaged.address) as client:
        estimate = client.inspect("opinions", "the awful film fine fine", counterfactual=tokens, dry_run=True).estimate
    assert estimate is not None
    text = found(evidence, "counterfactual", "Search", estimate.passes)
    assert "It is “good” then. changes 1" in text
    assert "attention_mask 1 0" in text
    assert text.count("agrees") == 2


def test_training_rows_of_a_packaged_set(evidence: Inspector, packaged: Served) -> None:
    """Their numbers and scores, the first most of all; the rows never leave the server."""
    influence = ca.Influence(ca.ConceptExamples(data_set="training"))
    passes, expected = asked(packaged, "table", {"x": ROWS.numpy()}, influence=influence)
    text, result = found(evidence, "influence", "Find the rows", passes), expected.influence
    assert result is not None
    assert result.self_influence is not None
    helped, harmed, suspects = evidence.page.locator("section:has(> div > #influence) .training").all()
    for shown, rows, scores in (
        (helped, result.helpful[0], result.helpful_scores[0]),
        (harmed, result.harmful[0], result.harmful_scores[0]),
        (suspects, result.self_influence.argsort()[::-1][:5], np.sort(result.self_influence)[::-1][:5]),
    ):
        expected_text = [f"row {row} {score:.4g}".replace("-", "−") for row, score in zip(rows, scores)]
        assert [" ".join(each.split()) for each in shown.locator("li").all_inner_texts()] == expected_text
    assert "agrees" in text


def test_training_rows_of_a_file_are_shown(evidence: Inspector, packaged: Served, tmp_path: Path) -> None:
    """With their numbers by name, and the names of their classes."""
    np.save(tmp_path / "rows.npy", TRAINING.numpy())
    panel = "section:has(> div > #influence)"
    evidence.page.select_option(f"{panel} label:has-text('Training rows') select", label="from a file")
    evidence.page.set_input_files(f"{panel} input[type=file]", tmp_path / "rows.npy")
    evidence.page.wait_for_selector(f"{panel} :text('rows.npy, 30 rows')")
    evidence.page.fill(f"{panel} label:has-text('Their classes') input", ", ".join(map(str, LABELS.tolist())))
    influence = ca.Influence(ca.ConceptExamples({"": TRAINING.numpy()}), tuple(LABELS.tolist()))
    passes, expected = asked(packaged, "table", {"x": ROWS.numpy()}, influence=influence)
    found(evidence, "influence", "Find the rows", passes)
    result = expected.influence
    assert result is not None
    first, best = " ".join(evidence.texts(f"{panel} .training li")[0].split()), int(result.helpful[0, 0])
    values = [f"{name} {value:.4g}".replace("-", "−") for name, value in zip(NAMES, TRAINING[best].tolist())]
    assert first.startswith(", ".join(values))
    assert f"row {best} {Packaged.labels[int(LABELS[best])]}" in first


def test_a_method_that_needs_a_layer_says_so_before_anything_runs(evidence: Inspector) -> None:
    """By the field that is at fault."""
    panel = "section:has(> div > #influence)"
    evidence.expected.append("400")
    evidence.page.select_option(f"{panel} label:has-text('Compared by') select", label="likeness at a layer (cosine)")
    evidence.page.click(f"{panel} button:text-is('What does it cost?')")
    evidence.page.wait_for_selector(f"{panel} .problem :text-is('influence.layer')")
    assert evidence.page.locator(f"{panel} button:text-is('Find the rows')").count() == 0


def test_a_concept_is_beside_random_ones(evidence: Inspector, packaged: Served) -> None:
    """The share at each layer, the p-value, how far random sets go, and the verdict."""
    panel = "section:has(> div > #concepts)"
    evidence.page.select_option(f"{panel} label:has-text('Concept') select", "rich")
    random = ["training", *(f"random{number}" for number in range(RANDOM))]
    evidence.page.fill(f"{panel} label:has-text('Layers') input", "hidden")
    sets = {name: ca.ConceptExamples(data_set=name) for name in ("rich", *sorted(random))}
    tcav = ca.TCAV(("hidden",), {"rich": sets["rich"]}, tuple(sets[name] for name in sorted(random)))
    passes, expected = asked(packaged, "table", {"x": ROWS.numpy()}, concepts=tcav)
    text, (result,) = found(evidence, "concepts", "Test the concept", passes), expected.concepts
    least, most = (f"{100 * bound:.1f} %" for bound in (min(result.random_shares), max(result.random_shares)))
    assert result.check is not None
    assert result.p_value is not None
    assert f"p = {result.p_value:.4g}" in text, (text, result)
    assert f"{least} to {most}" in text, text
    assert "hidden rich" in text


def test_fields_begin_with_the_question_of_a_link(browser: Browser, packaged: Served) -> None:
    """The concept and the rows that it asks about, not the first ones of the model."""
    with opened(browser, f"http://{packaged.http_address}") as page:
        sets = [{"dataSet": f"random{number}"} for number in range(RANDOM)]
        concepts = {"layers": ["hidden"], "concepts": {"rich": {"dataSet": "rich"}}, "random": sets}
        influence = {"training": {"dataSet": "training"}, "method": "INFLUENCE_METHOD_COSINE", "layer": "hidden"}
        page.open_question("table", concepts=concepts, influence=influence)
        page.give(ROWS.tolist())
        page.ask()
        page.go("Evidence")
        page.page.wait_for_selector("section:has(> div > #concepts) .named-bars")
        for field, value in {"Concept": "rich", "Training rows": "training", "Compared by": "3"}.items():
            assert page.page.locator(f"label:has-text('{field}') select").last.input_value() == value
        for field in ("Layers", "Layer"):
            assert page.page.locator(f"label:has(span:text-is('{field}')) input").input_value() == "hidden"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_read_it(browser: Browser, packaged: Served, scheme: str) -> None:
    """axe-core finds nothing serious with all results there, and nothing is wider than a narrow window."""
    with opened(browser, f"http://{packaged.http_address}", color_scheme=scheme) as page:
        sets = [{"dataSet": f"random{number}"} for number in range(RANDOM)]
        page.open_question(
            "table",
            concepts={"layers": ["hidden"], "concepts": {"rich": {"dataSet": "rich"}}, "random": sets},
            influence={"training": {"dataSet": "training"}},
            counterfactual={"columns": {f"x[{at}]": {"lower": -2, "upper": 2} for at in range(4)}},
        )
        page.give(ROWS.tolist())
        page.ask()
        page.go("Evidence")
        page.page.wait_for_selector("section:has(> div > #concepts) .named-bars")
        assert page.serious() == []
        page.page.set_viewport_size({"width": 360, "height": 800})
        assert page.page.evaluate("document.documentElement.scrollWidth") <= 360
