"""Explanations of an edited model are Captum's, of the model with the same hooks written by hand; checks agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from captum import attr
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import Adapter
from cutaway.contract.requests import Point
from cutaway.gateway import serve
from tests.oracles.edits import Net, Thrifty, X
from tests.oracles.hooks import Change, Hooks, noise
from tests.support.rounding import SMALL, close
from tests.support.small_models import Net as Convolutions

IMAGE = noise(3, 1, 8, 8)
TARGET = [1, 7, 4]
PERMUTATION = [2, 0, 1]
STEPS = 12


@pytest.fixture(scope="module")
def client() -> Iterator[ca.Client]:
    """A gateway over a network of convolutions, and one that computes activations again."""
    models: dict[str, nn.Module | Adapter] = {"net": seeded(), "thrifty": Net(Thrifty)}
    with serve(models) as server, ca.Client(server.address) as connected:
        yield connected


def seeded() -> nn.Module:
    """The network, in evaluation mode."""
    torch.manual_seed(0)
    return Convolutions().eval()


def channel(value: Tensor) -> Tensor:
    """Without the second channel."""
    kept = torch.ones(value.shape[1], dtype=torch.bool)
    kept[1] = False
    return value * kept[None, :, None, None]


def row(value: Tensor) -> Tensor:
    """The second row threefold."""
    return value * torch.tensor([1.0, 3.0, 1.0]).reshape(-1, *[1] * (value.ndim - 1))


def mixed(value: Tensor) -> Tensor:
    """Rows, mixed."""
    return 0.3 * value + (1 - 0.3) * value[PERMUTATION]


MIX: dict[str, Any] = {"weight": 0.3, "permutation": tuple(PERMUTATION)}

EDITS: dict[str, list[tuple[ca.Edit, Change]]] = {
    "scale": [(ca.Scale("conv1", factor=2.5), lambda value: value * 2.5)],
    "scale an input": [(ca.Scale("conv2", at="input", factor=-2.5), lambda value: value * -2.5)],
    "scale a row": [(ca.Scale("relu", factor=3, rows=(1,)), row)],
    "scale the layer that is explained": [(ca.Scale("conv2", factor=0.5), lambda value: value * 0.5)],
    "zero a channel": [(ca.Zero("relu", slices=(ca.Slice(1, 1, 2),)), channel)],
    "mix": [(ca.Mix("relu", **MIX), mixed)],
    "mix what goes in": [(ca.Mix("conv1", at="input", **MIX), mixed)],
    "scale a gradient": [(ca.Scale("fc", at="grad_input", factor=-2), lambda value: value * -2)],
    "scale a row's gradient upstream": [(ca.Scale("conv1", at="grad_output", factor=3, rows=(1,)), row)],
    "mix a gradient": [(ca.Mix("fc", at="grad_output", **MIX), mixed)],
    "several": [
        (ca.Mix("conv1", **MIX), mixed),
        (ca.Zero("relu", slices=(ca.Slice(1, 1, 2),)), channel),
        (ca.Scale("fc", at="grad_input", factor=3, rows=(1,)), row),
    ],
}
"""Edits, each beside what a person writes."""

ATTRIBUTIONS: tuple[ca.Attribution, ...] = (
    ca.Saliency(),
    ca.InputXGradient(),
    ca.IntegratedGradients(n_steps=STEPS),
    ca.LayerActivation(layer="conv2"),
    ca.LayerGradientXActivation(layer="conv2"),
    ca.LayerGradCam(layer="conv2"),
)


def in_process(model: nn.Module, asked: ca.Attribution) -> Tensor:
    """``asked``, answered by Captum; a pass has the rows of the batch and no more, as hooks that mix rows need it."""
    method: Callable[..., Any] = getattr(attr, type(asked).__name__)
    if isinstance(asked, ca.LayerActivation):
        return method(model, model.conv2).attribute(IMAGE)
    if isinstance(asked, (ca.LayerGradientXActivation, ca.LayerGradCam)):
        return method(model, model.conv2).attribute(IMAGE, target=torch.tensor(TARGET))
    options = {"n_steps": STEPS, "internal_batch_size": len(IMAGE)} if isinstance(asked, ca.IntegratedGradients) else {}
    return method(model).attribute(IMAGE.clone(), target=torch.tensor(TARGET), **options)


@pytest.mark.parametrize("mode", ["same_pass", "independent"])
@pytest.mark.parametrize("name", EDITS)
def test_explanations_are_of_the_edited_model(client: ca.Client, name: str, mode: str) -> None:
    """Every explanation is Captum's of the model with the hooks but for rounding, and the raw hooks' check agrees."""
    edits = [edit for edit, _ in EDITS[name]]
    result = client.inspect(
        "net", {"image": IMAGE.numpy()}, target=TARGET, edits=edits, attributions=ATTRIBUTIONS, check=mode
    )
    model = seeded()
    for asked, got in zip(ATTRIBUTIONS, result.attributions, strict=True):
        with Hooks(model) as hooks:
            for edit, change in EDITS[name]:
                hooks.change(edit.module, edit.point, change)
            expected = in_process(model, asked)
        (values,) = got.values.values()
        assert close(values, expected, SMALL), asked
        assert got.checks[0].verdict == "AGREES", (asked, got.checks[0])
        assert got.checks[0].mode == mode
    assert not result.warnings


def test_the_edits_matter_to_every_explanation(client: ca.Client) -> None:
    """None of the above would be true of the unedited model, as far as an edit can reach the explanation."""
    plain = client.inspect("net", {"image": IMAGE.numpy()}, target=TARGET, attributions=ATTRIBUTIONS)
    for name, edits in EDITS.items():
        result = client.inspect(
            "net", {"image": IMAGE.numpy()}, target=TARGET, edits=[edit for edit, _ in edits], attributions=ATTRIBUTIONS
        )
        for one, other in zip(plain.attributions, result.attributions):
            (ours,), (theirs,) = one.values.values(), other.values.values()
            of_gradients = all(edit.point.is_gradient for edit, _ in edits)
            out_of_reach = one.method == "LayerActivation" or (one.layer and name == "scale a row's gradient upstream")
            assert np.array_equal(ours, theirs) == bool(of_gradients and out_of_reach), (name, one.method)


@pytest.mark.parametrize("mode", ["same_pass", "independent"])
def test_a_path_stays_complete_where_values_are_edited(client: ca.Client, mode: str) -> None:
    """Integrated gradients of a model whose values are edited row by row add up, and say what to."""
    edits = [ca.Scale("conv1", factor=2, rows=(1,)), ca.Zero("relu", slices=(ca.Slice(1, 1, 2),))]
    asked = [ca.IntegratedGradients(n_steps=200)]
    given = {"image": IMAGE.numpy()}
    result = client.inspect("net", given, target=TARGET, edits=edits, attributions=asked, check=mode)
    (got,) = result.attributions
    assert [check.verdict for check in got.checks] == ["AGREES", "AGREES"]
    logits = result.predictions["output"][np.arange(3), TARGET]
    baseline = client.inspect("net", {"image": np.zeros_like(IMAGE)}, target=TARGET, edits=edits)
    assert got.value_at_input == pytest.approx(logits)
    assert got.value_at_baseline == pytest.approx(baseline.predictions["output"][np.arange(3), TARGET])


@pytest.mark.parametrize("where", [{"module": "block.inner"}, {"op": "block:relu#0"}])
@pytest.mark.parametrize("point", Point)
def test_operators_and_activation_checkpointing(client: ca.Client, point: Point, where: dict[str, Any]) -> None:
    """An explanation is made of the edited gradients also where the edit sits inside what is computed again."""
    edit = ca.Scale(**where, at=point, factor=-1.5)
    result = client.inspect(
        "thrifty",
        {"x": X.numpy()},
        target=2,
        edits=[edit],
        input_gradients=True,
        attributions=[ca.Saliency(absolute=False), ca.IntegratedGradients(n_steps=3)],
    )
    for got in result.attributions:
        assert got.checks[0].verdict == "AGREES", got
    assert np.array_equal(result.attributions[0].values["x"], result.input_gradients["x"])
    assert not result.warnings


def test_the_next_explanation_is_of_the_unedited_model(client: ca.Client) -> None:
    """An edit lives for one request: the explanations before it and after it are the same bit for bit."""

    def plain() -> list[np.ndarray]:
        result = client.inspect("net", {"image": IMAGE.numpy()}, target=TARGET, attributions=ATTRIBUTIONS)
        return [next(iter(each.values.values())) for each in result.attributions]

    before = plain()
    for edits in EDITS.values():
        client.inspect("net", {"image": IMAGE.numpy()}, edits=[edit for edit, _ in edits], attributions=ATTRIBUTIONS)
    assert all(np.array_equal(one, other) for one, other in zip(before, plain(), strict=True))
