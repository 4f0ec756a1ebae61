"""Labels of classes, as far as they are known."""

from __future__ import annotations

from collections.abc import Sequence

from cutaway.results import InspectResult


def class_labels(result: InspectResult, labels: Sequence[str]) -> dict[int, str]:
    """Returns labels by class index: ``labels``, one for each class, and those of the predicted classes."""
    predicted = (*result.classes, *result.unedited_classes)
    return dict(enumerate(labels)) | {each.index: each.label for each in predicted if each.label}
