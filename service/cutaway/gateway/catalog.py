"""Which models are served, and which of them a caller means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

from cutaway.errors import Reason, error
from cutaway.results import ModelName


class Catalog:
    """The models behind the front door.

    Args:
        served: those that answer.
        broken: those that were found but could not be loaded: the model's name to what is wrong.
    """

    def __init__(self, served: Iterable[ModelName], broken: Mapping[str, str] | None = None) -> None:
        self._versions: dict[str, list[str]] = {}
        for name in served:
            self._versions.setdefault(name.model, []).append(name.version)
        for versions in self._versions.values():
            versions.sort(key=_version_key)
        self._broken = dict(broken or {})

    def all(self) -> list[ModelName]:
        """Every model in every version, by name, then by version."""
        return [ModelName(model, version) for model in sorted(self._versions) for version in self._versions[model]]

    def resolve(self, wanted: str) -> ModelName:
        """The model that ``digits`` or ``digits/versions/1.0`` names; without a version, the highest.

        Raises:
            NotFound: ``MODEL_NOT_FOUND``, ``VERSION_NOT_FOUND`` or ``MODEL_NOT_LOADED``.
            InvalidArgument: ``INVALID_VALUE``, where ``wanted`` is no model name at all.
        """
        parsed = re.fullmatch(r"(?:models/)?([^/]+)(?:/versions/([^/]+))?", wanted)
        if parsed is None:
            raise error(Reason.INVALID_VALUE, f"{wanted!r} is not of the form NAME or NAME/versions/VERSION", "model")
        model, version = parsed.groups()
        versions = self._versions.get(model)
        if versions is None:
            raise self._unknown(model)
        if version is not None and version not in versions:
            raise error(
                Reason.VERSION_NOT_FOUND, f"{model!r} is served in {', '.join(versions)}, not in {version}", "model"
            )
        return ModelName(model, version or versions[-1])

    def _unknown(self, model: str) -> Exception:
        if model in self._broken:
            return error(Reason.MODEL_NOT_LOADED, f"{model!r} could not be loaded: {self._broken[model]}", "model")
        near = difflib.get_close_matches(model, self._versions, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"served: {', '.join(sorted(self._versions)) or 'none'}"
        return error(Reason.MODEL_NOT_FOUND, f"no model {model!r}; {hint}", "model")


def _version_key(version: str) -> list[tuple[int, int | str]]:
    # 1.10 is above 1.9, and numbers are above words.
    parts = re.split(r"[._-]", version)
    return [(1, int(part)) if part.isdigit() else (0, part) for part in parts]
