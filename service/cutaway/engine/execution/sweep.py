"""Computes which modules carry the target: the grid of a sweep, many patches of one module in a pass, and what each
part of a residual stream adds to the target directly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cutaway.contract.errors import CutawayError, Reason, at, error
from cutaway.contract.requests import Direct, Point, Sweep
from cutaway.contract.results import InspectResult
from cutaway.contract.values import changed
from cutaway.engine.execution.main_pass import MainPass, run_main_pass
from cutaway.engine.execution.row_parts import rows_may_be_copied
from cutaway.engine.hooks.axes import row_axes
from cutaway.engine.hooks.capture_spec import CaptureSpec, ShapeSpec
from cutaway.engine.hooks.edits import Override
from cutaway.engine.hooks.observe import observing
from cutaway.engine.hooks.operators import operator_name
from cutaway.engine.hooks.recording import RecordedCall
from cutaway.engine.hooks.tokens import head_sizes
from cutaway.engine.model.inspected_model import arguments_kind
from cutaway.engine.model.module_tree import ModuleTree
from cutaway.engine.model.session import is_out_of_memory
from cutaway.engine.passes.pass_recorder import is_row_specific_edit, read_target
from cutaway.engine.planning.plan import RequestPlan
from cutaway.engine.runtime.numerics import Path, Tolerances, to_numpy

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


# Direct logit attribution.

DIRECT_PASSES = 4
"""The passes of one example that it takes: forward, backward, and two with other values behind the norm."""

_LINEAR = Tolerances(1e-6, 1e-5, 2e-2, 5e-3)
"""How far the target may be from the sum of all parts, relative to the magnitudes of the terms of that sum."""

_FACTOR = -16.0
"""So many times what the norm returns must change the target by as many times as much. A soft cap does not, nor does a
rectifier with a negative one."""


def direct_parts(tree: ModuleTree, asked: Direct) -> dict[str, tuple[int, ...]]:
    """Returns the modules of ``asked``, with the number and the size of heads of those that have a number for each.

    Raises:
        InvalidArgument: ``MODULE_NOT_FOUND``; ``METHOD_INAPPLICABLE``, if none joins heads and some must.
    """
    found: dict[str, tuple[int, ...]] = {}
    for number, pattern in enumerate(asked.modules):
        with at(f"direct.modules[{number}]"):
            found |= dict.fromkeys(tree.match(pattern), ())
    refused: list[CutawayError] = []
    for name in found if asked.heads else ():
        try:
            with at("direct.heads"):
                found[name] = head_sizes(tree, name)
        except CutawayError as failure:
            refused.append(failure)
    if refused and len(refused) == len(found):
        raise refused[0]
    return found


def with_direct(result: InspectResult, main: MainPass) -> InspectResult:
    """Returns ``result`` with what each part of the stream adds to the target, if the request of ``main`` asks for it;
    the model is in its session.

    Raises:
        InvalidArgument: with the field at fault; ``METHOD_INAPPLICABLE``, if the target is no sum of such parts.
    """
    asked = main.plan.request.direct
    if asked is None or main.target_values is None:
        return result
    stream = _Stream(main, asked)
    parts = {name: stream.part(name, heads) for name, heads in direct_parts(main.plan.model.tree, asked).items()}
    sums = (part.reshape(len(part), -1).sum(dim=1) for part in parts.values())
    return changed(
        result,
        direct={name: to_numpy(part) for name, part in parts.items()},
        direct_rest=to_numpy(sum(sums, start=stream.whole.neg()).neg()),
        direct_bias=to_numpy(stream.bias),
    )


class _Stream:
    """The target as a linear function of a residual stream, through the last norm with a constant denominator.

    Attributes:
        whole: what the whole stream adds to the target, float64 [batch].
        bias: the target where the norm reads zeros, float64 [batch].
    """

    def __init__(self, main: MainPass, asked: Direct) -> None:
        self._main, self._tree = main, main.plan.model.tree
        with at("direct.norm"):
            self._norm = self._tree.resolve(asked.norm)
        sites = {
            name: dict.fromkeys([Point.OUTPUT, *[Point.INPUT] * bool(heads)], CaptureSpec())
            for name, heads in direct_parts(self._tree, asked).items()
        }
        sites[self._norm] = dict.fromkeys([Point.INPUT, Point.OUTPUT, Point.GRAD_OUTPUT], CaptureSpec())
        clean = replace(
            main.plan, sites=sites, edits=main.plan.value_edits, attributions=(), parameters={}, missing=None
        )
        self._calls = run_main_pass([replace(clean, gradients_of=())])[0].recording.calls
        self._stream, self._normed, self._behind = self._at_norm()
        try:
            frozen = _FrozenNorm(self._tree.modules[self._norm], self._stream, main.plan.model.dtype)
            at_zero, self._gradient = frozen.at_zero(self._behind)
        except Exception as failure:  # of a module of any kind
            what = f"{self._norm!r} cannot run again in float64: {type(failure).__name__}: {failure}"
            raise error(Reason.METHOD_INAPPLICABLE, what[:300], "direct.norm") from failure
        self.whole = _by_row(self._gradient * self._stream)
        self.bias = self._behind_zero() + _by_row(self._behind * at_zero)
        self._refuse_other_norm(at_zero)

    def _at_norm(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns what the norm gets and returns, and the target's gradient at what it returns, float64."""
        name, calls = self._norm, self._calls[self._norm]
        if len(calls) != 1:
            what = f"the model calls {name!r} {len(calls)} times: name the last norm of the stream"
            raise error(Reason.METHOD_INAPPLICABLE, what, "direct.norm")
        found = [_floating(calls[0], point) for point in (Point.INPUT, Point.OUTPUT, Point.GRAD_OUTPUT)]
        shapes = {tuple(tensor.shape) for tensors in found for tensor in tensors}
        if {*map(len, found)} != {1} or len(shapes) > 1 or next(iter(shapes))[0] != self._main.plan.rows:
            what = "takes and returns one tensor, with its rows on axis 0, which the target depends on"
            raise error(Reason.METHOD_INAPPLICABLE, f"{name!r} is no last norm: that {what}", "direct.norm")
        return found[0][0], found[1][0], found[2][0]

    def _behind_zero(self) -> Tensor:
        """Returns the target where the norm returns zeros.

        Raises:
            InvalidArgument: ``METHOD_INAPPLICABLE``: the target is not linear in what the norm returns.
        """
        targets = self._main.target_values
        values = self._behind[:, 0] if targets is None else targets.cpu()
        bias, more = self._with_norm(torch.zeros_like), self._with_norm(lambda normed: normed * _FACTOR)
        terms = self._behind * self._normed
        linear = _by_row(terms)
        wrong = torch.maximum((values - bias - linear).abs(), (more - bias - _FACTOR * linear).abs() / -_FACTOR)
        scale = bias.abs() + _by_row(terms.abs())
        if not (wrong <= _LINEAR.of(self._main.plan.model.dtype) * scale).all():
            what = f"it is not linear in what {self._norm!r} returns, as a logit is, or a Contrast of two"
            why = "logarithms of probabilities and soft caps are not, nor is a norm that is not the last one"
            raise error(Reason.METHOD_INAPPLICABLE, f"{what}; {why}", "target")
        return bias

    def _with_norm(self, change: Callable[[Tensor], Tensor]) -> Tensor:
        """Returns the target of each row with what the norm returns changed."""
        plan, (target,) = self._main.plan, self._main.targets
        edit = Override(at=Point.OUTPUT, change=change)
        with (
            torch.no_grad(),
            observing(self._tree, {}, plan.value_edits, batch=self._main.batch) as edited,
            observing(self._tree, {}, {self._norm: [(0, edit)]}) as seen,
            edited.forward(),
            seen.forward(),
        ):
            scalars = target.scalars(read_target(plan.model, target, plan.inputs))
        return scalars.double().cpu()

    def _refuse_other_norm(self, at_zero: Tensor) -> None:
        """Refuses a norm that is not linear with a constant denominator."""
        terms = self._gradient * self._stream
        wrong = (self.whole + _by_row(self._behind * (at_zero - self._normed))).abs()
        scale = _by_row(terms.abs()) + _by_row((self._behind * self._normed).abs())
        if not (wrong <= _LINEAR.of(self._main.plan.model.dtype) * scale).all():
            what = f"{self._norm!r} is not linear where its denominators are constant"
            raise error(Reason.METHOD_INAPPLICABLE, what, "direct.norm")

    def part(self, name: str, heads: tuple[int, ...]) -> Tensor:
        """Returns what a module adds to the target, float64 [batch], or [batch, heads].

        Raises:
            InvalidArgument: ``METHOD_INAPPLICABLE``: it returns no part of the stream, or several.
        """
        shape = self._stream.shape
        outputs = [(call, tensor) for call in self._calls[name] for tensor in _floating(call, Point.OUTPUT)[:1]]
        added = [(call, part) for call, tensor in outputs if (part := _like_stream(tensor, shape)) is not None]
        if len(added) != 1:
            what = f"{name!r} returns {len(added)} tensors in the shape of the stream, {list(shape)}, and not one"
            raise error(Reason.METHOD_INAPPLICABLE, what, "direct.modules")
        ((call, output),) = added
        if not heads:
            return _by_row(self._gradient * output)
        (joined, *_), (count, size) = _floating(call, Point.INPUT), heads
        join, zeros = _in_float64(self._tree.modules[name]), torch.zeros_like(joined).requires_grad_()
        with torch.enable_grad():
            joined_zeros = join(zeros).reshape(shape)
            (gradient,) = torch.autograd.grad((self._gradient * joined_zeros).sum(), zeros)
        return (gradient * joined).reshape(shape[0], -1, count, size).sum(dim=(1, 3))


def _floating(call: RecordedCall, point: Point) -> list[Tensor]:
    """Returns the floating tensors at a point of a call, float64."""
    return [tensor.double() for tensor in call.at(point).values() if tensor.is_floating_point()]


def _like_stream(tensor: Tensor, shape: torch.Size) -> Tensor | None:
    """Returns ``tensor`` in the axes of a stream of ``shape``, to which it is added; None if it cannot be.

    That of positions may have no rows of its own. Some models put rows and tokens on one axis.
    """
    if tensor.shape[-1:] == shape[-1:] and tensor.numel() == shape.numel():
        return tensor.reshape(shape)
    sizes = zip(reversed(tensor.shape), reversed(shape))
    is_added = tensor.shape[-1:] == shape[-1:] and all(own in (1, size) for own, size in sizes)
    return tensor.expand(shape) if is_added and tensor.ndim <= len(shape) else None


def _by_row(terms: Tensor) -> Tensor:
    return terms.reshape(len(terms), -1).sum(dim=1)


def _in_float64(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """Returns the forward of a copy of ``module``, past all hooks."""
    forward: Callable[[Tensor], Tensor] = deepcopy(module).to("cpu", torch.float64).forward
    return forward


class _FrozenNorm(TorchFunctionMode):
    """Runs a norm with the denominators of its first run, whatever its class: of its operators, those that return a
    denominator return it again, as a constant.

    Args:
        norm: the module.
        stream: what it gets in its first run, float64.
        dtype: the data type that the model computes in.
    """

    def __init__(self, norm: nn.Module, stream: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self._forward, self._eps, self._like = _in_float64(norm), torch.finfo(dtype).eps, stream
        self._kept: list[Tensor] = []
        self._again: Iterator[Tensor] | None = None
        with torch.no_grad(), self:
            self._forward(stream)

    def at_zero(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what the norm makes of zeros, and the gradient of the sum of that times ``weights``."""
        self._again, zeros = iter(self._kept), torch.zeros_like(self._like).requires_grad_()
        with torch.enable_grad(), self:
            returned = self._forward(zeros)
        (gradient,) = torch.autograd.grad((returned * weights).sum(), zeros)
        return returned.detach(), gradient

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs an operator; a fused norm in its parts."""
        name, kwargs = operator_name(func), kwargs or {}
        if name in ("layer_norm", "rms_norm"):
            with self:
                return self._unfused(name == "layer_norm", *args, **kwargs)
        returned = func(*args, **kwargs)
        if name not in _DENOMINATORS and not (name == "pow" and isinstance(args[1], float) and args[1] < 1):
            return returned
        if self._again is not None:
            return next(self._again, returned)
        self._kept.append(returned)
        return returned

    def _unfused(
        self,
        centers: bool,
        value: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float | None = None,
    ) -> Tensor:
        axes = tuple(range(-len(normalized_shape), 0))
        centered = value - value.mean(axes, keepdim=True) if centers else value
        least = eps if eps is not None else 1e-5 if centers else self._eps
        normed = centered * torch.rsqrt(centered.square().mean(axes, keepdim=True) + least)
        normed = normed if weight is None else normed * weight
        return normed if bias is None else normed + bias


_DENOMINATORS = {"rsqrt", "sqrt", "reciprocal", "std", "var", "norm", "linalg_vector_norm", "vector_norm"}
"""Operators that return what norms divide by, or its inverse."""
