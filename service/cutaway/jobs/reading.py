"""Reads the results of a job: columns as numpy arrays, or record batches; finds rows like another, and top rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from cutaway.contract.errors import Reason, error
from cutaway.contract.tensors import Array
from cutaway.jobs.manifest import Folder, Manifest
from cutaway.jobs.records import is_ragged, measured_output, missing_value, tensor_array
from cutaway.jobs.sources.source import Unreadable, from_arrow

_MAX_CHUNK_BYTES = 64 << 20
"""The largest chunk, which compressors process at once; a chunk is larger only if one row is."""


class CaptureStore:
    """The Zarr arrays of one job, for captures outside of the tables: one array [rows, ...] per column.

    The chunks of a shard contain no row of another shard. So two shards never write the same chunk, and a shard that is
    written again has the same values.

    Args:
        folder: the folder of the results.
        manifest: the manifest, with columns.
    """

    def __init__(self, folder: Folder, manifest: Manifest) -> None:
        self._folder = folder
        self._manifest = manifest
        self._types = {field.name: field.type for field in manifest.read_layout().zarr_fields}
        self._opened: dict[tuple[str, str], Any] = {}

    def create(self) -> bool:
        """Creates the arrays that do not exist; returns whether there were any."""
        missing = [name for name in self._types if not self._path(name).exists()]
        for name in missing:
            self._create(name)
        return bool(missing)

    def _create(self, name: str) -> None:
        """Creates a Zarr array under a temporary name, then renames it: an array that exists has all its metadata."""
        import zarr

        path, (dtype, shape) = self._path(name), _row_type(self._types[name])
        temporary = path.with_name(f".{path.name}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)  # of a run that was killed
        temporary.parent.mkdir(exist_ok=True)
        row_bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        zarr.open_array(
            str(temporary),
            mode="w",
            shape=(self._manifest.rows, *shape),
            chunks=(_chunk_rows(self._manifest.shard_rows, row_bytes), *(max(1, size) for size in shape)),
            dtype=dtype,
            fill_value=missing_value(dtype),
        )
        temporary.rename(path)

    def write(self, rows: range, columns: Mapping[str, Array]) -> None:
        """Writes ``rows`` of the data set, by column."""
        for name, array in columns.items():
            self._array(name, "r+")[rows.start : rows.stop] = array

    def read(self, name: str, rows: range) -> Array:
        """Returns ``rows`` of a column."""
        array: Array = np.asarray(self._array(name, "r")[rows.start : rows.stop])
        return array

    def _array(self, name: str, mode: Any) -> Any:
        import zarr

        if (name, mode) not in self._opened:
            self._opened[name, mode] = zarr.open_array(str(self._path(name)), mode=mode)
        return self._opened[name, mode]

    def _path(self, name: str) -> Path:
        return self._folder.captures / f"{quote(name, safe=':#@[]')}.zarr"


def _row_type(arrow: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Returns the data type and the shape of one row of a column of that Arrow type."""
    tensor = isinstance(arrow, pa.FixedShapeTensorType)
    return np.dtype((arrow.value_type if tensor else arrow).to_pandas_dtype()), tuple(arrow.shape if tensor else ())


def _chunk_rows(shard_rows: int, row_bytes: int) -> int:
    """Returns the largest number of rows for a chunk that divides a shard."""
    most = min(shard_rows, max(1, _MAX_CHUNK_BYTES // max(1, row_bytes)))
    return next(rows for rows in range(most, 0, -1) if shard_rows % rows == 0)


def read(folder: Path | str) -> Results:
    """Returns the results of the job that writes, or wrote, into ``folder``.

    Raises:
        InvalidArgument: ``DATA_UNREADABLE``: the folder holds no job.
    """
    return Results(Folder(Path(folder)))


class FoundRow(NamedTuple):
    """A row that was found.

    Attributes:
        row: its index in the data set.
        id: its id.
        value: its distance, or its activation.
        prediction: its predicted class or number; empty without one.
        label: its label; empty without one.
    """

    row: int
    id: str
    value: float
    prediction: str
    label: str


class FoundRows(NamedTuple):
    """The rows of a job that were found by a column.

    Attributes:
        column: the column.
        value: what the values of the rows are: distance or activation.
        rows: the rows, the nearest or the most active first.
    """

    column: str
    value: str
    rows: tuple[FoundRow, ...]


class _Moments(NamedTuple):
    """Sums over rows of each element, from which statistics follow: those of several shards join (Chan et al. 1979)."""

    numbers: Array
    totals: Array
    squares: Array
    least: Array
    largest: Array

    @classmethod
    def of(cls, rows: Array) -> _Moments:
        """Returns the sums of [rows, ...]; ``squares`` are of the differences from the mean."""
        finite = np.isfinite(rows)
        numbers, totals = finite.sum(axis=0), rows.sum(axis=0, where=finite)
        squares = np.square(rows - totals / np.maximum(numbers, 1)).sum(axis=0, where=finite)
        least = rows.min(axis=0, where=finite, initial=np.inf)
        return cls(numbers, totals, squares, least, rows.max(axis=0, where=finite, initial=-np.inf))

    def joined(self, more: _Moments) -> _Moments:
        """Returns the sums of both."""
        numbers = self.numbers + more.numbers
        apart = more.totals / np.maximum(more.numbers, 1) - self.totals / np.maximum(self.numbers, 1)
        between = apart**2 * self.numbers * more.numbers / np.maximum(numbers, 1)
        least, largest = np.minimum(self.least, more.least), np.maximum(self.largest, more.largest)
        return _Moments(numbers, self.totals + more.totals, self.squares + more.squares + between, least, largest)

    def statistics(self) -> dict[str, Array]:
        """Returns them by Captum's names."""
        numbers = np.maximum(self.numbers, 1)
        variances = {"variance": self.squares / numbers, "sample_variance": self.squares / np.maximum(numbers - 1, 1)}
        found = {"sum": self.totals, "min": self.least, "max": self.largest, "mean": self.totals / numbers}
        found |= {"mse": self.squares, **variances}
        found |= {name.replace("variance", "std_dev"): np.sqrt(each) for name, each in variances.items()}
        known = self.numbers > 0
        return {"count": np.asarray(self.numbers)} | {
            name: np.where(known, each, np.nan) for name, each in found.items()
        }


class Results(Mapping[str, Array]):
    """The results of a job: columns by name, read on access. ``results["attribution:saliency:image"]`` is [rows, ...].

    A row without a value has NaN in a column of floats, and None in a column of texts. A column of integers with such
    rows is a masked array. A column of ragged tensors is an object array of arrays and None.

    Attributes:
        folder: the folder of the results.
        manifest: the provenance of the results.
        columns: the metadata of the columns, in the order of the tables.
        schema: the Arrow schema of all columns.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.manifest = Manifest.load(folder)
        layout = self.manifest.read_layout()
        self.schema = layout.schema
        self.columns = {name: self.manifest.columns[name] for name in self.schema.names}
        self._in_zarr = {field.name for field in layout.zarr_fields}
        self._captures = CaptureStore(folder, self.manifest)

    @property
    def rows(self) -> int:
        """The number of rows on disk; less than that of the data set before the job ends."""
        return sum(parquet.read_metadata(path).num_rows for path in self.folder.parts().values())

    @property
    def complete(self) -> bool:
        """Whether every shard is on disk."""
        return len(self.folder.parts()) == self.manifest.shards

    def about(self, column: str) -> dict[str, str]:
        """Returns the metadata of a column: ``kind``, ``attribution``, ``method``, ``layer``, ..."""
        return self.columns[column]

    def find(self, **metadata: str) -> list[str]:
        """Returns the columns with all of ``metadata``: ``find(kind="attribution", method="Saliency")``."""
        return [name for name, about in self.columns.items() if metadata.items() <= about.items()]

    def feature_names(self, column: str) -> tuple[str, ...]:
        """Returns the names of the last axis of a column of inputs, of their gradients or attributions; empty if the
        input has none."""
        return tuple(self.manifest.feature_names.get(self.about(self._known(column)).get("input", ""), ()))

    def shards(self, columns: Sequence[str] = ()) -> Iterator[dict[str, Array]]:
        """Yields columns, by default all, shard by shard; needs the memory of one shard."""
        names = [self._known(name) for name in columns or self]
        for shard in self.folder.parts():
            table = self._table(names, [shard])
            yield {name: _as_numpy(table[name]) for name in names}

    def batches(self, columns: Sequence[str], rows: int, shards: Sequence[int] | None = None) -> Iterator[Any]:
        """Yields record batches of at most ``rows`` rows from ``shards``, by default from all of them.

        Raises:
            InvalidArgument: ``DATA_UNREADABLE``: a file is damaged.
        """
        captures = [name for name in columns if name in self._in_zarr]
        # The errors tell which rows have captures.
        in_table = [*(name for name in columns if name not in self._in_zarr), *(["error"] if captures else [])]
        for shard in self.folder.parts() if shards is None else shards:
            path, start = self.folder.part(shard), self.manifest.range(shard).start
            try:
                file = parquet.ParquetFile(path, memory_map=True, pre_buffer=False, page_checksum_verification=True)
                for batch in file.iter_batches(rows, columns=list(dict.fromkeys(in_table))):
                    for name in captures:
                        column = self._capture(name, range(start, start + len(batch)), batch.column("error").is_valid())
                        batch = batch.append_column(name, column)
                    yield batch.select(list(columns))
                    start += len(batch)
            except (OSError, ValueError) as failure:
                raise error(Reason.DATA_UNREADABLE, f"{path.name} cannot be read: {failure}", "folder") from failure

    def similar(self, column: str, row: str, k: int = 10) -> FoundRows:
        """Returns the rows whose tensors in ``column`` have the smallest Euclidean distance from those of another row.

        Args:
            column: a column of tensors of one shape, or of numbers.
            row: the id of the other row.
            k: how many rows.

        Raises:
            InvalidArgument: ``COLUMN_NOT_FOUND``: no such column. ``INVALID_VALUE``: no row has the id, or several
                have it; the column holds no tensors of one shape; the row has no finite value there.
        """
        from sklearn.neighbors import NearestNeighbors  # here, because it takes two seconds

        self._check_numbers(column, ragged=False)
        own = self._row_of(row)
        shard = own // self.manifest.shard_rows
        query = _as_numpy(self._table([column], [shard])[column])[own - self.manifest.range(shard).start]
        point = np.ma.filled(query, np.nan).astype(np.float64).reshape(1, -1)
        if not np.isfinite(point).all():
            raise error(Reason.INVALID_VALUE, f"the row {row!r} has no finite value in {column}", "row")

        def nearest(rows: Array, values: Array) -> tuple[Array, Array]:
            flat = values.astype(np.float64).reshape(len(values), -1)
            kept = np.isfinite(flat).all(axis=1) & (rows != own)
            rows, flat = rows[kept], flat[kept]
            if not len(rows):
                return rows, np.zeros(0)
            model = NearestNeighbors(n_neighbors=min(k, len(rows)), algorithm="brute").fit(flat)
            places = model.kneighbors(point, return_distance=False)[0]
            return rows[places], np.linalg.norm(flat[places] - point, axis=1)  # exact: that of equal rows is 0

        return FoundRows(column, "distance", self._first(column, k, nearest, 1))

    def top(self, column: str, channel: int, k: int = 10) -> FoundRows:
        """Returns the rows in which a channel is most active: the largest of its values at all positions.

        Args:
            column: a column of tensors. A row of shape [channels], [positions, channels] or [channels, ...].
            channel: the index of the channel, or of the feature.
            k: how many rows.

        Raises:
            InvalidArgument: ``COLUMN_NOT_FOUND``: no such column. ``INVALID_VALUE``: it holds no tensors, or has no
                such channel.
        """
        self._check_numbers(column, ragged=True)

        def peak(tensor: Array) -> float:
            axis = 1 if tensor.ndim == 2 else 0
            if not (tensor.ndim and 0 <= channel < tensor.shape[axis]):
                size = tensor.shape[axis] if tensor.ndim else 0
                raise error(Reason.INVALID_VALUE, f"{column} has {size} channels, and no {channel}", "channel")
            return float(np.max(np.take(tensor, channel, axis), initial=-np.inf))

        def most_active(rows: Array, values: Array) -> tuple[Array, Array]:
            peaks = np.array([peak(value) for value in values], np.float64)
            return rows[~np.isnan(peaks)], peaks[~np.isnan(peaks)]

        return FoundRows(column, "activation", self._first(column, k, most_active, -1))

    def statistics(self, column: str, by: str = "") -> dict[str, dict[str, Array]]:
        """Returns what Captum's Summarizer does of a column, of rows without an error: for each element its count, sum,
        least, largest, mean, mean squared error, variance and standard deviation, with ``sample_`` those of order 1.

        Numbers that are not finite do not count. An element without any has NaN, and its count is 0.

        Args:
            column: a column of tensors of one shape, or of numbers.
            by: a column, such as ``prediction`` or ``label``, for the statistics of the rows of each of its values, as
                Captum's ClassSummarizer has them; by default those of all rows, under ``""``.

        Raises:
            InvalidArgument: ``COLUMN_NOT_FOUND``: no such column. ``INVALID_VALUE``: it holds no tensors of one shape.
        """
        self._check_numbers(column, ragged=False)
        found: dict[str, _Moments] = {}
        for shard in self.shards(list(dict.fromkeys(["error", column, *([by] if by else [])]))):
            good = np.array([failure is None for failure in shard["error"]], bool)
            values = np.ma.filled(shard[column].astype(np.float64), np.nan)[good]
            groups = np.array([self._value_text(by, each) for each in shard[by][good]] if by else [""] * len(values))
            for group in sorted({*groups.tolist()}):
                more = _Moments.of(values[groups == group])
                found[group] = found[group].joined(more) if group in found else more
        return {group: moments.statistics() for group, moments in sorted(found.items())}

    def _value_text(self, column: str, value: Any) -> str:
        if value is None or value is np.ma.masked:
            return ""
        return self.manifest.class_name(int(value)) if column == "prediction" else str(value)

    def _first(
        self, column: str, k: int, of_shard: Callable[[Array, Array], tuple[Array, Array]], sign: int
    ) -> tuple[FoundRow, ...]:
        """Returns the ``k`` rows with the smallest ``sign * value``; needs the memory of one shard.

        ``of_shard`` returns rows of a shard and their values, from all good rows and what they have in the column.
        """
        if k < 1:
            raise error(Reason.INVALID_VALUE, f"{k} rows cannot be found: at least 1", "k")
        found, values = np.zeros(0, np.int64), np.zeros(0)
        for shard in self.shards(list(dict.fromkeys(["row", "error", column]))):
            good = np.array([failure is None for failure in shard["error"]], bool)
            more = of_shard(shard["row"][good], shard[column][good])
            found, values = np.concatenate([found, more[0]]), np.concatenate([values, more[1]])
            order = np.argsort(sign * values, kind="stable")[:k]
            found, values = found[order], values[order]
        return tuple(map(self._found, found.tolist(), values.tolist()))

    def _found(self, row: int, value: float) -> FoundRow:
        measured = measured_output(self.schema)
        names = [name for name in ("id", "label", "prediction", measured) if name in self.columns]
        shard = row // self.manifest.shard_rows
        (cells,) = self._table(names, [shard]).slice(row - self.manifest.range(shard).start, 1).to_pylist()
        index, label = cells.get("prediction"), cells.get("label")
        prediction = "" if index is None else self.manifest.class_name(index)
        if (number := cells.get(measured)) is not None:
            prediction = f"{np.ravel(number)[0]:.4g}"
        return FoundRow(row, cells["id"], value, prediction, "" if label is None else str(label))

    def _row_of(self, name: str) -> int:
        """Returns the index of the row with the id ``name``."""
        rows = [row for shard in self.shards(["row", "id"]) for row in shard["row"][shard["id"] == name].tolist()]
        if len(rows) == 1:
            return int(rows[0])
        what = f"{len(rows):,} rows have the id {name!r}, and a row is found by an id of its own"
        raise error(Reason.INVALID_VALUE, what if rows else f"no row has the id {name!r}", "row")

    def _check_numbers(self, column: str, *, ragged: bool) -> None:
        arrow = self.schema.field(self._known(column)).type
        if pa.types.is_primitive(arrow) or isinstance(arrow, pa.FixedShapeTensorType) or (ragged and is_ragged(arrow)):
            return
        what = "holds tensors of several shapes" if is_ragged(arrow) else "holds no tensors"
        raise error(Reason.INVALID_VALUE, f"{column} {what}: name another column", "column")

    def _capture(self, name: str, rows: range, bad: Any) -> Any:
        arrow, array = self.schema.field(name).type, np.ascontiguousarray(self._captures.read(name, rows))
        missing = np.asarray(bad)
        return tensor_array(arrow, array, missing) if array.ndim > 1 else pa.array(array, arrow, mask=missing)

    def _table(self, columns: Sequence[str], shards: Sequence[int]) -> Any:
        batches = list(self.batches(columns, self.manifest.shard_rows, shards))
        return pa.Table.from_batches(batches) if batches else self.schema.empty_table().select(list(columns))

    def __getitem__(self, column: str) -> Array:
        return _as_numpy(self._table([self._known(column)], list(self.folder.parts()))[column])

    def __contains__(self, column: object) -> bool:
        return column in self.columns

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __repr__(self) -> str:
        return f"Results({str(self.folder.path)!r}, rows={self.rows}, columns={len(self)})"

    def _known(self, column: str) -> str:
        if column not in self.columns:
            known = ", ".join(self.columns)
            raise error(Reason.COLUMN_NOT_FOUND, f"the results have no column {column!r}; they have {known}")
        return column


def _as_numpy(column: Any) -> Array:
    """Returns a `pyarrow.ChunkedArray` as numpy."""
    if is_ragged(column.type):
        tensors = from_arrow(column)
        return _objects([None if isinstance(tensor, Unreadable) else tensor for tensor in tensors])
    if not (pa.types.is_primitive(column.type) or isinstance(column.type, pa.FixedShapeTensorType)):
        return _objects(column.to_pylist())
    dtype, shape = _row_type(column.type)
    present = np.array(from_arrow(column.drop_null()), dtype).reshape(-1, *shape)  # there may be none
    if not column.null_count:
        return present
    missing = np.asarray(column.is_null())
    array = np.full((len(column), *shape), missing_value(dtype), dtype)
    array[~missing] = present
    if dtype.kind == "f":
        return array
    masked: Array = np.ma.masked_array(array)
    masked[missing] = np.ma.masked
    return masked


def _objects(values: Sequence[Any]) -> Array:
    array = np.empty(len(values), object)
    for row, value in enumerate(values):
        array[row] = value
    return array
