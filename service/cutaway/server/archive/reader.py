"""The reader of model archives: the `.mar` files made by ``cutaway package``.

An archive is a zip file that TorchServe can serve. Its file ``cutaway.json`` names the adapter, the weights and their
SHA-256. Weights are safetensors, never pickles.
"""

from __future__ import annotations

import encodings.cp437  # noqa: F401  # zipfile imports it for names, but not where no file can be opened
import errno
import hashlib
import json
import re
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import IO, Any

from cutaway.contract.errors import InvalidArgument, Reason, error
from cutaway.contract.json_text import read_json
from cutaway.contract.request_reader.files import parse_yaml
from cutaway.contract.results import ModelName

# Names and versions of models are safe in paths, in URLs and in TorchServe's configuration.

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}")
_VERSION = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def name_fault(name: str) -> str:
    """Returns what is wrong with a model's name; ``""`` if nothing is."""
    if _NAME.fullmatch(name) and ".." not in name:  # TorchServe takes .. for a path out of its model store
        return ""
    return f"{name[:200]!r} is no model name: a letter, then up to 127 letters, digits, _, . and -"


def version_fault(version: str) -> str:
    """Returns what is wrong with a version; ``""`` if nothing is."""
    if _VERSION.fullmatch(version):
        return ""
    return f"{version[:200]!r} is no version: up to 64 letters, digits, _, . and -"


MANIFEST = "cutaway.json"
LABELS = "labels"
"""The tensor of a data set with the class of each example."""
TORCHSERVE_MANIFEST = "MAR-INF/MANIFEST.json"
MODEL_CONFIG = "model-config.yaml"
SCHEMA = 1  # version of cutaway.json; readers refuse others
_WORKER_COUNTS = re.compile(r"(?m)^((?:min|max)Workers):.*$")
_BATCH_SIZE = re.compile(r"(?m)^(batchSize):.*$")


@dataclass(frozen=True)
class ArchiveManifest:
    """The content of ``cutaway.json``.

    Attributes:
        model: the name that the model is served under.
        version: its version.
        adapter: ``digits_adapter.py:Digits`` for a class in a file of the archive, or ``cutaway.adapters:ResNet`` for a
            class in an installed module.
        weights: the name of the safetensors file in the archive, ``""`` for none.
        weights_sha256: its SHA-256 in hexadecimal.
        options: keyword arguments of the adapter.
        random_weights: whether a model without weights may have random parameters.
    """

    model: str
    version: str
    adapter: str
    weights: str = ""
    weights_sha256: str = ""
    options: dict[str, str] = field(default_factory=dict)
    random_weights: bool = False

    @property
    def name(self) -> ModelName:
        """The model and its version."""
        return ModelName(self.model, self.version)


def read(path: Path) -> ArchiveManifest:
    """Checks every byte of the archive at ``path``; returns its manifest."""
    return read_with_digest(path)[0]


def read_with_digest(path: Path) -> tuple[ArchiveManifest, str]:
    """Does what `read` does; returns a digest of the members too."""
    with _open(path) as archive:
        digests = _digests(archive)
        return _verify(archive, digests), hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def unpack(
    path: Path,
    directory: Path,
    *,
    workers: int | None = None,
    batch: int | None = None,
    weights: Path | None = None,
) -> None:
    """Unpacks the archive at ``path`` into ``directory`` for TorchServe, and checks every byte.

    Args:
        path: the archive.
        directory: the directory.
        workers: if not None, replaces the archive's number of workers.
        batch: if not None, replaces its batch size.
        weights: the file with its weights, if there is one: then a link to it takes the place of another copy.
    """
    with _open(path) as archive:
        members = {member.filename: member for member in archive.infolist()}
        own = members.pop(_parse_manifest(archive.read(MANIFEST)).weights, None) if MANIFEST in members else None
        _check_room(path.name, [*members.values(), *([own] if own and not weights else [])], directory)
        archive.extractall(directory, members)
        if own and weights:
            (directory / own.filename).symlink_to(weights.resolve())
        elif own and not _aligned(archive, own, directory):
            archive.extract(own, directory)
    config = directory / MODEL_CONFIG
    for setting, value in ((_WORKER_COUNTS, workers), (_BATCH_SIZE, batch)):
        if value is not None and config.is_file():
            config.write_text(setting.sub(rf"\1: {value}", config.read_text()))


def pack(directory: Path, path: Path) -> None:
    """Packs what `unpack` wrote into ``directory`` as an archive again."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(directory.rglob("*")):
            archive.write(file, file.relative_to(directory))


def workers(path: Path) -> int:
    """Returns the number of workers in the archive at ``path``."""
    with _open(path) as archive:
        config = _config(archive)
    return int(config.get("minWorkers", config.get("maxWorkers", 1)))


def unpacked(directory: Path) -> ArchiveManifest:
    """Returns the manifest of an archive that was unpacked into ``directory``; checks nothing else."""
    with _reporting(str(directory)):
        try:
            return _parse_manifest((directory / MANIFEST).read_bytes())
        except OSError as failure:
            raise _Damage(f"{MANIFEST} cannot be read ({failure.strerror})") from failure


class _Damage(Exception):
    """A fault of an archive; `_reporting` adds the archive's name and the remedy."""


# zipfile and zlib raise these for damaged archives.
_WRONG_BYTES = (
    *(_Damage, zipfile.BadZipFile, zlib.error, struct.error, EOFError),
    *(ArithmeticError, RuntimeError, ValueError, OSError, InvalidArgument),
)


@contextmanager
def _reporting(name: str) -> Iterator[None]:
    """Raises errors of the block that a damaged archive causes as ``ARCHIVE_CORRUPT``, with ``name`` in the message.

    Other errors of the system, such as a full disk, pass unchanged.
    """
    try:
        yield
    except _WRONG_BYTES as failure:
        if isinstance(failure, OSError) and failure.errno != errno.EINVAL:  # EINVAL comes from a wrong offset
            raise
        why = failure.message if isinstance(failure, InvalidArgument) else failure
        what = f"{name}: {why}; rebuild it with `cutaway package`"
        raise error(Reason.ARCHIVE_CORRUPT, what) from failure


@contextmanager
def _open(path: Path) -> Iterator[zipfile.ZipFile]:
    """Opens the archive at ``path`` for the block, and refuses unsafe members; damage becomes ``ARCHIVE_CORRUPT``."""
    if not path.is_file():
        raise error(Reason.MODEL_NOT_FOUND, f"{path}: there is no such file")
    with _reporting(path.name), zipfile.ZipFile(path) as archive:
        _check_names(archive)
        yield archive


def _check_names(archive: zipfile.ZipFile) -> None:
    """Refuses members that would be unpacked outside of the directory, symbolic links, and rare kinds of compression,
    for which Python may have no decompressor."""
    for member in archive.infolist():
        path = PurePosixPath(member.filename.replace("\\", "/"))
        nameless = not path.parts or ".." in path.parts or ":" in path.parts[0]
        if nameless or path.is_absolute() or stat.S_ISLNK(member.external_attr >> 16):
            raise _Damage(f"{member.filename!r} points outside of the archive")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise _Damage(f"{member.filename!r} is neither deflated nor stored")


def _check_room(name: str, members: Iterable[zipfile.ZipInfo], directory: Path) -> None:
    """Refuses an archive that needs more than the free space; zipfile unpacks no more than the stated sizes."""
    size = sum(member.file_size for member in members)
    existing = next(parent for parent in (directory, *directory.parents) if parent.exists())
    room = shutil.disk_usage(existing).free
    if size > room:
        what = f"{name} unpacks to {size} bytes, and {room} are free in {existing}"
        raise error(Reason.BACKEND_UNAVAILABLE, f"{what}; free some, or set TMPDIR to a directory with more")


ALIGNMENT = 64
"""The bytes of which the address of a tensor is a multiple where PyTorch has allocated it."""

_LARGEST_HEAD = 100 << 20
"""The bytes of the largest head that safetensors reads."""

_PIECE = 1 << 20


def _aligned(archive: zipfile.ZipFile, member: zipfile.ZipInfo, directory: Path) -> bool:
    """Unpacks safetensors so that each tensor of whole cache lines begins at a multiple of `ALIGNMENT` in the file.

    Workers map the file, and the rounding of PyTorch's kernels depends on the alignment. Returns False, and writes
    nothing, for a member that is no complete safetensors file, or lies in a folder. The caller then unpacks such a
    member unchanged.
    """
    with archive.open(member) as source:
        length = int.from_bytes(source.read(8), "little")
        try:
            head = read_json(source.read(length)) if length <= _LARGEST_HEAD else None
            tensors = [value for name, value in head.items() if name != "__metadata__"]  # type: ignore[union-attr]
            old = sorted((*tensor["data_offsets"], number) for number, tensor in enumerate(tensors))
            stops = [0, *(stop for _, stop, _ in old)]
            is_whole = [start for start, _, _ in old] == stops[:-1] and 8 + length + stops[-1] == member.file_size
            if not is_whole or not all(isinstance(stop, int) for stop in stops) or "/" in member.filename:
                return False
        except (ValueError, TypeError, KeyError, AttributeError):
            return False
        stop = 0
        for start, end, number in sorted(old, key=lambda place: (place[1] - place[0]) % ALIGNMENT != 0):
            tensors[number]["data_offsets"] = [stop, stop := stop + end - start]
        text = json.dumps(head).encode()
        text += b" " * (-(8 + len(text)) % ALIGNMENT)
        with (directory / member.filename).open("wb") as target:
            target.write(len(text).to_bytes(8, "little") + text)
            for start, end, number in old:
                target.seek(8 + len(text) + tensors[number]["data_offsets"][0])
                while start < end:
                    start += target.write(source.read(min(_PIECE, end - start)))
            target.truncate(8 + len(text) + stop)
            source.read(1)  # at its end, the checksum is compared
    return True


def _verify(archive: zipfile.ZipFile, digests: Mapping[str, str]) -> ArchiveManifest:
    """Returns the manifest, after checks that both manifests, the adapter's file, settings and weights agree."""
    _check_present(archive, TORCHSERVE_MANIFEST, MANIFEST)
    served = _json(TORCHSERVE_MANIFEST, archive.read(TORCHSERVE_MANIFEST)).get("model")
    manifest = _parse_manifest(archive.read(MANIFEST))
    # TorchServe uses its own manifest: both must name one model.
    if not isinstance(served, dict) or served.get("modelName") != manifest.model:
        raise _Damage(f"{TORCHSERVE_MANIFEST} and {MANIFEST} do not name the same model")
    if served.get("requirementsFile"):
        raise _Damage("it asks for packages, which nobody installs: install them here, and leave its requirements out")
    adapter = manifest.adapter.rpartition(":")[0]
    _check_present(archive, *([adapter] if adapter.endswith(".py") else []))
    _config(archive)
    if manifest.weights:
        _check_present(archive, manifest.weights)
        if digests[manifest.weights] != manifest.weights_sha256:
            raise _Damage(f"{manifest.weights} is not the packaged file (its SHA-256 differs)")
    return manifest


def _digests(archive: zipfile.ZipFile) -> dict[str, str]:
    """Returns the SHA-256 of every member, which are all read once, to the end, where the checksum is."""
    found = {}
    for member in archive.infolist():
        try:
            with archive.open(member) as stream:
                found[member.filename] = sha256(stream)
        except zipfile.BadZipFile as failure:
            raise _Damage(f"{member.filename} is damaged (its checksum is wrong)") from failure
    return found


_LEAST = {"minWorkers": 1, "maxWorkers": 1, "batchSize": 1, "maxBatchDelay": 0, "responseTimeout": 1}
"""The settings of TorchServe that are whole numbers, and the smallest."""


def _config(archive: zipfile.ZipFile) -> dict[str, Any]:
    """Returns the TorchServe settings in the archive; raises `_Damage` for a wrong number in them.

    TorchServe itself reports no error for such a number, but waits for ever.
    """
    if MODEL_CONFIG not in archive.namelist():
        return {}
    config = parse_yaml(archive.read(MODEL_CONFIG).decode(), MODEL_CONFIG)
    for name, least in _LEAST.items():
        value = config.get(name, least)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 31:
            raise _Damage(f"{MODEL_CONFIG}: {name} is {value!r:.40}, and not a whole number from {least} on")
    if config.get("minWorkers", 1) > config.get("maxWorkers", 1 << 31):
        raise _Damage(f"{MODEL_CONFIG}: minWorkers is more than maxWorkers")
    return config


def _check_present(archive: zipfile.ZipFile, *members: str) -> None:
    for member in members:
        if member not in archive.namelist():
            raise _Damage(f"{member} is missing")


def _parse_manifest(text: bytes) -> ArchiveManifest:
    values = _json(MANIFEST, text)
    schema, options = values.pop("schema", None), values.pop("options", None)
    random_weights = values.pop("random_weights", False)  # archives of earlier versions do not have it
    if schema != SCHEMA:
        raise _Damage(f"{MANIFEST} has schema {schema!r}, and this Cutaway reads {SCHEMA}")
    texts = [*values.values(), *options.values()] if isinstance(options, dict) else [None]
    known = {*values, "options", "random_weights"} == {item.name for item in fields(ArchiveManifest)}
    if not known or not isinstance(random_weights, bool) or not all(isinstance(text, str) for text in texts):
        raise _Damage(f"{MANIFEST} does not have the fields of a manifest")
    manifest = ArchiveManifest(**values, options=options, random_weights=random_weights)
    if fault := name_fault(manifest.model) or version_fault(manifest.version):
        raise _Damage(f"{MANIFEST}: {fault}")
    return manifest


def _json(member: str, text: bytes) -> dict[str, Any]:
    try:
        values = read_json(text)
    except ValueError as failure:
        raise _Damage(f"{member} is not JSON ({failure})") from failure
    if not isinstance(values, dict):
        raise _Damage(f"{member} is not a JSON object")
    return values


def sha256(stream: IO[bytes]) -> str:
    """Returns the SHA-256 of the rest of ``stream``, in hexadecimal."""
    digest = hashlib.sha256()
    while chunk := stream.read(_PIECE):
        digest.update(chunk)
    return digest.hexdigest()
