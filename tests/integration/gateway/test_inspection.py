"""What both clients return shows itself with the inputs that were sent, whether it came in one message or in pieces."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cutaway as ca
from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec
from cutaway.gateway import serve

ROWS = np.array([[1.0, -2.0, 3.0], [0.5, 0.0, -1.0]], np.float32)
NAMES = ("radius", "texture", "<b>area</b>")


class Linear(Adapter):
    """Two classes from three named features, with weights that are written down."""

    inputs = (InputSpec("x", "float32", (-1, 3), feature_names=NAMES),)
    labels = ("benign", "malignant")

    def load(self, weights: Path | None) -> nn.Module:
        del weights
        module = nn.Linear(3, 2)
        module.load_state_dict({"weight": torch.tensor([[1.0, 2.0, 3.0], [-1.0, 0.5, 0.0]]), "bias": torch.zeros(2)})
        return Named(module)


class Named(nn.Module):
    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serve({"tumours": Linear()}) as server:
        yield server.address


def check_inspection(result: ca.Inspection) -> None:
    """It is a result, knows its request, and shows names, verdicts and the values that were sent."""
    assert isinstance(result, ca.InspectResult)
    np.testing.assert_array_equal(result.request.tensors["x"], ROWS)
    assert result.request.model == "tumours"
    html = result._repr_html_()
    assert "radius = 1<" in html
    assert "&lt;b&gt;area&lt;/b&gt; = 3<" in html
    assert 'class="badge agrees"' in html
    assert "benign" in repr(result)
    frame = result.to_pandas()
    np.testing.assert_allclose(frame[frame.example == 0].value, [1.0, -4.0, 9.0], rtol=1e-6)  # w * x of the benign
    assert list(frame.feature) == [*NAMES, *NAMES]
    assert list(result.to_xarray()["x.feature"].values) == list(NAMES)


ASKED: dict[str, Any] = {"attributions": [ca.InputXGradient()], "target": 0}


@pytest.mark.parametrize("stream", [None, False, True])
def test_blocking_client_returns_an_inspection(address: str, stream: bool | None) -> None:
    with ca.Client(address) as client:
        check_inspection(client.inspect("tumours", {"x": ROWS}, stream=stream, **ASKED))
        with client.inspect_stream("tumours", {"x": ROWS}, **ASKED) as arriving:
            check_inspection(arriving.result())


def test_asynchronous_client_returns_an_inspection(address: str) -> None:
    async def ask() -> None:
        async with ca.AsyncClient(address) as client:
            check_inspection(await client.inspect("tumours", {"x": ROWS}, **ASKED))
            async with client.inspect_stream("tumours", {"x": ROWS}, **ASKED) as arriving:
                check_inspection(await arriving.result())

    asyncio.run(ask())


def test_labels_of_the_model_name_all_classes(address: str) -> None:
    """A reply of a model with few classes has them; others come from the model's description."""
    with ca.Client(address) as client:
        result = client.inspect("tumours", ROWS[:1])
        detail = client.get_model("tumours")
    assert list(result.to_pandas("predictions").feature) == ["benign", "malignant"]
    assert list(replace(result, labels={}).to_pandas("predictions").feature) == ["benign", ""]
    named = replace(result, labels={}).with_labels(detail.labels)
    assert list(named.to_pandas("predictions").feature) == ["benign", "malignant"]
    assert re.search(r'title="malignant">malignant</span>', named._repr_html_())
    assert repr(detail).startswith("ModelDetail: tumours 1.0 · 2 modules · 8 parameters")
    assert result.request is named.request
