"""Rows like another one, and rows in which a channel is most active: those that a look at all rows finds."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cutaway.contract.errors import CutawayError
from cutaway.jobs import read
from tests.support.cli import cutaway
from tests.support.json_documents import Documented
from tests.support.planted_jobs import planted

CAPTURE = "capture:fc@output"
BAD, NAN = (0, 17, 18), 5


def columns() -> dict[str, Any]:
    """A capture of 3 channels of 2 × 2 for 40 rows, of which row 9 equals row 30, and row 5 has a NaN."""
    random = np.random.default_rng(0)
    capture = random.standard_normal((40, 3, 2, 2)).astype(np.float32)
    capture[9] = capture[30]
    capture[NAN, 1, 0, 0] = np.nan
    return {CAPTURE: capture, "prediction": random.integers(0, 2, 40), "probability": random.random(40)}


def slow_neighbours(values: Any, own: int) -> list[tuple[float, int]]:
    """All usable rows by their distance from one, number by number."""
    usable = [row for row in range(len(values)) if row not in (*BAD, NAN, own)]
    square = {
        row: sum((float(one) - float(other)) ** 2 for one, other in zip(values[row].flat, values[own].flat))
        for row in usable
    }
    return sorted((math.sqrt(square[row]), row) for row in usable)


@pytest.mark.parametrize("shard_rows", [7, 64])
def test_neighbours_are_those_of_all_rows(tmp_path: Path, shard_rows: int) -> None:
    """Whatever the shards; an equal row has the distance 0, and neither the row itself nor a bad one is found."""
    found = columns()
    ids = [f"id-{row}" for row in range(40)]
    folder = planted(tmp_path / "job", found, ids=ids, labels=["cat", "dog"], bad=BAD, shard_rows=shard_rows)
    for own in (30, 2, 39):
        similar = read(folder).similar(CAPTURE, f"id-{own}", 6)
        expected = slow_neighbours(found[CAPTURE], own)[:6]
        assert [each.row for each in similar.rows] == [row for _, row in expected]
        np.testing.assert_allclose([each.value for each in similar.rows], [value for value, _ in expected], rtol=1e-6)
        assert [each.id for each in similar.rows] == [f"id-{row}" for _, row in expected]
        assert [each.prediction for each in similar.rows] == [
            ["cat", "dog"][found["prediction"][row]] for _, row in expected
        ]
    assert (read(folder).similar(CAPTURE, "id-9", 1).rows[0][:3]) == (30, "id-30", 0.0)
    assert len(read(folder).similar(CAPTURE, "id-9", 1000).rows) == 40 - len(BAD) - 2
    assert len(read(folder).similar("probability", "id-9", 3).rows) == 3


def test_equal_rows_of_large_values_have_no_distance(tmp_path: Path) -> None:
    """Rounding of large values hides no small distance, and makes none."""
    values = np.array([[1e6, 1.0], [1e6, 1.0], [1e6, 1.01], [2e6, 1.0]])
    rows = read(planted(tmp_path / "job", {"output": values})).similar("output", "0", 2).rows
    assert [each.row for each in rows] == [1, 2]
    assert rows[0].value == 0
    assert rows[1].value == pytest.approx(0.01)


SHAPES: dict[tuple[int, ...], Any] = {
    (3,): lambda tensor, channel: tensor[channel],
    (5, 3): lambda tensor, channel: max(tensor[:, channel]),  # positions, channels
    (3, 4, 2): lambda tensor, channel: max(tensor[channel].flat),
    (3, 4): lambda tensor, channel: max(tensor[:, channel]),
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("shard_rows", [7, 64])
def test_top_rows_are_those_of_all_rows(tmp_path: Path, shape: tuple[int, ...], shard_rows: int) -> None:
    """By the largest value of the channel at any position."""
    values = np.random.default_rng(1).standard_normal((40, *shape))
    values[NAN] = np.nan
    folder = planted(tmp_path / "job", {CAPTURE: values}, bad=BAD, shard_rows=shard_rows)
    usable = [row for row in range(40) if row not in (*BAD, NAN)]
    for channel in (0, 2):
        peaks = sorted(((SHAPES[shape](values[row], channel), row) for row in usable), reverse=True)
        assert [(each.value, each.row) for each in read(folder).top(CAPTURE, channel, 4).rows] == peaks[:4]
        assert len(read(folder).top(CAPTURE, channel, 100).rows) == len(usable)


def test_top_rows_of_texts(tmp_path: Path) -> None:
    """Rows may have other numbers of positions, and all in a shard may be bad."""
    random = np.random.default_rng(2)
    values = np.empty(40, object)
    for row in range(40):
        values[row] = random.standard_normal((1 + row % 4, 3))
    folder = planted(tmp_path / "job", {CAPTURE: values}, shard_rows=10, bad=range(10))
    peaks = sorted(((values[row][:, 2].max(), row) for row in range(10, 40)), reverse=True)
    assert [(each.value, each.row) for each in read(folder).top(CAPTURE, 2, 3).rows] == peaks[:3]
    with pytest.raises(CutawayError, match="tensors of several shapes"):
        read(folder).similar(CAPTURE, "12")


def test_a_shard_without_values_keeps_the_shape_of_its_column(tmp_path: Path) -> None:
    """Shards of bad rows have NaN and masked numbers as others have, and can be joined with them."""
    results = read(planted(tmp_path / "job", columns(), shard_rows=10, bad=range(10)))
    first, *others = results.shards([CAPTURE, "prediction"])
    assert first[CAPTURE].shape == (10, 3, 2, 2)
    assert np.isnan(first[CAPTURE]).all()
    assert np.ma.getmaskarray(first["prediction"]).all()
    for name in (CAPTURE, "prediction"):
        assert {each[name].dtype for each in others} == {first[name].dtype}
    assert read(planted(tmp_path / "begun", columns(), unfinished=1))[CAPTURE].shape == (0, 3, 2, 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--row", "nobody"], "INVALID_VALUE [row]: no row has the id 'nobody'"),
        (["--row", "twice"], "INVALID_VALUE [row]: 2 rows have the id 'twice'"),
        (["--row", "id-0"], "INVALID_VALUE [row]: the row 'id-0' has no finite value"),
        (["--row", f"id-{NAN}"], f"INVALID_VALUE [row]: the row 'id-{NAN}' has no finite value"),
        (["--row", "id-1", "--k", "0"], "INVALID_VALUE [k]: 0 rows"),
        (["--channel", "3"], f"INVALID_VALUE [channel]: {CAPTURE} has 3 channels, and no 3"),
        (["--channel", "-1"], f"INVALID_VALUE [channel]: {CAPTURE} has 3 channels, and no -1"),
        (["--channel", "1", "--row", "id-1"], "INVALID_VALUE [--row]: name one of --row and --channel"),
        ([], "INVALID_VALUE [--row]: name one of --row and --channel"),
        (["--row", "id-1", "--column", "id"], "INVALID_VALUE [column]: id holds no tensors"),
        (["--row", "id-1", "--column", "nothing"], "COLUMN_NOT_FOUND: the results have no column 'nothing'"),
        (["--channel", "0", "--column", "probability"], "INVALID_VALUE [channel]: probability has 0 channels"),
    ],
)
def test_what_cannot_be_found_is_an_error(tmp_path: Path, words: list[str], message: str) -> None:
    """With the part of the command that is wrong."""
    ids = [f"id-{row}" for row in range(38)] + ["twice"] * 2
    folder = planted(tmp_path / "job", columns(), ids=ids, bad=BAD)
    done = cutaway("batch", "similar", folder, "--column", CAPTURE, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message)


def test_people_and_programs_read_the_rows(tmp_path: Path) -> None:
    """As a table, and as JSON."""
    folder = planted(tmp_path / "job", columns(), labels=["cat", "dog"])
    done = cutaway("batch", "similar", folder, "--column", CAPTURE, "--row", 9, "--k", 2)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[1].split() == ["row", "id", "prediction", "label", "distance"]
    assert lines[3].split()[:2] == ["30", "30"]
    assert lines[3].split()[-1] == "0"
    done = cutaway("batch", "similar", folder, "--column", CAPTURE, "--channel", 1, "--json")
    document = json.loads(done.stdout)
    Documented("batch similar").check(document)
    assert (len(document["rows"]), document["value"]) == (10, "activation")
