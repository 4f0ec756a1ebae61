"""The model store: a directory of archives, some of which may not be servable."""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from packaging.version import Version

from cutaway.client.transport import parse_model
from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.results import ModelName
from cutaway.server.archive import reader
from cutaway.server.archive.reader import ArchiveManifest


class Catalog:
    """The models of a gateway; it resolves the model name of a request.

    Args:
        served: models that accept calls.
        broken: models that did not load, with the reason.
        unreadable: archives whose manifest cannot be read: the file's stem, with the reason.
    """

    def __init__(
        self, served: Iterable[ModelName], broken: Mapping[ModelName, str] = {}, unreadable: Mapping[str, str] = {}
    ) -> None:
        self._versions: dict[str, list[str]] = {}
        for name in sorted(served, key=lambda name: version_key(name.version)):
            self._versions.setdefault(name.model, []).append(name.version)
        self._broken, self._unreadable = dict(broken), dict(unreadable)

    def all(self) -> list[ModelName]:
        """Returns every served model in every version, sorted by name, then by version."""
        return [ModelName(model, version) for model in sorted(self._versions) for version in self._versions[model]]

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
        for name, why in self._broken.items():
            if name.model == model and version in ("", name.version):
                return error(_reason(why), f"{model!r} {name.version} could not be loaded: {why}", "model")
        if model in self._versions:
            served = ", ".join(self._versions[model])
            return error(Reason.VERSION_NOT_FOUND, f"{model!r} is served in {served}, not in {version}", "model")
        if model in self._unreadable:
            return error(Reason.MODEL_NOT_LOADED, f"{model!r} could not be loaded: {self._unreadable[model]}", "model")
        near = difflib.get_close_matches(model, self._versions, n=1)
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


_NOT_OF_THE_FILE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


@dataclass
class ModelStore:
    """The archives of a directory.

    Attributes:
        archives: valid archives by the model and version in their manifests. The highest version of a model comes
            first: TorchServe takes it as the default.
        broken: models that do not load, with the reason.
        unreadable: archives whose manifest cannot be read: the file's stem, with the reason.
    """

    archives: dict[ModelName, Path] = field(default_factory=dict)
    broken: dict[ModelName, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)

    @property
    def catalog(self) -> Catalog:
        """The catalog of the models that are served, and of those that cannot be."""
        return Catalog(self.archives, self.broken, self.unreadable)

    @property
    def faults(self) -> list[str]:
        """The messages about archives that are not served."""
        loading = [f"{name.model} {name.version}: {why}" for name, why in self.broken.items()]
        return [*self.unreadable.values(), *loading]

    def mark_broken(self, name: ModelName, why: str) -> str:
        """Lists a model that does not load, because of ``why``, in `broken`; returns the message for the operator."""
        del self.archives[name]
        self.broken[name] = why
        return f"not served: {name.model} {name.version}: {why}"

    def require_models(self) -> None:
        """Raises ``MODEL_NOT_LOADED`` if no model is left."""
        if not self.archives:
            raise error(Reason.MODEL_NOT_LOADED, "no model can be served: " + "; ".join(self.faults))


@lru_cache(maxsize=1024)
def _verified(path: Path, size: int, mtime_ns: int, inode: int) -> ArchiveManifest:
    """Reads an archive whose bytes were not checked before: gigabytes of weights take seconds."""
    return reader.read(path)


def archives_in(directory: Path) -> list[Path]:
    """Returns the archives in ``directory``, sorted; none if it does not exist.

    Raises:
        OSError: the directory cannot be read; `Path.glob` of Python 3.13 would return nothing.
    """
    return sorted(path for path in directory.iterdir() if path.suffix == ".mar") if directory.is_dir() else []


def read_store(directory: Path) -> ModelStore:
    """Reads every archive in ``directory``; a damaged archive does not affect the others.

    Raises:
        OSError: this process can open no files at present, which says nothing of the archives.
        NotFound: ``MODEL_NOT_FOUND`` if there is no archive, ``MODEL_NOT_LOADED`` if none is valid.
    """
    store = ModelStore()
    for path in archives_in(directory):
        try:
            status = path.stat()
            manifest = _verified(path, status.st_size, status.st_mtime_ns, status.st_ino)
        except CutawayError as failure:
            store.unreadable[path.stem] = failure.message
            continue
        except OSError as failure:
            if failure.errno in _NOT_OF_THE_FILE:
                raise
            store.unreadable[path.stem] = f"{path.name} cannot be read ({failure.strerror})"
            continue
        name = ModelName(manifest.model, manifest.version)
        if name in store.archives:
            first = store.archives[name].name
            store.unreadable[path.stem] = f"{path.name} is {name.model} {name.version}, which {first} is already"
        else:
            store.archives[name] = path
    if not store.archives and not store.unreadable:
        what = f"{directory} holds no .mar archive" if directory.is_dir() else f"there is no directory {directory}"
        raise error(Reason.MODEL_NOT_FOUND, f"{what}; make one with `cutaway package`")
    store.require_models()
    by_version = sorted(store.archives, key=lambda name: version_key(name.version), reverse=True)
    store.archives = {name: store.archives[name] for name in by_version}
    return store
