"""Tensors inside a model that a request can return."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Annotated, Literal, TypeAlias

from cutaway.contract.errors import Reason, error
from cutaway.contract.requests.fields import Count, distinct, given
from cutaway.contract.tensors import ArrayLike
from cutaway.contract.values import StrEnum

__all__ = ["Capture", "Max", "Mean", "Norm", "Point", "Project", "Slice", "TopElements"]


class Point(StrEnum):
    """A point of a module at which a hook sees tensors."""

    INPUT = "input"
    """The input: a forward pre-hook."""
    OUTPUT = "output"
    """The output: a forward hook."""
    GRAD_INPUT = "grad_input"
    """The target's gradient at the input: ``grad_input`` of a full backward hook."""
    GRAD_OUTPUT = "grad_output"
    """The target's gradient at the output: ``grad_output`` of a full backward hook."""

    @property
    def is_gradient(self) -> bool:
        """Whether the point needs a backward pass."""
        return self in (Point.GRAD_INPUT, Point.GRAD_OUTPUT)


POINTS = tuple(Point)
"""All points, in the order of the reply."""

PointName: TypeAlias = Literal["input", "output", "grad_input", "grad_output"]

WEIGHTS = "attention_weights"
"""Stands in the addresses of operators for the weights of a fused attention."""


def names_weights(address: str) -> bool:
    """Returns whether an address, or a glob of addresses, is of weights of fused attention."""
    return address.rpartition(":")[2].startswith(f"{WEIGHTS}#")


FloatingType: TypeAlias = Annotated[str, "the name of a floating data type, or nothing"]


Position: TypeAlias = int | str
"""A token of each row: its number, or its text."""

Steps: TypeAlias = Annotated[tuple[int, ...] | range, distinct]
Heads: TypeAlias = Annotated[tuple[int, ...], distinct]


@dataclass(frozen=True)
class Slice:
    """A part of one axis: a range, as Python's slices have it, or single places; one outside of the axis is an error.

    Args:
        axis: 0 is the batch; a negative one counts from the last.
        start: first index, a negative one from the end; ``None`` is 0.
        stop: one past the last index, a negative one from the end; ``None`` is the axis' size.
        step: at least 1; ``None`` is 1.
        indices: the places, in this order and each once, instead of a range; a negative one counts from the end.
    """

    axis: int
    start: int | None = None
    stop: int | None = None
    step: Count | None = None
    indices: tuple[int, ...] = ()


@dataclass(frozen=True)
class Reduction:
    """A reduction of a captured tensor before it is sent."""


@dataclass(frozen=True)
class AxisReduction(Reduction):
    """A reduction over axes, which the result does not have.

    Args:
        axes: at least one; never the axis of the batch, which is mostly 0; negative ones count from the last.
    """

    axes: Annotated[tuple[int, ...], given("name at least one axis")]


@dataclass(frozen=True)
class Mean(AxisReduction):
    """The mean of a floating tensor over axes."""


@dataclass(frozen=True)
class Max(AxisReduction):
    """The maximum of a tensor over axes."""


@dataclass(frozen=True)
class Norm(AxisReduction):
    """The 2-norm of a floating tensor over axes."""


@dataclass(frozen=True)
class TopElements(Reduction):
    """The largest elements along an axis, largest first, with their positions.

    Args:
        k: how many, at least 1.
        axis: along which; negative ones count from the last.
    """

    k: Count
    axis: int = -1


@dataclass(frozen=True)
class Project(Reduction):
    """A map of the last axis: a logit lens, a probe, the encoder of a sparse autoencoder.

    ``Project("lm_head", norm="model.norm", then=TopElements(5))`` returns the five likeliest tokens behind any block.

    Args:
        to: a module of the model that maps the last axis, such as ``lm_head``, which no hook sees; the name of a matrix
            that the model's archive has; or a matrix [outputs, size of the last axis].
        norm: a module that is applied first, such as the last norm of a language model; ``""`` is none.
        bias: added to the result, [outputs]; ``None`` is nothing.
        relu: whether negative results become 0.
        threshold: results that are not above it become 0, [outputs]: JumpReLU (Rajamanoharan et al. 2024,
            arXiv:2407.14435); ``None`` is nothing.
        then: how the result is reduced; ``None`` returns it unchanged.
    """

    to: str | ArrayLike
    norm: str = field(default="", kw_only=True)
    bias: ArrayLike | None = field(default=None, kw_only=True)
    relu: bool = field(default=False, kw_only=True)
    threshold: ArrayLike | None = field(default=None, kw_only=True)
    then: Reduction | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Capture:
    """A request for tensors that hooks record at modules, at operators inside a module's forward, or at a parameter.

    Args:
        module: a name in ``named_modules()``, ``.`` for the model itself, or a glob: ``*`` is any text within one part
            of a dotted name, ``**`` any text across parts, ``?`` one character.
        at: one point or several.
        op: in place of a module, an operator by its address, such as ``layer3.1:relu#0``, or a glob.
            ``h.0.attn:attention_weights#0`` has the weights [batch, heads, queries, keys] of the first fused attention,
            computed beside the pass; their positions are queries.
        parameter: in place of a module, a name in ``named_parameters()``: the target's gradient there.
        call: only this call, from 0; ``None`` is every call.
        path: only the tensor at this path (``[0]``, ``.logits``); ``""`` is every tensor.
        slices: a part of each tensor, cut before any reduction.
        reduce: how each tensor is reduced; ``None`` sends it unchanged.
        data_type: what floating tensors are sent as, such as ``float16``; ``""`` is as computed.
        steps: only these steps of a generation, from 0; empty is all.
        position: only this token of each row, along axis 1, which the result does not have; from the first token of the
            row's own text, without padding, a negative one from its last; or by its text, such as ``" Paris"``, whose
            last token it is. Several are axis 1 of the result; ``None`` is all tokens.
        heads: only these heads of attention, in this order: of weights of fused attention, or parts of the last axis of
            the input of a module that joins heads, such as ``o_proj``; empty is all.
    """

    module: str = ""
    at: PointName | Point | tuple[PointName | Point, ...] = "output"
    _: KW_ONLY
    op: str = ""
    parameter: str = ""
    call: int | None = None
    path: str = ""
    slices: tuple[Slice, ...] = ()
    reduce: Reduction | None = None
    data_type: FloatingType = ""
    steps: Steps = ()
    position: Position | tuple[Position, ...] | None = None
    heads: Heads = ()

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """``at`` as a tuple."""
        several = self.at if isinstance(self.at, tuple) else (self.at,)
        return tuple(as_point(point) for point in several)


def as_point(point: PointName | Point, field: str = "points") -> Point:
    """Returns the point with that name; ``field`` is the field at fault if there is none.

    Raises:
        InvalidArgument: ``INVALID_VALUE``.
    """
    if point not in POINTS:
        raise error(Reason.INVALID_VALUE, f"{point!r} is none of {', '.join(Point)}", field)
    return Point(point)
