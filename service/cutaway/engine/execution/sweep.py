"""Runs a sweep: the target for each of a grid of patches, many patches of one module in a pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from cutaway.contract.errors import Reason, at, error
from cutaway.contract.requests import Point, Sweep
from cutaway.contract.results import InspectResult
from cutaway.contract.values import changed
from cutaway.engine.execution.main_pass import MainPass, run_main_pass
from cutaway.engine.execution.row_parts import rows_may_be_copied
from cutaway.engine.hooks.axes import row_axes
from cutaway.engine.hooks.capture_spec import CaptureSpec, ShapeSpec
from cutaway.engine.hooks.edits import Override
from cutaway.engine.hooks.observe import observing
from cutaway.engine.hooks.tokens import head_sizes
from cutaway.engine.model.inspected_model import arguments_kind
from cutaway.engine.model.session import is_out_of_memory
from cutaway.engine.passes.pass_recorder import is_row_specific_edit, read_target
from cutaway.engine.planning.plan import RequestPlan
from cutaway.engine.runtime.numerics import Path, to_numpy

_MOST_ROWS = 32
"""The most rows of a pass: more of them take as long each."""


class Swept(NamedTuple):
    """A module's tensor that is patched: its point and path, the axis of its rows, the axis of the places when rows are
    first, the size of each place, and the places."""

    point: Point
    path: Path
    rows: int
    axis: int
    size: int
    places: tuple[int, ...]

    def by_place(self, tensor: Tensor) -> Tensor:
        """Returns a view with rows on axis 0, places on ``axis``, and the elements of a larger place behind it."""
        by_row = tensor.movedim(self.rows, 0)
        return by_row if self.size == 1 else by_row.unflatten(self.axis, (-1, self.size))

    @property
    def gradient(self) -> Point:
        """The point of the tensor's gradient."""
        return Point.GRAD_INPUT if self.point is Point.INPUT else Point.GRAD_OUTPUT


def swept(plan: RequestPlan, asked: Sweep) -> dict[str, Swept]:
    """Returns what a sweep patches, by module; takes a forward pass, once for each shape of the inputs. The model is in
    a session.

    Raises:
        InvalidArgument: with the field at fault.
    """
    shapes = tuple((name, tensor.shape) for name, tensor in plan.inputs.items())
    key = swept, asked, shapes, arguments_kind(plan.request.arguments)
    return dict(plan.model.remembered(key, lambda: _find(plan, asked)))


def _find(plan: RequestPlan, asked: Sweep) -> dict[str, Swept]:
    model = plan.model
    with at("sweep.module"):
        names = model.tree.match(asked.module)
    point = Point.INPUT if asked.heads else Point.OUTPUT
    with at("sweep.heads"):
        heads = {name: head_sizes(model.tree, name) for name in names} if asked.heads else {}
    axes, sites = row_axes(model, plan.inputs, names), {name: {point: ShapeSpec()} for name in names}
    with model.passes.uncounted(), torch.no_grad(), observing(model.tree, sites) as seen, seen.forward():
        model.run(plan.inputs)
    found = {}
    for name in names:
        if not seen.calls[name]:
            raise error(Reason.METHOD_INAPPLICABLE, f"the model never called its module {name!r}", "sweep.module")
        parts = seen.calls[name][0].captured(point)
        floating = [path for path, part in parts.items() if part.values.is_floating_point()]
        path = asked.path or next(iter(floating), "")
        if path not in floating:
            listed = ", ".join(map(repr, floating)) or "none"
            what = f"no tensor of floats at {path!r} of the {point} of {name!r}; there is {listed}"
            raise error(Reason.PATH_NOT_FOUND, what, "sweep.path" if asked.path else "sweep.module")
        shape = parts[path].values.shape
        rows, own = axes.of(name, (point, path, 0), shape, plan.rows), len(shape) - 1 if asked.heads else asked.axis
        if rows is None or own >= len(shape) or own == rows:
            where = "no axis of rows" if rows is None else f"rows on axis {rows}"
            what = f"the {point} of {name!r} has shape {list(shape)}, with {where}, and no places on axis {own}"
            raise error(Reason.AXIS_RANGE, what, "sweep.axis")
        count, size = heads.get(name, (shape[own], 1))
        found[name] = Swept(point, path, rows, own + (own < rows), size, tuple(_places(asked.places, count, name)))
    return found


def _places(asked: Sequence[int], size: int, name: str) -> Iterator[int]:
    if not asked:
        yield from range(size)
    for number, place in enumerate(asked):
        if not -size <= place < size:
            what = f"place {place}; {name!r} has {size}"
            raise error(Reason.SLICE_RANGE, what, f"sweep.places[{number}]")
        yield place


def with_sweep(result: InspectResult, main: MainPass) -> InspectResult:
    """Returns ``result`` with the grid of the request of ``main``, if it asks for one; the model is in its session."""
    asked = main.plan.request.sweep
    if asked is None or main.target_values is None:
        return result
    grid, targets = swept(main.plan, asked), main.target_values.cpu()
    clean = _Clean(main, asked, grid, targets)
    values = {name: clean.patched(name, where) for name, where in grid.items()}
    result = changed(result, sweep={name: to_numpy(table) for name, table in values.items()})
    if not asked.estimate:
        return result
    estimates = {name: targets.unsqueeze(1) + clean.estimated(name, where) for name, where in grid.items()}
    agreement = _agreement(targets, values, estimates)
    return changed(
        result,
        sweep_estimates={name: to_numpy(table) for name, table in estimates.items()},
        sweep_agreement=to_numpy(agreement),
    )


class _Clean:
    """The pass without patches, and passes that put its values elsewhere."""

    def __init__(self, main: MainPass, asked: Sweep, grid: Mapping[str, Swept], targets: Tensor) -> None:
        self._main, self._plan, self._model, self._asked = main, main.plan, main.plan.model, asked
        self._targets = targets
        (self._target,) = main.targets
        sites = {
            name: dict.fromkeys([where.point, *[where.gradient] * asked.estimate], CaptureSpec(path=where.path, call=0))
            for name, where in grid.items()
        }
        clean = replace(main.plan, sites=sites, attributions=(), parameters={}, gradients_of=(), missing=None)
        self._calls = run_main_pass([clean])[0].recording.calls
        self._is_free = self._may_copy({(name, where.point) for name, where in grid.items()})
        others = [row for row in range(self._plan.rows) if asked.zeros or row != asked.source]
        self._rows = others if self._is_free else [*range(self._plan.rows)]
        self._copies = max(1, _MOST_ROWS // len(self._rows)) if self._is_free else 1

    def _may_copy(self, places: set[tuple[str, Point]]) -> bool:
        """Returns whether rows may have other numbers and other company in a pass, and many patches run together."""
        edits = [edit for numbered in self._plan.edits.values() for _, edit in numbered]
        if self._target.is_row_specific or any(map(is_row_specific_edit, edits)):
            return False
        return rows_may_be_copied(self._plan, places, "" if self._target.is_neuron else self._target.source)

    def _at(self, name: str, where: Swept, point: Point) -> Tensor:
        """Returns the tensor that is patched, or its gradient, by places."""
        path, tensors = where.path, self._calls[name][0].at(point)
        if path not in tensors:
            what = f"no gradient of the target reaches the {where.point} of {name!r}: leave the estimate out"
            raise error(Reason.NOT_DIFFERENTIABLE, what, "sweep.estimate")
        return where.by_place(tensors[path])

    def _source(self, name: str, where: Swept) -> Tensor:
        """Returns what is put into every row, [1, ...]."""
        asked, output = self._asked, self._at(name, where, where.point)
        return torch.zeros_like(output[:1]) if asked.zeros else output[asked.source : asked.source + 1]

    def patched(self, name: str, where: Swept) -> Tensor:
        """Returns the target of each row with each patch of a module, float64 [batch, places]."""
        columns, places = [], list(where.places)
        while places:
            chunk = places[: self._copies]
            try:
                columns.append(self._pass(name, where, chunk))
            except Exception as failure:
                if not is_out_of_memory(failure) or len(chunk) < 2:
                    raise
                self._copies = len(chunk) // 2
                continue
            places = places[len(chunk) :]
        found = self._targets.unsqueeze(1).repeat(1, len(where.places))
        found[self._rows] = torch.cat(columns, dim=1)
        return found

    def _pass(self, name: str, where: Swept, places: Sequence[int]) -> Tensor:
        rows, source = len(self._rows), self._source(name, where).to(self._model.device)

        def change(output: Tensor) -> Tensor:
            new = output.clone()
            by_row = where.by_place(new)
            for number, place in enumerate(places):
                own = by_row[number * rows : (number + 1) * rows]
                own.select(where.axis, place).copy_(source.select(where.axis, place))
            return new

        inputs, target, copies = self._plan.inputs, self._target, self._rows * len(places)
        if self._is_free:
            inputs = {key: tensor[copies] for key, tensor in inputs.items()}
            target = target.for_rows(torch.tensor(copies, device=self._model.device))
        edit = Override(at=where.point, call=0, path=where.path, change=change)
        batch = self._main.batch._replace(rows=len(copies))
        with (
            torch.no_grad(),
            observing(self._model.tree, {}, self._plan.value_edits, batch=batch) as edited,
            observing(self._model.tree, {}, {name: [(0, edit)]}) as seen,
            edited.forward(),
            seen.forward(),
        ):
            scalars = target.scalars(read_target(self._model, target, inputs))
        return scalars.double().cpu().reshape(len(places), rows).T

    def estimated(self, name: str, where: Swept) -> Tensor:
        """Returns the target's gradient times what each patch changes, float64 [batch, places].

        Nanda 2023, Attribution Patching; Kramar et al. 2024, arXiv:2403.00745, equation 2.
        """
        change = self._source(name, where).double() - self._at(name, where, where.point).double()
        terms = change * self._at(name, where, where.gradient).double()
        by_place = terms.movedim(where.axis, 1).flatten(2).sum(dim=2) if terms.ndim > 2 else terms
        return by_place[:, list(where.places)]


def _agreement(targets: Tensor, values: Mapping[str, Tensor], estimates: Mapping[str, Tensor]) -> Tensor:
    """Returns the cosine, by row, between the changes of the target and their estimates; 1 where neither changes it."""
    exact, linear = (torch.cat([*tables.values()], dim=1) - targets.unsqueeze(1) for tables in (values, estimates))
    lengths = exact.norm(dim=1) * linear.norm(dim=1)
    cosine = (exact * linear).sum(dim=1) / lengths.where(lengths > 0, 1.0)
    return torch.where((exact == 0).all(dim=1) & (linear == 0).all(dim=1), 1.0, cosine)


def sweep_passes(plan: RequestPlan) -> int:
    """Returns how many passes of one example the sweep of ``plan`` takes, if it asks for one."""
    asked = plan.request.sweep
    if asked is None:
        return 0
    with plan.model.session(plan.cancellation, plan.request.arguments):
        patches = sum(len(where.places) for where in swept(plan, asked).values())
    return (1 + asked.estimate + patches) * plan.rows
