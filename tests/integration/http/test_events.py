"""Replies by REST as server-sent events: each part when it exists, and an end that says whether it was the whole."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters.causal_lm import CausalLMAdapter
from cutaway.engine.execution import collect
from cutaway.gateway import serve
from cutaway.server.embedded import Served
from cutaway.server.settings import Settings
from tests.support.causal_lms import saved
from tests.support.doors import events_in, post
from tests.support.gated_model import DOOR, Doored
from tests.support.pages import in_a_browser, running_browser
from tests.support.prometheus import read
from tests.support.waiting import PATIENCE_S, until

HEADERS = {"content-type": "application/json", "accept": "text/event-stream"}
TEXTS = ["the hooks see layers", "see the hooks"]
X = [[-1.0, -0.5, 0.5, 1.0], [1.0, 0.0, 0.5, 0.25]]
LONG = {"method": "kernel_shap", "n_samples": 2000}


class Entrance(nn.Module):
    """Lets passes of one token through the door; tests of the model, which run in idle time, have more."""

    def forward(self, embedded: Tensor) -> Tensor:
        if embedded.shape[:2] == (1, 1):
            DOOR.enter()
        return embedded


class Waiting(CausalLMAdapter):
    """A model that writes texts, whose passes go through the door."""

    def load(self, weights: Path | None) -> nn.Module:
        model: Any = super().load(weights)
        model.transformer.drop = Entrance()
        return cast(nn.Module, model)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = saved(tmp_path_factory.mktemp("gpt2"))
    models: dict[str, Any] = {
        "gpt": CausalLMAdapter(directory=directory),
        "waiting": Waiting(directory=directory),
        "doored": Doored(),
        "wide": nn.Sequential(nn.Linear(1, 1 << 16)),
    }
    settings = Settings(http_address="127.0.0.1:0", metrics_address="127.0.0.1:0")
    with serve(models, settings=settings) as server:
        yield server


@pytest.fixture
def shut(served: Served) -> Iterator[Callable[[int], None]]:
    """Shuts the door behind so many passes."""
    with ca.Client(served.address) as client:
        client.inspect("doored", np.array(X, np.float32), attributions="saliency")  # tests of the models are done
        client.inspect("waiting", "the", generate=2)
    yield DOOR.let_through
    DOOR.let_through(1 << 30)
    DOOR.let_more_through()


def begun(served: Served, path: str, body: Any, **headers: str) -> HTTPResponse:
    """The reply as it arrives; closing it ends the connection."""
    connection = HTTPConnection(served.http_address or "", timeout=PATIENCE_S)
    asked = {**HEADERS, **headers, "connection": "close"}
    connection.request("POST", f"/v1/models/{path}", json.dumps(body), asked)
    return connection.getresponse()


def next_event(reply: HTTPResponse) -> tuple[str, Any]:
    lines: list[bytes] = []
    while not lines or lines[-1] != b"\n":
        lines.append(reply.readline())
        assert lines[-1], "the stream has ended"
    ((event, data),) = events_in(b"".join(lines))
    return event, data


def whole(served: Served, path: str, body: Any) -> list[tuple[str, Any]]:
    status, told, reply = post(f"http://{served.http_address}/v1/models/{path}", json.dumps(body).encode(), HEADERS)
    assert (status, told["content-type"].partition(";")[0]) == (200, "text/event-stream")
    return events_in(reply)


@pytest.mark.parametrize("verb", ["predict", "inspect"])
def test_an_event_has_a_token_of_each_text(served: Served, verb: str) -> None:
    """With what hooks see at it; the last part has what there is of the whole, and nothing is sent twice."""
    examples = [{"data": "dGhlIGhvb2tz", "mediaType": "text/plain"}]
    inputs = {"raw": {"examples": examples}} if verb == "inspect" else {"instances": ["the hooks"]}
    drawn = {"maxNewTokens": 4} if verb == "inspect" else {"max_new_tokens": 4}
    seed = {"options": {"seed": 3}} if verb == "inspect" else {"seed": 3}
    asked = {**inputs, **seed, "generate": drawn, "captures": [{"module": "transformer.h.1"}]}
    events = whole(served, f"gpt:{verb}", asked)
    *tokens, (_, last), end = events
    assert [name for name, _ in events] == [*["message"] * 5, "end"]
    assert end[1] == {}
    with ca.Client(served.address) as client:
        expected = client.inspect("gpt", "the hooks", generate=4, seed=3)
    assert "".join(token["generated"][0]["texts"][0] for _, token in tokens) == expected.texts[0]
    assert all(len(token["generated"]) == 1 and token["captures"] for _, token in tokens)
    assert all(token.keys() <= {"generated", "captures", "texts", "predictions"} for _, token in tokens)
    assert not last.keys() & {"generated", "captures", "texts"}
    reasons = last["finish_reasons"] if verb == "predict" else last["finishReasons"]
    assert (reasons, last["provenance"]["seed"]) in ((["length"], 3), (["FINISH_REASON_LENGTH"], "3"))
    if verb == "predict":
        assert "".join(token["texts"][0] for _, token in tokens) == expected.texts[0]


def test_each_part_comes_when_it_exists(served: Served, shut: Callable[[int], None]) -> None:
    """The prediction while explanations wait, and a token while the next one waits."""
    shut(1)
    with begun(served, "waiting:predict", {"instances": ["the"], "generate": 9}) as reply:
        assert len(next_event(reply)[1]["texts"]) == 1
        until(lambda: DOOR.passes == 2)
        DOOR.let_more_through(1)
        assert len(next_event(reply)[1]["texts"]) == 1
        until(lambda: DOOR.passes == 3)
        DOOR.let_more_through()
        assert events_in(reply.read())[-1] == ("end", {})
    bare = passes_of_a_prediction(served, shut)
    shut(bare)
    with begun(served, "doored:predict", {"instances": X, "attributions": ["saliency"]}) as reply:
        first = next_event(reply)[1]
        assert first.keys() == {"predictions", "targets", "target_values"}
        DOOR.let_more_through()
        later = events_in(reply.read())
    assert [name for name, _ in later] == ["message", "message", "end"]
    assert [len(rows) for rows in later[0][1]["explanations"]] == [1, 1]
    assert later[1][1].keys() == {"provenance", "timings"}


def passes_of_a_prediction(served: Served, shut: Callable[[int], None]) -> int:
    shut(1 << 30)
    with ca.Client(served.address) as client:
        client.inspect("doored", np.array(X, np.float32))
    return DOOR.passes


def test_an_error_before_the_first_event_has_a_status(served: Served) -> None:
    """And problem details, as without events."""
    for path, body, status, reason, field in (
        ("gpt:predict", {"instances": ["a"], "generate": 900}, 413, "LIMIT_EXCEEDED", "generate.max_new_tokens"),
        ("doored:predict", {"instances": X, "captures": ["no"]}, 400, "MODULE_NOT_FOUND", "captures[0].module"),
        ("none:inspect", {}, 404, "MODEL_NOT_FOUND", "model"),
        ("wide:predict", {"instances": [[1.0]] * 80}, 413, "REPLY_TOO_LARGE", None),
    ):
        url = f"http://{served.http_address}/v1/models/{path}"
        got, headers, reply = post(url, json.dumps(body).encode(), HEADERS)
        told = json.loads(reply)
        assert (got, told["reason"], told.get("field")) == (status, reason, field)
        assert headers["content-type"] == "application/problem+json"


def test_an_error_after_the_first_event_is_the_last(served: Served) -> None:
    """Its data are problem details; what came before stays right."""
    never_called = {"method": "layer_activation", "layer": "unused"}
    asked = {"instances": X, "attributions": ["saliency", never_called]}
    first, second, (name, told) = whole(served, "doored:predict", asked)
    with ca.Client(served.address) as client:
        expected = client.inspect("doored", np.array(X, np.float32))
    assert first[1]["predictions"] == expected.predictions["output"].tolist()
    assert second[1]["explanations"][0][0]["method"] == "Saliency"
    assert (name, told["reason"], told["status"]) == ("error", "METHOD_INAPPLICABLE", 400)
    assert told["field"] == "attributions[1].layer_activation.layer"


def test_a_stream_is_no_larger_than_json(served: Served) -> None:
    """All of its parts together."""
    ones = {
        "dataType": "DATA_TYPE_FLOAT32",
        "shape": [8, 1],
        "data": base64.b64encode(np.ones(8, "<f4").tobytes()).decode(),
    }
    asked = {"tensors": {"byName": {"input": ones}}, "attributions": [{"layerActivation": {"layer": "0"}}] * 8}
    *parts, (name, told) = whole(served, "wide:inspect", asked)
    assert 1 < len(parts) < 9
    assert (name, told["reason"]) == ("error", "REPLY_TOO_LARGE")


def test_a_deadline_that_passes_later_is_an_event(served: Served, shut: Callable[[int], None]) -> None:
    milliseconds, first = 250, ("error", None)
    bare = passes_of_a_prediction(served, shut)
    while first[0] == "error":  # a busy machine may need longer even for that
        shut(bare)
        milliseconds *= 2
        reply = begun(
            served, "doored:predict", {"instances": X, "attributions": [LONG]}, **{"x-timeout-ms": str(milliseconds)}
        )
        first = next_event(reply) if reply.status == 200 else first
    with reply:
        name, told = next_event(reply)
        assert (name, told["reason"], told["status"]) == ("error", "DEADLINE_EXCEEDED", 504)
        assert reply.read() == b""


@pytest.mark.parametrize("asked", ["generation", "explanation"])
def test_a_caller_who_hangs_up_ends_the_passes(served: Served, shut: Callable[[int], None], asked: str) -> None:
    """The pass at that time is the last; the call counts as a stream that was cancelled."""
    model = "waiting" if asked == "generation" else "doored"
    labels = {"method": "InspectStream", "code": "CANCELLED", "model": model, "version": "1.0"}
    metrics = served.metrics_address or ""
    before = read(metrics, "cutaway_calls_total", **labels)
    if asked == "generation":
        path, body, passes = "waiting:predict", {"instances": ["the"], "generate": 60}, 2
    else:
        path, body, passes = "doored:predict", {"instances": X, "attributions": [LONG]}, 0
        passes = passes_of_a_prediction(served, shut)
    shut(passes)
    with begun(served, path, body) as reply:
        assert next_event(reply)[0] == "message"
    until(lambda: read(metrics, "cutaway_calls_total", **labels) == before + 1)
    DOOR.let_more_through()
    with ca.Client(served.address, timeout=PATIENCE_S) as client:
        client.inspect("waiting", "the", generate=1) if asked == "generation" else client.inspect(
            "doored", np.array(X, np.float32)
        )
    assert DOOR.passes < 20


def test_progress_is_an_event(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between parts; its name keeps it apart from them."""
    monkeypatch.setattr(collect, "FIRST_S", 0.0)
    monkeypatch.setattr(collect, "EVERY_S", 0.0)
    events = whole(served, "doored:predict", {"instances": X, "attributions": ["integrated_gradients"]})
    told = [data for name, data in events if name == "progress"]
    assert told
    assert all(each.keys() == {"passes_done", "passes", "seconds_left", "attribution"} for each in told)


READS = """async ([path, body]) => {
    const headers = { "content-type": "application/json", accept: "text/event-stream" };
    const reply = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
    let text = "";
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part; !(part = await reader.read()).done; ) text += part.value;
    return text;
}"""


@in_a_browser
def test_a_page_reads_them_with_fetch(served: Served) -> None:
    """A page of the server itself, in Chromium: the events that any caller gets."""
    asked = {"instances": TEXTS, "generate": 3, "seed": 1, "check": "off"}
    with running_browser() as browser:
        page = browser.new_page()
        page.goto(f"http://{served.http_address}/docs")
        found = events_in(page.evaluate(READS, ["/v1/models/gpt:predict", asked]).encode())
    assert found[:-2] == whole(served, "gpt:predict", asked)[:-2]
    assert found[-1] == ("end", {})
