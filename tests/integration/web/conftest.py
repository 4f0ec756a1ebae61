"""A browser, and a server in this process with models of several kinds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser
from torch import Tensor, nn

from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec
from cutaway.gateway import serve
from cutaway.server.embedded import Served
from cutaway.server.settings import Settings
from examples.digits.digits_adapter import Digits
from tests.support.digits import WEIGHTS
from tests.support.pages import BROWSER, Inspector, opened, running_browser
from tools.page_speed import Deep

HOSTILE = ("<script>fault()</script>", "\u202eexe.png<img src=x onerror=fault()>", "long" * 25_000)
"""Labels that must stay texts."""
IMAGE = np.asarray([(index % 17) / 16 for index in range(64)], np.float32).reshape(1, 1, 8, 8)


class Named(Adapter):
    """Four features, and labels that nobody wants in a page."""

    inputs = (InputSpec("x", "float32", (-1, 4), feature_names=("a", "<b>b</b>", "c", "d")),)
    labels = HOSTILE

    def build(self) -> nn.Module:
        """A layer."""
        torch.manual_seed(0)
        return Features()


class Features(nn.Module):
    """Four numbers to three logits."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


class Letters(Adapter):
    """Counts the vowels of a text."""

    media_types = ("text/plain",)
    inputs = (InputSpec("counts", "float32", (-1, 5)),)
    labels = tuple("aeiou")

    def build(self) -> nn.Module:
        """Leaves them as they are."""
        return Counts()

    def preprocess(self, data: bytes, media_type: str) -> dict[str, Tensor]:
        """How often each vowel occurs."""
        text = data.decode()
        return {"counts": torch.tensor([[float(text.count(vowel)) for vowel in self.labels]])}


class Counts(nn.Module):
    """Returns what it takes."""

    def forward(self, counts: Tensor) -> Tensor:
        return counts * 1.0


class Deeply(Adapter):
    """Ten thousand modules, without an example."""

    def build(self) -> nn.Module:
        """All of them."""
        return Deep()


@pytest.fixture(scope="module")
def site() -> Iterator[Served]:
    models: dict[str, Adapter] = {
        "digits": Digits(weights=WEIGHTS),
        "named": Named(),
        "deep": Deeply(),
        "letters": Letters(),
    }
    with serve(models, settings=Settings(http_address="127.0.0.1:0")) as server:
        yield server


@pytest.fixture(scope="module")  # Playwright's event loop must not run beside the tests of other modules
def browser() -> Iterator[Browser]:
    if not BROWSER:
        pytest.skip("no Chromium here: apt-get install chromium")
    with running_browser() as running:
        yield running


@pytest.fixture
def inspector(browser: Browser, site: Served) -> Iterator[Inspector]:
    """The page of that server."""
    with opened(browser, f"http://{site.http_address}") as page:
        page.open()
        yield page


def asked_by_itself(inspector: Inspector) -> Inspector:
    """The page with an answer about the image: what it asks for by itself."""
    inspector.choose("digits")
    inspector.go("Ask")
    inspector.give(IMAGE.tolist())
    inspector.ask()
    return inspector


@pytest.fixture
def answered(inspector: Inspector) -> Inspector:
    """A page that a test may ask more."""
    return asked_by_itself(inspector)


@pytest.fixture(scope="module")
def shown(browser: Browser, site: Served) -> Iterator[Inspector]:
    """A page that tests only look at."""
    with opened(browser, f"http://{site.http_address}") as page:
        page.open()
        yield asked_by_itself(page)
