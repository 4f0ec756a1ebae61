"""Targets by label, as targets by index."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.errors import CutawayError, Reason, at, error
from cutaway.requests import ClassIndex, ClassLabel, Target

_FEW = 20
"""Labels that an error lists."""


def by_index(model: InspectedModel, target: Target) -> Target:
    """Returns ``target``, a `ClassLabel` as the `ClassIndex` of the same classes; the same object for the same label.

    Raises:
        InvalidArgument: ``LABEL_NOT_FOUND``, with the position of the label.
    """
    if not isinstance(target, ClassLabel):
        return target
    if len(target.labels) == 1:  # only such requests are joined, and a comparison of objects is cheap
        return model.remembered(("label", target), lambda: _converted(model.labels, target))
    return _converted(model.labels, target)


def _converted(known: Sequence[str], target: ClassLabel) -> ClassIndex:
    with at("class_label.labels"):
        numbers = {label: number for number, label in enumerate(known)}
        for position, label in enumerate(target.labels):
            if label not in numbers or (len(numbers) < len(known) and list(known).count(label) > 1):
                raise _no_class(label, known, f"[{position}]")
    return ClassIndex(tuple(numbers[label] for label in target.labels), output=target.output)


def _no_class(label: str, known: Sequence[str], field: str) -> CutawayError:
    if not known:
        what = "the classes of this model have no labels; send their indices"
    elif label in known:
        indices = [str(number) for number, each in enumerate(known) if each == label]
        what = f"classes {', '.join(indices)} are all called {label!r:.80}; send the index of one"
    else:
        near = difflib.get_close_matches(label, known, n=3, cutoff=0.5)
        listed = ", ".join(known[:_FEW]) + (f" and {len(known) - _FEW} more" if len(known) > _FEW else "")
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"the labels are {listed}"
        what = f"no class is called {label!r:.80}; {hint}"
    return error(Reason.LABEL_NOT_FOUND, what, field)
