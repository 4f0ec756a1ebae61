"""Writes docs/pictures/inspector-*.png: every view of the inspector, light and dark, with models of the examples:
``python -m tools.inspector_pictures`` (`make inspector-pictures`). Chromium draws them."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from playwright.sync_api import Page, ViewportSize, sync_playwright

from cutaway.adapters import Adapter
from cutaway.gateway import serve
from cutaway.jobs import Job, run
from cutaway.server.settings import Settings
from examples.digits.data import held_out
from examples.digits.digits_adapter import Digits
from examples.digits.train import train_and_save
from examples.sentences.package import model_directory
from examples.sentences.sentences_adapter import Sentences

PICTURES = Path("docs/pictures")
WEIGHTS = Path("build/pictures/digits.safetensors")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
SIZE = ViewportSize(width=1280, height=840)
VIEWS = ("Model", "Ask", "Activations", "Explanations", "Edits", "Gradients", "Cost", "Take along")


def main() -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)))
    models: dict[str, Adapter] = {"digits": Digits(weights=trained(WEIGHTS)), "sentences": _sentences()}
    settings = Settings(http_address="127.0.0.1:0")
    with serve(models, settings=settings) as server, sync_playwright() as playwright, TemporaryDirectory() as directory:
        folder = _explained(server.address, Path(directory) / "explained")
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        for theme in ("light", "dark"):
            page = chromium.new_page(viewport=SIZE, color_scheme=theme)
            page.goto(f"http://{server.http_address}/")
            _digits(page, theme)
            _sentence(page, theme)
            _job(page, theme, folder)
        chromium.close()


def trained(weights: Path) -> Path:
    """The weights of the digits; trained, if they are not there."""
    if not weights.exists():
        weights.parent.mkdir(parents=True, exist_ok=True)
        train_and_save(weights)
    return weights


def _sentences() -> Adapter:
    return Sentences(directory=model_directory(), weights=model_directory() / "model.safetensors")


def _digits(page: Page, theme: str) -> None:
    _choose(page, "digits")
    _ask(page)
    for view in VIEWS:
        page.click(f"nav a:text-is('{view}')")
        if view == "Edits":
            page.fill("label:has-text('Which channel') input", "0")
            page.select_option("label:has-text('How') select", "zero")
            page.wait_for_selector("section:has(#downstream) .named-bars")
        if view == "Gradients":
            page.click("button:text-is('Ask for the gradient everywhere')")
            page.wait_for_selector("section:has(#by-layer) .named-bars")
        _draw(page, view, theme)
    page.click("nav a:text-is('Explanations')")
    page.click("button:text-is('Beside its reference')")
    page.wait_for_selector(".sides")
    page.wait_for_selector(".strip button.primary")
    _draw(page, "reference", theme)
    page.click("nav a:text-is('Activations')")
    page.click("button:text-is('What happens without each channel?')")
    page.wait_for_selector(".measured")
    page.wait_for_selector(".strip button.primary")
    page.locator(".measured").scroll_into_view_if_needed()
    _draw(page, "measured", theme)


def _sentence(page: Page, theme: str) -> None:
    _choose(page, "sentences")
    page.click("nav a:text-is('Ask')")
    page.fill("textarea", "The doctor reads the drawing of a machine.")
    _ask(page)
    page.click("nav a:text-is('Explanations')")
    page.wait_for_selector(".tokens")
    _draw(page, "tokens", theme)


def _explained(address: str, folder: Path) -> Path:
    """Rows that are computed as a job computes them."""
    digits = held_out()
    np.savez(folder.with_suffix(".npz"), image=digits.images[:200], label=digits.labels[:200])
    job = Job(
        model={"address": address, "name": "digits"},
        data=str(folder.with_suffix(".npz")),
        inputs={"image": {"column": "image"}},
        label="label",
        request={"attributions": ["integrated_gradients", {"method": "layer_grad_cam", "layer": "conv2"}, "deep_lift"]},
        output={"folder": folder, "keep_inputs": True},
        engine={"kind": "service"},
    )
    run(job)
    return folder


def _job(page: Page, theme: str, folder: Path) -> None:
    page.click("nav a:text-is('Jobs')")
    page.set_input_files(".jobs input[type=file]", folder)
    page.select_option("label:has-text('Order') select", "least probable first")
    page.click(".rows tbody tr:nth-child(2) button")
    page.click("button:text-is('Ask the live model')")
    page.wait_for_selector("button:text-is('Look inside')")
    _draw(page, "Jobs", theme)


def _choose(page: Page, model: str) -> None:
    page.wait_for_selector("main[aria-busy=false]")
    page.select_option(".chooser select", f"models/{model}/versions/1.0")
    page.wait_for_selector("main[aria-busy=false]")


def _ask(page: Page) -> None:
    page.click(".strip button.primary")
    page.wait_for_selector(".strip .said")


def _draw(page: Page, name: str, theme: str) -> None:
    page.wait_for_load_state("networkidle")
    page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    page.screenshot(path=PICTURES / f"inspector-{name.lower().replace(' ', '-')}-{theme}.png")


if __name__ == "__main__":
    main()
