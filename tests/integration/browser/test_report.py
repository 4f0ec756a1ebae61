"""A job's page: its numbers are numpy's, its pictures are there, and a browser shows it as it should."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from cutaway.contract.errors import CutawayError, Reason
from cutaway.jobs import Results, read, run
from cutaway.jobs.columns import Cells
from cutaway.jobs.manifest import Folder, Manifest
from cutaway.jobs.records import Layout, Records
from cutaway.jobs.report import write_report
from cutaway.jobs.sources import Unreadable
from cutaway.views.pictures import AGAINST, FOR, bars, heat, histogram, short_number
from tests.support.jobs import digits, digits_job
from tests.support.report_pages import POLICY, Tables, browse, in_a_browser, number

ROWS = 120
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
    labels[[3, 50, 90]] = (labels[[3, 50, 90]] + 1) % 10
    pixels: list[Any] = list(data.by_name["pixels"])
    pixels[7] = Unreadable("the file is torn")
    data.by_name.update(digit=labels, pixels=pixels)
    output = {"folder": folder, "shard_rows": 32, "keep_inputs": True}
    run(digits_job(store, folder, data=data, request=REQUEST, output=output))
    assert write_report(folder) == folder / "_report.html"
    return folder


@pytest.fixture(scope="module")
def tables(job: Path) -> Tables:
    return Tables(job / "_report.html")


@pytest.fixture(scope="module")
def results(job: Path) -> Results:
    return read(job)


def test_verdicts_and_deltas_are_counted(tables: Tables, results: Results) -> None:
    """By method: how many rows have which verdict, and how deltas spread."""
    lines = {line[0].split("at ")[0]: line for line in tables.sections["methods"][1:]}
    assert list(lines) == ["integrated_gradients", "saliency", "layer_grad_cam"]
    for name, line in lines.items():
        verdicts = list(results[f"{name}.verdict"])
        for verdict in {verdict for verdict in verdicts if verdict is not None}:
            assert f"{verdict.lower()} {verdicts.count(verdict)}" in line[1]
        assert number(line[2]) == pytest.approx(np.nanmax(results[f"{name}.error"]), rel=0.05)
    sizes = np.abs(results["convergence_delta:integrated_gradients"])
    sizes = sizes[np.isfinite(sizes)]
    assert len(sizes) == ROWS - 1
    expected = (np.median(sizes), np.quantile(sizes, 0.99), sizes.max())
    assert [number(text) for text in lines["integrated_gradients"][3:6]] == pytest.approx(expected, rel=0.05)
    assert lines["saliency"][3:6] == ["–"] * 3


def test_confusion_matrix_is_numpys(tables: Tables, results: Results) -> None:
    """A count for each label and prediction; the bad row has none."""
    good = np.array([reason is None for reason in results["error"]])
    expected = np.zeros((10, 10), int)
    np.add.at(expected, (np.asarray(results["label"])[good], np.asarray(results["prediction"])[good]), 1)
    found = [[int(cell) for cell in line[1:-1]] for line in tables.sections["confusion"][1:]]
    np.testing.assert_array_equal(found, expected)
    assert expected.sum() == ROWS - 1


def test_activations_are_numpys(tables: Tables, results: Results) -> None:
    """Mean, deviation, extremes, zeros and dead units of each captured place."""
    lines = {line[0]: line for line in tables.sections["layers"][1:]}
    assert set(lines) == {"relu1.output", "relu2.output", "relu3.output", "fc1.output"}
    good = np.array([reason is None for reason in results["error"]])
    for name, line in lines.items():
        values = results[f"capture.{name}"][good].astype(np.float64)
        expected = [values.mean(), values.std(), values.min(), values.max()]
        assert [number(text) for text in line[2:6]] == pytest.approx(expected, rel=0.05)
        assert float(line[6].split()[0]) == pytest.approx(100 * (values == 0).mean(), abs=0.06)
        axes = tuple(axis for axis in range(values.ndim) if axis != 1)
        dead = np.flatnonzero((values == 0).all(axis=axes))
        assert re.match(rf"{len(dead)} of {values.shape[1]}{', '.join(map(str, dead[:12]))}", line[7])
    assert lines["fc1.output"][6] == "0.0 %"


def test_rows_worth_a_look_are_the_right_ones(job: Path, results: Results) -> None:
    """The most and least confident rows, and those that are surest against their label, in that order."""
    text = (job / "_report.html").read_text("utf-8")
    good = np.flatnonzero([reason is None for reason in results["error"]])
    sure = np.asarray(results["probability"])
    wrong = [row for row in good if results["label"][row] != results["prediction"][row]]
    assert {3, 50, 90} <= set(wrong)
    expected = {
        "contrary": sorted(wrong, key=lambda row: (-sure[row], row)),
        "unsure": sorted(good, key=lambda row: (sure[row], row)),
        "sure": sorted(good, key=lambda row: (-sure[row], row)),
    }
    for section, rows in expected.items():
        part = text[text.index(f'<section id="{section}">') :].partition("</section>")[0]
        assert re.findall(r"<header><b><a [^>]*>(.*?)</a></b>", part) == [f"digit-{row}" for row in rows[:8]]
        assert part.count("<img") == 4 * len(rows[:8])  # the digit and three explanations


def test_bad_rows_are_named(tables: Tables) -> None:
    """Why, how many, and which."""
    assert [line[:2] for line in tables.sections["bad"][1:]] == [["DATA_UNREADABLE", "1"]]
    assert tables.sections["bad"][1][2].startswith("digit-7 ")
    assert "the file is torn" in tables.sections["bad"][1][2]


def test_mean_pictures_show_the_means(job: Path, results: Results) -> None:
    """The mean attribution of a class is drawn as what it is: its sign by colour, its size by how strong that is."""
    text = (job / "_report.html").read_text("utf-8")
    part = text[text.index('id="means"') :].partition("</section>")[0]
    first = part[: part.index("<h3>saliency")]
    pictures = {name: _decoded(url) for url, name in re.findall(r'src="(data:[^"]+)" alt="([^"]+)"', first)}
    predictions = np.ma.filled(results["prediction"], -1)
    means = {
        str(digit): results["attribution:integrated_gradients:image"][predictions == digit].mean(axis=0)[0]
        for digit in np.unique(predictions[predictions >= 0])
    }
    assert pictures.keys() == means.keys()
    scale = np.quantile(np.abs(list(means.values())), 0.995)  # one for all classes
    for name, mean in means.items():
        picture = pictures[name]
        assert picture.shape == (*mean.shape, 4)
        strength = np.minimum(np.abs(mean) / scale, 1)
        np.testing.assert_allclose(picture[..., 3], 0.9 * 255 * strength, atol=1)
        shown = picture[..., 3] > 20
        np.testing.assert_array_equal(picture[shown][:, 0] == FOR[0], mean[shown] > 0)


def _decoded(url: str) -> npt.NDArray[np.uint8]:
    data = base64.b64decode(url.removeprefix("data:image/png;base64,"))
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"))


def test_page_fetches_nothing(tables: Tables, job: Path) -> None:
    """One file: no font, picture or script from anywhere else; one script inside, which the page's policy allows."""
    assert tables.fetched
    assert all(each.startswith(("data:image/png;base64,", "#row-")) for each in tables.fetched)
    assert not tables.tags.keys() & {"link", "iframe", "object", "embed"}
    text = re.sub(r'"data:[^"]+"', "", (job / "_report.html").read_text("utf-8"))
    assert not re.search(r"https?://|@import|url\(", text)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}';" in text


def test_every_row_that_is_shown_has_one_link(job: Path, results: Results) -> None:
    """``#row-17`` leads to the row's card if it has one, else to its line in the list; no two places have one name."""
    text = (job / "_report.html").read_text("utf-8")
    names = re.findall(r' id="(row-\d+)"', text)
    assert sorted(names) == sorted(f"row-{row}" for row in range(ROWS))
    carded = set(re.findall(r'<article class="card" id="(row-\d+)"', text))
    assert {"row-3", "row-50", "row-90"} <= carded
    assert set(re.findall(r'href="#(row-\d+)"', text)) == set(names)


def test_list_of_rows_says_what_filters_compare(tables: Tables, results: Results) -> None:
    """Each row with its label, prediction, probability and worst verdict; a bad one with its error."""
    lines = tables.sections["rows"][1:]
    assert [int(line[0]) for line in lines] == list(range(ROWS))
    assert [line[2] for line in lines] == [str(label) for label in results["label"]]
    assert lines[7][3:] == ["–", "–", "DATA_UNREADABLE: inputs.image: the file is torn"]
    predictions = [str(prediction) for prediction in results["prediction"]]
    assert [line[3] for line in lines[:7]] == predictions[:7]
    assert {line[5] for line in lines[:7]} == {"agrees"}


# Folders made by hand, for what a healthy model does not show.


def handmade(
    folder: Path, cells: list[Cells], rows: int, labels: list[Any] | None = None, names: list[str] | None = None
) -> Path:
    """A folder of one shard that holds ``cells``; a list of arrays is a column of ragged tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    single = [[_of_row(each, row) for each in cells] for row in range(rows)]
    layout = Layout.of(single, None if labels is None else pa.string(), "auto")
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
    return folder


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
        Cells(f"{name}.verdict", {"kind": "verdict", **about}, list(verdicts)),
        Cells(f"{name}.reason", {"kind": "reason", **about}, list(reasons)),
        Cells(f"{name}.error", {"kind": "largest_error", **about}, np.array(errors)),
    ]


EVIL = '<script>alert("x")</script>'


def texts() -> list[Cells]:
    """Four texts of two tokens or more, explained by token."""
    tokens = [["good", "film", "[PAD]"], ["bad", EVIL], ["good", "bad"], ["good", "[PAD]", "[PAD]"]]
    values: list[Any] = [np.array(each, np.float32) for each in ([2, 1, 0], [-3, 0.5], [1, -1], [3, 0, 0])]
    about = {"attribution": "lig", "method": "LayerIntegratedGradients", "layer": "words"}
    wide: list[Any] = [np.ones((len(each), 5), np.float32) for each in tokens]
    return [
        *classified([0.9, 0.8, 0.6, 0.7], [1, 0, 1, 1]),
        Cells("lig.words", {"kind": "attribution", **about}, wide),
        Cells("lig.tokens", {"kind": "token_attribution", "input": "ids", **about}, values),
        Cells("tokens", {"kind": "tokens"}, tokens),
    ]


def test_texts_are_coloured_by_token(tmp_path: Path) -> None:
    """Each token has its colour and number; padding at the end is left out; means are by class and token."""
    text = write_report(handmade(tmp_path, texts(), 4)).read_text("utf-8")
    part = text[text.index('<section id="sure">') :]
    first = part[part.index('<div class="tokens">') :].partition("</div>")[0]
    spans = re.findall(r'background:rgba\((\d+),\d+,\d+,([\d.]+)\)" title="([^"]+)">([^<]+)<', first)
    assert [(red, title, token) for red, _, title, token in spans] == [
        (str(FOR[0]), "2", "good"),
        (str(FOR[0]), "1", "film"),
    ]
    assert float(spans[0][1]) == pytest.approx(2 * float(spans[1][1]), rel=0.01)
    means = text[text.index('id="means"') :].partition("</section>")[0]
    assert 'title="2 in 3">good <small>2<' in means  # of class dog: 2, 1 and 3
    assert "PAD" not in means  # however often
    assert "film" not in means  # once is no mean
    assert "<img" not in text  # the embeddings' own numbers are no picture


def test_what_others_wrote_stays_text(tmp_path: Path) -> None:
    """Tokens, names, labels and reasons come from data: none of them becomes part of the page."""
    cells = [*texts(), *checked("lig", ["DISAGREES"] * 4, [0.5, 0.25, 0.125, 1.0], [EVIL] * 4)]
    page = write_report(handmade(tmp_path, cells, 4, labels=[EVIL] * 4, names=[EVIL] * 4))
    found = Tables(page)
    assert found.tags["script"] == 1  # the page's own
    assert not {name for name in found.attributes if name.startswith("on")}
    text = page.read_text("utf-8")
    assert text.count("<script") == 1
    assert text.count("&lt;script&gt;") > 20


def test_what_was_not_checked_is_no_problem(tmp_path: Path) -> None:
    """Rows that no check applies to are counted and not listed, and belong to no check before or after them; rows that
    agree are no problem."""
    verdicts = ["INCONCLUSIVE", "NOT_APPLICABLE", "NOT_APPLICABLE", "INCONCLUSIVE", "INCONCLUSIVE", "AGREES"]
    cells = checked("a", verdicts, [0.5, 0.0, 0.0, 0.25, 0.25, 0.75], ["", "no", "no", "", "", ""])
    tables = Tables(write_report(handmade(tmp_path, cells, 6)))
    assert [line[0] for line in tables.sections["findings"][1:]] == ["r0", "r3 – r42 rows with the same outcome"]
    assert "not applicable 2" in tables.sections["methods"][1][1]
    healthy = checked("a", ["AGREES", "NOT_APPLICABLE"], [0.5, 0.0], ["", ""])
    assert "findings" not in Tables(write_report(handmade(tmp_path / "healthy", healthy, 2))).sections


def test_rows_that_disagree_most_come_first(tmp_path: Path) -> None:
    """What disagrees comes before a larger error that says nothing, an error that is no number before all; rows that
    were checked together are one line; each has its picture."""
    values = np.random.default_rng(0).normal(size=(6, 1, 4, 4))
    cells = [
        *classified([0.5] * 6, [0] * 6),
        Cells("a.x", {"kind": "attribution", "attribution": "a", "method": "Saliency", "input": "x"}, values),
        *checked(
            "a",
            ["AGREES", "DISAGREES", "DISAGREES", "INCONCLUSIVE", "DISAGREES", "DISAGREES"],
            [0.0, 0.2, 0.2, 9.0, 0.7, float("nan")],
            ["", "off", "off", "nothing to say", "far off", "not a number"],
        ),
    ]
    page = write_report(handmade(tmp_path, cells, 6))
    lines = Tables(page).sections["findings"][1:]
    assert [(line[0], line[2], line[3]) for line in lines] == [
        ("r5", "disagrees", "nan"),
        ("r4", "disagrees", "0.7"),
        ("r1 – r22 rows with the same outcome", "disagrees", "0.2"),
        ("r3", "inconclusive", "9"),
    ]
    text = page.read_text("utf-8")
    part = text[text.index('id="findings"') :].partition("</section>")[0]
    assert "Rows with problems" in part
    assert part.count("<img") == 3


@pytest.mark.parametrize("shape", [(), (7,), (1, 5), (3, 8, 6), (2, 3, 4, 5), (3, 400, 500)])
def test_every_shape_has_a_picture(shape: tuple[int, ...], tmp_path: Path) -> None:
    """Numbers, vectors, tables, images and volumes; with numbers that are none, and with zeros alone."""
    values = np.random.default_rng(0).normal(size=(4, *shape))
    values[1] = np.nan
    values[2] = 0
    cells = [
        *classified([0.5] * 4, [0, 0, 1, 1]),
        Cells("a.x", {"kind": "attribution", "attribution": "a", "method": "Saliency", "input": "x"}, values),
        Cells("input:x", {"kind": "input", "input": "x"}, values.astype(np.float32)),
        Cells("capture:m@output", {"kind": "capture", "layer": "m", "point": "output", "call": "0"}, values),
    ]
    page = write_report(handmade(tmp_path, cells, 4))
    assert page.stat().st_size < 2**21
    assert len(Tables(page).fetched) >= 8
    assert "not finite" in Tables(page).sections["layers"][1][7]


def test_ragged_tensors_and_bare_results(tmp_path: Path) -> None:
    """A job without classes, checks or explanations has a page too, as has one whose captures differ in shape."""
    ragged: list[Any] = [np.ones((length, 4), np.float32) for length in (1, 2, 3)]
    cells = [Cells("capture:m@output", {"kind": "capture", "layer": "m", "point": "output", "call": "0"}, ragged)]
    (line,) = Tables(write_report(handmade(tmp_path, cells, 3))).sections["layers"][1:]
    assert line[1:4] == ["varies", "1", "0"]


def test_unfinished_job_says_so(job: Path, tmp_path: Path) -> None:
    """A report of what is there names how much of it is there; of nothing there is none."""
    shutil.copytree(job, tmp_path / "half")
    for part in sorted((tmp_path / "half").glob("part-*"))[2:]:
        part.unlink()
    text = write_report(tmp_path / "half").read_text("utf-8")
    assert "64 examples" in text
    assert "in 2 of 4 shards: the job has not ended" in text
    for part in (tmp_path / "half").glob("part-*"):
        part.unlink()
    for empty in (tmp_path / "half", tmp_path / "nowhere"):
        with pytest.raises(CutawayError) as caught:
            write_report(empty)
        assert caught.value.reason == Reason.DATA_UNREADABLE


def test_command_writes_the_page(job: Path, tmp_path: Path) -> None:
    """``cutaway batch report`` writes the page that Python does, and says where; of no job it says so, in one line."""
    shutil.copytree(job, tmp_path / "job")
    (tmp_path / "job" / "_report.html").unlink()
    command = [sys.executable, "-m", "cutaway.cli", "batch", "report"]
    done = subprocess.run([*command, str(tmp_path / "job")], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"written: {tmp_path / 'job' / '_report.html'}\n"
    assert (tmp_path / "job" / "_report.html").read_text("utf-8") == (job / "_report.html").read_text("utf-8")
    none = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True)
    assert (none.returncode, none.stdout) == (2, "")
    assert none.stderr.startswith("DATA_UNREADABLE [folder]: ")


def test_damaged_shard_is_named(job: Path, tmp_path: Path) -> None:
    """Which of the files cannot be read."""
    shutil.copytree(job, tmp_path / "torn")
    part = tmp_path / "torn" / "part-00001.parquet"
    part.write_bytes(part.read_bytes()[:-100])
    with pytest.raises(CutawayError, match=r"part-00001\.parquet cannot be read"):
        write_report(tmp_path / "torn")


def test_pictures_and_numbers() -> None:
    """Colours by sign, strength by size; histograms by powers of ten; numbers short."""
    picture = _decoded(heat(np.array([[1.0, -0.5], [0.0, np.nan]]), 1.0))
    assert tuple(picture[0, 0, :3]) == FOR
    assert tuple(picture[0, 1, :3]) == AGAINST
    assert picture[0, 0, 3] > picture[0, 1, 3] > 0 == picture[1, 0, 3] == picture[1, 1, 3]
    assert histogram(np.zeros(3)) is None
    spread = histogram(np.array([1e-3, 2e-3, 5e-1, 0.0]), bins=3)
    assert spread == ([1.0, 0.0, 0.5], -3, 0)
    assert bars([1.0, -1.0]) == [(0.0, 0.0, 0.5, 0.5), (0.5, 0.5, 0.5, 0.5)]
    assert len(bars(list(range(1000)))) == 64
    shown = {0.0: "0", 1797.0: "1,797", 0.03125: "0.0312", -2.5e-5: "−2.5e−5", float("inf"): "inf", 123456.7: "1.2e5"}
    assert {value: short_number(value) for value in shown} == shown
    assert short_number(None) == "–"


LONG = """
import resource, sys
from pathlib import Path
from cutaway.jobs.report import write_report
write_report(Path(sys.argv[1]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
"""Writes a report, and says how many MiB the process had at most."""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux")
def test_memory_is_that_of_a_few_rows(job: Path, tmp_path: Path) -> None:
    """Twenty times the shards take no more than a few MiB more."""
    shutil.copytree(job, tmp_path / "long")
    parts = sorted(job.glob("part-*"))
    for index in range(len(parts), 20 * len(parts)):
        shutil.copy(parts[index % 3], tmp_path / "long" / f"part-{index:05d}.parquet")
    most = [
        float(subprocess.run([sys.executable, "-c", LONG, folder], capture_output=True, text=True, check=True).stdout)
        for folder in (job, tmp_path / "long")
    ]
    assert most[1] - most[0] < 24


# In a browser.

FRAME = """<iframe src="inside.html" width="{width}" height="900" style="border: 0"></iframe><pre id="measured"></pre>
<script>addEventListener("message", event => document.getElementById("measured").textContent = event.data)</script>"""
"""A window inside the window: the browser's own is never narrower than 500."""

MEASURING = """<script>addEventListener("load", () => {
const images = [...document.images].map(image => image.naturalWidth && image.getBoundingClientRect().width);
const root = document.documentElement;
const wide = [...document.querySelectorAll("main *")].filter(one => !one.closest(".wide") &&
  one.getBoundingClientRect().right > innerWidth + 1).map(one => one.tagName + "." + one.className);
parent.postMessage(JSON.stringify(
  {width: innerWidth, scroll: root.scrollWidth, height: root.scrollHeight, images: images, wide: wide}), "*");
})</script>"""


def pages(job: Path, folder: Path) -> dict[str, Path]:
    """A page of pictures and one of words, where nothing breaks by itself."""
    long = [["unbreakable" * 30, "film"], *[["good", "bad"]] * 3]
    cells = [each if each.name != "tokens" else each._replace(values=long) for each in texts()]
    made = handmade(folder / "made", cells, 4, names=["an-id-without-a-place-to-break-" * 8] * 4)
    return {"pictures": job / "_report.html", "words": write_report(made)}


@in_a_browser
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("kind", ["pictures", "words"])
def test_nothing_overflows_and_every_picture_is_there(job: Path, tmp_path: Path, kind: str, width: int) -> None:
    """Wide or narrow, only tables scroll sideways, and each inside its frame; every picture is decoded and seen."""
    text = pages(job, tmp_path)[kind].read_text("utf-8")
    (tmp_path / "inside.html").write_text(POLICY.sub("", text).replace("</body>", f"{MEASURING}</body>"), "utf-8")
    page = tmp_path / "outside.html"
    page.write_text(FRAME.format(width=width), "utf-8")
    found = re.search(r'<pre id="measured">(.+?)</pre>', browse(page, 1400, "--dump-dom", "--virtual-time-budget=9000"))
    assert found is not None
    measured: dict[str, Any] = json.loads(found[1])
    assert measured["width"] == width
    assert measured["scroll"] <= width
    assert measured["wide"] == []
    assert measured["height"] > 800
    assert len(measured["images"]) == text.count("<img")
    assert all(side >= 30 for side in measured["images"])


@in_a_browser
@pytest.mark.parametrize(("scheme", "ground"), [("light", 240), pytest.param("dark", 40, marks=pytest.mark.slow)])
def test_page_looks_as_it_should(job: Path, tmp_path: Path, scheme: str, ground: int) -> None:
    """A screenshot is light or dark as the reader likes it, and has the colours of heat maps and verdicts in it."""
    file = tmp_path / "page.png"
    shutil.copy(job / "_report.html", tmp_path / "_report.html")
    preferred = "--blink-settings=preferredColorScheme=" + ("0" if scheme == "dark" else "1")
    browse(tmp_path / "_report.html", 1280, f"--screenshot={file}", "--window-size=1280,3000", preferred)
    picture = np.asarray(Image.open(file).convert("RGB")).astype(int)
    assert picture.shape == (3000, 1280, 3)
    assert abs(int(np.median(picture)) - ground) < 30
    red, green, blue = np.moveaxis(picture, -1, 0)
    for share in ((red - blue > 60), (blue - red > 60), (green - red > 20) & (green - blue > 20)):
        assert share.mean() > 2e-4
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 300


CHOOSING = """<script>addEventListener("load", () => {{
const select = document.querySelector("#filters select[name={name}]");
select.value = "{value}";
select.dispatchEvent(new Event("change", {{bubbles: true}}));
document.title = [...document.querySelectorAll("#rows tbody tr")].filter(one => !one.hidden)
  .map(one => one.dataset.row).join(" ");
}})</script>"""


@in_a_browser
@pytest.mark.parametrize(("name", "value"), [("correct", "no"), pytest.param("class", "3", marks=pytest.mark.slow)])
def test_filters_show_the_rows_that_match(job: Path, results: Results, tmp_path: Path, name: str, value: str) -> None:
    """Rows by predicted class, label, verdict and correctness; the others are hidden."""
    text = POLICY.sub("", (job / "_report.html").read_text("utf-8"))
    (tmp_path / "page.html").write_text(
        text.replace("</body>", f"{CHOOSING.format(name=name, value=value)}</body>"), "utf-8"
    )
    dom = browse(tmp_path / "page.html", 1280, "--dump-dom", "--virtual-time-budget=5000")
    good = [row for row, reason in enumerate(results["error"]) if reason is None]
    wrong = [row for row in good if results["label"][row] != results["prediction"][row]]
    expected = wrong if name == "correct" else [row for row in good if results["prediction"][row] == 3]
    title = re.search("<title>(.*?)</title>", dom)
    assert title is not None
    assert title[1] == " ".join(map(str, expected))
    assert f"{len(expected)} of {ROWS} listed rows" in dom


@in_a_browser
def test_page_works_from_a_file_under_its_policy_and_without_scripts(job: Path, tmp_path: Path) -> None:
    """The page's own policy lets its script run; where another forbids it, all rows are there and no dead filters."""
    text = (job / "_report.html").read_text("utf-8")
    (tmp_path / "own.html").write_text(text, "utf-8")
    dom = browse(tmp_path / "own.html", 1280, "--dump-dom", "--virtual-time-budget=5000")
    assert f"{ROWS} of {ROWS} listed rows" in dom
    assert '<form id="filters">' in dom
    strict = """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:">"""
    (tmp_path / "strict.html").write_text(POLICY.sub(strict, text), "utf-8")
    dom = browse(tmp_path / "strict.html", 1280, "--dump-dom", "--virtual-time-budget=5000")
    assert f"of {ROWS} listed rows" not in dom
    assert '<form id="filters" hidden="">' in dom
