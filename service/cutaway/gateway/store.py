"""A directory of archives: which models it holds, and which of them cannot be served."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cutaway import archive
from cutaway.errors import CutawayError, Reason, error
from cutaway.gateway.catalog import Catalog, version_key
from cutaway.results import ModelName


@dataclass
class Store:
    """What a model store holds.

    Attributes:
        archives: the sound ones, by the model and version that they say they are; of several versions of a model the
            highest comes first, which is the one that TorchServe takes for its default.
        broken: models that will not load, and why.
        unreadable: files that do not say what they hold, by their stem, and why.
    """

    archives: dict[ModelName, Path] = field(default_factory=dict)
    broken: dict[ModelName, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)

    @property
    def catalog(self) -> Catalog:
        """What can be asked for, and why the rest cannot."""
        return Catalog(self.archives, self.broken, self.unreadable)

    @property
    def faults(self) -> list[str]:
        """Everything that keeps a model of this store from being served."""
        loading = [f"{name.model} {name.version}: {why}" for name, why in self.broken.items()]
        return [*self.unreadable.values(), *loading]

    def give_up(self, name: ModelName, why: str) -> str:
        """Stop counting on a model that will not load; what the operator is told."""
        del self.archives[name]
        self.broken[name] = why
        return f"not served: {name.model} {name.version}: {why}"

    def refuse_none(self) -> None:
        """Raise ``MODEL_NOT_LOADED`` where no model is left."""
        if not self.archives:
            raise error(Reason.MODEL_NOT_LOADED, "no model could be loaded: " + "; ".join(self.faults))


def look_into(directory: Path) -> Store:
    """Read every archive in ``directory``. A damaged one costs the others nothing.

    Raises:
        NotFound: ``MODEL_NOT_FOUND`` where there is none, ``MODEL_NOT_LOADED`` where not one can be served.
    """
    store = Store()
    for path in sorted(directory.glob("*.mar")):
        try:
            manifest = archive.read(path)
        except CutawayError as damage:
            store.unreadable[path.stem] = damage.message
            continue
        name = ModelName(manifest.model, manifest.version)
        if name in store.archives:
            twin = store.archives[name].name
            store.unreadable[path.stem] = f"{path.name} is {name.model} {name.version}, as {twin} is"
            continue
        store.archives[name] = path
    if not store.archives:
        raise error(Reason.MODEL_NOT_LOADED if store.unreadable else Reason.MODEL_NOT_FOUND, _nothing(directory, store))
    by_version = sorted(store.archives, key=lambda name: version_key(name.version), reverse=True)
    store.archives = {name: store.archives[name] for name in by_version}
    return store


def _nothing(directory: Path, store: Store) -> str:
    if store.unreadable:
        return "no model can be served: " + "; ".join(store.faults)
    where = f"{directory} holds no .mar archive" if directory.is_dir() else f"there is no directory {directory}"
    return f"{where}; make one with `cutaway package`"
