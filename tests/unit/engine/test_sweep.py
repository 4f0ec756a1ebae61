"""Sweeps: each number is what a hook written by hand gives, whatever runs together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import TensorAdapter, load_model
from cutaway.contract.errors import CutawayError
from cutaway.contract.results import InspectResult
from cutaway.engine.cost.estimate import estimate
from cutaway.engine.cost.pass_count import costs
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.planning.plan import plan_request


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 3), nn.Flatten(), nn.Linear(48, 5))


X = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))
ONE = ca.ClassIndex((1,))


def asked(module: nn.Module, x: Tensor = X, **request: Any) -> InspectResult:
    model = load_model(TensorAdapter(module), "cpu")
    return inspect(model, ca.InspectRequest("m", **request), {"input": x})


@torch.no_grad()
def by_hand(
    module: Any, name: str, place: int, read: Callable[[Tensor], Tensor], source: int | None = 0, x: Tensor = X
) -> Tensor:
    """The target of each row, with the place of the module's output as in the row ``source``, or 0."""
    kept: list[Tensor] = []

    def patch(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        new = output.clone()
        new[:, place] = 0 if source is None else output[source, place]
        kept.append(new)
        return new

    with module.get_submodule(name).register_forward_hook(patch):
        return read(module(x))


@pytest.mark.parametrize("source", [0, 2, None])
def test_each_place_is_that_of_a_hook(source: int | None) -> None:
    """Of every module that a glob names, for every row: the channels of a layer, the units of another one."""
    net = network()
    sweep = ca.Sweep("*", source=source or 0, zeros=source is None)
    result = asked(net, target=ONE, sweep=sweep)
    assert {name: table.shape for name, table in result.sweep.items()} == {
        "0": (3, 4), "1": (3, 4), "2": (3, 3), "3": (3, 48), "4": (3, 5),
    }  # fmt: skip
    for name, table in result.sweep.items():
        for place in range(table.shape[1]):
            expected = by_hand(net, name, place, lambda output: output[:, 1], source)
            np.testing.assert_allclose(table[:, place], expected, rtol=0, atol=1e-6)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    assert result.sweep_agreement is None
    assert not result.sweep_estimates


def test_places_are_chosen_and_counted_from_the_end() -> None:
    whole = asked(network(), target=ONE, sweep=ca.Sweep("0")).sweep["0"]
    some = asked(network(), target=ONE, sweep=ca.Sweep("0", places=(3, 0, -2))).sweep["0"]
    np.testing.assert_allclose(some, whole[:, [3, 0, 2]], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("target", "read"),
    [
        (ca.ClassIndex((1, 0, 4)), lambda output: output[range(3), [1, 0, 4]]),
        (ca.Contrast(ca.ClassIndex((1,)), ca.ClassIndex((2,))), lambda output: output[:, 1] - output[:, 2]),
        (ca.OutputSum(), lambda output: output.sum(dim=1)),
        (ca.CrossEntropy((1, 0, 4)), lambda output: nn.functional.cross_entropy(
            output, torch.tensor([1, 0, 4]), reduction="none")),
        (ca.PredictedClass(), lambda output: output[range(3), network()(X).argmax(dim=1)]),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_each_row_has_its_own_target(target: ca.Target, read: Callable[[Tensor], Tensor]) -> None:
    net = network()
    table = asked(net, target=target, sweep=ca.Sweep("2")).sweep["2"]
    for place in range(3):
        np.testing.assert_allclose(table[:, place], by_hand(net, "2", place, read), rtol=0, atol=1e-6)


def test_a_neuron_is_a_target() -> None:
    net = network()
    table = asked(net, target=ca.Neuron("2", (1, 0, 0)), sweep=ca.Sweep("0")).sweep["0"]
    for place in range(4):
        expected = by_hand(net[:3], "0", place, lambda output: output[:, 1, 0, 0])
        np.testing.assert_allclose(table[:, place], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "edit",
    [
        ca.Scale("0", factor=2.0),
        ca.Zero("0", rows=(1,)),
        ca.Zero("1", slices=(ca.Slice(1, 0, 2),)),
        ca.Mix("0", weight=0.25, permutation=(1, 2, 0)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_edits_hold_in_every_pass(edit: ca.Edit) -> None:
    """A sweep is of the edited model; what one row becomes depends on its number."""

    class Edited(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: Tensor) -> Tensor:
            h = self.net[0](x)
            if edit.module == "0":
                h = torch.from_numpy(
                    asked(self.net, x, captures=(ca.Capture("0"),), edits=(edit,)).captures["0"].output
                )
            h = self.net[1](h)
            if edit.module == "1":
                h = h.index_fill(1, torch.tensor([0, 1]), 0.0)
            return self.net[2:](h)

    table = asked(network(), target=ONE, edits=(edit,), sweep=ca.Sweep("2")).sweep["2"]
    for place in range(3):
        expected = by_hand(Edited(), "net.2", place, lambda output: output[:, 1])
        np.testing.assert_allclose(table[:, place], expected, rtol=0, atol=1e-5)


class Mean(nn.Module):
    """Whose rows depend on each other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, input: Tensor) -> Tensor:
        h = self.first(input)
        return self.last(torch.tanh(h - h.mean(dim=0)))


def test_rows_that_depend_on_each_other_run_as_they_are() -> None:
    torch.manual_seed(0)
    net, x = Mean(), torch.randn(5, 4)
    table = asked(net, x, target=ONE, sweep=ca.Sweep("first", source=2)).sweep["first"]
    for place in range(6):
        expected = by_hand(net, "first", place, lambda output: output[:, 1], 2, x)
        np.testing.assert_array_equal(table[:, place], expected.double())


class Several(nn.Module):
    """Whose module returns a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.last = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, input: Tensor) -> Tensor:
        output, _ = self.rnn(input)
        return self.last(output)[:, -1]


def test_the_times_of_a_recurrent_layer() -> None:
    torch.manual_seed(0)
    net, x = Several(), torch.randn(2, 5, 2)
    table = asked(net, x, target=ONE, sweep=ca.Sweep("rnn")).sweep["rnn"]
    with torch.no_grad():
        clean = net.rnn(x)[0]
        ends = net.last(clean)[:, -1, 1].tolist()
    np.testing.assert_allclose(table[1], [*[ends[1]] * 4, ends[0]], rtol=0, atol=1e-6)
    with pytest.raises(CutawayError, match=r"PATH_NOT_FOUND \[sweep.path\]"):
        asked(net, x, target=ONE, sweep=ca.Sweep("rnn", path="[7]"))


class TimeFirst(nn.Module):
    """Whose layer runs [time, batch, features]."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.last = nn.LSTM(2, 3), nn.Linear(3, 2)

    def forward(self, input: Tensor) -> Tensor:
        output, _ = self.rnn(input.transpose(0, 1))
        return self.last(output.cumsum(dim=0)[-1])


@pytest.mark.parametrize("axis", [0, 2])
def test_rows_may_be_on_another_axis(axis: int) -> None:
    """The times, or the features, of a layer whose rows are behind its times."""
    torch.manual_seed(0)
    net, x = TimeFirst(), torch.randn(3, 5, 2)
    result = asked(net, x, target=ONE, sweep=ca.Sweep("rnn", axis=axis, source=1, estimate=True))
    table = result.sweep["rnn"]
    assert table.shape == (3, 5 if axis == 0 else 3)
    with torch.no_grad():
        clean = net.rnn(x.transpose(0, 1))[0]
        for place in range(table.shape[1]):
            new = clean.clone()
            new.select(axis, place).copy_(clean[:, 1:2].expand(-1, 3, -1).select(axis, place))
            np.testing.assert_allclose(table[:, place], net.last(new.sum(dim=0))[:, 1], rtol=0, atol=1e-6)
    np.testing.assert_allclose(result.sweep_estimates["rnn"], table, rtol=0, atol=1e-6)
    with pytest.raises(CutawayError, match=r"AXIS_RANGE \[sweep.axis\].*rows on axis 1"):
        asked(net, x, target=ONE, sweep=ca.Sweep("rnn", axis=1))


def test_estimates_are_gradients_times_changes() -> None:
    """In a linear model they are exact; elsewhere they agree in part."""
    torch.manual_seed(0)
    linear = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    result = asked(linear, torch.randn(3, 4), target=ONE, sweep=ca.Sweep("0", estimate=True))
    np.testing.assert_allclose(result.sweep_estimates["0"], result.sweep["0"], rtol=0, atol=1e-6)
    assert result.sweep_agreement is not None
    np.testing.assert_allclose(result.sweep_agreement, [1, 1, 1], rtol=0, atol=1e-6)
    net, x = network(), X.clone().requires_grad_()
    found = asked(net, target=ONE, sweep=ca.Sweep("0", source=1, estimate=True))
    h = net[0](x).detach().requires_grad_()
    target = net[1:](h)[:, 1]
    (gradient,) = torch.autograd.grad(target.sum(), h)
    expected = target.unsqueeze(1) + (gradient * (h[1:2] - h)).sum(dim=(2, 3))
    np.testing.assert_allclose(found.sweep_estimates["0"], expected.detach(), rtol=0, atol=1e-6)
    exact, linear_part = (each - target.detach().double().numpy()[:, None] for each in (
        found.sweep["0"], found.sweep_estimates["0"]))  # fmt: skip
    cosine = (exact * linear_part).sum(1)[[0, 2]] / (
        np.linalg.norm(exact, axis=1) * np.linalg.norm(linear_part, axis=1)
    )[[0, 2]]
    assert found.sweep_agreement is not None
    np.testing.assert_allclose(found.sweep_agreement[[0, 2]], cosine, rtol=0, atol=1e-6)
    assert found.sweep_agreement[1] == 1


def test_what_it_costs_is_known_before() -> None:
    model = load_model(TensorAdapter(network()), "cpu")
    request = ca.InspectRequest("m", target=ONE, sweep=ca.Sweep("*", estimate=True), dry_run=True)
    plan = plan_request(model, request, {"input": X})
    assert dict(costs(plan)) == {"sweep": 3 * (1 + 1 + 4 + 4 + 3 + 48 + 5)}
    told = estimate(plan)
    assert told.sweep.keys() == told.sweep_estimates.keys() == {*"01234"}
    assert told.sweep["3"].shape == (3, 48)
    assert told.estimate is not None
    assert told.estimate.passes == 198


@pytest.mark.parametrize(
    ("sweep", "more", "expected"),
    [
        (ca.Sweep("9"), {}, "MODULE_NOT_FOUND [sweep.module]"),
        (ca.Sweep("0", source=3), {}, "ROW_RANGE [sweep.source]"),
        (ca.Sweep("0", places=(0, 4)), {}, "SLICE_RANGE [sweep.places[1]]"),
        (ca.Sweep("4", axis=2), {}, "AXIS_RANGE [sweep.axis]"),
        (ca.Sweep("0"), {"target": ca.TopK(2)}, "INVALID_VALUE [target]"),
        (ca.Sweep("0"), {"x": X[:1]}, "ROW_RANGE [sweep.source]"),
    ],
)
def test_what_is_refused(sweep: ca.Sweep, more: dict[str, Any], expected: str) -> None:
    with pytest.raises(CutawayError) as failure:
        asked(network(), **{"target": ONE, "sweep": sweep, **more})
    assert str(failure.value).startswith(expected)
