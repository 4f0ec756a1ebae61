"""Statistics of a column: those of Captum's Summarizer and ClassSummarizer on the same rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from captum.attr import ClassSummarizer, Summarizer
from captum.attr._utils.stat import MSE, Count, Max, Mean, Min, StdDev, Sum, Var

from cutaway.contract.errors import CutawayError
from cutaway.jobs import read
from tests.support.cli import cutaway
from tests.support.planted_jobs import planted

COLUMN = "attribution:saliency:x"
RANDOM = np.random.default_rng(0)
VALUES = (100 + RANDOM.standard_normal((40, 2, 3, 3))).astype(np.float32)
CLASSES, BAD = RANDOM.integers(0, 2, 40), (0, 17, 18)
GOOD = [row for row in range(40) if row not in BAD]


def stats() -> list[object]:
    """All that Captum has."""
    return [Count(), Sum(), Min(), Max(), Mean(), MSE(), Var(), Var(order=1), StdDev(), StdDev(order=1)]


def job(folder: Path, shard_rows: int) -> Path:
    columns = {COLUMN: VALUES, "prediction": CLASSES}
    return planted(folder / "job", columns, labels=["cat", "dog"], bad=BAD, shard_rows=shard_rows)


@pytest.mark.parametrize("shard_rows", [1, 7, 64])
def test_they_are_those_of_captum(tmp_path: Path, shard_rows: int) -> None:
    """Whatever the shards; bad rows do not count."""
    summarizer = Summarizer(stats())
    for row in GOOD:
        summarizer.update(torch.from_numpy(VALUES[row]).double())
    expected = summarizer.summary
    (found,) = read(job(tmp_path, shard_rows)).statistics(COLUMN).values()
    assert isinstance(expected, dict)
    assert found.keys() == expected.keys()
    for name, each in expected.items():
        np.testing.assert_allclose(found[name], np.broadcast_to(np.asarray(each), (2, 3, 3)), rtol=1e-9, err_msg=name)


def test_by_class_they_are_those_of_captum(tmp_path: Path) -> None:
    """Of the predicted class, by its name."""
    summarizer = ClassSummarizer(stats())
    for row in GOOD:
        summarizer.update(torch.from_numpy(VALUES[row : row + 1]).double(), ["cat", "dog"][CLASSES[row]])
    found = read(job(tmp_path, 7)).statistics(COLUMN, "prediction")
    assert [*found] == ["cat", "dog"]
    for label, (expected,) in summarizer.class_summaries.items():
        for name, each in expected.items():
            close = np.broadcast_to(np.asarray(each), (2, 3, 3))
            np.testing.assert_allclose(found[label][name], close, rtol=1e-9, err_msg=name)


def test_numbers_that_are_not_finite_do_not_count(tmp_path: Path) -> None:
    """An element without any finite number has no mean."""
    values = np.array([[1.0, np.nan, 5.0], [np.inf, np.nan, 7.0]])
    (found,) = read(planted(tmp_path / "job", {"output": values})).statistics("output").values()
    np.testing.assert_array_equal(found["count"], [1, 0, 2])
    np.testing.assert_array_equal(found["mean"], [1, np.nan, 6])
    np.testing.assert_array_equal(found["max"], [1, np.nan, 7])
    np.testing.assert_array_equal(found["variance"], [0, np.nan, 1])


def test_the_command_prints_and_saves_them(tmp_path: Path) -> None:
    """The elements with the largest mean first; by class in a column of its own."""
    folder, file = job(tmp_path, 7), tmp_path / "all.npz"
    result = cutaway("batch", "statistics", folder, "--column", COLUMN, "--by", "prediction", "--save", file)
    assert result.returncode == 0, result.stderr
    found = read(folder).statistics(COLUMN, "prediction")
    with np.load(file) as saved:
        assert set(saved.files) == {f"{label}/{name}" for label, of in found.items() for name in of}
        np.testing.assert_array_equal(saved["dog/mean"], found["dog"]["mean"])
    first = [int(each) for each in np.unravel_index(np.abs(found["cat"]["mean"]).argmax(), (2, 3, 3))]
    assert next(line for line in result.stdout.splitlines() if "cat" in line).split()[1:4] == str(first).split()
    assert f"{found['cat']['mean'].max():.4g}" in result.stdout


def test_texts_of_several_lengths_are_refused(tmp_path: Path) -> None:
    """As by Captum's class, which fails on them."""
    ragged = np.empty(2, object)
    ragged[:] = [np.zeros((1, 3)), np.zeros((2, 3))]
    with pytest.raises(CutawayError, match="tensors of several shapes"):
        read(planted(tmp_path / "job", {COLUMN: ragged})).statistics(COLUMN)
