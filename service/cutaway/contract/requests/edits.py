"""Changes to activations and gradients inside a model, for one request."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Literal

from cutaway.contract.requests.captures import Heads, Point, PointName, Position, Slice, Steps, as_point
from cutaway.contract.requests.fields import Number, bounded, distinct, given
from cutaway.contract.tensors import ArrayLike
from cutaway.contract.values import StrEnum

__all__ = [
    "Add",
    "AddVector",
    "Clamp",
    "ClampDirection",
    "Edit",
    "Mix",
    "Replace",
    "Row",
    "Scale",
    "SwapDirections",
    "VectorNorm",
    "Zero",
]


@dataclass(frozen=True)
class Edit:
    """One change at one point; at a gradient point, it changes the gradient that goes upstream.

    Args:
        module: a name in ``named_modules()``, ``.`` for the model itself, or a glob: every module that matches.
        at: the point.
        op: in place of a module, an operator by its address, such as ``layer3.1:relu#0``.
        call: only this call, from 0; ``None`` is every call.
        rows: only these rows of the batch; empty is all.
        slices: only this part of each tensor.
        path: only the tensor at this path (``[0]``, ``.logits``); ``""`` is every floating tensor at the point, or
            every tensor where none floats.
        steps: only in these steps of a generation, from 0; empty is all.
        position: only this token of each row, along axis 1; from the first token of the row's own text, without
            padding, a negative one from its last; or by its text, such as ``" Paris"``, of which it is the last token.
            Several are axis 1 of the part that is edited, in their order; ``None`` is all tokens.
        heads: only these heads of attention: parts of the last axis of the input of a module that joins heads, such as
            ``o_proj``; empty is all channels.
    """

    module: str = ""
    at: PointName | Point = "output"
    _: KW_ONLY
    op: str = ""
    call: int | None = None
    rows: Annotated[tuple[int, ...], distinct] = ()
    slices: tuple[Slice, ...] = ()
    path: str = ""
    steps: Steps = ()
    position: Position | tuple[Position, ...] | None = None
    heads: Heads = ()

    @property
    def point(self) -> Point:
        """``at``, as a `Point`."""
        return as_point(self.at, "point")


@dataclass(frozen=True, kw_only=True)
class Scale(Edit):
    """``value * factor``."""

    factor: Number


@dataclass(frozen=True, kw_only=True)
class Add(Edit):
    """``value + addend``, a number or a tensor that broadcasts against the part that is edited."""

    addend: float | ArrayLike


class VectorNorm(StrEnum):
    """The length of a vector that is added."""

    OWN = "own"
    """As it is."""
    MATCH = "match"
    """That of the value at each position: a scale of 1 adds as much as is there."""


@dataclass(frozen=True)
class Row:
    """A vector of a matrix that the model's archive has: of a sparse autoencoder what the decoder writes for a feature,
    of others a row of the weight.

    Args:
        matrix: the name of the matrix.
        index: the number of the feature, or of the row, from 0.
    """

    matrix: Annotated[str, given("name the matrix")]
    index: int


@dataclass(frozen=True)
class VectorEdit(Edit):
    """A change along a vector.

    Args:
        vector: of the size of the value's last axis, or a `Row` of a matrix of the archive; required.
    """

    at: PointName | Point = field(default="output", kw_only=True)
    vector: Row | ArrayLike | None = None


@dataclass(frozen=True)
class AddVector(VectorEdit):
    """``value + scale * vector`` at each position: steering along a direction.

    Args:
        scale: how much of it; a negative one moves away.
        norm: the length that the vector gets before it is scaled.
    """

    scale: Number = field(default=1.0, kw_only=True)
    norm: VectorNorm | Literal["own", "match"] = field(default=VectorNorm.OWN, kw_only=True)


@dataclass(frozen=True)
class ClampDirection(VectorEdit):
    """The value with its component along a direction between two bounds, at each position: a cap, or a removal.

    Its component is the inner product with the direction of length 1. ``minimum=0, maximum=0`` removes the direction
    (Arditi et al. 2024, arXiv:2406.11717).

    Args:
        minimum: the least component; ``None`` is no bound.
        maximum: the largest component; at least one of the two.
    """

    minimum: Number | None = field(default=None, kw_only=True)
    maximum: Number | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class SwapDirections(VectorEdit):
    """The value with two directions exchanged, at each position: the reflection that maps one onto the other.

    Of directions at a right angle it exchanges the components. Householder 1958, doi:10.1145/320941.320947.

    Args:
        other: the other direction, of the same size, or a `Row`; required.
    """

    other: Row | ArrayLike | None = None


@dataclass(frozen=True, kw_only=True)
class Replace(Edit):
    """``tensor`` instead of the value; it broadcasts against the part that is edited."""

    tensor: ArrayLike


@dataclass(frozen=True, kw_only=True)
class Zero(Edit):
    """Zeros instead of the value."""


@dataclass(frozen=True, kw_only=True)
class Clamp(Edit):
    """``min(max(value, minimum), maximum)``; at least one bound."""

    minimum: Number | None = None
    maximum: Number | None = None


@dataclass(frozen=True, kw_only=True)
class Mix(Edit):
    """``weight * value + (1 - weight) * value[permutation]``: manifold mixup. Verma et al. 2018, arXiv:1806.05236.

    With weight 0 it is activation patching: ``permutation=(0, 0), position=-1, source_position=3`` puts what the first
    text has at its token 3 into the last token of both.

    Args:
        weight: lambda, from 0 to 1; 0 takes all of the other row.
        permutation: the row that each one is mixed with, one index an example; a row may be there several times.
        source_position: the tokens of that row, in its own text, as many as ``position`` has; ``None`` is the same
            positions.
    """

    weight: Annotated[float, bounded(lambda weight: 0 <= weight <= 1, "from 0 to 1")]
    permutation: tuple[int, ...]
    source_position: Position | tuple[Position, ...] | None = None
