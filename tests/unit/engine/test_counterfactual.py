"""Counterfactuals: planted answers are found, none of their changes can be put back, and brute force counts them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.errors import CutawayError
from cutaway.contract.requests import CheckMode, CheckRequest, ClassIndex, Counterfactual
from cutaway.contract.results import Cause, CounterfactualResult, InputSpec, Verdict
from cutaway.contract.results.arrays import entries
from cutaway.engine.cost.estimate import estimate
from cutaway.engine.cost.pass_count import costs
from cutaway.engine.execution import counterfactual as searching
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.planning.plan import plan_request
from cutaway.views import tables
from cutaway.views.inspection import Inspection
from tests.support.checked_attributions import CHECKED, noise, wired
from tests.support.state_snapshot import untouched

COLUMNS = ("age", "income", "score")
SPECS = (InputSpec("table", "float32", (-1, 3), feature_names=COLUMNS), InputSpec("job", "int64", (-1, 1)))
JOBS = wired(
    lambda m, table, job: torch.stack([
        table[:, 0] / 40 + table[:, 1] / 5e4 - 2, -table[:, 0] / 40 - table[:, 1] / 5e4 + 2 + (job[:, 0] == 2) * 6], 1),
)  # fmt: skip
PEOPLE = {"table": torch.tensor([[30.0, 40000.0, 0.3], [70.0, 60000.0, 0.9]]), "job": torch.tensor([[0], [1]])}
"""The first has class 1, by little; the second class 0, by much."""

SPOT = wired(lambda m, image: torch.stack([image[:, :, 3:6, 9:12].sum((1, 2, 3)), image.sum((1, 2, 3)) * 0 + 4], 1))
WORDS = wired(
    lambda m, input_ids, attention_mask: m.head((m.words(input_ids) * attention_mask.unsqueeze(2)).sum(1)),
    words=lambda: nn.Embedding(20, 6), head=lambda: nn.Linear(6, 3),
)  # fmt: skip


def found(model: nn.Module, inputs: Mapping[str, Tensor], asked: Counterfactual, **more: Any) -> CounterfactualResult:
    known = InspectedModel(model, lambda tensors: model(**tensors), inputs=SPECS if "table" in inputs else ())
    with untouched(model):
        result = inspect(known, ca.InspectRequest("m", counterfactual=asked, **more), dict(inputs))
    assert result.counterfactual is not None
    return result.counterfactual


def agree(result: CounterfactualResult) -> bool:
    return len(result.checks) == 2 and {check.verdict for check in result.checks} == {Verdict.AGREES}


# Tables.


@pytest.mark.parametrize("mode", CHECKED)
def test_the_nearest_value_of_a_column_that_changes_the_class(mode: CheckMode) -> None:
    """The first person needs an age above 48: the least value of the range that does is 49; income stays."""
    asked = Counterfactual(columns={"age": ca.Column(18, 90, step=1), "score": ca.Column(0, 1)})
    result = found(JOBS(), PEOPLE, asked, check=CheckRequest(mode))
    assert result.succeeded.tolist() == [True, True]
    assert result.changes.tolist() == [1, 1]
    assert result.classes.tolist() == [0, 1]
    np.testing.assert_array_equal(result.inputs["table"], np.array([[49, 40000, 0.3], [31, 60000, 0.9]], np.float32))
    np.testing.assert_array_equal(result.changed["table"], [[True, False, False]] * 2)
    assert result.passes[0] == 1 + (73 - 1) + 17 + 71  # nothing; ages but its own, scores; nearer ages than 90, but 30
    assert agree(result)


def test_categories_stay_categories_and_integers_integers() -> None:
    asked = Counterfactual(columns={"job": ca.Column(values=(0, 1, 2))})
    result = found(JOBS(), PEOPLE, asked)
    assert result.inputs["job"].dtype == np.int64
    assert result.inputs["job"].tolist() == [[0], [2]]
    assert result.succeeded.tolist() == [False, True]
    assert result.changes.tolist() == [0, 1]
    assert agree(result)
    assert [[check.of_row(row).verdict for row in (0, 1)] for check in result.checks] == [
        [Verdict.NOT_APPLICABLE, Verdict.AGREES]
    ] * 2
    ranged = found(JOBS(), PEOPLE, Counterfactual(columns={"job[0]": ca.Column(0, 3)}))
    assert ranged.inputs["job"].tolist() == [[0], [2]]


def test_columns_that_are_not_named_and_ranges_that_are_too_small_change_nothing() -> None:
    people = {**PEOPLE, "table": PEOPLE["table"].clone()}
    people["table"][:, 2] = torch.nan
    result = found(JOBS(), people, Counterfactual(columns={"age": ca.Column(18, 40)}))
    assert result.succeeded.tolist() == [False, True]
    np.testing.assert_array_equal(result.inputs["table"][0], people["table"][0])
    assert not result.changed["table"][0].any()
    assert set(result.inputs) == {"table"}


def test_a_class_is_reached_and_one_that_is_there_needs_no_change() -> None:
    asked = Counterfactual(columns={"job": ca.Column(values=(0, 1, 2))}, targeted=True)
    result = found(JOBS(), PEOPLE, asked, target=ClassIndex((1,)))
    assert result.succeeded.tolist() == [True, True]
    assert result.changes.tolist() == [0, 1]


# Pictures and tokens.


def test_the_planted_region_is_what_is_removed() -> None:
    images = torch.rand(2, 1, 12, 12, generator=torch.Generator().manual_seed(0)) * 0.2 + 0.6
    mask = (torch.arange(12).reshape(12, 1) // 3 * 4 + torch.arange(12) // 3)[None, None].numpy()
    result = found(SPOT(), {"image": images}, Counterfactual(masks={"image": mask}))
    assert result.changes.tolist() == [1, 1]
    inside = (mask == 7)[0, 0]
    np.testing.assert_array_equal(result.changed["image"][:, 0], [inside, inside])
    assert agree(result)
    columns = np.broadcast_to(np.arange(12) // 3, (1, 1, 12, 12))
    each = found(SPOT(), {"image": images}, Counterfactual(masks={"image": np.concatenate([mask, columns])}))
    np.testing.assert_array_equal(each.changed["image"][:, 0], [inside, columns[0, 0] == 3])
    raised = Counterfactual(masks={"image": mask}, baselines={"image": 0.55})
    assert found(SPOT(), {"image": images}, raised).succeeded.tolist() == [False, False]


def test_superpixels_are_set_to_the_baseline_of_each_row() -> None:
    images = torch.zeros(2, 1, 12, 12)
    images[0, :, 2:7, 8:12], images[1, :, :7, 7:12] = 1, 1
    result = found(SPOT(), {"image": images}, Counterfactual(masks={"": ca.Superpixels(9, compactness=0.3)}))
    assert result.succeeded.all()
    assert agree(result)
    assert (result.inputs["image"][:, :, 3:6, 9:12].sum(axis=(1, 2, 3)) <= 4).all()


@pytest.mark.parametrize("mode", CHECKED)
def test_the_planted_token_is_replaced_or_removed(mode: CheckMode) -> None:
    model = WORDS()
    with torch.no_grad():
        words, head = model.get_parameter("words.weight"), model.get_parameter("head.weight")
        words[:] = 0.01 * noise(20, 6)
        words[7], words[0] = 30 * head[2], 0
        model.get_parameter("head.bias")[:] = torch.tensor([1.0, 0, 0])
    ids = torch.tensor([[1, 4, 7, 5, 2], [1, 7, 3, 2, 0]])
    inputs = {"input_ids": ids, "attention_mask": (ids > 0).float()}
    more: dict[str, Any] = {"check": CheckRequest(mode)}
    replaced = found(model, inputs, Counterfactual(tokens=ca.TokenChanges((9,), keep=(1, 2))), **more)
    assert replaced.inputs["input_ids"].tolist() == [[1, 4, 9, 5, 2], [1, 9, 3, 2, 0]]
    assert replaced.passes.tolist() == [1 + 3, 1 + 2]  # nothing, and each token that is no padding and not kept
    removed = found(model, inputs, Counterfactual(tokens=ca.TokenChanges(remove=True, keep=(1, 2))), **more)
    assert removed.inputs["attention_mask"].tolist() == [[1, 1, 0, 1, 1], [1, 0, 1, 1, 0]]
    assert agree(replaced)
    assert agree(removed)
    kept = found(model, inputs, Counterfactual(tokens=ca.TokenChanges((9,), keep=(1, 2, 7))))
    assert kept.succeeded.tolist() == [False, False]


# Against brute force.


def smallest(model: nn.Module, x: Tensor, own: int) -> int:
    """The fewest of the columns that change the class if they are 0, of all subsets."""
    for count in range(1, x.shape[1] + 1):
        for subset in combinations(range(x.shape[1]), count):
            other = x.clone()
            other[:, list(subset)] = 0
            if int(model(other).argmax()) != own:
                return count
    return 0


def test_no_change_can_be_put_back_and_brute_force_says_how_few_there_are() -> None:
    """Of these networks: never fewer than brute force, found wherever it finds some, and mostly as few."""
    apart = []
    for seed in range(12):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).double().eval()
        x = noise(2, 8, dtype=torch.float64, seed=seed) * 2
        asked = Counterfactual(masks={"input": np.arange(8)[None]}, max_changes=8)
        known = InspectedModel(model, partial(lambda own, tensors: own(*tensors.values()), model))
        result = inspect(known, ca.InspectRequest("m", counterfactual=asked), {"input": x}).counterfactual
        assert result is not None
        assert agree(result)
        for row in range(2):
            own = int(model(x[row : row + 1]).argmax())
            fewest = smallest(model, x[row : row + 1], own)
            assert bool(result.succeeded[row]) >= (fewest > 0)
            if fewest:
                apart.append(int(result.changes[row]) - fewest)
                changed = torch.from_numpy(result.inputs["input"][row : row + 1])
                assert int(model(changed).argmax()) == int(result.classes[row]) != own
                for place in np.flatnonzero(result.changed["input"][row]):
                    back = changed.clone()
                    back[0, place] = x[row, place]
                    assert int(model(back).argmax()) == own
    assert min(apart) == 0
    assert np.mean(np.array(apart) == 0) > 0.7


def test_pruning_puts_back_what_the_greedy_step_did_not_need() -> None:
    """The best single change is a decoy: two others together change the class, and then it is not needed."""
    model = wired(lambda m, x: torch.stack([x[:, 0] * 0 + 3, 4 - x[:, 0] * 2.5 - 2 * x[:, 1] - 2 * x[:, 2]
        + 2.6 * x[:, 0] * x[:, 1] * (x[:, 2] < 1)], 1))()  # fmt: skip
    x = {"x": torch.ones(1, 3)}
    result = found(model, x, Counterfactual(masks={"x": np.arange(3)[None]}))
    assert result.succeeded.all()
    changed = torch.from_numpy(result.inputs["x"])
    for place in np.flatnonzero(result.changed["x"][0]):
        back = changed.clone()
        back[0, place] = 1
        assert int(model(back).argmax()) == int(model(x["x"]).argmax())


# The verdict.


def test_a_change_too_many_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that does not prune: the check of all rows puts each change back."""
    monkeypatch.setattr(searching._Search, "_pruned", lambda self, chosen: [*chosen, self._changes[-1]])
    asked = Counterfactual(columns={"age": ca.Column(18, 90, step=1), "score": ca.Column(0, 1)})
    result = found(JOBS(), PEOPLE, asked)
    assert [check.verdict for check in result.checks] == [Verdict.AGREES, Verdict.DISAGREES]
    assert result.checks[1].cause is Cause.NOT_LEAST


def test_a_search_that_reports_another_class_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    run = searching._Search.run
    monkeypatch.setattr(searching._Search, "run", lambda self: (run(self) or [])[:0] or [self._changes[0]])
    result = found(JOBS(), PEOPLE, Counterfactual(columns={"score": ca.Column(0, 1)}))
    assert result.checks[0].verdict is Verdict.DISAGREES


SUMS = wired(lambda m, x: torch.stack([x.sum(1), x.sum(1) * 0 + 2.5], 1))
TWO_SUMS = {"x": torch.stack([torch.ones(6), torch.full((6,), 0.5)])}
"""Four elements of the first row must go, and two of the second."""

FAULTS: dict[str, tuple[Any, int, Cause]] = {
    "a change too few": (lambda self, right: right[:-1], 0, Cause.UNKNOWN),
    "a change too many": (
        lambda self, right: [*right, next(each for each in self._changes if each not in right)], 1, Cause.NOT_LEAST),
    "all changes": (lambda self, right: self._changes, 1, Cause.NOT_LEAST),
    "the first change": (lambda self, right: self._changes[:1], 0, Cause.UNKNOWN),
    "no change": (lambda self, right: [], 0, Cause.UNKNOWN),
    "as many changes for each row": (lambda self, right: self._changes[:4], 1, Cause.NOT_LEAST),
    "changes back to the row's own values": (
        lambda self, right: [
            each._replace(writes=tuple((name, at, at * 0.0 + 1) for name, at, _ in each.writes)) for each in right],
        0, Cause.UNKNOWN),
    "half of each change": (
        lambda self, right: [
            each._replace(writes=tuple((name, at, at * 0.0 + 0.9) for name, at, _ in each.writes)) for each in right],
        0, Cause.UNKNOWN),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_search_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a pass of the request's own rows, which the search did not run; without it the verdict agrees."""
    asked, (change, check, cause) = Counterfactual(masks={"x": np.arange(6)[None]}), FAULTS[fault]
    right = found(SUMS(), TWO_SUMS, asked)
    assert right.changes.tolist() == [4, 2]
    assert agree(right)
    run = searching._Search.run
    monkeypatch.setattr(searching._Search, "run", lambda self: change(self, run(self)))
    wrong = found(SUMS(), TWO_SUMS, asked)
    assert (wrong.checks[check].verdict, wrong.checks[check].cause) == (Verdict.DISAGREES, cause)


def test_a_search_that_gives_up_where_the_class_is_there_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching._Search, "run", lambda self: None)
    asked = Counterfactual(columns={"job": ca.Column(values=(0, 1, 2))}, targeted=True)
    result = found(JOBS(), PEOPLE, asked, target=ClassIndex((1,)))
    assert result.checks[0].verdict is Verdict.DISAGREES


def test_rows_that_depend_on_each_other_are_in_doubt() -> None:
    model = wired(lambda m, x: torch.stack([x[:, 0] - x[:, 0].mean(), 0.1 - x[:, 1]], 1))()
    result = found(
        model, {"x": torch.tensor([[1.0, 2.0], [3.0, 1.0]])}, Counterfactual(masks={"x": np.arange(2)[None]})
    )
    assert {check.cause for check in result.checks} <= {Cause.ROWS_COUPLED, Cause.RANDOM_FORWARD}
    assert Verdict.AGREES not in {check.verdict for check in result.checks}


def test_without_checks_there_is_no_verdict() -> None:
    off = CheckRequest(CheckMode.OFF)
    assert found(JOBS(), PEOPLE, Counterfactual(columns={"age": ca.Column(18, 90)}), check=off).checks == ()


# Edits, cost, memory, and what is refused.


def test_the_edited_model_is_asked() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 2, bias=False)).eval()
    with torch.no_grad():
        model.get_parameter("0.weight")[:] = torch.eye(4)
        model.get_parameter("1.weight")[:] = torch.tensor([[1.0, 1, 0, 0], [0, 0, 1, 1]])
    known = InspectedModel(model, lambda tensors: model(*tensors.values()))
    x, mask = {"input": torch.tensor([[5.0, 2.0, 4.0, 1.0]])}, {"input": np.arange(4)[None]}
    edits = (ca.Zero("0", slices=(ca.Slice(1, 0, 1),)),)
    for more, expected in (({}, [True, False, False, False]), ({"edits": edits}, [False, False, True, False])):
        request = ca.InspectRequest("m", counterfactual=Counterfactual(masks=mask), **more)  # type: ignore[arg-type]
        result = inspect(known, request, x).counterfactual
        assert result is not None
        assert result.changed["input"][0].tolist() == expected
        assert agree(result)


def planned(asked: Counterfactual, **more: Any) -> Any:
    model = JOBS()
    known = InspectedModel(model, lambda tensors: model(**tensors), inputs=SPECS)
    return plan_request(known, ca.InspectRequest("m", counterfactual=asked, **more), PEOPLE)


def test_the_dry_run_bounds_the_passes_and_has_the_same_arrays() -> None:
    asked = Counterfactual(columns={"age": ca.Column(18, 90, step=1), "score": ca.Column(0, 1)}, max_changes=2)
    ((field, most),) = costs(planned(asked))
    assert field == "counterfactual"
    result = found(JOBS(), PEOPLE, asked)
    assert result.passes.sum() <= most
    dry = estimate(planned(asked, dry_run=True))
    assert dry.estimate is not None
    assert dry.estimate.passes == most
    whole = inspect(planned(asked).model, ca.InspectRequest("m", counterfactual=asked), PEOPLE)
    shapes = [
        [
            (entry.name, entry.array.shape, entry.array.dtype)
            for entry in entries(each)
            if "counterfactual" in entry.name
        ]
        for each in (dry, whole)
    ]
    assert shapes[0] == shapes[1]
    assert len(shapes[0]) == 8


@pytest.mark.parametrize(
    ("asked", "more", "field"),
    [
        (Counterfactual(), {}, "counterfactual"),
        (Counterfactual(columns={"agee": ca.Column(0, 1)}), {}, "counterfactual.columns.agee"),
        (Counterfactual(columns={"age": ca.Column(2, 1)}), {}, "counterfactual.columns.age.lower"),
        (Counterfactual(columns={"age": ca.Column(0, 1, values=(2,))}), {}, "counterfactual.columns.age.values"),
        (Counterfactual(columns={"age": ca.Column(0, 1e9, step=1)}), {}, "counterfactual.columns.age.step"),
        (Counterfactual(columns={"job": ca.Column(values=(0.5,))}), {}, "counterfactual.columns.job.values"),
        (Counterfactual(columns={"table[3]": ca.Column(0, 1)}), {}, "counterfactual.columns.table[3]"),
        (Counterfactual(masks={"picture": np.zeros((1, 3), int)}), {}, "counterfactual.masks"),
        (Counterfactual(masks={"": ca.Superpixels()}), {}, "counterfactual.masks.superpixels"),
        (Counterfactual(tokens=ca.TokenChanges((1,))), {}, "counterfactual.tokens.input"),
        (Counterfactual(tokens=ca.TokenChanges(input="job")), {}, "counterfactual.tokens.replacements"),
        (Counterfactual(tokens=ca.TokenChanges(remove=True, input="job")), {}, "counterfactual.tokens.remove"),
        (Counterfactual(columns={"age": ca.Column(0, 1)}, targeted=True), {}, "counterfactual.targeted"),
        (Counterfactual(columns={"age": ca.Column(0, 1)}), {"target": ca.TopK(2)}, "counterfactual.targeted"),
        (Counterfactual(columns={"age": ca.Column(0, 1)}), {"target": ca.OutputSum()}, "counterfactual.targeted"),
    ],
)
def test_what_cannot_change_is_refused(asked: Counterfactual, more: dict[str, Any], field: str) -> None:
    with pytest.raises(CutawayError) as failure:
        found(JOBS(), PEOPLE, asked, **more)
    assert failure.value.field == field
    with pytest.raises(CutawayError) as failure:
        estimate(planned(asked, **more))
    assert failure.value.field == field


def test_print_table_and_page_say_what_changed() -> None:
    asked = Counterfactual(columns={"age": ca.Column(18, 90, step=1)})
    whole = inspect(planned(asked).model, ca.InspectRequest("m", counterfactual=asked), PEOPLE)
    result = Inspection.of(replace(whole, feature_names={"table": COLUMNS}), ca.InspectRequest("m"))
    line = "AGREES  [0] class 0 with 1 change  age = 49"
    assert line in str(result)
    assert any(line in str(part) for part in tables.result_tables(result))
    assert line in result._repr_html_().replace("&nbsp;", " ")
