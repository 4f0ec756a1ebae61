"""Values that explain themselves badly: categories that are their own baseline, and what is no number."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import Attribution, InspectRequest
from cutaway.contract.results import Cause, InputSpec, InspectResult, Verdict, WarningCode
from cutaway.engine.batching import inspect_batch
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import Inputs, InspectedModel
from cutaway.engine.planning.plan import plan_request
from tests.support.checked_attributions import CHECKED, ask, noise, wired
from tests.support.reply_equality import differences


class Credit(nn.Module):
    """Two columns of categories, each with an embedding, beside three of numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.job, self.city = nn.Embedding(6, 4), nn.Embedding(10, 4)
        self.body, self.head = nn.Sequential(nn.Linear(11, 16), nn.Tanh()), nn.Linear(16, 3)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        """Returns three scores."""
        codes = [self.job(categories[:, 0]), self.city(categories[:, 1])]
        scores: Tensor = self.head(self.body(torch.cat([numbers, *codes], 1)))
        return scores


def credit(named: bool = True) -> InspectedModel:
    columns = (("income", "debt", "age"), ("job", "city")) if named else ((), ())
    specs = (
        InputSpec("numbers", "float32", (-1, 3), feature_names=columns[0]),
        InputSpec("categories", "int64", (-1, 2), feature_names=columns[1]),
    )
    model = Credit().eval()
    return InspectedModel(model, lambda tensors: model(**tensors), specs)


ROWS = {"numbers": noise(4, 3), "categories": torch.tensor([[3, 4], [2, 0], [0, 7], [5, 5]])}


def answer(subject: InspectedModel, inputs: Inputs, *asked: Attribution, **more: Any) -> InspectResult:
    return inspect(subject, InspectRequest("m", attributions=asked, **more), dict(inputs))


def codes(result: InspectResult) -> list[WarningCode]:
    return [warning.code for warning in result.warnings]


def some(inputs: Inputs, *rows: int) -> Inputs:
    return {name: tensor[list(rows)] for name, tensor in inputs.items()}


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("mode", CHECKED)
def test_a_layer_that_stays_because_its_category_is_the_baseline_says_so(mode: ca.CheckMode, named: bool) -> None:
    """The other rows prove that the inputs reach it; a row by itself may not, and then both remedies are named."""
    layer, check = ca.LayerIntegratedGradients(layer="job", n_steps=8), ca.CheckRequest(mode)
    what = "'job' of 'categories' equals" if named else "1 of 2 elements of 'categories' equals"
    whole = answer(credit(named), ROWS, layer, check=check).attributions[0].checks[0]
    assert [row.verdict is Verdict.AGREES for row in whole.rows] == [True, True, False, True]
    assert (whole.rows[2].verdict, whole.rows[2].cause) == (Verdict.INCONCLUSIVE, Cause.NOTHING_CHANGED)
    assert f"in row 2: it moves in other rows, and {what} the baseline there; choose another baseline" in whole.reason
    assert "reach it;" not in whole.reason
    alone = answer(credit(named), some(ROWS, 2), layer, check=check).attributions[0].checks[0]
    assert (
        f"{what} the baseline there: if the layer reads only that, choose another baseline; else name" in alone.reason
    )


def test_a_layer_that_no_explained_input_reaches_says_so() -> None:
    """Numbers that equal their baseline prove nothing, and categories that are not explained are named."""
    rows = some(ROWS, 2)
    rows["numbers"][0, 1] = 0
    layer = ca.LayerIntegratedGradients(layer="job", inputs=("numbers",), n_steps=8)
    reason = answer(credit(), rows, layer).attributions[0].checks[0].reason
    assert (
        "the explained inputs (numbers) do not reach it; name in inputs those that do, such as 'categories'" in reason
    )


def test_a_unit_that_is_off_in_some_rows_is_not_put_down_to_the_inputs() -> None:
    model = wired(lambda m, x: m.b(m.relu(x)), relu=nn.ReLU, b=lambda: nn.Linear(3, 2))()
    rows = torch.stack([torch.ones(3), -torch.ones(3)])
    asked = ca.LayerIntegratedGradients(layer="relu", n_steps=8)
    reason = ask(model, {"x": rows}, asked).attributions[0].checks[0].reason
    assert "in row 1: it moves in other rows, so the inputs reach it; there" in reason


REPLACING = [
    ca.FeatureAblation(),
    ca.ShapleyValues(),
    ca.Occlusion(inputs=("categories",), windows={"categories": (1,)}),
    ca.FeatureAblation(inputs=("categories",)),
    ca.FeatureAblation(baselines={"numbers": 1.0}),
]


@pytest.mark.parametrize("asked", REPLACING, ids=lambda asked: f"{type(asked).__name__}{asked.inputs}")
def test_categories_that_are_their_baseline_are_warned_of(asked: Attribution) -> None:
    result = answer(credit(), ROWS, asked)
    assert codes(result) == [WarningCode.EQUALS_BASELINE] * 2 + codes(result)[2:]
    assert [warning.subject for warning in result.warnings[:2]] == ["attributions[0].baselines"] * 2
    job, city = (warning.message for warning in result.warnings[:2])
    assert job.startswith("'job' is 0 in row 2, which is its baseline too")
    assert city.startswith("'city' is 0 in row 1, which is its baseline too")


QUIET: list[tuple[Attribution, Inputs]] = [
    (ca.FeatureAblation(), some(ROWS, 0, 3)),
    (ca.FeatureAblation(baselines={"categories": ca.TokenId(5)}), ROWS),  # which the caller chose
    (ca.FeatureAblation(baselines={"": 0}), ROWS),
    (ca.FeatureAblation(inputs=("numbers",)), {**ROWS, "numbers": torch.zeros(4, 3)}),  # zeros are numbers as others
    (ca.FeaturePermutation(), ROWS),
    (ca.Saliency(), ROWS),
]


@pytest.mark.parametrize(("asked", "inputs"), QUIET, ids=lambda part: type(part).__name__)
def test_other_zeros_are_not_warned_of(asked: Attribution, inputs: Inputs) -> None:
    assert WarningCode.EQUALS_BASELINE not in codes(answer(credit(), inputs, asked))


def test_padding_of_texts_is_not_warned_of() -> None:
    model = wired(lambda m, ids: m.b(m.emb(ids).mean(1)), emb=lambda: nn.Embedding(9, 4), b=lambda: nn.Linear(4, 2))()
    assert not ask(model, {"ids": torch.tensor([[3, 4, 0, 0], [1, 2, 3, 0]])}, ca.FeatureAblation()).warnings


def test_a_single_category_has_the_name_of_its_input() -> None:
    model = wired(lambda m, ids: m.b(m.emb(ids)), emb=lambda: nn.Embedding(9, 4), b=lambda: nn.Linear(4, 2))()
    (warning,) = ask(model, {"ids": torch.tensor([3, 0])}, ca.FeatureAblation()).warnings
    assert warning.message.startswith("'ids' is 0 in row 1")


# What is no number.

NET = wired(lambda m, x: m.b(m.relu(m.a(x))), a=lambda: nn.Linear(4, 6), relu=nn.ReLU, b=lambda: nn.Linear(6, 3))


def with_nan(rows: int = 3, row: int = 1) -> Tensor:
    x = noise(rows, 4)
    x[row, 2] = torch.nan
    return x


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("x", [with_nan(), torch.full((3, 4), torch.nan)], ids=["a row", "all"])
def test_a_finite_gradient_of_a_target_that_is_no_number_proves_nothing(x: Tensor, mode: ca.CheckMode) -> None:
    """A ReLU's derivative at NaN is 0, so that gradients are finite, and equal the reference."""
    result = ask(NET(), {"x": x}, ca.Saliency(), target=ca.ClassIndex((1,)), check=ca.CheckRequest(mode))
    (check,) = result.attributions[0].checks
    assert (check.verdict, check.cause) == (Verdict.INCONCLUSIVE, Cause.NOT_FINITE), check
    rows = [row.verdict is Verdict.AGREES for row in check.rows]
    assert rows == ([False] * 3 if x.isnan().all() else [True, False, True])
    (warning,) = result.warnings
    assert (warning.code, warning.subject) == (WarningCode.NOT_FINITE, "output")
    assert ", and so are numbers of the input 'x'" in warning.message


def test_a_prediction_that_is_no_number_is_warned_of() -> None:
    """Without any attribution; where the input is finite, the remedy is to look inside."""
    assert codes(ask(NET(), {"x": with_nan()})) == [WarningCode.NOT_FINITE]
    model = wired(lambda m, x: m.a(x).log(), a=lambda: nn.Linear(4, 3))()
    (warning,) = ask(model, {"x": noise(3, 4)}).warnings
    assert warning.message.endswith("capture modules to see where this begins")


def masked(m: Any, x: Tensor) -> Tensor:
    return m.a(x).masked_fill(torch.tensor([False, True, False]), -torch.inf)


def test_a_class_that_is_not_allowed_is_no_fault() -> None:
    """Its logit is minus infinity: nobody is warned unless it is explained."""
    model = wired(masked, a=lambda: nn.Linear(4, 3))()
    allowed, other = (ask(model, {"x": noise(3, 4)}, ca.Saliency(), target=ca.ClassIndex((each,))) for each in (0, 1))
    assert not allowed.warnings
    assert allowed.attributions[0].verdict is Verdict.AGREES
    assert [(each.code, each.subject) for each in other.warnings] == [(WarningCode.NOT_FINITE, "target")]
    assert other.attributions[0].checks[0].cause is Cause.NOT_FINITE


def test_missing_numbers_that_a_model_fills_in_are_no_fault() -> None:
    model = wired(lambda m, x: m.a(x.nan_to_num()), a=lambda: nn.Linear(4, 3))()
    assert not ask(model, {"x": with_nan()}).warnings


def test_pixels_that_are_left_out_are_no_fault() -> None:
    """NaN in a part of a map that the model returns."""
    hidden = torch.zeros(1, 1, 4, 4, dtype=torch.bool)
    hidden[..., 0] = True
    model = wired(lambda m, x: m.a(x).masked_fill(hidden, torch.nan), a=lambda: nn.Conv2d(1, 2, 1))()
    picture = {"x": noise(2, 1, 4, 4)}
    assert not ask(model, picture).warnings
    assert codes(ask(model, {"x": picture["x"] * torch.nan})) == [WarningCode.NOT_FINITE]


# Requests that run together: each hears of its own rows, by the numbers that these have there.


QUESTION = InspectRequest("m")
"""The same object, as the decoder returns it for each request that has no more than inputs."""


def no_number() -> InspectedModel:
    model = NET()
    return InspectedModel(model, lambda tensors: model(**tensors))


@pytest.mark.parametrize("asked", [(), (ca.Saliency(),)], ids=["none", "explained"])
def test_callers_who_ask_together_hear_of_their_own_rows(asked: tuple[Attribution, ...]) -> None:
    inputs = [{"x": noise(2, 4, seed=1)}, {"x": with_nan()}, {"x": noise(1, 4, seed=3)}]
    replies = answered_as_alone(no_number(), no_number(), inputs, asked)
    assert [bool(reply.warnings) for reply in replies] == [False, True, False]
    assert [reply.provenance.companions for reply in replies] == [2] * 3


def test_a_prepared_answer_warns_of_no_other_callers_rows() -> None:
    """The first answers, without a warning, prepare the next ones."""
    inputs, subject = [{"x": noise(2, 4, seed=1)}, {"x": noise(2, 4, seed=2)}], no_number()
    for _ in range(2):
        answered_as_alone(subject, no_number(), inputs, ())
    replies = answered_as_alone(subject, no_number(), [inputs[0], {"x": with_nan(2)}], ())
    assert [*map(codes, replies)] == [[], [WarningCode.NOT_FINITE]]


def test_callers_of_a_table_hear_of_their_own_categories() -> None:
    inputs = [some(ROWS, 0, 3), some(ROWS, 3, 2), some(ROWS, 1)]
    replies = answered_as_alone(credit(), credit(), inputs, (ca.FeatureAblation(),))
    found = [[warning.message[:17] for warning in reply.warnings] for reply in replies]
    assert found == [[], ["'job' is 0 in row"], ["'city' is 0 in th"]]
    assert [reply.provenance.companions for reply in replies] == [2] * 3


def answered_as_alone(
    subject: InspectedModel, lone: InspectedModel, inputs: list[Inputs], asked: tuple[Attribution, ...]
) -> list[InspectResult]:
    """Returns the answers to requests that ``subject`` got together, which are those that each gets from ``lone``."""
    question = QUESTION if not asked else InspectRequest("m", attributions=asked)
    plans = [plan_request(subject, question, each) for each in inputs]
    replies = [reply for reply in inspect_batch(plans) if isinstance(reply, InspectResult)]
    expected = [answer(lone, each, *asked) for each in inputs]
    assert [reply.warnings for reply in replies] == [reply.warnings for reply in expected]
    assert not [*differences(replies, expected, 1e-5)]
    return replies
