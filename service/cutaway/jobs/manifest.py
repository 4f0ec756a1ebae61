"""What a job is, as its folder says it: where every number comes from, and whether a rerun is the same."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa

from cutaway.errors import Reason, error
from cutaway.jobs.folder import Folder
from cutaway.jobs.records import Layout, about
from cutaway.jobs.spec import Job
from cutaway.results import ModelDetail
from cutaway.version import __version__

SCHEMA = 1  # of manifest.json; a reader refuses one that it does not know

_SAME = {
    "digest": "the job's spec",
    "fingerprint": "the data set",
    "rows": "the number of rows",
    "weights_sha256": "the model's weights",
    "files_sha256": "the model's files",
    "model": "the model",
    "version": "the model's version",
    "versions": "the versions of what computes",
}
"""What must be the same for a rerun to go on, and what to call it."""


@dataclass(frozen=True)
class Manifest:
    """A job and where it comes from.

    Attributes:
        job: the spec, as given.
        digest: SHA-256 of the parts of the spec that results depend on.
        fingerprint: of the data set.
        rows: how many it has.
        shard_rows: rows to a file.
        model: the model's name.
        version: its version.
        labels: the names of its classes.
        weights_sha256: of its weights.
        files_sha256: of the archive, or of the adapter's file and its weights; empty for a service.
        device: where it ran.
        data_type: what its parameters are.
        seed: what random numbers begin from.
        versions: of cutaway, torch, captum and numpy.
        columns: what each column holds.
        layout: the tables' Arrow schema, serialised, in base64.
        schema: of this file.
    """

    job: dict[str, Any]
    digest: str
    fingerprint: str
    rows: int
    shard_rows: int
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

    @classmethod
    def of(cls, job: Job, fingerprint: str, rows: int, detail: ModelDetail) -> Manifest:
        """What is known before the first row is asked about: all but the columns."""
        came = detail.provenance
        return cls(
            job=job.words(),
            digest=_digest(job),
            fingerprint=fingerprint,
            rows=rows,
            shard_rows=job.output.shard_rows,
            model=detail.model.model,
            version=detail.model.version,
            labels=list(detail.labels),
            weights_sha256=came.weights_sha256,
            files_sha256=_files_sha256(job),
            device=came.device,
            data_type=came.data_type,
            seed=job.request.seed,
            versions={
                "cutaway": came.cutaway_version or __version__,
                "torch": came.torch_version,
                "captum": came.captum_version,
                "numpy": version("numpy"),
            },
            columns={},
            layout="",
        )

    def with_layout(self, layout: Layout) -> Manifest:
        """The same, with the columns of the tables."""
        columns = {field.name: about(field) for field in layout.schema}
        packed = base64.b64encode(layout.schema.serialize().to_pybytes()).decode()
        return Manifest(**{**asdict(self), "columns": columns, "layout": packed})

    def read_layout(self) -> Layout:
        """The columns of the tables."""
        return Layout(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.layout))))

    @property
    def shards(self) -> int:
        """How many files all rows take."""
        return -(-self.rows // self.shard_rows)

    def range(self, shard: int) -> range:
        """The rows of that shard."""
        return range(shard * self.shard_rows, min((shard + 1) * self.shard_rows, self.rows))

    def refuse_other(self, other: Manifest) -> None:
        """Raise ``FOLDER_TAKEN`` where ``other``, a rerun, would not compute the same."""
        changed = [what for name, what in _SAME.items() if getattr(self, name) != getattr(other, name)]
        if changed:
            apart = list(_differing(_weighty(self.job), _weighty(other.job)))[:_CHANGES_NAMED]
            changed[0] += f" ({', '.join(apart)})" if apart else ""
            raise error(
                Reason.FOLDER_TAKEN,
                f"the folder holds results of another job: {' and '.join(changed)} changed since; name a new folder",
                "output.folder",
            )

    def save(self, folder: Folder) -> None:
        """Write it into ``folder``."""
        text = json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"
        folder.write(folder.manifest, lambda path: path.write_text(text, "utf-8"))

    @classmethod
    def load(cls, folder: Folder) -> Manifest:
        """The manifest in ``folder``.

        Raises:
            InvalidArgument: ``DATA_UNREADABLE``, where there is none, or none that can be read.
        """
        try:
            words = json.loads(folder.manifest.read_text("utf-8"))
            if words.get("schema") != SCHEMA:
                raise ValueError(f"it has schema {words.get('schema')!r}, and this Cutaway reads {SCHEMA}")
            return cls(**words)
        except (OSError, ValueError, TypeError, AttributeError) as failure:
            raise error(Reason.DATA_UNREADABLE, f"{folder.path} holds no job: {failure}", "folder") from None


_CHANGES_NAMED = 3


def _digest(job: Job) -> str:
    return hashlib.sha256(json.dumps(_weighty(job.words()), sort_keys=True).encode()).hexdigest()


def _weighty(words: dict[str, Any]) -> dict[str, Any]:
    """All that results depend on, of a job's words: not paths, which may move, nor who computes."""
    model = {name: words["model"][name] for name in ("options", "device", "name")}
    model["adapter"] = words["model"]["adapter"].rpartition(":")[2]
    output = {name: words["output"][name] for name in ("shard_rows", "keep_inputs", "captures_to", "tensors")}
    kept = {name: words[name] for name in ("inputs", "id", "label", "target", "request")}
    return {**kept, "model": model, "output": output, "engine": {"batch": words["engine"]["batch"]}}


def _differing(one: Any, other: Any, field: str = "") -> Iterator[str]:
    """The fields in which two jobs' words differ; a list is one field."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        if one != other:
            yield field
        return
    for name in dict.fromkeys([*one, *other]):
        yield from _differing(one.get(name), other.get(name), f"{field}.{name}" if field else name)


def _files_sha256(job: Job) -> str:
    file = job.model.adapter.rpartition(":")[0]
    adapter = Path(file) if file.endswith(".py") else None
    digest = hashlib.sha256()
    paths = [path for path in (job.model.archive, adapter, job.model.weights) if path is not None]
    for path in paths:
        try:
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        except OSError as failure:
            raise error(Reason.MODEL_NOT_FOUND, f"{path} cannot be read: {failure.strerror}", "model") from None
    return digest.hexdigest() if paths else ""
