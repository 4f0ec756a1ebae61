"""No method leaves a graph behind: what one request built is gone when it is answered."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from torch import nn

import cutaway as ca
from cutaway.contract.requests import Expectation
from cutaway.contract.wire.methods import METHODS
from tests.support.checked_attributions import ask, noise, wired
from tests.support.state_snapshot import nodes

NET = wired(
    lambda m, x: m.b(m.flat(m.r(m.a(x)))),
    a=lambda: nn.Conv2d(1, 2, 3, padding=1), r=nn.ReLU, flat=nn.Flatten, b=lambda: nn.Linear(32, 3),
)  # fmt: skip
IMAGES = {"x": noise(3, 1, 4, 4)}
PARAMETERS: dict[str, Any] = {
    "layer": "a",
    "neuron": ca.Neuron("a", (1, 2, 2)),
    "n_steps": 4,
    "n_samples": 3,
    "windows": {"x": (1, 2, 2)},
    "masks": {"x": np.arange(16).reshape(1, 1, 4, 4) % 2},
    "rules": {"flat": ca.Epsilon()},
}


def asked(kind: type[ca.Attribution], **more: Any) -> ca.Attribution:
    """``kind``, with parameters that fit the network."""
    fields = kind.__dataclass_fields__
    given = {name: value for name, value in PARAMETERS.items() if name in fields}
    if issubclass(kind, Expectation):
        given["baselines"] = {"x": np.zeros((2, 1, 4, 4), np.float32)}
    return kind(**given, **more)


@pytest.fixture(scope="module", autouse=True)
def what_was_there() -> None:
    """Is left alone by Python's collector, what earlier tests left included: searching all of it for new graphs takes
    half a second each time."""
    gc.collect()
    gc.freeze()


@pytest.mark.parametrize("kind", list(METHODS.kinds.values()), ids=lambda kind: kind.__name__)
def test_no_graph_outlives_its_request(kind: type[ca.Attribution]) -> None:
    """Whatever the method, further requests leave no more than one did: a service runs for months."""
    model = NET()
    ask(model, IMAGES, asked(kind))
    before = nodes()
    for _ in range(2):
        ask(model, IMAGES, asked(kind))
    assert nodes() <= before
