"""Networks of several families with one part that passes values on, and gradients times a factor."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor, nn

from cutaway.contract.requests import Attribution, CheckMode, CheckRequest, InspectRequest
from cutaway.contract.results import AttributionResult
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from tests.support.checked_attributions import noise
from tests.support.wrong_parts import scaled


class Faulty(nn.Module):
    """Passes values on, and gradients times ``factor``."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        passed: Tensor = scaled(self.factor)(x)
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


@lru_cache(maxsize=256)
def _trained_weights(network: str, seed: int) -> dict[str, Tensor]:
    """Returns the weights of a network that has learned three classes, each around a point of its own."""
    build, shape = NETWORKS[network]
    torch.manual_seed(seed)
    model, centres = build(nn.Identity()), torch.randn(3, *shape)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        labels = torch.randint(3, (32,))
        loss = nn.functional.cross_entropy(model(centres[labels] + torch.randn(32, *shape)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.state_dict()


def explained(
    network: str,
    factor: float,
    asked: Attribution,
    dtype: torch.dtype,
    mode: CheckMode,
    seed: int = 0,
    *,
    trained: bool = False,
) -> AttributionResult:
    """Explains a new network of the family ``network`` whose gradient is wrong by ``factor`` at one place."""
    build, shape = NETWORKS[network]
    torch.manual_seed(seed)
    model = build(Faulty(factor))
    if trained:
        model.load_state_dict(_trained_weights(network, seed))
    model = model.to(dtype).eval()
    subject = InspectedModel(model, lambda tensors: model(*tensors.values()))
    request = InspectRequest("m", attributions=(asked,), check=CheckRequest(mode))
    return inspect(subject, request, {"x": noise(2, *shape, dtype=dtype, seed=seed + 1)}).attributions[0]
