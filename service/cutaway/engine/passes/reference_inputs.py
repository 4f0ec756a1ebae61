"""Evidence from raw hooks, quadrature rules, completeness sums, and reference attributions with rounding errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor
from torch.overrides import TorchFunctionMode

from cutaway.contract.requests import Point, Quadrature
from cutaway.contract.tensors import Array
from cutaway.contract.values import cached_property
from cutaway.engine.model.inspected_model import Outputs
from cutaway.engine.passes.pass_recorder import AttributionProblem, Pass, RowRange, Values
from cutaway.engine.runtime.numerics import SUM, cosine, largest_magnitude, leaves


class MissingObservation(Exception):
    """The hooks did not record what the reference needs."""


@dataclass(frozen=True)
class Evidence:
    """The records of raw hooks that a reference may use.

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
        recorded = [record.gradients[name] for record in self.passes if name in record.gradients]
        if not recorded:
            raise MissingObservation(f"no gradient reached the input {name!r}")
        return torch.cat(recorded).double()

    def explained_gradients(self) -> Values:
        """Returns the gradients at what is explained: at the layer in the last pass, or at the inputs in all passes."""
        if self.problem.layer:
            return self.layer(Point.GRAD_OUTPUT)
        return {name: self.gradients(name) for name in self.problem.explained}

    def layer(self, point: Point) -> Values:
        """Returns the layer's tensors at ``point`` of the last pass, named as attributions of layers are."""
        if not self.passes:
            raise MissingObservation("no pass was run")
        return self._at_layer(self.passes[-1], point)

    def steps(self, point: Point) -> Values:
        """Returns the layer's tensors at ``point`` of all passes, ``[steps, batch, ...]``; a pass may have several
        steps."""
        by_pass = [(record, self._at_layer(record, point)) for record in self.passes]
        names = dict.fromkeys(name for _, tensors in by_pass for name in tensors)
        if any(set(tensors) != set(names) for _, tensors in by_pass):
            raise MissingObservation(f"the layer {self.problem.layer!r} did not show the same tensors in every pass")
        return {
            name: torch.cat([self._by_step(record, tensors[name]) for record, tensors in by_pass]) for name in names
        }

    def _at_layer(self, record: Pass, point: Point) -> Values:
        calls = record.layer
        if len(calls) <= self.call or not calls[self.call].at(point):
            what = "no gradient reached" if point.is_gradient else "nothing came out of"
            raise MissingObservation(f"{what} the layer {self.problem.layer!r}")
        tensors = dict(calls[self.call].at(point))
        if point is Point.GRAD_OUTPUT:  # the target may depend on some tensors of this call, and on others of another
            outputs = calls[self.call].at(Point.OUTPUT).items()
            unreached = {path: output for path, output in outputs if output.is_floating_point() and path not in tensors}
            tensors |= {path: torch.zeros_like(output) for path, output in unreached.items()}
        if len(tensors) == 1:  # of a tuple of one tensor, Captum explains that tensor
            tensors = {"": next(iter(tensors.values()))}
        return {layer_value_name(self.problem.layer, path): tensor.double() for path, tensor in tensors.items()}

    def _by_step(self, record: Pass, tensor: Tensor) -> Tensor:
        rows = len(next(iter(record.points.values())))
        if rows == self.problem.rows:
            return tensor.unsqueeze(0)
        if tensor.shape[:1] != (rows,) or not self.problem.is_batch_first:
            # Where rows may be along another axis, only passes of one step each show the steps.
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
        rounding: the rounding error of Captum's sums, relative to the terms, where it is larger than the data type's.
    """

    values: Values
    terms: Values
    error: float = 0.0
    rounding: float = 0.0

    def of_rows(self, rows: RowRange) -> Reference:
        """Returns the reference of some rows."""
        values, terms = ({name: rows.of(value) for name, value in side.items()} for side in (self.values, self.terms))
        return self._replace(values=values, terms=terms)

    def rounding_in(self, dtype: torch.dtype) -> float:
        """Returns the rounding error of sums, relative to the terms, of a model that computes in ``dtype``."""
        return max(SUM.of(dtype), self.rounding)


def exact(values: Values) -> Reference:
    """Returns a reference of values that are no sums."""
    return Reference(values, {name: value.abs() for name, value in values.items()})


def host(tensor: Tensor) -> Tensor:
    """Returns ``tensor`` in float64 on the host, without a graph."""
    return tensor.detach().cpu().double()


@runtime_checkable
class Points(Protocol):
    """The explained inputs of passes, by name, ``[batch, ...]`` each; they may be read several times."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Values]: ...


@dataclass(frozen=True)
class ComputedPoints:
    """So many `Points` that are computed while they are read: together they may take more memory than there is."""

    count: int
    compute: Callable[[], Iterator[Values]]

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Values]:
        return self.compute()


def input_point(problem: AttributionProblem) -> list[Values]:
    """Returns one point: the input itself."""
    return [{name: problem.inputs[name] for name in problem.explained}]


class _DataTypes(TorchFunctionMode):
    """A mode that notes the floating data types in which all results are computed while the block runs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        results = (returned,) if isinstance(returned, Tensor) else leaves(returned).values()
        self.seen |= {tensor.dtype for tensor in results if tensor.is_floating_point()}
        if any(tensor.is_cuda and tensor.dtype is torch.float32 for tensor in results) and rounds_to_tf32(func):
            self.seen.add(torch.float16)
        return returned


def rounds_to_tf32(operator: Any) -> bool:
    """Returns whether ``operator`` may round float32 on a GPU to TF32, of which numbers are as precise as float16's.

    https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices
    """
    name = getattr(operator, "__name__", "")
    backends: list[Any] = [torch.backends.cudnn] if "conv" in name or name in _RECURRENT else []
    backends += [torch.backends.cuda.matmul] if name in _PRODUCTS else []
    try:
        return any(backend.allow_tf32 for backend in backends)
    except RuntimeError:  # the precision was set for each kind of operator
        return True


_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_PRODUCTS = (
    *("linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "baddbmm", "addbmm", "einsum", "bilinear"),
    *("tensordot", "inner", "scaled_dot_product_attention", "multi_head_attention_forward", *_RECURRENT),
)


def operator_dtypes(problem: AttributionProblem) -> set[torch.dtype]:
    """Returns the floating data types in which operators compute in a forward pass; one pass for each kind of inputs.

    The data type of TF32 is float16.
    """
    model = problem.model

    def seen() -> set[torch.dtype]:
        with torch.no_grad(), model.unrecorded(), _DataTypes() as types:
            model.run(problem.inputs)
        return cast("set[torch.dtype]", types.seen)

    return model.remembered((operator_dtypes, model.kind_of(problem.inputs)), seen)


# Quadrature rules: the points and weights of a path integral from 0 to 1.


class QuadratureRule(NamedTuple):
    """``integral of f from 0 to 1 = sum(weights * f(alphas))``; the weights sum to 1."""

    alphas: Float64[Array, "n"]
    weights: Float64[Array, "n"]


_EIGENVALUES = 1024
"""Nodes are eigenvalues up to so many, which take a tenth of a second; 4096 take half a minute."""


@lru_cache(maxsize=64)
def gauss_legendre(n: int) -> tuple[Array, Array]:
    """Returns nodes and weights of ``n`` points from -1 to 1; cached, since 64 points take a millisecond."""
    if n <= _EIGENVALUES:
        nodes, weights = np.polynomial.legendre.leggauss(n)
        return nodes, weights
    # Newton's method from Tricomi's approximation: https://dlmf.nist.gov/18.16#vi
    nodes = np.cos(np.pi * (np.arange(n, 0, -1) - 0.25) / (n + 0.5))
    for _ in range(3):
        value, derivative = _legendre(n, nodes)
        nodes = nodes - value / derivative
    _, derivative = _legendre(n, nodes)
    return nodes, 2 / ((1 - nodes**2) * derivative**2)


def _legendre(n: int, x: Array) -> tuple[Array, Array]:
    """Returns the Legendre polynomial of degree ``n`` and its derivative at ``x``, by Bonnet's recursion."""
    before, value = np.ones_like(x), x
    for degree in range(2, n + 1):
        before, value = value, ((2 * degree - 1) * x * value - (degree - 1) * before) / degree
    return value, n * (x * value - before) / (x**2 - 1)


def rule(quadrature: Quadrature, n: int) -> QuadratureRule:
    """Returns the rule with ``n`` points from its textbook definition, in float64.

    Equidistant points are rounded to float32, as Captum's are: others would not equal Captum's points in float64.
    """
    if quadrature is Quadrature.GAUSS_LEGENDRE:
        nodes, weights = gauss_legendre(n)
        return QuadratureRule((nodes + 1) / 2, weights / 2)
    if quadrature is Quadrature.RIEMANN_TRAPEZOID:
        ends = np.full(n, 1 / (n - 1))
        ends[[0, -1]] /= 2
        return QuadratureRule(_even(0.0, 1.0, n), ends)
    shift = {Quadrature.RIEMANN_LEFT: 0.0, Quadrature.RIEMANN_MIDDLE: 0.5, Quadrature.RIEMANN_RIGHT: 1.0}[quadrature]
    return QuadratureRule(_even(shift / n, 1 - (1 - shift) / n, n), np.full(n, 1 / n))


def _even(first: float, last: float, n: int) -> Any:
    return torch.linspace(first, last, n, dtype=torch.float32).double().numpy()


@dataclass(frozen=True)
class CompletenessSums:
    """The two sides of completeness, on the host.

    Attributes:
        at_input: the target at the input.
        at_baseline: the target at the baseline.
        total: the sum of each row's attributions.
        mass: the sum of their magnitudes.
    """

    at_input: Float64[Tensor, "batch"]
    at_baseline: Float64[Tensor, "batch"]
    total: Float64[Tensor, "batch"]
    mass: Float64[Tensor, "batch"]

    @property
    def change(self) -> Float64[Tensor, "batch"]:
        """The target's change, which the attributions must sum to."""
        return self.at_input - self.at_baseline

    @property
    def delta(self) -> Float64[Tensor, "batch"]:
        """The convergence delta."""
        return self.total - self.change

    def of_rows(self, rows: RowRange) -> CompletenessSums:
        """Returns the sums of some rows."""
        return CompletenessSums(*map(rows.of, (self.at_input, self.at_baseline, self.total, self.mass)))

    def of_batch(self) -> CompletenessSums:
        """Returns the sums over all rows, ``[1]``: where rows depend on each other only these can be complete."""
        return CompletenessSums(*(side.sum(dim=0, keepdim=True) for side in astuple(self)))


def completeness_sums(problem: AttributionProblem, values: Values, outputs: Outputs) -> CompletenessSums:
    """Returns both sides for attributions ``values``.

    Args:
        problem: the attribution. A distribution's baseline is the mean over its samples; without a baseline the target
            there is 0.
        values: the attributions, by name.
        outputs: what the model returned for the input, by name.
    """
    at_baseline = torch.zeros(problem.rows, dtype=torch.float64)
    if problem.baselines:
        with torch.no_grad(), problem.shared.used() if problem.shared else nullcontext():
            sources = (problem.read({**problem.inputs, **point}) for point in problem.baseline_points)
            at_baseline = torch.stack([problem.target.scalars(source).cpu().double() for source in sources]).mean(dim=0)
    return sums_between(problem, values, target_at_inputs(problem, outputs), at_baseline)


def sums_between(
    problem: AttributionProblem, values: Values, at_input: Tensor, at_baseline: Tensor
) -> CompletenessSums:
    """Returns both sides for ``values``, where the target at the input and at the baseline is known."""
    if problem.features.numbers:  # each element of a feature has the value of the whole feature, which counts once
        shares = problem.features.shares()
        values = {name: values[name].cpu().double() * share for name, share in shares.items()}
    magnitudes = {name: value.abs() for name, value in values.items()}
    return CompletenessSums(at_input, at_baseline, row_sums(values, problem.rows), row_sums(magnitudes, problem.rows))


def target_at_inputs(problem: AttributionProblem, outputs: Outputs) -> Float64[Tensor, "batch"]:
    """Returns the target of each row ``[batch]``, float64 on the host: from ``outputs``, or for a neuron from a forward
    pass."""
    with torch.no_grad():
        source = problem.read(problem.inputs) if problem.target.is_neuron else outputs[problem.target.source]
        return problem.target.scalars(source).cpu().double()


def row_sums(values: Values, rows: int) -> Float64[Tensor, "{rows}"]:
    """Returns the sum of each row, ``[rows]``, on the host; NaN where axis 0 is not the batch."""
    if any(value.shape[:1] != (rows,) for value in values.values()):
        return torch.full((rows,), float("nan"), dtype=torch.float64)  # axis 0 of a layer need not be the batch
    sums = [value.detach().cpu().double().reshape(rows, -1).sum(dim=1) for value in values.values()]
    return torch.stack(sums).sum(dim=0)


# The difference between an attribution and its reference, for a batch and for each row.

MIN_ROW_SCALE = 1e-6
"""The scale of a row is at least this part of the batch's largest magnitude: smaller values are rounding errors."""


@dataclass(frozen=True)
class Distance:
    """The distance between an attribution and its reference, over all names.

    Attributes:
        absolute: the largest error.
        relative: the largest error of a row over the reference's largest magnitude in that row, so that a bright row
            does not hide a fault in a faint one.
        cosine: between the two, flattened.
        rounding: True where no error is larger than what is left of rounding when the reference's terms cancel.
        undefined: True where both have NaNs or infinities in the same places, and agree in all others.
    """

    absolute: float
    relative: float
    cosine: float
    rounding: bool
    undefined: bool


INCOMPARABLE = Distance(float("inf"), float("inf"), 0.0, rounding=False, undefined=False)
"""The distance of values whose names or shapes differ."""


class RowDistance(NamedTuple):
    """The distance between an attribution and its reference in one row; the fields are as in `Distance`."""

    relative: float
    rounding: bool
    undefined: bool


def distance(values: Values, reference: Reference, tolerance: float, dtype: torch.dtype) -> Distance:
    """Returns the distance of ``values``, computed in ``dtype``, from ``reference``.

    ``tolerance``: the largest relative error that counts as agreement.
    """
    pairs = _pairs(values, reference)
    if not pairs:
        return INCOMPARABLE
    relative = max(_largest(pair.relative) for pair in pairs)
    sides = [(pair.attribution.flatten(), pair.reference.flatten()) for pair in pairs]
    agree = relative <= tolerance  # False for NaN: values that agree are finite throughout
    return Distance(
        absolute=max(_largest(pair.errors) for pair in pairs),
        relative=relative,
        cosine=cosine(*map(torch.cat, zip(*sides))),
        rounding=agree or all(bool(pair.is_rounding(tolerance, reference.rounding_in(dtype)).all()) for pair in pairs),
        undefined=not agree
        and any(not bool(pair.is_finite.all()) for pair in pairs)
        and all(bool(pair.agrees_where_finite(tolerance).all()) for pair in pairs),
    )


def row_distances(values: Values, reference: Reference, tolerance: float, dtype: torch.dtype) -> list[RowDistance]:
    """Returns the same for each row: the largest ``relative`` of all rows is that of the batch.

    Empty if names or shapes differ, or if tensors have different lengths along axis 0.
    """
    pairs = _pairs(values, reference)
    if len({len(pair.errors) for pair in pairs}) != 1:
        return []
    relative = torch.cat([pair.relative for pair in pairs], dim=1)
    rounding = (
        torch.stack([pair.is_rounding(tolerance, reference.rounding_in(dtype)) for pair in pairs]).all(dim=0).tolist()
    )
    agree = torch.stack([pair.agrees_where_finite(tolerance) for pair in pairs]).all(dim=0).tolist()
    finite = torch.stack([pair.is_finite for pair in pairs]).all(dim=0).tolist()
    return [
        RowDistance(_largest(relative[row]), rounding[row], undefined=agree[row] and not finite[row])
        for row in range(len(relative))
    ]


def _pairs(values: Values, reference: Reference) -> list[_Pair]:
    """Returns ``values`` and ``reference`` name by name, in float64 on the host; empty if names or shapes differ."""
    references = reference.values
    if {name: value.shape for name, value in values.items()} != {name: ref.shape for name, ref in references.items()}:
        return []
    tensors = ((values[name].detach().cpu().double(), ref, reference.terms[name]) for name, ref in references.items())
    return [_Pair(*(tensor.reshape(len(tensor), -1) for tensor in triple)) for triple in tensors]


@dataclass(frozen=True)
class _Pair:
    """One attribution tensor, its reference, and the magnitudes of the reference's terms: [batch, elements] each."""

    attribution: Float64[Tensor, "batch elements"]
    reference: Float64[Tensor, "batch elements"]
    terms: Float64[Tensor, "batch elements"]

    @cached_property
    def errors(self) -> Float64[Tensor, "batch elements"]:
        """The absolute errors."""
        return (self.attribution - self.reference).abs()

    @cached_property
    def relative(self) -> Float64[Tensor, "batch elements"]:
        """The errors over the row's scale; 0 for equal values, even if the scale is 0."""
        return torch.where(self.errors == 0, torch.zeros_like(self.errors), self.errors / _scales(self.reference))

    @property
    def is_finite(self) -> Bool[Tensor, "batch"]:
        """Whether the reference is finite in the row."""
        return self.reference.isfinite().all(dim=1)

    def is_rounding(self, tolerance: float, rounding: float) -> Bool[Tensor, "batch"]:
        """Returns whether each error is within the tolerance, or a rounding error of terms that cancel."""
        return ((self.relative <= tolerance) | (self.errors <= rounding * self.terms)).all(dim=1)

    def agrees_where_finite(self, tolerance: float) -> Bool[Tensor, "batch"]:
        """Returns whether both are finite at the same elements, and agree there at the scale of the batch."""
        finite = self.reference.isfinite()
        allowed = tolerance * largest_magnitude(self.reference.nan_to_num(0.0, 0.0, 0.0))
        return ((self.attribution.isfinite() == finite) & ((self.errors <= allowed) | ~finite)).all(dim=1)


def _scales(reference: Float64[Tensor, "batch elements"]) -> Float64[Tensor, "batch 1"]:
    """Returns each row's largest magnitude."""
    if not reference.numel():
        return reference.new_ones(reference.shape[0], 1)
    scales = reference.abs().amax(dim=1, keepdim=True)
    return scales.clamp(min=MIN_ROW_SCALE * float(scales.max())) if bool(torch.isfinite(scales).all()) else scales


def _largest(errors: Tensor) -> float:
    # max() of a tensor passes NaN on, as it must: a NaN agrees with nothing.
    return float(errors.max()) if errors.numel() else 0.0
