"""Sums up the passes of a method while they run, as a check reads them, so that none of them is kept.

Captum's own passes are compared here with those that the method consists of: points, additional inputs and target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cutaway.contract import requests
from cutaway.contract.requests import POINTS, Point
from cutaway.contract.values import cached_property
from cutaway.engine.hooks.recording import copy_to_host
from cutaway.engine.methods.spec import Method
from cutaway.engine.model.session import is_out_of_memory
from cutaway.engine.passes.pass_recorder import AttributionProblem, CannotShare, Pass, RowRange, Values
from cutaway.engine.passes.reference_inputs import Evidence, MissingObservation, Reference
from cutaway.engine.references.observation import Folding, target_values
from cutaway.engine.runtime import numerics
from cutaway.engine.runtime.numerics import Path

_MANY = 8
"""One pass more is little beside so many."""


class GradientEffects(NamedTuple):
    """The effects of the target's gradients in each row, ``[batch]`` of booleans.

    Attributes:
        matter: whether in any pass the gradient times the magnitude of the input or layer output is more than a
            rounding of the target; True where no pass shows it.
        are_zero: whether the gradient is exactly zero in every pass.
    """

    matter: Tensor
    are_zero: Tensor


class Mismatch(NamedTuple):
    """How Captum's passes differ from those of the method in a row.

    Attributes:
        reason: in words.
        of_undefined: whether only by NaN that Captum makes of a NaN or an infinity in this row, which it replaces by a
            product with 0.
    """

    reason: str
    of_undefined: bool = False


class PassSummary:
    """A summary of passes, which it gets one by one.

    Args:
        problem: the problem.
        method: its method.
        parts: the rows of each request that asks this; one part of all rows for a request by itself.
        of_captum: whether these are Captum's passes, which then are compared with those of the method.

    Attributes:
        parts: as above.
        dtypes: the data types of recorded cotangents, and of what the layer showed.
        most_rows: the most rows of a pass.
        calls: the number of calls of the layer in the last pass; 1 without a layer.
        moves: of a method with forward passes only, whether the target of a row is another in any pass, ``[batch]``.
        largest_target: of such a method, the largest magnitude of each row's target in any pass, ``[batch]``.
    """

    def __init__(
        self, problem: AttributionProblem, method: Method, parts: Sequence[RowRange], *, of_captum: bool = False
    ) -> None:
        self._problem, self._method, self.parts = problem, method, parts
        self._of_captum = of_captum
        self._is_read = not of_captum or method.reads_captum
        self._failure: Exception | None = None
        self._count = 0
        self.dtypes: set[torch.dtype] = set()
        self.most_rows, self.calls = 0, 1
        self._references: list[Folding[Reference]] = []
        self._output_at_input: Tensor | None = None
        self._target: Tensor | None = None
        self.moves = torch.zeros(problem.rows, dtype=torch.bool)
        self.largest_target = torch.zeros(problem.rows, dtype=torch.float64)
        self._layer_moves = _LayerMoves(problem)
        self._effects = _Effects(problem)
        self._gradients: Tensor | None = torch.zeros(problem.rows, dtype=torch.bool)

    def add(self, recorded: Pass) -> None:
        """Adds a pass. What fails here fails again where the check reads the summary, and not in Captum's pass."""
        if self._failure is not None:
            return
        try:
            if self._of_captum:
                self._visited.add(recorded)
            if self._is_read:
                self._read(recorded)
        except Exception as failure:
            if is_out_of_memory(failure):
                raise
            self._failure = failure

    def require_sound(self) -> None:
        """Raises what failed while passes were added."""
        if self._failure is not None:
            raise self._failure

    def mismatches(self) -> list[Mismatch | None]:
        """Returns for each row how Captum's passes differ from those of the method; None if they do not.

        Raises:
            CannotShare: Captum ran another number of rows, and it is not known whose.
        """
        return self._visited.mismatches() if self._of_captum else [None] * self._problem.rows

    @cached_property
    def _visited(self) -> _Visited:
        return _Visited(self._problem, self._method, self.parts)

    @property
    def references(self) -> list[Reference]:
        """The reference for each call of the layer; raises `MissingObservation`."""
        if len(self._references) < self.calls and not self._problem.further_layers:
            raise MissingObservation(f"the layer {self._problem.layer!r} was not called as often in every pass")
        return [folding.result() for folding in self._references[: self.calls]]

    @property
    def output_at_input(self) -> Tensor | None:
        """The output of the first pass at the input itself, where that may show that the model changes; None without
        one: of many passes without gradients, the first would not show it."""
        many = self._method.forward_only and self._count >= _MANY
        apart = isinstance(self._problem.request, requests.Surrogate)  # whose rows run each by itself
        return None if not self._problem.target.is_neuron and (many or apart) else self._output_at_input

    @property
    def layer_moves(self) -> Tensor:
        """Whether the layer's output of a row is another in any pass, ``[batch]``; True where the method does not
        multiply by that difference, or rows are not on axis 0."""
        return self._layer_moves.result()

    @property
    def has_gradient(self) -> Tensor:
        """Whether any gradient, at the inputs or the layer, is not zero in each row, ``[batch]``; in any row of its
        part, where rows are not on axis 0.

        Raises:
            CannotShare: it cannot be told whose rows they are.
        """
        if self._gradients is None:
            raise CannotShare
        return self._gradients

    @property
    def effects(self) -> GradientEffects:
        """The effects of the target's gradients in each row."""
        return self._effects.result()

    def _read(self, recorded: Pass) -> None:
        """Adds a pass to the references, and notes data types, calls of the layer, gradients, and changes of the target
        and the layer."""
        problem, method, first = self._problem, self._method, not self._count
        self._count += 1
        self.most_rows, self.calls = max(self.most_rows, recorded.rows), max(1, len(recorded.layer))
        if recorded.cotangent is not None:
            self.dtypes.add(recorded.cotangent.dtype)
        for call in recorded.layer:
            self.dtypes.update(tensor.dtype for point in POINTS for tensor in call.at(point).values())
        if self._output_at_input is None and _is_at_input(problem, recorded):
            self._output_at_input = recorded.output
        if first:
            calls = 1 if problem.further_layers else self.calls
            self._references = [Folding(method.reference(problem, call)) for call in range(calls)]
        for folding in self._references:
            folding.add(recorded)
        self._layer_moves.add(recorded)
        if method.forward_only:
            (target,) = target_values(Evidence(problem, [recorded]))
            self._target = target if self._target is None else self._target
            self.moves |= target != self._target
            self.largest_target = torch.maximum(self.largest_target, target.abs())
        elif method.runs_backward:
            self._read_gradients(recorded)

    def _read_gradients(self, recorded: Pass) -> None:
        if self._method.reference_passes is None:
            self._effects.add(recorded)
        gradients = list(recorded.gradients.values())
        gradients += [gradient for call in recorded.layer for gradient in call.at(Point.GRAD_OUTPUT).values()]
        if self._gradients is None or bool(self._gradients.all()):
            return
        try:
            for gradient in gradients:
                self._gradients |= self._rows_with(gradient, recorded)
        except CannotShare:
            self._gradients = None

    def _rows_with(self, gradient: Tensor, recorded: Pass) -> Tensor:
        """Returns the rows, ``[batch]``, in which ``gradient`` is not zero."""
        if _shows_rows(self._problem, recorded, gradient):
            return ~_is_zero(self._problem, recorded, self._layer_moves.in_batch_order(gradient)).cpu()
        of_parts = [rows.of_copies(gradient).any().cpu().expand(rows.stop - rows.start) for rows in self.parts]
        return torch.cat(of_parts)


def _is_at_input(problem: AttributionProblem, recorded: Pass) -> bool:
    points = recorded.points
    return all(torch.equal(points[name], problem.inputs[name].detach().to(points[name])) for name in problem.explained)


def summarized(
    problem: AttributionProblem, method: Method, parts: Sequence[RowRange], *, separate_points: bool = False
) -> PassSummary:
    """Runs separate passes, and returns their summary; ``separate_points``: each point in a pass of its own."""
    summary = method.run_passes(problem, lambda: PassSummary(problem, method, parts), separate_points=separate_points)
    summary.require_sound()
    return summary


class _LayerMoves:
    """Compares what the layer returns in each pass with what it returned first."""

    def __init__(self, problem: AttributionProblem) -> None:
        self._problem = problem
        multiplies = bool(problem.layer and problem.baselines)
        self._is_told = multiplies and not isinstance(problem.request, requests.InternalInfluence)
        # The own passes of these are in the order of the batch.
        self._is_drawn = isinstance(problem.request, requests.ExpectedGradient)
        self._first: dict[Path, Tensor] = {}
        self._moves = torch.zeros(problem.rows, dtype=torch.bool)

    def add(self, recorded: Pass) -> None:
        """Compares a pass."""
        rows = self._problem.rows
        for call in recorded.layer if self._is_told and not bool(self._moves.all()) else ():
            for path, values in call.at(Point.OUTPUT).items():
                output = self.in_batch_order(values)
                first = self._first.setdefault(path, output)
                if not output.ndim or len(output) % rows or output.shape[1:] != first.shape[1:]:
                    self._is_told = False
                    return
                by_row = output.reshape(-1, rows, first.shape[1:].numel())
                self._moves |= (by_row != first[:rows].reshape(1, rows, -1)).any(dim=2).any(dim=0)

    def in_batch_order(self, values: Tensor) -> Tensor:
        """Returns a tensor of a pass with one copy of the batch after the other."""
        return values if self._is_drawn else self._problem.in_batch_order(values)

    def result(self) -> Tensor:
        """Returns whether each row moved, ``[batch]``."""
        return self._moves if self._is_told and self._first else torch.ones_like(self._moves)


# Comparison of Captum's passes with those of the method.


class _Visited:
    """Compares passes, in their order, with the points, the additional inputs and the target of the method.

    The points are divided into passes as Captum's are. Few of them are in memory at one time, because a method may
    consist of thousands of passes.
    """

    def __init__(self, problem: AttributionProblem, method: Method, parts: Sequence[RowRange]) -> None:
        self._problem, self._method, self._parts = problem, method, parts
        self._further = self._points()
        self._rows_of_copy = max(1, len(method.points(problem)) * problem.rows)
        self._ahead = {name: problem.inputs[name][:0].detach().cpu() for name in problem.explained}
        self._visited = dict.fromkeys(problem.explained, 0)
        # The largest of each row: of all elements, and without those of which Captum's product makes NaN.
        self._errors = {name: torch.zeros(2, problem.rows, dtype=torch.float64) for name in problem.explained}
        self._others = [""] * problem.rows
        self._is_short = False

    def _points(self) -> Iterator[Values]:
        for copy in self._method.copies(self._problem):
            yield from self._method.points(copy)

    def add(self, recorded: Pass) -> None:
        """Compares a pass, and numbers it by the noisy copy of the inputs to which it belongs."""
        recorded.copy = max(self._visited.values()) // self._rows_of_copy
        for name in self._errors:
            visited = recorded.points[name]
            row = self._row_at(self._visited[name], len(visited))
            self._visited[name] += len(visited)
            expected = self._next_rows(name, len(visited))
            self._is_short |= len(expected) < len(visited)
            if len(expected) == len(visited) and numerics.largest_error(expected, visited):
                errors = numerics.errors(expected, visited)
                defined = errors.masked_fill(visited.isnan() & self._undefined(name, len(visited), row), 0.0)
                by_row = torch.stack([self._by_row(errors, row), self._by_row(defined, row)])
                self._errors[name] = torch.maximum(self._errors[name], by_row)
        for text, expected, visited in self._further_pairs(recorded):
            if numerics.largest_error(expected, visited):
                allowed = _roundings(expected, self._by_row(_magnitudes(expected)))
                differ = self._by_row(numerics.errors(expected, visited)) > allowed
                self._others = [
                    known or (text if differs else "") for known, differs in zip(self._others, differ.tolist())
                ]

    def _row_at(self, start: int, count: int) -> int | None:
        """Returns the row to which a pass of ``count`` rows belongs, after ``start`` earlier rows. None for a pass of
        the whole batch, and where the row is unknown.

        Surrogates run the batch, then each row by itself.
        """
        request, rows = self._problem.request, self._problem.rows
        if not isinstance(request, requests.Surrogate) or count > 1 or rows == 1:
            return None
        row = (start - rows) // request.n_samples
        return row if 0 <= row < rows else None

    def _by_row(self, values: Tensor, row: int | None = None) -> Tensor:
        """Returns the largest of ``values`` in each row, ``[batch]``: 0 in others than ``row``, whose values they are.

        Where they are of another part of the batch, it is the largest of all.

        Raises:
            CannotShare: it is not known whose part.
        """
        rows = self._problem.rows
        if row is not None:
            of_rows = torch.zeros(rows, dtype=torch.float64)
            of_rows[row] = values.double().amax()
            return of_rows
        if values.ndim and len(values) % rows == 0:
            return values.double().reshape(len(values) // rows, rows, -1).amax(dim=(0, 2))
        if len(self._parts) > 1:
            raise CannotShare
        return values.double().amax().expand(rows)

    def _undefined(self, name: str, count: int, row: int | None) -> Tensor:
        """Returns which elements of ``row``, or ``count`` rows of copies, are not finite in the input or baseline."""
        problem = self._problem
        sides = [side[name] for side in (problem.inputs, problem.baselines) if name in side]
        undefined = ~torch.stack([side.detach().cpu().isfinite() for side in sides if len(side) == problem.rows]).all(0)
        if row is not None:
            return undefined[row : row + 1]
        if isinstance(problem.request, requests.FeaturePermutation):
            undefined = undefined.any(0).expand_as(undefined)  # Captum puts it into other rows
        copies, rest = divmod(count, problem.rows)
        return torch.tensor(False) if rest else torch.cat([undefined] * copies)

    def _next_rows(self, name: str, rows: int) -> Tensor:
        """Returns the next ``rows`` rows that the method has of the input ``name``; fewer where it has no more."""
        missing = rows - len(self._ahead[name])
        points: list[Values] = []
        while missing > 0 and (point := next(self._further, None)) is not None:
            points.append(point)
            missing -= len(point[name])
        for each, ahead in self._ahead.items() if points else ():
            self._ahead[each] = torch.cat([ahead, *(point[each].detach().cpu() for point in points)])
        expected, self._ahead[name] = self._ahead[name][:rows], self._ahead[name][rows:]
        return expected

    def _further_pairs(self, recorded: Pass) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yields what must be equal besides the explained inputs: other inputs, and the cotangent of the target. Each
        comes as the text of a difference, the expected tensor and the actual one."""
        problem, device = self._problem, self._problem.model.device
        times = recorded.rows // problem.rows
        if not times:
            return  # part of the batch: separate passes show a mismatch
        for tensor, visited in zip(problem.additional_inputs, recorded.additional_inputs):
            yield "Captum changed an input that is not explained", torch.cat([tensor.detach().cpu()] * times), visited
        if recorded.cotangent is not None:
            target = problem.target.for_rows(torch.arange(problem.rows, device=device).repeat(times))
            expected = copy_to_host(target.gradient_at(recorded.output.to(device)))
            yield "Captum differentiated another scalar than the target", expected, recorded.cotangent

    def mismatches(self) -> list[Mismatch | None]:
        """Returns for each row how all passes differ from those of the method; None if they do not.

        Raises:
            CannotShare: they have another number of rows, and it is not known whose.
        """
        if other_number := self._other_number():
            if len(self._parts) > 1:
                raise CannotShare
            return [Mismatch(other_number)] * self._problem.rows
        found = [Mismatch(text) if text else None for text in self._others]
        for name, errors in reversed(self._errors.items()):
            text = f"Captum ran other values of {name!r} through the model than the method consists of"
            differ, defined = (errors > self._allowed(name) if bool(errors.any()) else errors > 0).tolist()
            for row, differs in enumerate(differ):
                if differs and (defined[row] or found[row] is None):
                    found[row] = Mismatch(text, of_undefined=not defined[row])
        return found

    def _other_number(self) -> str:
        """Returns, in words, how the number of rows that Captum ran differs from the method's; ``""`` if the two are
        the same."""
        if not self._is_short and not any(map(len, self._ahead.values())) and next(self._further, None) is None:
            return ""
        for name, visited in self._visited.items():
            expected = sum(len(point[name]) for point in self._points())
            if expected != visited:
                return f"Captum ran {visited} rows of {name!r} through the model; the method consists of {expected}"
        return ""

    def _allowed(self, name: str) -> Tensor:
        """Returns for each row the largest difference of the input ``name`` that is a rounding of its largest value."""
        scales, start = torch.zeros(self._problem.rows, dtype=torch.float64), 0
        for point in self._points():
            row = self._row_at(start, len(point[name]))
            scales = torch.maximum(scales, self._by_row(_magnitudes(point[name].detach().cpu()), row))
            start += len(point[name])
        return _roundings(self._problem.inputs[name], scales)


def _magnitudes(values: Tensor) -> Tensor:
    """Returns the magnitudes of floating ``values``; 0 for those that are not finite, and for integers."""
    return values.abs().nan_to_num(0.0, 0.0, 0.0) if values.is_floating_point() else torch.zeros_like(values)


def _roundings(of: Tensor, scales: Tensor) -> Tensor:
    if not of.is_floating_point():
        return torch.zeros_like(scales)
    return numerics.VISITED_POINTS.of(of.dtype) * torch.where(scales == 0, 1.0, scales)


# Rows whose gradient is zero, or too small to explain anything.


class _Effects:
    """Tells the effects of gradients, in one pass after the other."""

    def __init__(self, problem: AttributionProblem) -> None:
        self._problem = problem
        self._matter = torch.zeros(problem.rows, dtype=torch.bool)
        self._are_zero = torch.ones(problem.rows, dtype=torch.bool)
        self._is_seen = False

    def add(self, recorded: Pass) -> None:
        """Takes the gradients of a pass into account."""
        for value, gradient in _differentiated(self._problem, recorded):
            self._is_seen = True
            for at_last_point in (True, False):  # the first is quick
                if not bool(self._matter.all()):
                    self._matter |= _gradient_matters(self._problem, recorded, value, gradient, at_last_point)
            if not bool(self._matter.all()):
                self._are_zero &= _is_zero(self._problem, recorded, gradient)

    def result(self) -> GradientEffects:
        """Returns the effects in all passes."""
        if not self._is_seen:
            return GradientEffects(torch.ones_like(self._matter), torch.zeros_like(self._matter))
        return GradientEffects(self._matter, self._are_zero)


def _differentiated(problem: AttributionProblem, recorded: Pass) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the tensors that the attribution is about, with the target's gradients there."""
    if not problem.layer:
        yield from ((recorded.points[name], gradient) for name, gradient in recorded.gradients.items())
    for call in recorded.layer:
        outputs = call.at(Point.OUTPUT)
        for path, gradient in call.at(Point.GRAD_OUTPUT).items():
            if path in outputs:
                yield outputs[path], gradient


def _shows_rows(problem: AttributionProblem, recorded: Pass, tensor: Tensor) -> bool:
    """Returns whether axis 0 of a tensor is surely the batch: in a layer it may be that of a sequence."""
    rows, elsewhere = recorded.rows, bool(problem.layer) and not problem.is_batch_first
    return tensor.shape[:1] == (rows,) and rows % problem.rows == 0 and not elsewhere


def _gradient_matters(
    problem: AttributionProblem, recorded: Pass, value: Tensor, gradient: Tensor, at_last_point: bool
) -> Tensor:
    """Returns, [batch], whether a change of ``value`` by its own magnitude changes the target by more than a rounding.

    This is tested at the last point of a pass, which is quick, or at all of its points.
    """
    if not all(_shows_rows(problem, recorded, tensor) for tensor in (value, recorded.output)):
        return torch.ones(problem.rows, dtype=torch.bool)
    first = -problem.rows if at_last_point else 0
    of_rows = (tensor.reshape(recorded.rows, -1)[first:].double() for tensor in (value, gradient, recorded.output))
    values, gradients, outputs = of_rows
    sizes = values.abs()
    effect = (gradients.abs() * torch.maximum(sizes, _usual_sizes(problem, sizes))).sum(dim=1)
    output = torch.where(numerics.unmasked_in_rows(outputs), outputs, 0.0).abs().amax(dim=1)
    matters = ~(effect <= numerics.NO_EFFECT.of(gradient.dtype) * output)  # NaN is not small
    matters &= ~(gradients.abs().amax(dim=1) <= numerics.least_precise(gradient.dtype))
    return matters.reshape(-1, problem.rows).any(dim=0)


def _usual_sizes(problem: AttributionProblem, sizes: Tensor) -> Tensor:
    """Returns the mean of each row's ``sizes`` at all points of a pass, ``[points * batch, 1]``; 1 in place of 0."""
    means = sizes.mean(dim=1).reshape(-1, problem.rows).mean(dim=0)
    return torch.where(means == 0, 1.0, means).repeat(len(sizes) // problem.rows).unsqueeze(1)


def _is_zero(problem: AttributionProblem, recorded: Pass, gradient: Tensor) -> Tensor:
    """Returns, [batch], whether a gradient is exactly zero in a row, at every point that the pass has for it."""
    if not _shows_rows(problem, recorded, gradient):
        return torch.zeros(problem.rows, dtype=torch.bool)
    return ~gradient.reshape(recorded.rows, -1).any(dim=1).reshape(-1, problem.rows).any(dim=0)
