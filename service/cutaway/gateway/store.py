"""A directory of archives: which models it holds, and which of them cannot be served."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cutaway import archive
from cutaway.errors import CutawayError, Reason, error
from cutaway.results import ModelName


@dataclass
class Store:
    """What a model store holds.

    Attributes:
        archives: the sound ones, by the model and version that they say they are.
        broken: by model name, what is wrong with the others.
    """

    archives: dict[ModelName, Path] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)

    def give_up(self, name: ModelName, why: str) -> None:
        """Stop counting on a model that will not load."""
        del self.archives[name]
        self.broken[name.model] = why


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
            store.broken[path.stem] = damage.message
            continue
        name = ModelName(manifest.model, manifest.version)
        if name in store.archives:
            store.broken[path.stem] = f"{path.name} is {name.model} {name.version}, as {store.archives[name].name} is"
            continue
        store.archives[name] = path
    if not store.archives:
        raise error(Reason.MODEL_NOT_LOADED if store.broken else Reason.MODEL_NOT_FOUND, _nothing(directory, store))
    return store


def _nothing(directory: Path, store: Store) -> str:
    if store.broken:
        return "no model can be served: " + "; ".join(store.broken.values())
    where = f"{directory} holds no .mar archive" if directory.is_dir() else f"there is no directory {directory}"
    return f"{where}; make one with `cutaway package`"
