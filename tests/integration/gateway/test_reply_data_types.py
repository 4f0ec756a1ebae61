"""Replies in another data type: every floating tensor of them, cast once, after all checks, and never to infinity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.client.request_builder import build_request
from cutaway.contract.errors import CutawayError, InvalidArgument, Reason
from cutaway.contract.requests import InspectRequest
from cutaway.contract.results.arrays import by_name, tensors
from cutaway.contract.tensors import DTYPES, FLOATING, Array
from cutaway.contract.wire import requests as wire_requests
from cutaway.gateway import serve
from tests.support.contract_fields import asked, refusal
from tests.support.wire_strategies import canonical
from tests.support.worker_calls import ask, outcome, row, worker

X = {"x": torch.randn(3, 4, generator=torch.Generator().manual_seed(1))}
IDS = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])


class Net(nn.Module):
    """Numbers and token ids in; more than one tensor, and one of whole numbers, out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(20, 4)
        self.first = nn.Linear(4, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor, ids: Tensor) -> dict[str, Tensor]:
        hidden = torch.tanh(self.first(x + self.words(ids).sum(1)))
        logits = self.head(hidden)
        return {"logits": logits, "ranks": logits.argsort(1)}


EVERYTHING: Mapping[str, Any] = {
    "captures": [
        ca.Capture("first", at=("output", "grad_output")),
        ca.Capture("words", at="input"),
        ca.Capture("head", at="output", reduce=ca.TopElements(2)),
        ca.Capture(parameter="head.weight"),
    ],
    "input_gradients": True,
    "attributions": [ca.IntegratedGradients(inputs=("x",), n_steps=4), ca.LayerGradientXActivation(layer="words")],
    "edits": [ca.Scale("first", factor=0.5)],
    "compare": True,
    "check": "independent",
    "seed": 1,
}


def by_place(result: ca.InspectResult) -> dict[str, Array]:
    return {name: entry.array for name, entry in by_name(tensors(result)).items()}


@pytest.mark.parametrize("target", [ca.PredictedClass(), ca.TopK(2)], ids=["one", "several"])
@pytest.mark.parametrize("name", FLOATING)
def test_every_floating_tensor_of_the_reply_is_of_the_type(name: str, target: ca.Target) -> None:
    """Wherever it is in the reply, a floating tensor is what the type makes of the number computed; whole numbers stay,
    and so do the numbers that are no tensors, and what checks found."""
    net = worker(Net())
    inputs = {**X, "ids": IDS}
    plain, cast = (
        ask(net, inputs, target=target, **EVERYTHING),
        ask(net, inputs, target=target, reply_data_type=name, **EVERYTHING),
    )
    expected, found = by_place(plain), by_place(cast)
    assert len(expected) >= 13
    assert list(found) == list(expected)
    for place, array in expected.items():
        same = array.astype(DTYPES[name]) if array.dtype.name in FLOATING else array
        assert canonical(found[place]) == canonical(same), place
    assert plain.target_values is not None
    assert np.array_equal(cast.target_values, plain.target_values)  # type: ignore[arg-type]
    assert [each.checks for each in cast.attributions] == [each.checks for each in plain.attributions]
    assert [canonical(each.convergence_delta) for each in cast.attributions] == [
        canonical(each.convergence_delta) for each in plain.attributions
    ]
    assert cast.provenance == plain.provenance


def test_data_type_of_a_capture_goes_before() -> None:
    """A capture that names a type is sent as that, whatever the rest of the reply is."""
    captures = [ca.Capture("first", data_type="float64"), ca.Capture("head")]
    found = by_place(ask(worker(Net()), {**X, "ids": IDS}, captures=captures, reply_data_type="float16"))
    assert {place: array.dtype.name for place, array in found.items()} == {
        "logits": "float16",
        "ranks": "int64",
        "capture:first@output": "float64",
        "capture:head@output": "float16",
    }


class Steep(nn.Module):
    """``x * a`` by way of a module, with gradients of ``a``'s size."""

    def __init__(self, a: float) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2, bias=False)
        self.a = a
        with torch.no_grad():
            self.inner.weight.copy_(torch.eye(2))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.inner(x) * self.a
        return {"small": y / self.a, "y": y}


LARGE, SMALL = 1e6, {"x": torch.tensor([[0.5, 1.0]])}
OF_Y = ca.OutputSum(output="y")
PLACES: dict[str, tuple[float, dict[str, Any], str, str]] = {
    "prediction": (LARGE, {}, "y", "options.reply_data_type"),
    "value": (1, {"captures": ["inner"]}, "capture:inner@output", "options.reply_data_type"),
    "own type": (
        1,
        {"captures": [ca.Capture("inner", data_type="float16")], "reply_data_type": ""},
        "capture:inner@output",
        "captures[0].data_type",
    ),
    "gradient": (
        LARGE,
        {"captures": [ca.Capture("inner", at="grad_output")], "target": OF_Y, "predictions": False},
        "capture:inner@grad_output",
        "options.reply_data_type",
    ),
    "gradient, own type": (
        LARGE,
        {
            "captures": [ca.Capture("inner", at="grad_output", data_type="float16")],
            "target": OF_Y,
            "reply_data_type": "",
        },
        "capture:inner@grad_output",
        "captures[0].data_type",
    ),
    "parameter": (
        LARGE,
        {"captures": [ca.Capture(parameter="inner.weight")], "target": OF_Y, "predictions": False},
        "parameter_gradient:inner.weight",
        "options.reply_data_type",
    ),
    "input": (
        LARGE,
        {"input_gradients": True, "target": OF_Y, "predictions": False},
        "gradient:x",
        "options.reply_data_type",
    ),
    "attribution": (
        LARGE,
        {"attributions": [ca.Saliency()], "target": OF_Y, "predictions": False},
        "attribution:saliency:x",
        "options.reply_data_type",
    ),
    "unedited": (
        LARGE,
        {"edits": [ca.Scale("inner", factor=1e-6)], "compare": True},
        "unedited:y",
        "options.reply_data_type",
    ),
}


@pytest.mark.parametrize(("a", "what", "place", "field"), PLACES.values(), ids=PLACES)
def test_number_that_the_type_cannot_hold_is_an_error(a: float, what: dict[str, Any], place: str, field: str) -> None:
    """A finite number never becomes infinite in silence: the error names the tensor, the number, the field that asks
    for the type, and a type that would do; which does."""
    net = worker(Steep(a))
    inputs = SMALL if a == LARGE else {"x": torch.tensor([[LARGE, 1.0]])}
    what = {"reply_data_type": "float16", **what}
    with pytest.raises(InvalidArgument) as caught:
        ask(net, inputs, **what)
    assert (caught.value.reason, caught.value.field) == (Reason.INVALID_VALUE, field)
    assert caught.value.message.startswith(f"{place} holds ")
    assert "which float16 cannot hold: request bfloat16" in caught.value.message
    wider = [
        replace(each, data_type="bfloat16") if isinstance(each, ca.Capture) and each.data_type else each
        for each in what.get("captures", [])
    ]
    found = ask(net, inputs, **{**what, "captures": wider, "reply_data_type": what["reply_data_type"] and "bfloat16"})
    assert all(np.isfinite(array.astype(np.float64)).all() for array in by_place(found).values())


@pytest.mark.parametrize("data_type", ["float16", "bfloat16", "float32"])
def test_each_type_has_its_own_largest_number(data_type: str) -> None:
    """The largest number of a type is sent, the next beyond is not; past float32's range, float64 is what would do."""
    largest = float(torch.finfo(getattr(torch, data_type)).max)
    net = worker(nn.Identity().double())
    inputs = {"input": torch.tensor([[largest, -largest]], dtype=torch.float64)}
    what: dict[str, Any] = {"reply_data_type": data_type}
    assert by_place(ask(net, inputs, **what))["output"].astype(np.float64).tolist() == [[largest, -largest]]
    with pytest.raises(InvalidArgument, match=f"{data_type} cannot hold") as caught:
        ask(net, {"input": inputs["input"] * 1.01}, **what)
    assert f"request {'bfloat16' if data_type == 'float16' else 'float64'}" in caught.value.message


def test_what_is_not_finite_stays_so() -> None:
    """Infinities and NaN are what the model computed: they are sent, at hooks and elsewhere."""
    inputs = {"input": torch.tensor([[torch.inf, -torch.inf, torch.nan, 1.0]])}
    found = by_place(ask(worker(nn.Sequential(nn.Identity())), inputs, captures=["0"], reply_data_type="float16"))
    assert len(found) == 2
    for array in found.values():
        assert [str(number) for number in array[0].tolist()] == ["inf", "-inf", "nan", "1.0"]


def test_requests_of_one_batch_have_each_its_own_type() -> None:
    """Requests that share a pass are answered each in its own type, and one that its type cannot hold fails alone."""
    net = worker(nn.Sequential(nn.Linear(2, 2), nn.Tanh()))
    small, large = {"input": torch.ones(1, 2)}, {"input": torch.full((1, 2), 1e9)}
    replies = net.answer(
        [
            row(small, captures=["0"], reply_data_type="float16"),
            row(small, captures=["0"]),
            row(large, captures=["0"], reply_data_type="float16"),
            row(large, captures=["0"], reply_data_type="bfloat16"),
        ]
    )
    half, whole, refused, brain = map(outcome, replies)
    for result, name in ((half, "float16"), (whole, "float32"), (brain, "bfloat16")):
        assert isinstance(result, ca.InspectResult)
        assert {array.dtype.name for array in by_place(result).values()} == {name}
    assert isinstance(refused, CutawayError)
    assert (refused.reason, refused.field) == (Reason.INVALID_VALUE, "options.reply_data_type")
    assert refused.message.startswith("capture:0@output holds ")


@pytest.mark.parametrize("name", ["int8", "bool", "double", "float8"])
def test_type_that_holds_no_fractions_is_refused(name: str) -> None:
    """The client refuses what is no floating type by its name, the server by its number."""
    with pytest.raises(InvalidArgument, match=f"'{name}' is none of {', '.join(FLOATING)}") as caught:
        wire_requests.encode(InspectRequest("m", {"x": X["x"].numpy()}, reply_data_type=name))
    assert caught.value.field == "options.reply_data_type"
    with pytest.raises(InvalidArgument, match=f"'{name}' is not a choice; ") as caught:
        build_request("m", X, reply_data_type=name)
    assert caught.value.field == "reply_data_type"
    failure = refusal(asked(options={"reply_data_type": 10}))
    assert failure is not None
    assert (failure.reason, failure.field) == (Reason.INVALID_VALUE, "options.reply_data_type")


def test_half_precision_through_a_server() -> None:
    """What is asked for over gRPC arrives as numpy's own type."""
    with serve({"net": Net()}) as server, ca.Client(server.address) as client:
        found = client.inspect("net", {**X, "ids": IDS}, reply_data_type="float16")
    assert found.predictions["logits"].dtype == np.float16
