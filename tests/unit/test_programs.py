"""Questions as programs: each asks just what was asked."""

from __future__ import annotations

import json
import shlex
from typing import Any

import ml_dtypes  # numpy knows bfloat16 by it, as everywhere where the client is
import numpy as np
import pytest
import yaml
from google.protobuf import json_format
from hypothesis import given, settings

import cutaway as ca
from cutaway.client.request_builder import build_request
from cutaway.contract.errors import Reason
from cutaway.contract.requests import InspectRequest
from cutaway.contract.tensors import Array
from cutaway.contract.wire import requests as wire_requests
from cutaway.jobs import spec
from cutaway.jobs.spec import parse_request
from cutaway.v1 import tensor_pb2
from cutaway.v1.inspection_pb2 import InspectRequest as InspectRequestMessage
from cutaway.views.programs import FILE, LANGUAGES, Question, literal, program_of, question_of
from tests.support.wire_strategies import canonical, questions, with_arrays

ADDRESS = "http://127.0.0.1:8080/"
IMAGE = np.array([[0.1, np.nan, 1e-30]], np.float32)


def question(request: InspectRequest, address: str = ADDRESS, *, has_token: bool = False) -> Question:
    return question_of(wire_requests.encode(request).SerializeToString(), address, has_token=has_token)


def sent(request: InspectRequest) -> bytes:
    """What goes to the server."""
    return wire_requests.encode(request).SerializeToString(deterministic=True)


def asked_by_python(text: str) -> InspectRequest:
    """The request that a program in Python sends."""
    asked: list[InspectRequest] = []

    class Client:
        def __init__(self, address: str, **options: Any) -> None:
            assert (address, options) == ("127.0.0.1:8080", {"transport": "connect"})

        def __enter__(self) -> Client:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def inspect(self, *given: Any, **named: Any) -> None:
            asked.append(build_request(*given, **named))

    parts = {**vars(ca), "Client": Client}
    names = {"ca": type("ca", (), parts)}
    exec(text.replace("import cutaway as ca\n", ""), names)
    return asked[0]


def without_payload(array: Array) -> Array:
    """``array`` with one NaN for all, since a text has no bits of a NaN."""
    return np.where(array != array, np.array(np.nan, array.dtype), array) if array.dtype.kind in "fV" else array


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(questions)
def test_python_says_every_question(request: InspectRequest) -> None:
    """Whatever a request holds, its expression makes the same again."""
    request = with_arrays(without_payload, wire_requests.validated(request.with_input()))
    again = eval(literal(request), {"ca": ca, "np": np, "bfloat16": ml_dtypes.bfloat16})
    assert canonical(wire_requests.validated(again)) == canonical(request)


def test_what_differs_from_its_default_is_said() -> None:
    """To the sign of a zero; what does not is left out."""
    assert literal(ca.LayerFeatureAblation(layer="fc1", baseline=-0.0)).endswith("baseline=-0.0)")
    assert literal(ca.LayerFeatureAblation(layer="fc1", baseline=0.0)) == 'ca.LayerFeatureAblation(layer="fc1")'
    assert literal(np.array([-0.0], ml_dtypes.bfloat16)).startswith("np.array([-0.0], ")


QUESTIONS = {
    "arrays": InspectRequest("digits", {"image": IMAGE, "mask": np.array([[True, False]])}),
    "texts": InspectRequest("lm", raw=(ca.Raw(b"it's \xe2\x80\xae", "text/plain"), ca.Raw(b"b", "text/plain"))),
    "all kinds of parts": InspectRequest(
        "digits/versions/1.0",
        {"image": IMAGE},
        target=ca.ClassIndex((7,)),
        captures=(
            ca.Capture("conv1"),
            ca.Capture("conv1", ("output", "grad_output"), reduce=ca.Mean((2, 3))),
            ca.Capture(op=":add#0", at="grad_output"),
        ),
        input_gradients=(),
        edits=(ca.Add(module="conv1", call=1, addend=-1.5, slices=(ca.Slice(2, 3, 4),)),),
        compare=True,
        attributions=(
            ca.LayerGradCam(layer="it's"),
            ca.IntegratedGradients(n_steps=8, baselines={"image": 0.5}, noise=ca.NoiseTunnel(n_samples=3)),
            ca.NeuronGradient(neuron=ca.Neuron("fc1", (3,))),
        ),
        explain_if=ca.ExplainIf(probability_at_least=0.5),
        check=ca.CheckRequest(ca.CheckMode.INDEPENDENT, 1e-3),
        omit_predictions=True,
        seed=3,
    ),
    "arrays inside": InspectRequest(
        "digits", {"image": IMAGE}, attributions=(ca.DeepLift(baselines={"image": np.array([[0.1, 0, 2]])}),)
    ),
    "texts, and arrays inside": InspectRequest(
        "lm",
        raw=(ca.Raw(b"a", "text/plain"),),
        edits=(ca.Add(module="fc1", addend=np.array([-0.0, 1.5])),),
    ),
    "other targets": InspectRequest("digits", {"image": IMAGE}, target=ca.ClassIndex((7,), output="logits")),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_python_program_asks_the_same(name: str) -> None:
    """As ``client.inspect`` takes it."""
    asked = asked_by_python(program_of(question(QUESTIONS[name]), "python"))
    assert sent(asked) == sent(QUESTIONS[name])


def test_a_python_program_is_what_people_write() -> None:
    """Short forms, and nothing that says what holds anyhow."""
    text = program_of(question(QUESTIONS["all kinds of parts"]), "python")
    for words in (
        *("target=7,", '            ca.LayerGradCam(layer="it\'s"),\n', "input_gradients=True,", "predictions=False,"),
        'captures=[\n            "conv1",\n            ca.Capture(module="conv1", at=("output", "grad_output"), ',
    ):
        assert words in text
    assert "call=None" not in text


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_job_asks_the_same(name: str) -> None:
    """Of every row, as far as the question is about rows."""
    job = spec.Job.model_validate(yaml.safe_load(program_of(question(QUESTIONS[name]), "job")))
    asked, found = QUESTIONS[name], parse_request(job.request, job.target).request
    for field in ("target", "captures", "input_gradients", "edits", "attributions", "explain_if", "check"):
        assert canonical(getattr(found, field)) == canonical(getattr(wire_requests.validated(asked), field)), field
    assert parse_request(job.request, job.target).seed == (asked.seed or 0)


def test_a_job_says_what_it_has_none_of() -> None:
    """A setting of one reply; and it does not guess what cannot be in it."""
    text = program_of(question(QUESTIONS["all kinds of parts"]), "job")
    assert "# Left out, because a job has none of it: compare, omit_predictions." in text
    with pytest.raises(ca.InvalidArgument) as caught:
        program_of(question(InspectRequest("digits", {"image": IMAGE}, seed=2**63 - 1)), "job")
    assert (caught.value.reason, caught.value.field) == (Reason.INVALID_VALUE, "options.seed")


@pytest.mark.parametrize("text", ["a\x85b", "\u202eb", "ü", "a\nb", "\u2028"])
def test_a_job_keeps_every_character(text: str) -> None:
    """Those that YAML would take for the end of a line, or nobody sees, are escaped."""
    asked = InspectRequest("digits", {"image": IMAGE}, attributions=(ca.LayerGradCam(layer=text),))
    written = program_of(question(asked), "job")
    assert yaml.safe_load(written)["request"]["attributions"][0]["layer"] == text
    assert all(map(str.isprintable, written.split("\n")))


@pytest.mark.parametrize(("kinds", "expected"), [(("image/png",) * 2, "image/png"), (("image/png", "image/gif"), None)])
def test_a_job_decodes_what_was_sent(kinds: tuple[str, str], expected: str | None) -> None:
    """If all rows are of one kind."""
    asked = InspectRequest("resnet", raw=tuple(ca.Raw(b"", kind) for kind in kinds))
    assert yaml.safe_load(program_of(question(asked), "job"))["inputs"]["raw"].get("media_type") == expected


@pytest.mark.parametrize("name", QUESTIONS)
def test_curl_sends_the_same(name: str) -> None:
    """The contract's JSON, as the shell reads it."""
    words = shlex.split(program_of(question(QUESTIONS[name]), "curl").replace("\\\n", ""))
    assert words[2] == f"{ADDRESS}v1/models/{QUESTIONS[name].model}:inspect"
    message = json_format.Parse(words[-1], InspectRequestMessage())
    assert message.SerializeToString(deterministic=True) == sent(QUESTIONS[name])


def test_typescript_has_the_tensors_as_numbers() -> None:
    """The rest is the contract's JSON; JavaScript takes ``__proto__`` in an object for something else than a name."""
    text = program_of(question(QUESTIONS["arrays"], has_token=True), "typescript")
    assert "tensor(Float32Array.from([0.1, NaN, 1e-30]), [1, 3], DataType.FLOAT32)" in text
    assert "tensor(Uint8Array.from([1, 0]), [1, 2], DataType.BOOL)" in text
    assert 'new Client("http://127.0.0.1:8080/", { token: process.env.CUTAWAY_TOKEN ?? "" });' in text
    arrays = {"ids": np.array([[5]]), "half": np.array([0.5], np.float16), "small": np.array([1], np.uint8)}
    text = program_of(question(InspectRequest("lm", arrays)), "typescript")
    assert "BigInt64Array.from([5n])" in text
    assert "Float32Array.from([0.5]), [1], DataType.FLOAT16" in text
    assert "Uint8Array.from([1])" in text
    asked = InspectRequest("digits", {"__proto__": IMAGE}, arguments={"__proto__": 1})
    assert program_of(question(asked), "typescript").count('["__proto__"]: ') == 2


def bare_question() -> Question:
    """A question that was given without its inputs."""
    message = wire_requests.encode(InspectRequest("digits"))
    message.ClearField("input")
    return question_of(message.SerializeToString(), ADDRESS, has_token=False)


@pytest.mark.parametrize("language", [each for each in LANGUAGES if each != "job"])
def test_a_question_without_its_inputs_is_read_from_a_file(language: str) -> None:
    """So is one with the bytes of files, or with names of columns."""
    raw = (ca.Raw(b"\x89PNG", "image/png"), ca.Raw(b"\xff", "text/plain"), ca.Raw(b"1,2", "text/csv"))
    files = [question(InspectRequest("resnet", raw=(each,))) for each in raw]
    table = question(InspectRequest("credit", {"x": IMAGE}, feature_names={"x": ("a", "b", "c")}))
    assert all(FILE in program_of(each, language) for each in (bare_question(), table, *files))


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("packed", [False, True])
def test_large_inputs_are_not_unpacked(language: str, packed: bool) -> None:
    """They are read from the file; a job has their names and shapes. Eight bytes may stand for any number."""
    message = wire_requests.encode(InspectRequest("digits", {"image": np.zeros((2, 1 << 17), np.uint8)}))
    if packed:
        tensor = message.tensors.by_name["image"]
        tensor.data, tensor.compression = b"damaged", tensor_pb2.COMPRESSION_ZSTD
        tensor.shape[:] = [1 << 20, 1 << 17]
    written = program_of(question_of(message.SerializeToString(), ADDRESS, has_token=False), language)
    assert len(written) < 1000
    assert ("shape: [131072]" if language == "job" else FILE) in written


def test_tensors_beside_the_inputs_have_a_limit() -> None:
    """What is too long for a shell is in the file; more than any program holds is refused."""

    def adding(numbers: int) -> InspectRequest:
        return InspectRequest("digits", {"image": IMAGE}, edits=(ca.Add(module="fc1", addend=np.zeros(numbers)),))

    assert FILE in program_of(question(adding(1 << 14)), "curl")
    with pytest.raises(ca.ResourceExhausted) as caught:
        question(adding(1 << 18))
    assert caught.value.reason == Reason.REQUEST_TOO_LARGE


def test_a_job_needs_the_inputs() -> None:
    """Their names and shapes, if not a row of them: it does not guess."""
    rows = InspectRequest("digits", {"image": np.zeros((0, 1, 8, 8), np.float32)})
    inputs = yaml.safe_load(program_of(question(rows), "job"))["inputs"]
    assert inputs == {"image": {"column": "image", "shape": [1, 8, 8]}}
    with pytest.raises(ca.InvalidArgument) as caught:
        program_of(bare_question(), "job")
    assert (caught.value.reason, caught.value.field) == (Reason.INPUT_MISSING, "tensors")


def test_an_address_may_have_a_path() -> None:
    """And a model's name what a URL has not."""
    asked = InspectRequest("a b?", {"image": IMAGE})
    words = shlex.split(program_of(question(asked, "https://host/served"), "curl").replace("\\\n", ""))
    assert words[2] == "https://host/served/v1/models/a%20b%3F:inspect"
    assert 'ca.Client("host/served", ' in program_of(question(asked, "https://host/served/"), "python")


WRONG_ADDRESSES = [
    *("host", "ftp://host/", "http://", "http://[", "http://host:port/", "http://host:99999/", "http:// /"),
    *("http://a\nb/", "http://host/?a=b", "http://host/#a", "http://user:secret@host/", "javascript:alert(1)"),
]


@pytest.mark.parametrize("address", WRONG_ADDRESSES)
def test_an_address_is_that_of_a_server(address: str) -> None:
    with pytest.raises(ca.InvalidArgument, match="not the URL of a server") as caught:
        question(QUESTIONS["arrays"], address)
    assert (caught.value.reason, caught.value.field) == (Reason.INVALID_VALUE, "address")


def test_an_unknown_language_is_refused() -> None:
    """With those that there are."""
    there_are = "'julia' is not a choice; there are python, typescript, curl, job"
    with pytest.raises(ca.InvalidArgument, match=there_are) as caught:
        program_of(question(QUESTIONS["arrays"]), "julia")
    assert (caught.value.reason, caught.value.field) == (Reason.INVALID_VALUE, "language")


def test_a_program_asks_as_who_asked() -> None:
    """With TLS, and with a token that is not in it."""
    text = program_of(question(QUESTIONS["arrays"], "https://cutaway.example/", has_token=True), "python")
    assert 'ca.Client("cutaway.example", transport="connect", tls=True, token=os.environ["CUTAWAY_TOKEN"])' in text
    assert text.startswith("import os\n")
    assert json.dumps("https://cutaway.example/") in program_of(
        question(QUESTIONS["arrays"], "https://cutaway.example/"), "typescript"
    )
