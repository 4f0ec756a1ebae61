"""A client in another language: Node.js, whose protobuf library replaces what others merge, with the shipped protos."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
import trustme
from google.protobuf.json_format import MessageToDict, ParseDict
from torch import Tensor, nn

import cutaway as ca
from cutaway.client.request_builder import build_request
from cutaway.contract.results import InputSpec, Timings
from cutaway.contract.wire import requests as wire_requests
from cutaway.contract.wire import results as wire_results
from cutaway.contract.wire.message_walk import tensors_in
from cutaway.gateway import serve
from cutaway.server.settings import Settings
from cutaway.v1 import inspection_pb2, inspection_service_pb2
from examples.digits.digits_adapter import Digits
from tests.support import node
from tests.support.digits import WEIGHTS
from tests.support.documents import ROOT, blocks
from tests.support.small_models import Images, Words
from tests.support.token_files import EVERY, entry, write
from tests.support.waiting import PATIENCE_S

CLIENT = Path(__file__).with_name("client.js")
PROTOS = Path(__file__).parents[3] / "protos"

IMAGE = {"image": np.random.default_rng(0).random((3, 1, 8, 8), np.float32)}
IDS = {"ids": np.array([[1, 2, 3], [4, 5, 6]]), "weight": np.ones((2, 3), np.float32)}
EXAMPLES = np.random.default_rng(1).random((3, 4, 1, 8, 8), np.float32)
QUESTIONS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "everything": (
        "net",
        IMAGE,
        {
            "captures": [
                ca.Capture("conv*", at=tuple(ca.Point)),
                ca.Capture("relu", reduce=ca.TopElements(3)),
                ca.Capture(parameter="fc.weight"),
                "unused",
            ],
            "input_gradients": True,
            "attributions": [ca.IntegratedGradients(n_steps=8), ca.LayerGradCam(layer="conv2")],
            "explain_if": ca.ExplainIf(probability_at_most=1.0),
            "edits": [ca.Scale("conv1", factor=0.5)],
            "compare": True,
        },
    ),
    "metrics": (
        "net",
        IMAGE,
        {
            "attributions": [ca.Saliency(metrics=(ca.Infidelity(n_samples=4),))],
            "check": ca.CheckRequest(references=True),
        },
    ),
    "counterfactual": ("net", IMAGE, {"counterfactual": {"masks": ca.Superpixels(9)}}),
    "agreement": (
        "net",
        IMAGE,
        {"attributions": ["saliency", ca.FeatureAblation(masks={"": ca.Superpixels(9)})], "agreement": True},
    ),
    "an error in its place": (
        "net",
        IMAGE,
        {"attributions": [ca.LayerGradCam(layer="unused")], "attribution_errors_in_place": True},
    ),
    "top-k target": ("net", IMAGE, {"target": ca.TopK(3), "attributions": [ca.Saliency()]}),
    "grid": ("net", IMAGE, {"target": 3, "sweep": ca.Sweep("conv1", zeros=True, estimate=True)}),
    "attack": (
        "net",
        IMAGE,
        {"attacks": [ca.FGSM(search=ca.MinParamPerturbation("epsilon", 0.5, 0.1))], "attributions": [ca.Saliency()]},
    ),
    "concepts": (
        "net",
        IMAGE,
        {
            "target": 3,
            "concepts": {
                "layers": ["conv2"],
                "concepts": {"bright": EXAMPLES[0] + 1},
                "random": [*EXAMPLES[1:]],
                "vectors": True,
            },
            "influence": {"training": EXAMPLES[0], "labels": [0, 1, 2, 3]},
        },
    ),
    "tokens": ("words", IDS, {"attributions": [ca.LayerIntegratedGradients(layer="words", n_steps=8)], "target": 0}),
    "estimate": ("net", IMAGE, {"captures": ["**"], "dry_run": True}),
}
"""Requests whose replies have every field together."""


class Waiting(nn.Module):
    """Returns when it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def forward(self, x: Tensor) -> Tensor:
        """``x``, late."""
        self.released.wait(PATIENCE_S)
        return x


def asked(model: str, inputs: Any, **what: Any) -> inspection_pb2.InspectRequest:
    return wire_requests.encode(build_request(model, inputs, **{"seed": 3, **what}))


REFUSED = asked("net", IMAGE, captures=["conv1", "conv9"])
SECURE: dict[str, dict[str, str]] = {
    "admitted": {"token": "all"},
    "without a scope": {"token": "no-insides"},
    "with an unknown token": {"token": "unknown"},
    "without a token": {},
    "trusting another authority": {"ca": "stranger", "token": "all"},
}
"""Callers of a server with TLS and tokens."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates and tokens."""
    made = tmp_path_factory.mktemp("node")
    ours = trustme.CA()
    ours.cert_pem.write_to_path(str(made / "ours.pem"))
    trustme.CA().cert_pem.write_to_path(str(made / "stranger.pem"))
    server = ours.issue_cert("localhost", "127.0.0.1")
    server.private_key_and_cert_chain_pem.write_to_path(str(made / "server.pem"))
    write(made / "tokens.toml", entry("all", {"net": EVERY}), entry("no-insides", {"net": ["predict"]}))
    return made


class Named(Images):
    """Images whose columns have names."""

    @property
    def inputs(self) -> Sequence[InputSpec]:  # type: ignore[override]
        (image,) = super().inputs
        return (replace(image, feature_names=tuple(f"column {number}" for number in range(8))),)


@pytest.fixture(scope="module")
def addresses(directory: Path) -> Iterator[tuple[str, str]]:
    """A server that admits everybody, and one with TLS and tokens."""
    key = directory / "server.pem"
    secure = Settings(tls_certificate=key, tls_key=key, tokens=directory / "tokens.toml")
    waiting = Waiting()
    one_by_one = Settings(max_batch_size=1)  # calls that share a pass are rounded differently
    with (
        serve({"net": Named(), "words": Words(), "waiting": waiting}, settings=one_by_one) as plain,
        serve({"net": Images()}, settings=secure) as guarded,
    ):
        yield plain.address, guarded.address
        waiting.released.set()


@pytest.fixture(scope="module")
def outcomes(addresses: tuple[str, str], directory: Path) -> dict[tuple[str, str], Any]:
    """What Node.js gets, by the name of the call and the method; all calls are made by one process."""
    node.install(CLIENT.parent)
    plain, guarded = addresses
    calls: dict[tuple[str, str], dict[str, Any]] = {}
    for method in ("Inspect", "InspectStream"):
        for name, (model, inputs, what) in QUESTIONS.items():
            calls[name, method] = {"address": plain, "request": asked(model, inputs, **what)}
        calls["refused", method] = {"address": plain, "request": REFUSED}
        late = asked("waiting", {"x": np.ones((1, 1), np.float32)})
        calls["late", method] = {"address": plain, "request": late, "deadline_ms": 300}
        for name, caller in SECURE.items():
            authority = str(directory / f"{caller.get('ca', 'ours')}.pem")
            request = asked("net", IMAGE, **QUESTIONS["everything"][2])
            calls[name, method] = {"address": guarded, "request": request, **caller, "ca": authority}
    sent = [
        {"deadline_ms": PATIENCE_S * 1000, **call, "method": method, "request": _as_json(call["request"])}
        for (_, method), call in calls.items()
    ]
    got = json.loads(node.run(CLIENT, json.dumps({"protos": str(PROTOS), "calls": sent})))
    return dict(zip(calls, got, strict=True))


def _as_json(message: Any) -> dict[str, Any]:
    return MessageToDict(message, preserving_proto_field_name=True)


def response(outcome: dict[str, Any]) -> inspection_pb2.InspectResponse:
    """The response of a call that succeeded."""
    assert "reply" in outcome, outcome
    reply = outcome["reply"]
    return ParseDict(reply.get("response", reply), inspection_pb2.InspectResponse())


def without_timings(message: inspection_pb2.InspectResponse) -> dict[str, Any]:
    message.ClearField("timings")
    moved = (each.attribution for attack in message.attacks for each in attack.attributions)
    for attribution in (*message.attributions, *moved):
        attribution.ClearField("attribution_ms")
        attribution.ClearField("check_ms")
    return _as_json(message)


def compare(outcome: dict[str, Any], result: ca.InspectResult) -> None:
    """Node.js read all that the Python client did, and a time for the same stages."""
    read = response(outcome)
    theirs, ours = (
        {field.name: milliseconds for field, milliseconds in each.timings.ListFields() if field.name != "proof_ms"}
        for each in (read, wire_results.encode(result))  # the first of both has had the model tested
    )
    assert theirs.keys() == ours.keys()
    assert all(milliseconds > 0 for milliseconds in theirs.values())
    assert without_timings(read) == without_timings(wire_results.encode(replace(result, timings=Timings())))


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("method", ["Inspect", "InspectStream"])
def test_every_field_is_read_alike(outcomes: Any, addresses: tuple[str, str], name: str, method: str) -> None:
    """Outputs, captures, gradients, attributions with their checks, warnings, provenance, estimates, and the time of
    every stage, in one message and in pieces."""
    model, inputs, what = QUESTIONS[name]
    with ca.Client(addresses[0], timeout=PATIENCE_S) as client:
        compare(outcomes[name, method], client.inspect(model, inputs, seed=3, stream=method == "InspectStream", **what))


def test_the_replies_have_every_field(outcomes: Any) -> None:
    """What is compared above leaves out no field of a response or an attribution, and no stage; but for standard
    errors, which only KernelSHAP and LIME have: these import scikit-learn, which takes longer than all of this file. No
    model here has its examples behind axis 0, or an input that cannot be moved, or writes texts, or has a last norm."""
    not_here = {"example_axes", "generated", "finish_reasons", "unedited_texts", "replay"}
    not_here |= {"direct", "direct_rest", "direct_bias"}
    replies = [response(outcomes[name, "InspectStream"]) for name in QUESTIONS]
    for messages in (replies, [reply.timings for reply in replies]):
        kind = messages[0].DESCRIPTOR
        there = {field.name for message in messages for field, _ in message.ListFields()}
        assert there == {field.name for field in kind.fields} - not_here
    attributions = [attribution for reply in replies for attribution in reply.attributions]
    there = {field.name for attribution in attributions for field, _ in attribution.ListFields()}
    assert there == {field.name for field in attributions[0].DESCRIPTOR.fields} - {"standard_errors", "inputs_left_out"}


@pytest.mark.parametrize("name", QUESTIONS)
def test_checksums(outcomes: Any, name: str) -> None:
    """The trailer has the CRC-32C of every tensor that Node.js put together."""
    outcome = outcomes[name, "InspectStream"]
    read = response(outcome)
    read.ClearField("estimate")  # whose tensors have no data
    trailer = ParseDict(outcome["reply"]["trailer"], inspection_service_pb2.StreamTrailer())
    assert list(trailer.crc32c) == [google_crc32c.value(tensor.data) for tensor in tensors_in(read)]


@pytest.mark.parametrize("method", ["Inspect", "InspectStream"])
def test_errors(outcomes: Any, method: str) -> None:
    """The status has the details that docs/errors.md describes."""
    failed = outcomes["refused", method]["error"]
    assert failed["code"] == "INVALID_ARGUMENT"
    assert failed["details"]["ErrorInfo"] == {"reason": "MODULE_NOT_FOUND", "domain": "cutaway.dev", "metadata": {}}
    (violation,) = failed["details"]["BadRequest"]["field_violations"]
    assert violation["field"] == "captures[1].module"
    assert failed["message"] == f"{violation['field']}: {violation['description']}"


@pytest.mark.parametrize("method", ["Inspect", "InspectStream"])
def test_a_deadline(outcomes: Any, method: str) -> None:
    """A call ends when its deadline passes."""
    assert outcomes["late", method]["error"]["code"] == "DEADLINE_EXCEEDED"


@pytest.mark.parametrize("method", ["Inspect", "InspectStream"])
def test_tls_and_tokens(outcomes: Any, addresses: tuple[str, str], directory: Path, method: str) -> None:
    """A caller with a token gets what the Python client gets with it."""
    with ca.Client(addresses[1], token="all", tls=ca.Tls(ca=directory / "ours.pem")) as client:
        what = {"seed": 3, "stream": method == "InspectStream", **QUESTIONS["everything"][2]}
        compare(outcomes["admitted", method], client.inspect("net", IMAGE, **what))


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        ("without a scope", "PERMISSION_DENIED", "SCOPE_MISSING"),
        ("with an unknown token", "UNAUTHENTICATED", "TOKEN_INVALID"),
        ("without a token", "UNAUTHENTICATED", "TOKEN_REQUIRED"),
        ("trusting another authority", "UNAVAILABLE", ""),
    ],
)
@pytest.mark.parametrize("method", ["Inspect", "InspectStream"])
def test_refused_callers(outcomes: Any, name: str, method: str, code: str, reason: str) -> None:
    """All others learn why they are refused, but for one that does not believe the server."""
    failed = outcomes[name, method]["error"]
    assert (failed["code"], failed["details"].get("ErrorInfo", {}).get("reason", "")) == (code, reason)


def test_the_client_of_the_guide_runs(tmp_path: Path) -> None:
    """The program of docs/clients.md, as it is there but for the address."""
    node.install(CLIENT.parent)
    [block] = [block for block in blocks(ROOT / "docs" / "clients.md") if block.language == "javascript"]
    with serve({"digits": Digits(weights=WEIGHTS)}) as server:
        (tmp_path / "client.js").write_text(block.text.replace("127.0.0.1:50051", server.address))
        where = {**os.environ, "NODE_PATH": str(CLIENT.parent / "node_modules")}
        command = ["node", str(tmp_path / "client.js")]
        done = subprocess.run(command, cwd=ROOT, env=where, capture_output=True, text=True)
    assert re.match(r"\d VERDICT_AGREES \[ 1, 1, 8, 8 \] -?\d", done.stdout), done.stderr
