"""Questions that cannot be answered: one mistake put into a good one, of every kind that has a reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

import cutaway as ca
from tests.fuzz.captures import capture
from tests.fuzz.edits import edit
from tests.fuzz.surveying import Asker

Wrong: TypeAlias = Mapping[str, Any]
Mistake: TypeAlias = Callable[[Asker, ca.InspectRequest], ca.InspectRequest]


def _captured(wrong: Wrong) -> Mistake:
    """A capture, and in one thing it is wrong."""

    def mistake(asker: Asker, request: ca.InspectRequest) -> ca.InspectRequest:
        asked = capture(asker)
        if "module" in wrong or "op" in wrong or "parameter" in wrong:
            asked = replace(asked, module="", op="", parameter="")
        return replace(request, captures=(*request.captures[:1], replace(asked, **wrong)))

    return mistake


def _edited(wrong: Wrong) -> Mistake:
    """An edit, and in one thing it is wrong."""

    def mistake(asker: Asker, request: ca.InspectRequest) -> ca.InspectRequest:
        change = edit(asker)
        if "module" in wrong or "op" in wrong:
            change = replace(change, module="", op="")
        return replace(request, edits=(*request.edits, replace(change, **wrong)))

    return mistake


def _verb(make: Callable[..., ca.Edit]) -> Mistake:
    """Another verb where a good one was."""

    def mistake(asker: Asker, request: ca.InspectRequest) -> ca.InspectRequest:
        at = edit(asker)
        change = make(at.module, at.at, op=at.op, path=at.path)
        return replace(request, edits=(*request.edits, change))

    return mistake


def _aimed(target: ca.Target) -> Mistake:
    return lambda _, request: replace(request, target=target)


def _rooted(names: tuple[str, ...]) -> Mistake:
    return lambda _, request: replace(request, input_gradients=names)


def _twice(asker: Asker, request: ca.InspectRequest) -> ca.InspectRequest:
    """One place captured in two ways."""
    asked = capture(asker)
    other = replace(asked, **asker.pick([{"call": 0}, {"data_type": "float32"}, {"slices": (ca.Slice(0, 0, 1),)}]))
    if asked.op and asker.rarely():
        other = replace(other, op="**:*#*")
    return replace(request, captures=(asked, other))


CAPTURES: tuple[Wrong, ...] = (
    {"module": "nowhere"}, {"module": "zz*"}, {"module": ""}, {"op": ":nothing#0"}, {"op": "relu"},
    {"op": "nowhere:relu#0"}, {"op": "**:nothing#*"}, {"op": "**relu*"}, {"op": "**"}, {"op": ":re?u"},
    {"parameter": "weightless"}, {"parameter": "zz*"}, {"call": 99}, {"path": "[7]"}, {"path": ".x"},
    {"slices": (ca.Slice(9),)}, {"slices": (ca.Slice(0, 0, 99),)}, {"slices": (ca.Slice(0, 1, 1),)},
    {"slices": (ca.Slice(0), ca.Slice(0))}, {"slices": (ca.Slice(-1, 0, 1), ca.Slice(-1, 0, 1))},
    {"slices": (ca.Slice(0, -99),)}, {"slices": (ca.Slice(0, indices=(0, 99)),)},
    {"slices": (ca.Slice(0, indices=(0, 0)),)}, {"slices": (ca.Slice(0, 0, indices=(0,)),)},
    {"reduce": ca.Mean((0,))}, {"reduce": ca.Max((9,))}, {"reduce": ca.Norm((-1, -1))},
    {"reduce": ca.Mean((-1,))}, {"reduce": ca.TopElements(99)}, {"reduce": ca.TopElements(1, 0)},
    {"reduce": ca.TopElements(1)},
)  # fmt: skip

EDITS: tuple[Wrong, ...] = (
    {"module": "nowhere"}, {"module": ""}, {"module": "*"}, {"op": "**:*#*"}, {"op": "relu"}, {"op": ":nothing#0"},
    {"op": "nowhere:relu#0"}, {"call": 99}, {"path": "[7]"}, {"rows": (99,)}, {"rows": (0,)},
    {"slices": (ca.Slice(9),)}, {"slices": (ca.Slice(0, 0, 99),)}, {"slices": (ca.Slice(0), ca.Slice(0))},
)  # fmt: skip

EDIT_KINDS: tuple[Callable[..., ca.Edit], ...] = (
    partial(ca.Mix, weight=0.5, permutation=(1, 2, 3)),
    partial(ca.Mix, weight=0.5, permutation=(0,)),
    partial(ca.Add, addend=np.ones((7, 7, 7, 7))),
    partial(ca.Replace, tensor=np.ones(7)),
    partial(ca.Replace, tensor=np.ones(1, dtype=np.int64)),
    partial(ca.Scale, factor=2.0),
)

TARGETS: tuple[ca.Target, ...] = (
    ca.OutputSum(output="elsewhere"), ca.ClassIndex((99,)), ca.ClassIndex((0,) * 9), ca.ClassIndex((-1,)), ca.TopK(99),
    ca.TopK(0), ca.CrossEntropy((0,) * 7), ca.CrossEntropy((99,)), ca.MultiIndex(((0, 0, 0, 0),)),
    ca.MultiIndex(((99,),)), ca.Cotangent(np.ones(7)), ca.Neuron("nowhere", (0,)), ca.Neuron("", (0,)), ca.TopK(1),
    ca.ClassIndex((0,)),
)  # fmt: skip

MISTAKES: tuple[Mistake, ...] = (
    *map(_captured, CAPTURES),
    *map(_edited, EDITS),
    *map(_verb, EDIT_KINDS),
    *map(_aimed, TARGETS),
    *map(_rooted, [("nowhere",), ("ids",), ("x",), ()]),
    *[_twice] * 4,
)
