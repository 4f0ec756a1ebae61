"""Names of features and classes, as far as they are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cutaway.results import InspectResult


@dataclass(frozen=True)
class Names:
    """Names that pictures and tables show.

    Attributes:
        features: by input name, a name for each element of an example.
        classes: a label for each class; may be empty.
    """

    features: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    classes: tuple[str, ...] = ()

    def of_features(self, name: str, count: int) -> tuple[str, ...] | None:
        """Returns the names of the ``count`` features of the input ``name``, or None if they are not known."""
        names = self.features.get(name, ())
        return names if len(names) == count else None

    def of_classes(self, result: InspectResult) -> dict[int, str]:
        """Returns the known labels by class index: those given, and those of the predicted classes."""
        given = dict(enumerate(self.classes))
        return given | {each.index: each.label for each in (*result.classes, *result.unedited_classes) if each.label}
