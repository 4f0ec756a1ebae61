"""Writes the results of a job as one HTML file: the inspector's page with the job inside.

The page is the one that the HTTP server has. In the file it finds a manifest and one Parquet table, and reads them as
it reads the folder of a job. The table has a line for each row, and the tensors of evenly spaced rows, as many as
`TENSOR_BYTES` allow. From these the page computes its statistics. The rows that it shows as examples have tensors too.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
import io
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from cutaway.contract.errors import Reason, error
from cutaway.contract.results import Verdict
from cutaway.contract.tensors import Array
from cutaway.jobs.reading import Results, read
from cutaway.jobs.records import RESIDUAL, is_ragged, measured_output, ragged_array
from cutaway.jobs.shards import write_error
from cutaway.jobs.sources import Unreadable
from cutaway.jobs.sources.source import from_arrow

__all__ = ["write_report"]

ROWS = 50_000
"""The most lines of a file, beside those of examples; a longer job has lines for evenly spaced rows."""

TENSOR_BYTES = 2**24
"""The most bytes of the tensors of evenly spaced rows; those of examples have the same bound."""

EXAMPLES = 8
"""The length of each list of examples on the page."""

SIDE = 96
"""The longest side of a picture in the file; a larger one is reduced to the means of blocks."""

_LINE_KINDS = {
    *("row", "id", "label", "residual", "prediction", "prediction_name", "probability", "targets", "warnings"),
    *("verdict", "reason", "largest_error", "convergence_delta", "skipped", "error", "error_message"),
}
_PICTURE_KINDS = {"attribution", "input"}
_TENSOR_KINDS = {*_PICTURE_KINDS, "token_attribution", "tokens", "capture"}
_BATCH = 64
_POLICY = (
    "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'sha256-{}'; "
    "base-uri 'none'; form-action 'none'"
)


def write_report(folder: Path) -> Path:
    """Writes ``_report.html`` into the ``folder`` of a job, and returns its path.

    Shards are read twice, a few rows at a time. A report on a job that has not ended covers the shards on disk.

    Raises:
        InvalidArgument: ``DATA_UNREADABLE``: the folder holds no job, or no shard yet.
        CutawayError: ``JOB_INTERRUPTED``: the page cannot be written.
    """
    results = read(folder)
    if not results.folder.parts():
        raise error(Reason.DATA_UNREADABLE, f"{folder} holds no shard yet: run the job first", "folder")
    excerpt = Excerpt(results, _examples(results))
    text = _page({"_manifest.json": json.dumps(excerpt.manifest()).encode(), "part-00000.parquet": excerpt.table()})
    path = results.folder.report
    try:
        results.folder.write(path, lambda temporary: temporary.write_text(text, "utf-8"))
    except OSError as failure:
        raise write_error(failure) from None
    return path


def _page(files: Mapping[str, bytes]) -> str:
    """Returns the built page with its script, its style and ``files`` inside.

    What comes from the job is base64, so that none of it is markup; the policy allows the page's script alone.
    """
    static = Path(str(resources.files("cutaway.server") / "web" / "static"))
    script, style = (next((static / "assets").glob(f"index-*.{kind}")).read_text("utf-8") for kind in ("js", "css"))
    script = script.replace("</script", r"<\/script").replace("<!--", r"<\!--")
    policy = _POLICY.format(base64.b64encode(hashlib.sha256(script.encode()).digest()).decode())
    inside = [
        f'<script type="application/octet-stream" data-file="{name}">{base64.b64encode(data).decode()}</script>'
        for name, data in files.items()
    ]
    page = re.sub(r"\s*<(link|script) [^>]*>(</script>)?", "", (static / "index.html").read_text("utf-8"))
    page = page.replace("<title>", f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n    <title>')
    page = page.replace("</head>", f"<style>\n{style}</style>\n  </head>")
    return page.replace("</body>", "\n".join([*inside, f'<script type="module">{script}</script>', "</body>"]))


def _examples(results: Results) -> set[int]:
    """Returns the rows that the page shows as examples: the first of each list."""
    lists: dict[str, list[tuple[float, int]]] = {}
    for batch in results.batches(_line_columns(results), 4096):
        for line in batch.to_pylist():
            for title, score in _scores(results, line):
                lists.setdefault(title, []).append((score, -line["row"]))
        lists = {title: heapq.nlargest(EXAMPLES, scored) for title, scored in lists.items()}
    return {-row for scored in lists.values() for _, row in scored}


def _columns(results: Results, kinds: Collection[str]) -> list[str]:
    return [name for name, about in results.columns.items() if about["kind"] in kinds]


def _line_columns(results: Results) -> list[str]:
    """Returns the columns that every row has at hand, with the predicted number of a model without classes."""
    return [*_columns(results, _LINE_KINDS), *filter(None, [measured_output(results.schema)])]


def _scores(results: Results, line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields the lists of examples that a row belongs to, and its score there: those with the largest are shown."""
    probability, number = line.get("probability"), line.get(measured_output(results.schema))
    if line["error"] is None and number is not None:
        value, residual = float(np.ravel(number)[0]), line.get(RESIDUAL)
        scores = {"highest": value, "lowest": -value} | ({} if residual is None else {"furthest": abs(residual)})
        yield from ((title, score) for title, score in scores.items() if math.isfinite(score))
    elif line["error"] is None and probability is None:
        yield "first", 0.0
    elif line["error"] is None and probability is not None:
        yield "most confident", probability
        yield "least confident", -probability
        names = line["prediction"], results.manifest.class_name(line["prediction"])
        if line.get("label") not in (None, *names):
            yield "contrary", probability
    for name in results.find(kind="verdict"):
        if line[name] == Verdict.DISAGREES:
            (size,) = results.find(kind="largest_error", attribution=results.about(name)["attribution"])
            yield f"{name} {line[size]}", math.inf if math.isnan(line[size]) else line[size]


class Excerpt:
    """The part of a job that is in the file.

    Args:
        results: the results of the job.
        examples: the rows that have their tensors in any case.
    """

    def __init__(self, results: Results, examples: Collection[int]) -> None:
        self._results = results
        self._examples = examples
        self._every = 1
        self._names = _tensor_columns(results)
        self._tensors: dict[int, dict[str, Any]] = {}
        names, step = _line_columns(results), max(1, -(-results.rows // ROWS))
        lines = []
        for batch in results.batches([*names, *self._names], _BATCH):
            listed = [row % step == 0 or row in examples for row in batch.column("row").to_pylist()]
            kept = batch.filter(pa.array(listed))
            lines.append(kept.select(names))
            self._keep(kept)
        self._lines = pa.Table.from_batches(lines)

    def _keep(self, batch: Any) -> None:
        """Keeps the tensors of ``batch``. Above the limit, drops every second evenly spaced row, or the last
        example."""
        for row, cells in self._cells(batch):
            if row % self._every == 0 or row in self._examples:
                self._tensors[row] = cells
        while len(even := self._kept(evenly_spaced=True)) > 1 and self._bytes(even) > TENSOR_BYTES:
            self._every *= 2
            for row in even:
                if row % self._every and row not in self._examples:
                    del self._tensors[row]
        while len(others := self._kept(evenly_spaced=False)) > 1 and self._bytes(others) > TENSOR_BYTES:
            del self._tensors[others[-1]]

    def _kept(self, *, evenly_spaced: bool) -> list[int]:
        return [row for row in self._tensors if (row % self._every == 0) == evenly_spaced]

    def _bytes(self, rows: Sequence[int]) -> int:
        cells = (cell for row in rows for cell in self._tensors[row].values())
        return sum(cell.nbytes if isinstance(cell, np.ndarray) else len(str(cell)) for cell in cells)

    def _cells(self, batch: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields rows that are not bad with their tensors, texts and tokens."""
        columns = {name: _values(batch.column(name)) for name in self._names}
        bad = batch.column("error").is_valid().to_pylist()
        for place, row in enumerate(batch.column("row").to_pylist()):
            if not bad[place]:
                cells = {name: values[place] for name, values in columns.items()}
                yield row, {name: self._reduced(name, cell) for name, cell in cells.items() if cell is not None}

    def _reduced(self, name: str, cell: Any) -> Any:
        """Returns the tensor in ``cell``; the means of its blocks if it is a large picture."""
        is_picture = self._results.about(name)["kind"] in _PICTURE_KINDS
        return _means_of_blocks(cell, _block(cell.shape)) if is_picture and isinstance(cell, np.ndarray) else cell

    def table(self) -> bytes:
        """Returns the lines of all rows as a Parquet file, with the tensors that were kept."""
        table = self._lines
        for name in self._names:
            values = [self._tensors.get(row, {}).get(name) for row in table["row"].to_pylist()]
            table = table.append_column(name, _arrow(values))
        file = io.BytesIO()
        parquet.write_table(table, file, compression="zstd", write_page_index=True)
        return file.getvalue()

    def manifest(self) -> dict[str, Any]:
        """Returns what the page needs of the manifest, without paths of this machine."""
        manifest, schema = self._results.manifest, self._results.schema
        names = [*_line_columns(self._results), *self._names]
        columns = {name: {**self._results.about(name), "store": ""} for name in names}
        shapes = {name: list(getattr(schema.field(name).type, "shape", [])) for name in names}
        pictures = [name for name in _columns(self._results, _PICTURE_KINDS) if name in self._names]
        reduced = {name: block for name in pictures if (block := _block(shapes[name])) > 1}
        for name, block in reduced.items():
            *channels, height, width = shapes[name]
            columns[name]["shape"] = ",".join(map(str, (*channels, -(-height // block), -(-width // block))))
        data = manifest.job["data"]
        fields = ("schema", "model", "version", "labels", "weights_sha256", "fingerprint", "data_type", "device")
        return {
            **{name: getattr(manifest, name) for name in (*fields, "seed", "versions", "rows", "feature_names")},
            "columns": columns,
            "job": {
                "target": manifest.job.get("target"),
                "data": {"path": PurePath(data["path"]).name if isinstance(data, dict) else str(data)},
            },
            "excerpt": {"rows": self._results.rows, "every": self._every, "reduced": sorted(reduced)},
        }


def _tensor_columns(results: Results) -> list[str]:
    """Returns the columns with tensors, texts and tokens that the page shows: attributions by token instead of those
    by number, and no files."""
    tokens = results.find(kind="token_attribution") if results.find(kind="tokens") else []
    by_token = {results.about(name)["attribution"] for name in tokens}
    return [
        name
        for name in _columns(results, _TENSOR_KINDS)
        if not (results.about(name)["kind"] == "attribution" and results.about(name)["attribution"] in by_token)
        and not pa.types.is_binary(results.schema.field(name).type)
    ]


def _values(column: Any) -> list[Any]:
    """Returns the tensor, the text or the tokens of each row; None in rows without."""
    arrow = column.type
    if not (pa.types.is_primitive(arrow) or is_ragged(arrow) or isinstance(arrow, pa.FixedShapeTensorType)):
        texts: list[Any] = column.to_pylist()
        return texts
    return [None if isinstance(value, Unreadable) else np.asarray(value) for value in from_arrow(column)]


def _arrow(values: list[Any]) -> Any:
    """Returns a column of tensors of any shapes, of texts, or of tokens."""
    if not any(isinstance(value, np.ndarray) for value in values):
        return pa.array(values)
    kind = (
        pa.float32()
        if all(value is None or value.dtype in (np.float16, np.float32) for value in values)
        else pa.float64()
    )
    arrow = pa.struct([("values", pa.list_(kind)), ("shape", pa.list_(pa.int32()))])
    numbers = kind.to_pandas_dtype()
    return ragged_array(arrow, [None if value is None else value.astype(numbers) for value in values])


def _block(shape: Sequence[int]) -> int:
    """Returns the side of the blocks that a picture of this shape is reduced to the means of."""
    return max(1, -(-max(shape[-2:]) // SIDE)) if len(shape) > 1 else 1


def _means_of_blocks(values: Array, side: int) -> Array:
    for axis in (-1, -2) if side > 1 else ():
        starts = np.arange(0, values.shape[axis], side)
        sizes = np.diff([*starts, values.shape[axis]])
        shape = (-1, 1) if axis == -2 else (-1,)
        values = np.add.reduceat(values.astype(np.float32), starts, axis) / sizes.reshape(shape).astype(np.float32)
    return values
