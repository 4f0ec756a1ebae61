"""Attributions of categories: an embedding whose ids are [batch], [batch, 1] or [batch, columns], in every view."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text
from rich.console import Console

import cutaway as ca
from cutaway.contract.requests import InspectRequest
from cutaway.contract.results import Provenance
from cutaway.server.http.json_messages import as_document
from cutaway.views.inspection import Inspection
from cutaway.views.tables import result_tables
from tests.support.made_results import numbers

SHAPES = ((2,), (2, 1), (2, 3), (2, 2, 2))


def explained(*shape: int) -> Inspection:
    """What a model answers whose embedding ``job`` takes ids of this shape, against id 0."""
    values, ids = numbers(*shape, 4), 1 + np.arange(np.prod(shape)).reshape(shape)
    tokens = ca.TokenAttribution("", ids, values.sum(axis=-1), baseline_ids=np.zeros_like(ids))
    attribution = ca.AttributionResult("LayerIntegratedGradients", "job", {"job": values}, tokens=tokens)
    result = ca.InspectResult(
        {"output": numbers(2, 3)}, attributions=(attribution,), provenance=Provenance(model="credit")
    )
    return Inspection.of(result, InspectRequest("credit", {"categories": ids}))


@pytest.mark.parametrize("shape", SHAPES)
def test_every_view_shows_categories(shape: tuple[int, ...], tmp_path: Path) -> None:
    """Each takes ids of any shape; what is [batch, columns] has a number for each column."""
    result = explained(*shape)
    columns = int(np.prod(shape[1:]))
    tokens = result.attributions[0].tokens
    assert tokens is not None
    assert tokens.ids.shape == tokens.values.shape == (2, columns)
    assert "against token 0" in str(result)
    assert "against token 0" in repr(result.attributions[0])
    last = f"{2 * columns}"
    words = {text.get_text() for text in result.plot(row=1).findobj(Text)}
    assert (f"job = {last}" if columns == 1 else last) in words
    assert last in result._repr_html_()
    assert len(result.to_pandas()) == 2 * columns
    assert result.to_xarray()["token_ids:layer_integrated_gradients"].shape == (2, columns)
    result.save(tmp_path / "x.cutaway")
    assert repr(Inspection.load(tmp_path / "x.cutaway")) == repr(result)
    told = as_document(result, explains=True)["explanations"][1][0]["tokens"]
    assert told["ids"] == tokens.ids[1].tolist()
    assert len(told["values"]) == columns
    console = Console(file=(file := StringIO()), width=100)
    console.print(*result_tables(result))
    assert last in file.getvalue()


def test_a_category_is_a_bar_with_its_column() -> None:
    """A reader has the column's name, the category, its number as a bar, and what it is compared with."""
    page = explained(2)._repr_html_()
    assert '<span title="job = 1">job = 1</span><span class="track">' in page
    assert '<p class="note">against token 0</p>' in page
