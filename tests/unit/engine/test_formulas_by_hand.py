"""Formulas of papers worked out by hand in float64, where Captum, or a reference that copied it, was once wrong."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import Attribution
from cutaway.contract.results import Verdict
from tests.support.checked_attributions import ask, noise, verdict

ROWS = 3


class Skip(nn.Module):
    """A softmax of two paths from the input: around layer ``a`` leads a skip, so sums at ``a`` prove nothing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(50)
        self.a, self.act, self.b, self.direct = nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3), nn.Linear(4, 3)
        self.soft = nn.Softmax(dim=1)
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        """Returns three probabilities."""
        y: Tensor = self.soft(self.b(self.act(self.a(x))) + self.direct(x))
        return y

    def rescaled(self, x: Tensor, baseline: Tensor, index: int) -> tuple[Tensor, Tensor, Tensor]:
        """Returns DeepLIFT of probability ``index``: at ``a``, at the input, and the change of the probability."""
        with torch.no_grad():
            a, a0 = self.a(x), self.a(baseline)
            logits, logits0 = (self.b(h.tanh()) + self.direct(at) for h, at in ((a, x), (a0, baseline)))
            change = (logits.softmax(1) - logits0.softmax(1))[:, index]
            multiplier = torch.zeros_like(logits)
            multiplier[:, index] = change / (logits - logits0)[:, index]
            at_a = multiplier @ self.b.weight * (a.tanh() - a0.tanh()) / (a - a0)
            at_x = at_a @ self.a.weight + multiplier @ self.direct.weight
            return at_a * (a - a0), at_x * (x - baseline), change


BASELINES = noise(2, 4, dtype=torch.float64, seed=7)
KINDS: dict[str, tuple[Attribution, Attribution]] = {
    "one baseline": (ca.LayerDeepLift(layer="a"), ca.DeepLift()),
    "a distribution": (
        ca.LayerDeepLiftShap(layer="a", baselines={"x": BASELINES.numpy()}),
        ca.DeepLiftShap(baselines={"x": BASELINES.numpy()}),
    ),
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_deeplift_passes_a_softmax_by_the_rescale_rule(kind: str) -> None:
    """Shrikumar et al. 2017, equation 10: the quotient alone, for each element, of every row by itself."""
    net, x = Skip(), noise(ROWS, 4, dtype=torch.float64)
    result = ask(net, {"x": x}, *KINDS[kind], target=ca.ClassIndex((1,)))
    baselines = torch.zeros(1, 4, dtype=torch.float64) if kind == "one baseline" else BASELINES
    expected = [net.rescaled(x, row.expand_as(x), 1) for row in baselines]
    at_a, at_x, change = (torch.stack(part).mean(0) for part in zip(*expected))
    assert torch.allclose(at_x.sum(1), change)
    for attribution, by_hand in zip(result.attributions, (at_a, at_x)):
        (values,) = attribution.values.values()
        assert torch.allclose(torch.from_numpy(values), by_hand, rtol=1e-9, atol=1e-12), attribution.method
        assert verdict(attribution) is Verdict.AGREES, attribution.checks
