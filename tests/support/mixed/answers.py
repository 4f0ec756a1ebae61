"""An answer as a flat table of arrays, so that it can be held against another one, name by name."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

import cutaway as ca
from cutaway.contract.tensors import Array
from tests.support.digits import OPERATIONS
from tests.support.mixed.by_hand import Answer
from tests.support.rounding import rounding, within

EXACT = ("predictions.", "unedited.", "captures.", "targets")
"""What the same computation brings: bit for bit. The rest is taken from other passes, or in another order. In the
company of other requests it is another computation: a kernel may round otherwise where there are more rows."""


def flat(result: ca.InspectResult) -> Answer:
    """Every array of ``result`` by a name of its own."""
    return dict(_named(result))


def _named(result: ca.InspectResult) -> Iterator[tuple[str, Array]]:
    for kind in ("predictions", "unedited", "input_gradients", "parameter_gradients"):
        yield from ((f"{kind}.{name}", array) for name, array in getattr(result, kind).items())
    for kind in ("targets", "target_values"):
        if getattr(result, kind) is not None:
            yield kind, getattr(result, kind)
    for place, capture in result.captures.items():
        for number, call in enumerate(capture.calls):
            yield from _of_call(f"captures.{place}#{number}", call)
    for index, attribution in enumerate(result.attributions):
        (values,) = attribution.values.values()
        yield f"attributions[{index}]", values


def _of_call(name: str, call: ca.CapturedCall) -> Iterator[tuple[str, Array]]:
    for point, tensors in call.leaves.items():
        yield from ((f"{name}.{point}{path}", array) for path, array in tensors.items())
    for point, tensors in call.positions.items():
        yield from ((f"{name}.{point}{path} positions", array) for path, array in tensors.items())


def doubts(result: ca.InspectResult) -> set[str]:
    """What all the checks say, but for those that agree."""
    checks = (check for attribution in result.attributions for check in attribution.checks)
    return {f"{check.verdict}: {check.reason}" for check in checks if check.verdict != "AGREES"}


def differences(found: Answer, expected: Answer, *, company: bool = False) -> list[str]:
    """What is missing, what nobody asked for, and what is another number, where ``found`` was asked for alone or in
    company."""
    missing = [f"{name} is missing" for name in expected.keys() - found.keys()]
    extra = [f"{name} was not asked for" for name in found.keys() - expected.keys()]
    common = expected.keys() & found.keys()
    same = {name: equal(found[name], expected[name], exact=name.startswith(EXACT) and not company) for name in common}
    return missing + extra + [f"{name} differs" for name, it_is in same.items() if not it_is]


def equal(found: Array, expected: Array, *, exact: bool) -> bool:
    """Whether the two are the same to the bit, or where that cannot be, but for the rounding of float32 in as many
    operations as the digits network has: half numbers within the last of their bits."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if exact or not np.issubdtype(found.dtype, np.floating):
        return np.array_equal(found, expected)
    return within(found, expected, max(rounding(torch.float32, OPERATIONS), float(np.finfo(found.dtype).eps)))
