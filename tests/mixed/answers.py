"""An answer as a flat table of arrays, so that it can be held against another one, name by name."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import cutaway as ca
from cutaway.tensors import Array
from tests.mixed.by_hand import Answer

RELATIVE = 1e-6
EXACT = ("predictions.", "unedited.", "captures.", "targets")
"""What the same computation brings: bit for bit. The rest is taken from other passes, or in another order."""


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


def verdicts(result: ca.InspectResult) -> set[str]:
    """What all the checks say."""
    return {check.verdict for attribution in result.attributions for check in attribution.checks}


def differences(found: Answer, expected: Answer) -> list[str]:
    """What is missing, what nobody asked for, and what is another number."""
    missing = [f"{name} is missing" for name in expected.keys() - found.keys()]
    extra = [f"{name} was not asked for" for name in found.keys() - expected.keys()]
    common = expected.keys() & found.keys()
    return missing + extra + [f"{name} differs" for name in common if not equal(name, found[name], expected[name])]


def equal(name: str, found: Array, expected: Array) -> bool:
    """Whether the two are the same to the bit, or where that cannot be, within 1e-6 of the largest magnitude."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if name.startswith(EXACT):
        return np.array_equal(found, expected)
    error = np.abs(found.astype(np.float64) - expected.astype(np.float64)).max(initial=0.0)
    return bool(error <= RELATIVE * np.abs(expected.astype(np.float64)).max(initial=0.0))
