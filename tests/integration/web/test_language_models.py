"""What the page shows of a language model: tokens as they come, steering, receipts, and the grid of a sweep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Route

import cutaway as ca
from cutaway.adapters.causal_lm import CausalLMAdapter
from cutaway.gateway import serve
from cutaway.server.embedded import Served
from cutaway.server.settings import Settings
from tests.support.causal_lms import saved
from tests.support.pages import Inspector, asking, opened

TEXT = "the hooks see"
BLOCK = "transformer.h.1"


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    adapter = CausalLMAdapter(directory=saved(tmp_path_factory.mktemp("gpt")))
    with serve({"gpt": adapter}, settings=Settings(http_address="127.0.0.1:0")) as served:
        yield served


@pytest.fixture
def client(gpt: Served) -> Iterator[ca.Client]:
    with ca.Client(gpt.address) as opened_client:
        yield opened_client


@pytest.fixture
def writing(browser: Browser, gpt: Served) -> Iterator[Inspector]:
    """The page with a question for 12 tokens."""
    with asking(browser, gpt.http_address, "gpt", generate={"maxNewTokens": 12}) as inspector:
        inspector.page.fill("textarea", TEXT)
        yield inspector


def steer(inspector: Inspector, start: str, end: str, module: str = BLOCK) -> None:
    """Has the page make a vector, and waits for the texts or an error."""
    for label, text in {"From the text": start, "To the text": end, "At the module": module}.items():
        inspector.page.fill(f"label:has-text('{label}') input", text)
    inspector.page.click("button:text-is('Add the vector')")
    inspector.page.wait_for_selector(".sides figure:nth-child(2) bdi, .problem")
    inspector.page.wait_for_selector(".strip button.primary")


def rest(inspector: Inspector) -> None:
    """Waits for the answer to the scale that was chosen last."""
    inspector.page.wait_for_selector(".strip :text('The question has changed since.')", state="detached")
    inspector.page.wait_for_selector(".strip button.primary")


def vector_between(client: ca.Client, start: str, end: str) -> np.ndarray[Any, Any]:
    """What the page must compute."""
    one, other = client.inspect("gpt", [start, end], captures=ca.Capture(BLOCK, position=-1)).captures[BLOCK].output
    return np.asarray(other - one)


def percent(log_probability: float) -> str:
    """A probability as the page writes it."""
    probability = float(np.exp(log_probability))
    if probability < 0.0005:
        return "< 0.1 %"
    return f"{100 * probability:.{2 if probability > 0.9995 else 1}f} %"


def test_each_token_comes_by_itself_and_tells_its_probability(writing: Inspector, client: ca.Client) -> None:
    """The text grows token by token; a pointer and the arrow keys tell the probability of each."""
    writing.page.evaluate(
        """() => {
            window.lengths = [];
            const note = () => lengths.push(document.querySelectorAll(".written blockquote span").length);
            new MutationObserver(note).observe(document.body, {subtree: true, childList: true});
        }"""
    )
    writing.ask()
    assert len(set(writing.page.evaluate("lengths")) & set(range(1, 12))) > 3
    expected = client.inspect("gpt", TEXT, generate=12).generated
    told = [f"{step.texts[0] or f'#{step.tokens[0]}'}: {percent(step.log_probabilities[0])}" for step in expected]
    tokens = writing.page.locator(".written blockquote span")
    assert [token.get_attribute("title") for token in tokens.all()] == told
    shown = next(index for index, step in enumerate(expected) if step.texts[0].strip())
    tokens.nth(shown).hover()
    assert writing.page.locator(".written output").inner_text() == told[shown].strip()
    tokens.nth(0).focus()
    for _ in range(3):
        writing.page.keyboard.press("ArrowRight")
    assert writing.page.evaluate("document.activeElement.title") == told[3]
    assert writing.page.locator(".written output").text_content() == told[3]
    for _ in range(20):
        writing.page.keyboard.press("ArrowRight")
    assert writing.page.evaluate("document.activeElement.title") == told[11]


def test_a_vector_from_one_text_to_another(writing: Inspector, client: ca.Client) -> None:
    """The page adds it as `AddVector` with the norm matched, and asks anew when a slider is let go."""
    steer(writing, "the see", "see the")
    vector = vector_between(client, "the see", "see the")
    slider = writing.page.locator(".steering input[type=range]")
    for presses, scale in ((0, 1.0), (5, 1.5)):
        slider.focus()
        for _ in range(presses):
            writing.page.keyboard.press("ArrowRight")
        if presses:
            rest(writing)
        edit = ca.AddVector(BLOCK, vector, scale=scale, norm="match")
        expected = client.inspect("gpt", TEXT, generate=12, edits=edit, compare=True)
        texts = [each.text_content() for each in writing.page.locator(".written blockquote").all()]
        assert texts == [expected.texts[0], expected.unedited_texts[0]]
        assert texts[0] != texts[1]
        (receipt,) = expected.receipts
        cells = writing.texts(".answer .plain tbody > tr > *")
        assert cells == [f"addVector {BLOCK}", "0 to 11", "12", f"{receipt.norm:.4g}"]
    assert slider.get_attribute("max") == "4"
    assert not writing.serious()


def test_a_slider_ends_the_text_that_is_being_written(writing: Inspector) -> None:
    """Of scales that are chosen one behind the other, only the last is asked to its end."""
    steer(writing, "the see", "see the")
    held: list[Route] = []
    asked: list[str] = []
    failed: list[str] = []
    writing.page.on("request", lambda request: asked.append(request.url))
    writing.page.on("requestfailed", lambda request: failed.append(request.url.rpartition("/")[2]))
    writing.page.route("**/InspectStream", lambda route: route.continue_() if held else held.append(route))
    writing.page.focus(".steering input[type=range]")
    writing.page.keyboard.press("ArrowRight")
    writing.page.wait_for_selector(".strip button:text-is('Stop')")
    writing.page.keyboard.press("ArrowRight")
    rest(writing)
    assert (len(held), failed) == (1, ["InspectStream"])
    writing.page.evaluate(
        """() => {
            const slider = document.querySelector(".steering input[type=range]");
            for (slider.value of ["1.5", "2", "2.5"])
                for (const name of ["input", "change"]) slider.dispatchEvent(new Event(name, {bubbles: true}));
        }"""
    )
    rest(writing)
    assert len([url for url in asked if url.endswith("InspectStream")]) == 3
    assert not writing.texts("main .problem")


def test_a_slider_reaches_the_scale_of_a_link(browser: Browser, gpt: Served) -> None:
    """Its range contains a scale that is beyond it."""
    vector = {"dataType": "DATA_TYPE_FLOAT32", "shape": ["16"], "data": "A" * 85 + "="}
    edit = {"module": BLOCK, "point": "HOOK_POINT_OUTPUT", "addVector": {"vector": vector, "scale": -9.5}}
    with asking(browser, gpt.http_address, "gpt", edits=[edit]) as inspector:
        slider = inspector.page.locator(".steering input[type=range]")
        assert [slider.get_attribute(each) for each in ("min", "max")] == ["-9.5", "9.5"]
        assert slider.input_value() == "-9.5"


def test_no_vector_is_made_of_what_has_none(writing: Inspector) -> None:
    """Equal texts, several modules and unknown ones are refused where they are given, and the question stays."""
    writing.expected.append("400")
    for end, module, reason in (
        ("see", BLOCK, "the module returns the same at the last token of both texts"),
        ("the", "transformer.h.*", "name one module that returns a vector at each token"),
        ("the", "transformer.x", "no module"),
    ):
        steer(writing, "see", end, module)
        writing.page.wait_for_selector(f"section:has(#steer) .problem:has-text('{reason}')")
        assert not writing.texts(".steering")


def test_a_grid_of_patches(browser: Browser, gpt: Served, client: ca.Client) -> None:
    """A sweep that the page asks for has the client's numbers, in frames that fit, with the tokens of the text."""
    texts = [" the hooks see" * 7, " see the see"]
    with opened(browser, f"http://{gpt.http_address}", viewport={"width": 390, "height": 900}) as inspector:
        inspector.open()
        inspector.go("Ask")
        inspector.page.fill("textarea", texts[0])
        inspector.page.click("button:text-is('Add a text')")
        inspector.page.fill("textarea >> nth=1", texts[1])
        inspector.page.click("button[aria-label='Remove layerIntegratedGradients']")
        inspector.ask()
        inspector.page.select_option(".strip label:has-text('Example') select", "2 of 2")
        inspector.go("Edits")
        inspector.page.check("label:has-text('Estimates too') input")
        inspector.page.click("button:text-is('Sweep')")
        inspector.page.wait_for_selector(".named-picture")
        inspector.page.wait_for_selector(".strip button.primary")
        result = client.inspect("gpt", texts, sweep=ca.Sweep("transformer.h.*", estimate=True))
        assert result.sweep_agreement is not None
        assert result.target_values is not None
        assert f"Cosine between the two: {result.sweep_agreement[1]:.4g}" in inspector.texts(".whole .tools > span")[0]
        assert inspector.texts(".named-picture .rows li") == [*result.sweep]
        columns = [each.text_content() for each in inspector.page.locator(".named-picture .columns li").all()]
        padding = columns.count("(padding)")
        assert padding > 0
        assert "".join(map(str, columns[padding:])) == texts[1]
        inspector.page.focus(".named-picture canvas")
        inspector.page.keyboard.press("ArrowDown")
        for _ in columns[1:]:
            inspector.page.keyboard.press("ArrowRight")
        for kind, grid in (("Exact", result.sweep), ("Estimated", result.sweep_estimates)):
            inspector.page.click(f".choice label:has-text('{kind}')")
            inspector.page.focus(".named-picture canvas")
            (told,) = inspector.texts(".whole .picture output")
            place, _, value = told.rpartition(": ")
            assert place == f"{BLOCK}, see"
            effect = grid[BLOCK][1, -1] - result.target_values[1]
            assert float(value.replace("−", "-")) == pytest.approx(effect, rel=5e-3)
        frame = "document.querySelector('.named-picture')"
        assert inspector.page.evaluate(f"{frame}.scrollWidth > {frame}.clientWidth && {frame}.scrollLeft > 0")
        for width in (390, 1920):
            inspector.page.set_viewport_size({"width": width, "height": 900})
            assert inspector.page.evaluate("document.documentElement.scrollWidth") <= width
            assert inspector.page.evaluate(f"{frame}.querySelector('.rows').clientWidth") > 70
        assert not inspector.serious()
        inspector.go("Ask")
        inspector.page.fill("label:has-text('Tokens to write') input", "3")
        inspector.ask()
        assert inspector.texts(".written figcaption > span") == ["3 tokens, as long as it may be"]


def test_the_weights_of_an_attention_have_tokens_on_both_sides(
    browser: Browser, gpt: Served, client: ca.Client
) -> None:
    """A picture for each head, by that name; each number is told with the two tokens that it is about."""
    place = "transformer.h.1.attn:attention_weights#0"
    explained = {"layerGradientXActivation": {"layer": "transformer.wte"}}
    with asking(browser, gpt.http_address, "gpt", captures=[{"op": place}], attributions=[explained]) as inspector:
        inspector.page.fill("textarea", TEXT)
        inspector.ask()
        inspector.go("Activations")
        result = client.inspect(
            "gpt",
            [TEXT],
            captures=ca.Capture(op=place),
            attributions=ca.LayerGradientXActivation(layer="transformer.wte"),
        )
        tokens = result.attributions[0].tokens
        assert tokens is not None
        inspector.page.wait_for_selector(".large figcaption:has-text('head 0')")
        for side in ("rows", "columns"):
            names = [each.text_content() for each in inspector.page.locator(f".large .{side} li").all()]
            assert names == list(tokens.texts[0])
        inspector.page.focus(".large canvas")
        inspector.page.keyboard.press("ArrowDown")
        (told,) = inspector.texts(".large .picture output")
        weight = float(result.captures[place].output[0, 0, 1, 0])
        assert told.startswith(f"{tokens.texts[0][1]} looks at {tokens.texts[0][0]}: ")
        assert float(told.rpartition(" ")[2]) == pytest.approx(weight, rel=1e-3)
        inspector.page.set_viewport_size({"width": 390, "height": 800})
        assert inspector.page.evaluate("document.documentElement.scrollWidth") == 390  # the name of the place is long
