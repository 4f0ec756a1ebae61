"""A job as one HTML file: its numbers are numpy's, its pictures are there, and it needs no server."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from playwright.sync_api import Browser

from cutaway.contract.errors import CutawayError, Reason
from cutaway.jobs import Job, Results, read, report, run
from cutaway.jobs.batch_inputs import Label
from cutaway.jobs.columns import Cells
from cutaway.jobs.manifest import Folder, Manifest
from cutaway.jobs.records import Layout, Records
from cutaway.jobs.sources import Unreadable
from examples.tumours.tumours_adapter import FEATURES
from tests.support.cli import cutaway
from tests.support.jobs import digits, digits_job, embedded
from tests.support.pages import Inspector, opened
from tests.support.tumours import tumours_job

ROWS = 120
BAD = 7
MISLABELLED = (3, 50, 90)
REQUEST = {
    "attributions": [
        {"method": "integrated_gradients", "n_steps": 16},
        {"method": "saliency"},
        {"method": "layer_grad_cam", "layer": "conv2"},
    ],
    "captures": [{"layer": "relu*"}, {"layer": "fc1"}],
}


@pytest.fixture(scope="module")
def job(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job over digits, some with a wrong label, one that cannot be read; and its report."""
    folder = tmp_path_factory.mktemp("report") / "explained"
    data = digits(ROWS)
    labels = data.by_name["digit"].copy()
    labels[list(MISLABELLED)] = (labels[list(MISLABELLED)] + 1) % 10
    pixels: list[Any] = list(data.by_name["pixels"])
    pixels[BAD] = Unreadable("the file is torn")
    data.by_name.update(digit=labels, pixels=pixels)
    output = {"folder": folder, "shard_rows": 32, "keep_inputs": True}
    run(digits_job(store, folder, data=data, request=REQUEST, output=output))
    assert report(folder) == folder / "_report.html"
    return folder


@pytest.fixture(scope="module")
def results(job: Path) -> Results:
    return read(job)


@contextmanager
def opened_report(browser: Browser, page: Path, fragment: str = "", **options: Any) -> Iterator[Inspector]:
    """The file in a window; when the block ends, nothing went wrong in it, and its policy refused nothing."""
    with opened(browser, page.as_uri(), **options) as inspector:
        inspector.page.goto(page.as_uri() + fragment)
        inspector.page.wait_for_selector("#provenance")
        inspector.page.wait_for_selector("text=Reading the tensors", state="detached")
        yield inspector


@pytest.fixture(scope="module")
def page(browser: Browser, job: Path) -> Iterator[Inspector]:
    """The report of the digits."""
    with opened_report(browser, job / "_report.html") as inspector:
        yield inspector


def lines_of(inspector: Inspector, panel: str) -> list[list[str]]:
    """The cells of the table in a panel, line by line."""
    lines = inspector.page.locator(f"section:has(#{panel}) > .wide tbody tr").all()
    return [[" ".join(text.split()) for text in line.locator("th, td").all_inner_texts()] for line in lines]


def cards_in(inspector: Inspector, panel: str) -> list[int]:
    """The rows of the cards in a panel, when each has its pictures."""
    cards = inspector.page.locator(f"section:has(#{panel}) .card")
    return [int(card.get_attribute("data-row") or "") for card in cards.all()]


def number(text: str) -> float:
    return float(text.split()[0].replace("−", "-").replace(",", ""))


def good_rows(results: Results) -> np.ndarray[Any, Any]:
    return np.flatnonzero([reason is None for reason in results["error"]])


@pytest.mark.slow
def test_verdicts_and_deltas_are_counted(page: Inspector, results: Results) -> None:
    """By method: how many rows have which verdict, and how deltas spread."""
    lines = {line[0].split()[0]: line for line in lines_of(page, "outcomes")}
    assert list(lines) == ["integrated_gradients", "saliency", "layer_grad_cam"]
    for name, line in lines.items():
        verdicts = [verdict for verdict in results[f"verdict:{name}"] if verdict is not None]
        assert all(f"{verdict.lower()} {verdicts.count(verdict)}" in line[1] for verdict in set(verdicts))
        assert number(line[2]) == pytest.approx(np.nanmax(results[f"largest_error:{name}"]), rel=0.01)
    sizes = np.abs(results["convergence_delta:integrated_gradients"])
    sizes = sizes[np.isfinite(sizes)]
    assert len(sizes) == ROWS - 1
    expected = (np.median(sizes), np.quantile(sizes, 0.99), sizes.max())
    assert [number(text) for text in lines["integrated_gradients"][3:6]] == pytest.approx(expected, rel=0.01)
    assert lines["saliency"][3:6] == ["–"] * 3


@pytest.mark.slow
def test_confusion_matrix_is_numpys(page: Inspector, results: Results) -> None:
    """A count for each label and prediction; the bad row has none."""
    good = good_rows(results)
    expected = np.zeros((10, 10), int)
    np.add.at(expected, (np.asarray(results["label"])[good], np.asarray(results["prediction"])[good]), 1)
    found = [[int(cell) for cell in line[1:-1]] for line in lines_of(page, "confusion")]
    np.testing.assert_array_equal(found, expected)
    assert expected.sum() == ROWS - 1


@pytest.mark.slow
def test_activations_are_numpys(page: Inspector, results: Results) -> None:
    """Mean, deviation, extremes, zeros and dead units of each captured place."""
    lines = {line[0]: line for line in lines_of(page, "layers")}
    assert set(lines) == {f"capture:{name}@output" for name in ("relu1", "relu2", "relu3", "fc1")}
    for name, line in lines.items():
        values = results[name][good_rows(results)].astype(np.float64)
        expected = [values.mean(), values.std(), values.min(), values.max()]
        assert [number(text) for text in line[2:6]] == pytest.approx(expected, rel=0.01)
        assert number(line[6]) == pytest.approx(100 * (values == 0).mean(), abs=0.06)
        axes = tuple(axis for axis in range(values.ndim) if axis != 1)
        dead = np.flatnonzero((values == 0).all(axis=axes))
        assert line[7].startswith(f"{len(dead)} of {values.shape[1]} {', '.join(map(str, dead[:12]))}".strip())
    assert lines["capture:fc1@output"][6] == "0.0 %"


def test_rows_worth_a_look_are_the_right_ones(page: Inspector, results: Results) -> None:
    """The most and least confident rows, and those that are surest against their label, in that order."""
    good, sure = good_rows(results), np.asarray(results["probability"])
    wrong = [row for row in good if results["label"][row] != results["prediction"][row]]
    assert set(MISLABELLED) <= set(wrong)
    expected = {
        "most-confident-in-another-class-than-the-label": sorted(wrong, key=lambda row: (-sure[row], row)),
        "least-confident": sorted(good, key=lambda row: (sure[row], row)),
        "most-confident": sorted(good, key=lambda row: (-sure[row], row)),
    }
    for panel, rows in expected.items():
        assert cards_in(page, panel) == rows[:8]
        pictures = page.page.locator(f"section:has(#{panel}) .card canvas")
        assert pictures.count() == 4 * len(rows[:8])  # the digit and three explanations


def test_bad_rows_are_named(page: Inspector) -> None:
    """Why, how many, and which; and what is said of the whole job."""
    assert lines_of(page, "bad") == [["DATA_UNREADABLE", "1", f"digit-{BAD} inputs.image: the file is torn"]]
    facts = dict(zip(page.texts("#folder ~ .facts dt, div:has(> #folder) ~ .facts dt"), page.texts(".facts dd")))
    assert (facts["rows"], facts["bad rows"], facts["of these agree"]) == (str(ROWS), "1", "100 %")


def test_mean_pictures_show_the_means(page: Inspector, results: Results) -> None:
    """The mean attribution of a class is drawn as what it is: its sign by colour, its size by how strong that is."""
    predictions = np.ma.filled(results["prediction"], -1)
    values = results["attribution:integrated_gradients:image"]
    means = {
        str(digit): values[predictions == digit].mean(axis=0)[0] for digit in np.unique(predictions[good_rows(results)])
    }
    figures = page.page.locator("section[aria-label='attribution:integrated_gradients:image'] figure")
    assert figures.count() == len(means)
    scale = np.abs(list(means.values())).max()  # one for all classes
    for figure, (name, mean) in zip(figures.all(), means.items()):
        assert figure.inner_text() == f"{name} {(predictions == int(name)).sum()} rows"
        red, _, blue = np.moveaxis(_pixels(figure).reshape(*mean.shape, 4)[..., :3], -1, 0)
        strong = np.abs(mean) > 0.2 * scale
        np.testing.assert_array_equal((red > blue)[strong], (mean > 0)[strong])
        assert (np.abs(red - blue)[np.abs(mean) < 0.01 * scale] < 30).all()


def _pixels(figure: Any) -> np.ndarray[Any, Any]:
    script = "c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]"
    return np.array(figure.locator("canvas").evaluate(script), int)


@pytest.mark.slow
def test_page_fetches_nothing(browser: Browser, job: Path) -> None:
    """One file: no font, picture or script from anywhere else; one script that runs, which the page's policy names."""
    with opened(browser, "") as inspector:
        requested: list[str] = []
        inspector.page.on("request", lambda request: requested.append(request.url))
        inspector.page.goto((job / "_report.html").as_uri())
        inspector.page.wait_for_selector(".card canvas")
        assert requested == [(job / "_report.html").as_uri()]
        assert inspector.serious() == []
    text = (job / "_report.html").read_text("utf-8")
    (script,) = re.findall(r'<script type="module">(.*?)</script>', text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'sha256-{digest}';" in text


@pytest.mark.slow
def test_every_row_has_a_link(browser: Browser, page: Inspector, job: Path) -> None:
    """``#row-17`` leads to the row, also where a filter hides it from the table; a row that is opened has its link."""
    with opened_report(browser, job / "_report.html", "#row-17") as inspector:
        assert inspector.texts("#one-row") == ["Row digit-17"]
        inspector.page.select_option("label:has-text('As labelled') select", "no")
        inspector.page.evaluate("location.hash = '#row-18'")
        inspector.page.wait_for_selector("#one-row:has-text('digit-18')")
        inspector.page.locator(".card .link").first.click()
        row = inspector.page.locator(".card").first.get_attribute("data-row")
        inspector.page.wait_for_selector(f"#one-row:has-text('digit-{row}')")
        assert inspector.page.url.endswith(f"#row-{row}")
        assert inspector.page.locator(".one-row .picture canvas").count() >= 3
        assert inspector.texts("button:text-is('Ask the live model')") == []


@pytest.mark.slow
def test_filters_show_the_rows_that_match(page: Inspector, results: Results) -> None:
    """Rows by predicted class, label, checks and correctness, in the table and among the examples."""
    good = good_rows(results)
    wrong = [row for row in good if results["label"][row] != results["prediction"][row]]
    expected: dict[tuple[str, str], list[int]] = {
        ("As labelled", "no"): wrong,
        ("Predicted", "3"): [row for row in good if results["prediction"][row] == 3],
        ("Label", "4"): np.flatnonzero(results["label"] == 4).tolist(),
        ("Checks", "bad row"): [BAD],
    }
    for (name, value), rows in expected.items():
        page.page.select_option(f"label:has-text('{name}') select", value)
        assert page.texts(".rows tbody th") == [f"digit-{row}" for row in rows][:25]
        assert page.texts(".filters > .muted") == [f"{len(rows)} of {ROWS} rows"]
        assert {*cards_in(page, "least-confident"), *cards_in(page, "most-confident")} <= set(rows)
        page.page.click("button:text-is('Show all')")
    assert len(cards_in(page, "least-confident")) == 8


# Tables of named features.


@pytest.fixture(scope="module")
def tumours(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The results of the example's own job."""
    job = Job.load(tumours_job(tmp_path_factory.mktemp("tumours")))
    run(job)
    report(job.output.folder)
    return read(job.output.folder)


@pytest.mark.slow
def test_importance_is_numpys(browser: Browser, tumours: Results) -> None:
    """The mean magnitude of each feature and its deviation, over all rows and by predicted class, the largest first; a
    dot for each row, on the right what raises the target; cards with the strongest features and their values."""
    values = tumours["attribution:integrated_gradients:features"].astype(np.float64)
    sizes, classes = np.abs(values), tumours.manifest.labels
    order = np.argsort(-sizes.mean(axis=0), kind="stable")[:20]
    with opened_report(browser, tumours.folder.report) as inspector:
        lines = lines_of(inspector, "features")[:20]
        charts = inspector.page.locator(".swarm").all()
        dots = "".join(path.get_attribute("d") or "" for path in charts[0].locator("path[class]:not(.zero)").all())
        card = inspector.page.locator(".card").first
        row = int(card.get_attribute("data-row") or "")
        strongest = card.locator(".named-bars").first.locator("th").all_inner_texts()
    assert [line[0] for line in lines] == [FEATURES[index] for index in order]
    members = [np.asarray(tumours["prediction"]) == index for index in range(len(classes))]
    for index, line in zip(order, lines):
        mean, spread = line[1].split(" ± ")
        expected = [sizes[:, index].mean(), sizes[:, index].std(), *(sizes[own, index].mean() for own in members)]
        assert [number(mean), number(spread), *map(number, line[2:4])] == pytest.approx(expected, rel=0.01)
    assert len(charts) == 2 * 20
    places = [float(place) for place in re.findall(r"M([\d.]+) [\d.]+h0", dots)]
    assert len(places) == tumours.rows == 171
    assert sum(place > 210 for place in places) == pytest.approx((values[:, order[0]] > 0).sum(), abs=3)
    expected_names = [FEATURES[index] for index in np.argsort(-sizes[row], kind="stable")[:6]]
    assert [text.splitlines()[0] for text in strongest] == expected_names
    assert number(strongest[0].splitlines()[1]) == pytest.approx(
        tumours["input:features"][row, FEATURES.index(expected_names[0])], rel=0.01
    )


# Folders made by hand, for what a healthy model does not show.


def handmade(
    folder: Path,
    cells: list[Cells],
    rows: int,
    labels: list[Any] | None = None,
    names: list[str] | None = None,
    label_type: Any = None,
) -> Path:
    """A folder of one shard that holds ``cells``; a list of arrays is a column of ragged tensors, labels are texts."""
    folder.mkdir(parents=True, exist_ok=True)
    single = [[_of_row(each, row) for each in cells] for row in range(rows)]
    layout = Layout.of(single, None if labels is None else label_type or pa.string(), "auto")
    manifest = Manifest(
        job={"data": {"path": "somewhere/rows.parquet"}},
        rows=rows,
        shard_rows=rows,
        model="made",
        version="1",
        labels=["cat", "dog"],
        device="cpu",
        data_type="float32",
        seed=0,
        versions={"cutaway": "1"},
        columns={},
        digest="",
        fingerprint="",
        weights_sha256="",
        files_sha256="",
        layout="",
    ).with_layout(layout)
    manifest.save(Folder(folder))
    records = Records(layout, 0, names or [f"r{row}" for row in range(rows)], labels or [])
    for row in range(rows):
        records.put([row], single[row])
    parquet.write_table(records.table({"cutaway": "{}"}), Folder(folder).part(0))
    return report(folder)


def _of_row(cells: Cells, row: int) -> Cells:
    values: Any = cells.values[row : row + 1]
    return cells._replace(values=np.stack(values) if isinstance(values[0], np.ndarray) else values)


def classified(probabilities: list[float], predictions: list[int]) -> list[Cells]:
    return [
        Cells("prediction", {"kind": "prediction"}, np.array(predictions)),
        Cells("probability", {"kind": "probability"}, np.array(probabilities)),
    ]


def checked(name: str, verdicts: list[str], errors: list[float], reasons: list[str]) -> list[Cells]:
    about = {"attribution": name, "method": "Saliency"}
    return [
        Cells(f"verdict:{name}", {"kind": "verdict", **about}, list(verdicts)),
        Cells(f"reason:{name}", {"kind": "reason", **about}, list(reasons)),
        Cells(f"largest_error:{name}", {"kind": "largest_error", **about}, np.array(errors)),
    ]


EVIL = '</script><script>intrude()</script><img src=x onerror="intrude()">'


def texts(tokens: list[list[str]]) -> list[Cells]:
    """Four texts, explained by token."""
    numbers = ([2, 1, 0], [-3, 0.5], [1, -1], [3, 0, 0])
    values: list[Any] = [np.array(own, np.float32)[: len(several)] for own, several in zip(numbers, tokens)]
    about = {"attribution": "lig", "method": "LayerIntegratedGradients", "layer": "words"}
    wide: list[Any] = [np.ones((len(several), 5), np.float32) for several in tokens]
    return [
        *classified([0.9, 0.8, 0.6, 0.7], [1, 0, 1, 1]),
        Cells("attribution:lig:words", {"kind": "attribution", **about}, wide),
        Cells("token_attribution:lig:ids", {"kind": "token_attribution", "input": "ids", **about}, values),
        Cells("tokens", {"kind": "tokens"}, tokens),
    ]


TOKENS = [["good", "film", "[PAD]"], ["bad", EVIL], ["good", "bad"], ["good", "[PAD]", "[PAD]"]]


@pytest.mark.slow
def test_texts_are_coloured_by_token(browser: Browser, tmp_path: Path) -> None:
    """Each token has its number; padding at the end is left out; means are by class and token; the embeddings' own
    numbers are no picture."""
    with opened_report(browser, handmade(tmp_path, texts(TOKENS), 4)) as inspector:
        first = inspector.page.locator("section:has(#most-confident) .card").first
        assert first.locator(".tokens li").all_inner_texts() == ["good\n2", "film\n1"]
        assert inspector.texts("section:has(#means) .tokens li") == ["good × 3\n2"]  # of class dog: 2, 1 and 3
        assert inspector.page.locator(".miniatures canvas").count() == 0


def test_what_others_wrote_stays_text(browser: Browser, tmp_path: Path) -> None:
    """Tokens, names, labels and reasons come from data: none of them becomes part of the page."""
    cells = [*texts(TOKENS), *checked("lig", ["DISAGREES"] * 4, [0.5, 0.25, 0.125, 1.0], [EVIL] * 4)]
    page = handmade(tmp_path, cells, 4, labels=[Label(EVIL, None)] * 4, names=[EVIL] * 4)
    text = page.read_text("utf-8")
    assert "intrude" not in text
    assert text.count("<script") == text.count("</script>") == 3  # two files, and the page's own
    with opened_report(browser, page) as inspector:
        assert lines_of(inspector, "findings")[0][4] == EVIL
        assert inspector.page.locator("main img, main script").count() == 0
        assert inspector.page.locator(f"text={EVIL}").count() > 10


@pytest.mark.slow
def test_what_was_not_checked_is_no_problem(browser: Browser, tmp_path: Path) -> None:
    """Rows that no check applies to are counted and not listed, and belong to no check before or after them; rows that
    agree are no problem."""
    verdicts = ["INCONCLUSIVE", "NOT_APPLICABLE", "NOT_APPLICABLE", "INCONCLUSIVE", "INCONCLUSIVE", "AGREES"]
    cells = checked("a", verdicts, [0.5, 0.0, 0.0, 0.25, 0.25, 0.75], ["", "no", "no", "", "", ""])
    with opened_report(browser, handmade(tmp_path, cells, 6)) as inspector:
        assert [line[0] for line in lines_of(inspector, "findings")] == ["r0", "r3 – r4, 2 rows with the same outcome"]
        assert "no check applies 2" in lines_of(inspector, "outcomes")[0][1]
    healthy = checked("a", ["AGREES", "NOT_APPLICABLE"], [0.5, 0.0], ["", ""])
    with opened_report(browser, handmade(tmp_path / "healthy", healthy, 2)) as inspector:
        assert inspector.page.locator("#findings").count() == 0


def attribution(values: Any) -> Cells:
    return Cells(
        "attribution:a:x", {"kind": "attribution", "attribution": "a", "method": "Saliency", "input": "x"}, values
    )


def test_rows_that_disagree_most_come_first(browser: Browser, tmp_path: Path) -> None:
    """What disagrees comes before a larger error that says nothing, an error that is no number before all; rows that
    were checked together are one line; each has its picture."""
    cells = [
        *classified([0.5] * 6, [0] * 6),
        attribution(np.random.default_rng(0).normal(size=(6, 1, 4, 4))),
        *checked(
            "a",
            ["AGREES", "DISAGREES", "DISAGREES", "INCONCLUSIVE", "DISAGREES", "DISAGREES"],
            [0.0, 0.2, 0.2, 9.0, 0.7, float("nan")],
            ["", "off", "off", "nothing to say", "far off", "not a number"],
        ),
    ]
    with opened_report(browser, handmade(tmp_path, cells, 6)) as inspector:
        assert [(line[0], line[2], line[3]) for line in lines_of(inspector, "findings")] == [
            ("r5", "✗ disagrees", "NaN"),
            ("r4", "✗ disagrees", "0.7"),
            ("r1 – r2, 2 rows with the same outcome", "✗ disagrees", "0.2"),
            ("r3", "? inconclusive", "9"),
        ]
        assert cards_in(inspector, "findings") == [5, 4, 1]
        assert inspector.page.locator("section:has(#findings) canvas").count() == 3


@pytest.mark.parametrize(
    "shape",
    [
        (7,),
        (3, 8, 6),
        *(pytest.param(shape, marks=pytest.mark.slow) for shape in [(), (1, 5), (2, 3, 4, 5), (3, 100, 120)]),
    ],
)
def test_every_shape_has_a_picture(shape: tuple[int, ...], browser: Browser, tmp_path: Path) -> None:
    """Numbers, vectors, tables, images and volumes; with numbers that are none, and with zeros alone. A large picture
    is reduced, and the page says so."""
    values = np.random.default_rng(0).normal(size=(4, *shape))
    values[1] = np.nan
    values[2] = 0
    cells = [
        *classified([0.5] * 4, [0, 0, 1, 1]),
        attribution(values),
        Cells("input:x", {"kind": "input", "input": "x"}, values.astype(np.float32)),
        Cells(
            "capture:m@output",
            {"kind": "capture", "layer": "m", "point": "output", "call": "0"},
            values.astype(np.float32),
        ),
    ]
    page = handmade(tmp_path, cells, 4)
    with opened_report(browser, page) as inspector:
        drawn = inspector.page.locator("section:has(#most-confident) .card:has(canvas, .named-bars)")
        assert drawn.count() == 4
        assert "not finite" in lines_of(inspector, "layers")[0][7]
        reduced = inspector.page.locator("text=Reduced to means of blocks: attribution:a:x, input:x.").count()
        assert bool(reduced) == (max(shape, default=0) > 96)
        inspector.page.click(".card .link >> nth=0")
        inspector.page.wait_for_selector(".one-row .explanation figure")


def test_a_bare_result_has_a_page(browser: Browser, tmp_path: Path) -> None:
    """A job without classes, checks or explanations, whose captures and outputs differ in shape: no numbers."""
    ragged: list[Any] = [np.ones((length, 4), np.float32) for length in (1, 2, 3)]
    cells = [
        Cells("capture:m@output", {"kind": "capture", "layer": "m", "point": "output", "call": "0"}, ragged),
        Cells("output:boxes", {"kind": "output"}, ragged),
    ]
    with opened_report(browser, handmade(tmp_path, cells, 3)) as inspector:
        assert [line[1:4] for line in lines_of(inspector, "layers")] == [["varies", "1", "0"]]
        assert cards_in(inspector, "the-first-rows") == [0, 1, 2]


@pytest.mark.slow
def test_a_long_job_is_cut(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of evenly spaced rows and of examples are inside, lines of evenly spaced rows and of examples; what is
    said of all rows is said of the evenly spaced ones, and the page says which part it has."""
    rows = 192  # three batches
    values = np.arange(rows, dtype=np.float32)[:, None] * np.ones((1, 8), np.float32)
    capture = Cells("capture:m@output", {"kind": "capture", "layer": "m", "point": "output", "call": "0"}, values)
    cells = [
        *classified([(row * 37 % rows + 1) / (rows + 1) for row in range(rows)], [0] * rows),
        attribution(values),
        capture,
    ]
    module = sys.modules[report.__module__]  # its name in the package is the function's
    monkeypatch.setattr(module, "TENSOR_BYTES", 20 * 2 * values[0].nbytes)
    monkeypatch.setattr(module, "ROWS", rows // 2)
    with opened_report(browser, handmade(tmp_path, cells, rows)) as inspector:
        note = inspector.texts("section:has(#folder) > p")[0]
        assert "Tensors are those of one row in 16, and of examples." in note
        assert re.search(r"This file has (\d+) of 192 rows", note)
        ((_, _, mean, *_),) = lines_of(inspector, "layers")
        assert number(mean) == np.arange(0, rows, 16).mean()
        ordered = sorted(range(rows), key=lambda row: row * 37 % rows)
        for panel, examples in (("least-confident", ordered[:8]), ("most-confident", ordered[:-9:-1])):
            assert cards_in(inspector, panel) == examples
            assert any(row % 16 for row in examples)
            assert inspector.page.locator(f"section:has(#{panel}) .card .named-bars").count() == 8


@pytest.mark.slow
def test_unfinished_job_says_so(browser: Browser, job: Path, tmp_path: Path) -> None:
    """A report of what is there names how much of it is there; of nothing there is none."""
    shutil.copytree(job, tmp_path / "half")
    for part in sorted((tmp_path / "half").glob("part-*"))[2:]:
        part.unlink()
    with opened_report(browser, report(tmp_path / "half")) as inspector:
        assert f"64 of {ROWS}" in inspector.texts(".facts dd")
        assert inspector.texts("text=The job has not ended: 64 rows were written.")
    for part in (tmp_path / "half").glob("part-*"):
        part.unlink()
    for empty in (tmp_path / "half", tmp_path / "nowhere"):
        with pytest.raises(CutawayError) as caught:
            report(empty)
        assert caught.value.reason == Reason.DATA_UNREADABLE


def test_command_writes_the_page(job: Path, tmp_path: Path) -> None:
    """``cutaway batch report`` writes the page that Python does, and says where; of no job it says so, in one line."""
    shutil.copytree(job, tmp_path / "job")
    (tmp_path / "job" / "_report.html").unlink()
    done = cutaway("batch", "report", tmp_path / "job")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"written: {tmp_path / 'job' / '_report.html'}\n"
    assert (tmp_path / "job" / "_report.html").read_text("utf-8") == (job / "_report.html").read_text("utf-8")
    none = cutaway("batch", "report", tmp_path)
    assert (none.returncode, none.stdout) == (2, "")
    assert none.stderr.startswith("DATA_UNREADABLE [folder]: ")


def test_the_file_tells_nothing_of_this_machine(job: Path) -> None:
    """Its manifest has the name of the data set alone, and no path."""
    manifest = json.loads(embedded(job / "_report.html")["_manifest.json"])
    assert str(job.parent) not in json.dumps(manifest)
    assert not {"layout", "question", "digest"} & manifest.keys()


def test_damaged_shard_is_named(job: Path, tmp_path: Path) -> None:
    """Which of the files cannot be read."""
    shutil.copytree(job, tmp_path / "torn")
    part = tmp_path / "torn" / "part-00001.parquet"
    part.write_bytes(part.read_bytes()[:-100])
    with pytest.raises(CutawayError, match=r"part-00001\.parquet cannot be read"):
        report(tmp_path / "torn")


LONG = """
import resource, sys
from pathlib import Path
from cutaway.jobs import report
sys.modules[report.__module__].TENSOR_BYTES = 2**18
report(Path(sys.argv[1]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
"""Writes a report, and says how many MiB the process had at most."""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux")
def test_memory_is_that_of_a_few_rows(job: Path, tmp_path: Path) -> None:
    """Twenty times the shards take no more than a few MiB more, once the file is full."""
    shutil.copytree(job, tmp_path / "long")
    parts = sorted(job.glob("part-*"))
    for index in range(len(parts), 20 * len(parts)):
        shutil.copy(parts[index % 3], tmp_path / "long" / f"part-{index:05d}.parquet")
    most = [
        float(subprocess.run([sys.executable, "-c", LONG, folder], capture_output=True, text=True, check=True).stdout)
        for folder in (job, tmp_path / "long")
    ]
    assert most[1] - most[0] < 24


MEASURING = """() => ({
    scroll: document.documentElement.scrollWidth,
    pictures: [...document.querySelectorAll(".miniatures canvas")].map(one => one.getBoundingClientRect().width),
    wide: [...document.querySelectorAll("main *")].filter(one => !one.closest(".wide") &&
        one.getBoundingClientRect().right > innerWidth + 1).map(one => one.tagName + "." + one.className),
    beyond: [...document.querySelectorAll(".wide:has(.paragraphs)")].map(one => one.scrollWidth - one.clientWidth),
})"""


@pytest.mark.parametrize("width", [pytest.param(1920, marks=pytest.mark.slow), 390])
@pytest.mark.parametrize("kind", ["pictures", "words"])
def test_nothing_overflows_and_every_picture_is_there(
    browser: Browser, job: Path, tmp_path: Path, kind: str, width: int
) -> None:
    """Wide or narrow, only tables scroll sideways, and each inside its frame; also with a row opened. Where a table of
    texts has no room, its rows are paragraphs."""
    long = [["unbreakable" * 30, "film"], *[["good", "bad"]] * 3]
    path = job / "_report.html"
    if kind == "words":
        path = handmade(tmp_path, texts(long), 4, names=["an-id-without-a-place-to-break-" * 8] * 4)
    with opened_report(browser, path, "#row-0", viewport={"width": width, "height": 900}) as inspector:
        measured = inspector.page.evaluate(MEASURING)
    assert measured["scroll"] <= width
    assert measured["wide"] == []
    assert measured["beyond"]
    assert width > 390 or not any(measured["beyond"])
    assert all(side >= 60 for side in measured["pictures"])
    assert bool(measured["pictures"]) == (kind == "pictures")


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "ground"), [("light", 240), ("dark", 30)])
def test_page_is_light_or_dark(browser: Browser, job: Path, scheme: str, ground: int) -> None:
    """As the reader's system is."""
    with opened_report(browser, job / "_report.html", color_scheme=scheme) as inspector:
        colour = inspector.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert inspector.serious() == []
    assert np.abs(np.array(re.findall(r"\d+", colour), int) - ground).max() < 20


# A model that predicts a number.


def test_a_regression_is_shown_without_classes(browser: Browser, tmp_path: Path) -> None:
    """Predictions and residuals of each row, in words and as dots; filters and orders by them, and none by class."""
    rng = np.random.default_rng(0)
    predicted = rng.normal(50, 10, (40, 1)).astype(np.float32)
    labels = [None if row == 3 else Label(repr(50 + row / 4), None) for row in range(40)]
    cells = [
        Cells("output", {"kind": "output", "output": "output"}, predicted),
        Cells("targets", {"kind": "targets"}, np.zeros(40, np.int64)),
        Cells("attribution:saliency:age", {"kind": "attribution", "attribution": "saliency", "input": "age"},
              rng.normal(size=40)),
    ]  # fmt: skip
    page = handmade(tmp_path / "made", cells, 40, labels, label_type=pa.float64())
    results = read(tmp_path / "made")
    residuals, values = results["residual"], predicted[:, 0].astype(np.float64)
    np.testing.assert_array_equal(residuals, np.where(np.arange(40) == 3, np.nan, 50 + np.arange(40) / 4 - values))
    known = np.delete(residuals, 3)
    furthest = np.argsort(-np.abs(known), kind="stable")
    with opened_report(browser, page, "#row-5") as inspector:
        filters = inspector.texts(".filters label")
        assert [text.splitlines()[0] for text in filters] == ["Predicted number", "Residual"]
        first = lines_of(inspector, "rows")[5]
        assert first[0] == "r5"
        assert [number(text) for text in first[1:4]] == pytest.approx([51.25, values[5], residuals[5]], rel=1e-3)
        words = dict(zip(inspector.texts(".one-row dt"), inspector.texts(".one-row dd")))
        assert words.keys() == {"label", "prediction", "residual"}
        facts = inspector.page.locator("section:has(#residuals) dd").all_inner_texts()
        shares = 1 - (known**2).sum() / ((np.delete(50 + np.arange(40) / 4, 3) - 54.928) ** 2).sum()
        expected = [39, np.abs(known).mean(), np.sqrt((known**2).mean()), known.mean(), shares]
        assert [number(text) for text in facts] == pytest.approx(expected, rel=2e-3)
        assert inspector.page.locator(".scatter circle").count() == 39
        assert cards_in(inspector, "highest-predictions") == np.argsort(-values, kind="stable")[:8].tolist()
        assert cards_in(inspector, "furthest-from-the-label") == np.delete(np.arange(40), 3)[furthest][:8].tolist()
        assert inspector.texts("#features, #means, #confusion") == ["Features"]
        inspector.page.select_option("label:has-text('Order') select", "lowest prediction first")
        assert inspector.texts(".rows tbody th")[:3] == [f"r{row}" for row in np.argsort(values)[:3]]
        assert "most probable first" not in inspector.texts("label:has-text('Order') option")
        inspector.page.select_option("label:has-text('Residual') select", "too low")
        count = int((known > known.std()).sum())
        assert inspector.texts(".filters > .muted") == [f"{count} of 40 rows"]
