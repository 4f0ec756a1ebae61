"""Data sets as people have them: each format, each place, read range by range, and what happens where they are bad."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cutaway as ca
from cutaway.cli.files import read_tensors
from cutaway.contract.errors import CutawayError, Reason
from cutaway.contract.request_reader.files import load_arrays
from cutaway.jobs.sources import FORMATS, Column, Source, Unreadable, open_source
from cutaway.jobs.sources.files import find_files
from cutaway.jobs.sources.source import as_numbers
from tests.support.npy_files import HOSTILE_NPY

ROWS = 25
PIXELS: npt.NDArray[np.float32] = np.random.default_rng(0).normal(size=(ROWS, 3, 4)).astype(np.float32)
LABELS: npt.NDArray[np.int64] = np.arange(ROWS) % 7
TEXTS = [f"sentence {row}, with “marks”, a\nline and ünicode" for row in range(ROWS)]


def everything(source: Source, step: int) -> dict[str, Column]:
    """All rows, read ``step`` at a time."""
    starts = range(0, source.rows, step)
    pieces = [source.read(start, min(start + step, source.rows), source.columns) for start in starts]
    return {
        name: [item for piece in pieces for item in (piece[name] if name == "text" else as_numbers(piece[name]))]
        for name in source.columns
    }


def table() -> pa.Table:
    """The rows above, as Arrow holds them."""
    pixels = pa.FixedShapeTensorArray.from_numpy_ndarray(PIXELS)
    return pa.table({"pixels": pixels, "label": LABELS, "text": TEXTS, "nested": [image.tolist() for image in PIXELS]})


def write_parquet(folder: Path) -> Path:
    pq.write_table(table(), folder / "rows.parquet", row_group_size=6)
    return folder / "rows.parquet"


def write_parquet_files(folder: Path) -> Path:
    (folder / "rows").mkdir()
    for start in range(0, ROWS, 10):
        pq.write_table(table().slice(start, 10), folder / "rows" / f"{start:03}.parquet")
    (folder / "rows" / "_SUCCESS").touch()
    return folder / "rows"


def write_parquet_glob(folder: Path) -> Path:
    return write_parquet_files(folder) / "0*.parquet"


def write_arrow(folder: Path, new: Any = pa.ipc.new_file, name: str = "rows.arrow", **options: Any) -> Path:
    with new(folder / name, table().schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table(), max_chunksize=7)
    return folder / name


def write_feather(folder: Path) -> Path:
    return write_arrow(folder, name="rows.feather", compression="zstd")


def write_arrow_stream(folder: Path) -> Path:
    return write_arrow(folder, pa.ipc.new_stream)


def write_csv(folder: Path) -> Path:
    with (folder / "rows.csv").open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "text", "first"])
        for row in range(ROWS):
            writer.writerow([LABELS[row], TEXTS[row], float(PIXELS[row, 0, 0])])
            file.write("\r\n" * (row % 3))  # empty lines are no rows
    return folder / "rows.csv"


def write_csv_semicolons(folder: Path) -> Path:
    text = write_csv(folder).read_text("utf-8-sig")
    rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    with (folder / "rows.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=";", lineterminator="\n").writerows(rows)
    return folder / "rows.csv"


def write_jsonl(folder: Path) -> Path:
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
        for row in range(ROWS):
            values = {"pixels": PIXELS[row].astype(float).tolist(), "label": int(LABELS[row]), "text": TEXTS[row]}
            file.write(json.dumps(values, ensure_ascii=bool(row % 2)) + "\n" * (1 + row % 3))
    return folder / "rows.jsonl"


def write_npy(folder: Path, pixels: npt.NDArray[np.float32] = PIXELS) -> Path:
    np.save(folder / "pixels.npy", pixels)
    return folder / "pixels.npy"


def write_npy_fortran(folder: Path) -> Path:
    return write_npy(folder, np.asfortranarray(PIXELS))


def write_npy_files(folder: Path) -> Path:
    np.save(folder / "label.npy", LABELS)
    return write_npy(folder).parent


def write_npz(folder: Path) -> Path:
    np.savez_compressed(folder / "rows.npz", pixels=PIXELS, label=LABELS, text=np.array(TEXTS))
    return folder / "rows.npz"


def write_zarr(folder: Path) -> Path:
    import zarr

    group = zarr.open_group(folder / "rows.zarr", mode="w")
    group.create_array("pixels", data=PIXELS, chunks=(4, 3, 4))
    group.create_array("label", data=LABELS)
    return folder / "rows.zarr"


def write_zarr_array(folder: Path) -> Path:
    import zarr

    zarr.create_array(folder / "pixels.zarr", data=PIXELS, chunks=(4, 3, 4), zarr_format=2)
    return folder / "pixels.zarr"


def write_saved(folder: Path) -> Path:
    import datasets

    features = datasets.Features(
        {
            "pixels": datasets.Array2D((3, 4), "float32"),
            "label": datasets.ClassLabel(names=list("abcdefg")),
            "text": datasets.Value("string"),
        }
    )
    data = {"pixels": list(PIXELS), "label": LABELS, "text": TEXTS}
    datasets.Dataset.from_dict(data, features=features).save_to_disk(folder / "saved", num_shards=2)
    return folder / "saved"


WRITERS: list[Callable[[Path], Path]] = [
    *(write_parquet, write_parquet_files, write_parquet_glob),
    *(write_arrow, write_feather, write_arrow_stream),
    *(write_csv, write_csv_semicolons, write_jsonl),
    *(write_npy, write_npy_fortran, write_npy_files, write_npz, write_zarr, write_zarr_array, write_saved),
]
EXPECTED = {"pixels": PIXELS, "nested": PIXELS, "label": LABELS, "text": TEXTS, "first": PIXELS[:, 0, 0]}


@pytest.fixture(params=["path", "file", "memory"])
def placed(request: pytest.FixtureRequest) -> Iterator[Callable[[Path], str]]:
    """Puts a path of this machine to where a data set may lie, and says its name there."""
    memory = fsspec.filesystem("memory")

    def place(path: Path) -> str:
        if request.param == "path":
            return str(path)
        if request.param == "file":
            return f"file://{path}"
        memory.put(str(path.parent), "/there", recursive=True)
        return f"memory:///there/{path.name}"

    yield place
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


@pytest.mark.parametrize("write", WRITERS)
def test_every_format_gives_its_values(
    write: Callable[[Path], Path], placed: Callable[[Path], str], tmp_path: Path
) -> None:
    """What was written comes back, in any ranges and from any place; numbers of one shape are arrays of numpy."""
    (tmp_path / "data").mkdir()
    source = open_source(placed(write(tmp_path / "data")))
    assert source.rows == ROWS
    assert set(source.columns) <= set(EXPECTED)
    for step in (1, 4, ROWS):
        for name, values in everything(source, step).items():
            assert len(values) == ROWS
            if name == "text":
                assert values == TEXTS
            else:
                np.testing.assert_array_equal(np.stack(list(values)), EXPECTED[name])
    for name, values in source.read(3, 9, source.columns).items():  # back to the start
        assert len(values) == 6
        if name != "text":
            numbers = as_numbers(values)
            assert isinstance(numbers, np.ndarray)
            assert numbers.dtype.kind == ("i" if name == "label" else "f")
    assert source.read(5, 5, source.columns).keys() == set(source.columns)
    with pytest.raises(CutawayError) as caught:
        source.read(0, 1, ["colour"])
    assert caught.value.reason == Reason.COLUMN_NOT_FOUND
    assert all(repr(name) in caught.value.message for name in source.columns)


@pytest.mark.parametrize("write", WRITERS)
def test_fingerprint_tells_changed_data(write: Callable[[Path], Path], tmp_path: Path) -> None:
    """The same data has the same fingerprint wherever it lies; one changed byte gives another."""
    (tmp_path / "one").mkdir()
    location = write(tmp_path / "one")
    mark = open_source(str(location)).fingerprint
    copy = shutil.copytree(tmp_path / "one", tmp_path / "two") / location.relative_to(tmp_path / "one")
    assert open_source(str(copy)).fingerprint == mark
    assert len(mark) == 64
    files = [path for path in (tmp_path / "one").rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    assert find_files(str(location)).fingerprint != mark


def test_ragged_and_missing_values_are_lists(tmp_path: Path) -> None:
    """Rows of other lengths stay apart; a null is one row's matter."""
    columns = {
        "tokens": [[1, 2], [3], [], [4, 5, 6]],
        "table": [[[1.0], [2.0]], [[3.0], [4.0, 5.0]], [[6.0]], [[]]],
        "score": [0.5, None, 1.5, 2.5],
        "word": pa.array(["a", None, "b", "a"]).dictionary_encode(),
        "shaped": [{"values": [1.0, 2.0], "shape": [2, 1]}] * 3 + [{"values": [3.0], "shape": [1, 1]}],
        "misshapen": [{"values": [1.0, 2.0], "shape": [2]}] * 2
        + [{"values": [1.0, None], "shape": [2]}, {"values": [3.0], "shape": [2]}],
        "image": [{"bytes": b"png", "path": None}] * 3 + [{"bytes": None, "path": "a.png"}],
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    read, missing = open_source(str(tmp_path / "a.parquet")).read(0, 4, list(columns)), Unreadable("there is no value")
    assert [values.tolist() for values in read["tokens"]] == [[1, 2], [3], [], [4, 5, 6]]
    assert read["table"][0].tolist() == [[1.0], [2.0]]
    assert isinstance(read["table"][1], Unreadable)
    assert read["score"] == [0.5, missing, 1.5, 2.5]
    assert read["word"] == ["a", missing, "b", "a"]
    assert [values.shape for values in read["shaped"]] == [(2, 1)] * 3 + [(1, 1)]
    assert [isinstance(values, Unreadable) for values in read["misshapen"]] == [False, False, True, True]
    assert read["image"] == [b"png"] * 3 + [Unreadable("the image has only a path, 'a.png'")]


def test_bad_csv_rows_are_single_rows(tmp_path: Path) -> None:
    """A cell that is no number, an empty one, a short row and broken text each cost their row only."""
    lines = [b"id,score,text", *(b"%03d,%d.5,good" % (row, row) for row in range(40))]
    lines[3] = b"002,what,good"
    lines[5] = b"004,,good"
    lines[7] = b"006,6.5"
    lines[9] = b"008,8.5,\xff\xfe"
    (tmp_path / "a.csv").write_bytes(b"\n".join(lines))
    source = open_source(str(tmp_path / "a.csv"))
    assert source.rows == 40
    read = source.read(0, 40, ["id", "score", "text"])
    assert read["id"][:2] == ["000", "001"]
    assert read["score"][:3] == ["0.5", "1.5", "what"]
    scores = as_numbers(read["score"])
    assert scores[:3] == [0.5, 1.5, Unreadable("'what' is not a number")]
    assert scores[4] == Unreadable("the cell is empty")
    assert as_numbers(read["id"])[0] == Unreadable("'000' is not a number")  # leading zeros make a name
    assert {read[name][6] for name in read} == {Unreadable("the row has 2 fields and the first line 3")}
    assert read["text"][8] == Unreadable("the text is not UTF-8")
    assert [row for row in range(40) if any(isinstance(read[name][row], Unreadable) for name in read)] == [6, 8]
    assert [row for row, score in enumerate(scores) if isinstance(score, Unreadable)] == [2, 4, 6]


def test_bad_json_lines_are_single_rows(tmp_path: Path) -> None:
    """A line that is not JSON, no object, without a key, or with a null costs its row only."""
    lines = [b'{"x": [1, 2]}', b'{"x": [1,', b"[1]", b'{"y": 1}', b'{"x": null}', b'{"x": [[1], 2]}', b'{"x": "\xff"}']
    lines += [b'{"x": "\\ud800"}', b'{"x": 123456789012345678901234567890}', b'{"x": true}', b"[" * 100_000]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    source = open_source(str(tmp_path / "a.jsonl"))
    assert source.columns == ("x", "y")
    values = source.read(0, source.rows, ["x"])["x"]
    assert [isinstance(value, Unreadable) for value in values] == [False, *[True] * 7, False, False, True]
    assert values[8] == 123456789012345678901234567890


def test_images_are_bytes_with_labels(tmp_path: Path) -> None:
    """A folder of pictures gives their bytes; sub-folders are labels; one that cannot be read is one bad row."""
    for name in ("cat/1.png", "cat/more/2.JPG", "dog/3[1].png", "dog/empty.png", "dog/gone.png", "top.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "cat" / "notes.txt").write_text("no picture")
    (tmp_path / ".hidden.png").write_bytes(b"x")
    (tmp_path / "dog" / "empty.png").write_bytes(b"")
    source = open_source(str(tmp_path))
    (tmp_path / "dog" / "gone.png").unlink()
    read = source.read(0, source.rows, source.columns)
    names = ["cat/1.png", "cat/more/2.JPG", "dog/3[1].png", "dog/empty.png", "dog/gone.png", "top.png"]
    assert read["name"] == names
    assert read["image"] == [
        *(name.encode() for name in names[:3]),
        Unreadable("'dog/empty.png' is empty"),
        Unreadable("'dog/gone.png' does not exist"),
        b"top.png",
    ]
    assert read["label"][:5] == ["cat", "cat", "dog", "dog", "dog"]
    assert isinstance(read["label"][5], Unreadable)


def test_images_without_folders_have_no_label(tmp_path: Path) -> None:
    """No label is made up where there is none."""
    for name in "ab":
        (tmp_path / f"{name}.png").write_text(name)
    assert open_source(str(tmp_path)).columns == ("image", "name")
    assert open_source(str(tmp_path / "b.png")).read(0, 1, ["image"])["image"] == [b"b"]


def test_names_and_texts_that_are_not_utf8(tmp_path: Path) -> None:
    """Bytes that no table can hold cost a row, or a letter of a name, and never the job."""
    (tmp_path / "images").mkdir()
    os.rename(write_npy(tmp_path), os.fsencode(tmp_path / "images") + b"/\xff.png")
    assert open_source(str(tmp_path / "images")).read(0, 1, ["name"])["name"] == ["\ufffd.png"]
    offsets, letters = np.array([0, 2, 4], np.int32), b"ok\xff\xfe"
    texts = pa.StringArray.from_buffers(2, pa.py_buffer(offsets.tobytes()), pa.py_buffer(letters))
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    assert open_source(str(tmp_path / "a.parquet")).read(0, 2, ["text"])["text"] == [
        "ok",
        Unreadable("the text is not UTF-8"),
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'a,b\n1,2\n3,"never closed\n5,6\n7,8\n', "a quote in its row 2 is never closed"),
        ("a,b\n1,2\n".encode("utf-16"), "in UTF-8"),
        (b"a,a\n1,2\n", "must name each column, once"),
        (b"a,b\r1,2\r", "new-line"),
    ],
)
def test_csv_that_would_be_misread_is_refused(content: bytes, said: str, tmp_path: Path) -> None:
    """Rows are never swallowed or made up in silence."""
    (tmp_path / "a.csv").write_bytes(content)
    failure = refused(str(tmp_path / "a.csv"))
    assert failure.reason == Reason.DATA_UNREADABLE
    assert said in failure.message


def write_column(path: Path, values: npt.NDArray[Any]) -> None:
    """Writes rows of numbers; beside their index in a file of lines, which also has texts."""
    if path.suffix == ".npy":
        np.save(path, values)
    elif path.suffix == ".npz":
        np.savez_compressed(path, x=values)
    elif path.suffix == ".csv":
        path.write_text("x,text\n" + "".join(f"{row},{'word ' * 200}\n" for row in range(len(values))))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"x": row, "text": "word " * 200}) + "\n" for row in range(len(values))))
    else:
        tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(values) if len(values) else pa.array([], pa.float32())
        rows = pa.table({"x": tensors})
        if path.suffix == ".parquet":
            pq.write_table(rows, path)
        else:
            with pa.ipc.new_file(path, rows.schema) as writer:
                writer.write_table(rows)


@pytest.mark.parametrize("kind", ["parquet", "arrow", "csv", "jsonl", "npy", "npz"])
def test_data_without_rows_has_none(kind: str, tmp_path: Path) -> None:
    """No row is no fault of a data set's."""
    write_column(tmp_path / f"x.{kind}", np.zeros((0, 3)))
    source = open_source(str(tmp_path / f"x.{kind}"))
    assert source.rows == 0
    assert all(len(values) == 0 for values in source.read(0, 0, source.columns).values())


def refused(path: str, format: str = "") -> CutawayError:
    with pytest.raises(CutawayError) as caught:
        open_source(path, format)
    return caught.value


@pytest.mark.parametrize("location", ["no/such.parquet", "no/*.csv", "memory://nothing/here", "file:///no/such/folder"])
def test_missing_data_is_not_found(location: str) -> None:
    """Nothing there, or a protocol that nothing here speaks: the error names it."""
    failure = refused(location)
    assert (failure.reason, failure.field) == (Reason.DATA_NOT_FOUND, "path")
    assert location in failure.message
    unknown = refused("foo://nowhere/a.csv")
    assert unknown.reason == Reason.DATA_UNREADABLE
    assert "foo" in unknown.message


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".npy", ".npz", ".csv", ".jsonl"])
@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"PK\x03\x04 no zip", b"PAR1" + b"\0" * 64 + b"PAR1"])
def test_damaged_files_are_unreadable(suffix: str, content: bytes, tmp_path: Path) -> None:
    """A file that is not what its name says ends with a reason, or, where any text is a file, with bad rows."""
    (tmp_path / f"a{suffix}").write_bytes(content)
    path = str(tmp_path / f"a{suffix}")
    if suffix == ".jsonl" or (suffix == ".csv" and content.startswith(b"P")):
        assert open_source(path).rows <= 1
    else:
        failure = refused(path)
        assert failure.reason == Reason.DATA_UNREADABLE
        assert f"a{suffix}" in failure.message


@pytest.mark.parametrize("name", HOSTILE_NPY)
def test_headers_of_arrays_are_checked(name: str, tmp_path: Path) -> None:
    """Also inside of an NPZ file, in a request's file, and in an input of the command line."""
    (tmp_path / "a.npy").write_bytes(HOSTILE_NPY[name])
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.write(tmp_path / "a.npy", "a.npy")
    for suffix in ("npy", "npz"):
        assert refused(str(tmp_path / f"a.{suffix}")).reason == Reason.DATA_UNREADABLE
        with pytest.raises(ca.InvalidArgument, match="is not a numpy file"):
            read_tensors([tmp_path / f"a.{suffix}"], ["x"], lambda: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(ca.InvalidArgument, match="cannot be read"):
        load_arrays("a.npy", tmp_path)


@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_a_page_that_is_not_what_was_written_is_unreadable(compression: str, tmp_path: Path) -> None:
    """Where the file has checksums: a changed number would be a number too."""
    path = tmp_path / "rows.parquet"
    values = np.random.default_rng(0).random(4000)
    pq.write_table(
        pa.table({"x": values}), path, compression=compression, write_page_checksum=True, use_dictionary=False
    )
    assert list(open_source(str(path)).read(0, 4000, ["x"])["x"]) == list(values)
    changed = bytearray(path.read_bytes())
    changed[len(changed) // 2] ^= 1
    path.write_bytes(changed)
    with pytest.raises(ca.InvalidArgument, match="CRC") as caught:
        open_source(str(path)).read(0, 4000, ["x"])
    assert caught.value.reason == "DATA_UNREADABLE"


def test_data_damaged_inside_is_unreadable(tmp_path: Path) -> None:
    """A row group that cannot be decoded is found when it is read, and said."""
    path = tmp_path / "a.parquet"
    pq.write_table(table(), path, row_group_size=6, compression="gzip")
    data = path.read_bytes()
    path.write_bytes(data[:200] + bytes(1000) + data[1200:])
    source = open_source(str(path))
    with pytest.raises(CutawayError) as caught:
        everything(source, 6)
    assert caught.value.reason == Reason.DATA_UNREADABLE


def test_pickles_are_refused(tmp_path: Path) -> None:
    """An array of objects would run what its author likes."""
    np.save(tmp_path / "a.npy", np.array([{}, []], object), allow_pickle=True)
    np.savez(tmp_path / "a.npz", x=np.array([{}, []], object))
    for name in ("a.npy", "a.npz"):
        assert refused(str(tmp_path / name)).reason == Reason.DATA_UNREADABLE


def test_arrays_of_other_lengths_are_refused(tmp_path: Path) -> None:
    """Columns of one data set have as many rows; the message says how many each has."""
    np.savez(tmp_path / "a.npz", train=np.zeros((9, 2)), test=np.zeros((4, 2)))
    assert "'train' (9, 2), 'test' (4, 2)" in refused(str(tmp_path / "a.npz")).message
    np.savez(tmp_path / "a.npz", scalar=np.float32(1))
    assert refused(str(tmp_path / "a.npz")).reason == Reason.DATA_UNREADABLE


def test_files_with_other_columns_are_refused(tmp_path: Path) -> None:
    """Parquet files side by side are one data set only if their columns are the same."""
    pq.write_table(pa.table({"x": [1], "y": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [1], "z": [1]}), tmp_path / "b.parquet")
    assert "'y', 'z'" in refused(str(tmp_path)).message


def test_format_is_told_or_named(tmp_path: Path) -> None:
    """What the names do not tell is asked for, with the words that would be right."""
    (tmp_path / "rows.txt").write_text('{"x": 1}\n')
    failure = refused(str(tmp_path / "rows.txt"))
    assert (failure.reason, failure.field) == (Reason.INVALID_VALUE, "format")
    assert all(name in failure.message for name in FORMATS)
    assert open_source(str(tmp_path / "rows.txt"), "jsonl").rows == 1
    assert refused(str(tmp_path / "rows.txt"), "excel").field == "format"
    write_parquet(tmp_path)
    write_csv(tmp_path)
    assert "it contains files of parquet, csv" in refused(str(tmp_path)).message
    assert open_source(str(tmp_path), "csv").rows == ROWS


def test_splits_are_named(tmp_path: Path) -> None:
    """Of a data set with splits one must be named; the message says which there are."""
    import datasets

    one = datasets.Dataset.from_dict({"x": [1, 2]})
    datasets.DatasetDict({"train": one, "test": one}).save_to_disk(tmp_path / "both")
    assert "train, test" in refused(str(tmp_path / "both")).message
    assert open_source(str(tmp_path / "both" / "test")).rows == 2


def test_saved_pictures_are_bytes(tmp_path: Path) -> None:
    """A data set of pictures gives the bytes of each, not a decoded picture."""
    import datasets
    from PIL import Image

    picture = io.BytesIO()
    Image.new("L", (4, 4)).save(picture, "PNG")
    features = datasets.Features({"image": datasets.Image()})
    data = datasets.Dataset.from_dict({"image": [{"bytes": picture.getvalue(), "path": None}]}, features=features)
    data.save_to_disk(tmp_path / "saved")
    data.to_parquet(tmp_path / "a.parquet")
    for place in (tmp_path / "saved", tmp_path / "a.parquet"):
        assert open_source(str(place)).read(0, 1, ["image"])["image"] == [picture.getvalue()]


MEMORY = """
import sys
from cutaway.jobs.sources import open_source

def anonymous():
    with open("/proc/self/status") as status:
        return sum(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024

source = open_source(sys.argv[1])
source.read(0, 64, source.columns)
before = anonymous()
for start in range(0, source.rows, 64):
    source.read(start, min(start + 64, source.rows), source.columns)
    most = max(locals().get("most", 0), anonymous())
print(source.rows, most - before)
"""
"""Reads all of a data set, and says by how many MiB the process's own memory grew after the first range."""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory from /proc")
@pytest.mark.parametrize("kind", ["parquet", "npy", "npz", "csv", "jsonl", "arrow"])
def test_reading_takes_the_memory_of_a_range(kind: str, tmp_path: Path) -> None:
    """60 MiB or more, in one row group where there are any, are read in the memory of a few ranges."""
    write_column(tmp_path / f"x.{kind}", np.random.default_rng(0).normal(size=(60_000, 128)))
    program = [sys.executable, "-c", MEMORY, str(tmp_path / f"x.{kind}")]
    rows, growth = subprocess.run(program, capture_output=True, text=True, check=True).stdout.split()
    assert int(rows) == 60_000
    assert float(growth) < 16
