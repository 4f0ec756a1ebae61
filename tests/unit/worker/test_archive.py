"""Archives: what is built can be read back, and what is damaged is refused by name."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
import stat
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.server.archive import builder, reader

ADAPTER = "class Tiny:\n    '''An adapter; nothing here runs it.'''\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory with what a model's owner has: an adapter, weights, and a list of labels."""
    directory = tmp_path / "source"
    directory.mkdir()
    (directory / "tiny_adapter.py").write_text(ADAPTER)
    (directory / "labels.txt").write_text("cat\ndog\n")
    save_file({"weight": np.arange(4096, dtype=np.float32)}, directory / "tiny.safetensors")
    return directory


Build = Callable[..., Path]


@pytest.fixture
def build(source: Path, tmp_path: Path) -> Build:
    """`packaging.build` over ``source``, in need of no arguments."""

    def build(**changes: Any) -> Path:
        arguments: dict[str, Any] = {
            "model": "tiny",
            "adapter": f"{source}/tiny_adapter.py:Tiny",
            "weights": source / "tiny.safetensors",
            "options": {"depth": "2"},
            "extra_files": [source / "labels.txt"],
            "batch_size": 8,
            "max_batch_delay_ms": 2,
            "workers": 1,
            "response_timeout_s": 60,
            "destination": tmp_path,
        }
        return builder.build(**{**arguments, **changes})

    return build


def refused(reason: Reason, action: Callable[[], object]) -> CutawayError:
    """The error of ``action``, which has to be of this reason."""
    with pytest.raises(CutawayError) as caught:
        action()
    assert caught.value.reason == reason
    return caught.value


def fault(path: Path) -> str:
    """What is wrong with a damaged archive."""
    return refused(Reason.ARCHIVE_CORRUPT, lambda: reader.read(path)).message


def rewritten(path: Path, changes: Mapping[str, bytes | None]) -> Path:
    """The archive with members replaced, or left out for None: sound as a zip, wrong as an archive."""
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, data in {**members, **changes}.items():
            if data is not None:
                new.writestr(name, data)
    return path


def test_round_trip(build: Build) -> None:
    """What went in comes out: names, options, and the weights' own SHA-256."""
    path = build(version="2.1")
    manifest = reader.read(path)
    assert path.name == "tiny-2.1.mar"
    assert (manifest.model, manifest.version) == ("tiny", "2.1")
    assert manifest.adapter == "tiny_adapter.py:Tiny"
    assert manifest.weights == "tiny.safetensors"
    assert re.fullmatch(r"[0-9a-f]{64}", manifest.weights_sha256)
    assert manifest.options == {"depth": "2"}


def test_an_installed_adapter_and_no_weights(build: Build) -> None:
    """A model may live in an installed module and be born with its weights."""
    manifest = reader.read(build(adapter="cutaway.adapters:Adapter", weights=None, extra_files=[]))
    assert manifest == reader.ArchiveManifest("tiny", "1.0", "cutaway.adapters:Adapter", options={"depth": "2"})


def test_random_weights(build: Build) -> None:
    """The manifest says whether they are allowed; one of an earlier version, which does not say so, allows none."""
    path = build(weights=None, random_weights=True)
    assert reader.read(path).random_weights
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("cutaway.json"))
    assert manifest.pop("random_weights")
    assert not reader.read(rewritten(path, {"cutaway.json": json.dumps(manifest).encode()})).random_weights
    assert refused(Reason.INVALID_VALUE, lambda: build(version="2.0", random_weights=True)).field == "random_weights"


def test_an_archive_that_fails_its_check(build: Build, tmp_path: Path) -> None:
    """The check sees the whole archive. An error of it leaves no file, and an earlier archive as it was."""
    before = build().read_bytes()
    left = sorted(tmp_path.rglob("*"))

    def check(archive: Path, weights: Path | None) -> None:
        assert (reader.read(archive).model, weights and weights.name) == ("tiny", "tiny.safetensors")
        raise error(Reason.ADAPTER_INVALID, "it does not load")

    refused(Reason.ADAPTER_INVALID, lambda: build(force=True, check=check))
    refused(Reason.ADAPTER_INVALID, lambda: build(version="2.0", check=check))
    assert sorted(tmp_path.rglob("*")) == left
    assert (tmp_path / "tiny-1.0.mar").read_bytes() == before


def test_torchserve_gets_what_it_needs(build: Build) -> None:
    """The archive holds our handler, every file, and TorchServe's settings in TorchServe's words."""
    with zipfile.ZipFile(build()) as made:
        served = json.loads(made.read("MAR-INF/MANIFEST.json"))["model"]
        settings = made.read("model-config.yaml").decode()

        assert made.read(served["handler"]) == builder.handler_file().read_bytes()
        assert {"tiny_adapter.py", "tiny.safetensors", "labels.txt", "cutaway.json"} <= set(made.namelist())
    assert (served["modelName"], served["modelVersion"]) == ("tiny", "1.0")
    assert settings == "minWorkers: 1\nmaxWorkers: 1\nbatchSize: 8\nmaxBatchDelay: 2\nresponseTimeout: 60\n"


def test_unpacked(build: Build, tmp_path: Path) -> None:
    """A worker reads the manifest from the unpacked directory, and an operator's worker count counts."""
    path = build()
    reader.unpack(path, tmp_path / "unpacked", workers=3)
    assert reader.unpacked(tmp_path / "unpacked") == reader.read(path)
    assert (tmp_path / "unpacked" / "tiny_adapter.py").read_text() == ADAPTER
    config = (tmp_path / "unpacked" / "model-config.yaml").read_text()
    assert "minWorkers: 3\nmaxWorkers: 3\nbatchSize: 8\n" in config


def test_no_archive_is_overwritten_unasked(build: Build) -> None:
    """A second build needs force."""
    build()
    assert "force" in refused(Reason.INVALID_VALUE, build).message
    assert reader.read(build(force=True, version="1.1")).version == "1.1"


def test_a_build_that_fails_leaves_nothing(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where zipping is interrupted, the old archive is still there, whole, and nothing else."""
    from model_archiver.model_packaging_utils import ModelExportUtils

    before = reader.read(build())

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ModelExportUtils, "archive_dir", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build(force=True, version="9.9")

    assert reader.read(tmp_path / "tiny-1.0.mar") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "tiny-1.0.mar"]


def test_a_stranger_s_directory_in_tmp_survives(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model archiver would delete /tmp/<model name>; a build does not."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "thesis.tex").touch()
    build()
    assert (tmp_path / "tiny" / "thesis.tex").exists()


@pytest.mark.parametrize("name", ["", "1st", "a b", "a/b", "..", "a..b", "größe", "-x"])
def test_model_names(build: Build, name: str) -> None:
    """A name that TorchServe or a path would trip over is refused."""
    assert refused(Reason.INVALID_VALUE, lambda: build(model=name)).field == "model"


@pytest.mark.parametrize(
    ("adapter", "said"),
    [
        ("tiny_adapter.py", "neither file.py:Class nor package.module:Class"),
        ("tiny_adapter.py:Small", "tiny_adapter.py defines no class Small, but Tiny"),
        ("missing.py:Tiny", "missing.py cannot be read: No such file or directory"),
        ("broken.py:Tiny", "broken.py is not Python"),
        ("json.py:Tiny", "json.py would hide the module json that is installed"),
        ("torch.py:Tiny", "torch.py would hide the module torch that is installed"),
        ("my-adapter.py:Tiny", "my-adapter.py cannot be imported: 'my-adapter' is no name for a module"),
    ],
)
def test_adapters_in_files(build: Build, source: Path, adapter: str, said: str) -> None:
    """An adapter that no worker could import is refused when it is packaged, and the error says why."""
    for name in ("json.py", "torch.py", "my-adapter.py"):
        (source / name).write_text(ADAPTER)
    (source / "broken.py").write_text("class Tiny:\n")
    failure = refused(Reason.ADAPTER_INVALID, lambda: build(adapter=f"{source}/{adapter}"))
    assert said in failure.message
    assert failure.field == "adapter"


@pytest.mark.parametrize("adapter", ["no.such.module:Tiny", "nowhere:Tiny", "cutaway.adapters:Nobody"])
def test_adapters_that_are_not_installed(build: Build, adapter: str) -> None:
    """So is one that is not installed here."""
    refused(Reason.ADAPTER_INVALID, lambda: build(adapter=adapter))


def test_an_adapter_may_not_hide_the_handler(build: Build, source: Path) -> None:
    """TorchServe imports the handler by its module's name, the archive first."""
    (source / "inspection_handler.py").write_text(ADAPTER)
    failure = refused(Reason.INVALID_VALUE, lambda: build(adapter=f"{source}/inspection_handler.py:Tiny"))
    assert "second inspection_handler.py" in failure.message


@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors", "missing.safetensors"])
def test_only_safetensors(build: Build, source: Path, name: str) -> None:
    """A pickle, a pickle by another name, and no file at all are refused: no archive can run code from weights."""
    if not name.startswith("missing"):
        (source / name).write_bytes(b"\x80\x04\x95 a pickle")

    failure = refused(Reason.INVALID_VALUE, lambda: build(weights=source / name))
    assert failure.field == "weights"
    assert name in failure.message
    assert "safetensors.torch.save_file" in failure.message


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["nothing.txt"], "nothing.txt is no file"),
        (["cutaway.json"], "second cutaway.json"),
        (["one/config.json", "two/config.json"], "second config.json; put files of one name into folders"),
        (["one", "deep/one"], "second one"),
        (["MAR-INF"], "second MAR-INF"),
        (["empty"], "empty is no file, and no folder of files"),
        (["pipes"], "pipes is no file, and no folder of files"),
        (["requirements.txt"], "requirements.txt would be ignored: install the packages where the model is served"),
    ],
)
def test_extra_files(build: Build, source: Path, names: list[str], said: str) -> None:
    """Extra files must exist, none may replace another, and none is accepted to be ignored."""
    for name in ("cutaway.json", "one/config.json", "two/config.json", "deep/one/a", "MAR-INF/a", "requirements.txt"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).touch()
    (source / "empty").mkdir()
    (source / "pipes").mkdir()
    os.mkfifo(source / "pipes" / "pipe")
    assert said in refused(Reason.INVALID_VALUE, lambda: build(extra_files=[source / name for name in names])).message


def test_folders_keep_what_is_in_them(build: Build, source: Path, tmp_path: Path) -> None:
    """Also files of one name in different folders, files behind links, and whatever the folder is called by."""
    for name in ("1_Pooling/config.json", "2_Dense/config.json", "2_Dense/deep/er/x.txt", "2_Dense/__pycache__/x.pyc"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    (source / "blob").write_text("behind a link")
    (source / "2_Dense" / "link.txt").symlink_to(source / "blob")
    (source / "vocabulary.txt").symlink_to(source / "blob")
    extras = [source / "1_Pooling", source / "2_Dense" / "deep" / "..", source / "vocabulary.txt"]
    path = build(extra_files=extras)
    reader.read(path)
    reader.unpack(path, tmp_path / "unpacked")
    found = {file.relative_to(tmp_path / "unpacked").as_posix() for file in (tmp_path / "unpacked").rglob("*.*")}
    assert found >= {
        *("1_Pooling/config.json", "2_Dense/config.json", "2_Dense/deep/er/x.txt", "2_Dense/link.txt", "vocabulary.txt")
    }
    assert not any("pyc" in name for name in found)
    for name in ("1_Pooling/config.json", "2_Dense/config.json"):
        assert (tmp_path / "unpacked" / name).read_text() == name
    assert (tmp_path / "unpacked" / "2_Dense" / "link.txt").read_text() == "behind a link"


def test_requirements_of_other_archives_are_told(build: Build) -> None:
    """TorchServe's archiver takes them, and nobody would install them."""
    served = {"model": {"modelName": "tiny", "requirementsFile": "requirements.txt"}}
    path = rewritten(build(), {"MAR-INF/MANIFEST.json": json.dumps(served).encode()})
    assert "it asks for packages, which nobody installs" in fault(path)


@pytest.mark.parametrize("name", ["batch_size", "max_batch_delay_ms", "workers", "response_timeout_s"])
def test_settings_start_at_one(build: Build, name: str) -> None:
    """TorchServe reads 0 as "use your default", which for the batch delay is 100 ms: refused."""
    assert "at least 1, not 0" in refused(Reason.INVALID_VALUE, lambda: build(**{name: 0})).message


MANIFEST = asdict(reader.ArchiveManifest("tiny", "1.0", "tiny_adapter.py:Tiny"))
WRONG_TYPE = json.dumps({"schema": 1, **MANIFEST, "random_weights": 1}).encode()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cutaway.json": None}, "tiny-1.0.mar: cutaway.json is missing"),
        ({"MAR-INF/MANIFEST.json": None}, "tiny-1.0.mar: MAR-INF/MANIFEST.json is missing"),
        ({"tiny_adapter.py": None}, "tiny-1.0.mar: tiny_adapter.py is missing"),
        ({"tiny.safetensors": None}, "tiny-1.0.mar: tiny.safetensors is missing"),
        ({"tiny.safetensors": b"others"}, "tiny-1.0.mar: tiny.safetensors is not the packaged file"),
        ({"cutaway.json": b"{"}, "tiny-1.0.mar: cutaway.json is not JSON"),
        ({"cutaway.json": b"[" * 100_000}, "tiny-1.0.mar: cutaway.json is not JSON (it is nested too deeply"),
        ({"cutaway.json": b"[]"}, "tiny-1.0.mar: cutaway.json is not a JSON object"),
        ({"cutaway.json": b'{"schema": 2}'}, "tiny-1.0.mar: cutaway.json has schema 2"),
        ({"cutaway.json": b'{"schema": 1, "options": {}}'}, "cutaway.json does not have the fields of a manifest"),
        ({"cutaway.json": WRONG_TYPE}, "cutaway.json does not have the fields of a manifest"),
        ({"model-config.yaml": b"minWorkers: ["}, "tiny-1.0.mar: model-config.yaml is not YAML: line 1"),
        ({"model-config.yaml": b"1"}, "model-config.yaml holds no mapping"),
        ({"model-config.yaml": b"\xff"}, "tiny-1.0.mar: 'utf-8' codec can't decode"),
        ({"model-config.yaml": b"minWorkers: x"}, "minWorkers is 'x', and not a whole number from 1 on"),
        ({"model-config.yaml": b"maxWorkers: 0"}, "maxWorkers is 0, and not a whole number from 1 on"),
        ({"model-config.yaml": b"batchSize: true"}, "batchSize is True, and not a whole number"),
        ({"model-config.yaml": b"batchSize: 99999999999"}, "batchSize is 99999999999, and not a whole number"),
        ({"model-config.yaml": b"maxBatchDelay: -1"}, "maxBatchDelay is -1, and not a whole number from 0 on"),
        ({"model-config.yaml": b"minWorkers: 2\nmaxWorkers: 1"}, "minWorkers is more than maxWorkers"),
        ({"model-config.yaml": b"minWorkers: 1\nminWorkers: 2"}, "the key 'minWorkers' is there twice"),
        ({"MAR-INF/MANIFEST.json": b'{"model": {"modelName": "other"}}'}, "do not name the same model"),
        ({"MAR-INF/MANIFEST.json": b'{"model": 3}'}, "do not name the same model"),
    ],
)
def test_incomplete_archives(build: Build, changes: Mapping[str, bytes | None], said: str) -> None:
    """A zip that lacks or mixes up something is refused, with the file, what is wrong, and what to do."""
    path = rewritten(build(), changes)
    message = fault(path)
    assert said in message
    assert message.endswith("; rebuild it with `cutaway package`")


@pytest.mark.parametrize(
    ("model", "version", "said"),
    [
        ("../../evil", "1.0", "'../../evil' is no model name"),
        ("m" * 129, "1.0", "is no model name"),
        ("tiny", "1.²", "'1.²' is no version"),
        ("tiny", "1" * 5000, "is no version"),
        ("tiny", "1/../2", "'1/../2' is no version"),
    ],
)
def test_a_name_that_no_build_gives(build: Build, model: str, version: str, said: str) -> None:
    """An archive made by other means has the names that one made by us may have, or is refused."""
    with zipfile.ZipFile(path := build()) as archive:
        manifest = json.loads(archive.read("cutaway.json")) | {"model": model, "version": version}
    served = {"model": {"modelName": model}}
    changes = {"cutaway.json": manifest, "MAR-INF/MANIFEST.json": served}
    rewritten(path, {name: json.dumps(content).encode() for name, content in changes.items()})
    assert said in fault(path)


def test_a_flipped_byte_in_the_weights(build: Build) -> None:
    """One wrong byte of the weights is found, and the file that it is in is named."""
    path = build()
    data = bytearray(path.read_bytes())
    data[data.index(np.arange(4096, dtype=np.float32).tobytes()) + 999] ^= 1
    path.write_bytes(data)
    for damaged in (lambda: reader.read(path), lambda: reader.unpack(path, path.parent / "unpacked")):
        assert "tiny.safetensors" in refused(Reason.ARCHIVE_CORRUPT, damaged).message


@pytest.mark.parametrize("data", [b"", b"not a zip\n", b"PK\x03\x04 not quite a zip"])
def test_files_that_are_no_archives(tmp_path: Path, data: bytes) -> None:
    """A text file called .mar is not taken for an archive."""
    path = tmp_path / "notes.mar"
    path.write_bytes(data)
    assert fault(path).startswith("notes.mar: ")


def test_a_missing_archive(tmp_path: Path) -> None:
    """A file that is not there is not called damaged."""
    failure = refused(Reason.MODEL_NOT_FOUND, lambda: reader.read(tmp_path / "tiny-1.0.mar"))
    assert "there is no such file" in failure.message


def test_a_directory_without_a_manifest(tmp_path: Path) -> None:
    """Neither is a directory that no archive was unpacked into a model."""
    assert "cutaway.json cannot be read" in refused(Reason.ARCHIVE_CORRUPT, lambda: reader.unpacked(tmp_path)).message


def test_whatever_the_damage(build: Build) -> None:
    """Cut anywhere or changed anywhere, an archive is read as it was or refused; it never ends in another error."""
    path = build(weights=None, extra_files=[])
    sound, manifest = path.read_bytes(), reader.read(path)
    chance = random.Random(0)
    reasons = set()
    for _ in range(300):
        damaged = bytearray(sound[: chance.randrange(len(sound))] if chance.random() < 0.3 else sound)
        for _ in range(chance.randrange(1, 4)):
            if damaged:
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            assert reader.read(path) == manifest
        except CutawayError as failure:
            reasons.add(failure.reason)
    assert reasons == {Reason.ARCHIVE_CORRUPT}


@pytest.mark.parametrize("name", ["../outside.py", "/etc/outside", "a/../../outside", "..\\\\outside", "C:/outside"])
def test_nothing_is_unpacked_elsewhere(build: Build, tmp_path: Path, name: str) -> None:
    """An archive with a member that leads out of it is refused, before anything is unpacked."""
    path = build()
    with zipfile.ZipFile(path, "a") as packed:
        packed.writestr(name, "x")
    assert "points outside of the archive" in fault(path)
    refused(Reason.ARCHIVE_CORRUPT, lambda: reader.unpack(path, tmp_path / "there"))
    assert not (tmp_path / "there").exists()


def test_a_full_disk_is_no_damage(build: Build, tmp_path: Path) -> None:
    """Neither before an archive is unpacked, nor if others fill the disk meanwhile; here a file may not grow."""
    path, small = build(), tmp_path / "small"
    small.mkdir()
    if not subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", small], stderr=subprocess.DEVNULL
    ).returncode:
        try:
            told = refused(Reason.BACKEND_UNAVAILABLE, lambda: reader.unpack(path, small / "there")).message
        finally:
            subprocess.run(["umount", small], check=True)
        assert "are free in" in told
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            reader.unpack(path, tmp_path / "there")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("kind", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_rare_kinds_of_compression(build: Build, kind: int) -> None:
    """Not every Python can read them, and no build of ours makes them."""
    with zipfile.ZipFile(path := build(), "a", compression=kind) as archive:
        archive.writestr("notes.txt", "of no use")

    assert "'notes.txt' is neither deflated nor stored" in fault(path)


def test_no_member_is_a_link(build: Build) -> None:
    """Neither is one with a member that is a symbolic link."""
    link = zipfile.ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path := build(), "a") as packed:
        packed.writestr(link, "/etc/passwd")
    assert "points outside of the archive" in fault(path)


def test_what_is_packed_small_may_be_too_large(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive that there is no room for is refused before the first byte is written."""
    path = build()
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("zeros", bytes(1 << 20))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 19))
    failure = refused(Reason.BACKEND_UNAVAILABLE, lambda: reader.unpack(path, tmp_path / "there"))
    assert f"524288 are free in {tmp_path}; free some, or set TMPDIR" in failure.message
    assert not (tmp_path / "there").exists()
