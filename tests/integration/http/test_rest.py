"""REST: what KServe's callers send, forms, files of numpy, and the contract in JSON."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import Adapter
from cutaway.client.transport import SERVICE
from cutaway.contract.requests import INPUT_FIELDS
from cutaway.contract.results import InputSpec
from cutaway.contract.results.explanations import outcome_of_row
from cutaway.gateway import serve
from cutaway.server.settings import Settings
from tests.support.doors import events_in, post
from tests.support.npy_files import HOSTILE_NPY

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


class Classes(Adapter):
    """Four numbers in, three classes out; examples are texts of four numbers."""

    inputs = (InputSpec("input", "float32", (-1, 4)),)
    labels = ("a", "b", "c")
    media_types = ("text/plain",)

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    def decode(self, data: bytes, media_type: str) -> dict[str, Tensor]:
        return {"input": torch.tensor([float(number) for number in data.split()])[None]}


class Pairs(nn.Module):
    """Two inputs, two outputs."""

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"sum": left + right, "product": left * right}


class PairsAdapter(Adapter):
    """`Pairs`, of whole numbers on the left."""

    inputs = (InputSpec("left", "int64", (-1,)), InputSpec("right", "float32", (-1,)))

    def build(self) -> nn.Module:
        return Pairs()


ZEROS = {"double": 0.0, "float": 0.0, "half": 0.0, "whole": 0, "small": 0}
TYPES = {"double": "float64", "float": "float32", "half": "float16", "whole": "int64", "small": "int8"}


class Types(nn.Module):
    """Returns its inputs, one of each data type."""

    def forward(self, **inputs: Tensor) -> dict[str, Tensor]:
        return inputs


class TypesAdapter(Adapter):
    inputs = tuple(InputSpec(name, data_type, (-1,)) for name, data_type in TYPES.items())

    def build(self) -> nn.Module:
        return Types()


class Words(nn.Module):
    """Ids of `[batch, time]` in; logits, scores of `[time, batch, 2]` and a loss out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.lstm, self.head = nn.Embedding(9, 4), nn.LSTM(4, 5), nn.Linear(5, 2)

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        scores = self.head(self.lstm(self.table(ids.T))[0])
        return {"logits": scores[-1], "scores": scores, "loss": scores.sum()}


class WordsAdapter(Adapter):
    inputs = (InputSpec("ids", "int64", (-1, -1)),)

    def build(self) -> nn.Module:
        return Words()

    def token_texts(self, ids: Sequence[int]) -> Sequence[str]:
        return [f"word {number}" for number in ids]


@dataclass(frozen=True)
class Site:
    """A server, and a client of ours for comparison."""

    url: str
    client: ca.Client

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Mapping[str, str], Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"content-type": "application/json", **{key.replace("_", "-"): value for key, value in headers.items()}}
        status, got, reply = post(f"{self.url}{path}", data, sent)
        return status, got, json.loads(reply) if "json" in got["content-type"] else reply


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    models: dict[str, nn.Module | Adapter] = {
        "classes": Classes(),
        "pairs": PairsAdapter(),
        "types": TypesAdapter(),
        "words": WordsAdapter(),
    }
    settings = Settings(http_address="127.0.0.1:0", max_message_bytes=1 << 20)
    with serve(models, settings=settings) as server, ca.Client(server.address) as client:
        yield Site(f"http://{server.http_address}", client)


def test_predict(site: Site) -> None:
    """One row for each instance; the numbers are those of gRPC, to the bit."""
    expected = site.client.inspect("classes", X)
    status, headers, reply = site.post("/v1/models/classes:predict", {"instances": X.tolist()})
    assert (status, headers["content-type"]) == (200, "application/json")
    assert np.array_equal(np.asarray(reply["predictions"], np.float32), expected.predictions["output"])
    assert [each["label"] for each in reply["classes"]] == [each.label for each in expected.classes]
    assert headers["x-request-id"]


def test_numbers_have_the_type_that_the_model_takes(site: Site) -> None:
    """JavaScript writes 1.0 as 1, and what is whole may be sent with a point; a number that does not fit is refused."""
    _, _, reply = site.post("/v1/models/classes:predict", {"instances": [[1, 0, 0, 2]]})
    expected = site.client.inspect("classes", np.asarray([[1, 0, 0, 2]], np.float32)).predictions["output"]
    assert np.array_equal(np.asarray(reply["predictions"], np.float32), expected)
    instances = [{"left": 2.0, "right": 3}, {"left": 1, "right": 0.5}]
    _, _, reply = site.post("/v1/models/pairs:predict", {"instances": instances})
    assert reply["predictions"] == [{"sum": 5.0, "product": 6.0}, {"sum": 1.5, "product": 0.5}]
    status, _, reply = site.post("/v1/models/pairs:predict", {"instances": [{"left": 2.5, "right": 3}]})
    assert (status, reply["reason"], reply["field"]) == (400, "INPUT_DTYPE", "tensors.by_name.left")


NUMBERS = {
    "double": (0.1, 0.1),
    "float": (0.1, float(np.float32(0.1))),
    "half": (0.1, float(np.float16(0.1))),
    "whole": (2.0**53 - 1, 2**53 - 1),
}
NO_NUMBERS = {
    "float": (-1e39, "INVALID_VALUE"),
    "half": (70000, "INVALID_VALUE"),
    "whole": (2.0**53 + 2, "INVALID_VALUE"),
    "small": (-129, "INVALID_VALUE"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_rounded_once(site: Site, name: str) -> None:
    """To the data type that the model takes, and to none on the way."""
    sent, expected = NUMBERS[name]
    _, _, reply = site.post("/v1/models/types:predict", {"instances": [{**ZEROS, name: sent}]})
    assert reply["predictions"] == [{**ZEROS, name: expected}]


@pytest.mark.parametrize("name", NO_NUMBERS)
def test_a_number_out_of_range_is_refused(site: Site, name: str) -> None:
    """It becomes neither infinite nor another number."""
    sent, reason = NO_NUMBERS[name]
    status, _, reply = site.post(
        "/v1/models/types:predict", json.dumps({"instances": [{**ZEROS, name: sent}]}).encode()
    )
    assert (status, reply["reason"]) == (400, reason)


@pytest.mark.parametrize("baseline", [[[0.1] * 4], [[0] * 4], {"input": [[0.5, 0, 1, 2]]}])
def test_baselines_are_lists_of_numbers(site: Site, baseline: Any) -> None:
    options = {"baselines": baseline, "n_steps": 3}
    status, _, reply = site.post("/v1/models/classes:explain", {"instances": X.tolist(), "options": options})
    assert status == 200, reply
    rows = np.asarray(baseline["input"] if isinstance(baseline, dict) else baseline, np.float32)
    asked = ca.IntegratedGradients(n_steps=3, baselines={"input": rows})
    expected = site.client.inspect("classes", X, attributions=asked).attributions[0].values["input"]
    got = [row[0]["values"]["input"] for row in reply["explanations"]]
    assert np.array_equal(np.asarray(got, np.float32), expected)


def test_explain(site: Site) -> None:
    """Explanations by instance and verdicts by method; fields of the method, and of the request, have their own
    names."""
    expected = site.client.inspect("classes", X, attributions=ca.IntegratedGradients(n_steps=8), target=1)
    asked = {"instances": X.tolist(), "method": "integrated_gradients", "options": {"n_steps": 8}, "target": 1}
    status, _, reply = site.post("/v1/models/classes:explain", asked)
    assert status == 200
    values = [each[0]["values"]["input"] for each in reply["explanations"]]
    assert np.array_equal(np.asarray(values, np.float32), expected.attributions[0].values["input"])
    assert reply["verdicts"][0]["verdict"] == str(expected.attributions[0].verdict)
    assert reply["explanations"][0][0]["target"] == 1
    several = {"instances": X.tolist(), "attributions": ["saliency", {"method": "layer_activation", "layer": "0"}]}
    _, _, reply = site.post("/v1/models/classes:explain", several)
    assert [each["method"] for each in reply["explanations"][1]] == ["Saliency", "LayerActivation"]
    _, _, reply = site.post("/v1/models/classes:explain", {"instances": X.tolist()})
    assert reply["explanations"][0][0]["method"] == "IntegratedGradients"


def test_attributions_beside_a_prediction(site: Site) -> None:
    """All that an attribution has arrives for each instance, by every verb, and without predictions too."""
    method: dict[str, Any] = {"method": "kernel_shap", "n_samples": 20, "metrics": ["infidelity"]}
    asked = {"instances": X.tolist(), "target": 1, "predictions": False, "seed": 3, "attributions": [method]}
    asked["check"] = {"references": True}
    shap = ca.KernelShap(n_samples=20, metrics=(ca.Infidelity(),))
    check = ca.CheckRequest(references=True)
    whole = site.client.inspect("classes", X, target=1, seed=3, predictions=False, attributions=[shap], check=check)
    (expected,) = whole.attributions
    status, _, reply = site.post("/v1/models/classes:predict", asked)
    assert (status, reply["predictions"], len(reply["explanations"])) == (200, [], 2)
    for row, (explanation,) in enumerate(reply["explanations"]):
        for name in ("values", "standard_errors", "references"):
            assert np.array_equal(
                np.float32(explanation[name]["input"]), np.float32(getattr(expected, name)["input"][row])
            )
        assert explanation["metrics"] == {"infidelity": expected.metrics[0].values[row]}
        assert explanation["verdict"] == str(outcome_of_row(expected.checks, row).verdict)
    assert whole.target_values is not None
    assert reply["target_values"]["values"] == whole.target_values.tolist()
    refused, _, told = site.post("/v1/models/classes:predict", asked, accept="application/x-npy")
    assert (refused, told["field"]) == (400, "accept")  # an NPY file has no room for what is asked


def test_instances_of_sequence_first_models(site: Site) -> None:
    """Each has its own rows and words, on whichever axis the model has them; a loss is the same for all."""
    ids = np.array([[1, 2, 3], [4, 5, 6]])
    layer = ca.LayerIntegratedGradients(layer="table", n_steps=4)
    expected = site.client.inspect("words", {"ids": ids}, target=1, attributions=[layer])
    file = io.BytesIO()
    np.savez(file, ids=ids)
    path = (
        "/v1/models/words:explain?method=layer_integrated_gradients&options={%22layer%22:%22table%22,%22n_steps%22:4}"
    )
    path += "&target=1"
    status, _, reply = site.post(path, file.getvalue(), content_type="application/x-npz", accept="application/json")
    assert status == 200, reply
    scores, tokens = expected.predictions["scores"], expected.attributions[0].tokens
    assert tokens is not None
    for row, (explanation,) in enumerate(reply["explanations"]):
        assert np.array_equal(np.float32(reply["predictions"][row]["scores"]), scores[:, row])
        assert reply["predictions"][row]["loss"] == expected.predictions["loss"]
        assert explanation["tokens"]["texts"] == [f"word {number}" for number in ids[row]]
        assert np.allclose(explanation["tokens"]["values"], tokens.values[row])


@pytest.mark.parametrize("path", [
    "classes:predict?target=1&target=2", "classes:predict?captrues=0", "classes:explain?method=salency",
    "classes:inspect?target=1", "classes:program?method=saliency", "classes:predict?captures=0",
    "classes:predict?request={%22captures%22:[]}", "/v2/models/classes/infer?target=1"])  # fmt: skip
def test_no_parameter_of_a_url_is_ignored(site: Site, path: str) -> None:
    """It is a field of the request, once, or refused."""
    body = {"captures": ["0"]} if "captures" in path else {}
    status, _, reply = site.post(path if path[0] == "/" else f"/v1/models/{path}", {**body, "instances": X.tolist()})
    assert (status, reply["reason"]) == (400, "INVALID_VALUE")


@pytest.mark.parametrize("path", [
    "/v1/models?page_size=1", "/v1/models/classes?operatos", "/v1/models/classes?operators=false",
    "/v1/models/classes?example=0", "/v2?x", "/v2/models/classes?example", "/v2/models/classes/ready?x="])  # fmt: skip
def test_no_parameter_of_a_description_is_ignored(site: Site, path: str) -> None:
    """Nor is ``false`` taken for true."""
    status, _, reply = post(f"{site.url}{path}", None, {})
    assert (status, json.loads(reply)["reason"]) == (400, "INVALID_VALUE")


def test_all_that_a_request_may_ask_for(site: Site) -> None:
    """The fields of a request file, beside the instances."""
    asked = {
        "instances": X.tolist(),
        "captures": ["0"],
        "input_gradients": True,
        "edits": [{"edit": "scale", "module": "2", "factor": 2}],
    }
    _, _, reply = site.post("/v1/models/classes:predict", asked)
    plain = site.client.inspect("classes", X, captures="0")
    assert np.array_equal(np.asarray(reply["predictions"], np.float32), 2 * plain.predictions["output"])
    found = plain.captures["0"].output
    (call,) = reply["captures"]["0"]["calls"]
    assert np.array_equal(np.asarray(call["leaves"]["output"][""]["values"], np.float32), found)
    assert np.asarray(reply["input_gradients"]["input"]["values"]).shape == (2, 4)


EXAMPLES = np.random.default_rng(0).normal(size=(6, 4)).tolist()
SCALE = {"edit": "scale", "module": "2", "factor": 2}
ASKED: dict[str, tuple[dict[str, Any], str, str]] = {
    "arguments": ({"arguments": {"flag": True}}, "", ""),
    "target": ({"target": 1, "input_gradients": True}, "targets", "targets"),
    "captures": ({"captures": ["0"]}, "captures", "capture:0@output"),
    "input_gradients": ({"input_gradients": True}, "input_gradients", "gradient:input"),
    "edits": ({"edits": [SCALE], "compare": True}, "unedited", "unedited:output"),
    "compare": ({"edits": [SCALE], "compare": True}, "unedited_classes", "unedited:prediction"),
    "attributions": ({"attributions": ["lrp"]}, "explanations", "attribution:lrp:input"),
    "attribution_errors_in_place": (
        {"attributions": [{"method": "layer_grad_cam", "layer": "9"}], "attribution_errors_in_place": True},
        "explanations",
        "",
    ),
    "explain_if": (
        {"attributions": ["lrp"], "explain_if": {"probability_at_most": 1.0}}, "explained_rows", "explained_rows"),
    "check": ({"attributions": ["lrp"], "check": "independent"}, "verdicts", "verdict:lrp"),
    "omit_predictions": ({"predictions": False, "captures": ["0"]}, "captures", "capture:0@output"),
    "max_reply_bytes": ({"max_reply_bytes": 1}, "", ""),
    "seed": ({"attributions": ["gradient_shap"], "seed": 3}, "", ""),
    "reply_data_type": ({"captures": ["0"], "reply_data_type": "float16"}, "captures", "capture:0@output"),
    "compression": ({"captures": ["0"], "compression": "zstd"}, "captures", "capture:0@output"),
    "dry_run": ({"dry_run": True, "captures": ["0"]}, "estimate", ""),
    "generate": ({"generate": 3}, "", ""),
    "sweep": ({"sweep": {"module": "0", "zeros": True}, "target": 1}, "sweep", "sweep:0"),
    "direct": ({"direct": {"modules": ["0"], "norm": "2"}, "target": 1}, "", ""),
    "attacks": ({"attacks": ["fgsm"], "target": 1}, "attacks", "attacked_input:fgsm:input"),
    "concepts": (
        {"concepts": {"layers": ["0"], "concepts": {"one": EXAMPLES}, "random": [EXAMPLES, EXAMPLES]}, "target": 1},
        "concepts",
        "concept_derivative:0:one",
    ),
    "influence": (
        {"influence": {"training": EXAMPLES, "method": "cosine", "layer": "0"}, "target": 1},
        "influence",
        "helpful:cosine",
    ),
    "counterfactual": (
        {"counterfactual": {"columns": {"input[0]": {"lower": -9, "upper": 9}}}, "target": 1},
        "counterfactual",
        "counterfactual_input:input",
    ),
    "agreement": ({"attributions": ["lrp", "saliency"], "agreement": True}, "agreements", "agreement_cosine:0:1"),
}  # fmt: skip
"""By field of a request: words that set it, and where the reply has it: in JSON, and in an NPZ file. "" is an error."""


@pytest.mark.parametrize("field", sorted({each.name for each in fields(ca.InspectRequest)} - {"model", *INPUT_FIELDS}))
@pytest.mark.parametrize("verb", ["predict", "explain"])
def test_what_is_asked_is_given_or_refused(site: Site, field: str, verb: str) -> None:
    """Every field of a request by both verbs, in every form of a reply: nothing is computed and dropped."""
    asked, part, array = ASKED[field]
    body = {"instances": X.tolist(), **asked}
    status, _, reply = site.post(f"/v1/models/classes:{verb}", body)
    assert reply.get(part) if part else status >= 400, reply
    status, _, file = site.post(f"/v1/models/classes:{verb}", body, accept="application/x-npz")
    if array:
        assert status == 200, file
        assert array in np.load(io.BytesIO(file)).files
    else:
        assert status >= 400
    status, _, file = site.post(f"/v1/models/classes:{verb}", body, accept="application/x-npy")
    assert status >= 400, "one array is the prediction alone"
    status, _, events = site.post(f"/v1/models/classes:{verb}", body, accept="text/event-stream")
    if status == 200:
        kinds = events_in(events)
        has_part = part and any(part in data for name, data in kinds if name == "message")
        assert has_part or kinds[-1][0] == "error"
    else:
        assert status >= 400


def test_examples_that_the_model_decodes(site: Site) -> None:
    """As texts, as base64, and as files of a form."""
    lines = [" ".join(map(str, row)) for row in X.tolist()]
    coded = [{"b64": base64.b64encode(line.encode()).decode(), "media_type": "text/plain"} for line in lines]
    expected = site.client.inspect("classes", lines).predictions["output"].tolist()
    for instances in (lines, coded):
        status, _, reply = site.post("/v1/models/classes:predict", {"instances": instances})
        assert (status, reply["predictions"]) == (200, expected)
    body, kind = _form([("instances", "one.txt", "text/plain", line.encode()) for line in lines], captures='["0"]')
    status, _, reply = site.post("/v1/models/classes:predict", body, content_type=kind)
    assert (status, reply["predictions"], list(reply["captures"])) == (200, expected, ["0"])


TWICE: dict[str, tuple[list[tuple[str, str]], str, str]] = {
    "a field": ([("target", "1"), ("target", "2")], "", "target"),
    "a field and request": ([("request", '{"target": 1}'), ("target", "2")], "", "target"),
    "request and a field": ([("target", "2"), ("request", '{"target": 1}')], "", "target"),
    "request": ([("request", '{"target": 1}'), ("request", '{"target": 2}')], "", "target"),
    "the URL and a field": ([("target", "1")], "?target=1", "target"),
    "the URL's request": ([("target", "1")], "?request={%22target%22:1}", "target"),
    "the method": ([("method", "saliency"), ("options", '{"method": "deconvolution"}')], "", "options.method"),
    "a key in a field": ([("options", '{"n_steps": 2, "n_steps": 3}')], "", "options"),
    "a key in the URL": ([], "?options={%22n_steps%22:2,%22n_steps%22:3}", "options"),
}


@pytest.mark.parametrize("name", TWICE)
def test_nothing_in_a_form_replaces_something_else(site: Site, name: str) -> None:
    """Neither the first nor the last value is taken of what comes twice."""
    given, query, field = TWICE[name]
    body, kind = _form([("instances", "a.txt", "text/plain", b"1 2 3 4")], *given)
    status, _, reply = site.post(f"/v1/models/classes:explain{query}", body, content_type=kind)
    reason = "MALFORMED_REQUEST" if name.startswith("a key") else "INVALID_VALUE"
    assert (status, reply["reason"], reply["field"]) == (400, reason, field)


@pytest.mark.parametrize("path", ["/v1/models/classes:inspect", "/v1/models/classes:program", f"/{SERVICE}/Inspect"])
def test_a_field_comes_once_by_either_of_its_names(site: Site, path: str) -> None:
    """By every door that reads protobuf's JSON."""
    left = {"compare": True, "inputGradients": {}, "input_gradients": {"inputs": ["input"]}}
    status, _, reply = site.post(path, left)
    told = base64.b64decode(reply["details"][0]["value"] + "==") if SERVICE in path else json.dumps(reply).encode()
    assert status == 400
    assert b"INVALID_VALUE" in told
    assert b"is given twice" in (reply["message"] if SERVICE in path else reply["detail"]).encode()


def test_an_input_comes_once_in_a_form(site: Site) -> None:
    file = ("input", "x.npy", "", _npy(X))
    body, kind = _form([file, file])
    status, _, reply = site.post("/v1/models/classes:predict", body, content_type=kind)
    assert (status, reply["reason"], reply["field"]) == (400, "INVALID_VALUE", "input")


def test_a_file_says_what_failed(site: Site) -> None:
    """What has no place in files of numpy is an error; each row's verdict has one."""
    asked: dict[str, Any] = {"instances": X.tolist(), "target": 1, "attribution_errors_in_place": True}
    wrong = {"method": "layer_activation", "layer": "nope"}
    npy, npz = "application/x-npy", "application/x-npz"
    for more, accept, reason in (
        ({"attributions": ["saliency", wrong]}, npz, "MODULE_NOT_FOUND"),
        ({"attributions": [wrong]}, npy, "INVALID_VALUE"),
        ({"dry_run": True}, npz, "INVALID_VALUE"),
        ({"dry_run": True}, npy, "INVALID_VALUE"),
    ):
        status, _, reply = site.post("/v1/models/classes:predict", {**asked, **more}, accept=accept)
        assert (status, reply["reason"]) == (400, reason)
        assert "accept application/" in reply["detail"]
    methods = ["saliency", {"method": "integrated_gradients", "n_steps": 2}, "saliency"]
    _, _, file = site.post("/v1/models/classes:predict", {**asked, "attributions": methods}, accept=npz)
    _, _, whole = site.post("/v1/models/classes:predict", {**asked, "attributions": methods})
    arrays = np.load(io.BytesIO(file))
    for number, name in enumerate(("saliency", "integrated_gradients", "saliency#1")):
        verdicts = [explanations[number]["verdict"] for explanations in whole["explanations"]]
        assert arrays[f"verdict:{name}"].tolist() == verdicts


def test_files_of_numpy(site: Site) -> None:
    """In and out; the arrays are those of gRPC, to the bit."""
    expected = site.client.inspect("classes", X)
    status, headers, reply = site.post(
        "/v1/models/classes:predict", _npy(X), content_type="application/x-npy", accept="application/x-npy"
    )
    assert (status, headers["content-type"]) == (200, "application/x-npy")
    assert np.array_equal(np.load(io.BytesIO(reply)), expected.predictions["output"])
    file = io.BytesIO()
    np.savez(file, left=np.arange(2), right=np.ones(2, np.float32))
    _, _, reply = site.post("/v1/models/pairs:predict", file.getvalue(), content_type="application/x-npz")
    assert {name: array.tolist() for name, array in np.load(io.BytesIO(reply)).items()} == {
        "sum": [1, 2],
        "product": [0, 1],
    }
    asked = {"instances": X.tolist(), "captures": ["0"], "input_gradients": True, "attributions": ["saliency"]}
    _, _, reply = site.post("/v1/models/classes:explain", asked, accept="application/x-npz")
    tensors = ["output", "capture:0@output", "gradient:input", "attribution:saliency:input"]
    names = list(np.load(io.BytesIO(reply)))
    assert [name for name in names if name in tensors] == tensors
    assert {"prediction", "probability", "targets", "targets:saliency"} < set(names)
    body, kind = _form(
        [("left", "l.npy", "application/x-npy", _npy(np.arange(2))), ("right", "r.npy", "", _npy(X[0, :2]))]
    )
    status, _, reply = site.post("/v1/models/pairs:predict", body, content_type=kind)
    assert (status, len(reply["predictions"])) == (200, 2)


def test_a_question_as_a_program(site: Site) -> None:
    """Which asks it where it was asked for; a token is never in it."""
    body = {"captures": [{"module": "0"}], "tensors": {"byName": {"input": {"dataType": 1, "shape": [0, 4]}}}}
    status, headers, program = site.post("/v1/models/classes:program", body, authorization="Bearer secret")
    assert (status, headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert f'ca.Client("{site.url.removeprefix("http://")}", transport="connect"' in program.decode()
    assert 'captures=["0"]' in program.decode()
    assert b"secret" not in program
    _, _, job = site.post("/v1/models/classes:program?language=job", body)
    assert yaml.safe_load(job)["request"] == {"captures": [{"module": "0"}]}


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", "Application/JSON ;charset=UTF-8"]
)
def test_json_of_connect_may_name_its_charset(site: Site, kind: str) -> None:
    """Browsers and libraries add it; the reply is JSON too."""
    left = {"dataType": "DATA_TYPE_INT64", "shape": [1], "data": base64.b64encode(bytes(8)).decode()}
    right = {"dataType": "DATA_TYPE_FLOAT32", "shape": [1], "data": base64.b64encode(bytes(4)).decode()}
    asked = {"model": "pairs", "tensors": {"byName": {"left": left, "right": right}}}
    status, _, reply = site.post(f"/{SERVICE}/Inspect", asked, content_type=kind)
    assert (status, sorted(each["name"] for each in reply["predictions"]["outputs"])) == (200, ["product", "sum"])


EMPTY = bytes(5)
NOT_CONNECT: dict[str, tuple[str, bytes, dict[str, str], str]] = {
    "a compression": ("ListModels", b"{}", {"content_encoding": "gzip"}, "NOT_IMPLEMENTED"),
    "two messages": ("InspectStream", EMPTY * 2, {"content_type": "application/connect+proto"}, "NOT_IMPLEMENTED"),
    "no message": ("InspectStream", b"", {"content_type": "application/connect+proto"}, "NOT_IMPLEMENTED"),
    "half a message": ("InspectStream", EMPTY[1:], {"content_type": "application/connect+proto"}, "MALFORMED_REQUEST"),
    "no time": ("ListModels", b"{}", {"connect_timeout_ms": "0"}, "DEADLINE_EXCEEDED"),
}


@pytest.mark.parametrize("name", NOT_CONNECT)
def test_what_connect_itself_refuses_has_a_reason(site: Site, name: str) -> None:
    method, body, headers, reason = NOT_CONNECT[name]
    sent = {"content_type": "application/json", **headers}
    _, _, reply = site.post(f"/{SERVICE}/{method}", body, **sent)
    told = reply if isinstance(reply, dict) else json.loads(reply[5:])["error"]
    assert reason.encode() in base64.b64decode(told["details"][0]["value"] + "=="), told


def test_models(site: Site) -> None:
    """Their names, and what is known of one; a version may be named."""
    assert post(f"{site.url}/v1/models", None, {})[2] == b'{"models":["classes","pairs","types","words"]}'
    for path in ("classes", "classes/versions/1.0"):
        known = json.loads(post(f"{site.url}/v1/models/{path}", None, {})[2])
        assert (known["name"], known["ready"], known["model"]["labels"]) == ("classes", True, ["a", "b", "c"])
        assert not {"operators", "example", "dataFlow"} & known["model"].keys()
        more = json.loads(post(f"{site.url}/v1/models/{path}?example&operators&data_flow", None, {})[2])["model"]
        assert [each["name"] for each in more["example"]] == ["input"]
        assert more["operators"]
        assert more["dataFlow"][0]["input"] == "input"
        assert site.post(f"/v1/models/{path}:predict", {"instances": X.tolist()})[0] == 200


_TWICE = io.BytesIO()
np.savez(_TWICE, input=X, inpuT=X)
TWO_OF_A_NAME = _TWICE.getvalue().replace(b"inpuT", b"input")
FOUR = {"dataType": "DATA_TYPE_FLOAT32", "shape": [1, 4], "data": base64.b64encode(bytes(16)).decode()}
WRONG: dict[str, tuple[str, Any, dict[str, str], tuple[int, str, str]]] = {
    "model": ("/v1/models/nope:predict", {"instances": [[1]]}, {}, (404, "MODEL_NOT_FOUND", "model")),
    "verb": ("/v1/models/classes:guess", {"instances": [[1]]}, {}, (501, "NOT_IMPLEMENTED", "")),
    "no verb": ("/v1/models/classes", {"instances": [[1]]}, {}, (501, "NOT_IMPLEMENTED", "")),
    "no instances": ("/v1/models/classes:predict", {}, {}, (400, "INVALID_VALUE", "instances")),
    "no list": ("/v1/models/classes:predict", {"instances": 3}, {}, (400, "INVALID_VALUE", "instances")),
    "ragged": (
        "/v1/models/classes:predict",
        {"instances": [[1], [1, 2]]},
        {},
        (400, "INVALID_VALUE", "instances.inputs"),
    ),
    "width": ("/v1/models/classes:predict", {"instances": [[1, 2]]}, {}, (400, "INPUT_SHAPE", "tensors.by_name.input")),
    "names": (
        "/v1/models/pairs:predict",
        {"instances": [{"left": 1, "right": 2}, {"left": 1}]},
        {},
        (400, "INVALID_VALUE", "instances[1]"),
    ),
    "base64": (
        "/v1/models/classes:predict",
        {"instances": [{"b64": "?"}]},
        {},
        (400, "INVALID_VALUE", "instances[0].b64"),
    ),
    "field": (
        "/v1/models/classes:predict",
        {"instances": [[1]], "captrues": []},
        {},
        (400, "INVALID_VALUE", "captrues"),
    ),
    "method": (
        "/v1/models/classes:explain",
        {"instances": X.tolist(), "method": "salency"},
        {},
        (400, "INVALID_VALUE", "attributions[0].method"),
    ),
    "options": (
        "/v1/models/classes:explain",
        {"instances": X.tolist(), "options": 3},
        {},
        (400, "INVALID_VALUE", "options"),
    ),
    "binary": (
        "/v1/models/classes:inspect",
        b"\xff\xff\xff",
        {"content_type": "application/proto"},
        (400, "MALFORMED_REQUEST", ""),
    ),
    "json": ("/v1/models/classes:predict", b"{", {}, (400, "MALFORMED_REQUEST", "")),
    "twice": ("/v1/models/classes:predict", b'{"instances": [], "instances": []}', {}, (400, "MALFORMED_REQUEST", "")),
    "twice, v2": (
        "/v2/models/classes/infer",
        b'{"id": "a", "inputs": [], "id": "b"}',
        {},
        (400, "MALFORMED_REQUEST", ""),
    ),
    "byte order mark": ("/v1/models/classes:predict", b"\xef\xbb\xbf[]", {}, (400, "MALFORMED_REQUEST", "")),
    "too large a number": (
        "/v1/models/types:predict",
        json.dumps({"instances": [ZEROS, ZEROS]}).encode().replace(b'"double": 0.0', b'"double": -1e400'),
        {},
        (400, "INVALID_VALUE", "instances[0].double"),
    ),
    "too large a number, v2": (
        "/v2/models/classes/infer",
        b'{"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 1e400]}]}',
        {},
        (400, "INVALID_VALUE", "inputs[0].data[3]"),
    ),
    "too large a number in the URL": (
        "/v1/models/classes:predict?target_values=[1e400]",
        {"instances": X.tolist()},
        {},
        (400, "INVALID_VALUE", "target_values[0]"),
    ),
    "too large a number, contract": (
        "/v1/models/classes:inspect",
        b'{"explainIf": {"probabilityAtLeast": 1e400}}',
        {},
        (400, "INVALID_VALUE", "explainIf.probabilityAtLeast"),
    ),
    "no object": ("/v1/models/classes:predict", b"[]", {}, (400, "MALFORMED_REQUEST", "")),
    "deep": ("/v1/models/classes:predict", b"[" * 100_000, {}, (400, "MALFORMED_REQUEST", "")),
    "type": ("/v1/models/classes:predict", b"x", {"content_type": "text/csv"}, (400, "MALFORMED_REQUEST", "")),
    "npy": ("/v1/models/classes:predict", b"x", {"content_type": "application/x-npy"}, (400, "MALFORMED_REQUEST", "")),
    "npz with a name twice": (
        "/v1/models/classes:predict",
        TWO_OF_A_NAME,
        {"content_type": "application/x-npz"},
        (400, "MALFORMED_REQUEST", ""),
    ),
    "npz": ("/v1/models/classes:predict", b"x", {"content_type": "application/x-npz"}, (400, "MALFORMED_REQUEST", "")),
    "objects": (
        "/v1/models/classes:predict",
        b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(128),
        {"content_type": "application/x-npy"},
        (400, "MALFORMED_REQUEST", ""),
    ),
    "form": (
        "/v1/models/classes:predict",
        b"x",
        {"content_type": "multipart/form-data"},
        (400, "MALFORMED_REQUEST", ""),
    ),
    "compressed": (
        "/v1/models/classes:predict",
        {"instances": X.tolist()},
        {"content_encoding": "gzip"},
        (501, "NOT_IMPLEMENTED", "content-encoding"),
    ),
    "form in base64": (
        "/v1/models/classes:predict",
        b'--b\r\nContent-Disposition: form-data; name="instances"; filename="a"\r\n'
        b"Content-Transfer-Encoding: base64\r\n\r\nMSAyIDMgNA==\r\n--b--\r\n",
        {"content_type": "multipart/form-data; boundary=b"},
        (400, "MALFORMED_REQUEST", ""),
    ),
    "list for a message": ("/v1/models/classes:inspect", b"[]", {}, (400, "MALFORMED_REQUEST", "")),
    "text for a message": ("/v1/models/classes:inspect", b' ""', {}, (400, "MALFORMED_REQUEST", "")),
    "contract": ("/v1/models/classes:inspect", {"tensros": {}}, {}, (400, "UNKNOWN_FIELD", "")),
    "names of columns": (
        "/v1/models/classes:inspect",
        {"tensors": {"byName": {"": FOUR}, "featureNames": {"": {"names": ["a", "b"]}}}},
        {},
        (400, "INPUT_FEATURES", "tensors.feature_names.input"),
    ),
    "another model": ("/v1/models/classes:inspect", {"model": "pairs"}, {}, (400, "INVALID_VALUE", "model")),
    "language": ("/v1/models/classes:program?language=perl", {}, {}, (400, "INVALID_VALUE", "language")),
    "address": ("/v1/models/classes:program?address=x", {}, {}, (400, "INVALID_VALUE", "address")),
    "program of another": ("/v1/models/classes:program", {"model": "pairs"}, {}, (400, "INVALID_VALUE", "model")),
    "no program": ("/v1/models/classes:program", {"tensros": {}}, {}, (400, "UNKNOWN_FIELD", "")),
    "too large": ("/v1/models/classes:inspect", b" " * (3 << 20), {}, (413, "REQUEST_TOO_LARGE", "")),
    "timeout": (
        "/v1/models/classes:predict",
        {"instances": X.tolist()},
        {"x_timeout_ms": "-1"},
        (400, "INVALID_VALUE", "x-timeout-ms"),
    ),
    "too late": (
        "/v1/models/classes:explain",
        {"instances": X.tolist(), "method": "integrated_gradients", "options": {"n_steps": 1_024}},
        {"x_timeout_ms": "1"},
        (504, "DEADLINE_EXCEEDED", ""),
    ),
    "origin": ("/v1/models", None, {"origin": "https://evil.example"}, (403, "ORIGIN_REFUSED", "origin")),
    "host": ("/v1/models", None, {"host": "evil.example"}, (403, "ORIGIN_REFUSED", "host")),
    "grpc": (
        "/cutaway.v1.InspectionService/Inspect",
        b"",
        {"content_type": "application/grpc"},
        (501, "NOT_IMPLEMENTED", ""),
    ),
}


WRONG |= {
    f"npy: {name}": (
        "/v1/models/classes:predict",
        data,
        {"content_type": "application/x-npy"},
        (400, "MALFORMED_REQUEST", ""),
    )
    for name, data in HOSTILE_NPY.items()
}

SURROGATE = "\ud800"
TENSOR = {"name": "input", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
WRONG |= {
    f"surrogate {number}": (path, body, {}, (400, "MALFORMED_REQUEST", field))
    for number, (path, body, field) in enumerate(
        [
            (
                "/v1/models/classes:predict",
                {"instances": [[1, 2, 3, 4]], "target": SURROGATE},
                "target.class_label.labels",
            ),
            (
                "/v1/models/classes:explain",
                {"instances": [[1, 2, 3, 4]], "captures": [SURROGATE]},
                "captures[0].module",
            ),
            (
                "/v1/models/classes:predict",
                {"instances": [[1, 2, 3, 4]], "arguments": {"a": SURROGATE}},
                "arguments.a",
            ),
            ("/v1/models/classes:predict", {"instances": [{SURROGATE: [1, 2, 3, 4]}]}, "tensors"),
            ("/v1/models/classes:predict", {"instances": [SURROGATE]}, "instances.inputs"),
            ("/v1/models/classes:inspect", {"captures": [{"module": SURROGATE}]}, ""),
            ("/v1/models/classes:program?language=python", {"captures": [{"module": SURROGATE}]}, ""),
            ("/v2/models/classes/infer", {"inputs": [TENSOR | {"name": SURROGATE}]}, "inputs[0]"),
            ("/v2/models/classes/infer", {"inputs": [TENSOR], "outputs": [{"name": SURROGATE}]}, "outputs[0]"),
            ("/v2/models/classes/infer", {"inputs": [TENSOR], "id": SURROGATE}, ""),
        ]
    )
}
WRONG["a name that is no Unicode"] = (
    "/v1/models/classes:explain",
    {"instances": [[1, 2, 3, 4]], "attributions": [SURROGATE]},
    {},
    (400, "INVALID_VALUE", "attributions[0].method"),
)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told(site: Site, name: str) -> None:
    """As problem details, with the reason, the field and a status that fits. The next call is answered, also after one
    that was given up amid a pass."""
    path, body, headers, expected = WRONG[name]
    if body is None:
        status, got, data = post(f"{site.url}{path}", None, headers)
        reply = json.loads(data)
    else:
        status, got, reply = site.post(path, body, **headers)
    assert (status, reply["reason"], reply.get("field", "")) == expected, reply
    assert got["content-type"] == ("application/json" if path.startswith("/v2") else "application/problem+json")
    assert reply["status"] == status
    assert site.post("/v1/models/classes:predict", {"instances": X.tolist()})[0] == 200


def test_a_small_file_may_not_hold_large_arrays(site: Site) -> None:
    file = io.BytesIO()
    np.savez_compressed(file, x=np.zeros((1 << 20, 4), np.float32))
    assert len(file.getvalue()) < 1 << 20
    status, _, reply = site.post("/v1/models/classes:predict", file.getvalue(), content_type="application/x-npz")
    assert (status, reply["reason"]) == (413, "REQUEST_TOO_LARGE")


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _form(files: list[tuple[str, str, str, bytes]], *given: tuple[str, str], **fields: str) -> tuple[bytes, str]:
    """A form's body, and its content type."""
    boundary = uuid4().hex
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="{file}"\r\n'
        f"Content-Type: {kind}\r\n\r\n".encode()
        + data
        for name, file, kind, data in files
    ]
    parts += [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode()
        for name, value in (*given, *fields.items())
    ]
    return b"\r\n".join([*parts, f"--{boundary}--\r\n".encode()]), f"multipart/form-data; boundary={boundary}"
