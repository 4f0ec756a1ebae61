"""Drift between two jobs: each formula is that of its source, planted drift is found, and chance raises no alarm."""

from __future__ import annotations

import itertools
import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cutaway.contract.errors import CutawayError, Reason
from cutaway.jobs import Drift, compare, drift
from tests.support.cli import cutaway
from tests.support.json_documents import Documented
from tests.support.planted_jobs import planted

FEATURES = [f"feature {index}" for index in range(6)]
LABELS = ["cat", "dog", "owl"]


def draw(seed: int, rows: int = 300) -> dict[str, Any]:
    """Columns of a classifier of six features: continuous, zero in half of the rows, whole, constant, large."""
    random = np.random.default_rng(seed)
    inputs = random.standard_normal((rows, 6))
    inputs[:, 1] = np.maximum(inputs[:, 1], 0)
    inputs[:, 2] = random.integers(0, 3, rows)
    inputs[:, 3] = 5
    inputs[:, 4] *= 1e6
    scores = random.dirichlet([2, 2, 1], rows)
    return {
        "prediction": scores.argmax(1),
        "probability": scores.max(1),
        "attribution:saliency:x": random.standard_normal((rows, 6)) * [9, 4, 3, 2, 1, 0.1],
        "capture:fc@output": np.maximum(random.standard_normal((rows, 2, 4)), 0).astype(np.float32),
        "input:x": inputs,
        "verdict:saliency": random.choice(["AGREES", "INCONCLUSIVE"], rows, p=[0.9, 0.1]).tolist(),
    }


def alarms(found: Drift) -> set[tuple[str, str]]:
    assert found.alarm == any(each.alarm for each in found.measures)
    return {(each.column.partition(":")[0], each.measure) for each in found.measures if each.alarm}


def value(found: Drift, column: str, measure: str) -> float:
    (only,) = (each.value for each in found.measures if (each.column, each.measure) == (column, measure))
    return only


def halves(tmp_path: Path, columns: dict[str, Any], **more: Any) -> tuple[Path, Path]:
    """Two folders with the rows at even and at odd places: of one distribution, and with other ids."""
    return tuple(  # type: ignore[return-value]
        planted(tmp_path / name, {key: values[start::2] for key, values in columns.items()}, fingerprint=name, **more)
        for start, name in enumerate(("even", "odd"))
    )


# Formulas


def slow_psi(before: list[float], after: list[float]) -> float:
    """Siddiqi's sum, bin by bin, with half a row in each bin that is used."""
    used = [bin for bin in range(len(before)) if before[bin] or after[bin]]
    total = 0.0
    for each in used:
        old = (before[each] + 0.5) / (sum(before[bin] + 0.5 for bin in used))
        new = (after[each] + 0.5) / (sum(after[bin] + 0.5 for bin in used))
        total += (new - old) * math.log(new / old)
    return total


@pytest.mark.parametrize("seed", range(5))
def test_psi_is_siddiqis(seed: int) -> None:
    """Also with bins that are empty before, after or in both; without half a row, it is the textbook's."""
    random = np.random.default_rng(seed)
    before, after = random.integers(0, 4, (2, 8, 5)).astype(float)
    before[0] = after[0] = 7
    expected = [slow_psi(list(before[:, each]), list(after[:, each])) for each in range(5)]
    np.testing.assert_allclose(drift.psi(before, after), expected, rtol=1e-12)
    many = np.array([[0.2e9], [0.8e9]]), np.array([[0.5e9], [0.5e9]])
    assert drift.psi(*many)[0] == pytest.approx(0.3 * math.log(0.5 / 0.2) - 0.3 * math.log(0.5 / 0.8), rel=1e-6)


def slow_ndcg(before: list[float], after: list[float]) -> float:
    """Clarify's ratio; features of equal importance in all their orders, whose mean is taken."""

    def dcg(order: Any) -> float:
        return sum(before[feature] / math.log2(rank + 1) for rank, feature in enumerate(order, 1))

    orders = [order for order in itertools.permutations(range(len(before)))
              if all(after[one] >= after[other] for one, other in itertools.pairwise(order))]  # fmt: skip
    best = sorted(range(len(before)), key=lambda feature: -before[feature])
    return float(np.mean([dcg(order) for order in orders]) / dcg(best))


@pytest.mark.parametrize("seed", range(20))
def test_ndcg_is_clarifys(seed: int) -> None:
    """With and without features of equal importance."""
    random = np.random.default_rng(seed)
    before, after = random.random(5), random.integers(0, 3, 5) + (random.random(5) if seed % 2 else 0.0)
    after[0] += 1
    assert drift.ndcg(before, after) == pytest.approx(slow_ndcg(before.tolist(), after.tolist()), rel=1e-9)


def test_ndcg_of_the_documentation() -> None:
    """The admissions of Clarify's page: SAT, GPA and class rank, whose order is reversed."""
    best = 0.70 + 0.50 / math.log2(3) + 0.05 / 2
    reversed_order = 0.05 + 0.50 / math.log2(3) + 0.70 / 2
    found = drift.ndcg(np.array([0.70, 0.50, 0.05]), np.array([0.10, 0.20, 0.70]))
    assert found == pytest.approx(reversed_order / best)
    assert found < drift.LIMITS["ndcg"]


def test_ndcg_without_any_importance() -> None:
    """Attributions that are all 0 on one side have no order: the largest drift."""
    some, none = np.array([3.0, 2.0, 1.0]), np.zeros(3)
    assert (drift.ndcg(some, none), drift.ndcg(none, some), drift.ndcg(none, none)) == (0, 0, 1)
    assert drift.ndcg(np.array([2.0]), np.array([9.0])) == 1
    assert drift.ndcg(some * 1e300, some * 1e-300) == pytest.approx(1)


def slow_mmd(before: Any, after: Any) -> float:
    """Gretton's unbiased estimate, pair by pair."""
    pooled = [*before, *after]
    squares = [float(((x - y) ** 2).sum()) for index, x in enumerate(pooled) for y in pooled[:index]]
    width = float(np.median(squares))

    def kernel(x: Any, y: Any) -> float:
        return math.exp(-float(((x - y) ** 2).sum()) / (2 * width))

    n, m = len(before), len(after)
    within = sum(kernel(x, y) for i, x in enumerate(before) for j, y in enumerate(before) if i != j) / (n * (n - 1))
    others = sum(kernel(x, y) for i, x in enumerate(after) for j, y in enumerate(after) if i != j) / (m * (m - 1))
    return within + others - 2 * sum(kernel(x, y) for x in before for y in after) / (n * m)


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (0.3, 1.0), (3.0, 1e4), (1.0, 1e200)])
def test_mmd_is_grettons(shift: float, scale: float) -> None:
    """The estimate, and the share of permutations that reach it, with other permutations; any unit is right."""
    random = np.random.default_rng(3)
    before, after = random.standard_normal((12, 3)), random.standard_normal((17, 3)) + shift
    found, p_value = drift.mmd(before * scale + 7 * scale, after * scale + 7 * scale)
    expected = slow_mmd(before, after)
    assert found == pytest.approx(expected, abs=1e-9)
    pooled, reached = np.concatenate([before, after]), 0
    for _ in range(150):
        order = random.permutation(29)
        reached += slow_mmd(pooled[order[:12]], pooled[order[12:]]) >= expected
    assert p_value == pytest.approx((1 + reached) / 151, abs=0.13)
    assert 1 / 2000 <= p_value <= 1


def test_mmd_of_the_same_rows_is_no_drift() -> None:
    """Also where all rows are equal, or most are."""
    random = np.random.default_rng(0)
    for rows in (random.standard_normal((40, 3)), np.full((40, 3), 0.1), np.eye(40)[:, :3]):
        assert drift.mmd(rows, rows)[1] > 0.9


def test_each_value_is_in_one_bin() -> None:
    """Those of deciles have a tenth of the rows each; NaN has its own, infinities the outermost."""
    random = np.random.default_rng(0)
    sample = random.standard_normal((1000, 3))
    sample[:, 1] = np.maximum(sample[:, 1], 0)
    sample[0] = np.nan
    edges = drift.bin_edges(sample)
    counts = drift.bin_counts(sample, edges)
    np.testing.assert_array_equal(counts.sum(0), 1000)
    assert counts[:-1, 0].min() >= 99
    for feature, edge in enumerate(edges.T):
        places = [int(sum(number > edge)) for number in sample[1:, feature]]
        np.testing.assert_array_equal(counts[:-1, feature], np.bincount(places, minlength=10))
    outer = drift.bin_counts(np.array([[np.inf] * 3, [-np.inf] * 3, [np.nan] * 3]), edges)
    np.testing.assert_array_equal(outer[[0, -2, -1]], 1)


@pytest.mark.parametrize("atom", [5.0, 0.0, -1e6])
def test_a_value_of_most_rows_may_move(atom: float) -> None:
    """A constant that becomes another one is drift, in both directions; its rounding is none."""
    column = np.full((500, 1), atom)
    column[:20, 0] += np.linspace(-1, 1, 20)
    edges = drift.bin_edges(column)
    before = drift.bin_counts(column, edges)
    for moved in (0.01, -0.01):
        step = moved * max(abs(atom), 1)
        assert drift.psi(before, drift.bin_counts(column + step, edges))[0] > 1
    rounded = np.where(column == atom, atom * (1 + 1e-6), column)
    assert drift.psi(before, drift.bin_counts(rounded, edges))[0] < 0.01


# Two folders


def test_chance_raises_no_alarm(tmp_path: Path) -> None:
    """Two halves of the same data: of many seeds and sizes, none has an alarm."""
    found = []
    for seed in range(30):
        columns = draw(seed, (60, 300, 1000)[seed % 3])
        found.append(compare(*halves(tmp_path / str(seed), columns, labels=LABELS, features=FEATURES)))
        assert found[-1].same_ids == 0
    assert not any(each.alarm for each in found), [alarms(each) for each in found]


def test_the_same_results_have_no_drift(tmp_path: Path) -> None:
    """Whatever the number of rows in a shard."""
    one = planted(tmp_path / "one", draw(0), labels=LABELS, features=FEATURES)
    other = planted(tmp_path / "other", draw(0), labels=LABELS, features=FEATURES, shard_rows=7)
    found = compare(one, other)
    assert not found.alarm
    assert found.same_ids == 300
    by_measure: dict[str, set[float]] = {}
    for each in found.measures:
        by_measure.setdefault(each.measure, set()).add(each.value)
    assert by_measure.pop("mmd").pop() <= 0
    assert {name: values for name, values in by_measure.items() if values != {0.0}} == {"ndcg": {1.0}, "mmd_p": {1.0}}


def test_samples_are_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each comparison says the same, and what has not changed is not said to have drifted by chance."""
    monkeypatch.setattr(drift, "SAMPLE_ROWS", 700)
    one, other = (planted(tmp_path / str(seed), draw(seed, 1200)) for seed in (0, 1))
    assert compare(one, other) == compare(one, other)
    assert value(compare(one, one), "capture:fc@output", "mmd_p") == 1


def shifted(columns: dict[str, Any]) -> None:
    columns["input:x"][:, 4] += 1e6


def moved_constant(columns: dict[str, Any]) -> None:
    columns["input:x"][:, 3] = 4


def missing(columns: dict[str, Any]) -> None:
    columns["input:x"][::2, 0] = np.nan


def swapped(columns: dict[str, Any]) -> None:
    columns["attribution:saliency:x"] = columns["attribution:saliency:x"][:, [5, 1, 2, 3, 4, 0]]


def dead(columns: dict[str, Any]) -> None:
    columns["attribution:saliency:x"] *= 0


def together(columns: dict[str, Any]) -> None:
    """Each feature is distributed as before, and two of them always agree."""
    columns["capture:fc@output"][:, 0] = columns["capture:fc@output"][:, 1]


def grown(columns: dict[str, Any]) -> None:
    columns["capture:fc@output"][:, 1, 2] *= 3


def missing_activations(columns: dict[str, Any]) -> None:
    """The other rows are as before together."""
    columns["capture:fc@output"][::2, 1, 2] = np.nan


def other_classes(columns: dict[str, Any]) -> None:
    columns["prediction"] = np.where(np.arange(300) % 10 == 0, 2 - columns["prediction"], columns["prediction"])


def partly_explained(columns: dict[str, Any]) -> None:
    """Rows without a number have no say in the importance of the others, and one of infinity has none either."""
    columns["attribution:saliency:x"][:100] = np.nan
    columns["attribution:saliency:x"][200, 5] = np.inf


def one_class(columns: dict[str, Any]) -> None:
    columns["prediction"][:] = 1


def unsure(columns: dict[str, Any]) -> None:
    columns["probability"] *= 0.6


def disagreeing(columns: dict[str, Any]) -> None:
    columns["verdict:saliency"][:150] = ["DISAGREES"] * 150


def few_disagreeing(columns: dict[str, Any]) -> None:
    """Fewer than chance would explain, but the rows are the same."""
    verdicts = columns["verdict:saliency"]
    for row in [row for row in range(300) if verdicts[row] == "AGREES"][:6]:
        verdicts[row] = "DISAGREES"


PLANTED = {
    shifted: {("input", "psi")},
    moved_constant: {("input", "psi")},
    missing: {("input", "psi")},
    swapped: {("attribution", "ndcg")},
    partly_explained: set(),
    dead: {("attribution", "ndcg")},
    together: {("capture", "mmd_p")},
    grown: {("capture", "psi"), ("capture", "mmd_p")},
    missing_activations: {("capture", "psi")},
    other_classes: {("prediction", "changed")},
    one_class: {("prediction", "changed"), ("prediction", "psi")},
    unsure: {("probability", "psi")},
    disagreeing: {("verdict", "agrees_drop")},
    few_disagreeing: {("verdict", "agrees_drop")},
}


@pytest.mark.parametrize("change", PLANTED, ids=lambda change: change.__name__)
def test_planted_drift_is_found(tmp_path: Path, change: Any) -> None:
    """And nothing else."""
    columns = draw(1)
    change(columns)
    one = planted(tmp_path / "one", draw(1), labels=LABELS, features=FEATURES)
    assert alarms(compare(one, planted(tmp_path / "two", columns, labels=LABELS, features=FEATURES))) == PLANTED[change]


def test_memory_is_that_of_a_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Far less than that of a column."""
    monkeypatch.setattr(drift, "SAMPLE_ROWS", 200)
    values = np.random.default_rng(0).standard_normal((20_000, 200)).astype(np.float32)
    folder = planted(tmp_path / "job", {"input:x": values, "prediction": np.zeros(20_000, int)}, shard_rows=200)
    compare(folder, folder)  # what is loaded once
    tracemalloc.start()
    try:
        compare(folder, folder)
        assert tracemalloc.get_traced_memory()[1] < values.nbytes / 3
    finally:
        tracemalloc.stop()


def test_bad_rows_are_counted_and_left_out(tmp_path: Path) -> None:
    """A later job with more of them has an alarm, and its other rows are compared."""
    one = planted(tmp_path / "one", draw(0), labels=LABELS, bad=[3])
    other = planted(tmp_path / "other", draw(0), labels=LABELS, bad=range(0, 300, 10))
    found = compare(one, other)
    assert alarms(found) == {("error", "bad_rows_rise")}
    assert value(found, "error", "bad_rows_rise") == pytest.approx(29 / 300)
    assert value(found, "prediction", "changed") == 0
    every = planted(tmp_path / "every", draw(0), labels=LABELS, bad=range(300))
    empty = compare(one, every)
    assert ("error", "bad_rows_rise") in alarms(empty)
    assert empty.not_compared["input:x"] == "no row has a value before, or after"


def test_features_are_matched_by_name(tmp_path: Path) -> None:
    """A model with the same features in another order has no drift; one with another feature is not compared."""
    order = [3, 5, 0, 1, 2, 4]
    columns = draw(0)
    one = planted(tmp_path / "one", draw(0), labels=LABELS, features=FEATURES)
    for name in ("input:x", "attribution:saliency:x"):
        columns[name] = columns[name][:, order]
    names = [FEATURES[place] for place in order]
    assert not compare(one, planted(tmp_path / "other", columns, labels=LABELS, features=names)).alarm
    names[0] = "another"
    found = compare(one, planted(tmp_path / "renamed", columns, labels=LABELS, features=names))
    assert found.not_compared["input:x"] == "its features differ: another, feature 3"
    swapped(columns := draw(0))
    found = compare(one, planted(tmp_path / "swapped", columns, labels=LABELS, features=FEATURES))
    (detail,) = (each.detail for each in found.measures if each.measure == "ndcg")
    assert detail == "first feature 0 -> feature 5"


def test_classes_are_matched_by_name(tmp_path: Path) -> None:
    """A model with the same classes in another order predicts the same."""
    columns = draw(0)
    one = planted(tmp_path / "one", draw(0), labels=LABELS)
    columns["prediction"] = 2 - columns["prediction"]
    assert not compare(one, planted(tmp_path / "other", columns, labels=LABELS[::-1])).alarm
    assert value(compare(one, planted(tmp_path / "same", columns, labels=LABELS)), "prediction", "changed") > 0.3


def test_rows_are_matched_by_id(tmp_path: Path) -> None:
    """In any order; not those whose id occurs twice, nor numbers of rows of other data."""
    columns, ids = draw(0), [f"id-{row}" for row in range(300)]
    one = planted(tmp_path / "one", columns, ids=ids, labels=LABELS)
    turned = {name: values[::-1] for name, values in columns.items()}
    found = compare(one, planted(tmp_path / "two", turned, ids=ids[::-1], labels=LABELS, fingerprint="other"))
    assert (found.same_ids, value(found, "prediction", "changed")) == (300, 0)
    twice = [*ids[:298], "id-5", "new"]
    found = compare(one, planted(tmp_path / "twice", columns, ids=twice, labels=LABELS))
    assert found.same_ids == 297
    numbered = [planted(tmp_path / name, draw(0), fingerprint=name) for name in ("a", "b")]
    assert compare(numbered[0], numbered[1]).same_ids == 0


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    """Other shapes, texts, tensors of several shapes, columns of one job only, and jobs that have not ended."""
    columns = draw(0)
    other = {name: values for name, values in draw(0).items() if name != "probability"}
    other["capture:fc@output"] = np.zeros((300, 3))
    ragged = np.empty(300, object)
    for row in range(300):
        ragged[row] = np.ones((1 + row % 2, 2))
    other["attribution:saliency:x"] = ragged
    one = planted(tmp_path / "one", columns)
    found = compare(one, planted(tmp_path / "other", other, unfinished=1))
    assert found.not_compared == {
        "capture:fc@output": "its rows have the shape [2, 4] before and [3] after",
        "attribution:saliency:x": "it holds texts or files, or its rows differ in shape",
    }
    assert (found.only_before, found.only_after) == (("probability",), ())
    assert (found.unfinished, found.after_rows) == ((tmp_path / "other",), 256)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float64"])
def test_inputs_of_any_type_are_compared(tmp_path: Path, dtype: str) -> None:
    """A value of most rows that becomes another one is drift."""
    values = (np.arange(300)[:, None] % 10 == 0).astype(dtype)
    one = planted(tmp_path / "one", {"input:x": values, "capture:fc@output": values})
    other = planted(tmp_path / "other", {"input:x": values == 0, "capture:fc@output": (values == 0).astype(dtype)})
    assert not compare(one, one).alarm
    assert alarms(compare(one, other)) == {("input", "psi"), ("capture", "psi"), ("capture", "mmd_p")}


def test_outputs_of_a_regression_are_compared(tmp_path: Path) -> None:
    """Those of a classifier are not: its probabilities are."""
    random = np.random.default_rng(0)
    numbers = random.standard_normal((300, 1)).astype(np.float16)
    one = planted(tmp_path / "one", {"output": numbers})
    assert alarms(compare(one, planted(tmp_path / "two", {"output": numbers + np.float16(1)}))) == {("output", "psi")}
    assert not compare(one, planted(tmp_path / "same", {"output": numbers})).alarm
    classifier = planted(tmp_path / "classes", {"output": numbers, "prediction": np.zeros(300, int)})
    assert {each.column for each in compare(classifier, classifier).measures} == {"error", "prediction"}


# The command


def test_exit_statuses_tell_a_drift_from_an_error(tmp_path: Path) -> None:
    """0 without an alarm, 7 with one, 2 for what is wrong; a limit decides."""
    one = planted(tmp_path / "one", draw(1), labels=LABELS, features=FEATURES)
    swapped(columns := draw(1))
    other = planted(tmp_path / "other", columns, labels=LABELS, features=FEATURES)
    done = cutaway("batch", "compare", one, one)
    assert (done.returncode, done.stderr) == (0, "")
    assert "0 alarms" in done.stdout
    done = cutaway("batch", "compare", one, other, columns=160)
    assert (done.returncode, done.stderr) == (7, "")
    assert "ALARM" in done.stdout
    assert "first feature 0 -> feature 5" in done.stdout
    assert cutaway("batch", "compare", one, other, "--limit", "ndcg=0.1, psi=0.3").returncode == 0
    for limit, message in {
        "ndgc=1": "'ndgc' is no limit; did you mean ndcg?",
        "ndcg": "write MEASURE=NUMBER",
        "psi=nan": "must be 0 or more",
    }.items():
        done = cutaway("batch", "compare", one, other, "--limit", limit)
        assert done.returncode == 2
        assert message in done.stderr
    empty = planted(tmp_path / "empty", draw(1), unfinished=5)
    for wrong in (tmp_path, empty):
        done = cutaway("batch", "compare", one, wrong)
        assert done.returncode == 2
        assert done.stderr.startswith("DATA_UNREADABLE [folder]: ")


def test_a_limit_of_a_measure_that_nothing_has_is_an_error(tmp_path: Path) -> None:
    """What is asked and not measured would pass unseen."""
    one = planted(tmp_path / "one", {"probability": np.linspace(0, 1, 100)})
    with pytest.raises(CutawayError, match="measured by ndcg") as caught:
        compare(one, one, {"ndcg": 0.9})
    assert caught.value.reason == Reason.COLUMN_NOT_FOUND
    nothing = planted(tmp_path / "nothing", {"verdict:saliency": ["AGREES"] * 9})
    with pytest.raises(CutawayError, match="no column in common"):
        compare(one, nothing)


def test_programs_read_the_measures(tmp_path: Path) -> None:
    """As JSON, and as Prometheus reads files."""
    one = planted(tmp_path / "one", draw(1), labels=LABELS)
    shifted(columns := draw(1))
    other = planted(tmp_path / "other", columns, labels=LABELS)
    file = tmp_path / "drift.prom"
    done = cutaway("batch", "compare", one, other, "--json", "--prometheus", file)
    assert done.returncode == 7
    document = json.loads(done.stdout)
    Documented("batch compare").check(document)
    families = {each.name: each.samples for each in text_string_to_metric_families(file.read_text())}
    for field, name in (("value", "cutaway_job_drift"), ("alarm", "cutaway_job_drift_alarm")):
        found = {(each.labels["column"], each.labels["measure"]): each.value for each in families[name]}
        assert found == {(each["column"], each["measure"]): each[field] for each in document["measures"]}
    done = cutaway("batch", "compare", one, other, "--prometheus", tmp_path / "nowhere" / "drift.prom")
    assert done.returncode == 2
    assert "[--prometheus]" in done.stderr


def test_rounding_errors_of_a_column_without_variance_are_no_drift(tmp_path: Path) -> None:
    """Such as those of another processor: the permutations of a test see the smallest of differences."""
    columns = {"prediction": np.arange(80) % 3, "probability": np.full(80, 0.5)}
    one, other = (
        planted(tmp_path / name, {**columns, "capture:fc@output": np.full((80, 3), value)}, fingerprint=name)
        for name, value in (("one", 1.0), ("other", 1.0 + 1e-9))
    )
    assert alarms(compare(one, other)) == set()
