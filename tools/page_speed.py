"""How fast the inspector's page is, in Chromium, as ratios of things that run in turn: ``python -m tools.page_speed``
(`make page-speed`). Prints four figures with their bounds; exit status 1 if one is not kept.

- From a slider to the picture / the same call alone, from the same page with the slider moved, its reply not read; in
  both, the frame in which the slider moves, and the next one with the picture.
- From asking for the page to its first picture / the same for an empty page of the same server.
- Frames that come late while a tree of ten thousand modules scrolls.
- Memory of the page after many questions / after the first fifty.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from statistics import median

from playwright.sync_api import Page, sync_playwright
from torch import Tensor, nn

from cutaway.adapters import Adapter
from cutaway.gateway import serve
from cutaway.server.settings import Settings
from examples.digits.digits_adapter import Digits
from tools.inspector_pictures import BROWSERS, WEIGHTS, trained

ROUNDS = 40
QUESTIONS = 500
FRAME_MS = 1000 / 60


class Deep(nn.Module):
    """Ten thousand modules."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(*(nn.Identity() for _ in range(9))) for _ in range(1000))
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        returned: Tensor = self.head(x)
        return returned


@dataclass(frozen=True)
class Figure:
    """A figure, and what it may be at most."""

    what: str
    found: float
    bound: float
    aside: str

    def __str__(self) -> str:
        kept = "kept" if self.found <= self.bound else "FALLS SHORT"
        return f"{self.what}: {self.found:.2f} (at most {self.bound:g}): {kept}. {self.aside}"


def main(questions: int) -> int:
    browser = next(filter(None, map(shutil.which, BROWSERS)))
    models: dict[str, nn.Module | Adapter] = {"digits": Digits(weights=trained(WEIGHTS)), "deep": Deep()}
    settings = Settings(http_address="127.0.0.1:0")
    with serve(models, settings=settings) as server, sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--enable-precise-memory-info", "--js-flags=--expose-gc"]
        chromium = playwright.chromium.launch(executable_path=browser, args=options)
        page = chromium.new_page(viewport={"width": 1400, "height": 900})
        url = f"http://{server.http_address}/"
        figures = [_first_picture(page, url), _slider(page), _scroll(page), _memory(page, questions)]
        chromium.close()
    print(*figures, sep="\n")
    return int(any(figure.found > figure.bound for figure in figures))


def _first_picture(page: Page, url: str) -> Figure:
    """The tree of the first model; the empty page is the list of models, which the browser shows as text."""
    ours: list[float] = []
    empty: list[float] = []
    for _ in range(ROUNDS // 4):
        for times, address, there in ((empty, f"{url}v1/models", "pre"), (ours, url, ".place")):
            page.goto("about:blank")
            begin = page.evaluate("performance.timeOrigin + performance.now()")
            page.goto(address, wait_until="commit")
            page.wait_for_selector(there)
            times.append(page.evaluate("performance.timeOrigin + performance.now()") - begin)
    aside = f"{median(ours):.0f} ms and {median(empty):.0f} ms"
    return Figure("first picture, in seconds", median(ours) / 1000, 1, f"With an empty page in turn: {aside}.")


def _choose(page: Page, model: str) -> None:
    page.select_option(".chooser select", f"models/{model}/versions/1.0")
    page.wait_for_selector("main[aria-busy=false]")


_LIVE = """async (rounds) => {
    const call = window.fetch, last = {};
    window.fetch = (...request) => ((last.request = request), call(...request));
    const slider = document.querySelector(".slider input");
    const shown = document.querySelector("section:has(#comes)");
    const changed = () => new Promise((done) => {
        const watch = new MutationObserver(() => {
            watch.disconnect();
            requestAnimationFrame(() => done());
        });
        watch.observe(shown, { subtree: true, characterData: true, childList: true });
    });
    const pairs = [];
    for (let round = 0; round < rounds; round++) {
        const begin = performance.now(), done = changed();
        slider.value = String(0.1 + (round % 20) / 10);
        slider.dispatchEvent(new Event("input", { bubbles: true }));
        await done;
        const moved = performance.now() - begin;
        const [url, options] = last.request;
        await new Promise((rest) => setTimeout(rest, 500));
        const again = performance.now();
        slider.value = String(0.15 + (round % 20) / 10); // its own frame: the next is a sixtieth later
        await (await call(url, { ...options, signal: undefined })).arrayBuffer();
        await new Promise(requestAnimationFrame);
        pairs.push([moved, performance.now() - again]);
    }
    window.fetch = call;
    return pairs;
}"""


def _slider(page: Page) -> Figure:
    _choose(page, "digits")
    page.click(".strip button.primary")
    page.wait_for_selector(".strip .said")
    page.click("nav a:text-is('Edits')")
    page.wait_for_selector(".slider input")
    page.locator(".slider input").fill("2")
    page.wait_for_selector("section:has(#downstream) .named-bars")
    pairs = page.evaluate(_LIVE, ROUNDS)
    moved, alone = (median(each) for each in zip(*pairs))
    ratio = median(one / other for one, other in pairs)
    return Figure(
        "slider to picture / the call alone", ratio, 1.5, f"{moved:.1f} ms and {alone:.1f} ms, a frame in both."
    )


_SCROLL = """async () => {
    const tree = document.querySelector(".tree"), times = [];
    let last = await new Promise(requestAnimationFrame);
    for (let step = 0; step < 300; step++) {
        tree.scrollTop += 700;
        const now = await new Promise(requestAnimationFrame);
        times.push(now - last);
        last = now;
    }
    return times;
}"""


def _scroll(page: Page) -> Figure:
    page.click("nav a:text-is('Model')")
    _choose(page, "deep")
    page.click("button:text-is('Unfold all')")
    times = page.evaluate(_SCROLL)
    late = sum(each > 1.5 * FRAME_MS for each in times) / len(times)
    return Figure("share of late frames, ten thousand modules", late, 0.05, f"A frame takes {median(times):.1f} ms.")


def _memory(page: Page, questions: int) -> Figure:
    _choose(page, "digits")
    sizes = []
    for question in range(questions):
        page.click(".strip button.primary")
        page.wait_for_selector(".strip .said")
        page.wait_for_selector(".strip button.primary")
        if question + 1 in (50, questions):
            sizes.append(page.evaluate("(gc(), performance.memory.usedJSHeapSize)") / 2**20)
    aside = f"{sizes[0]:.1f} MiB, then {sizes[-1]:.1f} MiB after {questions}."
    return Figure("memory after all questions / after fifty", sizes[-1] / sizes[0], 1.2, aside)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else QUESTIONS))
