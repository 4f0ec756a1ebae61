"""Models and helpers for tests of checked attributions: requests sent straight to the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from cutaway.contract.requests import Attribution, CheckMode
from cutaway.contract.results import AttributionResult, InspectResult, Verdict
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel

CHECKED = (CheckMode.SAME_PASS, CheckMode.INDEPENDENT)

BATCHES = (
    (1, torch.float64),
    (4, torch.float32),
    pytest.param((1, torch.float32), marks=pytest.mark.slow),
    pytest.param((4, torch.float64), marks=pytest.mark.slow),
)
"""Numbers of rows, and data types; every one of either is in the two that are quick."""


def noise(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    """Seeded numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def ask(model: nn.Module, inputs: Mapping[str, Tensor], *asked: Attribution, **more: Any) -> InspectResult:
    """One request, by the engine itself; afterwards no hook is left."""
    try:
        return inspect(_subject(model), ca.InspectRequest("m", attributions=asked, **more), dict(inputs))
    finally:
        tables = [vars(module) for module in model.modules()]
        assert not any(table[name] for table in tables for name in table if name.endswith("_hooks"))


@lru_cache(maxsize=1)
def _subject(model: nn.Module) -> InspectedModel:
    """The model as a server keeps it between requests: what the first check found out about it, the next ones know."""
    return InspectedModel(model, lambda tensors: model(**tensors))


def verdict(result: AttributionResult) -> Verdict:
    """What the comparison with the raw hooks found; the first check."""
    return result.checks[0].verdict


Build = Callable[[], nn.Module]


class Wired(nn.Module):
    """Parts with names, and a function that wires them."""

    def __init__(self, wiring: Callable[..., Any], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.wiring = wiring
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.wiring(self, *args, **kwargs)


def wired(wiring: Callable[..., Any], **parts: Callable[[], Any]) -> Build:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return Wired(wiring, **{name: make() for name, make in parts.items()}).eval()

    return build


def to(build: Build, dtype: torch.dtype) -> Build:
    return lambda: build().to(dtype)


class LogitsOf(nn.Module):
    """A transformers model that returns its logits, so that Captum can call it by hand."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, **inputs: Tensor) -> Tensor:
        logits: Tensor = self.network(**inputs).logits
        return logits


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    config.num_labels = 3
    return LogitsOf(BertForSequenceClassification(config)).eval()


MLP = wired(lambda m, x: m.head(torch.relu(m.a(x))), a=lambda: nn.Linear(8, 16), head=lambda: nn.Linear(16, 3))


CNN = wired(
    lambda m, x: m.head(torch.relu(m.norm(m.conv(x))).mean((2, 3))),
    conv=lambda: nn.Conv2d(3, 8, 3), norm=lambda: nn.BatchNorm2d(8), head=lambda: nn.Linear(8, 3),
)  # fmt: skip


IDS = {
    "input_ids": torch.randint(0, 50, (2, 6), generator=torch.Generator().manual_seed(1)),
    "attention_mask": torch.tensor([[1] * 6, [1, 1, 1, 1, 0, 0]]),
}


def dropping(m: Any, x: Tensor) -> Tensor:
    return m.head(F.dropout(torch.relu(m.a(x)), 0.5, training=True))


RANDOM = wired(dropping, a=lambda: nn.Linear(8, 64), head=lambda: nn.Linear(64, 3))
