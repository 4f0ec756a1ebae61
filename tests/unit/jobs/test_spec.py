"""A section of a job may be its main value alone; anything else is told what is right."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import cutaway as ca
from cutaway.jobs.manifest import Folder, Manifest
from cutaway.jobs.sources import open_source
from cutaway.jobs.spec import Job, Local, Service

LONG = """
model: {archive: net.mar}
data: {path: table.csv}
inputs: {x: {columns: features}}
id: {column: number}
label: {column: kind}
target: label
output: {folder: out}
"""

SHORT = """
model: net.mar
data: table.csv
inputs: {x: {columns: features}}
id: number
label: kind
target: label
output: out
"""


def load(text: str, directory: Path) -> Job:
    (directory / "job.yaml").write_text(text)
    return Job.load(directory / "job.yaml")


def test_a_text_is_the_main_value_of_a_section(tmp_path: Path) -> None:
    """Paths are relative to the file, as in the long form."""
    short = load(SHORT, tmp_path)
    assert short == load(LONG, tmp_path)
    assert short.model.archive == tmp_path / "net.mar"


URL = "is a URL, and this is a path: name a place on this machine, such as where it is mounted"


def test_engines_are_named_alone_or_with_fields(tmp_path: Path) -> None:
    """A kind alone, a kind with fields, and fields of the default."""
    service = SHORT.replace("net.mar", "{address: 'host:1', name: net}")
    assert load(f"{service}engine: service", tmp_path).engine == Service(kind="service")
    job = load(f"{service}engine: {{kind: service, in_flight: 8}}", tmp_path)
    assert job.engine == Service(kind="service", in_flight=8)
    assert load(f"{SHORT}engine: {{batch: 3}}", tmp_path).engine == Local(batch=3)
    assert load(f"{SHORT}engine: local", tmp_path) == load(SHORT, tmp_path)


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        (("output: out", "output: [out]"), "output", "must be a mapping of names to values, or the folder alone"),
        (("data: table.csv", "data: 3"), "data", "must be a mapping of names to values, or the path alone"),
        (("target: label", "request: Saliency"), "request", "must be a mapping of names to values"),
        (("output: out", "output: s3://bucket/out"), "output.folder", f"'s3:/bucket/out' {URL}"),
        (("output: out", "output: {folder: 'gs://bucket/out'}"), "output.folder", f"'gs:/bucket/out' {URL}"),
        (("model: net.mar", "model: https://host/net.mar"), "model.archive", f"'https:/host/net.mar' {URL}"),
        (("model: net.mar", "model: {adapter: a.py:B, weights: 'S3://b/w'}"), "model.weights", f"'S3:/b/w' {URL}"),
        (("target: label", "engine: servce"), "engine", "'servce' is no engine; did you mean 'service'?"),
        (("target: label", "engine: {kind: spark}"), "engine", "'spark' is no engine; there are local, service, ray"),
        (("target: label", "engine: 3"), "engine", "must be local, service or ray, or a mapping with the field kind"),
        (("target: label", "engine: service"), "", "model.address and engine: service need each other"),
        (("net.mar", "{address: 'host:1', name: net}"), "", "model.address and engine: service need each other"),
        (("target: label", "engine: {kind: service, batches: 3}"), "engine.batches", "there is no such field; did you "
         "mean 'batch'?"),
    ],
)  # fmt: skip
def test_other_values_are_refused(change: tuple[Any, Any], field: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ca.InvalidArgument) as caught:
        load(SHORT.replace(*change), tmp_path)
    assert (caught.value.field, caught.value.message) == (field, message)


MANIFEST = asdict(
    Manifest(
        job={}, digest="", fingerprint="", rows=1, shard_rows=1, model="net", version="1.0", labels=[],
        weights_sha256="", files_sha256="", device="cpu", data_type="float32", seed=0, versions={}, columns={},
        layout="",
    )
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (json.dumps(MANIFEST | {"schema": 9}), "it has schema 9, and this Cutaway reads 1"),
        (json.dumps(MANIFEST | {"rows": -1}), "rows: Input should be greater than or equal to 0"),
        (json.dumps(MANIFEST | {"shard_rows": 0}), "shard_rows: Input should be greater than 0"),
        (json.dumps(MANIFEST | {"labels": 5}), "labels: Input should be a valid list"),
        (json.dumps(MANIFEST | {"columns": {"x": 1}}), "columns.x: Input should be a valid dict"),
        (json.dumps(MANIFEST | {"more": 1}), "unexpected keyword argument 'more'"),
        (json.dumps(MANIFEST).replace("{", '{"rows": 2, ', 1), "the key 'rows' is there twice"),
        ("[" * 100_000, "nested too deeply"),
        ('{"schema": 1, "job": ' + '{"a": ' * 500 + "1" + "}" * 501, "nested too deeply"),
        ("[]", "holds no job"),
        ('{"schema": ' + "9" * 5000 + "}", "holds no job"),
    ],
)
def test_a_foreign_manifest_is_refused(text: str, said: str, tmp_path: Path) -> None:
    """With the field at fault."""
    (tmp_path / "_manifest.json").write_text(text)
    with pytest.raises(ca.InvalidArgument, match=said) as caught:
        Manifest.load(Folder(tmp_path))
    assert caught.value.reason == "DATA_UNREADABLE"


def test_a_lock_writes_through_no_link(tmp_path: Path) -> None:
    """The file at the other end stays as it is."""
    other, folder = tmp_path / "other", tmp_path / "out"
    other.write_text("precious")
    folder.mkdir()
    (folder / ".lock").symlink_to(other)
    with pytest.raises(ca.FailedPrecondition, match=r"\.lock cannot be locked") as caught, Folder(folder).locked():
        pass
    assert (caught.value.reason, other.read_text()) == ("FOLDER_TAKEN", "precious")


@pytest.mark.parametrize("suffix", ["png", "csv", "npy", "jsonl", "parquet"])
def test_pipes_are_no_data(suffix: str, tmp_path: Path) -> None:
    """A reader would wait at them for ever; links to files are data."""
    os.mkfifo(tmp_path / f"a.{suffix}")
    (tmp_path / f"b.{suffix}").symlink_to(tmp_path / f"a.{suffix}")
    for location in (tmp_path, tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"):
        with pytest.raises(ca.NotFound, match="contains no file"):
            open_source(str(location))


def test_links_are_data(tmp_path: Path) -> None:
    """A link to a file is the file; a broken one is a bad row."""
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "a.png").write_bytes(b"a")
    (tmp_path / "b.png").symlink_to(tmp_path / "a.png")
    (tmp_path / "c.png").symlink_to(tmp_path / "nowhere")
    source = open_source(str(tmp_path))
    assert list(source.read(0, 3, ["name"])["name"]) == ["a.png", "b.png", "c.png"]
    images = source.read(0, 3, ["image"])["image"]
    assert list(images[:2]) == [b"a", b"a"]
    assert "does not exist" in images[2].reason
