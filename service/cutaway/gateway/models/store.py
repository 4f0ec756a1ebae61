"""The model store: a directory of archives, some of which may not be servable."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from cutaway.archive import reader
from cutaway.archive.reader import Manifest
from cutaway.errors import CutawayError, Reason, error
from cutaway.gateway.models.catalog import Catalog, version_key
from cutaway.results import ModelName

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
        """One message for each archive that is not served."""
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
def _verified(path: Path, size: int, mtime_ns: int, inode: int) -> Manifest:
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
