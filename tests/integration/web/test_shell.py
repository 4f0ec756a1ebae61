"""The shell: tokens, addresses, a server that goes and comes back, newer questions, and who can use it."""

from __future__ import annotations

import json
import threading
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser
from torch import nn

import cutaway as ca
from cutaway.adapters import Adapter
from cutaway.cli.files import permalink
from cutaway.contract.results import InputSpec
from cutaway.gateway import serve
from cutaway.server.embedded import Served
from cutaway.server.settings import Settings
from tests.support.pages import Inspector, opened
from tests.support.token_files import EVERY, entry, write
from tests.support.waiting import until


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_use_it(browser: Browser, site: Served, scheme: str) -> None:
    """axe-core finds nothing serious in any view, in light and dark; nothing is wider than a narrow window."""
    with opened(browser, f"http://{site.http_address}", color_scheme=scheme) as inspector:
        inspector.open()
        inspector.choose("digits")
        inspector.go("Ask")
        inspector.give(np.zeros((1, 1, 8, 8)).tolist())
        inspector.ask()
        for view in inspector.texts("nav a"):
            inspector.page.set_viewport_size({"width": 1400, "height": 900})
            inspector.go(view)
            assert inspector.serious() == [], view
            inspector.page.set_viewport_size({"width": 360, "height": 800})
            assert inspector.page.evaluate("document.documentElement.scrollWidth") <= 360, view


def test_a_token_is_asked_for_and_kept_nowhere(browser: Browser, tmp_path: Path) -> None:
    """Refused, entered, and, when it has expired, asked for again with what the server says."""
    tokens = write(tmp_path / "tokens.toml", entry("mine", {"*": EVERY}))
    torch.manual_seed(0)
    settings = Settings(tokens=tokens, http_address="127.0.0.1:0")
    with (
        serve({"net": nn.Linear(2, 2)}, settings=settings) as server,
        opened(browser, f"http://{server.http_address}") as inspector,
    ):
        inspector.expected.append("401")
        inspector.page.goto(inspector.url)
        inspector.page.wait_for_selector(".news code:text-is('TOKEN_REQUIRED')")
        inspector.page.fill(".news input[type=password]", "wrong")
        inspector.page.click(".news button")
        inspector.page.wait_for_selector(".news code:text-is('TOKEN_INVALID')")
        inspector.page.fill(".news input[type=password]", "mine")
        inspector.page.click(".news button")
        inspector.page.wait_for_selector(".strip")
        kept = inspector.page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
        assert "mine" not in kept + inspector.page.url
        write(tokens, entry("other", {"*": EVERY}))
        inspector.go("Ask")
        inspector.page.fill(".one-input textarea", "[[1, 2]]")
        inspector.page.click(".strip button.primary")
        inspector.page.wait_for_selector(".news code:text-is('TOKEN_INVALID')")


def test_what_a_token_may_see_is_shown_and_asked_for(browser: Browser, tmp_path: Path) -> None:
    """A token for predictions gets a question that it may ask, and no count of modules; a better one gets the rest."""

    class Own(Adapter):
        inputs = (InputSpec("input", "float32", (-1, 2)),)

        def build(self) -> nn.Module:
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))

    granted = entry("less", {"net": ["predict"]}), entry("more", {"net": EVERY}), entry("else", {"other": EVERY})
    settings = Settings(tokens=write(tmp_path / "tokens.toml", *granted), http_address="127.0.0.1:0")
    with (
        serve({"net": Own(), "other": nn.Linear(2, 2)}, settings=settings) as server,
        opened(browser, f"http://{server.http_address}") as inspector,
    ):
        inspector.expected += ["401", "403"]
        page = inspector.page
        page.goto(inspector.url)
        page.fill(".news input[type=password]", "less")
        page.click(".news button")
        page.wait_for_selector(".strip")
        assert not {"Parameters", "Modules"} & set(inspector.texts("#app .facts dt"))
        page.wait_for_selector("section:has(#insides) p:has-text('the scope inspect')")
        inspector.go("Ask")
        inspector.give([[1, 2]])
        inspector.ask()

        def enter(token: str) -> None:
            page.click("header button:text-is('Token set')")
            page.fill("header input[type=password]", token)
            page.click("header button:text-is('Use it')")

        enter("more")
        inspector.go("Model")
        page.wait_for_selector(".place .name bdi:text-is('1')")
        assert {"Parameters", "Modules"} <= set(inspector.texts("#app .facts dt"))
        page.wait_for_selector(".strip .said")  # the answer is still there
        enter("else")
        page.wait_for_selector(".place .name bdi:text-is('Linear')")
        assert page.locator(".strip .said").count() == 0
        enter("more")
        page.select_option(".chooser select", "models/net/versions/1.0")
        inspector.go("Ask")
        page.wait_for_selector(".methods strong:text-is('Saliency')")


def served(model: Adapter, address: str = "127.0.0.1:0") -> AbstractContextManager[Served]:
    return serve({"net": model}, settings=Settings(http_address=address))


def test_a_link_asks_nothing_by_itself(site: Served, inspector: Inspector) -> None:
    """`cutaway inspect --web` writes it: the question is there, inputs too, and asked when a person says so."""
    image = np.full((1, 1, 8, 8), 0.5, np.float32)
    question = ca.InspectRequest(
        "digits", tensors={"image": image}, captures=(ca.Capture("relu2"),), attributions=(ca.FeatureAblation(),)
    )
    inspector.page.goto("about:blank")
    inspector.open(permalink(inspector.url, question).removeprefix(f"{inspector.url}/"))
    inspector.page.wait_for_selector(".method strong:text-is('FeatureAblation')")
    assert inspector.texts(".chips bdi") == ["relu2"]
    assert inspector.texts(".strip output") == ["Ready to ask"]
    inspector.page.click(".methods .remove")
    inspector.ask()
    with ca.Client(site.address) as client:
        expected = client.inspect("digits", {"image": image}).classes[0]
    assert inspector.texts(".strip .said") == [expected.label]
    assert "relu2" in inspector.page.url
    assert "tensors" not in inspector.page.url
    inspector.page.goto(f"{inspector.url}/#/ask?question=%7B")
    inspector.page.reload()
    inspector.page.wait_for_selector(".problem:has-text('the link holds no question')")


@pytest.mark.slow
def test_a_link_is_the_question_as_it_is(site: Served, inspector: Inspector) -> None:
    """Nothing is added to it; and the back button shows what was asked before, with its answer."""
    inspector.choose("digits")
    inspector.go("Ask")
    inspector.give(np.full((1, 1, 8, 8), 0.5).tolist())
    inspector.ask()
    inspector.go("Cost")
    before = inspector.page.url
    question = quote(json.dumps({"model": "digits", "captures": [{"module": "fc2"}]}))
    inspector.page.evaluate("(hash) => (location.hash = hash)", f"#/ask?question={question}")
    inspector.page.wait_for_selector(".strip output:has-text('No input yet')")
    assert inspector.texts(".chips bdi") == ["fc2"]
    assert inspector.page.locator(".methods li, .check input:checked").count() == 0
    inspector.page.go_back()
    inspector.page.wait_for_selector(".strip .said")
    assert inspector.page.url == before
    assert inspector.texts(".facts dd")[0].endswith(" ms")


@pytest.mark.slow
def test_what_a_field_does_not_take_is_not_asked(inspector: Inspector) -> None:
    """Nor what stood there before; what was asked stands in the fields again when it is shown again."""
    inspector.choose("named")
    inspector.go("Ask")
    fields = ".features input[inputmode]"
    inspector.page.fill(f"{fields} >> nth=1", "17.08")
    inspector.ask()
    inspector.page.fill(f"{fields} >> nth=1", "17,08")
    inspector.page.wait_for_selector(".features .bad:text-is('a number')")
    inspector.page.click(".strip button.primary")
    assert inspector.page.evaluate("document.activeElement.getAttribute('aria-invalid')") == "true"
    inspector.page.fill(f"{fields} >> nth=1", "1e400")
    inspector.page.wait_for_selector(".features .bad:text-is('a number')")
    inspector.page.fill(f"{fields} >> nth=1", "17.08")
    inspector.page.select_option("select[aria-label='Add a method']", "integratedGradients")
    steps = inspector.page.locator(".methods li").last.locator("label:has-text('n steps')")
    inspector.page.locator(".methods summary").last.click()
    steps.locator("input").fill("-5")
    assert steps.locator(".bad").inner_text() == "a whole number from 0"
    inspector.page.locator(".methods .remove").last.click()
    inspector.give([[1, 2, 3, 4], [5, 6, 7, 8]])
    inspector.page.wait_for_selector(".strip .unsure:text-is('The question has changed since.')")
    inspector.ask()
    inspector.page.fill(".one-input textarea", "1, 2, 3, x")
    inspector.page.wait_for_selector(".strip button.primary:disabled")
    inspector.page.click(".history button >> nth=0")
    assert json.loads(inspector.page.input_value(".one-input textarea")) == [[1, 2, 3, 4], [5, 6, 7, 8]]
    inspector.page.select_option(".strip select", "1")
    inspector.page.click(".one-input .choice label:has-text('Table row')")
    inspector.page.fill(f"{fields} >> nth=0", "-5")
    inspector.page.click(".one-input .choice label:has-text('Numbers')")
    assert json.loads(inspector.page.input_value(".one-input textarea")) == [[1, 2, 3, 4], [-5, 6, 7, 8]]
    inspector.page.click(".history button >> nth=1")
    assert "17.08" in inspector.page.input_value(".one-input textarea")


@pytest.mark.slow
def test_a_file_that_cannot_be_read_leaves_what_was_there(inspector: Inspector, tmp_path: Path) -> None:
    """And says so; numbers of double precision, which numpy's are by themselves, become those of the model."""
    inspector.choose("named")
    inspector.go("Ask")
    inspector.give([[1, 2, 3, 4]])
    files = ".numbers input[type=file]"
    inspector.page.set_input_files(files, {"name": "x.npy", "mimeType": "", "buffer": b"no array"})
    inspector.page.wait_for_selector(".numbers .problem:has-text('this is no NPY file')")
    assert json.loads(inspector.page.input_value(".numbers textarea")) == [[1, 2, 3, 4]]
    np.save(tmp_path / "texts.npy", np.array(["a"]))
    inspector.page.set_input_files(files, tmp_path / "texts.npy")
    inspector.page.wait_for_selector(".numbers .problem:has-text('of the type U1 are not read')")
    np.save(tmp_path / "rows.npy", np.array([[0.1, 2, 3, 4]]))
    inspector.page.set_input_files(files, tmp_path / "rows.npy")
    until(lambda: inspector.page.locator(".numbers .problem").count() == 0)
    assert inspector.texts(".numbers .actions .muted") == ["float32 1 × 4"]
    inspector.ask()


@pytest.mark.slow
def test_a_server_that_comes_back_with_another_model_is_seen_through(browser: Browser) -> None:
    """While a server is gone the page says so; then it goes on by itself, with the labels and modules of the model that
    answers."""

    def own(seed: int, *names: str) -> Adapter:
        class Own(Adapter):
            inputs = (InputSpec("input", "float32", (-1, 2)),)
            labels = names

            def build(self) -> nn.Module:
                torch.manual_seed(seed)
                return nn.Sequential(*(nn.Linear(2, 2) for _ in range(1 + seed)))

        return Own()

    first = ExitStack()
    address = str(first.enter_context(served(own(0, "a", "b"))).http_address)
    with first, opened(browser, f"http://{address}") as inspector:
        inspector.expected.append("net::ERR_")
        inspector.open()
        inspector.go("Ask")
        inspector.give([[1, 2]])
        inspector.ask()
        assert set(inspector.texts(".prediction th")) == {"a", "b"}
        first.close()
        inspector.page.click(".strip button.primary")
        inspector.page.wait_for_selector(".news:has-text('The server does not answer')")
        with served(own(1, "eins", "zwei"), address):
            inspector.page.wait_for_selector(".news", state="detached")
            inspector.ask()
            inspector.page.wait_for_selector(".prediction th:has-text('eins')")
            inspector.go("Model")
            assert inspector.texts(".place .name bdi")[-1] == "1"


@pytest.mark.slow
def test_a_newer_question_ends_the_one_before(browser: Browser) -> None:
    """The answer that is shown is that of the last question, whatever came of the first; and a person can stop one."""
    let_go = threading.Event()

    class Waits(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.detach().max() == 9:
                let_go.wait()
            return x

    with ExitStack() as stack:
        server = stack.enter_context(serve({"waits": Waits()}, settings=Settings(http_address="127.0.0.1:0")))
        stack.callback(let_go.set)
        inspector = stack.enter_context(opened(browser, f"http://{server.http_address}"))
        inspector.open()
        inspector.go("Ask")
        page = inspector.page
        page.fill(".one-input textarea", "[[9, 1]]")
        page.click(".strip button.primary")
        page.wait_for_selector(".strip button:text-is('Stop')")
        page.fill(".one-input textarea", "[[0, 1]]")
        page.keyboard.press("Control+Enter")
        let_go.set()
        page.wait_for_selector(".prediction")
        assert inspector.values(".prediction td.number")[:2] == [0.0, 1.0]
        let_go.clear()
        page.fill(".one-input textarea", "[[9, 1]]")
        page.keyboard.press("Control+Enter")
        page.click(".strip button:text-is('Stop')")
        page.wait_for_selector(".strip button.primary")
        assert inspector.values(".prediction td.number")[:2] == [0.0, 1.0]
