"""Model archives: what a `.mar` made by ``cutaway package`` holds, and reading it back.

An archive is a zip that TorchServe can serve as it is, and that says, in ``cutaway.json``, what Cutaway must
know to load the model: the adapter, the weights, their SHA-256. Weights are safetensors; no pickle gets in.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import IO, Any

from cutaway.errors import Reason, error

MANIFEST = "cutaway.json"
TORCHSERVE_MANIFEST = "MAR-INF/MANIFEST.json"
MODEL_CONFIG = "model-config.yaml"
SCHEMA = 1  # of cutaway.json; a reader refuses one that it does not know
_WORKER_COUNTS = re.compile(r"(?m)^((?:min|max)Workers):.*$")
_BATCH_SIZE = re.compile(r"(?m)^(batchSize):.*$")


@dataclass(frozen=True)
class Manifest:
    """What an archive says of itself.

    Attributes:
        model: the name that the model is served under.
        version: which version of it this is.
        adapter: ``digits_adapter.py:Digits``, a class in a file of the archive, or
            ``cutaway.adapters:ResNet``, a class in an installed module.
        weights: the name of the safetensors file in the archive, ``""`` for none.
        weights_sha256: its SHA-256 in hexadecimal.
        options: the words that the adapter is given.
    """

    model: str
    version: str
    adapter: str
    weights: str = ""
    weights_sha256: str = ""
    options: dict[str, str] = field(default_factory=dict)


def read(path: Path) -> Manifest:
    """The manifest of the archive at ``path``, after every byte of it has been checked."""
    with _opened(path) as archive:
        return _verified(archive)


def unpack(path: Path, directory: Path, *, workers: int | None = None, batch: int | None = None) -> None:
    """Unpack the archive at ``path`` into ``directory`` for TorchServe, checking every byte on the way.

    ``workers`` and ``batch`` replace the number of workers, and of calls to a batch, that the archive asks for.
    """
    with _opened(path) as archive:
        _check_room(archive, directory)
        archive.extractall(directory)
    config = directory / MODEL_CONFIG
    for setting, value in ((_WORKER_COUNTS, workers), (_BATCH_SIZE, batch)):
        if value is not None and config.is_file():
            config.write_text(setting.sub(rf"\1: {value}", config.read_text()))


def workers(path: Path) -> int:
    """How many workers the archive at ``path`` asks for."""
    with _opened(path) as archive:
        found = (
            _WORKER_COUNTS.search(archive.read(MODEL_CONFIG).decode()) if MODEL_CONFIG in archive.namelist() else None
        )
    return int(found[0].partition(":")[2]) if found else 1


def unpacked(directory: Path) -> Manifest:
    """The manifest of an archive that was unpacked into ``directory``. Cheap: nothing else is checked."""
    with _blaming(str(directory)):
        try:
            return _parsed((directory / MANIFEST).read_bytes())
        except OSError as failure:
            raise _Damage(f"{MANIFEST} cannot be read ({failure.strerror})") from failure


class _Damage(Exception):
    """What is wrong with an archive; `_blaming` adds whose it is and what to do."""


@contextmanager
def _blaming(name: str) -> Iterator[None]:
    try:
        yield
    # Besides its own error, zipfile lets out all of these for one wrong byte or another.
    except (_Damage, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, OSError) as failure:
        if isinstance(failure, OSError) and failure.errno != errno.EINVAL:  # EINVAL is an offset gone wrong
            raise
        what = f"{name}: {failure}; rebuild it with `cutaway package`"
        raise error(Reason.ARCHIVE_CORRUPT, what) from failure


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    if not path.is_file():
        raise error(Reason.MODEL_NOT_FOUND, f"{path}: there is no such file")
    with _blaming(path.name), zipfile.ZipFile(path) as archive:
        _check_names(archive)
        yield archive


def _check_names(archive: zipfile.ZipFile) -> None:
    """Nothing may be unpacked elsewhere, or lead elsewhere."""
    for member in archive.infolist():
        path = PurePosixPath(member.filename.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or ":" in path.parts[0] or stat.S_ISLNK(member.external_attr >> 16):
            raise _Damage(f"{member.filename!r} leads out of the archive")


def _check_room(archive: zipfile.ZipFile, directory: Path) -> None:
    """What is packed small may be large; zipfile unpacks no more than each member says it has."""
    size = sum(member.file_size for member in archive.infolist())
    there = next(parent for parent in (directory, *directory.parents) if parent.exists())
    room = shutil.disk_usage(there).free
    if size > room:
        raise _Damage(f"it unpacks to {size} bytes, and there is room for {room}")


def _verified(archive: zipfile.ZipFile) -> Manifest:
    damaged = archive.testzip()
    if damaged is not None:
        raise _Damage(f"{damaged} is damaged (its checksum is wrong)")
    _check_present(archive, TORCHSERVE_MANIFEST, MANIFEST)
    served = _json(TORCHSERVE_MANIFEST, archive.read(TORCHSERVE_MANIFEST)).get("model")
    manifest = _parsed(archive.read(MANIFEST))
    # TorchServe goes by its own manifest: both must speak of one model.
    if not isinstance(served, dict) or served.get("modelName") != manifest.model:
        raise _Damage(f"{TORCHSERVE_MANIFEST} and {MANIFEST} do not name the same model")
    adapter = manifest.adapter.rpartition(":")[0]
    _check_present(archive, *([adapter] if adapter.endswith(".py") else []))
    if manifest.weights:
        _check_weights(archive, manifest)
    return manifest


def _check_present(archive: zipfile.ZipFile, *members: str) -> None:
    for member in members:
        if member not in archive.namelist():
            raise _Damage(f"{member} is missing")


def _check_weights(archive: zipfile.ZipFile, manifest: Manifest) -> None:
    _check_present(archive, manifest.weights)
    with archive.open(manifest.weights) as stream:
        if sha256(stream) != manifest.weights_sha256:
            raise _Damage(f"{manifest.weights} is not what was packaged (its SHA-256 is another)")


def _parsed(text: bytes) -> Manifest:
    values = _json(MANIFEST, text)
    schema, options = values.pop("schema", None), values.pop("options", None)
    if schema != SCHEMA:
        raise _Damage(f"{MANIFEST} has schema {schema!r}, and this Cutaway reads {SCHEMA}")
    texts = [*values.values(), *options.values()] if isinstance(options, dict) else [None]
    known = {*values, "options"} == {item.name for item in fields(Manifest)}
    if not known or not all(isinstance(text, str) for text in texts):
        raise _Damage(f"{MANIFEST} does not hold what it should")
    return Manifest(**values, options=options)


def _json(member: str, text: bytes) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except ValueError as failure:
        raise _Damage(f"{member} is not JSON ({failure})") from failure
    if not isinstance(values, dict):
        raise _Damage(f"{member} does not hold what it should")
    return values


def sha256(stream: IO[bytes]) -> str:
    """The SHA-256 of what is left in ``stream``, in hexadecimal."""
    digest = hashlib.sha256()
    while chunk := stream.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()
