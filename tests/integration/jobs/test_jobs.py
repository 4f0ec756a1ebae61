"""Jobs over whole data sets: what stands in the tables, and what becomes of rows that cannot be explained."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas
import polars
import pyarrow.parquet as parquet
import pytest
import torch
from captum.attr import IntegratedGradients, LayerGradCam, Saliency
from google.protobuf import json_format

import cutaway as ca
from cutaway.contract.errors import CutawayError, Reason
from cutaway.contract.wire import requests as wire_requests
from cutaway.gateway import serve
from cutaway.jobs import Job, plan, read, run
from cutaway.jobs.manifest import Folder
from cutaway.jobs.sources import Unreadable
from cutaway.jobs.spec import parse_request
from cutaway.v1.inspection_pb2 import InspectRequest
from examples.digits.data import as_png, held_out
from tests.support import digits as fixed
from tests.support.garbage import uncollected
from tests.support.jobs import REQUEST, Columns, alike, digits, digits_file, digits_job, digits_words, same


@pytest.fixture(scope="module")
def explained(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole job."""
    folder = tmp_path_factory.mktemp("jobs") / "explained"
    run(digits_job(store, folder, target="label", output={"folder": folder, "shard_rows": 16, "keep_inputs": True}))
    return folder


def test_values_are_captums(explained: Path) -> None:
    """Every row has what a hand-written loop over the same batches has."""
    results = read(explained)
    images, labels = torch.from_numpy(held_out().images[:40]), torch.from_numpy(held_out().labels[:40])
    network = fixed.network()
    found: dict[str, list[Any]] = {}
    for start in range(0, 40, 8):
        batch, target = images[start : start + 8], labels[start : start + 8]
        columns = {
            "attribution:integrated_gradients:image": IntegratedGradients(network).attribute(
                batch, target=target, n_steps=16
            ),
            "attribution:saliency:image": Saliency(network).attribute(batch.clone(), target=target),
            "attribution:layer_grad_cam:conv2": LayerGradCam(network, network.conv2).attribute(batch, target=target),
            "output": network(batch),
        }
        for name, values in columns.items():
            found.setdefault(name, []).append(values.detach().numpy())
    for name, parts in found.items():
        np.testing.assert_allclose(results[name], np.concatenate(parts), rtol=1e-5, atol=1e-6, err_msg=name)
    np.testing.assert_array_equal(results["targets"], labels)
    np.testing.assert_array_equal(results["prediction"], results["output"].argmax(1))


def test_the_manifest_says_what_was_asked(store: Path, explained: Path) -> None:
    """The first row's request in the contract's JSON, and the shape of each column: all that another reader needs."""
    manifest = read(explained).manifest
    job = digits_job(store, explained)
    asked = replace(parse_request(job.request, job.target).request, model="digits", seed=0)
    assert json_format.ParseDict(manifest.question, InspectRequest()) == wire_requests.encode(asked)
    shapes = {name: about.get("shape") for name, about in manifest.columns.items()}
    assert shapes["attribution:saliency:image"] == shapes["input:image"] == "1,8,8"
    assert shapes["capture:fc1@output"] == "32"
    assert shapes["probability"] is None
    pages = parquet.read_metadata(explained / "part-00000.parquet").row_group(0)
    assert all(pages.column(index).has_offset_index for index in range(pages.num_columns))


def test_each_row_has_its_line(explained: Path) -> None:
    """A row an example: its number, its name, its label, what was checked, what went in."""
    results = read(explained)
    assert results.complete
    assert results.rows == 40
    np.testing.assert_array_equal(results["row"], np.arange(40))
    assert list(results["id"]) == [f"digit-{row}" for row in range(40)]
    np.testing.assert_array_equal(results["label"], held_out().labels[:40])
    np.testing.assert_array_equal(results["input:image"], held_out().images[:40])
    assert set(results["verdict:saliency"]) == {"AGREES"}
    assert results["convergence_delta:integrated_gradients"].shape == (40,)
    assert results.find(kind="capture", layer="fc1") == ["capture:fc1@output"]
    assert [len(list(shard["row"])) for shard in results.shards(["row"])] == [16, 16, 8]
    manifest = results.manifest
    assert (manifest.rows, manifest.shard_rows, manifest.model) == (40, 16, "digits")
    assert re.fullmatch("[0-9a-f]{64}", manifest.weights_sha256)
    assert manifest.versions["torch"] == torch.__version__


def test_others_read_the_files(explained: Path) -> None:
    """pandas, Polars and DuckDB read the shards without any code of ours."""
    expected = read(explained)["attribution:saliency:image"].reshape(40, -1)
    files = sorted(explained.glob("part-*.parquet"))
    by_pandas = pandas.concat(pandas.read_parquet(file) for file in files)
    np.testing.assert_array_equal(np.stack(list(by_pandas["attribution:saliency:image"])), expected)
    by_polars = polars.read_parquet(files)
    np.testing.assert_array_equal(np.array(by_polars["attribution:saliency:image"].to_list()).reshape(40, -1), expected)
    query = f"""SELECT "attribution:saliency:image" FROM '{explained}/part-*.parquet' ORDER BY row"""
    by_duckdb = duckdb.connect().execute(query).fetchall()
    np.testing.assert_array_equal(np.array([row[0] for row in by_duckdb], np.float32), expected)


def test_a_rerun_does_nothing(store: Path, tmp_path: Path) -> None:
    """What is there is kept, and counted."""
    first = run(digits_job(store, tmp_path / "out"))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}
    second = run(digits_job(store, tmp_path / "out"))
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}
    assert (first.written, first.kept, second.written, second.kept) == (3, 0, 0, 3)
    assert first.verdicts == second.verdicts == {name: {"AGREES": 40} for name in first.verdicts}


def test_missing_and_damaged_shards_are_written_anew(store: Path, tmp_path: Path) -> None:
    """Only what is missing or not whole is asked about again, and comes out the same."""
    run(digits_job(store, tmp_path / "whole"))
    run(digits_job(store, tmp_path / "torn"))
    folder = Folder(tmp_path / "torn")
    folder.part(0).unlink()
    folder.part(2).write_bytes(folder.part(2).read_bytes()[:-100])
    summary = run(digits_job(store, tmp_path / "torn"))
    assert (summary.written, summary.kept) == (2, 1)
    alike(read(tmp_path / "torn"), read(tmp_path / "whole"))


OTHER: dict[str, tuple[dict[str, Any], str]] = {
    "request": ({"request": REQUEST | {"seed": 1}}, r"the job's spec \(request.seed\)"),
    "target": ({"target": "predicted"}, r"the job's spec \(target\)"),
    "batch": ({"engine": {"kind": "local", "batch": 16}}, r"the job's spec \(engine.batch\)"),
    "data": ({"data": digits(39)}, "the data set and the number of rows"),
}


@pytest.mark.parametrize("changed", OTHER)
def test_a_changed_job_is_not_mixed(explained: Path, store: Path, changed: str) -> None:
    """A folder never holds results of two jobs."""
    words, what = OTHER[changed]
    output = {"folder": explained, "shard_rows": 16, "keep_inputs": True}
    with pytest.raises(CutawayError, match=f"{what} changed since") as caught:
        run(digits_job(store, explained, **{"target": "label", "output": output, **words}))
    assert caught.value.reason == Reason.FOLDER_TAKEN


def test_only_a_folder_of_jobs_is_written_into(store: Path, tmp_path: Path) -> None:
    """Somebody's other files are left alone."""
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(CutawayError, match=r"thesis\.tex"):
        run(digits_job(store, tmp_path))


def test_one_run_at_a_time(store: Path, tmp_path: Path) -> None:
    """Two runs of one job do not write into each other's files."""
    with Folder(tmp_path / "out").locked(), pytest.raises(CutawayError, match="another run is writing") as caught:
        run(digits_job(store, tmp_path / "out"))
    assert caught.value.reason == Reason.FOLDER_TAKEN


def test_only_bad_rows_are_bad(store: Path, tmp_path: Path) -> None:
    """A row that cannot be read, and one that the model refuses, are recorded with a reason; the others of their batch
    are explained as ever."""
    spoiled = digits()
    spoiled.by_name["pixels"] = list(spoiled.by_name["pixels"])
    spoiled.by_name["pixels"][3] = Unreadable("the file is torn")
    spoiled.by_name["pixels"][20] = np.zeros((1, 5, 5), np.float32)
    spoiled.by_name["digit"] = [*spoiled.by_name["digit"][:30], 12, *spoiled.by_name["digit"][31:]]
    summary = run(digits_job(store, tmp_path / "spoiled", data=spoiled, target="label"))
    run(digits_job(store, tmp_path / "sound", target="label"))
    found, sound = read(tmp_path / "spoiled"), read(tmp_path / "sound")
    assert summary.bad == 3
    bad = {row: reason for row, reason in enumerate(found["error"]) if reason is not None}
    assert bad == {3: "DATA_UNREADABLE", 20: "INPUT_SHAPE", 30: "TARGET_RANGE"}
    assert found["error_message"][3] == "inputs.image: the file is torn"
    well = [row for row in range(40) if row not in bad]
    for name in (
        "attribution:integrated_gradients:image",
        "attribution:saliency:image",
        "capture:fc1@output",
        "probability",
    ):
        assert np.isnan(found[name][[*bad]]).all()
        np.testing.assert_allclose(found[name][well], sound[name][well], rtol=1e-4, atol=1e-5, err_msg=name)
    assert np.ma.getmaskarray(found["prediction"]).nonzero()[0].tolist() == [*bad]


def test_too_many_bad_rows_end_the_job(store: Path, tmp_path: Path) -> None:
    """The limit is what the job says; raised, the job goes on where it was."""
    spoiled = digits()
    spoiled.by_name["digit"] = [12, *spoiled.by_name["digit"][1:20], 13, *spoiled.by_name["digit"][21:]]
    words = digits_words(store, tmp_path / "out", data=spoiled, target="label")
    with pytest.raises(CutawayError, match="2 of 32 rows are bad, and 1 are allowed") as caught:
        run(Job(**words, max_bad_rows=1))
    assert caught.value.reason == Reason.TOO_MANY_BAD_ROWS
    summary = run(Job(**words, max_bad_rows=2))
    assert (summary.kept, summary.written, summary.bad) == (2, 1, 2)


def test_a_wrong_job_ends_before_it_begins(store: Path, tmp_path: Path) -> None:
    """Where no row can be explained, the job is told so, and not that every row is bad."""
    wrong: dict[str, tuple[dict[str, Any], str]] = {
        "column": ({"inputs": {"image": {"column": "pixel"}}}, "COLUMN_NOT_FOUND"),
        "input": ({"inputs": {"picture": {"column": "pixels"}}}, "INPUT_UNKNOWN"),
        "shape": ({"inputs": {"image": {"column": "pixels", "shape": [3, 8, 8]}}}, "INPUT_SHAPE"),
        "dtype": ({"inputs": {"image": {"column": "pixels", "dtype": "int64"}}}, "INPUT_DTYPE"),
        "text": ({"inputs": {"image": {"column": "name"}}}, "INPUT_DTYPE"),
        "layer": ({"request": {"captures": [{"layer": "conv9"}]}}, "MODULE_NOT_FOUND"),
        "rows": ({"data": digits(0)}, "INPUT_EMPTY"),
        "model": ({"model": {"archive": store / "none.mar"}}, "MODEL_NOT_FOUND"),
        "damaged": ({"model": {"archive": store / "damaged.mar"}}, "ARCHIVE_CORRUPT"),
        "device": ({"model": {"archive": store / "digits-1.0.mar", "device": "gpu"}}, "INVALID_VALUE"),
        "weightless": ({"request": {"captures": [{"parameter": "fc1.weight"}]}}, "INVALID_VALUE"),
    }
    for name, (words, reason) in wrong.items():
        with pytest.raises(CutawayError) as caught:
            run(digits_job(store, tmp_path / name, **words))
        assert caught.value.reason == reason, f"{name}: {caught.value}"
        assert not list((tmp_path / name).glob("part-*"))


SPECS: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown": ({"modell": 1}, "modell", "no such field; did you mean 'model'"),
    "two models": ({"model": {"archive": "a.mar", "address": "h:1"}}, "model", "name one of"),
    "no label": ({"label": None, "target": "label"}, "", "needs a label column"),
    "dtype": (
        {"inputs": {"image": {"column": "a", "dtype": "float"}}},
        "inputs.image.dtype",
        "'float' is not a choice; did you",
    ),
    "engine": ({"engine": {"kind": "spark"}}, "engine", "no engine; there are local, service, ray"),
    "batch": ({"engine": {"kind": "local", "batch": 0}}, "engine.batch", "greater than 0"),
    "data": ({"data": {"file": "x"}}, "data.path", "field required"),
}


@pytest.mark.parametrize("name", SPECS)
def test_a_wrong_spec_says_where(tmp_path: Path, name: str) -> None:
    """A job that cannot be meant is refused, with the field at fault."""
    words, field, said = SPECS[name]
    with pytest.raises(CutawayError, match=said) as caught:
        digits_job(tmp_path, tmp_path / "out", **words)
    assert (caught.value.reason, caught.value.field) == (Reason.INVALID_VALUE, field)


def test_a_fault_is_told_by_the_jobs_own_fields(store: Path, tmp_path: Path) -> None:
    """Whoever reads an error looks for it in job.yaml, not in the contract's request."""
    wrong: dict[str, tuple[dict[str, Any], str]] = {
        "no column": ({"label": {"column": "figure"}}, "label.column"),
        "no input": ({"inputs": {"picture": {"column": "pixels"}}}, "inputs.picture"),
        "dtype": ({"inputs": {"image": {"column": "pixels", "dtype": "int64"}}}, "inputs.image"),
        "shape": ({"inputs": {"image": {"column": "pixels", "shape": [1, 9, 9]}}}, "inputs.image"),
        "layer": ({"request": {"captures": [{"layer": "fc9"}]}}, "request.captures[0].module"),
        "labels": ({"label": {"column": "name"}, "target": "label"}, "label.column"),
    }
    for name, (words, field) in wrong.items():
        with pytest.raises(CutawayError) as caught:
            run(digits_job(store, tmp_path / name, **words))
        assert caught.value.field == field, f"{name}: {caught.value}"


def test_a_spec_is_a_file(store: Path, tmp_path: Path) -> None:
    """A job.yaml is the job; its paths are relative to it, and a file of flat rows does for an array."""
    digits_file(tmp_path / "digits.parquet")
    words = digits_words(store, Path("out"), data={"path": "digits.parquet"}) | {
        "inputs": {"image": {"column": "pixels", "shape": [1, 8, 8]}},
        "model": {"archive": str(store / "digits-1.0.mar")},
        "output": {"folder": "out", "shard_rows": 16},
    }
    (tmp_path / "job.yaml").write_text(json.dumps(words))  # JSON is YAML
    run(Job.load(tmp_path / "job.yaml"))
    run(digits_job(store, tmp_path / "other"))
    alike(read(tmp_path / "out"), read(tmp_path / "other"))


def test_a_plan_writes_nothing(store: Path, tmp_path: Path) -> None:
    """Rows, shards, passes and bytes are told beforehand, and are what the job then takes."""
    job = digits_job(store, tmp_path / "out")
    told = plan(job)
    assert not (tmp_path / "out").exists()
    run(job)
    taken = sum(path.stat().st_size for path in (tmp_path / "out").glob("part-*"))
    assert (told.rows, told.shards, told.batches) == (40, 3, 5)
    assert told.forwards > told.batches
    assert told.bytes == pytest.approx(taken, rel=0.5)
    assert list(told.columns) == list(read(tmp_path / "out"))


def test_rows_that_need_no_explanation_have_none(store: Path, tmp_path: Path) -> None:
    """Under explain_if a column says who was left out; there nothing stands in place of zeros."""
    request = {"attributions": [{"method": "saliency"}], "explain_if": {"probability_at_most": 0.9}}
    run(digits_job(store, tmp_path / "out", request=request))
    results = read(tmp_path / "out")
    skipped = results["skipped:saliency"]
    np.testing.assert_array_equal(skipped, results["probability"] > 0.9)
    assert 0 < skipped.sum() < 40
    np.testing.assert_array_equal(np.isnan(results["attribution:saliency:image"]).all((1, 2, 3)), skipped)
    assert [verdict is None for verdict in results["verdict:saliency"]] == skipped.tolist()


@pytest.mark.slow
def test_an_estimate_stands_beside_its_standard_error(store: Path, tmp_path: Path) -> None:
    """In a column of its own, in the shape of the input."""
    masks = (np.arange(64).reshape(1, 1, 8, 8) // 16).tolist()
    request = {"attributions": [{"method": "kernel_shap", "n_samples": 20, "masks": {"image": masks}}]}
    run(digits_job(store, tmp_path / "out", request=request))
    results = read(tmp_path / "out")
    (name,) = results.find(kind="standard_error")
    assert name == "standard_error:kernel_shap:image"
    assert results[name].shape == results["attribution:kernel_shap:image"].shape
    assert (results[name] >= 0).all()


def test_several_classes_and_explanations_of_one_kind(store: Path, tmp_path: Path) -> None:
    """Each explanation has columns of its own: numbered, named, or by the rank of its class."""
    several = [{"method": "saliency"}, {"method": "saliency", "absolute": False}, {"method": "deep_lift", "name": "dl"}]
    run(digits_job(store, tmp_path / "out", request={"attributions": several}, target={"top_k": 2}))
    results = read(tmp_path / "out")
    names = [results.about(each)["attribution"] for each in results.find(kind="attribution")]
    assert names == ["saliency", "saliency#1", "saliency#2", "saliency#3", "dl", "dl#1"]
    assert results["targets"].shape == (40, 2)
    np.testing.assert_array_equal(
        np.abs(results["attribution:saliency#3:image"]), results["attribution:saliency#1:image"]
    )


@pytest.mark.slow
def test_texts_have_tokens_and_shapes_of_their_own(store: Path, tmp_path: Path) -> None:
    """A text's tensors are as long as the longest text of its batch; what each token adds stands beside its text."""
    texts = [
        "A dog.",
        "The weather was lovely all day long, and nobody wanted to go home.",
        "Cats sleep.",
        "Rain fell.",
    ]
    words: dict[str, Any] = {
        "model": {"archive": store / "sentences-1.0.mar"},
        "data": Columns({"text": texts}),
        "inputs": {"raw": {"column": "text"}},  # the adapter takes texts
        "request": {
            "attributions": [
                {"method": "layer_integrated_gradients", "layer": "embeddings.word_embeddings", "n_steps": 4}
            ]
        },
        "output": {"folder": tmp_path / "out", "keep_inputs": True},
        "engine": {"kind": "local", "batch": 2},
        "target": {"sum": {}},
    }
    run(Job(**words))
    results = read(tmp_path / "out")
    assert list(results["input:raw"]) == texts
    assert [len(each) for each in results["token_attribution:layer_integrated_gradients:input_ids"]] == [
        len(each) for each in results["tokens"]
    ]
    assert results["tokens"][0][:5] == ["[CLS]", "a", "dog", ".", "[SEP]"]
    assert len(results["tokens"][0]) == len(results["tokens"][1]) > len(results["tokens"][2])


def test_files_of_images_are_decoded_by_the_model(store: Path, tmp_path: Path) -> None:
    """A folder of image files, a sub-folder a class, is a data set with labels; what is no image is a bad row."""
    for row, (pixels, label) in enumerate(zip(held_out().pixels[:12], held_out().labels)):
        (tmp_path / "images" / str(label)).mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / str(label) / f"{row:02d}.png").write_bytes(as_png(pixels))
    (tmp_path / "images" / str(held_out().labels[0]) / "99.png").write_bytes(b"no image")
    words = {
        "data": {"path": str(tmp_path / "images")},
        "inputs": {"raw": {"column": "image"}},
        "label": {"column": "label"},
        "target": "label",
    }
    summary = run(digits_job(store, tmp_path / "out", **words))
    results = read(tmp_path / "out")
    assert (summary.rows, summary.bad) == (13, 1)
    (bad,) = (row for row, reason in enumerate(results["error"]) if reason is not None)
    assert (results["error"][bad], results["label"][bad]) == ("RAW_UNDECODABLE", str(held_out().labels[0]))
    well = [row for row in range(13) if row != bad]
    assert [str(target) for target in results["targets"][well]] == results["label"][well].tolist()
    by_file = sorted(range(12), key=lambda row: (str(held_out().labels[row]), row))
    run(digits_job(store, tmp_path / "arrays", data=digits(12), target="label"))
    arrays = read(tmp_path / "arrays")["attribution:saliency:image"][by_file]
    np.testing.assert_allclose(results["attribution:saliency:image"][well], arrays, rtol=1e-4, atol=1e-5)


def test_numbers_from_python_are_words(store: Path, tmp_path: Path) -> None:
    """Arrays and tensors in a job made in Python do as well as lists, and are written down like them."""
    baselines = {"image": np.full((1, 1, 8, 8), 0.5, np.float32)}
    saying = [{"method": "integrated_gradients", "n_steps": 4, "baselines": baselines}]
    run(digits_job(store, tmp_path / "arrays", request={"attributions": saying}))
    listed = [{"method": "integrated_gradients", "n_steps": 4, "baselines": {"image": baselines["image"].tolist()}}]
    run(digits_job(store, tmp_path / "lists", request={"attributions": listed}))
    alike(read(tmp_path / "arrays"), read(tmp_path / "lists"))


def test_the_schema_is_the_documentation() -> None:
    """Every word of a spec says what it is for."""
    schema = Job.model_json_schema()
    parts = {"Job": schema} | schema["$defs"]
    for part, section in parts.items():
        for name, field in section["properties"].items():
            assert "description" in field or "$ref" in json.dumps(field) or name == "kind", f"{part}.{name}"


def test_same_is_strict() -> None:
    """What these tests compare with tells a value from none."""
    with pytest.raises(AssertionError):
        same(np.array([1.0, np.nan]), np.array([1.0, 2.0]))


@pytest.mark.parametrize("spoilt", [Unreadable("torn"), np.zeros((1, 5, 5), np.float32)], ids=["read", "refused"])
def test_a_bad_row_changes_no_other(store: Path, tmp_path: Path, spoilt: Any) -> None:
    """Random numbers belong to a row's place: beside a bad row each has the values that it has beside a good one."""
    drawing = {"method": "saliency", "noise": {"n_samples": 4, "stdev": 0.1}}
    data = digits(16)
    data.by_name["pixels"] = list(data.by_name["pixels"])
    data.by_name["pixels"][3] = spoilt
    run(digits_job(store, tmp_path / "spoiled", data=data, request={"attributions": [drawing]}))
    run(digits_job(store, tmp_path / "sound", data=digits(16), request={"attributions": [drawing]}))
    found, sound = read(tmp_path / "spoiled"), read(tmp_path / "sound")
    assert [row for row, reason in enumerate(found["error"]) if reason] == [3]
    for name in ("attribution:saliency:image", "probability"):
        np.testing.assert_array_equal(np.delete(found[name], 3, 0), np.delete(sound[name], 3, 0), name)


HOUSES = """
import torch
from cutaway.adapters import Adapter

class Houses(Adapter):
    def build(self):
        return Net()

class Net(torch.nn.Module):
    def forward(self, x):
        return {OUTPUT}
"""


@pytest.mark.parametrize("output", ["3 * x.sum(1)", "3 * x.sum(1, keepdim=True)"])
def test_a_regression_has_a_residual_and_no_class(tmp_path: Path, output: str) -> None:
    """The label minus the prediction, for a model that returns one number, in the table and among the rows that are
    found; none for a row without a label, or a bad one."""
    (tmp_path / "houses.py").write_text(HOUSES.replace("{OUTPUT}", output))
    numbers = np.arange(12, dtype=np.float32).reshape(6, 2)
    numbers[4] = np.nan
    words: dict[str, Any] = {
        "model": {"adapter": f"{tmp_path / 'houses.py'}:Houses"},
        "data": Columns({"x": numbers, "price": [4.0, 14.5, None, 40, 50.0, "62.25"], "name": list("abcdef")}),
        "inputs": {"x": {"column": "x"}},
        "id": "name",
        "label": "price",
        "request": {"attributions": ["saliency"], "captures": ["."]},
        "output": tmp_path / "out",
    }
    run(Job(**words))
    results = read(tmp_path / "out")
    np.testing.assert_array_equal(results["label"], [4, 14.5, np.nan, 40, 50, 62.25])
    np.testing.assert_array_equal(results["residual"], [1, -0.5, np.nan, 1, np.nan, -0.75])
    assert not {"prediction", "prediction_name", "probability"} & set(results)
    assert results.about("residual") == {"kind": "residual", "output": "output"}
    (first, *_) = results.similar("residual", "a", 1).rows
    assert (first.id, first.prediction, first.label) == ("d", "39", "40.0")
    words["data"] = Columns({"x": numbers, "price": ["cheap"] * 6, "name": list("abcdef")})
    run(Job(**words | {"output": tmp_path / "named"}))
    assert "residual" not in read(tmp_path / "named")


EXITING = """
import torch
from cutaway.adapters import Adapter

class Exiting(Adapter):
    def build(self):
        return Net()

class Net(torch.nn.Module):
    def forward(self, image):
        if image.min() < 0:
            raise SystemExit("no")
        return image.flatten(1)
"""


def test_a_model_that_exits_costs_its_row(store: Path, tmp_path: Path) -> None:
    """Whatever a model raises in this process is a bad row with a reason, and no end of the job; a value that a request
    cannot hold is refused as a service refuses it."""
    (tmp_path / "exiting.py").write_text(EXITING)
    images = np.ones((6, 1, 2, 2), np.float32)
    images[3] = -100
    more: dict[str, Any] = {
        "model": {"adapter": f"{tmp_path / 'exiting.py'}:Exiting"},
        "data": Columns({"pixels": images}),
        "id": None,
        "label": None,
        "request": {"input_gradients": True},
    }
    run(digits_job(store, tmp_path / "out", **more))
    results = read(tmp_path / "out")
    assert list(results["error"]) == [None, None, None, "MODEL_FAILED", None, None]
    assert "SystemExit" in results["error_message"][3]
    wrong = {"request": {"explain_if": {"probability_at_most": 2.0}}}
    with pytest.raises(CutawayError) as caught:
        run(digits_job(store, tmp_path / "wrong", **(more | wrong)))
    assert (caught.value.reason, caught.value.field) == (Reason.INVALID_VALUE, "request.explain_if.probability_at_most")


COUNTING = """
import gc
import torch
from cutaway.adapters import Adapter
from cutaway.jobs.batch_inputs import Batch

class Counting(Adapter):
    def build(self):
        return Net()

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Identity()

    def forward(self, image):
        print(sum(isinstance(each, Batch) for each in gc.get_objects()))
        return self.layer(image.flatten(1)).sum(1, keepdim=True)
"""


def test_a_failed_row_keeps_no_inputs(store: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither its error, which is kept for the table, nor a circle of references holds its batch while others run."""
    (tmp_path / "counting.py").write_text(COUNTING)
    images = [np.ones((1, 2, 2), np.float32), *[np.ones((1, 1, 2), np.float32)] * 6, *[Unreadable("torn")] * 2]
    more: dict[str, Any] = {
        "model": {"adapter": f"{tmp_path / 'counting.py'}:Counting"},
        "data": Columns({"pixels": images}),
        "id": None,
        "label": None,
        "request": {"captures": [{"layer": "layer", "slices": [{"axis": 1, "start": 2, "stop": 4}]}]},
        "max_bad_rows": 8,
    }
    with uncollected():
        run(digits_job(store, tmp_path / "out", **more))
    assert read(tmp_path / "out")["error"].tolist() == [None, *["SLICE_RANGE"] * 6, *["DATA_UNREADABLE"] * 2]
    assert {*capfd.readouterr().out.split()} == {"1"}


def test_what_is_no_class_is_no_label(store: Path, tmp_path: Path) -> None:
    """A label that is no whole number, or none at all, is told as it is, and makes a bad row where it is the target."""
    data = digits(8)
    labels = [np.bool_(True), np.float32(2), 3.5, float("nan"), float("inf"), 2**70, "4", None]
    data.by_name["digit"] = labels
    run(digits_job(store, tmp_path / "told", data=data))
    told = ["1", "2", "3.5", None, "inf", str(2**70), "4", None]
    assert read(tmp_path / "told")["label"].tolist() == told
    run(digits_job(store, tmp_path / "target", data=data, target="label"))
    reasons = read(tmp_path / "target")["error"]
    assert [row for row, reason in enumerate(reasons) if reason == "TARGET_RANGE"] == [2, 3, 4, 5, 7]
    assert [row for row, reason in enumerate(reasons) if reason is None] == [0, 1, 6]


def test_concepts_of_a_job_are_those_of_its_rows(store: Path, tmp_path: Path) -> None:
    """Each row has its directional derivatives, as one call has them; the share of the data set is their mean sign."""
    images = held_out().images
    plain = [images[100 + 20 * number : 120 + 20 * number] for number in range(4)]
    sets = [np.maximum(plain[0], np.float32(0.5)), *plain[1:]]
    for number, examples in enumerate(sets):
        np.save(tmp_path / f"{number}.npy", examples)
    (tmp_path / "job.yaml").write_text(f"""
model: {store / "digits-1.0.mar"}
data: {{path: images.npy}}
inputs: {{image: {{column: images}}}}
target: 3
request: {{concepts: {{layers: [conv2], concepts: {{bright: 0.npy}}, random: [1.npy, 2.npy, 3.npy], seed: 5}}}}
output: out
engine: {{batch: 8}}
""")
    np.save(tmp_path / "images.npy", images[:20])
    run(Job.load(tmp_path / "job.yaml"))
    results = read(tmp_path / "out")
    column = results["concept_derivative:conv2:bright"]
    concepts = {"layers": ["conv2"], "concepts": {"bright": sets[0]}, "random": sets[1:], "seed": 5}
    with serve({"digits": fixed.network()}) as server, ca.Client(server.address) as client:
        whole = client.inspect("digits", {"image": images[:20]}, target=3, concepts=concepts)
    np.testing.assert_allclose(column, whole.concepts[0].derivatives, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose((column > 0).mean(0), whole.concepts[0].shares)
