"""What operators are held against: a forward written anew by hand, with a probe around one operator of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import Point
from cutaway.contract.results import InspectResult
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from tests.oracles.hooks import Change, flat, noise

POINTS = tuple(Point)
INCOMING = (Point.INPUT, Point.GRAD_INPUT)
OUTGOING = (Point.OUTPUT, Point.GRAD_OUTPUT)
VALUES = (Point.INPUT, Point.OUTPUT)

Operator = Callable[..., Any]


X = {"x": noise(3, 4, 4)}


def ask(model: nn.Module, inputs: Mapping[str, Tensor] = X, **asked: Any) -> InspectResult:
    """One request, by the engine itself."""
    subject = InspectedModel(model.eval(), lambda given: model(**given))
    return inspect(subject, ca.InspectRequest("m", **asked), dict(inputs))


def refilled(value: Any, tensors: list[Tensor]) -> Any:
    """``value`` with ``tensors`` in place of its own."""
    if isinstance(value, Tensor):
        return tensors.pop(0)
    return [refilled(each, tensors) for each in value] if isinstance(value, (tuple, list)) else value


class Probe:
    """What a person writes around an operator: makes each tensor a node of its own, notes it, may change it."""

    def __init__(self, at: Point | None = None, change: Change = lambda value: value) -> None:
        self.seen: dict[Point, list[Tensor | None]] = {point: [] for point in POINTS}
        self.constants: tuple[int, ...] = ()
        self._at, self._change = at, change

    def given(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """What goes on in place of what the operator is given."""
        return [self._node(*INCOMING, tensor, place in self.constants) for place, tensor in enumerate(tensors)]

    def returned(self, value: Any) -> Any:
        """What goes on in place of what it returned."""
        return refilled(value, [self._node(*OUTGOING, tensor) for tensor in flat(value)])

    def _node(self, value: Point, gradient: Point, tensor: Tensor, constant: bool = False) -> Tensor:
        if tensor.is_floating_point() and value is self._at:
            tensor = self._change(tensor)
        if tensor.is_floating_point() and not constant:
            tensor = (tensor if tensor.requires_grad else tensor.detach().requires_grad_()).clone()
            tensor.register_hook(self._noting(gradient))
        self.seen[value].append(tensor.detach().clone())
        return tensor

    def _noting(self, gradient: Point) -> Callable[[Tensor], Tensor]:
        place = len(self.seen[gradient])
        self.seen[gradient].append(None)

        def note(arrived: Tensor) -> Tensor:
            changed = self._change(arrived) if gradient is self._at else arrived
            self.seen[gradient][place] = changed.detach().clone()
            return changed

        return note


def by_hand(model: nn.Module, inputs: Mapping[str, Tensor] = X) -> tuple[Tensor, Tensor | None]:
    """The prediction, and the predicted class's gradient at ``x``."""
    x = inputs["x"].clone().requires_grad_()
    output = model.eval()(x)
    output.gather(1, output.argmax(1, keepdim=True)).sum().backward()
    return output.detach(), x.grad


class Wired(nn.Module):
    """Two layers, a head, and a function that wires them."""

    def __init__(self, wiring: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.wiring = wiring
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Any:
        return self.wiring(self, x)


class Twin(Wired):
    """The same, written anew with a probe."""

    def __init__(self, wiring: Callable[..., Any], probe: Probe, **parts: nn.Module) -> None:
        super().__init__(wiring, **parts)
        self.probe = probe

    def forward(self, x: Tensor) -> Any:
        return self.wiring(self, x, self.probe)


ROW = {"x": noise(3, 4)}


EVERY = ca.Capture(op="**:*#*", at="output")


def addresses(result: InspectResult) -> dict[str, int]:
    """What ran, and how often."""
    return {address: len(capture.calls) for address, capture in result.captures.items()}


class Block(nn.Module):
    """Operators before and behind a child."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.inner(torch.relu(x))) + x


def whole(m: Any, x: Tensor) -> Tensor:
    h = torch.relu(m.block(m.a(x))) - 0.25
    h += torch.relu(m.b(x))
    return m.head(torch.tanh(h) * 2)
