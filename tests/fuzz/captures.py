"""Random captures."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from torch import Tensor

import cutaway as ca
from cutaway.contract.requests import Capture, Reduction, TopElements
from tests.fuzz import places
from tests.fuzz.surveying import POINTS, Asker

SOME_POINTS = (
    *((point,) for point in POINTS), POINTS, ("output", "grad_output"), ("input", "grad_input"),
    ("grad_input", "grad_output"),
)  # fmt: skip


def capture(asker: Asker) -> Capture:
    """One wish."""
    kind = asker.pick(
        ["op", "module", "op", "module", "op", "module", "glob", "glob", "op glob", "op glob", "parameter", "parameter"]
    )
    if kind == "parameter":
        return parameter(asker)
    if kind in ("glob", "op glob"):
        return globbed(asker, kind)
    place = asker.place()
    points = asker.pick(SOME_POINTS)
    where: dict[str, Any] = {"op": place} if ":" in place else {"module": asker.name(place)}
    found = asker.tensor(place, points[0])
    if found is None:
        return Capture(**where, at=tuple(point for point in points if "output" in point) or ("output",))
    call, path, tensor = found
    if not tensor.is_floating_point():
        points = (points[0].removeprefix("grad_"),)
    return Capture(
        **where,
        at=points,
        call=call if asker.sometimes() else None,
        path=path if len(points) == 1 and asker.sometimes() else "",
        slices=asker.slices(tensor.shape),
        reduce=reduction(asker, tensor, batched=True) if asker.sometimes() else None,
        data_type="float32" if asker.sometimes() else "",
    )


def globbed(asker: Asker, kind: str) -> Capture:
    """Several places at once."""
    points = asker.pick(SOME_POINTS)
    call = asker.pick([None] * 6 + [0, 1])
    if kind == "glob":
        parts = [name for name in asker.survey.calls if name and ":" not in name] or ["**"]
        name = asker.pick(parts)
        return Capture(asker.pick(["**", "*", f"{name[:2]}*", f"**{name[-1]}", f"{name[:-1]}?"]), at=points, call=call)
    address = asker.pick([name for name in asker.survey.calls if ":" in name] or [":none#0"])
    module, _, rest = address.rpartition(":")
    name = rest.partition("#")[0]
    globs = ["**:*#*", f"**:{name}#*", f"*:{name}#?", f"{module}:*#0", ":*#*"]
    return Capture(op=asker.pick(globs), at=points, call=call)


def parameter(asker: Asker) -> Capture:
    """The gradient at a parameter, or at several."""
    names = list(places.parameters(asker.survey.graph, asker.survey.weights))
    if not names:
        return Capture("**")
    name = asker.pick(names)
    if asker.sometimes():
        return Capture(parameter=asker.pick(["**", "*", "*.weight", f"{name[:3]}**"]))
    own = places.parameters(asker.survey.graph, asker.survey.weights)[name]
    weight = asker.survey.weights[own]
    reduce = reduction(asker, weight, batched=False) if asker.sometimes() else None
    return Capture(
        parameter=name,
        slices=asker.slices(weight.shape),
        reduce=None if isinstance(reduce, TopElements) else reduce,
    )


def reduction(asker: Asker, tensor: Tensor, batched: bool) -> Reduction | None:
    """One that fits ``tensor``."""
    axes = list(range(int(batched), tensor.ndim))
    if not axes:
        return None
    if asker.draw(st.booleans()):
        axis = asker.pick(axes)
        return TopElements(asker.draw(st.integers(1, tensor.shape[axis])), asker.pick([axis, axis - tensor.ndim]))
    some = asker.draw(st.lists(st.sampled_from(axes), min_size=1, max_size=2, unique=True))
    kind = asker.pick([ca.Mean, ca.Max, ca.Norm] if tensor.is_floating_point() else [ca.Max])
    return kind(tuple(asker.pick([axis, axis - tensor.ndim]) for axis in some))
