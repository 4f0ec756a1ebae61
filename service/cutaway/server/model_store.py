"""The model store: a directory of archives, some of which may not be servable."""

from __future__ import annotations

import errno
import itertools
import re
import shutil
from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from packaging.version import Version

from cutaway.client.transport import parse_model
from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.results import ArchiveState, ModelName, UnservedArchive
from cutaway.contract.values import near_names
from cutaway.server.archive import reader
from cutaway.server.archive.reader import ArchiveManifest
from cutaway.server.worker_protocol import ScratchDirectory


class Catalog:
    """The models of a gateway; it resolves the model name of a request.

    Args:
        served: models that accept calls.
        unserved: archives that are not served.
    """

    def __init__(self, served: Iterable[ModelName], unserved: Iterable[UnservedArchive] = ()) -> None:
        self._versions: dict[str, list[str]] = {}
        for name in sorted(served, key=lambda name: version_key(name.version)):
            self._versions.setdefault(name.model, []).append(name.version)
        self.unserved = tuple(sorted(unserved, key=lambda item: item.archive))

    def all(self) -> list[ModelName]:
        """Returns every served model in every version, sorted by name, then by version."""
        return [ModelName(model, version) for model in sorted(self._versions) for version in self._versions[model]]

    def ready(self) -> list[ModelName]:
        """Returns those of `all` that have answered; calls of the others wait."""
        loading = {(item.model, item.version) for item in self.unserved if not item.previous_serves}
        return [name for name in self.all() if (name.model, name.version) not in loading]

    def resolve(self, requested: str) -> ModelName:
        """Returns the model for ``digits`` or ``digits/versions/1.0``; without a version, the highest.

        Raises:
            NotFound: ``MODEL_NOT_FOUND``, ``VERSION_NOT_FOUND`` or ``MODEL_NOT_LOADED``.
            FailedPrecondition: ``MODEL_COMPILED``, ``MODEL_SCRIPTED``, ``MODEL_QUANTISED`` or ``WEIGHTS_MISSING``.
            InvalidArgument: ``INVALID_VALUE``, if ``requested`` is not a model name.
        """
        model, version = parse_model(requested)
        versions = self._versions.get(model)
        if versions is None or (version and version not in versions):
            raise self._missing(model, version)
        return ModelName(model, version or versions[-1])

    def _missing(self, model: str, version: str) -> CutawayError:
        for item in self.unserved:
            if item.model == model and version in ("", item.version):
                return error(_reason(item.why), f"{model!r} {item.version} could not be loaded: {item.why}", "model")
        if model in self._versions:
            served = ", ".join(self._versions[model])
            return error(Reason.VERSION_NOT_FOUND, f"{model!r} is served in {served}, not in {version}", "model")
        for item in self.unserved:
            if item.archive == f"{model}{_SUFFIX}":
                return error(Reason.MODEL_NOT_LOADED, f"{model!r} could not be loaded: {item.why}", "model")
        near = near_names(model, self._versions, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"served: {', '.join(sorted(self._versions)) or 'none'}"
        return error(Reason.MODEL_NOT_FOUND, f"no model {model!r}; {hint}", "model")


_TOLD_TO_CALLERS = (Reason.MODEL_COMPILED, Reason.MODEL_SCRIPTED, Reason.MODEL_QUANTISED, Reason.WEIGHTS_MISSING)


def _reason(why: str) -> Reason:
    """Returns the reason that a worker's log line begins with, if callers are told it; else ``MODEL_NOT_LOADED``."""
    return next((reason for reason in _TOLD_TO_CALLERS if why.startswith(reason)), Reason.MODEL_NOT_LOADED)


def version_key(version: str) -> tuple[Any, ...]:
    """Returns a sort key for versions: in the order of Python's packages (PEP 440) where they have their form, so that
    1.0rc1 is below 1.0 and v10 above v9; else below these, numbers by their size: 2024-09-30 is below 2024-10-01."""
    texts = re.split("([0-9]+)", version)
    natural = [(len(text.lstrip("0")), text.lstrip("0")) if place % 2 else text for place, text in enumerate(texts)]
    try:
        return 1, Version(version), natural
    except ValueError:  # InvalidVersion, or a number with more digits than Python converts
        return 0, natural


_SUFFIX = ".mar"
_NOT_OF_THE_FILE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


@dataclass
class ModelStore:
    """The archives of a directory.

    Attributes:
        archives: valid archives by the model and version in their manifests. The highest version of a model comes
            first: TorchServe takes it as the default.
        unserved: the others, with the reason.
    """

    archives: dict[ModelName, Path] = field(default_factory=dict)
    unserved: list[UnservedArchive] = field(default_factory=list)

    @property
    def catalog(self) -> Catalog:
        """The catalog of the models that are served, and of those that cannot be."""
        return Catalog(self.archives, self.unserved)

    @property
    def faults(self) -> list[str]:
        """The messages about archives that are not served."""
        return [item.message for item in self.unserved]

    def mark_broken(self, name: ModelName, why: str, state: ArchiveState = ArchiveState.FAILED) -> str:
        """Moves a model that does not load, because of ``why``, to `unserved`; returns the message for the operator."""
        path = self.archives.pop(name)
        self.unserved.append(UnservedArchive(path.name, name.model, name.version, state, why))
        return f"not served: {self.unserved[-1].message}"

    def require_models(self) -> None:
        """Raises ``MODEL_NOT_LOADED`` if no model is left."""
        if not self.archives:
            raise error(Reason.MODEL_NOT_LOADED, "no model can be served: " + "; ".join(self.faults))


def manifest_of(path: Path) -> ArchiveManifest:
    """Returns the manifest of an archive every byte of which is right; raises as `reader.read`, or an OSError."""
    return _verified(*identity_of(path))[0]


def digest_of(path: Path) -> str:
    """Returns a digest of an archive's members; raises as `manifest_of`."""
    return _verified(*identity_of(path))[1]


def identity_of(path: Path) -> tuple[Path, int, int, int]:
    """Returns what changes when a file does: its size, its time and its number beside ``path``; raises an OSError."""
    status = path.stat()
    return path, status.st_size, status.st_mtime_ns, status.st_ino


@lru_cache(maxsize=1024)
def _verified(path: Path, size: int, mtime_ns: int, inode: int) -> tuple[ArchiveManifest, str]:
    """Reads an archive whose bytes were not checked before: gigabytes of weights take seconds."""
    return reader.read_with_digest(path)


def archives_in(directory: Path) -> list[Path]:
    """Returns the archives in ``directory``, sorted; none if it does not exist.

    Raises:
        OSError: the directory cannot be read; `Path.glob` of Python 3.13 would return nothing.
    """
    return sorted(path for path in directory.iterdir() if path.suffix == _SUFFIX) if directory.is_dir() else []


def read_store(directory: Path) -> ModelStore:
    """Reads every archive in ``directory``, as `scan_store` does.

    Raises:
        OSError: this process can open no files at present, which says nothing of the archives.
        NotFound: ``MODEL_NOT_FOUND`` if there is no archive, ``MODEL_NOT_LOADED`` if none is valid.
    """
    store = scan_store(directory)
    if not store.archives and not store.unserved:
        what = f"{directory} holds no .mar archive" if directory.is_dir() else f"there is no directory {directory}"
        raise error(Reason.MODEL_NOT_FOUND, f"{what}; make one with `cutaway package`")
    store.require_models()
    return store


def scan_store(directory: Path) -> ModelStore:
    """Reads every archive in ``directory``; a damaged archive does not affect the others.

    Raises:
        OSError: this process can open no files at present, which says nothing of the archives.
    """
    store = ModelStore()
    for path in archives_in(directory):
        try:
            name = manifest_of(path).name
        except CutawayError as failure:
            store.unserved.append(UnservedArchive(path.name, "", "", ArchiveState.NOT_WHOLE, failure.message))
            continue
        except OSError as failure:
            if failure.errno in _NOT_OF_THE_FILE:
                raise
            why = f"{path.name} cannot be read ({failure.strerror})"
            store.unserved.append(UnservedArchive(path.name, "", "", ArchiveState.NOT_WHOLE, why))
            continue
        if name in store.archives:
            why = f"{path.name} is {name.model} {name.version}, which {store.archives[name].name} is already"
            store.unserved.append(UnservedArchive(path.name, "", "", ArchiveState.FAILED, why))
        else:
            store.archives[name] = path
    by_version = sorted(store.archives, key=lambda name: version_key(name.version), reverse=True)
    store.archives = {name: store.archives[name] for name in by_version}
    return store


# Unpacked copies of archives: what serves does not change or vanish with its file.


@dataclass(frozen=True, eq=False)
class Unpacked:
    """An archive as it was when it was unpacked. Two are equal only if they are the same copy.

    Attributes:
        path: the file that it was.
        modified_ns: the time of its last change, in nanoseconds.
        digest: of its members.
        directory: the copy; its name is a number, because names of files may mean something to other programs.
        workers: the number of workers that the archive asks for.
        size: the size of the file, in bytes.
    """

    path: Path
    modified_ns: int
    digest: str
    directory: Path
    workers: int
    size: int


class UnpackedArchives:
    """The copies of a server; they are deleted by `keep` and `close`.

    Attributes:
        root: the directory with all of them.
    """

    def __init__(self, workers: int | None) -> None:
        """``workers``, if not None, replaces the archives' own numbers of workers."""
        self._scratch = ScratchDirectory()
        self.root = Path(self._scratch.name)
        self._workers = workers
        self._numbers = itertools.count(1)
        self._known: list[Unpacked] = []

    def of(self, name: ModelName, path: Path, failed: Container[Unpacked]) -> Unpacked:
        """Returns a copy of the archive of model ``name`` at ``path``: the same while the file's content is, but for
        one in ``failed``, which may load if the file is put there again.

        Raises:
            CutawayError: ``ARCHIVE_CORRUPT``, also if the file changes meanwhile; ``BACKEND_UNAVAILABLE`` if there is
                no room for it.
        """
        identity = _, size, modified_ns, _ = identity_of(path)
        digest = digest_of(path)
        for each in self._known:
            if (each.path, each.digest) == (path, digest) and (each not in failed or each.modified_ns == modified_ns):
                return each
        directory = self.root / str(next(self._numbers))
        try:
            workers = self._workers or reader.workers(path)
            # Batches form in the gateway, and TorchServe passes on what it gets.
            reader.unpack(path, directory, workers=self._workers, batch=1)
            if identity_of(path) != identity or manifest_of(path).name != name:
                raise error(Reason.ARCHIVE_CORRUPT, f"{path.name} is being written")
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        self._known.append(Unpacked(path, modified_ns, digest, directory, workers, size))
        return self._known[-1]

    def keep(self, used: Collection[Unpacked]) -> None:
        """Deletes the copies that are not in ``used``."""
        for unpacked in [*self._known]:
            if unpacked not in used:
                self._known.remove(unpacked)
                shutil.rmtree(unpacked.directory, ignore_errors=True)

    def close(self) -> None:
        """Deletes all copies."""
        self._scratch.cleanup()
