"""Folders of jobs whose columns a test chooses, written as a job writes them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from cutaway.contract.errors import Reason, error
from cutaway.jobs.columns import Cells
from cutaway.jobs.manifest import Folder, Manifest
from cutaway.jobs.records import Layout, Records

KINDS = {
    "prediction": {"kind": "prediction"},
    "probability": {"kind": "probability"},
    "output": {"kind": "output", "output": "output"},
    "attribution:saliency:x": {"kind": "attribution", "attribution": "saliency", "method": "Saliency", "input": "x"},
    "capture:fc@output": {"kind": "capture", "layer": "fc", "point": "output"},
    "input:x": {"kind": "input", "input": "x"},
    "verdict:saliency": {"kind": "verdict", "attribution": "saliency"},
}


def planted(
    folder: Path,
    columns: Mapping[str, Any],
    *,
    ids: Sequence[str] = (),
    labels: Sequence[str] = (),
    features: Sequence[str] = (),
    bad: Collection[int] = (),
    shard_rows: int = 64,
    fingerprint: str = "data",
    unfinished: int = 0,
) -> Path:
    """Writes a job with ``columns`` [rows, ...]; the last ``unfinished`` shards are missing."""
    rows = len(next(iter(columns.values())))
    cells = {name: Cells(name, KINDS[name], values) for name, values in columns.items()}
    probes = [[each._replace(values=each.values[:1]) for each in cells.values()]]
    ragged = [name for name, values in columns.items() if isinstance(values, np.ndarray) and values.dtype == object]
    for name in ragged:
        probes = [[each._replace(values=columns[each.name][row][None]) if each.name == name else each
                   for each in probes[0]] for row in (0, 1)]  # fmt: skip
    layout = Layout.of(probes, None, "auto")
    manifest = Manifest(
        job={"id": {"column": "name"} if ids else None},
        digest="",
        fingerprint=fingerprint,
        rows=rows,
        shard_rows=shard_rows,
        model="m",
        version="1.0",
        labels=list(labels),
        weights_sha256="",
        files_sha256="",
        device="cpu",
        data_type="float32",
        seed=0,
        versions={},
        columns={},
        layout="",
        feature_names={"x": list(features)} if features else {},
    ).with_layout(layout)
    into = Folder(folder)
    folder.mkdir(parents=True)
    manifest.save(into)
    for shard in range(manifest.shards - unfinished):
        part = manifest.range(shard)
        names = list(ids[part.start : part.stop]) if ids else [str(row) for row in part]
        records = Records(layout, part.start, names, [])
        for row in bad:
            if row in part:
                records.errors[row - part.start] = error(Reason.DATA_UNREADABLE, "unreadable")
        records.put(
            range(len(part)), [each._replace(values=each.values[part.start : part.stop]) for each in cells.values()]
        )
        table: pa.Table = records.table({"cutaway": json.dumps({"bad": 0, "verdicts": {}})})
        parquet.write_table(table, into.part(shard))
    return folder
