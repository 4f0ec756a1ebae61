"""Answers in parts: the prediction first, then each explanation, with a bar; and Stop leaves what is there."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from playwright.sync_api import Browser

import cutaway as ca
from cutaway.engine.execution import collect
from cutaway.gateway import serve
from cutaway.server.embedded import Served
from cutaway.server.settings import Settings
from tests.support.gated_model import DOOR, Doored
from tests.support.pages import Inspector, asking

X = np.linspace(-1, 1, 4, dtype=np.float32).reshape(1, 4)
METHODS = [{"integratedGradients": {"path": {"nSteps": 4}}}, {"saliency": {}}]


@pytest.fixture(scope="module")
def doored() -> Iterator[Served]:
    with serve({"doored": Doored()}, settings=Settings(http_address="127.0.0.1:0")) as server:
        with ca.Client(server.address) as client:
            client.inspect("doored", {"x": X}, attributions=["integrated_gradients", "saliency"])
        yield server
        DOOR.let_more_through()


@pytest.fixture
def inspector(browser: Browser, doored: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Inspector]:
    """The page, with a question whose explanations wait behind the prediction."""
    monkeypatch.setattr(collect, "FIRST_S", 0.0)
    monkeypatch.setattr(collect, "EVERY_S", 0.0)
    with asking(browser, doored.http_address or "", "doored", attributions=METHODS) as page:
        page.page.fill(".one-input textarea", str(X.tolist()))
        DOOR.let_through(1)
        yield page
        DOOR.let_more_through()


def test_the_prediction_is_there_before_the_explanations(inspector: Inspector) -> None:
    """They follow one by one, with a bar and the time that is left."""
    page = inspector.page
    page.click(".strip button.primary")
    page.wait_for_selector(".strip .said")
    assert page.is_visible(".strip button:text-is('Stop')")
    inspector.go("Explanations")
    page.wait_for_selector("main [role=status]:text-is('The next one appears here when it is done.')")
    assert inspector.texts("article.explanation h2") == []
    for width in (390, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    DOOR.let_more_through(2)
    page.wait_for_selector(".strip progress.told")
    page.wait_for_selector(".strip :text('s left')")
    assert inspector.serious() == []
    DOOR.let_more_through()
    page.wait_for_selector(".strip button.primary")
    assert inspector.texts("article.explanation h2") == ["IntegratedGradients", "Saliency"]
    assert not page.is_visible("main [role=status]")
    assert not page.is_visible(".strip progress")


def test_stop_leaves_what_is_there(inspector: Inspector) -> None:
    """And says that it is not all. The next question gets the model."""
    page = inspector.page
    page.click(".strip button.primary")
    page.wait_for_selector(".strip .said")
    page.click(".strip button:text-is('Stop')")
    page.wait_for_selector(".strip .unsure:text-is('not all explanations')")
    assert page.is_visible(".strip .said")
    DOOR.let_more_through()
    inspector.ask()
    assert not page.is_visible(".strip .unsure")
