"""A value that depends on who else is in the batch, or on how many, is no row's own: told, or computed row by row."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import cutaway as ca
from cutaway.contract.errors import InvalidArgument, Reason
from cutaway.contract.requests import Attribution, CheckMode, CheckRequest, ExplainIf
from cutaway.contract.results import AttributionResult, Cause, Verdict
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from tests.support.checked_attributions import CHECKED, ask, noise, verdict
from tests.support.reply_equality import differences


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


# Models that fail on batches of another size.


class Sized(nn.Module):
    """A classifier of sequences; ``fixed``: of the number of rows that it was built with, or of sorted lengths."""

    def __init__(self, fixed: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.act, self.head = nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)
        self.rnn, self.fixed = nn.GRU(5, 5, batch_first=True), fixed

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Returns three scores of each sequence."""
        hidden = self.act(self.body(x))
        if self.fixed == "rows":
            hidden = hidden.reshape(3, 6, 5)
        packed = pack_padded_sequence(hidden, lengths, batch_first=True, enforce_sorted=self.fixed == "order")
        outputs = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=6)[0]
        scores: Tensor = self.head(outputs.sum(1))
        return scores


SEQUENCES = {"x": noise(3, 6, 4, dtype=torch.float64), "lengths": torch.tensor([6, 4, 1])}
NEURON = ca.Neuron("act", (0, 1))
DRAWN = {"x": noise(5, 6, 4, dtype=torch.float64, seed=2).numpy()}
ANY_SIZE: list[Attribution] = [
    ca.IntegratedGradients(inputs=("x",), n_steps=9),
    ca.IntegratedGradients(inputs=("x",), n_steps=9, noise=ca.NoiseTunnel(n_samples=2)),
    ca.IntegratedGradients(inputs=("x",), n_steps=4, metrics=(ca.SensitivityMax(n_samples=2),)),
    ca.Saliency(inputs=("x",), metrics=(ca.Infidelity(n_samples=4),)),
    ca.GradientShap(baselines=DRAWN, inputs=("x",), n_samples=6),
    ca.FeatureAblation(inputs=("x",)),
    ca.KernelShap(inputs=("x",), n_samples=60),
    ca.Lime(inputs=("x",), n_samples=40),
    ca.LayerIntegratedGradients(layer="act", inputs=("x",), n_steps=9),
    ca.InternalInfluence(layer="act", inputs=("x",), n_steps=9),
    ca.NeuronIntegratedGradients(neuron=NEURON, inputs=("x",), n_steps=9),
]
IN_ONE_PASS: list[Attribution] = [
    ca.LayerConductance(layer="act", inputs=("x",), n_steps=9),
    ca.LayerGradientShap(layer="act", baselines=DRAWN, inputs=("x",), n_samples=6),
    ca.NeuronGradientShap(neuron=NEURON, baselines=DRAWN, inputs=("x",), n_samples=6),
]


def of_sequences(model: nn.Module, asked: Attribution, mode: CheckMode, **more: Any) -> AttributionResult:
    """Explains one class, with a seed."""
    check, target = CheckRequest(mode), ca.ClassIndex((1,))
    return ask(model.double().eval(), SEQUENCES, asked, check=check, target=target, seed=5, **more).attributions[0]


@cache
def of_any_batch(number: int, mode: CheckMode) -> AttributionResult:
    """The same of a network that takes any batch."""
    return of_sequences(Sized(), ANY_SIZE[number], mode)


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("fixed", ["rows", "order"])
@pytest.mark.parametrize("asked", ANY_SIZE, ids=lambda asked: type(asked).__name__)
def test_a_network_of_one_batch_size_is_explained_in_batches_of_that_size(
    asked: Attribution, fixed: str, mode: CheckMode
) -> None:
    """The values, metrics and verdicts are those of the same network that takes any batch."""
    ours, free = of_sequences(Sized(fixed), asked, mode), of_any_batch(ANY_SIZE.index(asked), mode)
    assert not [*differences(ours, free, 1e-6)]
    assert verdict(ours) is Verdict.AGREES or isinstance(asked, ca.Lime)  # whose penalty leaves nothing of some rows


@pytest.mark.parametrize("asked", IN_ONE_PASS, ids=lambda asked: type(asked).__name__)
def test_what_captum_runs_in_one_pass_is_refused(asked: Attribution) -> None:
    """The error names the sizes and a method that needs no larger batch."""
    with pytest.raises(InvalidArgument, match=r"and the model fails on other batches than of 3: ask") as refusal:
        of_sequences(Sized("rows"), asked, CheckMode.SAME_PASS)
    assert refusal.value.reason == Reason.METHOD_INAPPLICABLE


@pytest.mark.parametrize("asked", IN_ONE_PASS[1:], ids=lambda asked: type(asked).__name__)
def test_a_check_that_needs_the_rows_in_their_order_is_made(asked: Attribution) -> None:
    """Captum repeats each row, so that lengths stay sorted; the check's own passes repeat the batch."""
    ours, free = (of_sequences(Sized(each), asked, CheckMode.SAME_PASS) for each in ("order", ""))
    assert not [*differences(ours, free, 1e-6)]
    assert verdict(ours) is Verdict.AGREES


def test_rows_that_qualify_are_explained_beside_the_others() -> None:
    """A condition leaves rows out, and the network needs them: the others are zeros, as always."""
    answers = []
    for fixed in ("rows", ""):
        model = Sized(fixed).double().eval()
        likely = float(model(**SEQUENCES).softmax(1).amax(1).median())
        attributions = ca.IntegratedGradients(inputs=("x",)), ca.LayerIntegratedGradients(layer="act")
        asked = ca.InspectRequest(
            "m",
            attributions=attributions,
            target=ca.ClassIndex((1,)),
            explain_if=ExplainIf(probability_at_least=likely),
        )
        subject = InspectedModel(model, partial(_called, model), labels=("a", "b", "c"))
        answers.append(inspect(subject, asked, SEQUENCES))
    explained = answers[1].explained_rows
    assert explained is not None
    assert explained.tolist().count(False) == 1
    for ours, free in zip(answers[0].attributions, answers[1].attributions):
        assert not [*differences(ours.values, free.values, 1e-6)]
        assert not next(iter(ours.values.values()))[~explained].any()


def _called(model: nn.Module, tensors: dict[str, Tensor]) -> Any:
    return model(**tensors)


class Picky(nn.Module):
    """A network that refuses rows of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Returns three scores."""
        if not x.detach().any():
            raise ValueError("no row has a value")
        scores: Tensor = self.body(x)
        return scores


def test_a_model_that_fails_at_the_baseline_is_to_blame_itself() -> None:
    """A batch of the same size fails as well: the error is the model's, and tells its first cause."""
    asked = ca.LayerIntegratedGradients(layer="body")
    with pytest.raises(InvalidArgument, match="no row has a value") as failed:
        ask(Picky(), {"x": noise(1, 4)}, asked, target=ca.ClassIndex((1,)))
    assert failed.value.reason == Reason.MODEL_FAILED
