"""The inspector's page in Chromium: every error that it reports fails the test that opened it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.documents import ROOT

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), "")
in_a_browser = pytest.mark.skipif(not BROWSER, reason="no Chromium here: apt-get install chromium")

AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"


@contextmanager
def running_browser() -> Iterator[Browser]:
    """A Chromium without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


class Inspector:
    """The page, opened at an address of a server.

    Attributes:
        page: Playwright's.
        faults: what went wrong in it: errors, and what its policy refused.
        expected: parts of faults that a test brings about.
    """

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.faults: list[str] = []
        self.expected: list[str] = []
        page.set_default_timeout(120_000)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", lambda message: self.faults.append(message.text) if message.type == "error" else None)

    def open(self, fragment: str = "") -> None:
        """Opens the page, and waits for a model."""
        self.page.goto(f"{self.url}/{fragment}")
        self.page.wait_for_selector(".strip")
        self.page.wait_for_selector("main[aria-busy=false]")

    def open_question(self, model: str, **parts: Any) -> None:
        """Opens the link of a question in the contract's JSON."""
        self.open(f"#/ask?question={quote(json.dumps({'model': model, **parts}))}")

    def choose(self, model: str) -> None:
        """Chooses a model by its name, and waits for its tree."""
        self.page.select_option(".chooser select", f"models/{model}/versions/1.0")
        self.page.wait_for_selector("main[aria-busy=false]")

    def go(self, view: str) -> None:
        """Goes to a view by the navigation, and waits for it."""
        self.page.click(f"nav a:text-is('{view}')")
        self.page.wait_for_selector(f"nav a[aria-current=page]:text-is('{view}')")

    def ask(self) -> None:
        """Asks, and waits for the answer."""
        self.page.click(".strip button.primary")
        self.page.wait_for_selector(".strip .said, main .problem")
        self.page.wait_for_selector(".strip button.primary")
        assert not self.texts("main .problem"), self.texts("main .problem")

    def give(self, numbers: Any) -> None:
        """Gives the only input as nested lists."""
        self.page.click(".one-input .choice label:has-text('Numbers')")
        self.page.fill(".one-input textarea", json.dumps(numbers))

    def values(self, selector: str) -> list[float]:
        """The numbers of cells, as the page computed them."""
        return [float(cell.get_attribute("data-value") or "nan") for cell in self.page.query_selector_all(selector)]

    def program(self, language: str = "Python") -> str:
        """The question in a language, which the server writes."""
        self.go("Take along")
        self.page.click(f".choice label:has-text('{language}')")
        return self.page.locator(f".snippet pre[aria-label='{language}']:not(:empty)").inner_text()

    def texts(self, selector: str) -> list[str]:
        return [text.strip() for text in self.page.locator(selector).all_inner_texts()]

    def serious(self) -> list[str]:
        """What axe-core finds serious or critical."""
        if not AXE.exists():
            pytest.skip("axe-core is not installed: scripts/web installs it")
        self.page.evaluate(AXE.read_text("utf-8"))
        found = self.page.evaluate("axe.run()")
        return [
            f"{each['id']}: {node['html'][:200]}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]


@contextmanager
def opened(browser: Browser, url: str, **options: Any) -> Iterator[Inspector]:
    """The page at ``url``, in a window of its own; nothing went wrong in it when the block ends."""
    context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})
    inspector = Inspector(context.new_page(), url)
    try:
        yield inspector
    finally:
        context.close()
    faults = [each for each in inspector.faults if not any(part in each for part in inspector.expected)]
    assert not faults, faults


@contextmanager
def asking(browser: Browser, address: str, model: str, **parts: Any) -> Iterator[Inspector]:
    """The page with a question to which only the input is missing."""
    with opened(browser, f"http://{address}") as inspector:
        inspector.open_question(model, **parts)
        yield inspector
