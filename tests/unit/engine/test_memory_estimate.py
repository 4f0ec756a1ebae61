"""What the activations of a request take, before it runs: counted by hand, and never more than they do."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import InspectRequest
from cutaway.engine.cost.estimate import FEW_ROWS, least_bytes
from cutaway.engine.execution.fitting import rows_that_fit
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.planning.plan import plan_request

SIDE = 8
PIXEL = 4 * SIDE * SIDE
"""Bytes of one channel."""

INPUT, HIDDEN = 3 * PIXEL, 16 * PIXEL


class Net(nn.Module):
    """Two convolutions, of which the second one's result is overwritten; counts its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rectifier = nn.Conv2d(3, 16, 3, padding=1), nn.ReLU()
        self.second, self.in_place = nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(inplace=True)
        self.rows = 0

    def forward(self, x: Tensor) -> Tensor:
        self.rows += len(x)
        hidden: Tensor = self.in_place(self.second(self.rectifier(self.first(x))))
        return hidden.amax((2, 3))


PLENTY = 1 << 40


def estimated(net: nn.Module, rows: int = 64, allowed: int = PLENTY, **asked: Any) -> int:
    model = InspectedModel(net, lambda arguments: net(**arguments))
    plan = plan_request(model, InspectRequest("m", **asked), {"x": torch.ones(rows, 3, SIDE, SIDE)})
    return least_bytes(plan, allowed)


@pytest.mark.parametrize(
    ("asked", "row"),
    [
        ({}, INPUT + 2 * HIDDEN),
        ({"input_gradients": ()}, INPUT + 2 * HIDDEN),
        ({"attributions": (ca.IntegratedGradients(),)}, INPUT + 2 * HIDDEN),
        ({"captures": (ca.Capture("first"),)}, INPUT + 3 * HIDDEN),
        ({"captures": (ca.Capture("first", slices=(ca.Slice(1, 0, 1),)),)}, INPUT + 2 * HIDDEN),
    ],
    ids=["predictions", "input gradients", "explanation", "capture", "a part of a capture"],
)
def test_rows_take_what_is_alive_at_one_time(asked: dict[str, Any], row: int) -> None:
    """A copy of the input, and the largest two results; more only where the reply keeps it."""
    assert row * 64 <= estimated(Net(), **asked) <= (row + 64) * 64


def test_weights_of_fused_attention_count() -> None:
    """They and their copy for the reply; of one query only while they are computed."""

    class Attends(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.scaled_dot_product_attention(x, x, x).mean((1, 2))

    net, rows, tokens = Attends(), 64, 128
    model = InspectedModel(net, lambda arguments: net(**arguments))
    weights, inputs = 4 * 4 * tokens * tokens, {"x": torch.ones(rows, 4, tokens, 4)}

    def of_captures(**part: Any) -> int:
        captures = (ca.Capture(op=":attention_weights#0", **part),) if part else ()
        return least_bytes(plan_request(model, InspectRequest("m", captures=captures), inputs), PLENTY) // rows

    plain = of_captures()
    assert plain < weights / 4
    assert plain + weights <= of_captures(position=-1) < plain + 1.5 * weights
    assert 2 * weights <= of_captures(call=None) < plain + 2.5 * weights


def test_a_graph_keeps_what_a_plain_pass_lets_go() -> None:
    deep = nn.Sequential(*[nn.Sequential(nn.Conv2d(3, 3, 1), nn.Tanh()) for _ in range(8)])
    model = InspectedModel(deep, lambda arguments: deep(arguments["x"]))
    inputs = {"x": torch.ones(64, 3, SIDE, SIDE)}
    plain = least_bytes(plan_request(model, InspectRequest("m"), inputs), PLENTY)
    graph = least_bytes(plan_request(model, InspectRequest("m", input_gradients=()), inputs), PLENTY)
    assert plain == 64 * 4 * INPUT  # the copy, what the outer Sequential holds, and two results
    assert graph == 64 * 10 * INPUT


def test_what_is_the_same_for_all_rows_is_not_multiplied() -> None:
    class Masked(Net):
        def forward(self, x: Tensor) -> Tensor:
            mask = torch.ones(1000, 1000)
            return super().forward(x) * mask[0, 0]

    assert estimated(Masked()) == estimated(Net())


@pytest.mark.parametrize("divides", [False, True])
def test_a_model_that_divides_its_batch_is_not_refused(divides: bool) -> None:
    """It never has more than four rows at work, and only their small results stay; another one is refused, whose rows
    cannot run apart because they depend on each other."""

    class InParts(Net):
        def forward(self, x: Tensor) -> Tensor:
            parts = x.split(4) if divides else [x]
            return torch.cat([super(InParts, self).forward(part) for part in parts]) + x.sum()

    allowed = 200 * (INPUT + 2 * HIDDEN)
    assert (estimated(InParts(), rows=1000, allowed=allowed) > allowed) is not divides


def test_rows_that_may_run_apart_are_refused_for_their_reply_only() -> None:
    """A thousand rows of which two hundred fit run in parts, unless what is captured of all of them does not fit."""
    allowed = 200 * (INPUT + 2 * HIDDEN)
    assert estimated(Net(), rows=1000, allowed=allowed) < allowed
    assert estimated(Net(), rows=1000, allowed=allowed, captures=(ca.Capture("first"),)) > 1000 * HIDDEN > allowed


def test_two_rows_are_run_once_for_each_kind_of_rows() -> None:
    net = Net()
    model = InspectedModel(net, lambda arguments: net(**arguments))
    for rows in (FEW_ROWS, 1000):
        least_bytes(plan_request(model, InspectRequest("m"), {"x": torch.ones(rows, 3, SIDE, SIDE)}), PLENTY)
        assert net.rows == 3
    assert not estimated(Net(), rows=FEW_ROWS - 1)


def test_a_pass_that_stops_early_or_fails_is_not_estimated() -> None:
    class Broken(Net):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError

    assert not estimated(Broken())
    assert not estimated(Net(), captures=(ca.Capture("first", call=0),), omit_predictions=True)


def test_a_sparse_buffer_is_no_activation() -> None:
    """It has no storage of its own; the arrays that it consists of are weights."""
    plain, sparse = Net(), Net()
    sparse.register_buffer("adjacency", torch.eye(1000).to_sparse())
    fit = [
        rows_that_fit(InspectedModel(net, partial(_called, net)), {"x": torch.ones(4, 3, SIDE, SIDE)}, PLENTY)
        for net in (plain, sparse)
    ]
    assert fit[0] == fit[1]


def _called(net: nn.Module, arguments: Any) -> Any:
    return net(**arguments)
