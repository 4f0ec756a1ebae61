"""Tables with a column for each feature: which columns make the vector, in which order, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from cutaway.contract.errors import CutawayError, Reason
from cutaway.contract.tensors import Array
from cutaway.jobs import Job, plan, read, report, run
from cutaway.jobs.manifest import _relevant
from tests.support.jobs import Columns

FEATURES = ("mean_size", "mean_hue", "age", "worst_size")
WEIGHTS = np.array([[1.0, -2.0, 0.5, 3.0], [0.25, 1.0, -1.0, 2.0]], np.float32)
ADAPTER = """
import torch
from torch import nn

from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec


class Unnamed(Adapter):
    inputs = (InputSpec("x", "float32", (-1, 4)),)
    labels = ("benign", "malignant")

    def build(self) -> nn.Module:
        layer = nn.Linear(4, 2)
        layer.weight.data = torch.tensor([[1.0, -2.0, 0.5, 3.0], [0.25, 1.0, -1.0, 2.0]])
        layer.bias.data = torch.tensor([0.0, 0.5])

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = layer

            def forward(self, x):
                return self.layer(x)

        return Net()


class Named(Unnamed):
    inputs = (InputSpec("x", "float32", (-1, 4), feature_names=("mean_size", "mean_hue", "age", "worst_size")),)
"""


def table(rows: int = 6) -> dict[str, Any]:
    """Columns in another order than the features, with a label and an id; whole numbers in one of them."""
    return {
        "patient": [f"p{row}" for row in range(rows)],
        "worst_size": [0.5 * row - 1 for row in range(rows)],
        "age": [row + 30 for row in range(rows)],
        "mean_hue": [0.125 * row for row in range(rows)],
        "diagnosis": ["benign", "malignant"] * (rows // 2),
        "mean_size": [2.0 - row for row in range(rows)],
    }


def written(folder: Path, columns: dict[str, Any], suffix: str) -> str:
    """The columns in a file of that kind."""
    path = folder / f"patients.{suffix}"
    if suffix == "csv":
        pandas.DataFrame(columns).to_csv(path, index=False)
    else:
        parquet.write_table(pa.table(columns), path)
    return str(path)


def job(folder: Path, columns: Any, data: dict[str, Any] | None = None, suffix: str = "csv", **more: Any) -> Job:
    """A job over the table, with the model that names its features unless ``adapter`` is another."""
    (folder / "linear_adapter.py").write_text(ADAPTER)
    adapter = more.pop("adapter", "Named")
    return Job(
        model={"adapter": f"{folder / 'linear_adapter.py'}:{adapter}"},
        data={"path": written(folder, data or table(), suffix)},
        inputs={"x": {"columns": columns}},
        id={"column": "patient"},
        label={"column": "diagnosis"},
        request={"attributions": ["input_x_gradient"]},
        output={"folder": folder / "out", "keep_inputs": True},
        **more,
    )


def in_order(data: dict[str, Any], names: Sequence[str]) -> Array:
    return np.stack([np.asarray(data[name], np.float32) for name in names], axis=1)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("columns", ["features", list(FEATURES), ["mean_*", "age", "worst_size"], "*"])
def test_columns_make_one_vector(tmp_path: Path, columns: Any, suffix: str) -> None:
    """Names, globs and `features` make the vector of the model's features, in the model's order; ids and labels are no
    features."""
    run(job(tmp_path, columns, suffix=suffix, target="label"))
    results = read(tmp_path / "out")
    vectors = in_order(table(), FEATURES)
    np.testing.assert_array_equal(results["input:x"], vectors)
    labels = np.array([0, 1, 0, 1, 0, 1])
    np.testing.assert_allclose(results["attribution:input_x_gradient:x"], vectors * WEIGHTS[labels], rtol=1e-6)
    assert results.feature_names("attribution:input_x_gradient:x") == FEATURES
    # Other processes need no second look.
    assert results.manifest.feature_columns == results.manifest.feature_names == {"x": list(FEATURES)}
    assert list(results["label"]) == table()["diagnosis"]


def test_without_names_of_the_model_columns_have_their_own_order(tmp_path: Path) -> None:
    """As the job lists them; a glob in the table's order. The features have the columns' names."""
    run(job(tmp_path, ["age", "mean_*", "worst_size"], adapter="Unnamed"))
    results = read(tmp_path / "out")
    expected = ("age", "mean_hue", "mean_size", "worst_size")
    np.testing.assert_array_equal(results["input:x"], in_order(table(), expected))
    assert results.feature_names("input:x") == expected


def test_other_columns_of_the_table_are_no_features(tmp_path: Path) -> None:
    """With a model that names its features, `features` takes these and leaves texts and other numbers alone."""
    data = table() | {"ward": ["a", "b"] * 3, "visits": [1] * 6}
    run(job(tmp_path, "features", data))
    np.testing.assert_array_equal(read(tmp_path / "out")["input:x"], in_order(data, FEATURES))


def test_whole_numbers_are_features_too(tmp_path: Path) -> None:
    """A table of whole numbers is converted to the type of the model's parameters."""
    (tmp_path / "plain_adapter.py").write_text(ADAPTER.replace('(InputSpec("x", "float32", (-1, 4)),)', "()"))
    data = {name: [1, 2] if name in FEATURES else ["a", "b"] for name in table()}
    base = job(tmp_path, list(FEATURES), data)
    run(base.model_copy(update={"model": base.model.model_copy(
        update={"adapter": f"{tmp_path / 'plain_adapter.py'}:Unnamed"})}))  # fmt: skip
    assert read(tmp_path / "out")["input:x"].tolist() == [[1.0] * 4, [2.0] * 4]


WRONG: dict[str, tuple[dict[str, Any], Any, Reason, str]] = {
    "unknown": ({}, ["mean_sise", "age"], Reason.COLUMN_NOT_FOUND, "no column 'mean_sise'; did you mean 'mean_size'"),
    "glob": ({}, ["maen_*"], Reason.COLUMN_NOT_FOUND, r"no column 'maen_\*'"),
    "text": ({"age": list("abcdef")}, "features", Reason.INPUT_DTYPE, "'age' holds 'a'; encode"),
    "count": ({}, ["age", "mean_*"], Reason.COLUMN_NOT_FOUND, "4 features, and the job names 3 columns.*'worst_size'"),
    "lists": ({"age": [[1.0, 2.0]] * 6}, "features", Reason.INPUT_DTYPE, r"'age' holds arrays of shape \[2\]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_columns_are_refused_before_anything_runs(tmp_path: Path, name: str) -> None:
    """With the field, the column and the nearest names."""
    changed, columns, reason, message = WRONG[name]
    with pytest.raises(CutawayError, match=message) as caught:
        run(job(tmp_path, columns, table() | changed, "parquet" if name == "lists" else "csv"))
    assert (caught.value.reason, caught.value.field) == (reason, "inputs.x.columns")
    assert not list((tmp_path / "out").glob("part-*"))


def renamed(names: dict[str, str]) -> dict[str, Any]:
    """The table with other ``names`` for some columns."""
    return {names.get(name, name): values for name, values in table().items()}


CAPITALS = {name: name.upper() for name in FEATURES}
CONTRADICTIONS: dict[str, tuple[dict[str, str], Any, str]] = {
    "a unit": ({"worst_size": "worst_size_mm"}, "features", "'worst_size' .did you mean 'worst_size_mm'"),
    "a space": ({"age": "age "}, "features", "'age' .did you mean 'age '"),
    "capitals": (CAPITALS, "features", "'mean_size' .did you mean 'MEAN_SIZE'"),
    "no name at all": ({name: f"c{number}" for number, name in enumerate(FEATURES)}, "features", "by_position"),
    "by a glob": ({"age": "years"}, ["*"], "none of which is 'age'"),
    "listed in another order": ({"age": "years"}, ["worst_size", "years", "mean_hue", "mean_size"], "'age'"),
    "listed in capitals": (CAPITALS, [*map(str.upper, reversed(FEATURES))], "did you mean 'AGE'"),
}


@pytest.mark.parametrize("name", list(CONTRADICTIONS))
def test_columns_with_other_names_than_the_models_are_never_taken_by_their_place(tmp_path: Path, name: str) -> None:
    """Or each explanation would stand at another feature. The nearest names are told."""
    names, columns, message = CONTRADICTIONS[name]
    with pytest.raises(CutawayError, match=message) as caught:
        run(job(tmp_path, columns, renamed(names)))
    assert (caught.value.reason, caught.value.field) == (Reason.COLUMN_NOT_FOUND, "inputs.x.columns")


@pytest.mark.parametrize("columns", [["mean_size", "mean_hue", "years", "worst_size"], [*map(str.upper, FEATURES)]])
def test_a_list_in_the_models_order_is_taken_as_it_is(tmp_path: Path, columns: list[str]) -> None:
    """Names of its own, at the places of the features that they stand for."""
    run(job(tmp_path, columns, renamed(dict(zip(FEATURES, columns)))))
    np.testing.assert_array_equal(read(tmp_path / "out")["input:x"], in_order(table(), FEATURES))


def test_a_job_may_say_that_places_count(tmp_path: Path) -> None:
    """Then the columns are taken in their own order, whatever they are called."""
    spec = job(tmp_path, "features")
    by_position = spec.inputs["x"].model_copy(update={"by_position": True})  # type: ignore[index]
    run(spec.model_copy(update={"inputs": {"x": by_position}}))
    order = [name for name in table() if name in FEATURES]
    np.testing.assert_array_equal(read(tmp_path / "out")["input:x"], in_order(table(), order))


@pytest.mark.parametrize("both", [{"columns": ["a"], "column": "a"}, {}])
def test_an_input_is_a_column_or_several(tmp_path: Path, both: dict[str, Any]) -> None:
    """Exactly one of the two."""
    with pytest.raises(CutawayError, match="name one of column and columns"):
        Job(model={"adapter": "a:B"}, data="x", inputs={"x": both}, output=tmp_path)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_row_with_a_missing_value_is_bad(tmp_path: Path, suffix: str) -> None:
    """Its error names the row and the columns; the other rows are explained as ever. NaN in a table is no number."""
    data = table()
    data["age"] = [30, None, 32, 33, 34, 35]
    data["mean_hue"] = [0.0, None, 0.25, None, 0.5, 0.625]
    if suffix == "csv":
        data["worst_size"] = [-1.0, -0.5, 0.0, 0.5, 1.0, "n/a"]
        data["worst_size"] += [0.0] * 20  # a column of numbers, with one that is none
        data = {name: [*values, *[values[0]] * (26 - len(values))] for name, values in data.items()}
    else:
        data["age"] = [30.0, None, 32.0, 33.0, 34.0, float("nan")]
    run(job(tmp_path, "features", data, suffix))
    results = read(tmp_path / "out")
    bad = {row: message for row, message in enumerate(results["error_message"]) if message is not None}
    assert "row 1, column 'mean_hue': " in bad[1]
    assert "and 1 more columns" in bad[1]
    assert "row 3, column 'mean_hue': " in bad[3]
    assert list(bad) == [1, 3, 5]
    if suffix == "parquet":
        assert "row 5, column 'age': there is no value" in bad[5]
    if suffix == "csv":
        assert "row 5, column 'worst_size': 'n/a' is not a number" in bad[5]
    good = [0, 2, 4]
    np.testing.assert_array_equal(
        results["input:x"][good], [[float(data[name][row]) for name in FEATURES] for row in good]
    )
    assert set(results["error"]) == {None, "DATA_UNREADABLE"}


def test_pandas_reads_the_folder(tmp_path: Path) -> None:
    """Whatever else lies in the folder has a name that readers of Parquet folders skip."""
    request: dict[str, Any] = {"attributions": ["saliency"], "captures": [{"layer": "layer"}]}
    base = job(tmp_path, "features", suffix="parquet")
    run(base.model_copy(update={
        "request": type(base.request)(**request),
        "output": base.output.model_copy(update={"captures_to": "zarr", "shard_rows": 2}),
    }))  # fmt: skip
    report(tmp_path / "out")
    frame = pandas.read_parquet(tmp_path / "out")
    assert list(frame["id"]) == [f"p{row}" for row in range(6)]
    others = [path.name for path in (tmp_path / "out").iterdir() if not path.name.startswith("part-")]
    assert {"_manifest.json", "_captures", "_report.html"} <= set(others)
    assert all(name[0] in "._" for name in others)


def test_a_folder_of_an_earlier_version_is_continued(tmp_path: Path) -> None:
    """Its manifest and captures have their old names, and its job no `columns`: it is the same job."""
    data = {"vector": list(in_order(table(), FEATURES)), "patient": table()["patient"]}
    base = job(tmp_path, "features", table() | data, "parquet")
    old = Job(**{**base.model_dump(), "inputs": {"x": {"column": "vector"}}, "label": None})
    run(old)
    folder = tmp_path / "out"
    text = (folder / "_manifest.json").read_text()
    (folder / "manifest.json").write_text(text)
    (folder / "_manifest.json").unlink()
    (folder / "part-00000.parquet").unlink()
    summary = run(old)
    assert (summary.written, summary.kept) == (1, 0)
    assert not (folder / "_manifest.json").exists()
    assert read(folder).rows == 6


def test_the_digest_of_a_job_without_columns_is_that_of_earlier_versions(tmp_path: Path) -> None:
    """A new field that a job does not use changes nothing about the job."""
    base = Job(model={"adapter": "a:B"}, data="x", inputs={"x": {"column": "v"}}, output=tmp_path)
    assert _relevant(base.as_json())["inputs"] == {"x": {"column": "v", "dtype": "", "shape": None, "scale": 1.0}}


class Short(Columns):
    """A data set that reads no range of more than a hundred rows."""

    def read(self, start: int, stop: int, columns: Sequence[str]) -> dict[str, Any]:
        assert stop - start <= 100
        return super().read(start, stop, columns)


def test_a_plan_computes_a_few_rows(tmp_path: Path) -> None:
    """However long the shards are; the figures are those of the whole job."""
    data = {name: values * 100 for name, values in table().items()}
    base = job(tmp_path, "features").model_copy(update={"data": Short(data)})
    told = plan(base)
    assert (told.rows, told.shards, told.batches) == (600, 2, 10)
    assert told.forwards >= told.batches
    assert told.seconds > 0
    assert not (tmp_path / "out").exists()
    with pytest.raises(AssertionError):  # the job itself reads shards
        run(base)


def test_a_class_is_named_by_its_label(tmp_path: Path) -> None:
    """One class for all rows, by the label that the model gives it; an unknown label is an error before any row."""
    with pytest.raises(CutawayError, match="'malignant'") as caught:
        run(job(tmp_path, "features", target="malignnt"))
    assert caught.value.field.startswith("target")
    assert not list((tmp_path / "out").glob("part-*"))
    run(job(tmp_path, "features", target="malignant"))
    assert set(read(tmp_path / "out")["targets"]) == {1}
