"""Finds the axis of each tensor that has the rows of the batch.

The same row runs in batches of two sizes, and the axis that grows with them is that of the rows. It need not be axis
0: a recurrent network may run ``[time, batch]``, and its state is ``[layers, batch, ...]``. The shapes of one batch
cannot tell where there are as many time steps as rows. Both passes look at all modules, so that no later capture of one
waits for more.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Any

import torch

from cutaway.contract.errors import DeadlineExceeded
from cutaway.contract.requests import Point
from cutaway.engine.hooks.capture_spec import ShapeSpec
from cutaway.engine.hooks.hook_site import PlaceInSite, RowAxes
from cutaway.engine.hooks.observe import observing
from cutaway.engine.model.inspected_model import Inputs, InspectedModel
from cutaway.engine.model.proofs import text_of

_SIZES = ((1, 2), (2, 3))
"""The batch sizes; the second where a model takes no single row, or drops the axes of size 1."""

_VALUES = {Point.INPUT: ShapeSpec(), Point.OUTPUT: ShapeSpec()}


def row_axes(model: InspectedModel, inputs: Inputs, sites: Collection[str] = ()) -> RowAxes:
    """Returns which axes have the rows, in the model's outputs, at all modules and at ``sites``.

    The first call for a layout of inputs, or for an operator, runs passes, which no request counts. Hooks of the caller
    must not be registered meanwhile.

    Args:
        model: the model, in a session.
        inputs: a batch; other inputs with the same `InspectedModel.layout_of` share the result.
        sites: module names, operator addresses or globs of these.

    Raises:
        DeadlineExceeded: the caller no longer waits.
    """
    known = known_row_axes(model, inputs)
    if known.tested is None or not known.tested.issuperset(sites):
        untested = {*sites, *model.tree.modules} - (known.tested or set())
        first = {name: tensor[:1] for name, tensor in inputs.items()}
        with torch.no_grad(), model.unrecorded():
            model.proofs.run(lambda: _test(model, first, untested, known))
        known.tested = (known.tested or set()) | {*sites} | (untested & known.sites.keys())  # others may run later
        keep_axes(model, inputs, known)
    return known


def known_row_axes(model: InspectedModel, inputs: Inputs) -> RowAxes:
    """Returns what `row_axes` has found so far, here or in another process, and runs nothing: for passes of edited
    models, whose edits are of the request's own rows."""
    key = _key(model, inputs)
    return model.remembered(key, lambda: read_axes(model.proofs.axes.get(text_of(key))))


def keep_axes(model: InspectedModel, inputs: Inputs, known: RowAxes) -> None:
    """Keeps what is ``known`` for other processes."""
    if not model.has_arguments:  # of which there is no end
        model.proofs.axes[text_of(_key(model, inputs))] = axes_json(known)


def _key(model: InspectedModel, inputs: Inputs) -> Hashable:
    return "row axes", model.layout_of(inputs)


def _test(model: InspectedModel, row: Inputs, sites: Collection[str], known: RowAxes) -> None:
    """Adds what passes of two sizes show to what is ``known``."""
    for sizes in _SIZES:
        try:
            small, large = (_shapes(model, row, size, sites) for size in sizes)
        except DeadlineExceeded:
            raise
        except Exception:  # a model that takes other batch sizes only, or whose second row has no memory
            continue
        same = [place for place, shape in large.items() if place in small and len(small[place]) == len(shape)]
        for site, place in same:
            axes: dict[Any, int | None] = known.outputs if site is None else known.sites.setdefault(site, {})
            axes.setdefault(place, _growing(small[site, place], large[site, place], sizes))
        if len(same) == len(large):
            break


def _shapes(
    model: InspectedModel, row: Inputs, size: int, sites: Collection[str]
) -> dict[tuple[str | None, PlaceInSite | str], torch.Size]:
    """Returns the shapes of tensors in a pass of ``size`` equal rows: by site and place, and by output of the model."""
    with observing(model.tree, dict.fromkeys(sites, _VALUES)) as seen, seen.forward():
        outputs = model.run({name: tensor.repeat(size, *[1] * (tensor.ndim - 1)) for name, tensor in row.items()})
    shapes: dict[tuple[str | None, PlaceInSite | str], torch.Size] = {
        (None, name): output.shape for name, output in outputs.items()
    }
    for site, calls in seen.calls.items():
        for number, call in enumerate(calls):
            parts = ((point, path, part) for point, path, part in call.entries() if part is not None)
            shapes |= {(site, (point, path, number)): part.values.shape for point, path, part in parts}
    return shapes


def _growing(small: torch.Size, large: torch.Size, sizes: tuple[int, int]) -> int | None:
    """Returns the one axis that differs, and has as many elements as the batch has rows; None without one."""
    different = [axis for axis, pair in enumerate(zip(small, large)) if pair[0] != pair[1]]
    alone = different[0] if len(different) == 1 else None
    return alone if alone is None or (small[alone], large[alone]) == sizes else None


# Other processes.


def axes_json(known: RowAxes) -> Any:
    """Returns ``known`` as JSON, without sites that did not run; those with the same places are together."""
    alike: dict[str, tuple[list[Any], list[str]]] = {}
    for site, seen in sorted(known.sites.items()):
        places = [[*place, axis] for place, axis in seen.items()]
        alike.setdefault(repr(places), (places, []))[1].append(site)
    channels = [[*key, axes] for key, axes in known.channels.items() if isinstance(axes, dict)]
    return {"outputs": known.outputs, "sites": [list(each) for each in alike.values()], "channels": channels}


def read_axes(kept: Any) -> RowAxes:
    """Returns what `axes_json` wrote; nothing is known where that is None, or something else."""
    try:
        sites = {
            site: {(Point(point), path, call): axis for point, path, call, axis in places}
            for places, names in kept["sites"]
            for site in names
        }
        channels = {(layer, named): axes for layer, named, axes in kept["channels"]}
        return RowAxes(sites, dict(kept["outputs"]), {*sites}, {**channels})
    except (LookupError, TypeError, ValueError):
        return RowAxes()
