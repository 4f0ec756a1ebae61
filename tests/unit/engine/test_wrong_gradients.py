"""A gradient that is wrong by a few percent is found out on every kind of network, and a right one is not doubted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.requests import Attribution, CheckMode, CheckRequest
from cutaway.results import AttributionResult, Cause, Verdict
from tests.support.checked_attributions import CHECKED, noise, verdict

FACTORS = (0.5, 0.8, 0.95, 1.0, 1.01, 1.05, 1.2, 2.0, -1.0)


class Scaled(torch.autograd.Function):
    """Its input, and the gradient times a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * ctx.factor, None


class Faulty(nn.Module):
    """Passes values on, and gradients times ``factor``."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        passed: Tensor = Scaled.apply(x, self.factor)
        return passed


class Recurrent(nn.Module):
    """A recurrent network, with a part between it and the head."""

    def __init__(self, kind: Callable[..., nn.Module], part: nn.Module) -> None:
        super().__init__()
        self.cells, self.part, self.head = kind(4, 8, batch_first=True), part, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.part(self.cells(x)[0]).mean(1))
        return out


class Attending(nn.Module):
    """A layer of a transformer, with a part behind it."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.part, self.head = part, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.part(self.layer(x)).mean(1))
        return out


def perceptron(part: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), part, nn.Linear(16, 3))


def pooled(part: nn.Module) -> nn.Module:
    first, second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
    return nn.Sequential(
        first, nn.ReLU(), part, second, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    )


def normed(part: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.GELU(), part, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(392, 3)
    )


NETWORKS: dict[str, tuple[Callable[[nn.Module], nn.Module], tuple[int, ...]]] = {
    "perceptron": (perceptron, (8,)),
    "pooled": (pooled, (3, 16, 16)),
    "normed": (normed, (3, 16, 16)),
    "lstm": (lambda part: Recurrent(nn.LSTM, part), (5, 4)),
    "gru": (lambda part: Recurrent(nn.GRU, part), (5, 4)),
    "attention": (Attending, (5, 8)),
}
METHODS: list[Attribution] = [ca.Saliency(), ca.InputXGradient(), ca.IntegratedGradients(n_steps=64)]


def explained(
    network: str, factor: float, asked: Attribution, dtype: torch.dtype, mode: CheckMode
) -> AttributionResult:
    build, shape = NETWORKS[network]
    torch.manual_seed(0)
    model = build(Faulty(factor)).to(dtype).eval()
    subject = InspectedModel(model, lambda tensors: model(*tensors.values()))
    request = ca.InspectRequest("m", attributions=(asked,), check=CheckRequest(mode))
    return inspect(subject, request, {"x": noise(2, *shape, dtype=dtype)}).attributions[0]


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("asked", METHODS, ids=lambda asked: type(asked).__name__)
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("network", list(NETWORKS))
def test_a_gradient_wrong_by_a_factor(
    network: str, factor: float, asked: Attribution, dtype: torch.dtype, mode: CheckMode
) -> None:
    """One percent is enough to be found out; the right gradient of the same function, without ``jvp``, agrees."""
    got = explained(network, factor, asked, dtype, mode)
    if factor == 1.0:
        assert verdict(got) is Verdict.AGREES, got.checks
    else:
        assert verdict(got) is not Verdict.AGREES
        assert got.checks[0].cause is Cause.WRONG_BACKWARD, got.checks
        assert "Scaled" in got.checks[0].reason
