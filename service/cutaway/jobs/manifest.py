"""The output folder of a job, and its manifest: the provenance of the results, and whether a run may continue them."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import IO, Annotated, Any

import pyarrow as pa
from google.protobuf import json_format
from pydantic import Field, TypeAdapter, ValidationError

from cutaway.contract.errors import Reason, error
from cutaway.contract.json_text import read_json
from cutaway.contract.results import ModelDetail
from cutaway.contract.values import __version__
from cutaway.contract.wire import requests as wire_requests
from cutaway.jobs.batch_inputs import BatchBuilder
from cutaway.jobs.records import Layout, about
from cutaway.jobs.spec import Job

# The output folder of a job. Every file is written under another name and then renamed, so that it is always complete.
#
# part-00042.parquet    one shard
# _manifest.json        the provenance of the results
# _captures/            captures in Zarr arrays
# _report.html          the report
# .lock                 locked by the run that writes
#
# Readers of Parquet folders (pandas, Spark, Arrow) skip names that begin with `_` or `.`. Folders of earlier versions
# have a manifest and captures without `_` in their names; they are read and continued as they are.

_PART = re.compile(r"part-(\d+)\.parquet")
_TEMPORARY = ".tmp"


class Folder:
    """The files of one job.

    Args:
        path: the folder.

    Attributes:
        manifest: the path of the manifest.
        captures: the path of the Zarr arrays.
        report: the path of the report.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        mark = "" if (path / "manifest.json").is_file() else "_"
        self.manifest = path / f"{mark}manifest.json"
        self.captures = path / f"{mark}captures"
        self.report = path / "_report.html"

    def part(self, shard: int) -> Path:
        """Returns the path of a shard."""
        return self.path / f"part-{shard:05d}.parquet"

    def parts(self) -> dict[int, Path]:
        """Returns the shards on disk by number, in order."""
        matches = [(match, path) for path in self.path.glob("part-*") if (match := _PART.fullmatch(path.name))]
        return dict(sorted((int(match[1]), path) for match, path in matches))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Creates the folder if needed and locks it against other runs while the block runs.

        Raises:
            FailedPrecondition: ``FOLDER_TAKEN``: another run has locked it, or it has files of no job.
        """
        self._create()
        with self._lock_file() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise error(Reason.FOLDER_TAKEN, f"another run is writing into {self.path}", "output.folder") from None
            for path in self.path.glob(f".*{_TEMPORARY}"):  # of a run that was killed
                path.unlink(missing_ok=True)
            yield

    def _lock_file(self) -> IO[bytes]:
        try:
            # A link would lead to a file of another folder.
            return open(os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "rb")
        except OSError as failure:
            what = f"{self.path / '.lock'} cannot be locked: {failure.strerror}"
            raise error(Reason.FOLDER_TAKEN, what, "output.folder") from None

    def _create(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            names = [path.name for path in self.path.iterdir() if not path.name.startswith(".")]
        except OSError as failure:
            what = f"{self.path} cannot be created: {failure.strerror}"
            raise error(Reason.FOLDER_TAKEN, what, "output.folder") from None
        if names and not self.manifest.is_file():
            what = f"{self.path} contains {min(names)} and no job: name a new folder"
            raise error(Reason.FOLDER_TAKEN, what, "output.folder")

    def write(self, path: Path, fill: Callable[[Path], object]) -> None:
        """Writes a temporary file with ``fill``, and renames it to ``path`` when it is complete and on disk."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY}")
        try:
            fill(temporary)
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)  # for the new name
        finally:
            os.close(directory)


SCHEMA = 1  # of the manifest; a reader refuses any other

_SAME = {
    "digest": "the job's spec",
    "fingerprint": "the data set",
    "rows": "the number of rows",
    "weights_sha256": "the model's weights",
    "files_sha256": "the model's files",
    "model": "the model",
    "version": "the model's version",
    "feature_columns": "the columns of features",
    "versions": "the versions of libraries",
}
"""The fields that a run must have in common with the run that it continues, and their names in messages."""


@dataclass(frozen=True)
class Manifest:
    """A job and the provenance of its results.

    Attributes:
        job: the spec.
        digest: the SHA-256 of those parts of the spec that results depend on.
        fingerprint: the fingerprint of the data set.
        rows: the number of rows of the data set.
        shard_rows: the number of rows of a shard.
        model: the model's name.
        version: the model's version.
        labels: the names of the model's classes.
        weights_sha256: the SHA-256 of the model's weights.
        files_sha256: the SHA-256 of the archive, or of the adapter's file and its weights; empty for a service.
        device: the device of the model.
        data_type: the data type of the model's parameters.
        seed: the seed of the first row.
        versions: the versions of cutaway, torch, captum and numpy.
        columns: the metadata of the columns.
        layout: the tables' serialised Arrow schema, in base64.
        schema: the version of this format.
        feature_columns: the columns of the inputs that are made from several columns.
        feature_names: the names of the features by input: the model's, else its columns'.
        question: the request for the first row, without inputs, in the contract's JSON; the inspector sends it again.
    """

    job: dict[str, Any]
    digest: str
    fingerprint: str
    rows: Annotated[int, Field(ge=0)]
    shard_rows: Annotated[int, Field(gt=0)]
    model: str
    version: str
    labels: list[str]
    weights_sha256: str
    files_sha256: str
    device: str
    data_type: str
    seed: int
    versions: dict[str, str]
    columns: dict[str, dict[str, str]]
    layout: str
    schema: int = SCHEMA
    feature_columns: dict[str, list[str]] = field(default_factory=dict)
    feature_names: dict[str, list[str]] = field(default_factory=dict)
    question: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, job: Job, fingerprint: str, rows: int, detail: ModelDetail, features: Mapping[str, Sequence[str]]
    ) -> Manifest:
        """Returns the manifest of ``job``, still without the columns of its tables.

        ``features`` has the columns of the inputs that are made from several columns.
        """
        provenance = detail.provenance
        builder = BatchBuilder(job, detail, features)
        named = {spec.name: spec.feature_names for spec in detail.inputs if spec.feature_names}
        return cls(
            job=job.as_json(),
            digest=hashlib.sha256(json.dumps(_relevant(job.as_json()), sort_keys=True).encode()).hexdigest(),
            fingerprint=fingerprint,
            rows=rows,
            shard_rows=job.output.shard_rows,
            model=detail.model.model,
            version=detail.model.version,
            labels=list(detail.labels),
            weights_sha256=provenance.weights_sha256,
            files_sha256=_files_sha256(job),
            device=provenance.device,
            data_type=provenance.data_type,
            seed=builder.template.seed,
            versions={
                "cutaway": provenance.cutaway_version or __version__,
                "torch": provenance.torch_version,
                "captum": provenance.captum_version,
                "numpy": version("numpy"),
            },
            columns={},
            layout="",
            feature_columns={name: list(columns) for name, columns in features.items()},
            feature_names={name: list(names) for name, names in {**features, **named}.items()},
            question=json_format.MessageToDict(wire_requests.encode(builder.request)),
        )

    def with_layout(self, layout: Layout) -> Manifest:
        """Returns the manifest with the columns of the tables."""
        columns = {field.name: {**about(field), **_shape(field.type)} for field in layout.schema}
        serialised = base64.b64encode(layout.schema.serialize().to_pybytes()).decode()
        return replace(self, columns=columns, layout=serialised)

    def read_layout(self) -> Layout:
        """Returns the columns of the tables."""
        try:
            return Layout(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.layout))))
        except (ValueError, OSError) as failure:
            raise error(Reason.DATA_UNREADABLE, f"the layout in the manifest cannot be read: {failure}") from None

    @property
    def shards(self) -> int:
        """The number of shards."""
        return -(-self.rows // self.shard_rows)

    def range(self, shard: int) -> range:
        """Returns the rows of a shard."""
        return range(shard * self.shard_rows, min((shard + 1) * self.shard_rows, self.rows))

    def class_name(self, index: int) -> str:
        """Returns the name of a class; its index, if the model has no names."""
        return self.labels[index] if 0 <= index < len(self.labels) else str(index)

    def check_same_job(self, other: Manifest) -> None:
        """Raises ``FOLDER_TAKEN`` if the run of ``other`` would compute other results."""
        changed = [what for name, what in _SAME.items() if getattr(self, name) != getattr(other, name)]
        if changed:
            fields = list(_differing(_relevant(self.job), _relevant(other.job)))[:_MAX_FIELDS_NAMED]
            changed[0] += f" ({', '.join(fields)})" if fields else ""
            raise error(
                Reason.FOLDER_TAKEN,
                f"the folder holds results of another job: {' and '.join(changed)} changed since; name a new folder",
                "output.folder",
            )

    def save(self, folder: Folder) -> None:
        """Writes the manifest into ``folder``."""
        text = json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"
        folder.write(folder.manifest, lambda path: path.write_text(text, "utf-8"))

    @classmethod
    def load(cls, folder: Folder) -> Manifest:
        """Reads the manifest in ``folder``.

        Raises:
            InvalidArgument: ``DATA_UNREADABLE``: there is none, or it cannot be read.
        """
        try:
            fields = read_json(folder.manifest.read_text("utf-8"))
            if fields.get("schema") != SCHEMA:
                raise ValueError(f"it has schema {fields.get('schema')!r:.40}, and this Cutaway reads {SCHEMA}")
            TypeAdapter(cls).validate_python(fields)
            return cls(**fields)
        except ValidationError as failure:
            first = failure.errors(include_input=False)[0]
            what = f"{folder.path} holds no job: {'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise error(Reason.DATA_UNREADABLE, what, "folder") from None
        except (OSError, ValueError, TypeError, AttributeError) as failure:
            raise error(Reason.DATA_UNREADABLE, f"{folder.path} holds no job: {failure}", "folder") from None


def _shape(arrow: Any) -> dict[str, str]:
    """Returns the shape of a column of tensors as ``{"shape": "1,8,8"}``; of others, nothing."""
    return {"shape": ",".join(map(str, arrow.shape))} if isinstance(arrow, pa.FixedShapeTensorType) else {}


_MAX_FIELDS_NAMED = 3


def _relevant(job: dict[str, Any]) -> dict[str, Any]:
    """Returns the parts of a spec that results depend on: without paths, which may change, and without the engine."""
    model = {name: job["model"][name] for name in ("options", "device", "name")}
    model["adapter"] = job["model"]["adapter"].rpartition(":")[2]
    output = {name: job["output"][name] for name in ("shard_rows", "keep_inputs", "captures_to", "tensors")}
    sections = {name: job[name] for name in ("inputs", "id", "label", "target", "request")}
    # Jobs of versions without these fields stay the same jobs.
    sections["inputs"] = {
        name: {field: value for field, value in spec.items() if field not in ("columns", "by_position") or value}
        for name, spec in job["inputs"].items()
    }
    return {**sections, "model": model, "output": output, "engine": {"batch": job["engine"]["batch"]}}


def _differing(one: Any, other: Any, field: str = "") -> Iterator[str]:
    """Yields the fields in which two specs differ; a list is one field."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        if one != other:
            yield field
        return
    for name in dict.fromkeys([*one, *other]):
        yield from _differing(one.get(name), other.get(name), f"{field}.{name}" if field else name)


def _files_sha256(job: Job) -> str:
    """Returns the SHA-256 over the archive, the adapter's file and the weights; ``""`` if there are none."""
    file = job.model.adapter.rpartition(":")[0]
    adapter = Path(file) if file.endswith(".py") else None
    paths = [path for path in (job.model.archive, adapter, job.model.weights) if path is not None]
    digest = hashlib.sha256()
    for path in paths:
        try:
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        except OSError as failure:
            raise error(Reason.MODEL_NOT_FOUND, f"{path} cannot be read: {failure.strerror}", "model") from None
    return digest.hexdigest() if paths else ""
