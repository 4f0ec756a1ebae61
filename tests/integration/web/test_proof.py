"""The proof in the page: an explanation beside its reference, baselines, exact effects, contrasts; and few clicks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from captum import attr
from playwright.sync_api import Browser
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec
from cutaway.contract.tensors import Array
from cutaway.gateway import serve
from cutaway.server.embedded import Served
from cutaway.server.settings import Settings
from tests.integration.web.conftest import IMAGE
from tests.support.broken_captum import spoiled
from tests.support.pages import Inspector, opened
from tests.support.waiting import until

WORDS = ("[PAD]", "[CLS]", "good", "bad", "film", "a", "[SEP]")


class Reader(nn.Module):
    """The mean of embeddings, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(len(WORDS), 6), nn.Linear(6, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids).mean(1))


class Opinions(Adapter):
    """A text of known words, between the marks of its ends."""

    media_types = ("text/plain",)
    inputs = (InputSpec("ids", "int64", (-1, -1)),)
    labels = ("pan", "praise")

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return Reader()

    def preprocess(self, data: bytes, media_type: str) -> dict[str, Tensor]:
        words = ["[CLS]", *data.decode().lower().split(), "[SEP]"]
        return {"ids": torch.tensor([[WORDS.index(word) for word in words]])}

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        return [WORDS[each] for each in ids]


@pytest.fixture(scope="module")
def opinions() -> Iterator[Served]:
    with serve({"opinions": Opinions()}, settings=Settings(http_address="127.0.0.1:0")) as server:
        yield server


def settled(inspector: Inspector) -> None:
    """Waits until nothing runs."""
    inspector.page.wait_for_selector(".strip button.primary")
    assert not inspector.texts("main .problem"), inspector.texts("main .problem")


def upside_down(values: Tensor) -> Tensor:
    """A fault that moves what is largest."""
    return values.flip(-2)


def test_a_wrong_map_is_shown_beside_the_right_one(site: Served, answered: Inspector) -> None:
    """Three maps of one scale, and whether the difference matters: counted with numpy in the reply of the client."""
    page = answered
    check = ca.CheckRequest(references=True)
    with spoiled(attr.Saliency, values=upside_down):
        page.ask()
        page.go("Explanations")
        with ca.Client(site.address) as client:
            (told,) = client.inspect("digits", {"image": IMAGE}, attributions=ca.Saliency(), check=check).attributions
        page.page.click("button:text-is('Does it matter? Beside its reference')")
        page.page.wait_for_selector(".sides")
        settled(page)
    wrong, right = told.values["image"][0, 0], told.references["image"][0, 0]
    assert np.array_equal(wrong.astype(np.float64), right[::-1].astype(np.float32).astype(np.float64))
    card = page.page.locator(".explanation:has(h2:text-is('Saliency'))")
    assert card.locator(".sides h3").all_inner_texts() == ["By Captum", "By the raw hooks", "Difference"]
    largest = set(np.argsort(-wrong, axis=None, kind="stable")[:6])
    least = np.sort(right, axis=None)[-6]
    others = sum(right.flat[at] < least * (1 - 1e-4) for at in largest)
    assert others > 0
    said = card.locator("> p.bad").inner_text()
    assert said.startswith(f"It matters: the largest tenth of all pixels is another one, {others} of 6; values differ")
    for title, map_ in (("By Captum", wrong), ("By the raw hooks", right), ("Difference", wrong - right)):
        side = card.locator(f"section[aria-label='{title}']")
        row, column = np.unravel_index(map_.argmax(), map_.shape)
        assert f"at row {row}, column {column}" in side.locator(".extremes").inner_text()
        assert side.locator(".legend span").all_inner_texts() == [f"{sign}{right.max():.4g}" for sign in ("−", "")]
    agreeing = page.page.locator(".explanation:has(h2:text-is('IntegratedGradients')) > p:not([class*=muted])").first
    assert agreeing.inner_text().startswith("The largest tenth of all pixels is the same; values differ by at most")


def test_another_baseline_is_one_click_away(site: Served, answered: Inspector) -> None:
    """It is named, and the answer is the client's with that baseline."""
    answered.go("Explanations")
    assert answered.texts(".baseline strong") == ["zeros"]  # of three methods one has a baseline
    for name, baseline in (("its mean", IMAGE.mean()), ("blurred", blurred(IMAGE)), ("zeros", 0.0)):
        answered.page.click(f".baseline button:text-is('{name}')")
        answered.page.wait_for_selector(f".baseline strong:text-is('{name}')")
        settled(answered)
        with ca.Client(site.address) as client:
            asked = ca.IntegratedGradients(baselines={"image": baseline})
            (told,) = client.inspect("digits", {"image": IMAGE}, attributions=asked).attributions
        row, column = np.unravel_index(told.values["image"][0, 0].argmax(), (8, 8))
        assert f"at row {row}, column {column}" in answered.texts(".extremes")[0]
        assert told.value_at_baseline is not None
        there = answered.texts(".line-of-facts div:has(dt:text-is('at the baseline')) dd")
        assert float(there[0].replace("−", "-")) == pytest.approx(told.value_at_baseline[0], rel=1e-3)


def blurred(image: Array) -> Array:
    """Each pixel the mean of those at most one row, and one column, away, with the edges repeated: three times."""
    for _ in range(3):
        for axis in (2, 3):
            size = image.shape[axis]
            near = [image.take((at - 1, at, at + 1), axis, mode="clip").mean(axis) for at in range(size)]
            image = np.stack(near, axis)
    return image.astype(np.float32)


def test_each_channel_is_taken_away(site: Served, answered: Inspector) -> None:
    """Measured effects are those of sixteen edits, beside estimates whose agreement the server tells."""
    answered.go("Activations")
    answered.page.click(".captured-place:has-text('conv1@output')")
    answered.page.click("button:text-is('What happens without each channel?')")
    answered.page.wait_for_selector(".measured")
    settled(answered)
    with ca.Client(site.address) as client:
        clean = client.inspect("digits", {"image": IMAGE})
        target = ca.ClassIndex((clean.classes[0].index,))
        lost = [
            client.inspect(
                "digits",
                {"image": IMAGE},
                target=target,
                edits=ca.Zero("conv1", slices=(ca.Slice(1, channel, channel + 1),)),
            ).predictions["output"][0, clean.classes[0].index]
            for channel in range(16)
        ]
    exact = clean.predictions["output"].max() - np.array(lost)
    order = np.argsort(-np.abs(exact))
    assert answered.values(".measured td.number") == pytest.approx(exact[order], abs=1e-4)
    assert answered.texts(".measured th bdi") == [f"channel {channel}" for channel in order]
    assert "Cosine between the two: 0." in answered.texts(".measured > p")[0]
    assert all(text.startswith("estimated ") for text in answered.texts(".measured th .small"))


def test_why_one_class_and_not_the_other(site: Served, answered: Inspector) -> None:
    """A click on the second bar explains the difference of two logits; one on the first the class alone again."""
    best, second = (int(text) for text in answered.texts(".prediction th")[:2])
    answered.page.click(f".prediction button[title='Why {best}, not {second}?']")
    answered.page.wait_for_selector(".history li:nth-child(2)")
    settled(answered)
    answered.go("Explanations")
    assert f"of the difference of “{best}” and “{second}”: why the one, and not the other?" in answered.texts("p.small")
    with ca.Client(site.address) as client:
        (told,) = client.inspect(
            "digits",
            {"image": IMAGE},
            target=ca.Contrast(ca.ClassIndex((best,)), ca.ClassIndex((second,))),
            attributions=ca.Saliency(),
        ).attributions
    row, column = np.unravel_index(told.values["image"][0, 0].argmax(), (8, 8))
    assert f"at row {row}, column {column}" in answered.texts(".explanation:nth-child(2) .extremes")[0]
    answered.go("Ask")
    assert answered.page.input_value("label:has-text('Explain') select") == "contrast"
    answered.page.click(f".prediction button[title='Explain {best}']")
    answered.page.wait_for_selector(".history li:nth-child(3)")
    assert answered.page.input_value("label:has-text('Explain') select") == "predictedClass"


def test_a_feature_slides(site: Served, inspector: Inspector) -> None:
    """The question is asked when the slider is let go: the answer is that to the number where it stands."""
    inspector.choose("named")
    inspector.go("Ask")
    inspector.ask()
    slider = inspector.page.locator(".features div:nth-child(3) input[type=range]")
    slider.fill("0.5")
    inspector.page.wait_for_selector(".history li:nth-child(2)")
    settled(inspector)
    x = np.array([[1, 1, 0.5, 1]], np.float32)
    with ca.Client(site.address) as client:
        expected = client.inspect("named", {"x": x}).classes[0].probability
    assert max(inspector.values(".prediction td.number")) == pytest.approx(expected, abs=1e-6)


def test_tokens_are_swapped_and_special_ones_stay(browser: Browser, opinions: Served) -> None:
    """Another word in the place of one; a baseline that keeps the marks of a text."""
    with opened(browser, f"http://{opinions.http_address}") as page, ca.Client(opinions.address) as client:
        page.open()
        page.go("Ask")
        page.page.fill(".texts textarea", "A good film")
        page.ask()
        page.go("Explanations")
        assert page.texts(".baseline strong") == ["token 0"]
        page.page.click(".baseline button:text-is('special tokens stay')")
        page.page.wait_for_selector(".baseline strong:text-is('special tokens stay')")
        settled(page)
        sums = [float(text.replace("−", "-")) for text in page.texts(".tokens small")]
        kept = np.array([[1, 0, 0, 0, 6]])
        (told,) = client.inspect(
            "opinions",
            "A good film",
            attributions=ca.LayerIntegratedGradients(layer="words", baselines={"ids": kept}),
        ).attributions
        assert told.tokens is not None
        assert sums == pytest.approx(told.tokens.values[0, :4], abs=1e-3)  # the last one is zero, as padding is
        assert [sums[0], told.tokens.values[0, 4]] == [0, 0]
        assert page.texts("label:has-text('Instead of') option") == ["a", "good", "film"]
        page.page.select_option("label:has-text('Instead of') select", label="good")
        page.page.fill("label:has-text('write') input", "bad")
        page.page.click("button:text-is('Swap, and ask')")
        page.page.wait_for_selector(".tokens bdi:text-is('bad')")
        settled(page)
        expected = client.inspect("opinions", "A bad film").classes[0]
        assert page.texts(".strip .said") == [expected.label]
        page.go("Ask")
        assert page.page.input_value(".texts textarea") == "A bad film"


PLACES = """() => {
    const text = document.querySelector(".history bdi").firstChild;
    return [...text.data].map((letter, at) => {
        const range = new Range();
        range.setStart(text, at);
        range.setEnd(text, at + 1);
        return [letter, range.getBoundingClientRect().left];
    });
}"""


def test_a_label_does_not_turn_what_stands_beside_it(inspector: Inspector) -> None:
    """One with a mark of the other direction: the probability behind it is read from the left to the right."""
    inspector.choose("named")
    inspector.go("Ask")
    inspector.ask()
    inspector.ask()
    inspector.page.wait_for_selector(".history li:nth-child(2)")
    letters = inspector.page.evaluate(PLACES)
    behind = letters[max(at for at, (letter, _) in enumerate(letters) if letter == ",") :]
    lefts = [left for _, left in behind]
    assert "".join(letter for letter, _ in behind).endswith(" %")
    assert lefts == sorted(lefts)


VIEW, BUTTON = "nav a:text-is('{}')".format, "button:text-is('{}')".format
QUESTIONS: dict[str, tuple[str, ...]] = {
    "What does the model say?": (VIEW("Ask"), ".prediction .bar"),
    "Why?": (VIEW("Explanations"), ".explanation .overlay"),
    "Can I believe it?": (VIEW("Explanations"), BUTTON("Beside its reference"), ".sides"),
    "Would another baseline change it?": (
        VIEW("Explanations"), BUTTON("blurred"), ".baseline strong:text-is('blurred')",
    ),
    "Why not the second class?": (
        VIEW("Ask"), ".prediction tr:nth-child(2) button", VIEW("Explanations"),
        "p:has-text('why the one, and not the other?')",
    ),
    "Which part of a layer matters most?": (VIEW("Activations"), BUTTON("Which parts matter most?"), ".strongest"),
    "What is each channel worth?": (
        VIEW("Activations"), BUTTON("What happens without each channel?"), ".measured .named-bars",
    ),
    "Where do gradients vanish?": (
        VIEW("Gradients"), BUTTON("Ask for the gradient everywhere"), "section:has(#by-layer) .named-bars",
    ),
    "Where did the time go?": (VIEW("Cost"), "section:has(#time) .named-bars"),
    "How do I ask that in Python?": (VIEW("Take along"), ".snippet pre[aria-label='Python']:not(:empty)"),
}  # fmt: skip
"""Ten questions about an answer: what a person clicks, and at last what answers them."""


def test_ten_questions_take_three_clicks_at_most(answered: Inspector) -> None:
    """From an answer on, each by the page alone."""
    assert len(QUESTIONS) == 10
    for question, (*clicks, shown) in QUESTIONS.items():
        assert len(clicks) <= 3, question
        for click in clicks:
            answered.page.locator(click).first.click()
        answered.page.wait_for_selector(shown)
        settled(answered)


FITS = """() => [...document.querySelectorAll("main *")].filter((each) => {
    const { overflowX, display } = getComputedStyle(each);
    return overflowX === "visible" && display !== "inline" && each.clientWidth > 0
        && each.scrollWidth > each.clientWidth + 1;
}).map((each) => each.outerHTML.slice(0, 120)).concat(
    document.documentElement.scrollWidth > innerWidth ? ["the page"] : [])"""


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1920, "light"), (390, "light"), (1920, "dark")])
def test_the_proof_fits(browser: Browser, site: Served, width: int, scheme: str) -> None:
    """Nothing is wider than what it is in, and axe-core finds nothing: with references, measured effects, sliders."""
    options = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    with opened(browser, f"http://{site.http_address}", **options) as page:
        page.open(f"#/ask?question={json.dumps({'model': 'digits', 'attributions': [{'integratedGradients': {}}]})}")
        page.give(IMAGE.tolist())
        page.ask()
        page.go("Explanations")
        page.page.click("button:text-is('Beside its reference')")
        page.page.wait_for_selector(".sides")
        settled(page)
        assert page.page.evaluate(FITS) == []
        assert page.serious() == []
        page.go("Activations")
        page.page.click("button:text-is('Capture every layer')")
        page.page.wait_for_selector(".captured-place")
        settled(page)
        page.page.click("button:text-is('What happens without each channel?')")
        page.page.wait_for_selector(".measured")
        until(lambda: page.page.evaluate(FITS) == [])
        assert page.serious() == []
        page.choose("named")
        page.go("Ask")
        page.ask()
        assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.serious() == []
