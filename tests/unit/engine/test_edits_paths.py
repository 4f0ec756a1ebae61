"""Edits of one tensor among several: in tuples, dicts and keyword arguments, among integers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

import cutaway as ca
from cutaway.adapters import Adapter
from cutaway.contract.requests import Point
from cutaway.gateway import serve
from tests.oracles.edits import EDIT_KINDS, POINTS, TARGET
from tests.oracles.hooks import equal, noise
from tests.support.small_models import Words
from tests.support.zoo.reference import Swap, swapped

X = noise(3, 5, 2)


class Gate(nn.Module):
    """Positional arguments and one by keyword, to a dict."""

    def forward(self, one: Tensor, other: Tensor, *, scale: Tensor) -> dict[str, Tensor]:
        return {"features": one * scale + other, "gate": other - one}


class Recurrent(nn.Module):
    """[batch, steps, 2] to [batch, 4], through a nested tuple and a dict."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(2, 5, batch_first=True)
        self.gate = Gate()
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        steps, (hidden, cell) = self.lstm(x)
        gated = self.gate(steps.mean(dim=1), hidden[0], scale=cell[0])
        return self.head(gated["features"] * torch.sigmoid(gated["gate"]))


class Ranked(nn.Module):
    """The largest elements, and where they were."""

    def forward(self, x: Tensor) -> Any:
        return x.topk(2, dim=1)


class Ranking(nn.Module):
    """[batch, n] to [batch]: the largest two elements, weighted by their positions."""

    def __init__(self) -> None:
        super().__init__()
        self.top = Ranked()

    def forward(self, x: Tensor) -> Tensor:
        values, positions = self.top(x)
        return (values * positions).sum(dim=1)


@pytest.fixture(scope="module")
def client() -> Iterator[ca.Client]:
    """A gateway over models with more than one tensor at a point."""
    models: dict[str, nn.Module | Adapter] = {"recurrent": Recurrent(), "ranking": Ranking(), "words": Words()}
    with serve(models) as server, ca.Client(server.address) as connected:
        yield connected


TREES = {
    ("lstm", "out"): ["[0]", "[1][0]", "[1][1]"],
    ("gate", "in"): ["[0]", "[1]", "scale"],
    ("gate", "out"): ['["features"]', '["gate"]'],
}
"""A module and a side of it, to the paths of the tensors there, in order."""

CASES = [(*where, path) for where, paths in TREES.items() for path in [*paths, ""]]


def written(module: nn.Module, side: str, at: Swap) -> RemovableHandle:
    """A hook that puts ``at(path, tensor)`` in place of each tensor that goes in, or comes out."""
    if side == "out":
        return module.register_forward_hook(lambda _, args, output: swapped(output, at, ""))
    return module.register_forward_pre_hook(
        lambda _, args, kwargs: (
            swapped(args, at, ""),
            {key: swapped(value, at, key) for key, value in kwargs.items()},
        ),
        with_kwargs=True,
    )


@pytest.mark.parametrize("kind", ["value", "gradient"])
@pytest.mark.parametrize(("name", "side", "path"), CASES)
def test_the_tensor_at_a_path(client: ca.Client, name: str, side: str, path: str, kind: str) -> None:
    """The tensor at the path is edited, or its gradient is, and no other; without a path all are. Everything is as with
    a hook by hand, bit for bit."""
    edit, change = EDIT_KINDS["scale"]
    point = {"in": (Point.INPUT, Point.GRAD_INPUT), "out": (Point.OUTPUT, Point.GRAD_OUTPUT)}[side][kind == "gradient"]
    result = client.inspect(
        "recurrent",
        {"x": X.numpy()},
        target=TARGET,
        edits=[edit(module=name, at=point, path=path)],
        captures=[ca.Capture(name, at=POINTS), ca.Capture(parameter="**")],
        input_gradients=True,
    )
    values, gradients = dict[str, Tensor](), dict[str, Tensor]()

    def at(here: str, tensor: Tensor) -> Tensor:
        meant = path in ("", here)
        new = change(tensor) if meant and kind == "value" else tensor.clone()
        values[here] = new.detach()

        def passing(gradient: Tensor) -> Tensor:
            gradients[here] = change(gradient) if meant and kind == "gradient" else gradient
            return gradients[here]

        new.register_hook(passing)
        return new

    model, x = Recurrent(), X.clone().requires_grad_()
    handle = written(model.get_submodule(name), side, at)
    prediction = model(x)
    prediction.gather(1, torch.tensor(TARGET)[:, None]).sum().backward()
    handle.remove()
    assert equal(result.predictions["output"], prediction)
    assert equal(result.input_gradients["x"], x.grad)
    assert all(equal(result.parameter_gradients[each], weight.grad) for each, weight in model.named_parameters())
    (call,) = result.captures[name].calls
    seen = zip(
        (Point.INPUT, Point.GRAD_INPUT) if side == "in" else (Point.OUTPUT, Point.GRAD_OUTPUT), (values, gradients)
    )
    for there, expected in seen:
        captured = call.leaves[there]
        assert list(captured) == TREES[name, side]
        assert all(equal(captured[each], expected[each]) for each in captured)


RANKED = np.array([[1, 2, 4], [8, 6, 5]], np.float32)


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (ca.Scale("top", factor=10), [100, 60]),  # 40 * 2 + 20 * 1, 80 * 0 + 60 * 1
        (ca.Zero("top"), [0, 0]),
        (ca.Replace("top", path="[1]", tensor=np.array([[1, 0]])), [4, 8]),
        (ca.Zero("top", path="[1]"), [0, 0]),
        (ca.Replace("top", path="[0]", tensor=np.ones(1, np.float32)), [3, 1]),
        (ca.Replace("top", path="[0]", tensor=np.array([1])), [3, 1]),  # of another type, and converted
    ],
)
def test_beside_floating_tensors_integers_are_let_alone(client: ca.Client, edit: ca.Edit, expected: list[int]) -> None:
    """Without a path an edit means the floating tensors of a point; by its path an integer one can be edited too."""
    assert client.inspect("ranking", {"x": RANKED}, edits=[edit]).predictions["output"].tolist() == expected


def test_token_ids_can_be_replaced(client: ca.Client) -> None:
    """Where none of a point's tensors floats, the edit means those that are there: some of the tokens are exchanged."""
    ids = {"ids": np.array([[1, 2, 3], [4, 5, 6]]), "weight": np.ones((2, 3), np.float32)}
    edit = ca.Replace("words", at="input", tensor=np.array([9]), rows=(1,), slices=(ca.Slice(1, 2),))
    others = {**ids, "ids": np.array([[1, 2, 3], [4, 5, 9]])}
    edited, expected = client.inspect("words", ids, edits=[edit]), client.inspect("words", others)
    assert np.array_equal(edited.predictions["output"], expected.predictions["output"])
    assert not edited.warnings
