"""What references are made of: what raw hooks saw, and how well an attribution can be known from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cutaway.engine.seen import Call
from cutaway.engine.witness import Pass, Question, Values
from cutaway.requests import Point


class Silent(Exception):
    """The hooks did not see what the reference is made of."""


@dataclass(frozen=True)
class Evidence:
    """What a reference may use.

    Attributes:
        question: what was asked.
        passes: what the hooks saw, pass by pass.
        call: which call of the layer is looked at, for a layer that was called several times in a pass.
    """

    question: Question
    passes: Sequence[Pass]
    call: int = 0

    def gradients(self, name: str) -> Tensor:
        """[passes x batch, ...], the gradients at input ``name``, all passes one after the other."""
        seen = [each.gradients[name] for each in self.passes if name in each.gradients]
        if not seen:
            raise Silent(f"no gradient reached the input {name!r}")
        return torch.cat(seen).double()

    def layer(self, point: Point) -> Values:
        """What the layer showed at ``point``, named as attributions of layers are."""
        if not self.passes:
            raise Silent("no pass was run")
        return self._shown(self.passes[-1], point)

    def steps(self, point: Point) -> Values:
        """[steps, ...], the same for all passes; one that ran several steps at once is cut into them."""
        cut = [(each, self._shown(each, point)) for each in self.passes]
        names = dict.fromkeys(name for _, shown in cut for name in shown)
        if any(set(shown) != set(names) for _, shown in cut):
            raise Silent(f"the layer {self.question.layer!r} did not show the same tensors in every pass")
        return {name: torch.cat([self._cut(each, shown[name]) for each, shown in cut]) for name in names}

    def _shown(self, each: Pass, point: Point) -> Values:
        calls: Sequence[Call] = each.layer
        if len(calls) <= self.call or not calls[self.call].at(point):
            what = "no gradient reached" if point.is_gradient else "nothing came out of"
            raise Silent(f"{what} the layer {self.question.layer!r}")
        shown = calls[self.call].at(point)
        if len(shown) == 1:  # of a tuple of one, Captum explains what is in it
            shown = {"": next(iter(shown.values()))}
        return {layer_value_name(self.question.layer, path): tensor.double() for path, tensor in shown.items()}

    def _cut(self, each: Pass, tensor: Tensor) -> Tensor:
        rows = len(next(iter(each.points.values())))
        if rows == self.question.rows:
            return tensor.unsqueeze(0)
        sequence_first = tensor.ndim == 3 and tensor.shape[1] == rows
        if tensor.shape[:1] != (rows,) or sequence_first:
            # Where rows lie along another axis, or may do so, only passes of one step each show the steps.
            raise Silent(f"the rows of the layer {self.question.layer!r} cannot be told")
        return tensor.reshape(rows // self.question.rows, self.question.rows, *tensor.shape[1:])


def layer_value_name(layer: str, path: str) -> str:
    """``conv2`` for a layer that returns a tensor, ``lstm[0]`` for one that returns several."""
    return layer + path


class Reference(NamedTuple):
    """What an attribution must be, and how well it can be known.

    Attributes:
        values: the attribution.
        terms: the same sums over the terms' magnitudes: where terms cancel, what is left is only as exact as they
            are large.
    """

    values: Values
    terms: Values


def exact(values: Values) -> Reference:
    """Values that no sum made."""
    return Reference(values, {name: value.abs() for name, value in values.items()})


def host(tensor: Tensor) -> Tensor:
    """``tensor`` in float64, on the host."""
    return tensor.detach().cpu().double()


def at_input(question: Question) -> list[Values]:
    """The input itself."""
    return [{name: question.inputs[name] for name in question.explained}]
