"""A row that is not finite is told of itself: the other rows of its batch get the verdict that they have without it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from captum import attr
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import Attribution, CheckMode
from cutaway.contract.results import Cause, Check, Verdict
from cutaway.engine.model.inspected_model import Inputs
from cutaway.engine.references.perturbations import row_permutation
from tests.matrix.asking import at_places
from tests.support.checked_attributions import CHECKED, Build, wired
from tests.unit.engine.test_verdicts_by_row import MODELS, Model, alone, request

UNDEFINED = 1
"""The row with a number that is not finite."""

OTHERS = [0, 2, 3]
SPREADS = (ca.FeaturePermutation, ca.LayerFeaturePermutation)
"""Their definition puts numbers of a row into others."""

AGREES = (Verdict.AGREES, None)
NOT_FINITE = (Verdict.INCONCLUSIVE, Cause.NOT_FINITE)
OTHER_PASSES = (Verdict.DISAGREES, Cause.OTHER_PASSES)


def every_method() -> Iterator[Any]:
    for name in ("perceptron", "convolutions"):
        model = MODELS[name]
        for number, asked in enumerate(at_places(model.places, model.inputs(1, 0))):
            if not isinstance(asked, SPREADS):
                yield pytest.param(model, asked, id=f"{name}-{type(asked).__name__}-{number}")


def checked(model: Model, asked: Attribution, mode: CheckMode, value: float) -> tuple[Check, ...]:
    x = model.inputs(4, 3)
    x["x"][UNDEFINED].reshape(-1)[2] = value
    answer = alone(model.subject(), request(asked, mode, target=ca.ClassIndex((1,))), x)
    assert isinstance(answer, ca.InspectResult), answer
    return answer.attributions[0].checks


def outcomes(check: Check, rows: int = 4) -> list[tuple[Verdict, Cause | None]]:
    return [(row.verdict, row.cause) for row in check.rows] or [(check.verdict, check.cause)] * rows


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize(("model", "asked"), [*every_method()])
def test_the_other_rows_are_judged_as_without_it(model: Model, asked: Attribution, mode: CheckMode) -> None:
    """Whatever the method, and whichever the check."""
    finite = checked(model, asked, mode, 0.5)
    for value in (torch.nan, torch.inf):
        for check, expected in zip(checked(model, asked, mode, value), finite, strict=True):
            found, wanted = outcomes(check), outcomes(expected)
            assert [found[row] for row in OTHERS] == [wanted[row] for row in OTHERS]
            assert found[UNDEFINED][1] is Cause.NOT_FINITE or found[UNDEFINED] == wanted[UNDEFINED]


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("kind", [ca.KernelShap, ca.Lime])
def test_a_fit_to_such_a_row_takes_nothing_from_the_others(kind: Any, value: float, rows: int) -> None:
    """They have the values that they have without it, to the bit, from the same draws; its own are unknown."""
    asked, x = kind(n_samples=30), MODELS["perceptron"].inputs(4, 3)
    finite, x["x"] = answered(asked, x), x["x"].clone()
    x["x"][UNDEFINED, 2] = value
    if rows == 1:
        x = {"x": x["x"][UNDEFINED:][:1]}
    (found,) = answered(asked, x).attributions
    for mine, expected in ((found.values, finite.attributions[0].values),
                           (found.standard_errors, finite.attributions[0].standard_errors)):  # fmt: skip
        assert np.isnan(mine["x"][UNDEFINED if rows > 1 else 0]).all()
        assert rows == 1 or np.array_equal(mine["x"][OTHERS], expected["x"][OTHERS])
    expected_outcomes = [AGREES if row in OTHERS and rows > 1 else NOT_FINITE for row in range(4)]
    assert outcomes(found.checks[0]) == expected_outcomes


def answered(asked: Attribution, x: Inputs) -> ca.InspectResult:
    model = MODELS["perceptron"]
    answer = alone(model.subject(), request(asked, CheckMode.SAME_PASS, target=ca.ClassIndex((1,))), x)
    assert isinstance(answer, ca.InspectResult), answer
    return answer


SAME_PASS: dict[str, Attribution] = {
    "FeatureAblation": ca.FeatureAblation(),
    "Occlusion": ca.Occlusion(windows={"x": (2,)}),
    "ShapleyValues": ca.ShapleyValues(),
    "ShapleyValueSampling": ca.ShapleyValueSampling(n_samples=2),
    "KernelShap": ca.KernelShap(n_samples=30),
    "Lime": ca.Lime(n_samples=30),
    "IntegratedGradients": ca.IntegratedGradients(),
}


@pytest.mark.parametrize("moved", [0, UNDEFINED])
@pytest.mark.parametrize("name", SAME_PASS)
def test_other_passes_are_found_beside_it_and_in_it(name: str, moved: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captum runs other values of one row: it disagrees, also where it is the one that is not finite."""
    captums, shift = getattr(attr, name), torch.zeros(4, 1, dtype=torch.float64)
    intact, shift[moved] = captums.attribute, 0.25

    def attribute(self: Any, given: tuple[Tensor, ...], **options: Any) -> Any:
        return intact(self, tuple(each + shift for each in given), **options)

    monkeypatch.setattr(captums, "attribute", attribute)
    check, *_ = checked(MODELS["perceptron"], SAME_PASS[name], CheckMode.SAME_PASS, torch.nan)
    assert (check.verdict, check.cause) == OTHER_PASSES
    expected = {0: AGREES, UNDEFINED: NOT_FINITE, 2: AGREES, 3: AGREES, moved: OTHER_PASSES}
    assert outcomes(check) == list(expected.values())


CLEANED: Build = wired(
    lambda m, x: m.b(torch.tanh(m.a(x.nan_to_num(2.0)))), a=lambda: nn.Linear(6, 8), b=lambda: nn.Linear(8, 3)
)


@pytest.mark.parametrize(
    "name", ["FeatureAblation", "Occlusion", "ShapleyValues", "ShapleyValueSampling", "KernelShap"]
)
def test_a_model_that_takes_nan_gets_another_point_from_captum(name: str) -> None:
    """Captum's product of NaN and 0 is no baseline: the attribution is a number, and a wrong one."""
    model = Model(CLEANED, (6,), MODELS["perceptron"].places)
    check, *_ = checked(model, SAME_PASS[name], CheckMode.SAME_PASS, torch.nan)
    assert outcomes(check) == [AGREES, OTHER_PASSES, AGREES, AGREES]


def test_a_wrong_value_of_another_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer's NaN is the reason for its own row only."""
    captums: Any = attr.LayerFeatureAblation
    intact, factor = captums.attribute, torch.ones(4, 1, dtype=torch.float64)
    factor[2] = 1.5
    monkeypatch.setattr(captums, "attribute", lambda *given, **options: intact(*given, **options) * factor)
    check, *_ = checked(MODELS["perceptron"], ca.LayerFeatureAblation(layer="a"), CheckMode.SAME_PASS, torch.nan)
    assert outcomes(check) == [AGREES, NOT_FINITE, (Verdict.DISAGREES, Cause.UNKNOWN), AGREES]


HALVES = {"x": np.array([[0, 0, 0, 1, 1, 1]])}


@pytest.mark.parametrize("rows", [2, 4, 8])
@pytest.mark.parametrize("mode", CHECKED)
def test_a_row_that_captum_puts_nan_into_is_told_whose(mode: CheckMode, rows: int) -> None:
    """Features are exchanged among rows, so that the method has numbers of the row too; Captum makes NaN of others by a
    product with 0. A row that gets none is judged as without it."""
    model, asked = MODELS["perceptron"], ca.FeaturePermutation(masks=HALVES)
    x = model.inputs(rows, 3)
    x["x"][UNDEFINED, 2] = torch.nan
    answer = alone(model.subject(), request(asked, mode, target=ca.ClassIndex((1,))), x)
    assert isinstance(answer, ca.InspectResult), answer
    (values,), (check, *_) = answer.attributions[0].values.values(), answer.attributions[0].checks
    generator = torch.Generator().manual_seed(1)
    first, second = (row_permutation(rows, generator).tolist().index(UNDEFINED) for _ in range(2))
    for row, (verdict, cause) in enumerate(outcomes(check, rows)):
        reached = row in (UNDEFINED, first, second)
        assert np.isnan(values[row]).all() == reached
        assert cause is (Cause.NOT_FINITE if reached else None)
        assert reached or verdict is Verdict.AGREES
        assert row != UNDEFINED or verdict is Verdict.INCONCLUSIVE
        if row == second and row not in (UNDEFINED, first):
            assert verdict is Verdict.DISAGREES  # the method has a number there: the second half of row 1 is finite
            assert f"row {UNDEFINED} is not finite" in check.reason
            assert "and another row is not finite" in check.rows[row].reason


@pytest.mark.parametrize("mode", CHECKED)
def test_a_row_that_a_layer_puts_nan_into_is_told_why(mode: CheckMode) -> None:
    asked = ca.LayerFeaturePermutation(layer="a")
    check, *_ = checked(MODELS["perceptron"], asked, mode, torch.nan)
    assert outcomes(check)[UNDEFINED] == NOT_FINITE
    for row in OTHERS:
        assert outcomes(check)[row] == (Verdict.DISAGREES, Cause.NOT_FINITE)
        assert "the layer 'a' returns NaN" in check.rows[row].reason


@pytest.mark.parametrize("mode", CHECKED)
def test_rows_that_all_are_undefined_reach_no_other(mode: CheckMode) -> None:
    """A model that takes NaN has numbers of them, and Captum makes no other NaN: nothing is doubted."""
    model = Model(CLEANED, (6,), MODELS["perceptron"].places)
    x = model.inputs(4, 3)
    x["x"][:, 2] = torch.nan
    asked = request(ca.FeaturePermutation(masks=HALVES), mode, target=ca.ClassIndex((1,)))
    answer = alone(model.subject(), asked, x)
    assert outcomes(answer.attributions[0].checks[0]) == [AGREES] * 4
