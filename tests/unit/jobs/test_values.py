"""Values of a data set reach the model and the results as they are, or an error of the row or the job says why not."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from cutaway.contract.errors import CutawayError, Reason
from cutaway.jobs import Job, Results, read, run
from cutaway.jobs.batch_inputs import Label, convert
from cutaway.jobs.records import Layout, Records
from cutaway.jobs.sources.source import Unreadable, from_arrow

ADAPTER = """
import torch
from torch import nn

from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x.float())


class Typed(Adapter):
    inputs = {inputs}
    labels = {labels}

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return Sum()

    def example(self):
        return {{"x": torch.zeros(1, 3, dtype=torch.{dtype})}}
"""
BIG = 2**53 + 1
"""The first whole number that no float64 holds."""


def results(
    folder: Path,
    dtype: str,
    data: str,
    columns: Any = "x",
    labels: tuple[str, ...] = ("a", "b"),
    into: str = "out",
    **more: Any,
) -> Results:
    """The results of a job over ``data``, a file in ``folder``, for a model whose input has that type; "" is none."""
    inputs = f'(InputSpec("x", "{dtype}", (-1, 3)),)' if dtype else "()"
    adapter = ADAPTER.format(inputs=inputs, labels=labels, dtype=dtype or "float32")
    file = folder / f"{into}_adapter.py"  # of one name, Python takes what it compiled of the other within a second
    file.write_text(adapter)
    run(
        Job(
            model={"adapter": f"{file}:Typed"},
            data=str(folder / data),
            inputs={"x": {"column": columns} if isinstance(columns, str) else columns},
            **{"output": {"folder": folder / into, "keep_inputs": True}, **more},
        )
    )
    return read(folder / into)


def good(found: Results) -> dict[int, list[Any]]:
    """The inputs of good rows, by row."""
    return {row: found["input:x"][row].tolist() for row, reason in enumerate(found["error"]) if reason is None}


def messages(found: Results) -> dict[int, str]:
    """The messages of bad rows."""
    return {row: message for row, message in enumerate(found["error_message"]) if message is not None}


def write_rows(folder: Path, rows: list[Any], suffix: str) -> str:
    """The rows, lists of three numbers, as a column ``x`` of lists; in CSV as columns ``a``, ``b`` and ``c``."""
    path = folder / f"x.{suffix}"
    if suffix == "csv":
        path.write_text("a,b,c\n" + "".join(",".join("" if n is None else str(n) for n in row) + "\n" for row in rows))
    elif suffix == "jsonl":
        path.write_text("".join(json.dumps({"x": row}) + "\n" for row in rows))
    elif suffix == "parquet":
        parquet.write_table(pa.table({"x": rows}), path)
    else:
        np.save(path, np.array(rows))
    return path.name


FEATURES = {"columns": ["a", "b", "c"]}
MISFITS = {
    "int32": (
        [5_000_000_000, 2, 3],
        "5000000000 is no int32, which holds whole numbers from -2147483648 to 2147483647",
    ),
    "uint8": ([300, 2, 3], "300 is no uint8, which holds whole numbers from 0 to 255"),
    "int8": ([1, -129, 3], "-129 is no int8"),
    "float32": ([1e300, 2, 3], "1e+300 is too large for float32"),
    "float16": ([70000.0, 2, 3], "70000.0 is too large for float16"),
    "int64": ([1.5, 2, 3], "1.5 is no int64"),
}


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "npy"])
@pytest.mark.parametrize("dtype", MISFITS)
def test_a_number_that_an_input_cannot_hold_costs_its_row(tmp_path: Path, dtype: str, suffix: str) -> None:
    """It never becomes another number. The other rows of the shard have their values."""
    misfit, message = MISFITS[dtype]
    data = write_rows(tmp_path, [[1, 0, 1], misfit, [0, 1, 1]], suffix)
    found = results(tmp_path, dtype, data, FEATURES if suffix == "csv" else "x")
    assert good(found) == {0: [1, 0, 1], 2: [0, 1, 1]}
    assert list(messages(found)) == [1]
    assert message in messages(found)[1]
    assert messages(found)[1].startswith("inputs.x: ")


@pytest.mark.parametrize("suffix", ["csv", "npy"])
def test_a_scale_makes_no_other_numbers(tmp_path: Path, suffix: str) -> None:
    """A product that is no whole number, or too large, is no input of a whole-number type."""
    data = write_rows(tmp_path, [[2, 4, 6], [2, 4, 7], [510, 0, 0], [512, 0, 0]], suffix)
    columns: dict[str, Any] = FEATURES if suffix == "csv" else {"column": "x"}
    found = results(tmp_path, "uint8", data, {**columns, "scale": 0.5})
    assert good(found) == {0: [1, 2, 3], 2: [255, 0, 0]}
    assert "7 times the scale 0.5 is no uint8" in messages(found)[1]


def test_a_fractional_scale_makes_floats_where_no_type_is_declared(tmp_path: Path) -> None:
    """Pixels of a model that declares nothing are scaled, and not cut to 0."""
    np.save(tmp_path / "x.npy", np.array([[0, 51, 255]], np.uint8))
    found = results(tmp_path, "", "x.npy", {"column": "x", "scale": 1 / 255})
    np.testing.assert_array_equal(found["input:x"], np.array([[0, 0.2, 1]], np.float32))


@pytest.mark.parametrize("number", [2, -1, 0.5])
def test_a_number_is_no_truth_value(number: float) -> None:
    """But for 0 and 1."""
    assert convert(np.array([0, 1.0]), "bool").tolist() == [False, True]
    with pytest.raises(CutawayError, match=f"{number} is no bool, which holds whole numbers from 0 to 1"):
        convert(np.array([number]), "bool")


def test_an_infinite_number_stays_infinite(tmp_path: Path) -> None:
    """It is the caller's own value, and so is NaN in an array."""
    np.save(tmp_path / "x.npy", np.array([[np.inf, -np.inf, 0.0], [np.nan, 0, 0]]))
    found = results(tmp_path, "float32", "x.npy")
    np.testing.assert_array_equal(found["input:x"], np.load(tmp_path / "x.npy").astype(np.float32))


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_an_empty_cell_costs_its_row_alone(tmp_path: Path, suffix: str) -> None:
    """The whole numbers of the other rows stay exact, beside fractions too."""
    rows: list[list[Any]] = [[BIG, 2, 3], [4, None, 6], [7, 8, -BIG], [1, 1.5, 1]]
    if suffix == "parquet":
        rows = [[int(n) if n is not None else None for n in row] for row in rows[:3]]
        parquet.write_table(pa.table(dict(zip("abc", map(list, zip(*rows))))), tmp_path / "x.parquet")
    elif suffix == "jsonl":
        (tmp_path / "x.jsonl").write_text("".join(json.dumps(dict(zip("abc", row))) + "\n" for row in rows))
    else:
        write_rows(tmp_path, rows, "csv")
    found = results(tmp_path, "int64", f"x.{suffix}", FEATURES)
    assert good(found) == {0: [BIG, 2, 3], 2: [7, 8, -BIG]}
    assert "row 1, column 'b': " in messages(found)[1]


def test_columns_of_unsigned_numbers_change_no_others(tmp_path: Path) -> None:
    """Only the number that is too large is an error; no column becomes one of floats."""
    columns = {"a": np.array([BIG, 1], np.int64), "b": np.array([BIG, 2**63 + 1], np.uint64), "c": np.array([1.0, 2.0])}
    parquet.write_table(pa.table(columns), tmp_path / "x.parquet")
    found = results(tmp_path, "int64", "x.parquet", FEATURES)
    assert good(found) == {0: [BIG, BIG, 1]}
    assert "row 1, column 'b': 9223372036854775809 is no int64" in messages(found)[1]


def test_a_list_of_floats_changes_no_list_of_whole_numbers(tmp_path: Path) -> None:
    """A column of JSON has lists of both; a whole number that a float beside it has rounded is no whole number."""
    write_rows(tmp_path, [[BIG, 2, 3], [1.0, 2.0, 3.0], [BIG, 2.0, 3.0], [1.5, 2.0, 3.0]], "jsonl")
    found = results(tmp_path, "int64", "x.jsonl")
    assert good(found) == {0: [BIG, 2, 3], 1: [1, 2, 3]}
    assert list(messages(found)) == [2, 3]


def test_whole_numbers_and_floats_of_json_are_one_column(tmp_path: Path) -> None:
    """Of a model that declares no type, an input with fractions has the type of the parameters in all rows."""
    write_rows(tmp_path, [[1, 2, 3], [1.5, 2, 3], [4, 5, 6]], "jsonl")
    found = results(tmp_path, "", "x.jsonl")
    assert found["input:x"].dtype == np.float32
    assert good(found) == {0: [1, 2, 3], 1: [1.5, 2, 3], 2: [4, 5, 6]}


def test_numbers_without_a_type_in_torch_are_refused(tmp_path: Path) -> None:
    """By the name of their type, where nothing declares another."""
    np.save(tmp_path / "x.npy", np.array([[1, 2, 3]], np.uint16))
    with pytest.raises(CutawayError, match="uint16 cannot be sent") as caught:
        results(tmp_path, "", "x.npy")
    assert (caught.value.reason, caught.value.field) == (Reason.INPUT_DTYPE, "inputs.x")


def test_a_number_of_400_digits_is_an_error_of_its_row(tmp_path: Path) -> None:
    """No float holds it."""
    (tmp_path / "x.jsonl").write_text('{"a":1,"b":2,"c":3}\n{"a":%s,"b":2,"c":3}\n' % ("1" * 400))
    found = results(tmp_path, "float32", "x.jsonl", FEATURES)
    assert good(found) == {0: [1, 2, 3]}
    assert "row 1, column 'a': the number is too large" in messages(found)[1]


def test_baselines_are_not_changed(tmp_path: Path) -> None:
    """A number of a baseline that the input cannot hold is an error before anything runs."""
    write_rows(tmp_path, [[1, 2, 3]], "jsonl")
    request = {"attributions": [{"method": "feature_ablation", "inputs": ["x"], "baselines": {"x": [[300, 0, 0]]}}]}
    with pytest.raises(CutawayError, match="holds 300, which uint8 cannot hold") as caught:
        results(tmp_path, "uint8", "x.jsonl", request=request)
    assert (caught.value.reason, caught.value.field) == (
        Reason.INVALID_VALUE,
        "request.attributions[0].feature_ablation.baselines.by_input.x",
    )


IDS = ["01234", "1.10", str(BIG), "1e5", "nan", "-0", " 7", "", "1_000", "\u00fc"]


def test_ids_are_the_texts_of_the_table(tmp_path: Path) -> None:
    """Whatever number they look like, and also where the column is an input too."""
    (tmp_path / "x.csv").write_text("id,a,b,c\n" + "".join(f"{name},1,2,3\n" for name in IDS))
    assert list(results(tmp_path, "float32", "x.csv", FEATURES, id="id")["id"]) == IDS
    (tmp_path / "both.csv").write_text("a,b,c\n1.10,2,3\n2.0,2,3\n")
    found = results(tmp_path, "float32", "both.csv", FEATURES, id="a", into="both")
    assert list(found["id"]) == ["1.10", "2.0"]


def test_ids_of_other_formats_are_what_they_were(tmp_path: Path) -> None:
    """Whole numbers beside floats, decimals with all their digits, and bytes as the text that they are."""
    rows = [{"id": BIG, "x": [1, 2, 3]}, {"id": 0.5, "x": [1, 2, 3]}, {"id": 7, "x": [1, 2, 3]}]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = results(tmp_path, "int64", "x.jsonl", id="id", into="json")
    assert list(found["id"]) == [str(BIG), "0.5", "7"]
    decimals = [Decimal("12345678901234567890.10"), None, Decimal("7.00")]
    parquet.write_table(pa.table({"id": decimals, "x": [[1, 2, 3]] * 3}), tmp_path / "x.parquet")
    found = results(tmp_path, "int64", "x.parquet", id="id", into="decimals")
    assert list(found["id"]) == ["12345678901234567890.10", "1", "7.00"]
    np.savez(tmp_path / "x.npz", id=np.array([b"a", "\u00fc".encode(), b"\xff"]), x=np.ones((3, 3)))
    found = results(tmp_path, "float32", "x.npz", id="id", into="bytes")
    assert list(found["id"]) == ["a", "\u00fc", r"b'\xff'"]


def test_decimals_are_numbers_of_inputs(tmp_path: Path) -> None:
    """As columns of features and as lists; a null costs its row."""
    columns = {"a": [Decimal("1.5"), None], "b": [Decimal(2), Decimal(3)], "c": [Decimal(3), Decimal(4)]}
    parquet.write_table(
        pa.table(columns | {"x": [[Decimal("1.5"), Decimal(2), Decimal(3)]] * 2}), tmp_path / "x.parquet"
    )
    assert good(results(tmp_path, "float32", "x.parquet", FEATURES, into="features")) == {0: [1.5, 2, 3]}
    assert good(results(tmp_path, "float32", "x.parquet")) == {0: [1.5, 2, 3], 1: [1.5, 2, 3]}


def test_a_name_that_is_not_utf8_costs_its_row(tmp_path: Path) -> None:
    """A table cannot hold it, and the number of the row is not its id."""
    (tmp_path / "x.csv").write_bytes(b"id,a,b,c,y\nm\xfcller,1,2,3,u\nb,1,2,3,\xff\nc,1,2,3,v\n")
    found = results(tmp_path, "float32", "x.csv", FEATURES, id="id", label="y")
    told = {0: "id.column: the text is not UTF-8", 1: "label.column: the text is not UTF-8"}
    assert messages(found) == told


def test_a_text_that_is_too_large_a_number_is_none(tmp_path: Path) -> None:
    """It does not become infinite; only a text that says so is."""
    (tmp_path / "x.csv").write_text("a,b,c\n1e400,2,3\n-inf,2,3\n")
    found = results(tmp_path, "float64", "x.csv", FEATURES)
    assert good(found) == {1: [float("-inf"), 2, 3]}
    assert "row 0, column 'a': '1e400' is not a number" in messages(found)[0]
    (tmp_path / "x.jsonl").write_text(
        '{"x":[1e400,2,3]}\n{"x":[1e300,-Infinity,1e-400]}\n{"x":[1%s.0,2,3]}\n' % ("0" * 309)
    )
    found = results(tmp_path, "float64", "x.jsonl", into="json")
    assert good(found) == {1: [1e300, float("-inf"), 0]}
    assert "x[0] is too large for a number" in messages(found)[0]


def write_labels(folder: Path, labels: list[Any], suffix: str = "csv") -> str:
    """Rows of features with a column ``y`` of labels."""
    path = folder / f"x.{suffix}"
    if suffix == "csv":
        path.write_text("a,b,c,y\n" + "".join(f"1,2,3,{label}\n" for label in labels))
    elif suffix == "jsonl":
        path.write_text("".join(json.dumps({"a": 1, "b": 2, "c": 3, "y": label}) + "\n" for label in labels))
    else:
        ones = np.ones(len(labels))
        parquet.write_table(pa.table({"a": ones, "b": ones, "c": ones, "y": labels}), path)
    return path.name


SALIENCY: dict[str, Any] = {"target": "label", "label": "y", "request": {"attributions": ["saliency"]}}


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_text_that_is_the_name_of_a_class_is_that_class(tmp_path: Path, suffix: str) -> None:
    """Also where it is a number, as a label is for the client; another whole number is an index."""
    data = write_labels(tmp_path, ["1", "0", "1"], suffix)
    found = results(tmp_path, "float32", data, FEATURES, labels=("1", "0"), **SALIENCY)
    assert found["targets"].tolist() == [0, 1, 0]
    assert list(found["label"]) == ["1", "0", "1"]
    found = results(tmp_path, "float32", data, FEATURES, into="unnamed", **SALIENCY)
    assert found["targets"].tolist() == [1, 0, 1]
    assert found["label"].tolist() == ([1, 0, 1] if suffix == "csv" else ["1", "0", "1"])


def test_a_number_that_is_no_text_is_an_index(tmp_path: Path) -> None:
    """Whatever the classes are called."""
    data = write_labels(tmp_path, [1, 0, 1.0], "jsonl")
    found = results(tmp_path, "float32", data, FEATURES, labels=("1", "0"), **SALIENCY)
    assert found["targets"].tolist() == found["label"].tolist() == [1, 0, 1]


def test_an_empty_label_is_none_and_others_keep_their_text(tmp_path: Path) -> None:
    """A table that pandas wrote has 1.0 for a class where another row has no class; 01 is a name."""
    data = write_labels(tmp_path, ["1.0", "", "0"])
    found = results(tmp_path, "float32", data, FEATURES, **SALIENCY)
    assert found["label"].tolist() == [1, None, 0]
    assert messages(found) == {1: "label.column: there is no label, and the target is the label"}
    found = results(tmp_path, "float32", write_labels(tmp_path, ["1.0", "01", "", "b"]), FEATURES, into="t", **SALIENCY)
    assert list(found["label"]) == ["1.0", "01", None, "b"]
    assert messages(found)[1] == "label.column: the model has no class '01'; it has 'a', 'b'"
    assert found["targets"].tolist() == [1, None, None, 1]


def test_a_name_of_two_classes_is_no_class(tmp_path: Path) -> None:
    """As for a client; the label is kept."""
    data = write_labels(tmp_path, ["a", "1"])
    found = results(tmp_path, "float32", data, FEATURES, labels=("a", "a"), **SALIENCY)
    assert messages(found) == {0: "label.column: several classes of the model are called 'a'; use the index of one"}
    assert list(found["label"]) == ["a", "1"]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_labels_that_are_texts_in_a_later_shard_only_are_kept(tmp_path: Path, suffix: str) -> None:
    """All labels are read before the columns of the tables are decided."""
    labels: list[Any] = [0, 1, 0, 3.5] if suffix == "parquet" else [0, 1, 0, "cat"]
    data = write_labels(tmp_path, labels, suffix)
    output = {"folder": tmp_path / "out", "shard_rows": 2}
    found = results(tmp_path, "float32", data, FEATURES, label="y", output=output)
    assert list(found["label"]) == ["0", "1", "0", str(labels[3])]


def test_a_label_that_the_tables_cannot_hold_ends_the_job(tmp_path: Path) -> None:
    """The data was changed under the job, or an earlier version began it."""
    layout = Layout.of([], pa.int64(), "auto")
    label = [Label("1", 1), None, Label("cat", None)]
    with pytest.raises(CutawayError, match="row 12 has the label 'cat', and this job began with whole") as caught:
        Records(layout, 10, ["a", "b", "c"], label)
    assert caught.value.field == "label.column"


def test_an_input_of_another_type_than_the_first_rows_had_is_not_cut(tmp_path: Path) -> None:
    """Where nothing declares a type, a later shard of JSON may have fractions, which the column could not hold."""
    write_rows(tmp_path, [[1, 2, 3], [4, 5, 6], [1.5, 2, 3]], "jsonl")
    output = {"folder": tmp_path / "out", "shard_rows": 2, "keep_inputs": True}
    with pytest.raises(CutawayError, match="row 2: input:x is float32, and the first rows had int64: name the type"):
        results(tmp_path, "", "x.jsonl", output=output)
    found = results(tmp_path, "", "x.jsonl", {"column": "x", "dtype": "float32"}, into="typed")
    assert good(found) == {0: [1, 2, 3], 1: [4, 5, 6], 2: [1.5, 2, 3]}


BOOLEANS = [[True, False, True], [False, False, True], [True, True, True]]


@pytest.mark.parametrize("suffix", ["npy", "jsonl", "parquet"])
@pytest.mark.parametrize("tensors", ["auto", "ragged"])
def test_inputs_of_booleans_are_kept(tmp_path: Path, suffix: str, tensors: str) -> None:
    """Arrow has eight of them in a byte; a row that is bad has none."""
    bad = [[True]] if suffix != "npy" else []
    data = write_rows(tmp_path, [*BOOLEANS, *bad], suffix)
    output = {"folder": tmp_path / "out", "keep_inputs": True, "tensors": tensors, "shard_rows": 2}
    found = results(tmp_path, "bool", data, output=output)
    assert good(found) == dict(enumerate(BOOLEANS))
    assert found["input:x"][0].dtype == np.bool_
    assert len(messages(found)) == len(bad)


@pytest.mark.parametrize("numbers", [np.arange(24) % 3 == 0, np.arange(24)])
def test_tensors_of_arrow_are_those_of_numpy(numbers: np.ndarray[Any, Any]) -> None:
    """Of booleans too; a part of them, with nulls, and with axes in another order."""
    kind = pa.fixed_shape_tensor(pa.from_numpy_dtype(numbers.dtype), [2, 3], permutation=[1, 0])
    storage = pa.FixedSizeListArray.from_arrays(pa.array(numbers), 6, mask=pa.array([False, False, True, False]))
    tensors = list(numbers.reshape(4, 2, 3).transpose(0, 2, 1))
    found = from_arrow(pa.ExtensionArray.from_storage(kind, storage)[1:])
    assert [None if isinstance(each, Unreadable) else each.tolist() for each in found] == [
        tensors[1].tolist(), None, tensors[3].tolist(),
    ]  # fmt: skip
