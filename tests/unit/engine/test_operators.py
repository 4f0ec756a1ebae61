"""Operators inside a module's forward: what is seen and changed there is what a person sees and changes who writes the
forward anew, with a probe around the operator. Here one operator at a time, of many kinds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from cutaway.contract.requests import Point
from tests.oracles.hooks import equal, flat, noise
from tests.oracles.operators import POINTS, Operator, Probe, ask, by_hand


class Site(nn.Module):
    """One operator, alone in a module; or the same with a probe around it."""

    def __init__(self, operator: Operator, probe: Probe | None = None) -> None:
        super().__init__()
        self.operator = operator
        self.probe = probe

    def forward(self, *given: Tensor) -> Any:
        if self.probe is None:
            return self.operator(*given)
        return self.probe.returned(self.operator(*self.probe.given(given)))


class Around(nn.Module):
    """[3, 4, 4] to [3, 3] logits that depend on everything that an operator returns."""

    def __init__(self, given: Callable[[Any, Tensor], Sequence[Tensor]], operator: Operator, probe: Probe | None):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.w, self.bias = nn.Parameter(noise(4, 4, seed=2)), nn.Parameter(noise(4, seed=3))
        self.kernel = nn.Parameter(noise(2, 3, 2, 2, seed=4))
        self.register_buffer("mean", noise(4, seed=5))
        self.register_buffer("variance", noise(4, seed=6).exp())
        self.head = nn.Linear(16, 3)
        self.given = given
        self.site = Site(operator, probe)

    def forward(self, x: Tensor) -> Tensor:
        returned = flat(self.site(*self.given(self, x)))
        return self.head(x.flatten(1)) + torch.stack([weighted(each) for each in returned]).sum()


def weighted(tensor: Tensor) -> Tensor:
    """A number that depends on every element in a way of its own."""
    return (tensor.flatten() * torch.arange(tensor.numel()).cos()).sum()


def one(m: Any, x: Tensor) -> list[Tensor]:
    return [m.a(x)]


def two(m: Any, x: Tensor) -> list[Tensor]:
    return [m.a(x), m.b(x)]


def twice(m: Any, x: Tensor) -> list[Tensor]:
    return [m.a(x)] * 2


def weights(m: Any, x: Tensor) -> list[Tensor]:
    return [m.a(x), m.w, m.bias]


def masked(m: Any, x: Tensor) -> list[Tensor]:
    return [x > 0, m.a(x), m.b(x)]


def half_masked(m: Any, x: Tensor) -> list[Tensor]:
    return [m.a(x), x > 0]


def recurrent(m: Any, x: Tensor) -> list[Tensor]:
    return [m.a(x), x[:1, :, :].detach(), m.b(x)[:1], *(m.w.repeat(4, 1), m.w.repeat(4, 1) / 2)]


def attended(m: Any, x: Tensor) -> list[Tensor]:
    return [m.a(x), m.b(x), x, m.w.repeat(3, 1), m.bias.repeat(3), m.w, m.bias]


def attend(q: Tensor, k: Tensor, v: Tensor, *weights: Tensor) -> Any:
    inside, shift, outside, bias = weights
    return F.multi_head_attention_forward(
        q, k, v, 4, 2, inside, shift, None, None, False, 0.0, outside, bias, training=False
    )


@dataclasses.dataclass(frozen=True)
class Case:
    """One operator.

    Attributes:
        name: its name in addresses.
        operator: it.
        given: what it is given.
        twin: the same function without writing in place; by default the operator itself.
        constants: which of them PyTorch knows no gradient of.
        tolerance: relative; PyTorch may take another kernel where a copy lies elsewhere.
    """

    name: str
    operator: Operator
    given: Callable[[Any, Tensor], Sequence[Tensor]] = one
    twin: Operator | None = None
    constants: tuple[int, ...] = ()
    tolerance: float = 0.0

    def build(self) -> Around:
        return Around(self.given, self.operator, None)

    def probed(self, probe: Probe) -> Around:
        probe.constants = self.constants
        return Around(self.given, self.twin or self.operator, probe)

    @property
    def op(self) -> str:
        return f"site:{self.name}#0"


def write(h: Tensor, value: Tensor) -> Tensor:
    h[:, 1] = value
    return h


def written(h: Tensor, value: Tensor) -> Tensor:
    return torch.cat([h[:, :1], value[:, None], h[:, 2:]], 1)


CASES = {
    "F.relu": Case("relu", F.relu),
    "torch.relu": Case("relu", torch.relu),
    "x.relu()": Case("relu", lambda a: a.relu()),
    "an overload": Case("relu", torch.ops.aten.relu.default),
    "x + y": Case("add", lambda a, b: a + b, two),
    "1 + x": Case("add", lambda a: 1 + a),
    "x + x": Case("add", lambda a, b: a + b, twice),
    "x - y": Case("sub", lambda a, b: a - b, two),
    "1 - x": Case("rsub", lambda a: 1 - a),
    "x * y": Case("mul", lambda a, b: a * b, two),
    "x / y": Case("div", lambda a, b: a / b, two),
    "x ** 2": Case("pow", lambda a: a**2),
    "-x": Case("neg", lambda a: -a),
    "x @ y": Case("matmul", lambda a, b: a @ b, two),
    "torch.matmul": Case("matmul", torch.matmul, two),
    "einsum": Case("einsum", lambda a, b: torch.einsum("bij,bkj->bik", a, b), two),
    "cat": Case("cat", lambda a, b: torch.cat([a, b], 1), two),
    "stack": Case("stack", lambda a, b: torch.stack([a, b], dim=2), two),
    "chunk": Case("chunk", lambda a: a.chunk(2, dim=1)),
    "split": Case("split", lambda a: torch.split(a, [1, 3], dim=2)),
    "max over an axis": Case("max", lambda a: a.max(dim=1)),
    "max of two": Case("max", torch.max, two),
    "where": Case("where", torch.where, masked),
    "masked_fill": Case("masked_fill", lambda a, mask: a.masked_fill(mask, -2.0), half_masked),
    "softmax": Case("softmax", lambda a: F.softmax(a, dim=-1)),
    "layer_norm": Case(
        "layer_norm", lambda a, *w: F.layer_norm(a, (4,), *w), lambda m, x: [m.a(x), m.bias, m.bias * 2]),
    "gelu": Case("gelu", F.gelu),
    "dropout in evaluation": Case("dropout", lambda a: F.dropout(a, 0.5, training=False)),
    "linear": Case("linear", F.linear, weights),
    "conv2d": Case("conv2d", F.conv2d, lambda m, x: [m.a(x)[None], m.kernel]),
    "batch norm": Case(
        "batch_norm", F.batch_norm,
        lambda m, x: [m.a(x), m.mean, m.variance, m.bias, m.bias * 2], constants=(1, 2)),
    "scaled_dot_product_attention": Case(
        "scaled_dot_product_attention", F.scaled_dot_product_attention, lambda m, x: [m.a(x), m.b(x), x]),
    "multi_head_attention_forward": Case("multi_head_attention_forward", attend, attended),
    "view": Case("view", lambda a: a.view(3, 16)),
    "reshape": Case("reshape", lambda a: a.reshape(4, -1)),
    "transpose": Case("transpose", lambda a: a.transpose(0, 1)),
    "mT": Case("mT", lambda a: a.mT),
    "x[...]": Case("getitem", lambda a: a[:, 1:, ::2]),
    "x[mask]": Case("getitem", lambda a, mask: a[mask], half_masked),
    "expand": Case("expand", lambda a: a.expand(3, 5, 4), lambda m, x: [m.a(x)[:, :1]]),
    "contiguous, which returns its argument": Case("contiguous", lambda a: a.contiguous()),
    "to the same type": Case("to", lambda a: a.to(torch.float32)),
    "to another type": Case("to", lambda a: a.to(torch.float64)),
    "x.double()": Case("double", lambda a: a.double()),
    "comparison": Case("gt", lambda a, b: a > b, two),
    "~mask": Case("invert", lambda mask: ~mask, lambda m, x: [x > 0]),
    "zeros_like": Case("zeros_like", lambda a: torch.zeros_like(a)),
    "arange": Case("arange", lambda: torch.arange(4.0), lambda m, x: []),
    "argmax": Case("argmax", lambda a: a.argmax(-1)),
    "embedding": Case("embedding", lambda i, w: F.embedding(i, w), lambda m, x: [(x > 0).long(), m.w]),
    "cross_entropy with weights": Case(
        "cross_entropy", lambda a, i, w: F.cross_entropy(a, i, w),
        lambda m, x: [m.a(x), torch.tensor([[0, 1, 2, 3]] * 3), m.variance], constants=(2,)),
    "lstm": Case(
        "lstm", lambda x, h, c, *w: torch.lstm(x, (h, c), w, False, 1, 0.0, False, False, False), recurrent,
        tolerance=1e-6),
    # In place.
    "relu_": Case("relu_", torch.relu_, twin=torch.relu),
    "F.relu in place": Case("relu", lambda a: F.relu(a, inplace=True), twin=F.relu),
    "leaky_relu in place, by position": Case(
        "leaky_relu", lambda a: F.leaky_relu(a, 0.1, True), twin=lambda a: F.leaky_relu(a, 0.1)),
    "dropout in place, in evaluation": Case("dropout", lambda a: F.dropout(a, 0.5, False, True), twin=lambda a: a),
    "by keyword": Case("relu_", lambda a: torch.relu_(input=a), twin=torch.relu),
    "x.mul_(y)": Case("mul_", lambda a, b: a.mul_(b), two, twin=torch.mul),
    "x.add_(x)": Case("add_", lambda a, b: a.add_(b), twice, twin=torch.add),
    "setitem": Case("setitem", write, lambda m, x: [m.a(x), m.b(x)[:, 0]], twin=written),
    "masks or-ed": Case("ior", lambda m, n: m.__ior__(n), lambda m, x: [x > 0, x > 1], twin=torch.logical_or),
    "transpose_": Case("transpose_", lambda a: a.transpose_(0, 1), twin=lambda a: a.transpose(0, 1)),
    "unsqueeze_": Case("unsqueeze_", lambda a: a.unsqueeze_(0), twin=lambda a: a.unsqueeze(0)),
    "zero_": Case("zero_", lambda a: a.zero_(), twin=lambda a: a * 0),
}  # fmt: skip


def there(probe: Probe) -> list[Point]:
    """The points at which there is something."""
    return [point for point in POINTS if probe.seen[point]]


def compare(case: Case, asked: Sequence[Point]) -> list[str]:
    """Where a request for ``asked`` shows something else than the probe."""
    probe = Probe()
    prediction, _ = by_hand(case.probed(probe))
    points = tuple(point for point in asked if point in there(probe))
    result = ask(case.build(), captures=(ca.Capture(op=case.op, at=points),) if points else ())
    wrong = [] if equal(result.predictions["output"], prediction, case.tolerance) else ["prediction"]
    for point in points:
        ours = list(result.captures[case.op].calls[0].leaves.get(point, {}).values())
        theirs = [tensor for tensor in probe.seen[point] if tensor is not None]
        same = len(ours) == len(theirs) and all(map(equal, ours, theirs, [case.tolerance] * len(ours)))
        wrong += [] if same else [f"{point} of {asked}"]
    return wrong


@pytest.mark.parametrize("name", CASES)
def test_an_operators_values_and_gradients_are_those_that_a_probe_sees(name: str) -> None:
    """Bit for bit, alone and together; and the prediction is that of the model that nobody looks at."""
    case = CASES[name]
    assert not [why for asked in (*((point,) for point in POINTS), POINTS) for why in compare(case, asked)]
    plain, _ = by_hand(case.build())
    observed = ask(case.build(), captures=(ca.Capture(op="site:*#*", at=there_by_hand(case)),))
    assert equal(observed.predictions["output"], plain, case.tolerance)


def there_by_hand(case: Case) -> tuple[Point, ...]:
    probe = Probe()
    by_hand(case.probed(probe))
    return tuple(there(probe))


@pytest.mark.parametrize("name", CASES)
def test_an_edit_at_an_operator_is_the_forward_written_anew(name: str) -> None:
    """At each point: the prediction, and the gradient that arrives at the model's input."""
    case = CASES[name]
    for point in POINTS:
        probe = Probe(point, lambda value: value * 1.5)
        prediction, gradient = by_hand(case.probed(probe))
        if not any(tensor is None or tensor.is_floating_point() for tensor in probe.seen[point]):
            continue
        edit = ca.Scale(op=case.op, at=point, factor=1.5)
        result = ask(case.build(), edits=(edit,), input_gradients=())
        assert equal(result.predictions["output"], prediction, case.tolerance), point
        assert equal(result.input_gradients.get("x"), gradient, case.tolerance), point
