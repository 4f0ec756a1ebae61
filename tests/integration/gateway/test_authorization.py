"""Tokens: a caller may do what the token says, and learns nothing of the rest."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
import torch
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import Adapter
from cutaway.contract.errors import CutawayError, Reason
from cutaway.contract.results import InputSpec
from cutaway.contract.wire.layer_references import LAYER_FIELDS
from cutaway.gateway import serve
from cutaway.server.auth.authorization import REQUIRED_SCOPES
from cutaway.server.settings import Settings
from cutaway.v1 import inspection_pb2
from tests.support.token_files import EVERY, entry, write


class Net(nn.Module):
    """Two branches, one of which is nobody's business; a functional ReLU, which explanations stumble over."""

    def __init__(self) -> None:
        super().__init__()
        self.open1 = nn.Linear(4, 4)
        self.secretive = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.open2 = nn.Linear(4, 3)
        self.never_called = nn.Linear(2, 2)
        self.hidden_tie = self.open2  # the own name of both is open2

    def forward(self, x: Tensor) -> Tensor:
        returned: Tensor = self.open2(torch.relu(self.secretive(torch.relu(self.open1(x)))))
        return returned


class Nets(Adapter):
    """`Net`, with what it takes and the names of its classes."""

    inputs = (InputSpec("x", "float32", (-1, 4)),)
    labels = ("a", "b", "c")

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return Net()


class Tied(nn.Module):
    """One layer with two names."""

    def __init__(self) -> None:
        super().__init__()
        self.secretive = nn.Linear(4, 3)
        self.open1 = self.secretive
        self.open2 = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        returned: Tensor = self.secretive(x) + self.open2(x)
        return returned


class Normed(nn.Module):
    """A layer for which LRP has no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.open1 = nn.Linear(4, 4)
        self.secretive = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        returned: Tensor = self.secretive(self.open1(x))
        return returned


HIDDEN = ("secretive", "hidden_tie", "never_called")
X = {"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)}

SUBSETS = [frozenset(each) for count in range(4) for each in itertools.combinations(EVERY, count)]
NAMES = {scopes: "of-" + "-".join(sorted(scopes)) for scopes in SUBSETS}


@dataclass(frozen=True)
class Front:
    """A gateway with tokens, and the door by which it is called."""

    address: str
    tokens: Path
    http_address: str
    transport: Any

    def client(self, token: str | None = None, **more: Any) -> ca.Client:
        door = self.address if self.transport == "grpc" else self.http_address
        return ca.Client(door, token=token, transport=self.transport, **more)


@pytest.fixture(scope="module", params=["grpc", "connect"])
def front(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    path = write(
        tmp_path_factory.mktemp("access") / "tokens.toml",
        *(entry(name, {"net": sorted(scopes)}) for scopes, name in NAMES.items()),
        entry("all", {"*": EVERY}),
        entry("all-but-one", {"*": EVERY, "other": []}),
        entry("narrow", {"net": EVERY, "tied": EVERY, "normed": EVERY}, layers='["open1", "open2*"]'),
        entry("shallow", {"net": EVERY}, layers='["*"]'),
        entry("blind", {"net": EVERY}, layers="[]"),
        entry("late", {"*": EVERY}, expires="2020-01-01T00:00:00Z"),
        entry("early", {"*": EVERY}, expires="2999-01-01T00:00:00+02:00"),
    )
    models: dict[str, nn.Module | Adapter] = {
        "net": Nets(),
        "other": nn.Linear(4, 2),
        "tied": Tied(),
        "normed": Normed(),
    }
    with serve(models, settings=Settings(tokens=path, http_address="127.0.0.1:0")) as server:
        yield Front(server.address, path, server.http_address, request.param)


@dataclass(frozen=True)
class Asked:
    """A kind of question, and the scopes that it needs."""

    what: dict[str, Any]
    needs: frozenset[str]


PREDICT, INSPECT, EDIT = frozenset({"predict"}), frozenset({"predict", "inspect"}), frozenset({"predict", "edit"})
BOTH = INSPECT | EDIT
OFF = ca.CheckMode.OFF
ZERO = ca.Zero("secretive.0")

QUESTIONS: dict[str, Asked] = {
    "predictions": Asked({}, PREDICT),
    "class target": Asked({"target": 1}, PREDICT),
    "top-k target": Asked({"target": ca.TopK(2)}, PREDICT),
    "loss target": Asked({"target": ca.CrossEntropy((0, 1))}, PREDICT),
    "sum target": Asked({"target": ca.OutputSum()}, PREDICT),
    "seed and type": Asked({"seed": 1, "reply_data_type": "float64"}, PREDICT),
    "dry run": Asked({"dry_run": True}, PREDICT),
    "neuron target": Asked({"target": ca.Neuron("open1", (0,))}, INSPECT),
    "capture": Asked({"captures": ["secretive.0"]}, INSPECT),
    "capture glob": Asked({"captures": ["**"]}, INSPECT),
    "operator": Asked({"captures": [ca.Capture(op=":relu#0")]}, INSPECT),
    "parameter": Asked({"captures": [ca.Capture(parameter="open1.weight")]}, INSPECT),
    "input gradients": Asked({"input_gradients": True}, INSPECT),
    "attribution": Asked({"attributions": [ca.Saliency()]}, INSPECT),
    "layer attribution": Asked({"attributions": [ca.LayerActivation(layer="open1")]}, INSPECT),
    "explain if": Asked({"attributions": [ca.Saliency()], "explain_if": ca.ExplainIf(classes=(0,))}, INSPECT),
    "capture, dry run": Asked({"captures": ["open1"], "dry_run": True}, INSPECT),
    "edit": Asked({"edits": [ZERO]}, EDIT),
    "edit and compare": Asked({"edits": [ZERO], "compare": True}, EDIT),
    "edit and capture": Asked({"edits": [ZERO], "captures": ["open1"]}, BOTH),
    "edit and neuron": Asked({"edits": [ZERO], "target": ca.Neuron("open1", (0,))}, BOTH),
}


def silent(failure: CutawayError) -> bool:
    """Whether nothing of an error names a layer that its caller did not."""
    said = f"{failure} {failure.field} {failure.message}"
    return not any(name in said for name in (*HIDDEN, "open1", "open2"))


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("scopes", SUBSETS, ids=NAMES.values())
def test_each_question_passes_exactly_where_its_scopes_are_granted(
    front: Front, scopes: frozenset[str], stream: bool
) -> None:
    """Every kind of question under every set of scopes: answered where all that it needs is granted, else refused,
    without a word about layers; a token without scopes sees no model at all."""
    with front.client(NAMES[scopes]) as client:
        for name, asked in QUESTIONS.items():
            if asked.needs <= scopes:
                client.inspect("net", X, stream=stream, **asked.what)
                continue
            with pytest.raises(ca.PermissionDenied if scopes else ca.NotFound) as caught:
                client.inspect("net", X, stream=stream, **asked.what)
            assert caught.value.reason == (Reason.SCOPE_MISSING if scopes else Reason.MODEL_NOT_FOUND), name
            assert silent(caught.value), name


def test_every_field_of_a_question_has_a_scope() -> None:
    """A field that is added to the contract cannot be asked for by everybody."""
    assert set(REQUIRED_SCOPES) == set(inspection_pb2.InspectRequest.DESCRIPTOR.fields_by_name)


NO_LAYER = {
    *("InspectRequest.model", "Target.output", "AttributionRequest.inputs", "InputGradientRequest.inputs"),
    *("CaptureRequest.path", "Edit.path", "RawInput.media_type", "ClassLabel.labels"),
}
MAPS_BY_INPUT = {"by_name", "by_input", "windows", "strides", "arguments"}


def test_every_name_of_a_layer_is_looked_at() -> None:
    """Every string of the contract that a question can hold is either known to name a layer, or known not to."""
    seen: set[str] = set()

    def walk(message: Descriptor) -> Iterator[FieldDescriptor]:
        if message.full_name in seen:
            return
        seen.add(message.full_name)
        for field in message.fields:
            below = field.message_type
            if field.type == FieldDescriptor.TYPE_STRING or (below is not None and below.GetOptions().map_entry):
                yield field
            elif below is not None:
                yield from walk(below)

    for field in walk(inspection_pb2.InspectRequest.DESCRIPTOR):
        known = (
            field.name in LAYER_FIELDS
            or f"{field.containing_type.name}.{field.name}" in NO_LAYER
            or field.name in MAPS_BY_INPUT
        )
        assert known, field.full_name


def test_a_model_is_described_as_far_as_it_may_be_seen(front: Front) -> None:
    """With `inspect`, all of it; without, what goes in and comes out; where layers are listed, those."""
    with front.client("all") as client:
        whole = client.get_model("net", operators=True)
    assert {"secretive.0", "open1", "open2"} < {module.name for module in whole.modules}
    assert whole.operators
    for scopes in SUBSETS[1:]:
        with front.client(NAMES[scopes]) as client:
            found = client.get_model("net")
            assert (found.inputs, found.outputs, found.labels) == (whole.inputs, whole.outputs, whole.labels)
            assert found.modules == (whole.modules if "inspect" in scopes else ())
            if "inspect" in scopes:
                assert client.get_model("net", operators=True).operators == whole.operators
            else:
                for field in ("operators", "example"):
                    with pytest.raises(ca.PermissionDenied) as caught:
                        client.get_model("net", **{field: True})
                    assert caught.value.field == field
    with front.client("narrow") as client:
        found = client.get_model("net", operators=True)
    assert [module.name for module in found.modules] == ["open1", "open2"]
    assert found.modules[1].aliases == ()
    assert {each.address for each in found.operators} == {"open1:linear#0", "open2:linear#0"}
    assert not any(name in repr(found) for name in HIDDEN)


SEEN: dict[str, dict[str, Any]] = {
    "module": {"captures": ["open1"]},
    "both": {"captures": ["open1", "open2"]},
    "glob that is listed": {"captures": ["open2*"]},
    "gradients": {"captures": [ca.Capture("open1", at="grad_output")]},
    "parameter": {"captures": [ca.Capture(parameter="open1.weight")]},
    "neuron": {"target": ca.Neuron("open1", (0,))},
    "layer": {"attributions": [ca.LayerActivation(layer="open1"), ca.Saliency()]},
    "edit": {"edits": [ca.Zero("open1")], "compare": True},
    "dry run": {"captures": ["open1"], "dry_run": True},
    "inputs": {"input_gradients": True, "attributions": [ca.IntegratedGradients(n_steps=4), ca.GuidedBackprop()]},
}

UNSEEN: dict[str, tuple[dict[str, Any], str]] = {
    "module": ({"captures": ["secretive.0"]}, "captures[0].module"),
    "second": ({"captures": ["open1", "secretive"]}, "captures[1].module"),
    "not there": ({"captures": ["nowhere"]}, "captures[0].module"),
    "glob of what may not be seen": ({"captures": ["secret**"]}, "captures[0].module"),
    "glob of nothing": ({"captures": ["nowhere**"]}, "captures[0].module"),
    "alias": ({"captures": ["hidden_tie"]}, "captures[0].module"),
    "operator": ({"captures": [ca.Capture(op="secretive:relu#0")]}, "captures[0].op"),
    "operator of the model": ({"captures": [ca.Capture(op=":relu#0")]}, "captures[0].op"),
    "operators by glob": ({"captures": [ca.Capture(op="**:*#*")]}, "captures[0].op"),
    "operators behind a glob": ({"captures": [ca.Capture(op="open?**:relu#0")]}, "captures[0].op"),
    "parameter": ({"captures": [ca.Capture(parameter="secretive.0.weight")]}, "captures[0].parameter"),
    "neuron": ({"target": ca.Neuron("secretive.0", (0,))}, "target.neuron.module"),
    "layer": (
        {"attributions": [ca.Saliency(), ca.LayerGradCam(layer="secretive.0")]},
        "attributions[1].layer_grad_cam.layer",
    ),
    "further layer": (
        {"attributions": [ca.LayerIntegratedGradients(layer="open1", further_layers=("open2", "secretive.0"))]},
        "attributions[0].layer_integrated_gradients.further_layers",
    ),
    "neuron of a method": (
        {"attributions": [ca.NeuronGradient(neuron=ca.Neuron("secretive.0", (0,)))]},
        "attributions[0].neuron_gradient.neuron.module",
    ),
    "neuron of a method's target": (
        {"attributions": [ca.Saliency(target=ca.Neuron("secretive.0", (0,)))]},
        "attributions[0].target.neuron.module",
    ),
    "rules": ({"attributions": [ca.LRP(rules={"secretive.0": ca.Epsilon(1e-6)})]}, "attributions[0].lrp.rules"),
    "edit": ({"edits": [ca.Zero("secretive.0")]}, "edits[0].module"),
    "edit of an operator": ({"edits": [ca.Zero(op=":relu#0")]}, "edits[0].op"),
    "edit by glob": ({"edits": [ca.Zero("secret**")]}, "edits[0].module"),
    "dry run": ({"captures": ["secretive"], "dry_run": True}, "captures[0].module"),
}


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
def test_layers_that_are_listed_may_be_seen_and_no_others(front: Front, stream: bool) -> None:
    """Every way to name a layer, also by glob, alias, operator, parameter and rule, is held against the list; what
    comes back has the same numbers as for anybody, and names no other layer."""
    with front.client("narrow") as client, front.client("all") as free:
        for name, asked in SEEN.items():
            found = client.inspect("net", X, stream=stream, seed=1, **asked)
            whole = free.inspect("net", X, stream=stream, seed=1, **asked)
            assert not any(hidden in repr(found) for hidden in HIDDEN), name
            reasons = [
                (check.reason, row.reason) for each in whole.attributions for check in each.checks for row in check.rows
            ]
            assert name != "inputs" or any(map(all, reasons))
            checks = [check for each in found.attributions for check in each.checks]
            assert not any(check.reason for check in checks)
            assert not any(row.reason for check in checks for row in check.rows)
            assert found.captures.keys() == whole.captures.keys()
            for place, capture in whole.captures.items():
                for ours, theirs in zip(capture.calls, found.captures[place].calls):
                    for point, leaves in ours.leaves.items():
                        assert all(np.array_equal(leaves[path], theirs.leaves[point][path]) for path in leaves)
            assert [
                (each.method, [(check.verdict, check.cause) for check in each.checks]) for each in found.attributions
            ] == [(each.method, [(check.verdict, check.cause) for check in each.checks]) for each in whole.attributions]
        for name, (question, field) in UNSEEN.items():
            with pytest.raises(ca.PermissionDenied) as caught:
                client.inspect("net", X, stream=stream, **question)
            assert (caught.value.reason, caught.value.field) == (Reason.LAYER_HIDDEN, field), name
            assert not any(hidden in caught.value.message for hidden in HIDDEN)


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
def test_an_error_in_its_place_names_no_hidden_layer(front: Front, stream: bool) -> None:
    """Its message would name the layer that the method cannot explain."""
    asked = [ca.Saliency(), ca.LRP()]
    found = {}
    for name in ("narrow", "all"):
        with front.client(name) as client:
            result = client.inspect("normed", X, attributions=asked, attribution_errors_in_place=True, stream=stream)
            found[name] = result.attributions[1].error
    hidden, shown = found["narrow"], found["all"]
    assert hidden is not None
    assert shown is not None
    assert "secretive" in shown.message
    assert not any(each in hidden.message for each in HIDDEN)
    assert (hidden.reason, hidden.field) == (shown.reason, shown.field)


def test_layers_explained_together_are_known_by_their_own_names(front: Front) -> None:
    """One of them is asked for by an alias that may be seen, and is a layer that may not."""
    asked = ca.LayerIntegratedGradients(layer="open2", further_layers=("open1",), n_steps=4)
    with front.client("narrow") as client, pytest.raises(ca.PermissionDenied) as caught:
        client.inspect("tied", X, attributions=[asked])
    assert caught.value.reason == Reason.LAYER_HIDDEN


def test_an_empty_list_shows_no_layer(front: Front) -> None:
    """`layers = []` is no layer, and not all of them; the model itself still answers."""
    with front.client("blind") as client:
        assert client.inspect("net", X, input_gradients=True).input_gradients
        assert client.get_model("net", operators=True).modules == ()
        with pytest.raises(ca.PermissionDenied):
            client.inspect("net", X, captures=["open1"])


def test_one_star_is_no_more_than_it_says(front: Front) -> None:
    """`*` is the layers of the first level: not those below, and not what the model itself does between them."""
    with front.client("shallow") as client:
        assert client.inspect("net", X, captures=["*", "secretive"]).captures.keys() >= {"secretive", "open1"}
        assert {each.name for each in client.get_model("net").modules} == {
            "open1",
            "secretive",
            "open2",
            "never_called",
        }
        for capture in (
            ca.Capture("secretive.0"),
            ca.Capture(op=":relu#0"),
            ca.Capture(parameter="w"),
        ):
            with pytest.raises(ca.PermissionDenied):
                client.inspect("net", X, captures=[capture])


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
def test_a_second_name_is_no_way_around(front: Front, stream: bool, dry_run: bool) -> None:
    """A layer that is listed by an alias alone tells nobody its own name."""
    asked = {"captures": ["open1"]}, {"captures": ["open2*", ca.Capture(parameter="open1.weight")]}
    layer = {"attributions": [ca.LayerActivation(layer="open1")]}
    with front.client("narrow") as client:
        for each in (*asked, layer):
            try:
                said = repr(client.inspect("tied", X, stream=stream, dry_run=dry_run, **each))
            except CutawayError as failure:
                said = f"{failure} {failure.field}"
            assert "secretive" not in said


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
def test_what_a_worker_says_is_withheld_from_those_who_may_not_see(front: Front, stream: bool) -> None:
    """An operator that did not run makes a worker offer the nearest ones: to those who see them all."""
    offered: dict[str, Any] = {"captures": [ca.Capture(op="open2:lin#0")]}
    with front.client("all") as client, pytest.raises(ca.InvalidArgument) as told:
        client.inspect("net", X, stream=stream, **offered)
    assert "secretive.0" in told.value.message
    with front.client("narrow") as client, pytest.raises(ca.InvalidArgument) as caught:
        client.inspect("net", X, stream=stream, **offered)
    assert (caught.value.reason, caught.value.field) == (Reason.OP_NOT_FOUND, "captures[0].op")
    assert silent(caught.value)
    with front.client(NAMES[EDIT]) as client, pytest.raises(ca.InvalidArgument) as edited:
        client.inspect("net", X, stream=stream, edits=[ca.Zero("open")])
    assert silent(edited.value)


class Talkative(nn.Module):
    """Fails, and says where."""

    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("size mismatch in secretive.0")


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
def test_a_models_own_words_are_withheld(tmp_path: Path, stream: bool) -> None:
    """What a model says when it fails may name its layers: it is told to those who may see them."""
    tokens = write(tmp_path / "tokens.toml", entry("all", {"*": EVERY}), entry("user", {"*": ["predict"]}))
    with serve({"net": Talkative()}, settings=Settings(tokens=tokens)) as server:
        for token, told in (("all", True), ("user", False)):
            with ca.Client(server.address, token=token) as client, pytest.raises(ca.InvalidArgument) as caught:
                client.inspect("net", X, stream=stream)
            assert caught.value.reason == Reason.MODEL_FAILED
            assert ("secretive" in str(caught.value)) is told


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
def test_warnings_name_only_what_may_be_seen(front: Front, stream: bool) -> None:
    """A warning keeps its code, its place among the edits, and a layer that is listed; its words are plain."""
    asked: dict[str, Any] = {
        "captures": ["open1"],
        "edits": [ca.Scale("open1", factor=1.0), ca.Zero("open2", at="grad_output")],
        "compare": True,
    }
    with front.client("narrow") as client, front.client("all") as free:
        whole = free.inspect("net", X, stream=stream, **asked).warnings
        found = client.inspect("net", X, stream=stream, **asked).warnings
    assert whole
    assert [(each.code, each.subject) for each in found] == [(each.code, each.subject) for each in whole]
    assert {each.message for each in found} == {"the edit changed nothing"}


def test_words_about_inputs_are_kept(front: Front) -> None:
    """Whoever may only predict is still told what is wrong with an input."""
    with front.client(NAMES[PREDICT]) as client, pytest.raises(ca.InvalidArgument) as caught:
        client.inspect("net", {"y": X["x"]})
    assert caught.value.reason == Reason.INPUT_UNKNOWN
    assert "the model takes x" in caught.value.message


# Who calls.


def failed(client: ca.Client) -> CutawayError:
    """What each of the calls is answered, if it is the same."""
    calls = (
        client.list_models,
        lambda: client.get_model("net"),
        lambda: client.inspect("net", X, stream=False),
        lambda: client.inspect("net", X, stream=True),
    )
    failures = []
    for call in calls:
        with pytest.raises(CutawayError) as caught:
            call()
        failures.append(caught.value)
    assert len({(type(each), str(each)) for each in failures}) == 1
    return failures[0]


def test_without_a_token_no_call_is_answered(front: Front) -> None:
    """Each method asks who calls, and says how to tell it."""
    with front.client() as client:
        failure = failed(client)
    assert isinstance(failure, ca.Unauthenticated)
    assert failure.reason == Reason.TOKEN_REQUIRED
    assert "authorization: Bearer" in failure.message


@pytest.mark.parametrize("token", ["wrong", "late", "ALL", "al", "alll", "A" * 4000])
def test_a_wrong_or_expired_token_is_answered_alike(front: Front, token: str) -> None:
    """Nobody learns whether a token once was one."""
    with front.client(token) as client:
        failure = failed(client)
    assert isinstance(failure, ca.Unauthenticated)
    assert str(failure) == "TOKEN_INVALID: the token is wrong, or has expired"


def test_a_token_holds_until_it_expires(front: Front) -> None:
    """An expiry in the future, in whatever time zone, changes nothing."""
    with front.client("early") as client:
        assert [model.model for model in client.list_models()] == ["net", "normed", "other", "tied"]


@pytest.mark.parametrize(
    "values",
    [["Basic all"], ["all"], ["Bearer"], ["Bearer "], ["Bearer wrong", "Bearer all"], ["Bearer all", "Bearer all"]],
    ids=str,
)
def test_only_one_bearer_token_is_one(front: Front, values: list[str]) -> None:
    """Another scheme, none, or two tokens of which one is right are no token."""
    with grpc.insecure_channel(front.address) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/cutaway.v1.InspectionService/ListModels"
        )
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", timeout=30, metadata=tuple(("authorization", value) for value in values))
    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_models_of_others_are_not_there(front: Front) -> None:
    """A model that a token may not touch answers as one that does not exist, in the same words, and is not listed."""
    with front.client(NAMES[BOTH]) as client:
        assert [model.model for model in client.list_models()] == ["net"]
        said = set()
        for model in ("other", "others", "nothing", "other/versions/1.0", "other/versions/7"):
            for ask in (
                lambda m: client.get_model(m),
                lambda m: client.inspect(m, X),
                lambda m: client.inspect(m, X, stream=True),
            ):
                with pytest.raises(ca.NotFound) as caught:
                    ask(model)
                said.add((caught.value.reason, str(caught.value)))
        assert len(said) == 1
    with front.client("all-but-one") as client:
        assert [model.model for model in client.list_models()] == ["net", "normed", "tied"]
        for model in ("other", "othr"):
            with pytest.raises(ca.NotFound) as caught:
                client.get_model(model)
            assert (caught.value.reason, str(caught.value)) in said


def test_health_is_open_and_reflection_is_not(front: Front) -> None:
    """Probes carry no tokens. The contract is shown to those who may look inside."""
    with grpc.insecure_channel(front.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        assert (
            health.Check(health_pb2.HealthCheckRequest(), timeout=30).status == health_pb2.HealthCheckResponse.SERVING
        )
        reflection: Any = reflection_pb2_grpc.ServerReflectionStub(channel)

        def services(token: str) -> list[str]:
            asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
            metadata = [("authorization", f"Bearer {token}")] if token else []
            replies = reflection.ServerReflectionInfo(asked, timeout=30, metadata=metadata)
            return [each.name for reply in replies for each in reply.list_services_response.service]

        assert "cutaway.v1.InspectionService" in services(NAMES[INSPECT])
        for token, code in (
            ("", grpc.StatusCode.UNAUTHENTICATED),
            ("wrong", grpc.StatusCode.UNAUTHENTICATED),
            (NAMES[EDIT], grpc.StatusCode.PERMISSION_DENIED),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                services(token)
            assert caught.value.code() == code


def test_a_question_of_bytes_that_are_none_is_refused(front: Front) -> None:
    """What the gateway cannot read it does not hand on unread."""
    request = inspection_pb2.InspectRequest(model="net").SerializeToString() + b"\x2a\xff"
    with grpc.insecure_channel(front.address) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/cutaway.v1.InspectionService/Inspect")
        with pytest.raises(grpc.RpcError) as caught:
            call(request, timeout=30, metadata=(("authorization", f"Bearer {NAMES[PREDICT]}"),))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_model_named_twice_is_one_model(front: Front) -> None:
    """Protobuf takes the last of a field that is sent twice, and so does whoever decides what is allowed."""
    token = (("authorization", f"Bearer {NAMES[PREDICT]}"),)
    mine, other = (inspection_pb2.InspectRequest(model=name).SerializeToString() for name in ("net", "other"))
    with grpc.insecure_channel(front.address) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/cutaway.v1.InspectionService/Inspect")
        for data, code in ((mine + other, grpc.StatusCode.NOT_FOUND), (other + mine, grpc.StatusCode.INVALID_ARGUMENT)):
            with pytest.raises(grpc.RpcError) as caught:
                call(data, timeout=30, metadata=token)
            assert caught.value.code() == code


# The file.


def test_tokens_rotate_without_a_restart(tmp_path: Path) -> None:
    """The next call after a change is judged by the new file; while a new one is broken, the old tokens hold."""
    path = write(tmp_path / "tokens.toml", entry("old", {"*": EVERY}))
    with serve({"net": Net()}, settings=Settings(tokens=path)) as server:

        def passes(token: str) -> bool:
            with ca.Client(server.address, token=token) as client:
                try:
                    client.inspect("net", X, captures=["open1"])
                except (ca.Unauthenticated, ca.PermissionDenied):
                    return False
                return True

        assert (passes("old"), passes("new")) == (True, False)
        write(path, entry("old", {"*": EVERY}), entry("new", {"*": EVERY}))
        assert (passes("old"), passes("new")) == (True, True)
        write(path, entry("new", {"*": EVERY}))
        assert (passes("old"), passes("new")) == (False, True)
        for broken in ("[tokens", "[tokens.x]\nsha256 = 'short'\nmodels = {}\n", "nonsense = 1\n"):
            write(path, broken)
            assert (passes("old"), passes("new")) == (False, True)
        path.unlink()
        assert (passes("old"), passes("new")) == (False, True)
        write(path, entry("new", {"*": ["predict"]}))
        assert (passes("old"), passes("new")) == (False, False)
        write(path, entry("old", {"*": EVERY}))
        assert (passes("old"), passes("new")) == (True, False)
        write(path)
        assert (passes("old"), passes("new")) == (False, False)


BROKEN = {
    "no TOML": "[tokens",
    "no UTF-8": "\udcff",
    "a key that is unknown": entry("a", {"*": EVERY}, layer='["x"]'),
    "a scope that is unknown": entry("a", {"*": ["admin"]}),
    "no hash": '[tokens.a]\nsha256 = "secret"\nmodels = {}\n',
    "a time without a zone": entry("a", {"*": EVERY}, expires="2030-01-01T00:00:00"),
    "one token twice": entry("a", {"*": EVERY}) + entry("a", {"*": []}).replace('."a"', '."b"'),
    "nothing of ours": "x = 1\n",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_no_server_starts_with_a_broken_file(kind: str, tmp_path: Path) -> None:
    """A door whose list cannot be read stays shut, rather than open to everybody."""
    path = tmp_path / "tokens.toml"
    path.write_text(BROKEN[kind], "utf-8", errors="surrogateescape")
    with pytest.raises(ca.InvalidArgument) as caught, serve({"net": nn.Linear(4, 2)}, settings=Settings(tokens=path)):
        pass
    assert caught.value.field == "CUTAWAY_TOKENS"
    assert str(path) in caught.value.message


@pytest.mark.parametrize("path", ["", "/nowhere/tokens.toml"])
def test_no_server_starts_without_the_file_that_it_is_told(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty variable, or a file that is not there, is no word for everybody."""
    monkeypatch.setenv("CUTAWAY_TOKENS", path)
    with pytest.raises(ca.InvalidArgument) as caught, serve({"net": nn.Linear(4, 2)}):
        pass
    assert caught.value.field == "CUTAWAY_TOKENS"
