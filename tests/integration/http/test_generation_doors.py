"""Texts that a model writes are the same by every door, and complete at each."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

import cutaway as ca
from cutaway.adapters.causal_lm import CausalLMAdapter
from cutaway.gateway import serve
from cutaway.server.settings import Settings
from tests.support.causal_lms import saved
from tests.support.cli import cutaway, said
from tests.support.doors import doors, plain, post
from tests.support.infer_doors import as_inferred, infer_doors
from tests.support.mixed.mix import Request
from tests.support.reply_equality import differences

TEXTS = ["the hooks see layers", "see the hooks"]
ASKED: dict[str, Any] = {
    "generate": ca.Generate(5, temperature=0.8, alternatives=2),
    "seed": 3,
    "captures": [ca.Capture("transformer.h.*", position=-1, steps=range(3))],
    "edits": [ca.AddVector("transformer.h.0", np.ones(16, np.float32), scale=0.5, norm="match", steps=(1, 2))],
    "compare": True,
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    adapter = CausalLMAdapter(directory=saved(tmp_path_factory.mktemp("gpt2")))
    with serve({"gpt": adapter}, settings=Settings(http_address="127.0.0.1:0")) as server:
        assert server.http_address is not None
        yield server.address, server.http_address


def test_the_same_text_by_every_door(places: tuple[str, str]) -> None:
    request: Any = Request("texts", "gpt", TEXTS, ASKED, None)
    with doors(*places) as by_door, infer_doors(*places) as by_infer_door:
        first = by_door["grpc"](request)
        assert isinstance(first, ca.InspectResult)
        assert len(first.texts) == len(first.unedited_texts) == 2
        assert first.replay is not None
        assert first.replay.verdict is ca.Verdict.AGREES
        for name, ask in by_door.items():
            found = ask(request)
            assert isinstance(found, ca.InspectResult), (name, found)
            assert not list(differences(plain(found), plain(first), 0.0)), name
        for name, ask_infer in by_infer_door.items():
            inferred = ask_infer(request)
            assert not isinstance(inferred, ca.CutawayError), (name, inferred)
            expected = as_inferred(plain(first))
            assert not list(differences(inferred.outputs, expected.outputs, 0.0)), name
            assert not list(differences(inferred.result, expected.result, 0.0)), name


def test_tokens_are_streamed_as_they_are_written(places: tuple[str, str]) -> None:
    """By the blocking client and by the asynchronous one; what they yield is what the whole result has."""

    async def asynchronously() -> list[ca.GeneratedToken]:
        async with ca.AsyncClient(places[0]) as client:
            return [token async for token in client.inspect_stream("gpt", TEXTS, **ASKED)]

    with ca.Client(places[0]) as client:
        stream = client.inspect_stream("gpt", TEXTS, **ASKED)
        tokens = list(stream.tokens())
        result = stream.result()
    assert [(token.row, token.step) for token in tokens] == [(row, step) for step in range(5) for row in range(2)]
    for row, text in enumerate(result.texts):
        own = [token for token in tokens if token.row == row]
        assert "".join(token.text for token in own) == text
        np.testing.assert_array_equal([token.id for token in own], result.predictions["tokens"][row])
        for token in own:
            assert token.captures.keys() == ({"transformer.h.0", "transformer.h.1"} if token.step < 3 else set())
            for name, array in token.captures.items():
                np.testing.assert_array_equal(array, result.captures[name].calls[token.step].output[row])
    later = asyncio.run(asynchronously())
    assert [token.text for token in later] == [token.text for token in tokens]


@pytest.mark.parametrize("verb", ["predict", "explain"])
def test_rest_has_the_texts(verb: str, places: tuple[str, str]) -> None:
    """In JSON, and as texts in an NPZ file; an NPY file has no place for them."""
    url = f"http://{places[1]}/v1/models/gpt:{verb}"
    body = {"instances": TEXTS, "generate": {"max_new_tokens": 4}, "seed": 1}
    if verb == "explain":
        status, _, reply = post(url, json.dumps(body).encode(), {"content-type": "application/json"})
        assert (status, json.loads(reply)["reason"]) == (400, "INVALID_VALUE")
        return
    with ca.Client(places[0]) as client:
        expected = client.inspect("gpt", TEXTS, generate=4, seed=1)
    status, _, reply = post(url, json.dumps(body).encode(), {"content-type": "application/json"})
    found = json.loads(reply)
    assert (status, found["texts"], found["finish_reasons"]) == (200, list(expected.texts), ["length", "length"])
    assert found["replay"]["verdict"] == "AGREES"
    assert [each["tokens"] for each in found["predictions"]] == expected.predictions["tokens"].tolist()
    headers = {"content-type": "application/json", "accept": "application/x-npz"}
    arrays = np.load(io.BytesIO(post(url, json.dumps(body).encode(), headers)[2]), allow_pickle=False)
    assert (arrays["text"].tolist(), arrays["replay"].tolist()) == (list(expected.texts), ["AGREES"] * 2)
    np.testing.assert_array_equal(arrays["tokens"], expected.predictions["tokens"])
    status, _, reply = post(url, json.dumps(body).encode(), {**headers, "accept": "application/x-npy"})
    assert (status, json.loads(reply)["reason"]) == (400, "INVALID_VALUE")


def test_the_open_inference_protocol_has_the_texts(places: tuple[str, str]) -> None:
    """As outputs of BYTES, which any of its clients reads; by HTTP as texts in JSON too."""
    asked = {"cutaway": json.dumps({"generate": {"maxNewTokens": 4}, "options": {"seed": 1}})}
    sent: Any = triton.InferInput("examples", [2], "BYTES")
    sent.set_data_from_numpy(np.array(TEXTS, object))
    reply = triton.InferenceServerClient(places[0]).infer("gpt", [sent], parameters=asked)
    examples = {"name": "examples", "datatype": "BYTES", "shape": [2], "data": TEXTS}
    body = {"inputs": [examples], "parameters": asked, "outputs": [{"name": "text"}, {"name": "replay"}]}
    url = f"http://{places[1]}/v2/models/gpt/infer"
    status, _, told = post(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with ca.Client(places[0]) as client:
        expected = list(client.inspect("gpt", TEXTS, generate=4, seed=1).texts)
    assert [text.decode() for text in reply.as_numpy("text")] == expected
    assert reply.as_numpy("finish_reason").tolist() == [b"length"] * 2
    assert (status, [output["data"] for output in json.loads(told)["outputs"]]) == (200, [expected, ["AGREES"] * 2])


def test_tables_and_documents_have_the_texts(places: tuple[str, str]) -> None:
    """The table of predictions the text of each token; the document of a command the text of each row."""
    asked = ["inspect", "gpt", "--text", TEXTS[0], "--generate", "4", "--address", places[0], "--json"]
    with ca.Client(places[0]) as client:
        result = client.inspect("gpt", TEXTS[0], generate=4)
        assert json.loads(said(*asked))["texts"] == list(result.texts)
        assert json.loads(said(*asked[:4], *asked[6:]))["texts"] == []
    table = result.to_pandas("predictions")
    for output in ("tokens", "log_probabilities"):
        rows = table[table["output"] == output]
        assert rows["feature"].tolist() == [step.texts[0] for step in result.generated]


def test_an_empty_stop_is_refused_and_a_job_has_no_steps(places: tuple[str, str]) -> None:
    with ca.Client(places[0]) as client:
        with pytest.raises(ca.InvalidArgument, match=r"\[generate.stop\[1\]\]"):
            client.inspect("gpt", TEXTS, generate=ca.Generate(2, stop=(".", "")))
        with pytest.raises(ca.InvalidArgument, match=r"\[generate.alternatives\].*1,000"):
            client.inspect("gpt", TEXTS, generate=ca.Generate(2, alternatives=1001))
        with pytest.raises(ca.InvalidArgument, match=r"\[captures\[0\].position\].*operator"):
            client.inspect("gpt", TEXTS, captures=ca.Capture(op="transformer.h.0:add#0", position=0))
        heard: list[ca.results.Progress] = []
        client.inspect(
            "gpt", TEXTS, generate=ca.Generate(45), seed=1, progress=heard.append
        )  # mostly too short for any
    assert all(each.passes == 90 for each in heard)
    url = f"http://{places[1]}/v1/models/gpt:program?language=job"
    asked = {"tensors": {"byName": {"input_ids": {"dataType": "DATA_TYPE_INT64", "shape": [0, 3]}}}, "compare": True}
    asked |= {"generate": {"maxNewTokens": 3}, "captures": [{"module": "lm_head", "steps": [0]}]}
    asked["edits"] = [{"module": "lm_head", "point": "HOOK_POINT_OUTPUT", "zero": {}, "steps": [1]}]
    status, _, job = post(url, json.dumps(asked).encode(), {"content-type": "application/json"})
    assert status == 200, job
    assert b"compare, generate" in job
    assert b"steps" not in job


def test_the_command_and_the_notebook_show_them(places: tuple[str, str], tmp_path: Path) -> None:
    asked = [
        "inspect",
        "gpt",
        "--text",
        TEXTS[0],
        "--generate",
        "6,temperature=0.9",
        "--seed",
        2,
        "--address",
        places[0],
    ]
    shown = said(*asked, "--edit", "scale:transformer.h.*.mlp,factor=0.5", "--compare")
    with ca.Client(places[0]) as client:
        result = client.inspect("gpt", TEXTS[0], generate=ca.Generate(6, temperature=0.9), seed=2)
    assert "unedited" in shown
    assert "AGREES" in shown
    assert "0 to 5" in shown
    page = result._repr_html_()
    assert "AGREES" in page
    assert "AGREES" in str(result)


def test_the_command_prints_tokens_as_they_come(places: Any) -> None:
    """What the client gets, and on standard error its end; nothing in a text reaches the terminal."""
    done = cutaway("generate", "gpt", TEXTS[0], "--tokens", "6,temperature=0.8", "--seed", 4, "--address", places[0])
    with ca.Client(places[0]) as client:
        expected = client.inspect("gpt", TEXTS[0], generate=ca.Generate(6, temperature=0.8), seed=4)
    assert done.returncode == 0
    shown = "".join(each if each.isprintable() or each in "\n\t" else "\ufffd" for each in expected.texts[0])
    assert done.stdout == f"{shown}\n"
    assert done.stderr.strip() == f"{expected.finish_reasons[0].value}, replay AGREES"
    halved = cutaway(
        "generate", "gpt", TEXTS[0], "--tokens", "6", "--edit", "zero:transformer.h.*", "--address", places[0]
    )
    with ca.Client(places[0]) as client:
        edited = client.inspect("gpt", TEXTS[0], generate=6, edits=ca.Zero("transformer.h.*"))
    assert halved.stdout.strip("\n") == edited.texts[0].strip("\n")
    refused = cutaway("generate", "gpt", TEXTS[0], "--tokens", "900", "--address", places[0])
    assert refused.returncode != 0
    assert "LIMIT_EXCEEDED" in refused.stderr
