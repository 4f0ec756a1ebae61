"""Tokens: a caller may do what the token says, and learns nothing of the rest."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
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
from cutaway.contract.requests import InspectRequest
from cutaway.contract.results import InputSpec
from cutaway.gateway import serve
from cutaway.server.auth.tokens import REQUIRED_SCOPES, read
from cutaway.server.settings import Settings
from cutaway.v1 import inspection_pb2
from tests.support.token_files import EVERY, entry, write


class Net(nn.Module):
    """Two branches, one of which is nobody's business; a functional ReLU, which explanations stumble over."""

    def __init__(self) -> None:
        super().__init__()
        self.open1 = nn.Linear(4, 4)
        self.secretive = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.norm = nn.Identity()
        self.open2 = nn.Linear(4, 3)
        self.never_called = nn.Linear(2, 2)
        self.hidden_tie = self.open2  # the own name of both is open2

    def forward(self, x: Tensor) -> Tensor:
        returned: Tensor = self.open2(self.norm(torch.relu(self.secretive(torch.relu(self.open1(x))))))
        return returned


class Nets(Adapter):
    """`Net`, with what it takes and the names of its classes."""

    inputs = (InputSpec("x", "float32", (-1, 4)),)
    labels = ("a", "b", "c")

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return Net()


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
        entry("late", {"*": EVERY}, expires="2020-01-01T00:00:00Z"),
        entry("early", {"*": EVERY}, expires="2999-01-01T00:00:00+02:00"),
    )
    models: dict[str, nn.Module | Adapter] = {"net": Nets(), "other": nn.Linear(4, 2)}
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
EXAMPLES = [np.random.default_rng(seed).normal(size=(4, 4)).astype("float32") for seed in range(3)]
TESTED = {"layers": ["open1"], "concepts": {"any": EXAMPLES[0]}, "random": EXAMPLES[1:]}

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
    "counterfactual": Asked({"counterfactual": {"columns": {"x[0]": {"values": [3]}}}, "target": 1}, INSPECT),
    "agreement": Asked({"attributions": ["saliency", "input_x_gradient"], "agreement": True}, INSPECT),
    "explain if": Asked({"attributions": [ca.Saliency()], "explain_if": ca.ExplainIf(classes=(0,))}, INSPECT),
    "capture, dry run": Asked({"captures": ["open1"], "dry_run": True}, INSPECT),
    "edit": Asked({"edits": [ZERO]}, EDIT),
    "edit and compare": Asked({"edits": [ZERO], "compare": True}, EDIT),
    "edit and capture": Asked({"edits": [ZERO], "captures": ["open1"]}, BOTH),
    "attack": Asked({"attacks": ["fgsm"]}, INSPECT),
    "sweep": Asked({"sweep": "open1", "target": 1}, EDIT),
    "direct": Asked({"direct": ca.Direct(("open1",), "norm"), "target": 1}, INSPECT),
    "concepts": Asked({"concepts": TESTED, "target": 1}, INSPECT),
    "influence": Asked({"influence": {"training": EXAMPLES[0], "method": "cosine", "layer": "open1"}}, INSPECT),
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


NO_MODULE = {
    *(
        "InspectRequest.model",
        "Target.output",
        "RawInput.media_type",
        "ClassLabel.labels",
        "Argument.text",
        "SequenceLogProbability.texts",
        "Target.position_text",
    ),
    *(
        "TensorInputs.by_name",
        "TensorInputs.feature_names",
        "ColumnNames.names",
        "InspectRequest.arguments",
        "Generate.stop",
    ),
}


def test_no_field_of_a_prediction_names_a_module_but_a_neuron() -> None:
    """A text that is added to what `predict` allows is either known to name no module, or needs `inspect` as well."""
    seen: set[str] = set()

    def texts(message: Descriptor, fields: Iterable[FieldDescriptor]) -> Iterator[str]:
        for field in fields:
            below = field.message_type
            is_map = below is not None and below.GetOptions().map_entry
            if field.type == FieldDescriptor.TYPE_STRING or is_map:
                yield f"{message.name}.{field.name}"
            if below is not None and below.full_name not in seen:
                seen.add(below.full_name)
                yield from texts(below, [each for each in below.fields if not (is_map and each.name == "key")])

    request = inspection_pb2.InspectRequest.DESCRIPTOR
    allowed = [field for field in request.fields if REQUIRED_SCOPES[field.name] == "predict"]
    assert set(texts(request, allowed)) == {*NO_MODULE, "Neuron.module"}


def test_a_model_is_described_as_far_as_it_may_be_seen(front: Front) -> None:
    """With `inspect`, all of it; without, what goes in and comes out."""
    with front.client("all") as client:
        whole = client.get_model("net", operators=True)
        assert {edge.input for edge in client.get_model("net", data_flow=True).data_flow} > {""}
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
                for field in ("operators", "example", "data_flow"):
                    with pytest.raises(ca.PermissionDenied) as caught:
                        client.get_model("net", **{field: True})
                    assert caught.value.field == field


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
def test_what_a_worker_says_is_withheld_from_those_who_may_not_see(front: Front, stream: bool) -> None:
    """A name that no module has makes a worker offer the nearest ones: to those who may see them."""
    failures = {}
    for token in ("all", NAMES[EDIT]):
        with front.client(token) as client, pytest.raises(ca.InvalidArgument) as caught:
            client.inspect("net", X, stream=stream, edits=[ca.Zero("open")])
        failures[token] = caught.value
    told, withheld = failures.values()
    assert "open1" in told.message
    assert silent(withheld)
    assert (withheld.reason, withheld.field) == (told.reason, told.field)


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


def test_words_about_inputs_are_kept(front: Front) -> None:
    """Whoever may only predict is still told what is wrong with an input."""
    with front.client(NAMES[PREDICT]) as client, pytest.raises(ca.InvalidArgument) as caught:
        client.inspect("net", {"y": X["x"]})
    assert caught.value.reason == Reason.INPUT_UNKNOWN
    assert "the model takes x" in caught.value.message
    wrong = InspectRequest("net", X, feature_names={"x": ("a", "b")})
    with front.client(NAMES[PREDICT]) as client, pytest.raises(ca.InvalidArgument, match="2 names of features"):
        client.ask(wrong)


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
        assert [model.model for model in client.list_models()] == ["net", "other"]


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
        assert [model.model for model in client.list_models()] == ["net"]
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


@pytest.mark.parametrize(
    "end", [b"\x2a\xff", b"\x2a\x01\xff", b"\x2a\x01\xff\xa3\x06\xa4\x06"], ids=["cut", "bad", "group"]
)
def test_a_question_of_bytes_that_are_none_is_refused(front: Front, end: bytes) -> None:
    """What the gateway cannot read it does not hand on: a capture that is cut off, or none, or before a group."""
    request = inspection_pb2.InspectRequest(model="net").SerializeToString() + end
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
        layers = entry("old", {"*": EVERY}, layers="[]")
        for broken in ("[tokens", "[tokens.x]\nsha256 = 'short'\nmodels = {}\n", "nonsense = 1\n", layers):
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
    "a list of layers": entry("a", {"*": ["predict"]}, layers="[]"),
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


def test_a_file_that_every_user_may_write_is_refused(tmp_path: Path) -> None:
    """At the start; while a server runs, it keeps what it has read. A group may be trusted."""
    path = tmp_path / "tokens.toml"
    path.write_text(entry("one", {"*": EVERY}))
    path.chmod(0o660)
    assert read(path)
    path.chmod(0o602)
    with pytest.raises(ca.InvalidArgument, match="every user of this machine can add a token to it") as caught:
        read(path)
    assert caught.value.field == "CUTAWAY_TOKENS"


def test_a_list_of_layers_is_said_to_be_gone(tmp_path: Path) -> None:
    """A token of an earlier version, which had one, does not silently reach more layers."""
    path = write(tmp_path / "tokens.toml", entry("narrow", {"*": EVERY}, layers='["conv*"]'))
    with pytest.raises(ca.InvalidArgument) as caught, serve({"net": nn.Linear(4, 2)}, settings=Settings(tokens=path)):
        pass
    assert caught.value.message == (
        f"{path}: tokens.narrow: the key `layers` is gone, and a token with `inspect` or `edit` reaches every layer: "
        "remove the key, or these scopes"
    )


@pytest.mark.parametrize("path", ["", "/nowhere/tokens.toml"])
def test_no_server_starts_without_the_file_that_it_is_told(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty variable, or a file that is not there, is no word for everybody."""
    monkeypatch.setenv("CUTAWAY_TOKENS", path)
    with pytest.raises(ca.InvalidArgument) as caught, serve({"net": nn.Linear(4, 2)}):
        pass
    assert caught.value.field == "CUTAWAY_TOKENS"
