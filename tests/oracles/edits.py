"""What edits are tried on, and held against: small models, and the same edits as hooks that a person writes.

A model with operators has a twin in which each operator is a module of its own, so that PyTorch's hooks can sit there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import cutaway as ca
from cutaway.contract.requests import Point
from tests.oracles.hooks import Change, Hooks, equal, flat, noise

POINTS = tuple(Point)
ROWS, WIDTH, TIMES = 3, 5, 3
TARGET = [0, 3, 1]
"""The class explained, an example each."""


class Block(nn.Module):
    """A layer, with operators before and behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        h = functional.relu(h)
        return self.inner(h) + h


class InPlace(Block):
    """The same function; each operator writes into what it gets, and the model goes on with that."""

    def forward(self, h: Tensor) -> Tensor:
        functional.relu(h, inplace=True)
        g = self.inner(h)
        g += h
        return g


class Thrifty(Block):
    """The same function; what it needs for its backward pass is computed again."""

    def forward(self, h: Tensor) -> Tensor:
        return checkpoint(super().forward, h, use_reentrant=False)


class Sum(nn.Module):
    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return one + other


class Spelt(Block):
    """The same function; each operator is a module."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.add = Sum()

    def forward(self, h: Tensor) -> Tensor:
        h = self.relu(h)
        return self.add(self.inner(h), h)


class Net(nn.Module):
    """[batch, 6] to [batch, 4] logits; seeded, so that a net and its twin have the same weights.

    Args:
        block: the kind of what is between the first layer and the last.
        times: how often it is called.
    """

    def __init__(self, block: type[nn.Module] = Block, times: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, WIDTH)
        self.block = block()
        self.last = nn.Linear(WIDTH, 4)
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for _ in range(self.times):
            h = self.block(h)
        return self.last(h)


NAMES = {
    "first": "first",
    "block": "block",
    "block.inner": "block.inner",
    "block:relu#0": "block.relu",
    "block:add#0": "block.add",
    "last": "last",
}
"""The places of a net to the modules of its twin."""

PLACES = ("block.inner", "block", "block:relu#0", "block:add#0")
"""Where edits are tried."""

IN_PLACE = {
    **{name: name for name in NAMES if ":" not in name},
    "block:relu#0": "block.relu",
    "block:add_#0": "block.add",
}
"""The same for a net that works in place."""

X = noise(ROWS, 6)
ROW, WHOLE = noise(WIDTH, seed=2).numpy(), noise(ROWS, WIDTH, seed=3).numpy()
PERMUTATION = [2, 0, 1]
UNIT, _OTHER = (torch.tensor(vector) / torch.tensor(vector).norm() for vector in (ROW, WHOLE[1]))
APART = UNIT - _OTHER


def between(value: Tensor, minimum: float | None, maximum: float | None) -> Tensor:
    """The component along `UNIT` between bounds."""
    component = (value * UNIT).sum(-1, keepdim=True)
    return value + (component.clamp(minimum, maximum) - component) * UNIT


EDIT_KINDS: dict[str, tuple[Callable[..., ca.Edit], Change]] = {
    "scale": (lambda **where: ca.Scale(**where, factor=-1.5), lambda v: v * -1.5),
    "add": (lambda **where: ca.Add(**where, addend=0.75), lambda v: v + 0.75),
    "add a row": (lambda **where: ca.Add(**where, addend=ROW), lambda v: v + torch.tensor(ROW)),
    "add a tensor": (lambda **where: ca.Add(**where, addend=WHOLE), lambda v: v + torch.tensor(WHOLE)),
    "replace": (lambda **where: ca.Replace(**where, tensor=WHOLE), lambda v: torch.tensor(WHOLE)),
    "replace by a row": (lambda **where: ca.Replace(**where, tensor=ROW), lambda v: torch.tensor(ROW).repeat(ROWS, 1)),
    "zero": (lambda **where: ca.Zero(**where), torch.zeros_like),
    "clamp": (lambda **where: ca.Clamp(**where, minimum=-0.125, maximum=0.25), lambda v: v.clamp(-0.125, 0.25)),
    "clamp below": (lambda **where: ca.Clamp(**where, minimum=0.0625), lambda v: v.clamp(min=0.0625)),
    "clamp to zero": (lambda **where: ca.Clamp(**where, minimum=-0.125, maximum=0), lambda v: v.clamp(-0.125, 0.0)),
    "clamp from zero": (lambda **where: ca.Clamp(**where, minimum=0, maximum=0.125), lambda v: v.clamp(0.0, 0.125)),
    "clamp above": (lambda **where: ca.Clamp(**where, maximum=0.0625), lambda v: v.clamp(max=0.0625)),
    "mix": (
        lambda **where: ca.Mix(**where, weight=0.3, permutation=tuple(PERMUTATION)),
        lambda v: 0.3 * v + (1 - 0.3) * v[PERMUTATION],
    ),
    "add a vector": (
        lambda **where: ca.AddVector(**where, vector=ROW, scale=-1.5),
        lambda v: v + -1.5 * torch.tensor(ROW),
    ),
    "cap a direction": (
        lambda **where: ca.ClampDirection(**where, vector=ROW, maximum=-0.0625),
        lambda v: between(v, None, -0.0625),
    ),
    "remove a direction": (
        lambda **where: ca.ClampDirection(**where, vector=ROW, minimum=0, maximum=0),
        lambda v: between(v, 0, 0),
    ),
    "swap two directions": (
        lambda **where: ca.SwapDirections(**where, vector=ROW, other=WHOLE[1]),
        lambda v: v - 2 * (v * APART).sum(-1, keepdim=True) * (APART / (APART * APART).sum()),
    ),
    "add a vector of the same length": (
        lambda **where: ca.AddVector(**where, vector=ROW, scale=2.0, norm=ca.VectorNorm.MATCH),
        lambda v: v + 2.0 * (torch.tensor(ROW) * (v.norm(dim=-1, keepdim=True) / torch.tensor(ROW).norm())),
    ),
}
"""Each verb as an edit, and as a person writes it."""


class Hook(NamedTuple):
    """An edit as a person writes it: the module, the point, the change, and at which call; None is every call."""

    name: str
    point: Point
    change: Change
    call: int | None = None


class Record(NamedTuple):
    """One forward and one backward pass, with hooks by hand.

    Attributes:
        prediction: what the model returned.
        inputs: the gradient at the input; None where none arrived.
        parameters: gradients by parameter name, without those that did not arrive.
        hooks: what hooks behind the edits saw.
    """

    prediction: Tensor
    inputs: Tensor | None
    parameters: dict[str, Tensor]
    hooks: Hooks


def by_hand(model: Net, edits: Sequence[Hook], names: Iterable[str] = NAMES.values()) -> Record:
    """Run ``model`` with ``edits``, and look at all points of ``names`` with further hooks behind them."""
    leaf = X.clone().requires_grad_()
    with Hooks(model) as hooks:
        for edit in edits:
            hooks.change(edit.name, edit.point, edit.change, call=edit.call, calls=model.times)
        for name in names:
            hooks.see(name, *POINTS)
        prediction = model(leaf)
        prediction.gather(1, torch.tensor(TARGET)[:, None]).sum().backward()
    parameters = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    model.zero_grad(set_to_none=True)
    return Record(prediction.detach(), leaf.grad, parameters, hooks)


def ask(client: ca.Client, model: str, *edits: ca.Edit, names: Mapping[str, str] = NAMES, **more: Any) -> Any:
    """The whole reply about a net: its prediction, every point of all ``names``, and all gradients."""
    captures = [ca.Capture(**place(name), at=POINTS) for name in names]
    asked = {"target": TARGET, "input_gradients": True, **more}
    whole = [*captures, ca.Capture(parameter="**")]
    return client.inspect(model, {"x": X.numpy()}, edits=edits, captures=whole, **asked)


def place(name: str) -> dict[str, Any]:
    """Where a capture or an edit sits."""
    return {"op": name} if ":" in name else {"module": name}


def assert_same(
    result: ca.InspectResult, record: Record, names: Mapping[str, str] = NAMES, *, zero_is_none: bool = False
) -> None:
    """The reply is what the hooks by hand saw, bit for bit, nothing missing and nothing more.

    Args:
        result: the reply.
        record: what was seen by hand.
        names: places to modules of the twin.
        zero_is_none: whether a gradient that is zero everywhere is as good as none.
    """
    assert equal(result.predictions["output"], record.prediction)
    pairs: dict[str, tuple[list[np.ndarray], list[Tensor]]] = {
        "input": (list(result.input_gradients.values()), [] if record.inputs is None else [record.inputs])
    }
    for name in result.parameter_gradients.keys() | record.parameters.keys():
        ours, theirs = result.parameter_gradients.get(name), record.parameters.get(name)
        pairs[name] = ([] if ours is None else [ours], [] if theirs is None else [theirs])
    for name, twin in names.items():
        for point in POINTS:
            seen = [flat(each) for each in getattr(record.hooks, point.value).get(twin, [])]
            pairs |= _calls(result.captures[name], point, seen, f"{point} of {name}")
    for what, (mine, yours) in pairs.items():
        if zero_is_none:
            mine, yours = [each for each in mine if each.any()], [each for each in yours if each.any()]
        assert len(mine) == len(yours), what
        for one, other in zip(mine, yours):
            assert equal(one, other), f"{what}: {one} is not {other}"


def _calls(capture: ca.ModuleCapture, point: Point, theirs: list[list[Tensor]], what: str) -> Any:
    """Call by call, our tensors at ``point`` and theirs."""
    if point.is_gradient:  # which the last call gets first, and the first perhaps not at all
        theirs = [[] for _ in range(len(capture.calls) - len(theirs))] + theirs[::-1]
    assert len(capture.calls) == len(theirs), what
    ours = [list(call.leaves.get(point, {}).values()) for call in capture.calls]
    return {f"{what}, call {number}": pair for number, pair in enumerate(zip(ours, theirs))}
