"""Replies in pieces: the same answer, whatever way it comes, and no damage that goes unseen."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import google_crc32c
import grpc
import numpy as np
import psutil
import pytest
import torch
from google.protobuf.message import Message
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import Adapter
from cutaway.client import base_client
from cutaway.client.request_builder import build_request
from cutaway.client.transport import AsyncReplyStream, ReplyStream, read_piece
from cutaway.contract.errors import Reason
from cutaway.contract.requests import InspectRequest
from cutaway.contract.results import InspectResult, Timings, arrays
from cutaway.contract.tensors import Array
from cutaway.contract.torchserve_messages import decode_stream_opening
from cutaway.contract.wire import chunks, grpc_status
from cutaway.contract.wire import requests as wire_requests
from cutaway.contract.wire.chunks import MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, as_message
from cutaway.engine.model.session import Cancellation
from cutaway.server.embedded import serve
from cutaway.server.rpc import servicer
from cutaway.server.settings import Settings
from cutaway.server.worker.call import Call
from cutaway.server.worker.worker import Worker
from cutaway.v1 import inspection_pb2, inspection_service_pb2, inspection_service_pb2_grpc, worker_pb2
from tests.support.serving import Server, package, serving
from tests.support.small_models import Images, Words
from tests.support.torchserve_port import behind
from tests.support.waiting import PATIENCE_S, until
from tests.support.wire_walk import ambiguities
from tests.support.worker_calls import pieces_of

MEBIBYTE = 1 << 20


class Kinds(nn.Module):
    """Values of every data type and of awkward shapes, inside and out."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.Identity()
        self.step = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        wide = x * 100
        types = (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int16, torch.int32, torch.int64)
        inside = {str(kind).removeprefix("torch."): wide.to(kind) for kind in (*types, torch.uint8, torch.bool)}
        inside |= {"none": x[:, :0], "number": x.sum(), "odd": wide.t()[::2], "flags": x > 0}
        self.kinds(inside)
        return {"out": self.step(self.step(x)), "empty": x[:, :0], "half": x.bfloat16()}


class Wide(nn.Module):
    """As many MiB inside as ``x[0, 0]`` says, each element its own; little comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        wide: Tensor = self.wide(torch.arange(int(x[0, 0]) * MEBIBYTE // 4, dtype=torch.float32).reshape(len(x), -1))
        return wide[:, :1] + x


def mebibytes(count: int) -> dict[str, Any]:
    return {"x": np.full((1, 1), count, np.float32)}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    torch.manual_seed(0)
    models: dict[str, nn.Module | Adapter] = {"kinds": Kinds(), "net": Images(), "words": Words(), "wide": Wide()}
    with serve(models, settings=Settings(max_message_bytes=6 * MEBIBYTE)) as server:
        yield server.address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[ca.Client]:
    with ca.Client(address) as connected:
        yield connected


X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
IMAGE = {"image": np.linspace(0, 1, 3 * 64, dtype=np.float32).reshape(3, 1, 8, 8)}
IDS = {"ids": np.array([[1, 2, 3], [4, 5, 6]]), "weight": np.ones((2, 3), np.float32)}
EVERYWHERE = [ca.Capture("**", at=tuple(ca.Point))]

QUESTIONS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "data types": ("kinds", {"x": X}, {"captures": [ca.Capture("kinds"), ca.Capture("step", at="input")]}),
    "calls and gradients": (
        "kinds",
        {"x": X},
        {"captures": [ca.Capture("step", at=tuple(ca.Point)), ca.Capture(parameter="step.weight")], "target": 1},
    ),
    "everything": ("net", IMAGE, {"captures": EVERYWHERE, "input_gradients": True, "attributions": [ca.Saliency()]}),
    "top elements": ("net", IMAGE, {"captures": [ca.Capture("conv*", reduce=ca.TopElements(3))]}),
    "top-k target": ("net", IMAGE, {"target": ca.TopK(3), "attributions": [ca.IntegratedGradients(n_steps=8)]}),
    "metrics": (
        "net",
        IMAGE,
        {"attributions": [ca.Saliency(metrics=(ca.Infidelity(n_samples=4, stdev=0.5),))], "seed": 1},
    ),
    "tokens": ("words", IDS, {"attributions": [ca.LayerIntegratedGradients(layer="words", n_steps=8)], "target": 0}),
    "compared": ("net", IMAGE, {"edits": [ca.Scale("conv1", factor=0.0)], "compare": True}),
    "several explanations": (
        "words",
        IDS,
        {
            "attributions": [
                *(ca.LayerActivation(layer="words"), ca.LayerIntegratedGradients(layer="words", n_steps=4)),
                *(ca.Saliency(inputs=("weight",)), ca.LayerActivation(layer="words"), ca.LayerGradCam(layer="words")),
            ],
            "target": ca.TopK(2),
            "attribution_errors_in_place": True,
        },
    ),
    "no tensor": (
        "net",
        IMAGE,
        {"predictions": False, "attributions": [ca.Saliency()], "explain_if": ca.ExplainIf(classes=(99,))},
    ),
    "many chunks": ("wide", mebibytes(3), {"captures": "wide"}),
}


def tensors(result: ca.InspectResult) -> list[tuple[str, Array]]:
    """The tensors of a result by their names, in the order of the reply."""
    return [(name, entry.array) for name, entry in arrays.by_name(arrays.tensors(result)).items()]


def words(result: ca.InspectResult) -> str:
    """All that a result says but its tensors, and how long it took."""
    return repr(
        arrays.with_arrays(
            replace(result, timings=Timings()),
            lambda array, field, *_: array if field.number or not array.ndim else array[..., :0],
        )
    )


def alike(one: ca.InspectResult, other: ca.InspectResult) -> None:
    """The two say the same, bit for bit, but for how long it took."""
    assert words(one) == words(other)
    for (place, a), (elsewhere, b) in zip(tensors(one), tensors(other), strict=True):
        assert (place, a.dtype, a.shape, a.tobytes()) == (elsewhere, b.dtype, b.shape, b.tobytes())
        assert not b.flags.writeable


@pytest.mark.parametrize("case", QUESTIONS)
def test_the_same_answer(client: ca.Client, case: str) -> None:
    """An answer in pieces is the answer in one message, exactly; and tensor by tensor it is the same tensors, each
    once, under their names, in the order of the reply. Its parts only grow, from the predictions to all of it."""
    model, inputs, asked = QUESTIONS[case]
    asked = {"seed": 3, **asked}
    whole = client.inspect(model, inputs, stream=False, **asked)
    alike(whole, client.inspect(model, inputs, stream=True, **asked))

    expected = tensors(whole)
    with client.inspect_stream(model, inputs, **asked) as stream:
        came = list(stream)
        result = stream.result()
    assert [place for place, _ in came] == [place for place, _ in expected]
    assert len({place for place, _ in came}) == len(came)
    alike(whole, result)
    for (_, a), (_, b) in zip(came, expected):
        assert a.tobytes() == b.tobytes()

    *so_far, last = client.inspect_stream(model, inputs, **asked).parts()
    alike(whole, last)
    counts = [len(part.attributions) for part in so_far]
    assert (counts[0], counts[-1], sorted(counts)) == (0, len(whole.attributions), counts)
    own = {name for name, _ in expected if not name.startswith(EXPLAINED)}
    arrays_of = {id(array): name for name, array in tensors(last)}
    for part in so_far:
        assert own <= {arrays_of[id(array)] for _, array in tensors(part)}


EXPLAINED = ("attribution:", "baseline_", "token", "standard_error:")


def test_the_questions_show_every_kind_of_tensor(client: ca.Client) -> None:
    """What is compared above holds every data type, an empty tensor, a single number, positions and tokens."""
    places: dict[str, Array] = {}
    for model, inputs, asked in QUESTIONS.values():
        places |= tensors(client.inspect(model, inputs, **asked))
    assert {array.dtype.name for array in places.values()} >= {
        *("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
    }
    assert any(array.size == 0 for array in places.values())
    assert any(array.ndim == 0 for array in places.values())
    assert any(place.startswith("positions:") for place in places)
    assert any(place.endswith("#1") for place in places)
    assert any(place.startswith("unedited:") for place in places)


def test_awaited(address: str) -> None:
    """The client that is awaited does the same."""

    async def asked() -> None:
        async with ca.AsyncClient(address) as client:
            whole = await client.inspect("net", IMAGE, captures=EVERYWHERE, stream=False)
            alike(whole, await client.inspect("net", IMAGE, captures=EVERYWHERE, stream=True))
            async with client.inspect_stream("net", IMAGE, captures=EVERYWHERE) as stream:
                assert [place async for place, _ in stream] == [place for place, _ in tensors(whole)]
                alike(whole, await stream.result())
            with pytest.raises(ca.InvalidArgument):
                await client.inspect("net", IMAGE, captures="nowhere", stream=True)

    asyncio.run(asked())


@pytest.mark.parametrize(
    "asked",
    [
        {"model": "nobody"},
        {"model": "net/versions/7.0"},
        {"captures": ["nowhere"]},
        {"inputs": {"image": np.zeros((1, 8, 8), np.float32)}},
        {"attributions": [ca.Saliency(), ca.LayerGradCam(layer="nowhere")]},
        {"max_reply_bytes": 100},
    ],
    ids=["model", "version", "capture", "input", "attribution", "size"],
)
def test_the_same_errors(client: ca.Client, asked: dict[str, Any]) -> None:
    """What cannot be answered is refused alike: the same reason, field and message."""
    model, inputs, rest = asked.get("model", "net"), asked.get("inputs", IMAGE), {**asked}
    rest.pop("model", None), rest.pop("inputs", None)
    refusals = []
    for stream in (False, True):
        with pytest.raises(ca.CutawayError) as caught:
            client.inspect(model, inputs, stream=stream, **rest)
        refusals.append((type(caught.value), caught.value.reason, caught.value.field))
    assert refusals[0] == refusals[1]


def stub(channel: grpc.Channel) -> Any:
    return inspection_service_pb2_grpc.InspectionServiceStub(channel)


def asked_for(
    model: str, inputs: Any, chunk_bytes: int = 0, **asked: Any
) -> inspection_service_pb2.InspectStreamRequest:
    request = wire_requests.encode(build_request(model, inputs, **asked))
    return inspection_service_pb2.InspectStreamRequest(request=request, chunk_bytes=chunk_bytes)


@pytest.mark.parametrize("chunk_bytes", [0, MIN_CHUNK_BYTES, 300_001, MAX_CHUNK_BYTES])
def test_a_client_in_any_language(address: str, chunk_bytes: int) -> None:
    """What a client made from the protos gets: a header whose tensors have no data, chunks of at most the size that was
    asked for, tensor after tensor without a gap, and the CRC-32C of each tensor."""
    with grpc.insecure_channel(address) as channel:
        request = asked_for("wide", mebibytes(3), chunk_bytes, captures=["wide"])
        pieces = [each.piece for each in stub(channel).InspectStream(request)]
    kinds = [piece.WhichOneof("kind") for piece in pieces]
    assert kinds == ["header", *["chunk"] * (len(pieces) - 2), "trailer"]
    (capture,) = pieces[0].header.response.captures
    assert not capture.calls[0].leaves[0].tensor.data
    assert list(capture.calls[0].leaves[0].tensor.shape) == [1, 3 * MEBIBYTE // 4]
    assert pieces[0].header.response.timings.queue_ms > 0
    data = {0: b"", 1: b""}
    for piece in pieces[1:-1]:
        assert 0 < len(piece.chunk.data) <= (chunk_bytes or MAX_CHUNK_BYTES)
        assert piece.chunk.offset == len(data[piece.chunk.tensor])
        assert len(piece.chunk.data) % 4 == 0  # no number lies in two chunks
        data[piece.chunk.tensor] += piece.chunk.data
    assert data[1] == np.arange(3 * MEBIBYTE // 4, dtype=np.float32).tobytes()
    assert list(pieces[-1].trailer.crc32c) == [google_crc32c.value(data[0]), google_crc32c.value(data[1])]


@pytest.mark.parametrize(
    ("request_", "reason", "field"),
    [
        (asked_for("net", IMAGE, MIN_CHUNK_BYTES - 1), "INVALID_VALUE", "chunk_bytes"),
        (asked_for("net", IMAGE, MAX_CHUNK_BYTES + 1), "INVALID_VALUE", "chunk_bytes"),
        (inspection_service_pb2.InspectStreamRequest(), "INVALID_VALUE", "model"),
        (b"\xff", "MALFORMED_REQUEST", ""),
        (b"\x98\x06\x01", "UNKNOWN_FIELD", ""),
    ],
    ids=["small chunks", "large chunks", "nothing", "garbage", "unknown field"],
)
def test_malformed_requests(address: str, request_: Message | bytes, reason: str, field: str) -> None:
    """Chunks out of range and what is no request are refused before a model is asked."""
    data = request_ if isinstance(request_, bytes) else request_.SerializeToString()
    with grpc.insecure_channel(address) as channel:
        method: Any = channel.unary_stream("/cutaway.v1.InspectionService/InspectStream")
        with pytest.raises(grpc.RpcError) as caught:
            list(method(data))
    refused: Any = caught.value
    failure = grpc_status.decode(3, "", refused.trailing_metadata())
    assert (failure.reason, failure.field) == (reason, field)


def spoiled() -> Iterator[tuple[str, list[bytes], str]]:
    """Ways for pieces to go astray, and what is said of each."""
    result = ca.InspectResult(
        {"a": np.arange(600_000, dtype=np.float32), "none": np.empty((0, 3)), "b": np.ones(5, "?")}
    )
    sound = [read_piece(as_message(piece).joined()) for piece in pieces_of(result)]
    header, first, second, third, last, trailer = sound
    flipped = bytearray(second)
    flipped[-1] ^= 1
    yield "flipped bit", [header, first, bytes(flipped), third, last, trailer], "a has CRC-32C"
    yield "missing chunk", [header, first, third, last, trailer], "byte 2097152 of tensor 0 arrived"
    yield "missing last chunk", [header, first, second, third, trailer], "it ends at tensor 2 of 3"
    yield "repeated chunk", [header, first, first, second, third, last, trailer], "byte 0 of tensor 0 arrived"
    yield "repeated last chunk", [header, first, second, third, last, last, trailer], "instead of byte 0 of tensor 3"
    yield "swapped chunks", [header, second, first, third, last, trailer], "byte 1048576 of tensor 0 arrived"
    yield "no header", sound[1:], "of tensor 0 arrived"
    yield "no trailer", sound[:-1], "it stopped at tensor 3 of 3"
    yield "broken off", sound[:3], "it stopped at tensor 0 of 3"
    yield "nothing", [], "it has no header"
    yield "two headers", [header, *sound], "it has two headers"
    yield "a part before the last is whole", [*sound[:-2], header, last, trailer], "it has two headers"
    yield "two trailers", [*sound, trailer], "a piece follows its end"
    yield "a part behind the end", [*sound, header], "a piece follows its end"
    yield "empty piece", [header, b""], "a piece of it is empty"
    yield "cut piece", [header, first[:-1]], "cannot be read"
    yield "garbage", [b"\xff\xff"], "cannot be read"
    yield "unknown wire type", [header, b"\x0b"], "cannot be read"
    piece = inspection_service_pb2.InspectStreamResponse.FromString(first)
    piece.piece.chunk.data += bytes(2 * MEBIBYTE)
    yield "overlong chunk", [header, piece.SerializeToString()], "tensor 0 is larger than its header says"
    piece = inspection_service_pb2.InspectStreamResponse.FromString(trailer)
    del piece.piece.trailer.crc32c[-1]
    yield "missing checksum", [*sound[:-1], piece.SerializeToString()], "it has 3 tensors and 2 checksums"


SPOILED = {name: (messages, said) for name, messages, said in spoiled()}


async def _all(values: AsyncIterator[Any]) -> None:
    async for _ in values:
        pass


READERS: dict[str, Callable[[ReplyStream], Any]] = {
    "whole": ReplyStream.result,
    "by tensor": list,
    "by part": lambda stream: list(stream.parts()),
}
AWAITING: dict[str, Callable[[AsyncReplyStream], Coroutine[Any, Any, Any]]] = {
    "whole": AsyncReplyStream.result,
    "by tensor": lambda stream: _all(stream.__aiter__()),
    "by part": lambda stream: _all(stream.parts()),
}


@pytest.mark.parametrize("way", READERS)
@pytest.mark.parametrize("case", SPOILED)
def test_damage_is_seen(case: str, way: str) -> None:
    """A piece that is changed, missing, repeated, out of order or too much: never a wrong answer, always an error that
    says what is wrong, however the reply is read."""
    messages, said = SPOILED[case]

    async def awaited() -> AsyncGenerator[bytes, None]:
        for message in messages:
            yield message

    with pytest.raises(ca.CutawayError, match=said) as caught:
        READERS[way](ReplyStream(lambda *_: (message for message in messages), 60, InspectRequest("")))
    with pytest.raises(ca.CutawayError, match=said) as other:
        asyncio.run(AWAITING[way](AsyncReplyStream(lambda *_: awaited(), 60, InspectRequest(""))))
    assert caught.value.reason == other.value.reason == Reason.INTERNAL


def test_parts_are_too_large_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory that a client gives to a reply is that of all its parts."""
    monkeypatch.setattr(chunks, "MAX_REPLY_BYTES", 5_000)
    *part, _ = (read_piece(as_message(piece).joined()) for piece in pieces_of(ca.InspectResult({"a": np.ones(500)})))
    with pytest.raises(ca.ResourceExhausted) as caught:
        ReplyStream(lambda *_: (message for message in (*part, *part)), 60, InspectRequest("")).result()
    assert (caught.value.reason, caught.value.field) == (Reason.REPLY_TOO_LARGE, "max_reply_bytes")


def test_a_large_reply_needs_no_word_of_the_caller(client: ca.Client) -> None:
    """A reply that no one message carries comes in pieces, unless the caller wants one message or set the limit."""
    asked: dict[str, Any] = {"captures": ["wide"]}
    assert client.inspect("wide", mebibytes(8), **asked).captures["wide"].output.nbytes == 8 * MEBIBYTE
    for limits, field in (({"stream": False}, ""), ({"max_reply_bytes": MEBIBYTE}, "options.max_reply_bytes")):
        with pytest.raises(ca.ResourceExhausted) as caught:
            client.inspect("wide", mebibytes(8), **asked, **limits)
        assert (caught.value.reason, caught.value.field) == (Reason.REPLY_TOO_LARGE, field)


def test_the_way_is_chosen_by_the_size_of_earlier_replies() -> None:
    """A question like one whose reply was large is expected to be answered at length, in proportion to its rows."""
    seen = base_client.ReplySizes()
    one, two = (build_request("m", {"x": np.zeros((rows, 3), np.float32)}, captures="a") for rows in (1, 2))
    other = build_request("m", {"x": np.zeros((2, 3), np.float32)}, captures="b")
    text = build_request("m", {"x": np.zeros((2, 3), np.float32)}, captures="a", generate=ca.Generate(2))
    assert not seen.is_large(one)
    seen.note(one, base_client.LARGE_BYTES)
    assert [seen.is_large(each) for each in (one, two, other, text)] == [False, True, False, False]


@pytest.mark.parametrize(("tensors", "mebi", "is_streamed"), [(1, 4, True), (100, 4, False), (100, 20, True)])
def test_many_small_tensors_come_in_one_message(tensors: int, mebi: int, is_streamed: bool) -> None:
    """Each would be a message of its own in a stream; what one message may not hold is streamed all the same."""
    seen = base_client.ReplySizes()
    question = build_request("m", {"x": np.zeros((1, 3), np.float32)}, captures="a")
    arrays = {f"output{number}": np.zeros((1, mebi * MEBIBYTE // tensors), np.uint8) for number in range(tensors)}
    seen.note(question, mebi * MEBIBYTE, InspectResult(arrays))
    assert seen.is_large(question) is is_streamed


@pytest.mark.slow
def test_hanging_up(client: ca.Client) -> None:
    """Whoever hangs up amid a reply leaves nothing behind: the next call is answered, as often as it happens, and more
    often than replies may be on their way at once."""
    before = client.inspect("wide", mebibytes(1), captures="wide")
    for _ in range(Settings().max_queue_length + 2):
        with client.inspect_stream("wide", mebibytes(5), captures="wide") as stream:
            assert next(iter(stream))[0] == "output"
    alike(before, client.inspect("wide", mebibytes(1), captures="wide"))


def test_a_slow_reader_keeps_nobody_waiting(client: ca.Client) -> None:
    """While one caller does not take its reply, the model answers the others."""
    with client.inspect_stream("wide", mebibytes(60), captures="wide") as slow:
        assert next(iter(slow))
        client.inspect("wide", mebibytes(1), captures="wide", stream=False)
        client.inspect("wide", mebibytes(9), captures="wide", stream=True)
        assert slow.result().captures["wide"].output.nbytes == 60 * MEBIBYTE


@pytest.mark.slow
def test_a_reply_that_nobody_reads_is_ended(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not hold memory, and a place among the streamed replies, until its deadline."""
    monkeypatch.setattr(servicer, "_PATIENCE_S", 0.1)
    for pause_s in (1, 5, 25):  # in which the gateway must have tried to send what has no room
        with grpc.insecure_channel(address) as channel:
            reply = _unread(channel)
            next(reply)
            time.sleep(pause_s)
            with suppress(grpc.RpcError):
                list(reply)
                continue
            assert reply.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            assert "did not read" in reply.details()
            break
    else:
        raise AssertionError("a reply that was not read for 25 s was sent to its end")


def _unread(channel: grpc.Channel) -> Any:
    """Returns a streamed reply that is larger than what is sent ahead of a reader."""
    send = inspection_service_pb2_grpc.InspectionServiceStub(channel).InspectStream
    return send(asked_for("wide", mebibytes(40), MAX_CHUNK_BYTES, captures=["wide"]), timeout=PATIENCE_S)


def test_the_deadline_of_a_stream(client: ca.Client) -> None:
    """A reply in pieces has the call's deadline as any other has."""
    with pytest.raises(ca.DeadlineExceeded):
        client.inspect("wide", mebibytes(400), captures="wide", stream=True, timeout=0.05)
    client.inspect("wide", mebibytes(1))  # and when its turn has come, the model is done with the other


def wide_row(count: int, deadline: float | None = None) -> Call:
    asked = asked_for("wide", mebibytes(count), captures=["wide"]).SerializeToString()
    return Call("stream", asked, Cancellation(deadline))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (wide_row(2), Reason.REPLY_TOO_LARGE),
        (wide_row(1, deadline=1.0), Reason.DEADLINE_EXCEEDED),
        (Call("stream", b""), Reason.INVALID_VALUE),
        (Call.of_parts({}), Reason.MALFORMED_REQUEST),
    ],
    ids=["more than may be held", "too late", "no question", "nothing"],
)
def test_a_worker_refuses_in_a_piece(row: Call, reason: Reason) -> None:
    """What a worker cannot send in pieces it refuses in a piece: no row of a batch may raise."""
    (piece,) = Worker.of(Wide(), "wide", Settings(max_message_bytes=MEBIBYTE)).stream(row)
    with pytest.raises(ca.CutawayError) as caught:
        decode_stream_opening(as_message(piece).joined())
    assert caught.value.reason == reason


def test_the_front_doors_words_fit_the_contract() -> None:
    """The messages that gateway and worker read in place of the contract's have the same bytes, but for what the
    contract reserves."""
    failed = worker_pb2.WorkerReply(failure=worker_pb2.Failure(reason="R"), worker_ms=1.0)
    failure = worker_pb2.WorkerPiece(reply=failed).SerializeToString()
    assert inspection_service_pb2.StreamPiece.FromString(failure).WhichOneof("kind") is None
    trailer = inspection_service_pb2.StreamTrailer(crc32c=[1, 2])
    piece = inspection_service_pb2.StreamPiece(trailer=trailer).SerializeToString()
    assert worker_pb2.WorkerPiece.FromString(piece).trailer == trailer.SerializeToString()
    request = asked_for("net", IMAGE, MIN_CHUNK_BYTES)
    routed = worker_pb2.RoutedStreamRequest.FromString(request.SerializeToString())
    assert (routed.request, routed.chunk_bytes) == (request.request.SerializeToString(), MIN_CHUNK_BYTES)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The real thing, with a model whose replies are as large as asked, and a small limit for one message."""
    directory = tmp_path_factory.mktemp("wide")
    (directory / "store").mkdir()
    adapter = directory / "wide_adapter.py"
    adapter.write_text(
        "from cutaway.adapters import Adapter\nfrom cutaway.contract.results import InputSpec\n"
        "from tests.integration.gateway.test_streams import Wide\n"
        "class Large(Adapter):\n    inputs = (InputSpec('x', 'float32', (-1, 1)),)\n    build = staticmethod(Wide)\n"
    )
    package(directory / "store", "wide", f"{adapter}:Large")
    with pytest.MonkeyPatch.context() as patch:
        found = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, found)))
        patch.setenv("CUTAWAY_MAX_MESSAGE_BYTES", str(6 * MEBIBYTE))
        with serving(directory / "store", directory / "logs") as running:
            yield running


@pytest.mark.slow
def test_through_torchserve(wide: Server) -> None:
    """A reply that is larger than any one message arrives whole through gateway and TorchServe."""
    with ca.Client(wide.address) as client:
        expected = np.arange(30 * MEBIBYTE // 4, dtype=np.float32).reshape(1, -1)
        assert np.array_equal(client.inspect("wide", mebibytes(30), captures="wide").captures["wide"].output, expected)
        alike(
            client.inspect("wide", mebibytes(2), captures="wide", stream=False),
            client.inspect("wide", mebibytes(2), captures="wide", stream=True),
        )
        with pytest.raises(ca.InvalidArgument) as caught:
            client.inspect("wide", mebibytes(2), captures="nowhere", stream=True)
        assert caught.value.reason == Reason.MODULE_NOT_FOUND


@pytest.mark.slow
def test_every_field_is_once_in_what_torchserve_sent(wide: Server) -> None:
    """What the gateway adds to the bytes of a worker in another process is in place of nothing that they have."""
    request = asked_for("wide", mebibytes(1), captures=["wide"], input_gradients=True)
    with grpc.insecure_channel(wide.address) as channel:
        whole: Any = channel.unary_unary("/cutaway.v1.InspectionService/Inspect")
        pieces: Any = channel.unary_stream("/cutaway.v1.InspectionService/InspectStream")
        response = whole(request.request.SerializeToString())
        messages = list(pieces(request.SerializeToString()))
    assert list(ambiguities(inspection_pb2.InspectResponse.DESCRIPTOR, response)) == []
    kind = inspection_service_pb2.InspectStreamResponse
    assert [each for message in messages for each in ambiguities(kind.DESCRIPTOR, message)] == []
    header = kind.FromString(messages[0]).piece.header
    for timings in (inspection_pb2.InspectResponse.FromString(response).timings, header.response.timings):
        ran = {field.name for field, _ in timings.ListFields()}
        assert ran == {"queue_ms", "decode_ms", "forward_ms", "backward_ms", "encode_ms"}


@pytest.mark.slow
def test_torchserves_own_port(wide: Server) -> None:
    """Without the gateway, too: but there nobody can say what was taken, and the limit of one message holds."""
    with behind(wide).client() as direct, ca.Client(wide.address) as client:
        for in_pieces in (False, True):
            timings = direct.inspect("wide", mebibytes(1), stream=in_pieces).timings
            assert min(timings.decode_ms, timings.forward_ms, timings.encode_ms) > 0
        alike(
            client.inspect("wide", mebibytes(5), captures="wide"),
            direct.inspect("wide", mebibytes(5), captures="wide", stream=True),
        )
        for stream, asked in ((True, mebibytes(6)), (None, mebibytes(6))):
            with pytest.raises(ca.ResourceExhausted) as caught:
                direct.inspect("wide", asked, captures="wide", stream=stream)
            assert caught.value.reason == Reason.REPLY_TOO_LARGE
        with pytest.raises(ca.InvalidArgument):
            direct.inspect("wide", mebibytes(2), captures="nowhere", stream=True)


@pytest.mark.slow
def test_a_slow_reader_fills_no_memory(wide: Server) -> None:
    """What a caller does not take stays with the worker: gateway and TorchServe do not grow by it, and the worker
    answers others meanwhile."""
    door = psutil.Process(wide.process.pid)
    others = [door, *(each for each in door.children(recursive=True) if "java" in each.name())]
    with ca.Client(wide.address) as client:
        client.inspect("wide", mebibytes(30), captures="wide")
        before = [each.memory_info().rss for each in others]
        with client.inspect_stream("wide", mebibytes(300), captures="wide") as slow:
            assert next(iter(slow))[0] == "output"
            for _ in range(20):
                client.inspect("wide", mebibytes(1), captures="wide")
            grown = [each.memory_info().rss - rss for each, rss in zip(others, before)]
            assert slow.result().captures["wide"].output.nbytes == 300 * MEBIBYTE
    assert max(grown) < 64 * MEBIBYTE


@pytest.mark.slow
def test_unread_replies_hold_up_no_other_caller(wide: Server) -> None:
    """One caller leaves twice as many replies unread as may be on their way; those of another one arrive."""
    with (
        ThreadPoolExecutor(16) as readers,
        grpc.insecure_channel(wide.address) as channel,
        ca.Client(wide.address) as other,
    ):
        unread = [_unread(channel) for _ in range(16)]
        begun = [readers.submit(next, reply, None) for reply in unread]
        until(lambda: sum(each.done() for each in begun) >= 4)
        for size in (7, 9):
            found = other.inspect("wide", mebibytes(size), captures="wide", stream=True, timeout=PATIENCE_S)
            assert found.captures["wide"].output.nbytes == size * MEBIBYTE
        for reply in unread:
            reply.cancel()


@pytest.mark.slow
def test_no_file_descriptor_is_left(wide: Server) -> None:
    """A streamed reply needs some: until there are any, its caller is told to try again."""
    gateway = psutil.Process(wide.process.pid)
    _, hard = before = gateway.rlimit(resource.RLIMIT_NOFILE)
    with ca.Client(wide.address) as client:
        client.inspect("wide", mebibytes(1), captures="wide")
        used = {int(path.name) for path in Path(f"/proc/{gateway.pid}/fd").iterdir()}
        gateway.rlimit(resource.RLIMIT_NOFILE, (next(number for number in count() if number not in used), hard))
        try:
            with pytest.raises(ca.ResourceExhausted) as caught:
                client.inspect("wide", mebibytes(7), captures="wide", stream=True)
        finally:
            gateway.rlimit(resource.RLIMIT_NOFILE, before)
        assert caught.value.reason == Reason.OVERLOADED
        assert client.inspect("wide", mebibytes(7), captures="wide", stream=True).predictions


@pytest.mark.slow
def test_the_deadline_amid_a_reply(wide: Server) -> None:
    """A deadline that passes while a reply is read ends it, and costs neither the worker nor the next call."""
    with ca.Client(wide.address) as client:
        workers = _workers(wide)
        for patience_s in (2, 10, 50):  # in which the first tensor must have come
            with (
                client.inspect_stream("wide", mebibytes(300), captures="wide", timeout=patience_s) as stream,
                suppress(ca.DeadlineExceeded),
            ):
                assert next(iter(stream))[0] == "output"
                time.sleep(patience_s)
                with pytest.raises(ca.DeadlineExceeded):
                    stream.result()
                break
        else:
            raise AssertionError("no first tensor within 50 s")
        client.inspect("wide", mebibytes(1), captures="wide")
        assert _workers(wide) == workers


@pytest.mark.slow
def test_hanging_up_on_torchserve(wide: Server) -> None:
    """Whoever hangs up amid a reply costs neither the worker nor the next call."""
    with ca.Client(wide.address) as client:
        workers = _workers(wide)
        for _ in range(5):
            with client.inspect_stream("wide", mebibytes(40), captures="wide") as stream:
                assert next(iter(stream))[0] == "output"
            client.inspect("wide", mebibytes(1), captures="wide")
        assert _workers(wide) == workers


@pytest.mark.slow
def test_side_by_side_in_torchserve(wide: Server) -> None:
    """Replies in pieces and in one message, asked for at once, each reach their own caller; also more of them than may
    be on their way together."""
    sizes_ = [1, 7, 2, 9, 3, 12, 1, 8, *range(7, 17)]
    with ca.Client(wide.address) as client, ThreadPoolExecutor(len(sizes_)) as callers:

        def ask(size: int) -> int:
            return int(
                client.inspect("wide", mebibytes(size), captures="wide", stream=size > 5).captures["wide"].output.nbytes
            )

        assert list(callers.map(ask, sizes_)) == [size * MEBIBYTE for size in sizes_]


@pytest.mark.slow
def test_a_worker_that_dies_amid_a_reply(wide: Server) -> None:
    """The caller learns of it, and the next worker answers."""
    with ca.Client(wide.address) as client:
        with client.inspect_stream("wide", mebibytes(100), captures="wide") as stream:
            assert next(iter(stream))
            for pid in _workers(wide):
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(ca.Unavailable):
                stream.result()
        while True:
            try:
                client.inspect("wide", mebibytes(1), captures="wide", timeout=60)
                break
            except (ca.Unavailable, ca.DeadlineExceeded):
                continue


def _workers(server: Server) -> set[int]:
    children = psutil.Process(server.process.pid).children(recursive=True)
    return {each.pid for each in children if "model_service_worker" in " ".join(each.cmdline())}
