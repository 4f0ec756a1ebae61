"""Every view shows what the Python client gets for the same question."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import yaml

import cutaway as ca
from cutaway.contract.results.arrays import by_name, tensors
from cutaway.jobs import Job, read
from cutaway.jobs import run as run_job
from cutaway.server.embedded import Served
from tests.integration.web.conftest import HOSTILE, IMAGE
from tests.support.cli import cutaway
from tests.support.digits import package_digits
from tests.support.pages import Inspector
from tests.support.waiting import until


def test_the_tree_is_that_of_the_model(site: Served, inspector: Inspector) -> None:
    """Every module with its type, its shape, its parameters; search by text and by glob; operators."""
    inspector.choose("digits")
    with ca.Client(site.address) as client:
        detail = client.get_model("digits", operators=True)
    assert inspector.texts(".place .name bdi") == [module.name or module.type for module in detail.modules]
    assert inspector.texts(".place .type") == [module.type for module in detail.modules]
    shapes = [" × ".join(map(str, module.output_shapes[0])) for module in detail.modules]
    assert inspector.texts(".place .shape") == shapes
    parameters = [f"{module.parameters:,}" if module.parameters else "" for module in detail.modules]
    assert inspector.texts(".place .parameters") == parameters
    inspector.page.fill(".insides input[type=search]", "conv?")
    assert inspector.texts(".place:not(.passed) .name bdi") == ["conv1", "conv2"]
    inspector.page.fill(".insides input[type=search]", "relu")
    assert inspector.texts(".place:not(.passed) .name bdi") == ["relu1", "relu2", "relu3"]
    inspector.page.fill(".insides input[type=search]", "")
    inspector.page.check(".insides input[type=checkbox]")
    assert len(inspector.texts(".place.operator")) == len(detail.operators)


@pytest.mark.slow
def test_ten_thousand_modules_scroll(inspector: Inspector) -> None:
    """Only those in sight are in the page."""
    inspector.choose("deep")
    assert inspector.texts(".count") == ["10,003 places"]
    inspector.page.click("button:text-is('Unfold all')")
    worst = inspector.page.evaluate(
        """async () => {
            const tree = document.querySelector(".tree"), times = [];
            for (let step = 0; step < 100; step++) {
                const begin = performance.now();
                tree.scrollTop += 3000;
                await new Promise(requestAnimationFrame);
                times.push(performance.now() - begin);
            }
            return [document.querySelectorAll(".place").length, tree.scrollTop];
        }"""
    )
    assert worst[0] < 100
    assert worst[1] > 250_000
    inspector.page.focus(".tree")
    inspector.page.keyboard.press("End")
    inspector.page.wait_for_selector(".place[aria-selected=true] .name bdi:text-is('head')")


@pytest.mark.slow
def test_a_place_that_is_chosen_is_captured(site: Served, inspector: Inspector) -> None:
    """By keyboard: down to relu1, then its gradient, which is in the question, and in the answer."""
    inspector.choose("digits")
    inspector.page.focus(".tree")
    for _ in range(3):
        inspector.page.keyboard.press("ArrowDown")
    inspector.page.wait_for_selector("#place:has-text('relu1')")
    inspector.page.click("button:text-is('Capture the gradient')")
    inspector.page.wait_for_selector("button:text-is('Captured: gradient')")
    inspector.go("Ask")
    inspector.page.wait_for_selector(".chips li:has-text('relu1'):has-text('gradient at the output')")


def test_bars_are_the_prediction(site: Served, inspector: Inspector) -> None:
    """The same question by Python: the largest classes with their probabilities; and its errors at their field."""
    inspector.choose("digits")
    inspector.go("Ask")
    inspector.give(IMAGE.tolist())
    inspector.ask()
    with ca.Client(site.address) as client:
        result = client.inspect("digits", {"image": IMAGE})
    logits = result.predictions["output"][0].astype(np.float64)
    expected = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    order = np.argsort(-expected)
    assert np.allclose(inspector.values(".prediction td.number"), expected[order], atol=1e-6)
    assert inspector.texts(".prediction th") == [str(index) for index in order]
    assert inspector.texts(".strip .said") == [result.classes[0].label]
    inspector.expected.append("400")
    inspector.page.fill(".method input[list=places]", "conv9")
    inspector.page.fill(".one-input textarea", "[[1, 2]]")
    inspector.page.click(".strip button.primary")
    problem = inspector.page.wait_for_selector("section:has(#input) .problem")
    assert problem is not None
    assert "the model takes image: float32 [any, 1, 8, 8]" in problem.inner_text()
    assert "tensors.by_name.image" in problem.inner_text()


@pytest.mark.slow
def test_a_drawing_is_asked_about(site: Served, inspector: Inspector) -> None:
    """Pixel by pixel by keyboard, in one stroke by pointer; the numbers are what was drawn."""
    inspector.choose("digits")
    inspector.go("Ask")
    inspector.page.click("button:text-is('Clear')")
    inspector.page.focus(".drawing canvas")
    for key in ("ArrowDown", "ArrowRight", " ", "ArrowRight", " "):
        inspector.page.keyboard.press(key)
    box = inspector.page.locator(".drawing canvas").bounding_box()
    assert box is not None
    row = box["y"] + box["height"] * 7.5 / 8
    inspector.page.mouse.move(box["x"] + box["width"] * 4.5 / 8, row)
    inspector.page.mouse.down()
    inspector.page.mouse.move(box["x"] + box["width"] * 9 / 8, row, steps=20)
    inspector.page.mouse.up()
    inspector.ask()
    image = np.zeros((1, 1, 8, 8), np.float32)
    image[0, 0, 1, 1:3] = image[0, 0, 7, 4:] = 1
    with ca.Client(site.address) as client:
        expected = client.inspect("digits", {"image": image}).classes[0]
    assert inspector.texts(".strip .said") == [expected.label]
    assert max(inspector.values(".prediction td.number")) == pytest.approx(expected.probability, abs=1e-6)


@pytest.mark.slow
def test_files_and_texts_are_decoded_by_the_model(site: Served, inspector: Inspector, tmp_path: Path) -> None:
    """Two images in one question, a text with markup, and a hundred thousand letters."""
    pixels = [(IMAGE[0, 0] * 255).astype(np.uint8), (255 - IMAGE[0, 0] * 255).astype(np.uint8)]
    paths = [tmp_path / f"{index}.png" for index in range(2)]
    for path, each in zip(paths, pixels):
        PIL.Image.fromarray(each).save(path)
    inspector.choose("digits")
    inspector.go("Ask")
    inspector.page.click("label:has-text('File')")
    inspector.page.set_input_files(".files input", paths)
    inspector.page.wait_for_selector(".files li:nth-child(2) canvas")
    inspector.ask()
    with ca.Client(site.address) as client:
        expected = client.inspect("digits", [ca.Raw(path.read_bytes(), "image/png") for path in paths]).classes
    for row in range(2):
        inspector.page.select_option(".strip select", str(row))
        assert inspector.texts(".strip .said") == [expected[row].label]
        assert max(inspector.values(".prediction td.number")) == pytest.approx(expected[row].probability, abs=1e-6)
    inspector.go("Explanations")
    inspector.page.wait_for_selector(".strip canvas.preview")
    below = ".overlay .frame canvas[aria-hidden]"
    read = f"document.querySelector('{below}')?.getContext('2d').getImageData(0, 0, 8, 8).data[4]"
    until(lambda: inspector.page.evaluate(read) == pixels[1][0, 1])  # the file, as this browser reads it
    inspector.page.click("text=Show what the model made of the file below")
    inspector.page.wait_for_selector("text=Show what the model made of the file below", state="detached")
    inspector.page.wait_for_selector(below)
    inspector.choose("letters")
    inspector.go("Ask")
    for text, label in (("<b onclick=fault()>ooo\u202e", "o"), ("u" * 100_000, "u")):
        inspector.page.fill(".texts textarea", text)
        inspector.ask()
        inspector.page.wait_for_selector(f".strip .said:text-is('{label}')")
    assert inspector.page.locator(".texts b").count() == 0


def test_hostile_labels_are_texts(inspector: Inspector) -> None:
    """Markup, turned text, a hundred thousand letters: no element of theirs, and no script runs."""
    inspector.choose("named")
    inspector.go("Ask")
    inspector.page.fill(".features div:nth-child(2) input", "0.5")
    inspector.ask()
    labels = inspector.page.locator(".prediction th bdi").all_text_contents()
    assert set(labels) == set(HOSTILE)
    assert inspector.page.locator(".prediction :is(script, img), .features b").count() == 0
    assert inspector.texts(".features bdi")[1] == "<b>b</b>"
    assert inspector.page.evaluate("document.documentElement.scrollWidth") <= 1400


@pytest.mark.slow
def test_stages_add_up(shown: Inspector) -> None:
    """Where the time went: all stages together are what this page waited for."""
    shown.go("Cost")
    stages = shown.values("section:has(#time) td.number")
    total = float(shown.texts(".facts div:has(dt:text-is('In all')) dd")[0].split()[0])
    assert len(stages) == 9
    assert sum(stages) == pytest.approx(total, abs=0.1)
    assert "this one alone" in shown.texts(".facts dd")
    weights = shown.values("section:has(#bytes) td.number")
    assert weights[0] == 40  # ten logits
    assert weights[-1] == 64 * 4 * 3  # three explanations of an image, one of them a map that is smaller or equal


def test_what_is_taken_along_gives_the_same(site: Served, shown: Inspector, tmp_path: Path) -> None:
    """Python and curl give the numbers of the page; the saved file is verified."""
    shown.go("Take along")
    with ca.Client(site.address) as client:
        expected = client.inspect("digits", {"image": IMAGE}).predictions["output"]

    program = shown.program().replace("print(result)", "print(result.predictions['output'].tolist())")
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert np.array_equal(np.asarray(json.loads(run.stdout), np.float32), expected)

    command = shown.program("curl")
    reply = json.loads(subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout)
    assert reply["predictions"]["classes"][0]["label"] == str(expected.argmax())
    assert [each["checks"][0]["verdict"] for each in reply["attributions"]] == ["VERDICT_AGREES"] * 3

    with shown.page.expect_download() as download:
        shown.page.click("button:text-is('Save the explanation')")
    download.value.save_as(tmp_path / "seven.cutaway")
    stored = ca.Inspection.load(tmp_path / "seven.cutaway")
    assert np.array_equal(stored.predictions["output"], expected)
    assert cutaway("verify", tmp_path / "seven.cutaway", "--address", site.address).returncode == 0
    with shown.page.expect_download() as download:
        shown.page.click("button:text-is('Save the arrays')")
    download.value.save_as(tmp_path / "digits.npz")
    arrays = np.load(tmp_path / "digits.npz")
    assert set(arrays.files) == set(by_name(tensors(stored)))
    assert np.array_equal(arrays["output"], expected)
    assert np.array_equal(arrays["attribution:saliency:image"], stored.attributions[1].values["image"])


@pytest.mark.slow
def test_a_job_taken_along_runs(shown: Inspector, tmp_path: Path) -> None:
    """It explains every row of a data set as the page explained one: beside the archive and the data that it names."""
    shown.go("Take along")
    (tmp_path / "job.yaml").write_text(shown.program("job.yaml").replace("digits.mar", "digits-1.0.mar"))
    with shown.page.expect_download() as download:
        shown.page.click("button:text-is('Save the explanation')")
    download.value.save_as(tmp_path / "one.cutaway")
    package_digits(tmp_path)
    parquet.write_table(pa.table({"image": list(IMAGE.reshape(1, -1))}), tmp_path / "data.parquet")
    run_job(Job.load(tmp_path / "job.yaml"))
    rows = read(tmp_path / "explained")
    explained = ca.Inspection.load(tmp_path / "one.cutaway").attributions
    columns = (
        "attribution:integrated_gradients:image",
        "attribution:saliency:image",
        "attribution:layer_grad_cam:conv2",
    )
    for column, attribution in zip(columns, explained, strict=True):
        (values,) = attribution.values.values()
        np.testing.assert_allclose(rows[column], values, rtol=1e-4, atol=1e-6, err_msg=column)
    assert np.array_equal(rows["input:image"], IMAGE)


@pytest.mark.slow
def test_a_long_question_is_taken_along_in_a_file(inspector: Inspector, tmp_path: Path) -> None:
    """Programs read it from there: what has thousands of numbers is no text to look at."""
    inspector.choose("digits")
    inspector.go("Ask")
    inspector.give(np.repeat(IMAGE, 70, 0).tolist())
    inspector.ask()
    inspector.go("Take along")
    with inspector.page.expect_download() as download:
        inspector.page.click("button:text-is('Save the question')")
    download.value.save_as(tmp_path / "question.json")
    program = inspector.program().replace("print(result)", "print(len(result.classes))")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "70\n"
    command = inspector.program("curl")
    reply = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert len(json.loads(reply.stdout)["predictions"]["classes"]) == 70
    job = yaml.safe_load(inspector.program("job.yaml"))
    assert job["inputs"] == {"image": {"column": "image", "shape": [1, 8, 8]}}


@pytest.mark.slow
def test_every_array_is_saved_by_its_name(site: Served, inspector: Inspector, tmp_path: Path) -> None:
    """Those of the Python client's names, whatever an answer has: places of elements, predictions without the edit,
    standard errors, a method in capitals."""
    question = {
        "model": "digits",
        "captures": [{"module": "fc1", "reduction": {"topK": {"k": 2}}}, {"parameter": "conv1.bias"}],
        "edits": [{"module": "conv1", "point": "HOOK_POINT_OUTPUT", "scale": {"factor": 0.5}}],
        "compare": True,
        "attributions": [{"lrp": {"rules": {"flatten": {"epsilon": 1e-9}}}}, {"kernelShap": {"nSamples": 80}}],
        "check": {"mode": "CHECK_MODE_INDEPENDENT"},
    }
    inspector.page.goto("about:blank")
    inspector.open(f"#/ask?question={quote(json.dumps(question))}")
    inspector.give(IMAGE.tolist())
    inspector.ask()
    inspector.go("Take along")
    for button, name in (("Save the explanation", "one.cutaway"), ("Save the arrays", "one.npz")):
        with inspector.page.expect_download() as download:
            inspector.page.click(f"button:text-is('{button}')")
        download.value.save_as(tmp_path / name)
    expected = {
        name: entry.array for name, entry in by_name(tensors(ca.Inspection.load(tmp_path / "one.cutaway"))).items()
    }
    assert {
        "positions:fc1@output",
        "unedited:output",
        "attribution:lrp:image",
        "standard_error:kernel_shap:image",
    } < set(expected)
    with np.load(tmp_path / "one.npz") as saved:
        assert set(saved.files) == set(expected)
        assert all(np.array_equal(saved[name], array) for name, array in expected.items())


def test_an_attack_is_shown_beside_the_input(site: Served, answered: Inspector) -> None:
    """Its picture, the numbers of the client, and how far each explanation changed."""
    page = answered
    page.go("Edits")
    page.page.fill("label:has-text('Largest change') input", "0.25")
    page.page.click("button:text-is('Attack')")
    page.page.wait_for_selector(".attacked canvas")
    page.page.wait_for_selector(".strip button.primary")
    assert page.page.locator(".attacked canvas").count() == 2
    with ca.Client(site.address) as client:
        (attack,) = client.inspect("digits", {"image": IMAGE}, attacks=ca.FGSM(0.25)).attacks
    panel = " ".join(" ".join(page.texts("section:has(#attacks)")).split())
    assert attack.losses is not None
    assert attack.losses_before is not None
    assert attack.succeeded is not None
    assert f"loss before {attack.losses_before[0]:.4g} loss now {attack.losses[0]:.4g} largest change 0.25" in panel
    assert f"It {'reached' if attack.succeeded[0] else 'missed'} its aim." in panel
    assert panel.count("Saliency") == 1
    assert "Captum's FGSM with steps along the signs of raw gradients" in panel


FITS = (
    "() => { const wide = document.querySelector('.wide:has(.quality)'); return wide.scrollWidth <= wide.clientWidth; }"
)


def test_the_quality_of_an_explanation(answered: Inspector) -> None:
    """Each metric with its figure for random numbers, which is better, and a curve through the reply's own points."""
    answered.open_question(
        "digits",
        attributions=[{"integratedGradients": {}, "quality": {"randomisation": False}}, {"saliency": {}}],
    )
    answered.page.wait_for_selector(".methods:not(:has-text('LayerGradCam'))")
    answered.give(IMAGE.tolist())
    answered.ask()
    answered.go("Explanations")
    answered.page.wait_for_selector(".quality")
    rows = answered.page.query_selector_all(".quality tbody tr")
    texts = [[cell.inner_text() for cell in row.query_selector_all("th, td")] for row in rows]
    assert len(texts) == 17
    heads = [[line for line in text[0].split("\n") if line] for text in texts]
    by_name = {name: [better, *text[1:]] for (name, better), text in zip(heads, texts)}
    assert by_name["deletion"][0] == "lower is better"
    assert by_name["insertion"][0] == "higher is better"
    assert all(by_name["deletion"][1:])
    assert by_name["sensitivity max"][2] == ""
    with_curve = [name for name, row in zip(by_name, rows) if row.query_selector("svg.curve")]
    assert with_curve == ["deletion", "insertion", "symmetric relevance gain"]
    for width in (360, 1920):
        answered.page.set_viewport_size({"width": width, "height": 900})
        assert answered.page.evaluate(FITS)
    points = answered.page.get_attribute(".quality svg.curve polyline", "points") or ""
    assert len(points.split()) == 11
    said = answered.page.inner_text(".quality ~ p, .wide:has(.quality) + p")
    assert re.fullmatch(r"Better than an attribution of random numbers in \d+ of 10 metrics\.", said)
