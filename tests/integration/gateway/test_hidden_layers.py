"""Layers that a token does not list: no field of a request reaches them, and no reply tells that they exist."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from torch import Tensor, nn

import cutaway as ca
from cutaway.client.request_builder import build_request
from cutaway.contract.errors import CutawayError, Reason
from cutaway.contract.torchserve_messages import decode_worker_reply
from cutaway.contract.wire import grpc_status
from cutaway.contract.wire import requests as wire_requests
from cutaway.contract.wire.layer_references import LAYER_FIELDS
from cutaway.gateway import serve
from cutaway.server.settings import Settings
from cutaway.server.worker.call import Call
from cutaway.server.worker.worker import Worker
from cutaway.v1 import inspection_pb2, inspection_service_pb2
from tests.support.serving import package, serving
from tests.support.token_files import EVERY, entry, write


class Block(nn.Linear):
    """A layer that may be seen, around one that may not."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.secret = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.secret(torch.relu(super().forward(x)))


class Net(nn.Module):
    """Layers with two names, of which the list has one: the own name, an alias, or the name of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.open1 = Block()
        self.secretive = nn.Linear(4, 4)
        self.open2 = nn.Linear(4, 3)
        self.open_alias = self.secretive
        self.other_name = self.open2
        self.open_tie = nn.Linear(4, 4)
        self.open_tie.weight = self.secretive.weight
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        returned: Tensor = self.open2(torch.relu(self.open_tie(self.secretive(self.open1(x))))) * self.scale
        return returned


LISTED = ("open1", "open2", "open_alias", "open_tie", "open9*")
VISIBLE = {"open1", "open2", "open_tie"}
HIDDEN = ("secretive", "open1.secret", "open_alias", "other_name", "secret*", "open1.**", "open_a*", "secretiv?")
NOWHERE = ("nowhere", "open1.nowhere", "open99", "nowhere*", "open1.n**", "open9*")
X = {"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)}
SECRETS = ("secret", "alias", "other_name")


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net()


@pytest.fixture(scope="module")
def address(net: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a gateway with a token for some layers, and one for all."""
    tokens = write(
        tmp_path_factory.mktemp("hidden") / "tokens.toml",
        entry("narrow", {"*": EVERY}, layers=json.dumps(LISTED)),
        entry("all", {"*": EVERY}),
    )
    with serve({"net": net}, settings=Settings(tokens=tokens)) as server:
        yield server.address


# Every field of the contract.

Path_ = tuple[FieldDescriptor, ...]


def places(message: Descriptor, above: Path_ = ()) -> Iterator[Path_]:
    """Every way from a request down to a field that names a layer."""
    for field in message.fields:
        if field.name in LAYER_FIELDS:
            yield (*above, field)
        elif field.message_type is not None and field.message_type not in [each.message_type for each in above]:
            yield from places(field.message_type, (*above, field))


PLACES = {".".join(field.name for field in path): path for path in places(inspection_pb2.InspectRequest.DESCRIPTOR)}


def naming(path: Path_, name: str, *, dry_run: bool) -> bytes:
    """A request that holds nothing but inputs, and ``name`` in that field."""
    request = wire_requests.encode(build_request("net", X, dry_run=dry_run))
    message: Any = request
    for field in path[:-1]:
        inner = getattr(message, field.name)
        message = inner.add() if field.is_repeated else inner
    _put(message, path[-1], {"op": f"{name}:linear#0", "parameter": f"{name}.weight"}.get(path[-1].name, name))
    return request.SerializeToString()


def _put(message: Message, field: FieldDescriptor, name: str) -> None:
    value = getattr(message, field.name)
    if field.message_type is not None:
        value[name].SetInParent()
    elif field.is_repeated:
        value.append(name)
    else:
        setattr(message, field.name, name)


def test_the_contract_names_layers_in_many_places() -> None:
    """What follows looks at each of them; `test_authorization` knows every text of the contract."""
    assert {path[-1].name for path in PLACES.values()} == set(LAYER_FIELDS)
    assert len(PLACES) > 20


def refusal(channel: grpc.Channel, request: bytes, *, stream: bool) -> CutawayError | None:
    """The error of a call with the narrow token, if it has one."""
    metadata = (("authorization", "Bearer narrow"),)
    try:
        if stream:
            message = inspection_service_pb2.InspectStreamRequest(
                request=inspection_pb2.InspectRequest.FromString(request)
            )
            several: Any = channel.unary_stream("/cutaway.v1.InspectionService/InspectStream")
            list(several(message.SerializeToString(), metadata=metadata))
        else:
            one: Any = channel.unary_unary("/cutaway.v1.InspectionService/Inspect")
            one(request, metadata=metadata)
    except grpc.RpcError as failed:
        call: Any = failed
        return grpc_status.decode(call.code().value[0], call.details(), call.trailing_metadata())
    return None


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("place", PLACES)
def test_hidden_and_absent_layers_are_the_same_in_every_field(address: str, place: str, stream: bool) -> None:
    """Layers beside, below and behind an alias of a visible one, by name or glob, run or only estimated: each is
    refused with the very error of a name that no layer has; a visible layer is not."""
    path = PLACES[place]
    with grpc.insecure_channel(address) as channel:
        ask = partial(refusal, channel, stream=stream)
        for dry_run in (False, True):
            said = {str(ask(naming(path, name, dry_run=dry_run))) for name in (*HIDDEN, *NOWHERE)}
            assert len(said) == 1
            assert said.pop().startswith(f"{Reason.LAYER_HIDDEN} [{path[0].name}")
            for name in VISIBLE - {"open_tie"}:
                failure = ask(naming(path, name, dry_run=dry_run))
                assert failure is None or failure.reason != Reason.LAYER_HIDDEN


# What is reached is what may be seen.


@pytest.mark.parametrize("dry_run", [False, True], ids=["run", "dry run"])
@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
def test_a_glob_matches_what_may_be_seen(address: str, stream: bool, dry_run: bool) -> None:
    """Of modules and parameters alike, nested ones and those with a second name too; what it matches has the numbers
    that it has for anybody, and nothing in the reply has another name."""
    asked: dict[str, Any] = {"captures": ["**", ca.Capture(parameter="**")], "dry_run": dry_run, "stream": stream}
    parameters = {"open1.weight", "open1.bias", "open2.weight", "open2.bias", "open_tie.bias"}
    with ca.Client(address, token="narrow") as client, ca.Client(address, token="all") as free:
        found, whole = client.inspect("net", X, **asked), free.inspect("net", X, **asked)
    assert not any(name in repr(found) for name in SECRETS)
    if dry_run:
        assert whole.estimate is not None
        assert found.estimate is not None
        assert "parameter_gradients.open1.secret.weight" in whole.estimate.tensors
        inside = {name for name in found.estimate.tensors if not name.startswith("predictions")}
        assert inside == {f"captures.{name}.output" for name in VISIBLE} | {
            f"parameter_gradients.{name}" for name in parameters
        }
        return
    assert found.captures.keys() == VISIBLE
    assert found.parameter_gradients.keys() == parameters
    for name in parameters:
        assert np.array_equal(found.parameter_gradients[name], whole.parameter_gradients[name])


@pytest.mark.parametrize(
    "capture",
    [
        ca.Capture(parameter="open1.secret.weight"),
        ca.Capture(parameter="open_tie.weight"),
        ca.Capture(parameter="scale"),
        ca.Capture(parameter="open1"),
        ca.Capture(op=":relu#0"),
        ca.Capture(op="**:*#*"),
        ca.Capture(op="open*:*#*"),
        ca.Capture(op="open1:**:*#*"),
        ca.Capture(op="open1.secret:*#*"),
        ca.Capture(op="secretive"),
    ],
    ids=lambda capture: capture.op or capture.parameter,
)
def test_an_operator_or_parameter_is_of_its_own_module(address: str, capture: ca.Capture) -> None:
    """Not of one that its text begins with, or that has the same tensor; the model's own are of the model."""
    with ca.Client(address, token="narrow") as client:
        for dry_run in (False, True):
            with pytest.raises(ca.PermissionDenied) as caught:
                client.inspect("net", X, captures=[capture], dry_run=dry_run)
            assert caught.value.reason == Reason.LAYER_HIDDEN


def test_operators_of_a_visible_layer_are_found_by_glob(address: str) -> None:
    """Behind its name, an address may be a glob."""
    with ca.Client(address, token="narrow") as client:
        found = client.inspect("net", X, captures=[ca.Capture(op="open1:*#*")])
    assert set(found.captures) == {"open1:linear#0", "open1:relu#0"}


# On the way to the worker.


def test_calls_of_one_batch_keep_their_own_layers(net: nn.Module) -> None:
    """One caller's layers neither limit nor widen what another's call sees, in one batch and in one pass."""
    worker = Worker.of(net, "net", Settings())
    inspect = wire_requests.encode(build_request("net", X, captures=["**"])).SerializeToString()
    replies = worker.answer([Call("inspect", inspect, layers=layers) for layers in ((LISTED,), (), (("open2",),))])
    seen = [
        {capture.module for capture in inspection_pb2.InspectResponse.FromString(reply.response).captures}
        for reply in map(decode_worker_reply, replies)
    ]
    assert seen[0] == VISIBLE
    assert seen[1] > {"secretive", "open1.secret"}
    assert seen[2] == {"open2"}


NET = """
import torch
from torch import nn

from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec


class Net(Adapter):
    inputs = (InputSpec("input", "float32", (-1, 4)),)

    def build(self):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 3)))
"""


@pytest.mark.slow
def test_torchserve_carries_the_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one message and in pieces, beside another caller's calls."""
    (tmp_path / "net.py").write_text(NET)
    package(tmp_path / "store", "net", f"{tmp_path / 'net.py'}:Net")
    tokens = write(tmp_path / "tokens.toml", entry("narrow", {"*": EVERY}, layers='["1"]'), entry("all", {"*": EVERY}))
    monkeypatch.setenv("CUTAWAY_TOKENS", str(tokens))
    x = {"input": X["x"]}
    with (
        serving(tmp_path / "store", tmp_path / "logs") as server,
        ca.Client(server.address, token="narrow") as client,
        ca.Client(server.address, token="all") as free,
    ):
        for stream in (False, True):
            assert client.inspect("net", x, captures=["**"], stream=stream).captures.keys() == {"1"}
            assert free.inspect("net", x, captures=["**"], stream=stream).captures.keys() == {"", "0", "1", "1.0"}
            with pytest.raises(ca.PermissionDenied):
                client.inspect("net", x, captures=["1.0"], stream=stream)
