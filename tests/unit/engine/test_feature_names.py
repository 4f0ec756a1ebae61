"""The names of a table's columns are those of the model's features, in its order, or the request is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import TensorAdapter
from cutaway.client.request_builder import build_request
from cutaway.contract.results import InputSpec, InspectResult
from cutaway.engine.model.input_validation import check_features
from cutaway.server.worker.worker import Worker
from tests.support.reply_equality import differences
from tests.support.worker_calls import outcome, row

FEATURES = ("radius", "texture", "area")
RIGHT = "the model takes, in this order, 'radius', 'texture', 'area'"
X = np.array([[1.0, -2.0, 3.0], [0.5, 0.25, -4.0]], np.float32)
SPECS = (InputSpec("x", "float32", (-1, 3), feature_names=FEATURES), InputSpec("y", optional=True))

WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "another order": (
        ("radius", "area", "texture"),
        f"another order than the model's: 'area' is in the place of 'texture'; {RIGHT}"),
    "a typo, and another": (
        ("radius", "textur", "id"),
        f"no feature of the model is 'textur' (did you mean 'texture'?), 'id'; missing: 'texture', 'area'; {RIGHT}"),
    "one more": ((*FEATURES, "id"), f"no feature of the model is 'id'; {RIGHT}"),
    "one less": (FEATURES[:2], f"missing: 'area'; {RIGHT}"),
    "one twice": ((*FEATURES, "area"), f"a name comes twice; {RIGHT}"),
    "many": (
        (*FEATURES, *map(str, range(9))), f"no feature of the model is '0', '1', '2', '3', '4' and 4 more; {RIGHT}"),
}  # fmt: skip


def refusal(tensors: dict[str, Tensor], names: dict[str, tuple[str, ...]]) -> tuple[str, str, str]:
    with pytest.raises(ca.InvalidArgument) as caught:
        check_features(SPECS, tensors, names)
    return caught.value.reason, caught.value.field, caught.value.message


@pytest.mark.parametrize(("names", "message"), WRONG.values(), ids=WRONG)
def test_other_names_are_refused_with_the_right_ones(names: tuple[str, ...], message: str) -> None:
    """Also where the tensor has as many columns as names."""
    assert refusal({"x": torch.ones(2, len(names))}, {"x": names}) == ("INPUT_FEATURES", "x", message)


def test_right_names_are_taken() -> None:
    """So are any names where the model has none; they are as many as the elements of the last axis."""
    check_features(SPECS, {"x": torch.ones(2, 3), "y": torch.ones(2, 5, 2)}, {"x": FEATURES, "y": ("b", "a")})


@pytest.mark.parametrize("shape", [(), (2,), (2, 3), (2, 2, 3)])
def test_each_element_of_the_last_axis_has_a_name(shape: tuple[int, ...]) -> None:
    """The axis of the batch has none."""
    reason, field, message = refusal({"y": torch.ones(shape)}, {"y": ("a", "b")})
    assert (reason, field) == ("INPUT_FEATURES", "y")
    assert message == f"2 names of features, and the shape is {list(shape)}: name all of the last axis"


def test_names_are_of_a_tensor() -> None:
    assert refusal({"x": torch.ones(2, 3)}, {"z": FEATURES})[:2] == ("INPUT_UNKNOWN", "z")


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@pytest.fixture(scope="module")
def subject() -> Worker:
    return Worker.of(TensorAdapter(Network(), inputs=SPECS[:1]), "net")


def table(*columns: Any) -> pandas.DataFrame:
    return pandas.DataFrame(X, columns=columns)


def test_requests_with_and_without_names_share_a_pass(subject: Worker) -> None:
    """Each is checked by itself, also after one with inputs of the same shape; a wrong one fails alone."""
    given = [X, table(*FEATURES), table(*FEATURES[::-1]), table(0, 1, 2), {"x": table(*FEATURES)}]
    calls = [row(inputs, attributions=[ca.Saliency()]) for inputs in given]
    for _ in range(2):
        plain, named, wrong, *others = map(outcome, subject.answer(calls))
        assert isinstance(wrong, ca.InvalidArgument)
        assert (wrong.reason, wrong.field) == ("INPUT_FEATURES", "tensors.feature_names.x")
        for each in (plain, named, *others):
            assert isinstance(each, InspectResult)
            assert each.provenance.companions == 3
            assert list(differences(each, plain, 0.0)) == []


def test_a_request_that_is_not_sent_is_checked_too(subject: Worker) -> None:
    """Such as one of a job in the worker's own process."""
    assert subject.inspect(build_request("net", table(*FEATURES))).predictions
    with pytest.raises(ca.InvalidArgument, match="another order"):
        subject.inspect(build_request("net", table(*FEATURES[::-1])))
