"""Whole numbers for an input without a declared type: where the model takes none, the caller is told what to send."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import Adapter
from cutaway.contract.errors import Reason
from cutaway.contract.results import InputSpec
from cutaway.engine.model.input_validation import in_declared_types
from cutaway.engine.model.session import Cancellation
from cutaway.gateway import serve
from cutaway.server.embedded import Served
from cutaway.server.settings import Settings
from cutaway.v1.worker_pb2 import WorkerReply
from tests.support.doors import post
from tests.support.worker_calls import read, row, worker


class Mean(nn.Module):
    """Takes floats alone, and has floating parameters."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.scale, self.function = nn.Parameter(torch.ones(1)), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x) * self.scale


class Two(nn.Module):
    """An embedding of whole numbers, and floats beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        return self.head(self.table(ids).mean(1) + x)


class Declared(Adapter):
    """Says that it takes whole numbers, and cannot."""

    inputs = (InputSpec("input", "int64", (-1, 4)),)

    def build(self) -> nn.Module:
        return nn.Linear(4, 2)


class Decoded(Adapter):
    """Makes whole numbers of texts, and cannot take them."""

    media_types = ("text/plain",)

    def build(self) -> nn.Module:
        return nn.Linear(4, 2)

    def decode(self, data: bytes, media_type: str) -> dict[str, Tensor]:
        return {"input": torch.tensor([[int(number) for number in data.split()]])}


MODELS: dict[str, Any] = {
    "linear": nn.Linear(4, 2),
    "convolution": nn.Conv1d(1, 2, 2),
    "softmax": Mean(lambda x: x.softmax(1)),
    "mean": Mean(lambda x: x.mean(1, keepdim=True)),
    "norm": nn.LayerNorm(4),
    "embedding": nn.Embedding(9, 4),
    "two": Two(),
    "declared": Declared(),
    "decoded": Decoded(),
    "clock": Mean(lambda x: (x - 1_700_000_000).float()),
}
X = np.array([[1, 2, 3, 4]])


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serve(MODELS, settings=Settings(http_address="127.0.0.1:0")) as running:
        yield running


def failure(server: Served, name: str, x: Any) -> ca.CutawayError:
    with ca.Client(server.address) as client, pytest.raises(ca.InvalidArgument) as caught:
        client.inspect(name, x)
    assert caught.value.reason == Reason.MODEL_FAILED
    return caught.value


@pytest.mark.parametrize("name", ["linear", "convolution", "softmax", "mean", "norm"])
def test_who_sends_whole_numbers_to_a_model_of_floats_is_told(server: Served, name: str) -> None:
    found = failure(server, name, X[:, None] if name == "convolution" else X)
    assert found.field.startswith("tensors.by_name.")
    assert "is int64, and the model declares no type for it: send float32 if it takes floats" in found.message


def test_in_json_a_point_is_enough(server: Served) -> None:
    """The field is that of the tensor, and what the error says to do helps."""
    url, kind = f"http://{server.http_address}/v1/models/linear:predict", {"content-type": "application/json"}
    status, _, reply = post(url, json.dumps({"instances": [[1, 2, 3, 4]]}).encode(), kind)
    told = json.loads(reply)
    assert (status, told["reason"], told["field"]) == (400, "MODEL_FAILED", "tensors.by_name.input")
    assert "(in JSON, one number with a point)" in told["detail"]
    assert post(url, b'{"instances": [[1.0, 2, 3, 4]]}', kind)[0] == 200


def test_only_what_may_be_of_another_type_is_named(server: Served) -> None:
    """Not the whole numbers that a model takes or declares, nor those that an adapter makes."""
    assert failure(server, "embedding", X + 9).field == ""  # out of range
    assert failure(server, "declared", X).field == ""
    assert failure(server, "decoded", "1 2 3 4").field == ""  # the caller sent none


@pytest.mark.parametrize("name", ["linear", "convolution", "norm", "two"])
def test_numpys_own_floats_are_rounded_to_the_models(server: Served, name: str) -> None:
    """They are float64, which nobody chose: they give what float32 gives, in every part of the reply."""
    x = X * 0.1
    sent: Any = {"linear": x, "convolution": x[:, None], "norm": x, "two": {"ids": X, "x": x}}[name]
    single: Any = {"ids": X, "x": x.astype("float32")} if name == "two" else sent.astype("float32")
    with ca.Client(server.address) as client:
        for each in (sent, single):
            one, other = (client.inspect(name, sent, input_gradients=True, target="sum") for sent in (each, single))
            np.testing.assert_array_equal(one.predictions["output"], other.predictions["output"])
            assert [array.dtype for array in one.input_gradients.values()] == ["float32"]
        with pytest.raises(ca.InvalidArgument, match=r"holds \S+, which float32, the model's type, cannot hold"):
            client.inspect(name, {"ids": X, "x": x * 1e301} if name == "two" else sent * 1e301)


def test_a_model_that_means_float64_gets_it(server: Served) -> None:
    """Seconds since 1970 lose their minutes as float32; what computes with them decides."""
    with ca.Client(server.address) as client:
        since = client.inspect("clock", np.array([[1_700_000_000.25]])).predictions["output"]
    np.testing.assert_array_equal(since, [[0.25]])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_floats_of_another_type_than_the_models_are_named(dtype: torch.dtype) -> None:
    """Lists travel as float32, which a model of float64 refuses: what would be right is said."""
    reply = WorkerReply.FromString(next(worker(nn.Linear(3, 2).to(dtype)).answer([row({"input": torch.ones(1, 3)})])))
    own = str(dtype).removeprefix("torch.")
    assert (reply.failure.reason, reply.failure.field) == ("MODEL_FAILED", "tensors.by_name.input")
    assert f"input is float32, and the model declares no type for it: send {own}, the type of" in reply.failure.message


class Picky(nn.Module):
    """Refuses negative numbers, in ``words``; takes float64 where it ``computes`` without weights."""

    def __init__(self, words: str, computes: bool) -> None:
        super().__init__()
        self.words, self.computes, self.linear = words, computes, nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        if bool((x < 0).any()):
            raise ValueError(self.words)
        logits: Tensor = x % 1 if self.computes else self.linear(x)
        return logits


@pytest.mark.parametrize("computes", [False, True])
@pytest.mark.parametrize("words", ["no", "a double entry must be positive", ""])
def test_a_request_that_fails_spoils_no_type_for_the_next(words: str, computes: bool) -> None:
    """It says nothing of float64, whatever its error names, and the next caller gets what a new server says. Without
    words, the caller hangs up."""
    good = row({"x": np.full((1, 3), 1_700_000_000.25)})
    fails, asked = row({"x": np.full((1, 3), -9.0)}), count()
    if not words:
        fails = good._replace(cancellation=Cancellation(None, lambda: next(asked) > 0))
    spoiled, new = (worker(Picky(words, computes).eval()) for _ in range(2))
    new._model.module.load_state_dict(spoiled._model.module.state_dict())
    assert WorkerReply.FromString(next(spoiled.answer([fails]))).HasField("failure")
    for _ in range(2):
        found, expected = (read(next(each.answer([good]))).predictions["output"] for each in (spoiled, new))
        np.testing.assert_array_equal(found, expected)


def test_whole_numbers_of_a_declared_type_are_widened_and_never_narrowed() -> None:
    """int32 is NumPy's default on some machines; every number of it is one of int64, and not the other way round."""
    specs = (InputSpec("ids", "int64"), InputSpec("few", "int16"), InputSpec("mask", "bool"), InputSpec("x", "float32"))
    types = {"ids": torch.int32, "few": torch.int32, "mask": torch.uint8, "x": torch.int32}
    sent = {name: torch.tensor([[1, 2]], dtype=dtype) for name, dtype in types.items()}
    found = in_declared_types(specs, sent)
    assert {name: tensor.dtype for name, tensor in found.items()} == {**types, "ids": torch.int64}
    assert torch.equal(found["ids"], torch.tensor([[1, 2]]))
