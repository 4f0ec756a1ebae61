"""Finds the axes of tensors: those of the rows of the batch, and those of a layer's channels.

**Rows.** The same row runs in batches of two sizes, and the axis that grows with them is that of the rows. It need not
be axis 0: a recurrent network may run ``[time, batch]``, and its state is ``[layers, batch, ...]``. The shapes of one
batch cannot tell where there are as many time steps as rows. Both passes look at all modules, so that no later capture
of one waits for more.

**Channels.** Grad-CAM sums over them; the other axes, besides that of the rows, are positions. Convolutions return
``[batch, channels, *positions]``. Transformers return ``[batch, tokens, channels]``, and Swin
``[batch, height, width, channels]``. Modules of PyTorch have a known axis. For every other layer, the output of the
last such module before the layer's end is changed in one channel. The axis where one index changes has the channels.
If operations behind mix channels, one position of one row is changed instead: only channels then change at several
indices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import product
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules import batchnorm, conv, pooling

from cutaway.contract.errors import CutawayError, DeadlineExceeded, Reason, error
from cutaway.contract.requests import Point
from cutaway.engine.hooks.capture_spec import ShapeSpec, watching
from cutaway.engine.hooks.edits import Override
from cutaway.engine.hooks.hook_site import PlaceInSite, RowAxes
from cutaway.engine.hooks.observe import observing
from cutaway.engine.model.inspected_model import Inputs, InspectedModel
from cutaway.engine.model.proofs import text_of
from cutaway.engine.runtime.numerics import Path

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


# The axis of channels.

_FIRST = (
    *(conv._ConvNd, batchnorm._NormBase, nn.GroupNorm, nn.LocalResponseNorm, nn.Upsample, nn.PixelShuffle),
    *(pooling._MaxPoolNd, pooling._AvgPoolNd, pooling._AdaptiveMaxPoolNd, pooling._AdaptiveAvgPoolNd),
)
_LAST = (
    *(nn.Linear, nn.Bilinear, nn.LayerNorm, nn.Embedding, nn.RNNBase, nn.MultiheadAttention, nn.Transformer),
    *(nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.TransformerDecoder, nn.TransformerDecoderLayer),
)

_CANDIDATES = 4
"""How many outputs before the layer's end are tried, the last one first."""

_Visit: TypeAlias = Callable[[str, Tensor], Tensor]


def find_channels(model: InspectedModel, inputs: Inputs, known: RowAxes, layer: str, named: int | None) -> None:
    """Adds to what is ``known`` the axis of the channels of each floating tensor that the layer's first call returns.

    It runs passes, which no request counts. Hooks of the caller must not be registered meanwhile.

    Args:
        model: the model, in a session.
        inputs: a batch.
        known: the axes of the rows.
        layer: the name of the layer.
        named: the axis that the request names, of the axes of the layer's own output; None asks for a test.

    Raises:
        DeadlineExceeded: the caller no longer waits.
    """
    if isinstance(known.channels.get((layer, named)), dict):
        return
    try:
        rows = known.at_output(layer)
        known.channels[layer, named], _ = model.proofs.run(lambda: _channels(model, inputs, layer, named, rows))
        keep_axes(model, inputs, known)
    except DeadlineExceeded:
        raise
    except CutawayError as failure:
        known.channels[layer, named] = copy(failure)  # without the tensors that its traceback holds


def _channels(
    model: InspectedModel, inputs: Inputs, layer: str, named: int | None, rows: Mapping[Path, int | None]
) -> dict[Path, int]:
    """Returns the axes by path; raises if a tensor does not have the one that is named, or if none was found."""
    with torch.no_grad(), model.unrecorded():
        ended: list[tuple[str, int]] = []

        def note(name: str, tensor: Tensor) -> Tensor:
            ended.append((name, tensor.ndim))
            return tensor

        before = _outputs(model, inputs, layer, note)
        fixed = _axis_of_type(model.tree.modules[layer]) if named is None else named
        tested = fixed is None and any(tensor.ndim > 2 for tensor in before.values())
        axes = _found(model, inputs, layer, before, ended, rows) if tested else {}
    for path, tensor in before.items():
        if tensor.ndim < 2 and named is None:
            continue
        row = rows.get(path) or 0
        axis = axes.get(path, 1 - row if fixed is None else fixed)
        if tested and not axes:
            text = f"{layer!r} returns {list(tensor.shape)}, and it is not known along which axis its channels are"
            raise error(Reason.METHOD_INAPPLICABLE, f"{text}: name the axis, such as 1 or -1")
        if not -tensor.ndim <= axis < tensor.ndim or axis % tensor.ndim == row:
            text = f"{layer!r} returns {list(tensor.shape)}, with the batch along axis {row}"
            raise error(Reason.INVALID_VALUE, f"{axis}; {text}: name another one of these {tensor.ndim} axes")
        axes[path] = axis % tensor.ndim
    return axes


def _axis_of_type(module: nn.Module) -> int | None:
    """Returns the axis at which a module of PyTorch returns channels; None where its type does not say."""
    own = next(kind for kind in type(module).__mro__ if "forward" in vars(kind))
    if not own.__module__.startswith("torch.nn."):
        return None  # a subclass may have its axes elsewhere, as torchvision's LayerNorm2d
    if isinstance(module, nn.LayerNorm) and len(module.normalized_shape) > 1:
        return None
    return 1 if isinstance(module, _FIRST) else -1 if isinstance(module, _LAST) else None


# The test of a layer whose type does not say.


def _found(
    model: InspectedModel,
    inputs: Inputs,
    layer: str,
    before: Mapping[Path, Tensor],
    ended: Sequence[tuple[str, int]],
    rows: Mapping[Path, int | None],
) -> dict[Path, int]:
    """Returns the axes of what the layer returns, ``before``; empty if no change of earlier outputs shows them.

    ``ended`` has the name, and the number of axes, of each output of a module, in the order in which modules end.
    """
    end = next((number for number, (name, _) in enumerate(ended) if name == layer), 0)
    kinds = [(number, _axis_of_type(model.tree.modules[name])) for number, (name, _) in enumerate(ended[:end])]
    candidates = [(number, axis) for number, axis in reversed(kinds) if axis and ended[number][1] > 1]
    tests = ((_one_channel, _only_one), (_one_position, _only_many))

    def counts_after(number: int, change: Callable[[Tensor], Tensor]) -> dict[Path, dict[int, int]]:
        try:
            after = _outputs(model, inputs, layer, _at_visit(number, change))
        except DeadlineExceeded:
            raise
        except CutawayError:  # the model refuses what was changed
            return {path: {} for path in before}
        return {path: _counts(value, after.get(path), rows.get(path) or 0) for path, value in before.items()}

    for (number, axis), (change, find) in product(candidates[:_CANDIDATES], tests):
        found = {path: find(counts) for path, counts in counts_after(number, partial(change, axis)).items()}
        axes = {path: axis for path, axis in found.items() if axis is not None}
        if axes and len(axes) == len(found):
            of_one = {path: before[path] for path, axis in axes.items() if before[path].shape[axis] == 1}
            spread = counts_after(number, partial(_one_position, axis)) if of_one else {}
            return {} if any(_is_spread(value, spread[path]) for path, value in of_one.items()) else axes
    return {}


def _is_spread(value: Tensor, counts: Mapping[int, int]) -> bool:
    """Returns whether a change at one position reaches all of an axis: then that axis may have the channels too, and
    one of size 1 always changes at one index."""
    return any(count == value.shape[axis] > 1 for axis, count in counts.items())


def _outputs(model: InspectedModel, inputs: Inputs, layer: str, visit: _Visit) -> dict[Path, Tensor]:
    """Runs a pass, and returns the floating outputs of the layer's first call.

    `visit` gets the floating outputs of every module whose channels are known, and of the layer.
    """
    names = [name for name, module in model.tree.modules.items() if name == layer or _axis_of_type(module)]
    edits = {name: [(0, Override(change=partial(_floating, visit, name)))] for name in names}
    with observing(model.tree, {layer: watching(Point.OUTPUT)}, edits) as seen, seen.forward():
        model.run(inputs)
    first = seen.calls[layer][0].at(Point.OUTPUT) if seen.calls[layer] else {}
    return {path: tensor for path, tensor in first.items() if tensor.is_floating_point()}


def _floating(visit: _Visit, name: str, tensor: Tensor) -> Tensor:
    return visit(name, tensor) if tensor.is_floating_point() else tensor


def _at_visit(number: int, change: Callable[[Tensor], Tensor]) -> _Visit:
    """Returns a visitor that changes the output with this ``number`` in the order in which modules end."""
    visits = iter(range(number + 1))
    return lambda _, tensor: change(tensor) if next(visits, None) == number else tensor


def _one_channel(axis: int, value: Tensor) -> Tensor:
    """Returns ``value`` with its first channel far from all others, at every position."""
    return value.index_fill(axis, torch.zeros(1, dtype=torch.long, device=value.device), _far(value))


def _one_position(axis: int, value: Tensor) -> Tensor:
    """Returns ``value`` with all channels, at the first position of the first row, far from those at others."""
    changed = value.clone()
    changed.movedim(axis, -1)[(0,) * (value.ndim - 1)] = _far(value)
    return changed


def _far(value: Tensor) -> float:
    return 1 + float(value.abs().max())


def _counts(one: Tensor, other: Tensor | None, row: int) -> dict[int, int]:
    """Returns, by axis besides that of the rows, at how many indices the two differ."""
    if other is None or one.shape != other.shape or not one.numel():
        return {}
    change = (one - other).double().nan_to_num().abs()
    changed = change > change.max() / 1000
    return {axis: int(changed.movedim(axis, 0).flatten(1).any(dim=1).sum()) for axis in range(one.ndim) if axis != row}


def _only_one(counts: Mapping[int, int]) -> int | None:
    """Returns the one axis along which one index changed."""
    single = [axis for axis, count in counts.items() if count == 1]
    return single[0] if len(single) == 1 else None


def _only_many(counts: Mapping[int, int]) -> int | None:
    """Returns the one axis along which several indices changed."""
    many = [axis for axis, count in counts.items() if count > 1]
    return many[0] if len(many) == 1 else None
