"""The report of a job over a table: the importance of named features, and how their attributions are distributed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from cutaway.jobs import Job, Results, read, run
from cutaway.jobs.report import write_report
from cutaway.jobs.report.features import HEIGHT, LEVELS, WIDTH, FeatureValues, contributions, swarm
from examples.tumours.data import held_out, training
from examples.tumours.tumours_adapter import FEATURES, LABELS, TumoursNet
from tests.support.report_pages import Tables, number
from tests.support.tumours import WEIGHTS, tumours_job


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of the example's own job."""
    job = Job.load(tumours_job(tmp_path_factory.mktemp("tumours")))
    run(job)
    write_report(job.output.folder)
    return job.output.folder


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    return read(folder)


@pytest.fixture(scope="module")
def tables(folder: Path) -> Tables:
    return Tables(folder / "_report.html")


def test_the_job_explains_named_features(results: Results) -> None:
    """What goes in is the table in the order of the model's features, and what comes out adds up to the change of the
    logit from the average tumour."""
    np.testing.assert_array_equal(results["input:features"], held_out().features)
    assert results.feature_names("attribution:integrated_gradients:features") == FEATURES
    assert list(results["label"]) == [LABELS[index] for index in held_out().classes]
    assert set(results["targets"]) == {LABELS.index("malignant")}
    network = TumoursNet()
    network.load_state_dict(load_file(WEIGHTS))
    average = float(network(network.mean)[LABELS.index("malignant")].detach())
    change = results["output"][:, LABELS.index("malignant")] - average
    sums = results["attribution:integrated_gradients:features"].sum(axis=1)
    np.testing.assert_allclose(sums, change, rtol=1e-2, atol=1e-2)
    assert np.load(results.folder.path.parent / "average.npy").shape == (1, len(FEATURES))
    assert len(training().classes) + results.rows == 569


def test_importance_is_numpys(tables: Tables, results: Results) -> None:
    """The mean magnitude of each feature and its deviation, over all rows and by predicted class; the largest first."""
    sizes = np.abs(results["attribution:integrated_gradients:features"]).astype(np.float64)
    order = np.argsort(-sizes.mean(axis=0), kind="stable")[:20]
    lines = [line for line in tables.sections["features"] if line[0] in FEATURES][:20]
    assert [line[0] for line in lines] == [FEATURES[index] for index in order]
    predictions = np.asarray(results["prediction"])
    for index, line in zip(order, lines):
        mean, spread = line[1].split(" ± ")
        assert number(mean) == pytest.approx(sizes[:, index].mean(), rel=0.01)
        assert number(spread) == pytest.approx(sizes[:, index].std(), rel=0.01)
        for place, members in enumerate((predictions == 0, predictions == 1)):
            assert number(line[2 + place]) == pytest.approx(sizes[members, index].mean(), rel=0.01)


def test_each_row_is_a_dot(folder: Path, results: Results) -> None:
    """All 171 rows for each of the shown features; on the right what raises the target."""
    text = (folder / "_report.html").read_text("utf-8")
    charts = re.findall(r'<svg class="swarm".*?</svg>', text, re.DOTALL)
    assert len(charts) == 2 * 20
    dots = re.findall(r"M([\d.]+) [\d.]+h0", charts[0])
    assert len(dots) == results.rows == 171
    sizes = np.abs(results["attribution:integrated_gradients:features"]).mean(axis=0)
    values = results["attribution:integrated_gradients:features"][:, sizes.argmax()]
    assert sum(float(place) > WIDTH / 2 for place in dots) == pytest.approx((values > 0).sum(), abs=3)


def test_cards_name_the_strongest_features(folder: Path, results: Results) -> None:
    """With their values in the row, and their attributions."""
    text = (folder / "_report.html").read_text("utf-8")
    card = text[text.index('<article class="card"') :].partition("</article>")[0]
    row = int(re.findall(r'data-row="(\d+)"', card)[0])
    values = results["attribution:integrated_gradients:features"][row]
    strongest = [FEATURES[index] for index in np.argsort(-np.abs(values), kind="stable")[:6]]
    assert re.findall(r'<th>([\w ]+) <span class="quiet">', card)[:6] == strongest


def test_dots_keep_their_places() -> None:
    """Zero in the middle, the limit at the edges and what exceeds it too; equal values are side by side; each has the
    colour of its level."""
    paths = swarm(np.array([0.0, 1.0, -1.0, 5.0, 0.0, np.nan]), np.array([0, 6, 3, 6, 1, 2]), 1.0)
    assert len(paths) == LEVELS
    points = [re.findall(r"M([\d.]+) ([\d.]+)h0", path) for path in paths]
    assert [len(each) for each in points] == [1, 1, 1, 1, 0, 0, 2]
    middle = {float(x) for each in (points[0], points[1], points[2]) for x, _ in each}
    assert middle == {WIDTH / 2}
    heights = [float(each[0][1]) for each in (points[0], points[1], points[2])]
    assert len(set(heights)) == 3
    assert {x for x, _ in points[6]} == {str(WIDTH - 4.0)}
    crowd = swarm(np.zeros(500), np.zeros(500, int), 1.0)
    ys = [float(y) for _, y in re.findall(r"M([\d.]+) ([\d.]+)h0", crowd[0])]
    assert min(ys) >= 0
    assert max(ys) <= HEIGHT


def test_colours_are_ranks() -> None:
    """The lowest values have the first colour and the highest the last; one value alone is in the middle."""
    values = np.stack([np.arange(70.0), np.zeros(70), np.arange(70.0) % 2], axis=1)
    features = FeatureValues(("a", "b", "c"), every=1)
    features.add(range(70), values, [None] * 70, values)
    chart = features.chart("x", {None: "all rows"})
    assert chart is not None
    by_name = {one.name: [path.count("M") for path in one.dots] for one in chart.features}
    assert by_name["a"] == [10] * LEVELS
    assert by_name["b"] == [0, 0, 0, 70, 0, 0, 0]
    assert by_name["c"] == [35, 0, 0, 0, 0, 0, 35]
    assert chart.features[0].by_class == []


def test_features_without_names_or_values() -> None:
    """Have their number, and one colour."""
    found = contributions((), np.array([0.0, -4.0, 2.0]), None, 2)
    assert found == [("[1]", None, -4.0, -1.0), ("[2]", None, 2.0, 0.5)]
    features = FeatureValues((), every=2)
    features.add(range(4), np.ones((4, 2)), [0, 1, 0, 1], None)
    chart = features.chart("x", {0: "cat", 1: "dog"})
    assert chart is not None
    assert not chart.coloured
    assert chart.rows == 2
    assert [name for name, _, _ in chart.features[0].by_class] == ["cat", "dog"]
    assert FeatureValues((), every=1).chart("x", {}) is None
