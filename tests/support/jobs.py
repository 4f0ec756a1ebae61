"""Jobs over digits, as tests ask for them."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from cutaway.jobs import Job, Results
from examples.digits.data import held_out

REQUEST: dict[str, Any] = {
    "attributions": [
        {"method": "integrated_gradients", "n_steps": 16},
        {"method": "saliency"},
        {"method": "layer_grad_cam", "layer": "conv2"},
    ],
    "captures": [{"layer": "fc1"}],
}


@dataclass
class Columns:
    """A data set in memory, by column."""

    by_name: dict[str, Any]

    @property
    def rows(self) -> int:
        return len(next(iter(self.by_name.values())))

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.by_name)

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(repr(self.by_name).encode()).hexdigest()

    def read(self, start: int, stop: int, columns: Sequence[str]) -> dict[str, Any]:
        return {name: self.by_name[name][start:stop] for name in columns}


def digits(rows: int = 40) -> Columns:
    """The first held-out digits."""
    found = held_out()
    return Columns(
        {"pixels": found.images[:rows], "digit": found.labels[:rows], "name": [f"digit-{row}" for row in range(rows)]}
    )


def digits_file(path: Path, rows: int = 40) -> Path:
    """The same, in a Parquet file whose rows are flat."""
    found = digits(rows).by_name
    flat = [each.reshape(-1) for each in found["pixels"]]
    parquet.write_table(pa.table({"pixels": flat, "digit": found["digit"], "name": found["name"]}), path)
    return path


def digits_words(store: Path, folder: Path, **more: Any) -> dict[str, Any]:
    """The words of a job: batches of 8, shards of 16."""
    words: dict[str, Any] = {
        "model": {"archive": store / "digits-1.0.mar"},
        "data": digits(),
        "inputs": {"image": {"column": "pixels"}},
        "id": {"column": "name"},
        "label": {"column": "digit"},
        "request": REQUEST,
        "output": {"folder": folder, "shard_rows": 16},
        "engine": {"kind": "local", "batch": 8},
    }
    return words | more


def digits_job(store: Path, folder: Path, **more: Any) -> Job:
    """The job."""
    return Job(**digits_words(store, folder, **more))


def alike(one: Results, other: Results) -> None:
    """Every value of the two is the same, bit for bit."""
    assert list(one) == list(other)
    for name in one:
        same(one[name], other[name], name)


def same(one: Any, other: Any, name: str = "") -> None:
    """Two columns hold the same."""
    assert one.dtype == other.dtype, name
    assert one.shape == other.shape, name
    if one.dtype == object:
        for left, right in zip(one, other):
            assert type(left) is type(right), name
            np.testing.assert_array_equal(left, right, name)
    else:
        np.testing.assert_array_equal(np.ma.getmaskarray(one), np.ma.getmaskarray(other), name)
        np.testing.assert_array_equal(np.ma.getdata(one), np.ma.getdata(other), name)


def embedded(page: Path) -> dict[str, bytes]:
    """The files of a job inside its report, by name."""
    found = re.findall(r'data-file="([^"]*)">([^<]*)<', page.read_text("utf-8"))
    return {name: base64.b64decode(data) for name, data in found}


def embedded_table(page: Path) -> Any:
    """The table of rows inside a report."""
    return parquet.read_table(io.BytesIO(embedded(page)["part-00000.parquet"]))
