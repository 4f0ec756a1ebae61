"""Explanations of those examples alone whose prediction calls for one, with steps that grow as far as they must."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import Attribution, CheckMode, CheckRequest, ExplainIf
from cutaway.contract.results import AttributionResult, Cause, Check, InspectResult, Verdict, WarningCode
from cutaway.contract.tensors import Array
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from tests.support.broken_captum import spoiled
from tests.support.checked_attributions import CHECKED, MLP, noise, wired

BATCH = {"x": noise(5, 8) * 2}
SURE = (
    ca.Saliency(),
    ca.IntegratedGradients(n_steps=8),
    ca.IntegratedGradients(n_steps=8, baselines={"x": noise(5, 8, seed=3).numpy()}),
    ca.LayerGradientXActivation(layer="a"),
    ca.LayerActivation(layer="a"),
    ca.FeatureAblation(masks={"x": np.array([[0, 0, 1, 1, 2, 2, 3, 3]])}),
    ca.FeatureAblation(masks={"x": np.arange(40).reshape(5, 8) % 3}),
    ca.Saliency(target=ca.ClassIndex((0, 1, 2, 0, 1))),
    ca.Saliency(target=ca.TopK(2)),
    ca.Saliency(target=ca.CrossEntropy((0, 1, 2, 0, 1))),
    ca.FeaturePermutation(),
    ca.ShapleyValueSampling(n_samples=3),
    ca.GradientShap(baselines={"x": noise(3, 8, seed=4).numpy()}, stdev=0.1),
    ca.Lime(n_samples=30),
    ca.Saliency(noise=ca.NoiseTunnel(n_samples=3, stdev=0.2)),
    ca.Saliency(metrics=(ca.Infidelity(), ca.SensitivityMax())),
)


def ask(
    model: nn.Module,
    inputs: dict[str, Tensor],
    *asked: Attribution,
    labels: tuple[str, ...] = ("a", "b", "c"),
    **more: Any,
) -> InspectResult:
    """One request, by the engine itself, to a model whose output is classes."""
    subject = InspectedModel(model, lambda tensors: model(**tensors), labels=labels)
    return inspect(subject, ca.InspectRequest("m", attributions=asked, **more), dict(inputs))


def arrays(result: AttributionResult) -> list[Any]:
    ends = (result.convergence_delta, result.value_at_input, result.value_at_baseline)
    return [*result.values.values(), *ends, *(metric.values for metric in result.metrics)]


TAKES_NO_ROWS = (ca.GradientShap, ca.Lime)
"""Methods whose passes have rows of their own, so that no row can be edited by its number."""

EDITED = (ca.Scale("a", factor=0.5, rows=(0, 3)),)
PAIRS = [(asked, ()) for asked in SURE] + [(asked, EDITED) for asked in SURE if not isinstance(asked, TAKES_NO_ROWS)]


def of_rows(check: Check, chosen: Array) -> Verdict:
    """The verdict on the chosen rows of a batch."""
    verdicts = {row.verdict for row, counts in zip(check.rows, chosen) if counts}
    return check.verdict if not check.rows or check.verdict in verdicts else Verdict.AGREES


@pytest.mark.parametrize(
    ("asked", "edits"), PAIRS, ids=lambda each: type(each).__name__ if isinstance(each, ca.Attribution) else len(each)
)
def test_rows_that_qualify_have_what_they_would_have_anyway(asked: Attribution, edits: tuple[ca.Edit, ...]) -> None:
    """A row's explanation is the same whether the others are explained or not; the others have zeros, and a warning
    names them. Verdicts are about the rows that were explained."""
    given: dict[str, Any] = {"edits": edits, "seed": 7}
    whole = ask(MLP(), BATCH, asked, **given)
    bound = float(np.sort([each.probability for each in whole.classes])[1:3].mean())
    some = ask(MLP(), BATCH, asked, explain_if=ExplainIf(probability_at_least=bound), **given)
    worth = np.array([each.probability >= bound for each in whole.classes])
    assert 0 < worth.sum() < 5
    for all_rows, here in zip(whole.attributions, some.attributions, strict=True):
        # What is missing of the target's change is a difference, as exact as the target's values are large.
        largest = max(float(np.abs(each).max()) for each in arrays(all_rows) if each is not None)
        for one, other in zip(arrays(all_rows), arrays(here), strict=True):
            if one is not None:
                assert np.allclose(other[worth], one[worth], rtol=1e-5, atol=1e-6 * largest)
                assert not other[~worth].any()
        assert [check.verdict for check in here.checks] == [
            check.verdict if edits else of_rows(check, worth) for check in all_rows.checks
        ]  # edits are for the batch as it is: then all rows are explained
    (warning,) = [each for each in some.warnings if each.code is WarningCode.NOT_EXPLAINED]
    assert all(f"{row} (class" in warning.message for row in np.flatnonzero(~worth))
    assert some.explained_rows is not None
    np.testing.assert_array_equal(some.explained_rows, worth)
    assert whole.explained_rows is None


def test_outcomes_stand_in_the_rows_places() -> None:
    """A wrong row among those that are explained has its outcome in its own place; rows that are left out have none."""
    for asked in (ca.Saliency(), ca.Saliency(noise=ca.NoiseTunnel(n_samples=2, stdev=0.0))):
        with spoiled(ca.Saliency, values=lambda values: torch.cat([values[:-1], -values[-1:]])):
            result = ask(MLP(), BATCH, asked, explain_if=ExplainIf(probability_at_most=0.52))
        worth = [row for row, each in enumerate(result.classes) if each.probability <= 0.52]
        (check,) = result.attributions[0].checks
        assert 1 < len(worth) < 5
        verdicts = [check.of_row(row).verdict for row in worth]
        assert verdicts == [Verdict.AGREES] * (len(worth) - 1) + [Verdict.DISAGREES]
        assert len(check.rows) == 5


def test_only_rows_that_qualify_are_run() -> None:
    """What is not explained costs nothing: no pass at all where no row qualifies, and then there are no values."""
    asked = ca.IntegratedGradients(n_steps=16)
    free = ask(MLP(), BATCH, asked, explain_if=ExplainIf(probability_at_most=0.0), check=CheckRequest(CheckMode.OFF))
    alone = ask(MLP(), BATCH)
    assert free.provenance.forwards == alone.provenance.forwards
    assert free.attributions[0].values == {}
    assert free.explained_rows is not None
    assert not free.explained_rows.any()
    assert "were not computed" in free.warnings[0].message


@pytest.mark.parametrize(
    ("condition", "chosen"),
    [
        (ExplainIf(), lambda each: True),
        (ExplainIf(probability_at_least=0.5), lambda each: each.probability >= 0.5),
        (ExplainIf(probability_at_most=0.5), lambda each: each.probability <= 0.5),
        (ExplainIf(classes=(1, 2)), lambda each: each.index in (1, 2)),
        (ExplainIf(probability_at_most=0.9, classes=(0,)), lambda each: each.index == 0 and each.probability <= 0.9),
    ],
)
def test_every_bound_that_is_set_must_hold(condition: ExplainIf, chosen: Callable[[Any], bool]) -> None:
    """Least, most and classes, alone and together; the zeros are exactly the rows that fail one."""
    result = ask(MLP(), BATCH, ca.Saliency(), explain_if=condition)
    wanted = [bool(chosen(each)) for each in result.classes]
    values = result.attributions[0].values.get("x", np.zeros((5, 8)))
    assert [bool(row.any()) for row in values] == wanted


def test_a_model_without_classes_cannot_be_asked_for_a_probability() -> None:
    """An error that names the field, and no explanation of everything or of nothing."""
    regression = wired(lambda m, x: m.a(x).squeeze(1), a=lambda: nn.Linear(8, 1))
    with pytest.raises(ca.InvalidArgument) as caught:
        ask(regression(), BATCH, ca.Saliency(), labels=(), explain_if=ExplainIf(classes=(1,)))
    assert caught.value.field == "explain_if"


# Steps that grow.


def bent(m: Any, x: Tensor) -> Tensor:
    return m.b(torch.tanh(5 * m.a(x)))


BENT = wired(bent, a=lambda: nn.Linear(8, 16), b=lambda: nn.Linear(16, 3))
PATHS: tuple[Callable[..., Attribution], ...] = (
    ca.IntegratedGradients,
    lambda **path: ca.LayerIntegratedGradients(layer="a", **path),
    lambda **path: ca.LayerConductance(layer="a", **path),
)


@pytest.mark.parametrize("mode", list(CheckMode))
@pytest.mark.parametrize("method", PATHS)
def test_steps_grow_until_the_delta_is_within_its_bound(method: Callable[..., Attribution], mode: CheckMode) -> None:
    """The answer is the one with the steps that it states, no fewer would have done of those that were tried."""
    result = ask(BENT(), BATCH, method(n_steps=2, max_delta=1e-2), check=CheckRequest(mode)).attributions[0]
    assert result.convergence_delta is not None
    assert result.n_steps > 2
    assert np.log2(result.n_steps).is_integer()
    assert np.abs(result.convergence_delta).max() <= 1e-2
    again = ask(BENT(), BATCH, method(n_steps=result.n_steps), check=CheckRequest(mode)).attributions[0]
    for one, other in zip(result.values.values(), again.values.values(), strict=True):
        assert np.array_equal(one, other)
    coarser = ask(BENT(), BATCH, method(n_steps=result.n_steps // 2), check=CheckRequest(mode)).attributions[0]
    assert coarser.convergence_delta is not None
    assert np.abs(coarser.convergence_delta).max() > 1e-2


@pytest.mark.parametrize("mode", CHECKED)
def test_a_bound_that_cannot_be_met_ends_at_the_most_steps_and_says_so(mode: CheckMode) -> None:
    """A jump on the path: no number of steps helps. The answer comes, and is not called good."""
    jump = wired(lambda m, x: m.b(m.a(x)) + (m.a(x) > 0.3).float().sum(1, keepdim=True), a=lambda: nn.Linear(8, 4),
                 b=lambda: nn.Linear(4, 3))  # fmt: skip
    asked = ca.IntegratedGradients(n_steps=512, max_delta=1e-3)
    result = ask(jump(), BATCH, asked, check=CheckRequest(mode)).attributions[0]
    assert result.n_steps == 1024
    completeness = result.checks[1]
    assert (completeness.verdict, completeness.cause) == (Verdict.INCONCLUSIVE, Cause.TOO_FEW_STEPS)
    assert "max_delta=0.001" in completeness.reason


@pytest.mark.parametrize(
    "asked",
    [ca.IntegratedGradients(multiply_by_inputs=False, max_delta=0.1), ca.InternalInfluence(layer="a", max_delta=0.1)],
)
def test_what_need_not_add_up_cannot_be_bounded(asked: Attribution) -> None:
    """An error that names the field, before anything runs."""
    with pytest.raises(ca.InvalidArgument) as caught:
        ask(MLP(), BATCH, asked)
    assert caught.value.field.endswith(".path.max_delta")
