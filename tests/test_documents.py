"""The documentation says what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutaway.engine.methods import TABLE
from cutaway.requests import Attribution
from cutaway.wire.methods import METHODS
from tests.documents import PAGES, source, tables, written


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_have_the_tables_of_the_code(path: Path) -> None:
    """Every method with its reference, tolerances and source, every cause, every reason: `make docs` writes them."""
    page = path.read_text("utf-8")
    assert all(tables()[name] in page for name in PAGES[path]), "run: make docs"
    assert written(page) == page


def test_every_method_that_can_be_asked_for_has_a_row() -> None:
    """What the contract names, the engine answers."""
    assert set(TABLE) == set(METHODS.codecs)


@pytest.mark.parametrize("kind", list(TABLE), ids=lambda kind: kind.__name__)
def test_every_method_cites_where_it_comes_from(kind: type[Attribution]) -> None:
    """But for those that have no paper: a layer's value, and the gradient of a neuron or at it."""
    bare = {"LayerActivation", "LayerGradientXActivation", "NeuronGradient", "LayerFeatureAblation",
            "NeuronFeatureAblation"}  # fmt: skip
    assert source(kind) or kind.__name__ in bare
