"""What references get and return: evidence from raw hooks, and an attribution with the size of its rounding errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cutaway.contract.requests import Point
from cutaway.engine.passes.pass_recorder import AttributionProblem, Pass, Values
from cutaway.engine.passes.repeated_batch import RowRange


class MissingObservation(Exception):
    """The hooks did not record what the reference needs."""


@dataclass(frozen=True)
class Evidence:
    """What a reference may use.

    Attributes:
        problem: the problem that Captum solved.
        passes: what the hooks recorded, by pass.
        call: the number of the layer's call in each pass.
    """

    problem: AttributionProblem
    passes: Sequence[Pass]
    call: int = 0

    def gradients(self, name: str) -> Tensor:
        """Returns the gradients at input ``name``, ``[passes * batch, ...]``, one pass after the other."""
        recorded = [each.gradients[name] for each in self.passes if name in each.gradients]
        if not recorded:
            raise MissingObservation(f"no gradient reached the input {name!r}")
        return torch.cat(recorded).double()

    def layer(self, point: Point) -> Values:
        """Returns the layer's tensors at ``point`` of the last pass, named as attributions of layers are."""
        if not self.passes:
            raise MissingObservation("no pass was run")
        return self._at_layer(self.passes[-1], point)

    def steps(self, point: Point) -> Values:
        """Returns the layer's tensors at ``point`` of all passes, ``[steps, batch, ...]``; a pass may have several
        steps."""
        by_pass = [(each, self._at_layer(each, point)) for each in self.passes]
        names = dict.fromkeys(name for _, tensors in by_pass for name in tensors)
        if any(set(tensors) != set(names) for _, tensors in by_pass):
            raise MissingObservation(f"the layer {self.problem.layer!r} did not show the same tensors in every pass")
        return {name: torch.cat([self._by_step(each, tensors[name]) for each, tensors in by_pass]) for name in names}

    def _at_layer(self, each: Pass, point: Point) -> Values:
        calls = each.layer
        if len(calls) <= self.call or not calls[self.call].at(point):
            what = "no gradient reached" if point.is_gradient else "nothing came out of"
            raise MissingObservation(f"{what} the layer {self.problem.layer!r}")
        tensors = calls[self.call].at(point)
        if len(tensors) == 1:  # of a tuple of one tensor, Captum explains that tensor
            tensors = {"": next(iter(tensors.values()))}
        return {layer_value_name(self.problem.layer, path): tensor.double() for path, tensor in tensors.items()}

    def _by_step(self, each: Pass, tensor: Tensor) -> Tensor:
        rows = len(next(iter(each.points.values())))
        if rows == self.problem.rows:
            return tensor.unsqueeze(0)
        sequence_first = not self.problem.is_batch_first and tensor.ndim == 3 and tensor.shape[1] == rows
        if tensor.shape[:1] != (rows,) or sequence_first:
            # Where rows are along another axis, or may be, only passes of one step each show the steps.
            raise MissingObservation(f"the rows of the layer {self.problem.layer!r} cannot be identified")
        return tensor.reshape(rows // self.problem.rows, self.problem.rows, *tensor.shape[1:])


def layer_value_name(layer: str, path: str) -> str:
    """Returns ``conv2`` for a layer that returns a tensor, ``lstm[0]`` for one that returns several."""
    return layer + path


class Reference(NamedTuple):
    """A reference attribution.

    Attributes:
        values: the attribution.
        terms: the same sums over the magnitudes of the terms: where terms cancel, the sum is only as exact as they are
            large.
        error: how much Captum's solver may err beyond the method's tolerance, relative to a row's largest magnitude.
    """

    values: Values
    terms: Values
    error: float = 0.0

    def of_rows(self, rows: RowRange) -> Reference:
        """Returns the reference of some rows."""
        values, terms = ({name: rows.of(value) for name, value in side.items()} for side in (self.values, self.terms))
        return Reference(values, terms, self.error)


def exact(values: Values) -> Reference:
    """Returns a reference of values that are no sums."""
    return Reference(values, {name: value.abs() for name, value in values.items()})


def host(tensor: Tensor) -> Tensor:
    """Returns ``tensor`` in float64 on the host, without a graph."""
    return tensor.detach().cpu().double()


def input_point(problem: AttributionProblem) -> list[Values]:
    """Returns one point: the input itself."""
    return [{name: problem.inputs[name] for name in problem.explained}]
