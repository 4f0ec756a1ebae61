"""Activations, explanations, edits and gradients: the numbers and the pixels are those of the Python client."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import PIL.Image
import pytest
import torch
from playwright.sync_api import Browser
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec
from cutaway.gateway import serve
from cutaway.server.embedded import Served
from cutaway.server.settings import Settings
from tests.integration.web.conftest import IMAGE
from tests.support.pages import Inspector, opened
from tests.support.waiting import until

LAYERS = ["conv1", "conv2", "fc1", "fc2"]
"""What the page captures by itself."""


@pytest.fixture(scope="module")
def expected(site: Served) -> ca.Inspection:
    """The same from the Python client."""
    methods = (ca.IntegratedGradients(), ca.Saliency(), ca.LayerGradCam(layer="conv2"))
    with ca.Client(site.address) as client:
        return client.inspect("digits", {"image": IMAGE}, captures=LAYERS, input_gradients=True, attributions=methods)


def colours(inspector: Inspector, canvas: str, number: int = 0) -> Any:
    """The pixels of a canvas, [height, width, red green blue]."""
    found = inspector.page.evaluate(
        """([selector, number]) => {
            const canvas = document.querySelectorAll(selector)[number];
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            return [canvas.height, canvas.width, [...data]];
        }""",
        [canvas, number],
    )
    return np.array(found[2], np.uint8).reshape(found[0], found[1], 4)[:, :, :3]


def seen(inspector: Inspector, picture: str, shape: tuple[int, ...]) -> Any:
    """The colours in the middle of the pixels of a picture on the screen."""
    screen = pixels(BytesIO(inspector.page.locator(picture).first.screenshot()))
    rows, columns = ((np.arange(size) + 0.5) * length / size for size, length in zip(shape, screen.shape))
    return screen[np.ix_(rows.astype(int), columns.astype(int))]


def saved(inspector: Inspector, button: str, folder: Path) -> Path:
    """The file that a button saves."""
    with inspector.page.expect_download() as download:
        inspector.page.click(button)
    file = folder / download.value.suggested_filename
    download.value.save_as(file)
    return file


def pixels(file: Path | BytesIO) -> Any:
    """The pixels of a PNG file, [height, width, red green blue]."""
    with PIL.Image.open(file) as image:
        return np.asarray(image.convert("RGB"))


def drawn(inspector: Inspector, values: Any, bound: float) -> Any:
    """What numpy draws of numbers on the signed scale, whose colours the page's own legend has."""
    table = colours(inspector, ".legend canvas")[0]
    place = (values.astype(np.float64) + bound) / (2 * bound) * (len(table) - 1)
    return table[np.clip(np.rint(place), 0, len(table) - 1).astype(int)]


def near(found: Any, expected: Any) -> bool:
    """Whether two pictures are the same, but for the step of the scale between two colours."""
    return found.shape == expected.shape and int(np.abs(found.astype(int) - expected.astype(int)).max()) <= 4


def test_channels_have_the_pixels_of_numpy(shown: Inspector, expected: ca.Inspection) -> None:
    """The large one, the statistics, the order by norm, and the number under the pointer."""
    shown.go("Activations")
    shown.page.wait_for_selector(".large canvas")
    assert shown.texts(".captured-place bdi") == [f"{layer}@output" for layer in LAYERS]
    values = expected.captures["conv1"].output[0]
    bound = float(np.abs(values).max())
    shown.page.wait_for_selector(".large canvas")
    until(lambda: near(colours(shown, ".large canvas"), drawn(shown, values[0], bound)))
    facts = " ".join(shown.texts(".shown > .line-of-facts"))
    assert f"{values.max():.4g}" in facts
    shown.page.click(".choice label:has-text('norm')")
    first = int(np.argmax(np.linalg.norm(values.reshape(len(values), -1), axis=1)))
    shown.page.wait_for_selector(f".large figcaption:has-text('Channel {first}')")
    until(lambda: near(colours(shown, ".large canvas"), drawn(shown, values[first], bound)))
    shown.page.focus(".large canvas")
    shown.page.keyboard.press("ArrowDown")
    told = shown.texts(".large output")[0]
    assert told.startswith("row 1, column 0: ")
    assert number(told.rpartition(" ")[2]) == pytest.approx(float(values[first, 1, 0]), rel=1e-3)


def test_the_grid_is_the_channels(shown: Inspector, expected: ca.Inspection) -> None:
    """Each in its tile; a click makes it large."""
    shown.go("Activations")
    shown.page.click(".choice label:has-text('index')")
    values = expected.captures["conv1"].output[0]
    assert shown.texts(".grid label") == [str(index) for index in range(len(values))]
    for index, channel in enumerate(values):
        expected_tile = drawn(shown, channel, float(np.abs(values).max()))
        assert near(colours(shown, ".grid canvas", index), expected_tile)
    shown.page.click(".grid label:has-text('5')")
    shown.page.wait_for_selector(".large figcaption:has-text('Channel 5')")
    shown.page.keyboard.press("ArrowRight")
    shown.page.wait_for_selector(".large figcaption:has-text('Channel 6')")
    shown.page.hover(".grid canvas >> nth=3", position={"x": 20, "y": 12})
    assert shown.texts(".channels output")[0] == f"channel 3, row 1, column 2: {told(values[3, 1, 2]).lstrip('+')}"


def test_pictures_are_saved(shown: Inspector, tmp_path: Path) -> None:
    """A picture as PNG, each number a square of its colour; a grid and an overlay as they are on the screen; bars as
    SVG, with their labels and numbers."""
    shown.go("Activations")
    picture = pixels(saved(shown, ".large .save", tmp_path))
    large = colours(shown, ".large canvas")
    zoom = picture.shape[0] // large.shape[0]
    assert zoom > 1
    assert np.array_equal(picture, large.repeat(zoom, 0).repeat(zoom, 1))
    grid = pixels(saved(shown, ".channels > div .save", tmp_path))
    place = "(tile) => [tile.offsetTop - tile.parentElement.offsetTop, tile.offsetLeft - tile.parentElement.offsetLeft]"
    top, left = shown.page.eval_on_selector(".grid label:nth-child(6)", place)
    tile = grid[top : top + 64, left : left + 64]
    assert np.array_equal(tile, colours(shown, ".grid canvas", 5).repeat(8, 0).repeat(8, 1))
    shown.go("Explanations")
    overlay = pixels(saved(shown, ".explanation .save >> nth=0", tmp_path))
    assert near(overlay[16::32, 16::32], seen(shown, ".explanation .frame", (8, 8)))
    shown.go("Ask")
    bars = saved(shown, ".prediction .save", tmp_path)
    texts = [each.text or "" for each in ElementTree.parse(bars).iter("{http://www.w3.org/2000/svg}text")]
    assert texts[::2] == shown.texts(".prediction th")
    assert texts[1::2] == shown.texts(".prediction td.number")


@pytest.mark.slow
def test_the_effect_of_channels_asks_for_its_gradient(answered: Inspector, site: Served) -> None:
    """And sorts by gradient × activation."""
    answered.go("Activations")
    answered.page.wait_for_selector(".large canvas")
    answered.page.click(".choice label:has-text('effect')")
    with ca.Client(site.address) as client:
        both = client.inspect("digits", {"image": IMAGE}, captures=[ca.Capture("conv1", at=("output", "grad_output"))])
    (call,) = both.captures["conv1"].calls
    effects = (call.leaves[ca.Point.OUTPUT][""] * call.leaves[ca.Point.GRAD_OUTPUT][""])[0].sum((1, 2))
    largest = int(np.argmax(np.abs(effects)))
    answered.page.wait_for_selector(f".large figcaption:has-text('Channel {largest}')")
    answered.page.wait_for_selector("p:has-text('what the target, the logit of')")
    words = answered.texts(".large figcaption .muted")[0]
    assert number(words.rpartition(" ")[2]) == pytest.approx(float(effects[largest]), rel=1e-3)


def test_explanations_have_their_values_and_verdicts(shown: Inspector, expected: ca.Inspection) -> None:
    """Verdict, sums, and the overlay: what numpy lays over the image."""
    shown.go("Explanations")
    shown.page.wait_for_selector(".explanation canvas")
    assert shown.texts(".explanation > .tools h2") == ["IntegratedGradients", "Saliency", "LayerGradCam conv2"]
    badges = shown.texts(".explanation > .tools .verdict")
    assert badges == ["✓ agrees with the raw hooks"] * 3
    gradients = expected.attributions[0]
    sums = shown.texts(".explanation .line-of-facts")[0].split()
    assert number(sums[1]) == pytest.approx(float(gradients.values["image"].sum()), rel=1e-3)
    values = gradients.values["image"][0, 0]
    shown.page.locator(".opacity input").first.fill("0.5")
    below = np.rint(255 * IMAGE[0, 0] / IMAGE.max())[:, :, None]
    bound = float(np.abs(values).max())
    part = 0.5 * np.abs(values)[:, :, None] / bound
    overlaid = below + (drawn(shown, values, bound).astype(float) - below) * part
    until(lambda: near(seen(shown, ".explanation .frame", values.shape), np.rint(overlaid)))
    row, column = np.unravel_index(int(values.argmin()), values.shape)
    assert f"least: {told(values.min())} at row {row}, column {column}." in shown.texts(".extremes")[0]


def test_agreement_of_methods_is_that_of_numpy(shown: Inspector, expected: ca.Inspection) -> None:
    """The two that explain the same input: by magnitude, because one has no signs; the third is named."""
    shown.go("Explanations")
    shown.page.wait_for_selector(".explanation canvas")
    one, other = (each.values["image"].ravel().astype(np.float64) for each in expected.attributions[:2])
    one, other = abs(one), abs(other)
    cosine = number(shown.texts(".agreement td")[0])
    assert cosine == pytest.approx(one @ other / np.linalg.norm(one) / np.linalg.norm(other), rel=1e-3)
    assert "one of them has no signs" in shown.texts(".agreement tbody th")[0]
    assert shown.texts("section:has(#agreement) > p bdi") == ["LayerGradCam of conv2"]


@pytest.mark.slow
def test_two_answers_are_compared(answered: Inspector, expected: ca.Inspection, site: Served) -> None:
    """Method by method: an earlier answer stands beside this one, and numpy says how far they agree."""
    turned = IMAGE[:, :, ::-1]
    answered.go("Ask")
    answered.give(turned.tolist())
    answered.ask()
    with ca.Client(site.address) as client:
        other = client.inspect("digits", {"image": turned}, attributions=[ca.IntegratedGradients()])
    answered.go("Explanations")
    assert answered.page.locator(".pairs").count() == 0
    answered.page.select_option("label:has-text('Beside it') select", index=1)
    methods = answered.texts(".pairs .explanation > .tools h2")
    assert methods == [each for each in ("IntegratedGradients", "Saliency", "LayerGradCam conv2") for _ in range(2)]
    assert answered.texts("section:has(#agreement) tbody th") == [
        *("IntegratedGradients", "Saliency", "LayerGradCam of conv2")
    ]
    one, two = (each.attributions[0].values["image"].ravel().astype(np.float64) for each in (other, expected))
    cosine = number(answered.texts(".agreement td")[0])
    assert cosine == pytest.approx(one @ two / np.linalg.norm(one) / np.linalg.norm(two), rel=1e-3)
    answered.page.select_option("label:has-text('Beside it') select", index=0)
    answered.page.wait_for_selector("#agreement:text-is('Do the methods agree?')")


@pytest.mark.slow
def test_the_same_is_compared_with_the_same(answered: Inspector) -> None:
    """Of several examples the one that is shown; of two explanations by one method the one in the same place."""
    methods = [{"inputXGradient": {}}, {"integratedGradients": {}}, {"integratedGradients": {"path": {"nSteps": 3}}}]
    answered.open_question("digits", attributions=methods)
    answered.page.wait_for_selector(".methods:not(:has-text('Saliency'))")
    answered.give(np.concatenate([IMAGE, IMAGE[:, :, ::-1]]).tolist())
    answered.ask()
    answered.ask()
    answered.page.select_option(".strip select", "1")
    answered.go("Explanations")
    answered.page.select_option("label:has-text('Beside it') select", index=1)
    assert answered.texts("section:has(#agreement) tbody th") == [
        *("InputXGradient", "IntegratedGradients", "IntegratedGradients (2)")
    ]
    assert answered.texts("section:has(#agreement) tbody td:nth-child(2)") == ["1"] * 3
    answered.page.wait_for_selector(".pairs > bdi:has-text('example 2') + bdi:has-text('example 2')")


@pytest.mark.slow
def test_methods_are_asked_as_they_are_added_and_mended_where_they_fail(answered: Inspector) -> None:
    """What has no default gets a value; what Captum cannot do is told at the method, and in the line above all."""
    for method in ("occlusion", "deepLiftShap", "neuronConductance", "lrp"):
        answered.page.select_option("select[aria-label='Add a method']", method)
    answered.page.click(".strip button.primary")
    answered.page.wait_for_selector(".strip .bad:has-text('1 of 7 explanations failed')")
    assert answered.page.locator(".methods .problem").count() == 1
    answered.page.wait_for_selector(".methods li.fault:has-text('LRP') .problem:has-text('flatten')")
    rules = answered.page.locator(".methods li.fault label:has-text('rules')")
    rules.locator("input").fill("{")
    rules.locator("input").blur()
    assert rules.locator(".bad").count() == 1
    assert rules.locator("input").input_value() == "{"
    rules.locator("input").fill('{"flatten": {"epsilon": 1e-9}}')
    answered.page.click(".strip button.primary")
    until(lambda: answered.page.locator(".strip .bad:has-text('failed'), .methods .problem").count() == 0)
    answered.go("Explanations")
    until(lambda: len(answered.texts(".explanation > .tools .verdict")) == 7)


@pytest.mark.slow
def test_a_click_outlasts_an_answer_that_comes_with_it(answered: Inspector) -> None:
    """The address has the new view at once, the page learns of it by an event after the answer."""
    answered.ask()
    answered.page.evaluate(
        """() => {
            const view = [...document.querySelectorAll("nav a")].find((each) => each.textContent === "Explanations");
            location.hash = view.hash;
            document.querySelector(".history li:last-child button").click();
        }"""
    )
    answered.page.wait_for_selector("nav a[aria-current=page]:text-is('Explanations')")


class Hidden(nn.Module):
    """A functional ReLU, which DeepLIFT does not know: Captum's numbers are not DeepLIFT's."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.other(F.relu(self.one(x)))


class Doubtful(Adapter):
    """It, with an input that the page knows."""

    inputs = (InputSpec("x", "float32", (-1, 4)),)

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return Hidden()


class Text(Adapter):
    """Five token ids, to three logits."""

    inputs = (InputSpec("ids", "int64", (-1, 5)),)

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return Embedded()


class Embedded(nn.Module):
    """The mean of embeddings, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20, 6), nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids).mean(1))


@pytest.fixture(scope="module")
def doubtful() -> Iterator[Served]:
    with serve({"hidden": Doubtful()}, settings=Settings(http_address="127.0.0.1:0")) as server:
        yield server


def test_a_wrong_explanation_is_shown_as_such(browser: Browser, doubtful: Served) -> None:
    """With its error, its cause and what to do."""
    question = {"model": "hidden", "attributions": [{"deepLift": {}}]}
    x = np.asarray([[1.0, -2.0, 3.0, 0.5]], np.float32)
    with ca.Client(doubtful.address) as client:
        (told,) = client.inspect("hidden", {"x": x}, attributions=ca.DeepLift()).attributions
    assert told.verdict == "DISAGREES"
    with opened(browser, f"http://{doubtful.http_address}") as page:
        page.open(f"#/ask?question={json.dumps(question)}")
        page.give(x.tolist())
        page.ask()
        page.go("Explanations")
        page.page.wait_for_selector(".explanation")
        assert page.texts(".explanation > .tools .verdict") == ["✗ disagrees with the raw hooks"]
        assert page.texts(".strip .bad") == ["1 of 1 explanation wrong: the raw hooks disagree"]
        worst = told.worst_check
        assert worst is not None
        assert worst.reason in page.texts(".reason bdi")
        assert "FUNCTIONAL_NONLINEARITY" in page.texts(".reason code")


def test_an_edit_is_tried_live(answered: Inspector, site: Served) -> None:
    """Before and after, and what the layers make of it, are those of the Python client."""
    answered.go("Activations")
    answered.page.wait_for_selector(".large canvas")
    answered.page.click("button:text-is('What happens without it?')")
    answered.page.wait_for_selector("section:has(#downstream) .named-bars")
    edit = ca.Zero("conv1", slices=(ca.Slice(1, 0, 1),))
    with ca.Client(site.address) as client:
        plain = client.inspect("digits", {"image": IMAGE}, captures=["relu3"])
        edited = client.inspect("digits", {"image": IMAGE}, captures=["relu3"], edits=[edit])
    logits = plain.predictions["output"][0].astype(np.float64), edited.predictions["output"][0].astype(np.float64)
    before, after = (np.exp(each - each.max()) / np.exp(each - each.max()).sum() for each in logits)
    order = np.argsort(-before)
    shown = np.array(answered.values(".before-after [data-value]")).reshape(-1, 2)
    assert np.allclose(shown, np.stack([before, after], 1)[order], atol=1e-6)
    one, other = (each.captures["relu3"].output for each in (plain, edited))
    changes = dict(
        zip(answered.texts("section:has(#downstream) th"), answered.values("section:has(#downstream) td.number"))
    )
    assert changes["relu3"] == pytest.approx(np.linalg.norm(other - one) / np.linalg.norm(one), rel=1e-4)
    change = logits[1] - logits[0]
    assert f"({told(change[order[0]], 3)})" in answered.texts(".before-after tbody tr")[0]
    most = max(changes, key=changes.__getitem__)
    assert answered.texts("section:has(#downstream) p")[0].startswith(f"{most} moved most: by ")
    assert "conv1" not in changes
    answered.page.select_option("label:has-text('How') select", "scale")
    answered.page.locator(".slider input").fill("1")
    until(lambda: set(answered.values("section:has(#downstream) td.number")) == {0.0})


def test_a_table_that_is_too_wide_is_scrolled_by_keys(answered: Inspector) -> None:
    """And does not make the page wider than a narrow window."""
    answered.go("Edits")
    answered.page.select_option("label:has-text('How') select", "zero")
    answered.page.wait_for_selector(".before-after")
    answered.page.set_viewport_size({"width": 390, "height": 800})
    assert answered.page.evaluate("document.documentElement.scrollWidth") <= 390
    table = answered.page.locator(".wide:has(.before-after)")
    assert table.evaluate("table => table.scrollWidth > table.clientWidth")
    assert answered.serious() == []
    table.focus()
    table.press("ArrowRight")
    until(lambda: table.evaluate("table => table.scrollLeft > 0"))


@pytest.mark.slow
def test_a_change_that_is_kept_is_seen_and_can_be_taken_out(answered: Inspector, site: Served) -> None:
    """In the question, in the line above all views, beside the prediction without it, and as a program."""
    answered.go("Activations")
    answered.page.click(".grid label:has-text('0')")
    answered.page.click("button:text-is('What happens without it?')")
    answered.page.click("button:text-is('Keep it in the question')")
    answered.page.wait_for_selector("section:has(#others)")
    assert answered.texts("section:has(#others) .chips bdi") == ["zero conv1, axis 1: 0 to 1"]
    answered.page.wait_for_selector(".strip .unsure:text-is('The question has changed since.')")
    assert "Zero" in answered.program()  # before it is asked, too
    assert "edits" in answered.texts(".snippet pre[aria-label=link]")[0]
    answered.page.wait_for_selector(".take .unsure:has-text('The question has changed since the answer')")
    answered.page.click(".strip button.primary")
    answered.page.wait_for_selector(".take .unsure", state="detached")
    answered.go("Ask")
    answered.page.wait_for_selector(".prediction .before-after")
    assert answered.texts(".strip .unsure") == ["edited"]
    with ca.Client(site.address) as client:
        edit = ca.Zero("conv1", slices=(ca.Slice(1, 0, 1),))
        result = client.inspect("digits", {"image": IMAGE}, edits=[edit], compare=True)
    order = np.argsort(-result.unedited["output"][0])
    logits = [text.split(" ")[0] for text in answered.texts(".before-after td:last-child")]
    assert logits == [told(each, 3).removeprefix("+") for each in result.predictions["output"][0][order]]
    program = answered.program().replace("print(result)", "print(result.predictions['output'].tolist())")
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert np.array_equal(np.asarray(json.loads(run.stdout), np.float32), result.predictions["output"])
    answered.go("Edits")
    answered.page.click("button:text-is('Keep it in the question')")  # another one does not take its place
    answered.page.wait_for_selector("section:has(#others) .chips li:nth-child(2)")
    assert answered.page.locator("section:has(#others) .chips li").count() == 2
    answered.go("Ask")
    for _ in range(2):
        answered.page.click("section:has(#others) .remove")
    answered.page.click(".strip button.primary")
    answered.page.wait_for_selector(".prediction .named-bars")
    assert answered.page.locator("#others, .before-after").count() == 0


@pytest.mark.slow
def test_what_was_chosen_meanwhile_is_asked_too(answered: Inspector) -> None:
    """A view that asks for more adds to the question as it is now, not as it was answered."""
    answered.page.fill("form input[list=places]", "relu3")
    answered.page.press("form input[list=places]", "Enter")
    answered.go("Activations")
    answered.page.click("text=Which parts matter most?")
    answered.page.wait_for_selector(".strongest")
    assert "relu3@output" in answered.texts(".captured-place bdi")


@pytest.mark.slow
def test_the_strongest_parts_of_every_place_are_ranked(answered: Inspector, site: Served) -> None:
    """By gradient × activation, of channels and of units: those of numpy."""
    answered.go("Activations")
    answered.page.click("button:text-is('Which parts matter most?')")
    answered.page.wait_for_selector(".strongest")
    captures = [ca.Capture(each, at=("output", "grad_output")) for each in LAYERS]
    with ca.Client(site.address) as client:
        found = client.inspect("digits", {"image": IMAGE}, captures=captures)
    for layer, text in zip(LAYERS, answered.texts(".strongest"), strict=True):
        (call,) = found.captures[layer].calls
        product = (call.leaves[ca.Point.OUTPUT][""] * call.leaves[ca.Point.GRAD_OUTPUT][""])[0]
        effects = product.reshape(len(product), -1).sum(1)
        name, _, effect = text.partition(": ")
        assert name == f"{'channel' if layer.startswith('conv') else 'unit'} {np.abs(effects).argmax()}"
        assert number(effect) == pytest.approx(effects[np.abs(effects).argmax()], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", "norm"])
def test_the_part_that_matters_most_is_the_one_that_is_tried_without(answered: Inspector, before: str) -> None:
    """Whatever was chosen before it was asked for."""
    answered.go("Activations")
    if before:
        answered.page.click(f".choice label:has-text('{before}')")
        answered.page.click(".grid label >> nth=-1")
    answered.page.click("button:text-is('Which parts matter most?')")
    part = answered.page.locator(".captured-place[aria-pressed=true] .strongest").inner_text().partition(":")[0]
    answered.page.wait_for_selector(f".large figcaption:text-matches('^{part} ', 'i')")
    answered.page.click("button:text-is('What happens without it?')")
    answered.page.wait_for_selector("section:has(#downstream) .named-bars")
    assert answered.page.input_value("label:has-text('Which channel') input") == part.split()[1]


def test_a_prediction_of_another_input_is_dimmed(answered: Inspector) -> None:
    """As long as the question is not answered: before it is asked, and where it fails."""
    assert answered.page.locator(".stale").count() == 0
    answered.give([[[[1, 2]]]])
    answered.page.wait_for_selector(".answer .stale .prediction")
    answered.expected.append("400")
    answered.page.click(".strip button.primary")
    answered.page.wait_for_selector("section:has(#input) .problem")
    assert answered.page.locator(".answer .stale .prediction, .strip .stale").count() == 2
    answered.give(IMAGE.tolist())
    answered.ask()
    assert answered.page.locator(".stale").count() == 0


@pytest.mark.slow
def test_a_change_that_fails_leaves_nothing_of_the_one_before(answered: Inspector) -> None:
    """What went wrong, and no numbers of another place of the slider; the next change works again."""
    answered.go("Edits")
    answered.page.locator(".slider input").fill("1.5")
    answered.page.wait_for_selector("section:has(#downstream) .named-bars")
    answered.go("Ask")
    answered.ask()
    answered.expected.append("ERR_FAILED")
    calls = itertools.count()
    answered.page.route("**/Inspect", lambda route: route.abort() if next(calls) == 1 else route.continue_())
    answered.go("Edits")  # asks for predictions, and then for the layers without the change: this is cut off
    answered.page.wait_for_selector("main .problem")
    answered.page.wait_for_selector("section:has(#downstream) p:has-text('cannot be compared')")
    assert answered.page.locator(".before-after").count() == 1
    calls = itertools.count(1)
    answered.page.locator(".slider input").fill("0.7")  # now the predictions are cut off
    answered.page.wait_for_selector("p:text-is('Move the slider.')")
    assert answered.page.locator(".before-after, section:has(#downstream) .named-bars").count() == 0
    answered.page.locator(".slider input").fill("0.5")
    answered.page.wait_for_selector("section:has(#downstream) .named-bars")
    assert answered.page.locator("main .problem").count() == 0


@pytest.mark.slow
def test_nothing_of_another_model_or_question_is_shown(answered: Inspector) -> None:
    """Neither a channel, nor a change that was tried, nor what came of it."""
    answered.go("Activations")
    answered.page.click(".choice label:has-text('norm')")
    answered.page.click("button:text-is('What happens without it?')")
    answered.page.wait_for_selector("section:has(#downstream) .named-bars")
    answered.go("Ask")
    answered.give((IMAGE[:, :, ::-1] * 0.5).tolist())
    answered.ask()
    answered.go("Edits")
    answered.page.wait_for_selector("section:has(#downstream) .named-bars")  # the change is tried on the new image
    before = answered.values(".before-after [data-value]")[0]
    answered.go("Ask")
    assert before == pytest.approx(max(answered.values(".prediction td.number")), abs=1e-6)
    answered.choose("named")
    answered.ask()
    answered.go("Edits")
    answered.page.wait_for_selector("p:text-is('Move the slider.')")
    assert answered.page.locator(".before-after, section:has(#downstream) .named-bars").count() == 0
    assert answered.page.input_value("label:has-text('Place') select") == "fc"
    assert answered.page.locator("main .problem").count() == 0


@pytest.mark.slow
def test_gradients_by_layer_are_those_of_numpy(answered: Inspector, site: Served) -> None:
    """From the first layer to the last; and at the input."""
    answered.go("Gradients")
    answered.page.click("button:text-is('Ask for the gradient everywhere')")
    answered.page.wait_for_selector("section:has(#by-layer) .named-bars")
    names = answered.texts("section:has(#by-layer) th")
    with ca.Client(site.address) as client:
        found = client.inspect(
            "digits", {"image": IMAGE}, captures=[ca.Capture(name, at="grad_output") for name in names]
        )
    sizes = [
        float(np.sqrt(np.mean(found.captures[name].calls[0].leaves[ca.Point.GRAD_OUTPUT][""] ** 2))) for name in names
    ]
    assert names[0] == "conv1"
    assert names[-1] == "fc2"
    assert answered.values("section:has(#by-layer) td.number") == pytest.approx(sizes, rel=1e-4)
    (words, _) = answered.texts("section:has(#by-layer) > p")
    assert f"at {names[int(np.argmin(sizes))]} to " in words
    assert words.startswith("It vanishes at none" if min(sizes) >= 1e-3 * max(sizes) else "It vanishes, below")


@pytest.mark.slow
def test_gradients_of_parameters_are_those_of_pytorch(answered: Inspector, site: Served) -> None:
    """All by their norms, and the numbers of one; or those of one module, chosen in the tree."""
    answered.go("Gradients")
    answered.page.click("button:text-is('Ask for the gradient at every parameter')")
    answered.page.wait_for_selector("section:has(#parameters) .named-bars")
    with ca.Client(site.address) as client:
        found = client.inspect("digits", {"image": IMAGE}, captures=[ca.Capture(parameter="**")]).parameter_gradients
    assert answered.texts("section:has(#parameters) th") == list(found)
    norms = [float(np.linalg.norm(gradient)) for gradient in found.values()]
    assert answered.values("section:has(#parameters) td.number") == pytest.approx(norms, rel=1e-4)
    answered.page.select_option("label:has-text('Parameter') select", "fc1.weight")
    gradient = found["fc1.weight"]
    bound = float(np.abs(gradient).max())
    until(lambda: near(colours(answered, "section:has(#parameters) .picture canvas"), drawn(answered, gradient, bound)))
    answered.go("Model")
    answered.page.click(".place .name bdi:text-is('conv2')")
    answered.page.click("button:text-is('Capture the gradients of its parameters')")
    answered.page.wait_for_selector("button:text-is('Captured: gradients of its parameters')")
    answered.go("Ask")
    answered.page.wait_for_selector(".chips li:has-text('conv2.**'):has-text('gradient of the parameter')")


@pytest.mark.slow
def test_gradients_of_a_text_are_those_inside(browser: Browser) -> None:
    """Token ids have no gradient, and are not asked for one; positions by features are a heat map."""
    settings = Settings(http_address="127.0.0.1:0")
    with (
        serve({"tokens": Text()}, settings=settings) as server,
        opened(browser, f"http://{server.http_address}") as page,
    ):
        page.open()
        page.go("Ask")
        page.ask()
        page.go("Gradients")
        page.page.click("button:text-is('Ask for the gradient everywhere')")
        page.page.wait_for_selector("section:has(#by-layer) .named-bars")
        assert page.texts("section:has(#by-layer) th") == ["words", "head"]
        page.go("Activations")
        page.page.click(".captured-place:has-text('words')")
        page.page.wait_for_selector(".shown .picture canvas")
        assert colours(page, ".shown .picture canvas").shape == (5, 6, 3)


@pytest.mark.slow
def test_what_goes_wrong_is_told_in_every_view(answered: Inspector) -> None:
    """A question that the server refuses, asked again from a view that has no place for its field."""
    answered.expected.append("400")
    answered.page.fill("input[list=places]", "conv9")
    answered.page.keyboard.press("Enter")
    answered.go("Activations")
    answered.page.click(".strip button.primary")
    problem = answered.page.wait_for_selector("main .problem")
    assert problem is not None
    assert "conv9" in problem.inner_text()


def number(text: str) -> float:
    """What the page wrote for people."""
    return float(text.replace("−", "-"))


def told(value: float, digits: int = 4) -> str:
    """A number as the page writes it for people, with its sign."""
    text = f"{value:.{digits}g}".replace("-", "−")
    return f"+{text}" if value > 0 else text
