"""A value that depends on who else is in the batch, or on how many, is no row's own: told, or computed row by row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from cutaway.contract.errors import InvalidArgument, Reason
from cutaway.contract.requests import Attribution
from cutaway.contract.results import Cause, Verdict
from tests.support.checked_attributions import ask, noise, verdict


class Scores(nn.Module):
    """A small classifier, whose scores ``coupling`` changes."""

    def __init__(self, coupling: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.coupling = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), coupling

    def forward(self, x: Tensor) -> Tensor:
        """Returns three scores."""
        return self.coupling(self.body(x))


def of_one_other(row: int, other: int) -> Callable[[Tensor], Tensor]:
    """Returns a coupling that adds a part of row ``other`` to ``row``, where both are there."""

    def coupled(scores: Tensor) -> Tensor:
        part = torch.zeros_like(scores)
        if len(scores) > max(row, other):
            part[row] = scores[other] / 2
        return scores + part

    return coupled


@pytest.mark.parametrize(("row", "other"), [(2, 1), (1, 2), (0, 4), (3, 0), (2, 3)])
def test_a_row_that_depends_on_any_other_is_found(row: int, other: int) -> None:
    """Whichever two rows they are, not only the first and the last."""
    result = ask(Scores(of_one_other(row, other)), {"x": noise(5, 4)}, ca.Saliency(), target=ca.ClassIndex((1,)))
    assert verdict(result.attributions[0]) is not Verdict.AGREES
    assert result.attributions[0].checks[0].cause is Cause.ROWS_COUPLED


def test_no_row_of_five_is_suspected_of_another() -> None:
    """Rows that are each their own: AGREES."""
    result = ask(Scores(lambda scores: scores), {"x": noise(5, 4)}, ca.Saliency(), target=ca.ClassIndex((1,)))
    assert verdict(result.attributions[0]) is Verdict.AGREES


SAMPLES = {"x": np.zeros((3, 4), np.float32)}
ENLARGING: list[Attribution] = [
    ca.GradientShap(baselines=SAMPLES, n_samples=10),
    ca.LayerGradientShap(layer="body.0", baselines=SAMPLES, n_samples=10),
    ca.IntegratedGradients(n_steps=20),
    ca.DeepLiftShap(baselines={"x": np.eye(5, 4, dtype=np.float32)}),
]


@pytest.mark.parametrize("asked", ENLARGING, ids=lambda asked: type(asked).__name__)
def test_a_network_that_changes_in_the_batches_of_captum_is_found(asked: Attribution) -> None:
    """Halved from 17 rows on: two rows, or four, show nothing; the batch that Captum makes does."""
    net = Scores(lambda scores: scores / 2 if len(scores) >= 17 else scores)
    result = ask(net, {"x": noise(2, 4)}, asked, target=ca.ClassIndex((1,)))
    assert verdict(result.attributions[0]) is not Verdict.AGREES
    assert result.attributions[0].checks[0].cause is Cause.ROWS_COUPLED


class Loss(nn.Module):
    """The mean loss of a batch, one number, as transformers return it for ``labels``."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """Returns the mean cross entropy, without axes."""
        return F.cross_entropy(self.body(x), labels)


COMPLETE: list[Attribution] = [
    ca.IntegratedGradients(n_steps=64),
    ca.LayerIntegratedGradients(layer="body.0", n_steps=64),
    ca.ShapleyValueSampling(),
    ca.KernelShap(),
    ca.LayerConductance(layer="body.0", n_steps=64),
    ca.DeepLift(),
    ca.LayerDeepLift(layer="body.0"),
    ca.GradientShap(baselines=SAMPLES, n_samples=10),
    ca.LayerGradientShap(layer="body.0", baselines=SAMPLES, n_samples=10),
]
REFUSED = ("LayerConductance", "DeepLift", "LayerDeepLift", "GradientShap", "LayerGradientShap")


@pytest.mark.parametrize("asked", COMPLETE, ids=lambda asked: type(asked).__name__)
def test_a_mean_over_the_batch_is_explained_in_batches_of_its_size(asked: Attribution) -> None:
    """The values sum to the change of the loss, and are not divided by the steps; else the method is refused."""
    net, x, labels = Loss(), noise(1, 4), torch.tensor([1])
    if type(asked).__name__ in REFUSED:
        with pytest.raises(InvalidArgument) as refusal:
            ask(net, {"x": x, "labels": labels}, asked)
        assert refusal.value.reason == Reason.METHOD_INAPPLICABLE
        return
    result = ask(net, {"x": x, "labels": labels}, asked).attributions[0]
    change = float(net(x, labels) - net(torch.zeros_like(x), labels))
    assert float(next(iter(result.values.values())).sum()) == pytest.approx(change, rel=1e-3)
    assert verdict(result) is Verdict.AGREES
