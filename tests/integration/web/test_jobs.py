"""The results of a job in the page: what its folder holds, and the way from a row to the live model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow.parquet as parquet
import pytest
from playwright.sync_api import Browser

import cutaway as ca
from cutaway.jobs import Job, Results, read, run
from cutaway.jobs.sources import Unreadable
from cutaway.server.embedded import Served
from tests.support.jobs import REQUEST, Columns, digits
from tests.support.pages import Inspector, opened

ROWS = 60
BAD = 5


def job_on(site: Served, model: str, folder: Path, data: Columns, inputs: Any, **more: Any) -> Path:
    words: dict[str, Any] = {
        "model": {"address": site.address, "name": model},
        "data": data,
        "inputs": inputs,
        "output": {"folder": folder, "shard_rows": 16, "keep_inputs": True},
        "engine": {"kind": "service", "batch": 8},
    }
    run(Job(**(words | more)))
    return folder


@pytest.fixture(scope="module")
def folder(site: Served, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits, four shards; one cannot be decoded, and explanations are of the labels, one of which is wrong."""
    data = digits(ROWS)
    pixels, labels = list(data.by_name["pixels"]), np.array(data.by_name["digit"])
    pixels[BAD] = Unreadable("cannot be decoded")
    labels[7] = (labels[7] + 1) % 10
    return job_on(
        site,
        "digits",
        tmp_path_factory.mktemp("jobs") / "digits",
        Columns({**data.by_name, "pixels": pixels, "digit": labels}),
        {"image": {"column": "pixels"}},
        id="name",
        label="digit",
        target="label",
        request=REQUEST,
    )


@pytest.fixture(scope="module")
def inspector(browser: Browser, site: Served) -> Iterator[Inspector]:
    """One page for all: it forgets a folder when another one is opened."""
    with opened(browser, f"http://{site.http_address}") as page:
        page.open()
        yield page


def open_folder(inspector: Inspector, folder: Path) -> None:
    inspector.go("Jobs")
    inspector.page.set_input_files(".jobs input[type=file]", folder)


def ids_of(results: Results, rows: Any) -> list[str]:
    return [str(each) for each in results["id"][rows]]


def test_the_table_is_that_of_the_folder(folder: Path, inspector: Inspector) -> None:
    """Every row, by page; those that a filter leaves, in the order that is asked for."""
    open_folder(inspector, folder)
    results = read(folder)
    good = np.arange(ROWS) != BAD
    wrong = np.flatnonzero(good & (np.ma.filled(results["prediction"], -1) != results["label"]))
    assert inspector.page.wait_for_selector(".rows tbody tr")
    right = f"{100 - 100 * len(wrong) / (ROWS - 1):.3g} %"
    checks = str(3 * (ROWS - 1))
    facts = ["digits 1.0", "60", "Columns", "1", right, checks, "100 %"]
    assert inspector.texts("section:has(#folder) .facts dd") == facts
    assert inspector.texts(".rows tbody th") == ids_of(results, slice(25))
    inspector.page.click("button:text-is('Next')")
    assert inspector.texts(".rows tbody th") == ids_of(results, slice(25, 50))
    inspector.page.select_option("label:has-text('As labelled') select", "no")
    assert 7 in wrong
    assert inspector.texts(".rows tbody th") == ids_of(results, wrong)
    inspector.page.click("button:text-is('Show all')")
    inspector.page.select_option("label:has-text('Checks') select", "bad row")
    assert inspector.texts(".rows tbody td:last-child") == ["DATA_UNREADABLE: inputs.image: cannot be decoded"]
    inspector.page.click("button:text-is('Show all')")
    inspector.page.select_option("label:has-text('Order') select", "least probable first")
    order = np.argsort(np.where(good, results["probability"], 2), kind="stable")
    assert inspector.texts(".rows tbody th") == ids_of(results, order[:25])
    inspector.page.fill(".jobs input[type=search]", "digit-7")
    assert inspector.texts(".rows tbody th") == ["digit-7"]


@pytest.mark.slow
def test_a_row_is_asked_of_the_live_model(folder: Path, inspector: Inspector) -> None:
    """With its input, its label as target, and the job's methods: the pictures are those that were stored."""
    open_folder(inspector, folder)
    inspector.page.click(".rows tbody tr:nth-child(8) button")
    inspector.page.wait_for_selector(".one-row .picture canvas")
    stored = {name: _pixels(inspector, index) for index, name in enumerate(inspector.texts(".one-row h3"))}
    assert set(stored) == {"integrated_gradients", "saliency", "layer_grad_cam"}
    assert inspector.texts(".one-row .verdict") == ["✓ agrees with the raw hooks"] * 3
    inspector.page.click("button:text-is('Ask the live model')")
    said = inspector.page.wait_for_selector(".one-row [role=status]")
    assert inspector.serious() == []
    results = read(folder)
    name, probability = results["prediction_name"][7], results["probability"][7]
    assert said
    assert said.inner_text() == f"It says \u2068{name}\u2069, {100 * probability:.1f} %, with the weights of the job."
    inspector.page.click("button:text-is('Look inside')")
    inspector.page.wait_for_selector(".explanations .picture canvas")
    targets = inspector.texts(".explanation h2 + *, .explanation p.muted.small")
    assert f"of class {results['label'][7]}" in targets
    for index, name in enumerate(("integrated_gradients", "saliency", "layer_grad_cam")):
        np.testing.assert_allclose(_pixels(inspector, index), stored[name], atol=3, err_msg=name)


@pytest.mark.slow
def test_nothing_of_another_question_goes_to_the_live_model(folder: Path, site: Served, inspector: Inspector) -> None:
    """Neither a condition that a person had set, nor the input of the row before."""
    question = {"model": "digits", "explainIf": {"probabilityAtLeast": 1.5}, "edits": [], "compare": True}
    inspector.page.goto("about:blank")
    inspector.open(f"#/ask?question={quote(json.dumps(question))}")
    open_folder(inspector, folder)
    inspector.page.click(".rows tbody tr:nth-child(8) button")
    inspector.page.click("button:text-is('Ask the live model')")
    inspector.page.click("button:text-is('Look inside')")
    inspector.page.wait_for_selector(".explanations .picture canvas")
    assert set(inspector.texts(".explanation > .tools .verdict")) == {"✓ agrees with the raw hooks"}
    inspector.go("Jobs")
    inspector.page.click(f".rows tbody tr:nth-child({BAD + 1}) button")
    inspector.page.wait_for_selector("text=The job could not use this row")
    assert inspector.texts("button:text-is('Ask the live model')") == []


def test_the_rows_that_raise_a_unit(folder: Path, inspector: Inspector) -> None:
    """The largest of all rows, and those of no other unit; a unit that is not there is told."""
    open_folder(inspector, folder)
    results = read(folder)
    values = results["capture:fc1@output"]
    for unit in (3, 17):
        inspector.page.fill("label:has-text('Unit') input", str(unit))
        inspector.page.wait_for_selector(f"p:has-text('unit {unit} ')")
        expected = [row for row in np.argsort(-np.ma.filled(values[:, unit], -np.inf), kind="stable") if row != BAD][:8]
        cards = inspector.page.locator("section:has(#layers) .card").all()
        assert [int(card.get_attribute("data-row") or -1) for card in cards] == expected
    inspector.page.fill("label:has-text('Unit') input", "99")
    inspector.page.wait_for_selector("text=There is no unit 99.")
    assert inspector.page.locator("section:has(#layers) .card").count() == 0


def test_the_mean_of_a_job_is_a_baseline(folder: Path, site: Served, inspector: Inspector) -> None:
    """Of all rows that could be read, for a row that the live model is asked about."""
    open_folder(inspector, folder)
    inspector.page.click(".rows tbody tr:nth-child(3) button")
    inspector.page.click("button:text-is('Ask the live model')")
    inspector.page.click("button:text-is('Look inside')")
    inspector.page.click(".baseline button:text-is('mean of the job')")
    inspector.page.wait_for_selector(".baseline strong:text-is('mean of the job')")
    results = read(folder)
    images = np.ma.filled(results["input:image"], np.nan).astype(np.float64)
    mean = images[np.arange(ROWS) != BAD].mean(axis=0, keepdims=True).astype(np.float32)
    with ca.Client(site.address) as client:
        asked = ca.IntegratedGradients(n_steps=16, baselines={"image": mean})
        target = ca.ClassIndex((int(results["label"][2]),))
        (told,) = client.inspect(
            "digits", {"image": images[2:3].astype(np.float32)}, target=target, attributions=asked
        ).attributions
    assert told.value_at_baseline is not None
    there = inspector.texts(".line-of-facts div:has(dt:text-is('at the baseline')) dd")
    assert float(there[0].replace("−", "-")) == pytest.approx(told.value_at_baseline[0], rel=2e-3)


def _pixels(inspector: Inspector, index: int) -> Any:
    found = inspector.page.evaluate(
        """(index) => {
            const drawn = document.querySelectorAll(".explanation .picture [role=img]")[index];
            return [...drawn.getContext("2d").getImageData(0, 0, drawn.width, drawn.height).data];
        }""",
        index,
    )
    return np.asarray(found, float)


@pytest.mark.slow
def test_rows_of_texts_and_tables(site: Served, inspector: Inspector, tmp_path: Path) -> None:
    """Texts are sent as texts; features have their names; baselines have the type of their input."""
    texts = ["banana", "eel", "igloo"]
    both = {"attributions": ["saliency"]}
    table = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    letters = job_on(
        site, "letters", tmp_path / "letters", Columns({"t": texts}), {"raw": {"column": "t"}}, request=both
    )
    path = {"method": "integrated_gradients", "baselines": {"x": np.ones((1, 4)).tolist()}, "n_steps": 8}
    named = job_on(
        site,
        "named",
        tmp_path / "named",
        Columns({"x": table}),
        {"x": {"column": "x"}},
        request={"attributions": [path]},
    )
    open_folder(inspector, letters)
    inspector.page.wait_for_selector(".rows td bdi.preview")
    assert inspector.texts(".rows td bdi.preview") == texts
    inspector.page.click(".rows tbody tr:nth-child(2) button")
    inspector.page.click("button:text-is('Ask the live model')")
    inspector.page.wait_for_selector(".one-row [role=status]")
    inspector.go("Ask")
    assert inspector.page.input_value(".texts textarea") == "eel"
    open_folder(inspector, named)
    inspector.page.click(".rows tbody tr:nth-child(2) button")
    inspector.page.wait_for_selector(".one-row .named-bars")
    names, stored = inspector.texts(".one-row .named-bars th bdi"), inspector.values(".one-row .named-bars td.number")
    assert set(names) == {"a", "<b>b</b>", "c", "d"}
    inspector.page.click("button:text-is('Ask the live model')")
    inspector.page.click("button:text-is('Look inside')")
    assert inspector.texts(".explanation .named-bars th bdi") == names
    np.testing.assert_allclose(inspector.values(".explanation .named-bars td.number"), stored, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_what_cannot_be_opened_is_said(folder: Path, inspector: Inspector, tmp_path: Path) -> None:
    """No job, a damaged shard, another schema, a model that is not served; the folder before is gone at once."""
    open_folder(inspector, folder)
    inspector.page.wait_for_selector(".rows tbody tr")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("nothing")
    cases = {"empty": "the folder holds no job: it has no _manifest.json"}
    damaged = shutil.copytree(folder, tmp_path / "damaged")
    shard = damaged / "part-00001.parquet"
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    cases["damaged"] = "part-00001.parquet cannot be read"
    newer = shutil.copytree(folder, tmp_path / "newer")
    _change(newer, schema=99)
    cases["newer"] = "the manifest has schema 99, not 1"
    for name, words in cases.items():
        open_folder(inspector, tmp_path / name)
        inspector.page.wait_for_selector(f".jobs .problem:has-text('{words}')")
        assert inspector.page.locator(".rows, .one-row").count() == 0
    torn = shutil.copytree(folder, tmp_path / "torn")
    _tear(torn / "part-00000.parquet", "attribution:saliency:image")
    open_folder(inspector, torn)
    inspector.page.click(".rows tbody tr:nth-child(1) button")
    inspector.page.wait_for_selector(".one-row .problem:has-text('part-00000.parquet cannot be read')")
    elsewhere = shutil.copytree(folder, tmp_path / "elsewhere")
    _change(elsewhere, model="nobody")
    open_folder(inspector, elsewhere)
    inspector.page.click(".rows tbody tr:nth-child(1) button")
    inspector.page.wait_for_selector("text=This server has no model nobody")


def test_rows_are_of_one_job(folder: Path, inspector: Inspector, tmp_path: Path) -> None:
    """Also where the folder around several jobs is opened."""
    for name in ("one", "two"):
        shutil.copytree(folder, tmp_path / "jobs" / name)
    open_folder(inspector, tmp_path / "jobs")
    inspector.page.wait_for_selector("#rows")
    assert inspector.texts("section:has(#rows) .count") == [f"{ROWS} rows"]


def test_a_folder_of_an_earlier_version_opens(folder: Path, inspector: Inspector, tmp_path: Path) -> None:
    """One without shapes and without the request: its rows are shown, and numbers in the order in which they are."""
    older = shutil.copytree(folder, tmp_path / "older")
    manifest = json.loads((older / "_manifest.json").read_text())
    columns = {
        name: {key: each for key, each in about.items() if key != "shape"}
        for name, about in manifest["columns"].items()
    }
    _change(older, columns=columns, question={})
    open_folder(inspector, older)
    inspector.page.click(".rows tbody tr:nth-child(1) button")
    inspector.page.wait_for_selector(".one-row .named-bars")


@pytest.mark.slow
def test_other_weights_than_those_of_the_job_are_told(folder: Path, inspector: Inspector, tmp_path: Path) -> None:
    """The answer names its own; whoever compares pictures must know."""
    trained = shutil.copytree(folder, tmp_path / "trained")
    _change(trained, weights_sha256="0" * 64)
    open_folder(inspector, trained)
    inspector.page.click(".rows tbody tr:nth-child(1) button")
    inspector.page.click("button:text-is('Ask the live model')")
    inspector.page.wait_for_selector(".one-row [role=status]:has-text('Its weights are not those of the job.')")


def _tear(path: Path, column: str) -> None:
    """Overwrites the pages of one column."""
    chunks = parquet.read_metadata(path).row_group(0)
    for index in range(chunks.num_columns):
        chunk = chunks.column(index)
        if chunk.path_in_schema.startswith(column):
            with path.open("r+b") as file:
                file.seek(chunk.dictionary_page_offset or chunk.data_page_offset)
                file.write(b"\xff" * chunk.total_compressed_size)


def _change(folder: Path, **fields: Any) -> None:
    path = folder / "_manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
