"""Random edits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from torch import Tensor

import cutaway as ca
from cutaway.contract.requests import Edit
from tests.fuzz.arithmetic import chosen_indices
from tests.fuzz.surveying import POINTS, Asker


def edit(asker: Asker) -> Edit:
    """One change."""
    place, point = asker.place(), asker.pick(POINTS)
    found = asker.tensor(place, point)
    if found is None:  # it takes nothing
        place, point = place, "output"
        found = asker.tensor(place, point)
    assert found is not None
    call, path, tensor = found
    if not tensor.is_floating_point():
        point = point.removeprefix("grad_")
    batched = tensor.ndim > 0 and tensor.shape[0] == asker.survey.graph.batch
    rows = some_rows(asker) if batched and asker.sometimes() else ()
    shape = (len(rows), *tensor.shape[1:]) if rows else tuple(tensor.shape)
    slices = asker.slices(shape)
    part = tuple(map(len, chosen_indices(slices, shape)))
    where: dict[str, Any] = {"module": "", "op": place} if ":" in place else {"module": asker.name(place)}
    change = verb(asker, tensor, part, batched)
    alone = len(asker.survey.calls[place][call][point.endswith("input")]) == 1
    picky = bool(rows or slices) or type(change) in (
        *(ca.Add, ca.AddVector, ca.Replace, ca.Mix, ca.ClampDirection, ca.SwapDirections),
    )
    return replace(
        change,
        **where,
        at=point,
        call=call if asker.sometimes() else None,
        rows=rows,
        slices=slices,
        path=path if (picky or asker.sometimes()) and not (alone and asker.draw(st.booleans())) else "",
    )


def some_rows(asker: Asker) -> tuple[int, ...]:
    """Some rows, in any order."""
    batch = asker.survey.graph.batch
    return tuple(asker.draw(st.lists(st.integers(0, batch - 1), min_size=1, max_size=batch, unique=True)))


def verb(asker: Asker, tensor: Tensor, part: Sequence[int], batched: bool) -> Edit:
    """What is done to ``part`` of ``tensor``; where, somebody else says."""
    kinds = ["scale", "add number", "add", "clamp", *["mix", "mix"] * batched] if tensor.is_floating_point() else []
    kinds += ["vector"] * bool(kinds and part)
    kind = asker.pick([*kinds, "zero", "replace"])
    if kind == "scale":
        return ca.Scale("x", factor=asker.pick([0.0, 1.0, -1.0, 0.5, 2.0]))
    if kind == "add number":
        return ca.Add("x", addend=asker.pick([0.0, 1.0, -0.5]))
    if kind == "add":
        return ca.Add("x", addend=asker.array(asker.broadcast(part), tensor.dtype))
    if kind == "vector":
        vector = asker.array(part[-1:], tensor.dtype)
        low = asker.pick([None, -1.0, 0.0])
        return asker.pick([
            ca.AddVector("x", vector, scale=asker.pick([1.0, -0.5])),
            ca.ClampDirection("x", vector, minimum=low, maximum=asker.pick([0.3, 1.0, *[None] * (low is not None)])),
            ca.SwapDirections("x", vector, asker.array(part[-1:], tensor.dtype)),
        ])  # fmt: skip
    if kind == "clamp":
        low = asker.pick([None, -1.0, 0.0])
        return ca.Clamp("x", minimum=low, maximum=asker.pick([0.3, 1.0, *[None] * (low is not None)]))
    if kind == "mix":
        batch = asker.survey.graph.batch
        order = asker.draw(st.lists(st.integers(0, batch - 1), min_size=batch, max_size=batch))
        return ca.Mix("x", weight=asker.pick([0.0, 0.25, 0.7, 1.0]), permutation=tuple(order))
    return ca.Zero("x") if kind == "zero" else ca.Replace("x", tensor=asker.array(asker.broadcast(part), tensor.dtype))
