"""The catalog of served models: resolves the model name of a request."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

from cutaway.client.transport import parse_model
from cutaway.errors import CutawayError, Reason, error
from cutaway.results import ModelName


class Catalog:
    """The models of one gateway.

    Args:
        served: models that accept calls.
        broken: models that did not load, with the reason.
        unreadable: archives whose manifest cannot be read: the file's stem, with the reason.
    """

    def __init__(
        self,
        served: Iterable[ModelName],
        broken: Mapping[ModelName, str] | None = None,
        unreadable: Mapping[str, str] | None = None,
    ) -> None:
        self._versions: dict[str, list[str]] = {}
        for name in served:
            self._versions.setdefault(name.model, []).append(name.version)
        for versions in self._versions.values():
            versions.sort(key=version_key)
        self._broken = dict(broken or {})
        self._unreadable = dict(unreadable or {})

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


def version_key(version: str) -> list[tuple[int, str]]:
    """Returns a sort key for versions: 1.10 is above 1.9, and numbers, of any length, are above words."""
    parts = re.split(r"[._-]", version)
    numbers = {part: part.lstrip("0") for part in parts if re.fullmatch("[0-9]+", part)}
    return [(1 + len(numbers[part]), numbers[part]) if part in numbers else (0, part) for part in parts]
