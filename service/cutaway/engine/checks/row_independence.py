"""Proves, before requests share a batch, that rows are independent: once for each layout of inputs and each hook point.

Rows are independent if a row's outputs and gradients do not depend on the other rows. They must also lie at the row's
number on one axis. The proof runs three small batches of four rows, of which the first is real and the others are
derived from it:

    first    second, third    fourth, third, second, first

The fourth has the largest values; masks, ids and lengths are truncated in the third. This exposes a model that scales
by the largest element of its batch, truncates the batch to its longest row, or sorts it.

What a model does for some values alone shows in real rows: those that are about to share a pass run the same batches,
at first and now and then. No example proves anything of a model that decides for the whole batch by its numbers, such
as one that ends early when each row is certain: its requests share nothing. Nor do those about the inside of a model
that sorts rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from cutaway.contract.errors import CutawayError
from cutaway.contract.requests import POINTS, Point
from cutaway.contract.results import Warning, WarningCode
from cutaway.engine.hooks.axes import row_axes
from cutaway.engine.hooks.capture_spec import watching
from cutaway.engine.hooks.hook_site import VALUE_POINTS, RowAxes
from cutaway.engine.hooks.observe import observing
from cutaway.engine.hooks.recording import Recording
from cutaway.engine.model.inspected_model import Inputs, InspectedModel, gradients
from cutaway.engine.model.plain_state import Decisions
from cutaway.engine.passes.findings import is_repeated_at
from cutaway.engine.passes.pass_recorder import concatenated
from cutaway.engine.passes.targets import explained_outputs
from cutaway.engine.runtime.numerics import PART_OF_BATCH, Tolerances, close

HookPoint: TypeAlias = tuple[str, Point]
"""A module's name or an operator's address, and a point of it."""


class _Key(NamedTuple):
    """One tensor of a pass: at a hook point, or, without one, an input, an output or a gradient of the model."""

    hook_point: HookPoint | None
    which: tuple[Any, ...]

    def row_axis(self, axes: RowAxes, tensor: Tensor, rows: int) -> int | None:
        """Returns the axis of ``tensor``, which is at this place, that has the ``rows`` of its batch, or None."""
        if self.hook_point is not None:
            (name, point), (call, path) = self.hook_point, self.which
            return axes.of(name, (VALUE_POINTS[point], path, call), tensor.shape, rows)
        kind, name = self.which
        if kind == "output":
            return axes.of_output(name, tensor, rows)
        return 0 if tensor.shape[:1] == (rows,) else None

    @property
    def is_gradient(self) -> bool:
        """Whether the tensor is from the backward pass."""
        if self.hook_point is None:
            return bool(self.which[0] == "gradient")
        return VALUE_POINTS[self.hook_point[1]] is not self.hook_point[1]


_Tensors: TypeAlias = dict[_Key, Tensor]

_DECISION = _Key(None, ("decision", ""))
"""Stands for all tensors of a model that decides for the whole batch."""


@dataclass
class _Result:
    """The proofs for one kind of inputs.

    Attributes:
        proven: whether rows are proven to be independent, by hook point; None for outputs and input gradients.
        refuted: whether a row was seen to depend on others; False if nothing could be concluded.
        uses: how often a shared pass relied on a proof.
    """

    proven: dict[HookPoint | None, bool] = field(default_factory=dict)
    refuted: bool = False
    uses: Counter[HookPoint | None] = field(default_factory=Counter)

    def is_due(self, points: Collection[HookPoint | None]) -> bool:
        """Counts a use of the proofs for ``points``, and returns whether real rows are to be tested."""
        self.uses.update(points)
        return any(self.uses[point] <= _FIRST_USES or is_repeated_at(self.uses[point]) for point in points)


_FIRST_USES = 2

_BESIDE_A_KINK = Tolerances(*[0.03] * 4)
"""For gradients of real rows: rounding, which the batch changes, turns one of many units over."""


def rows_independent(
    model: InspectedModel,
    inputs: Inputs,
    hook_points: Collection[HookPoint],
    source: str = "",
    beside: Sequence[Inputs] = (),
) -> bool:
    """Returns whether rows are proven to be independent.

    The first call for a layout of inputs or a hook point runs passes, which no request counts; now and then, others do.

    Args:
        model: the model.
        inputs: a batch; other inputs with the same `InspectedModel.layout_of` share the result.
        hook_points: where rows must be independent, besides the outputs and the input gradients.
        source: the output whose gradients are tested; the first one by default.
        beside: all inputs that would share a pass, ``inputs`` among them.
    """
    kind, proofs = ("rows", source, model.layout_of(inputs)), model.proofs
    result = model.remembered(kind, _Result)
    for point in (None, *hook_points):
        if point not in result.proven and proofs.is_sound((*kind, point)):
            result.proven[point] = True
    untested = [point for point in hook_points if point not in result.proven]
    if result.proven.get(None, True) and (untested or None not in result.proven):
        same, _ = proofs.run(lambda: _compare_batches(model, _four_rows(inputs), untested, source))
        for point in (None, *untested):
            result.proven[point] = _all_same(same, point) is True
            proofs.keep((*kind, point), sound=result.proven[point])
        # Near a kink, rounding alone switches a unit: then rows are not proven to be independent, but only a second row
        # can refute it.
        result.refuted = _is_refuted(same) and _is_refuted(
            _compare_batches(model, _four_rows(another_row(inputs)), (), source)
        )
    points = (None, *hook_points)
    if len(beside) > 1 and all(result.proven.get(point, False) for point in points) and result.is_due(points):
        rows = _real_rows([each for each in beside if _shapes(each) == _shapes(inputs)])
        same, _ = proofs.run(lambda: _compare_batches(model, rows, hook_points, source, _BESIDE_A_KINK))
        for point in points:
            if _all_same(same, point) is False:
                result.proven[point] = False
                proofs.keep((*kind, point), sound=False)
                result.refuted |= point is None and _is_refuted(same)
    return all(result.proven.get(point, False) for point in points)


def dependence_warnings(model: InspectedModel, inputs: Inputs) -> tuple[Warning, ...]:
    """Returns a warning for a batch of several rows if rows of the model are known to depend on each other."""
    if len(next(iter(inputs.values()))) == 1:
        return ()
    result: _Result | None = model.properties.get(("rows", "", model.layout_of(inputs)))
    if result is None or not result.refuted:
        return ()
    return (
        Warning(
            WarningCode.ROWS_NOT_INDEPENDENT,
            "",
            "a row's outputs or gradients depend on the other rows of its request: send one row per request, because "
            "requests to this model never share a batch",
        ),
    )


def _all_same(same: dict[_Key, bool], point: HookPoint | None) -> bool | None:
    """Returns whether all tensors at ``point`` are the same; None if it showed no tensor."""
    results = [is_same for key, is_same in same.items() if key.hook_point == point]
    return all(results) if results else None


def _is_refuted(same: dict[_Key, bool]) -> bool:
    """Returns whether a row was seen to depend on others."""
    return _all_same(same, None) is False and _DECISION not in same


def _compare_batches(
    model: InspectedModel,
    rows: Sequence[Inputs],
    hook_points: Collection[HookPoint],
    source: str,
    of_gradients: Tolerances = PART_OF_BATCH,
) -> dict[_Key, bool]:
    """Returns for each tensor whether it is the same for each of four ``rows`` in all batches; empty if nothing is
    known."""
    if not rows:
        return {}
    first, second, third, fourth = rows
    batches = ([first], [second, third], [fourth, third, second, first])
    decisions = Decisions()
    try:
        with model.unrecorded():
            one, two, all_four = (_run(model, concatenated(batch), hook_points, source, decisions) for batch in batches)
    except CutawayError:
        return {}  # a model that cannot run on these rows proves nothing
    if decisions.are_made:
        return {_DECISION: False}
    axes = row_axes(model, first, {name for name, _ in hook_points})
    pairs = [(one, 0, all_four, 3), (two, 0, all_four, 2), (two, 1, all_four, 1)]
    return {
        key: not (decisions.sort and key.hook_point)
        and all(_same_row(axes, key, *pair, of_gradients if key.is_gradient else PART_OF_BATCH) for pair in pairs)
        for key in {**one, **two, **all_four}
    }


def _same_row(
    axes: RowAxes, key: _Key, one: _Tensors, row: int, other: _Tensors, other_row: int, tolerances: Tolerances
) -> bool:
    """Returns whether ``row`` of one batch and ``other_row`` of another have the same values at ``key``."""

    def row_of(batch: _Tensors, number: int) -> Tensor | None:
        rows = len(next(iter(batch.values())))  # an input comes first
        axis = key.row_axis(axes, batch[key], rows) if key in batch else None
        return None if axis is None else batch[key].select(axis, number)

    here, there = row_of(one, row), row_of(other, other_row)
    return here is not None and there is not None and close(here, there, tolerances)


def _run(
    model: InspectedModel, inputs: Inputs, hook_points: Collection[HookPoint], source: str, decisions: Decisions
) -> _Tensors:
    """Runs a forward and a backward pass, and returns inputs, outputs, input gradients and captures."""
    sites = {name: watching(*(point for other, point in hook_points if other == name)) for name, _ in hook_points}
    leaves = {name: x.detach().clone().requires_grad_() for name, x in inputs.items() if x.is_floating_point()}
    tensors = {_Key(None, ("input", name)): tensor for name, tensor in inputs.items()}
    with observing(model.tree, sites) as seen:
        with seen.forward(), decisions.of({**inputs, **leaves}):
            outputs = model.run({**inputs, **leaves})
        tensors |= {_Key(None, ("output", name)): output.detach().clone() for name, output in outputs.items()}
        rows = len(next(iter(inputs.values())))
        read = outputs[source if source in outputs else explained_outputs(model, outputs, rows)[0]]
        followed = bool(leaves or seen.gradient_roots)  # else no input is floating, and nothing is captured
        if followed and read.is_floating_point() and read.requires_grad:
            arrived = zip(leaves, gradients(read.reshape(-1), [*leaves.values(), *seen.gradient_roots]))
            tensors |= {_Key(None, ("gradient", name)): gradient for name, gradient in arrived if gradient is not None}
    return tensors | dict(_captures(seen))


def _captures(recording: Recording) -> Iterator[tuple[_Key, Tensor]]:
    for name, calls in recording.calls.items():
        for number, call in enumerate(calls):
            for point in POINTS:
                for path, tensor in call.at(point).items():
                    yield _Key((name, point), (number, path)), tensor


def _four_rows(inputs: Inputs) -> tuple[Inputs, ...]:
    """Returns the first row and three others; none if nothing in it can be varied, so that nothing can be proven."""
    first = {name: tensor[:1] for name, tensor in inputs.items()}
    others = {name: variants(tensor) for name, tensor in first.items()}
    if all(torch.equal(first[name], variant) for name, several in others.items() for variant in several):
        return ()
    return first, *({name: several[number] for name, several in others.items()} for number in range(3))


def _real_rows(batches: Sequence[Inputs]) -> list[Inputs]:
    """Returns four rows of ``batches``, one of each before the second of any; some twice if there are fewer."""
    lengths = [len(next(iter(batch.values()))) for batch in batches]
    numbers = sorted((row, number) for number, length in enumerate(lengths) for row in range(min(length, 4)))
    chosen = islice(cycle(numbers[:4]), 4)
    return [{name: tensor[row : row + 1] for name, tensor in batches[number].items()} for row, number in chosen]


def _shapes(inputs: Inputs) -> list[torch.Size]:
    return [tensor.shape[1:] for tensor in inputs.values()]


def another_row(inputs: Inputs) -> Inputs:
    """Returns a row that is derived from the first one, and similar to it."""
    return {name: variants(tensor[:1])[0] for name, tensor in inputs.items()}


def other_rows(inputs: Inputs) -> Inputs:
    """Returns three rows that are derived from the first one: smaller, of the other sign, and larger."""
    rows = [variants(tensor[:1]) for tensor in inputs.values()]
    return {name: torch.cat(several) for name, several in zip(inputs, rows)}


def distant_rows(inputs: Inputs) -> Inputs:
    """Returns the rows of `other_rows`, each once, and of floating inputs the first row negated, divided and multiplied
    by 16."""
    rows = other_rows(inputs)
    if not any(tensor.is_floating_point() for tensor in rows.values()):
        return {name: tensor[:2] for name, tensor in rows.items()}  # of integers the third is the first
    first = {name: tensor[:1] for name, tensor in inputs.items()}
    factors = (-1.0, 1 / 16, 16.0)
    return {
        name: torch.cat(
            [row, *(first[name] * factor if row.is_floating_point() else first[name] for factor in factors)]
        )
        for name, row in rows.items()
    }


def variants(row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns other values than those of ``row`` that are like them: smaller, of the other sign, and larger."""
    flipped = row.reshape(-1).flip(0).reshape(row.shape)
    if row.is_floating_point():
        size = float(row.abs().max()) or 1.0
        ramp = torch.linspace(-0.1, 0.1, row.numel(), device=row.device).reshape(row.shape).to(row.dtype) * size
        return flipped / 2 + ramp, ramp - row / 3, 3 * row + 5 * ramp
    return flipped, _truncated(row), flipped


def _truncated(row: Tensor) -> Tensor:
    """Returns integers whose second half is 0, which ends masks and pads sequences; a single number, such as a length,
    is halved."""
    short = row.clone()
    if row.ndim > 1:
        short[..., (row.shape[-1] + 1) // 2 :] = 0
    if torch.equal(short, row):
        short = row // 2 if row.dtype is not torch.bool else torch.zeros_like(row)
    return short if not torch.equal(short, row) else torch.ones_like(row)
