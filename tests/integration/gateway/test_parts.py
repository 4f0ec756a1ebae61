"""Replies in parts: the prediction when it exists, each explanation when it is done, and how far the next one is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import grpc
import numpy as np
import pytest

import cutaway as ca
from cutaway.client.request_builder import build_request
from cutaway.contract.errors import Reason
from cutaway.contract.results.arrays import by_name, tensors
from cutaway.contract.wire import requests as wire_requests
from cutaway.contract.wire.message_walk import tensors_in
from cutaway.engine.execution import collect
from cutaway.server.embedded import Served, serve
from cutaway.server.settings import Settings
from cutaway.v1 import inspection_pb2, inspection_service_pb2, inspection_service_pb2_grpc
from tests.support.gated_model import DOOR, Doored
from tests.support.waiting import PATIENCE_S, until

X = {"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)}
EXPLAINED: dict[str, Any] = {
    "attributions": [ca.IntegratedGradients(n_steps=4), ca.Occlusion(windows={"x": (1,)})],
    "check": "off",
}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    settings = Settings(http_address="127.0.0.1:0")
    with serve({"doored": Doored()}, settings=settings) as server:
        yield server


@pytest.fixture
def doors(served: Served) -> Iterator[Callable[[], None]]:
    """Shuts the door behind the passes that a prediction without explanations takes."""
    with ca.Client(served.address) as client:
        client.inspect("doored", X, **EXPLAINED)  # tests of the model are done
        DOOR.let_through(1 << 30)
        client.inspect("doored", X)
        bare = DOOR.passes
    yield lambda: DOOR.let_through(bare)
    DOOR.let_more_through()


@pytest.fixture(params=["grpc", "connect"])
def client(request: pytest.FixtureRequest, served: Served) -> Iterator[ca.Client]:
    address = served.address if request.param == "grpc" else served.http_address
    with ca.Client(address or "", transport=request.param, timeout=PATIENCE_S) as connected:
        yield connected


def test_the_prediction_comes_before_explanations_begin(client: ca.Client, doors: Callable[[], None]) -> None:
    """And it takes no more passes than without them: all others wait here until it is there."""
    whole = client.inspect("doored", X, captures="fc", input_gradients=True, **EXPLAINED)
    doors()
    with client.inspect_stream("doored", X, captures="fc", input_gradients=True, **EXPLAINED) as stream:
        parts = stream.parts()
        first = next(parts)
        assert np.array_equal(first.predictions["output"], whole.predictions["output"])
        assert np.array_equal(first.captures["fc"].output, whole.captures["fc"].output)
        assert np.array_equal(first.input_gradients["x"], whole.input_gradients["x"])
        assert first.attributions == ()
        DOOR.let_more_through()
        assert [len(part.attributions) for part in parts] == [1, 2, 2]
        result = stream.result()
    for one, other in zip(result.attributions, whole.attributions, strict=True):
        assert np.array_equal(one.values["x"], other.values["x"])


def test_the_prediction_is_awaited_too(served: Served, doors: Callable[[], None]) -> None:
    async def asked() -> list[int]:
        async with (
            ca.AsyncClient(served.address, timeout=PATIENCE_S) as client,
            client.inspect_stream("doored", X, **EXPLAINED) as stream,
        ):
            counts = []
            async for part in stream.parts():
                DOOR.let_more_through()
                counts.append(len(part.attributions))
            return counts

    doors()
    assert asyncio.run(asked()) == [0, 1, 2, 2]


def test_an_error_comes_after_what_is_right(client: ca.Client) -> None:
    """An explanation at a module that is never called: what came before it stays."""
    asked: dict[str, Any] = {"attributions": [ca.Saliency(), ca.LayerActivation(layer="unused")]}
    parts = client.inspect_stream("doored", X, **asked).parts()
    first, second = next(parts), next(parts)
    assert np.array_equal(first.predictions["output"], client.inspect("doored", X).predictions["output"])
    assert [each.method for each in second.attributions] == ["Saliency"]
    with pytest.raises(ca.InvalidArgument) as caught:
        next(parts)
    assert (caught.value.reason, caught.value.field) == (
        Reason.METHOD_INAPPLICABLE, "attributions[1].layer_activation.layer",
    )  # fmt: skip


def test_a_deadline_comes_after_what_is_right(client: ca.Client, doors: Callable[[], None]) -> None:
    """It passes while an explanation is at work."""
    expected = client.inspect("doored", X).predictions["output"]
    timeout, first = 0.5, None
    while first is None:  # a busy machine may need longer even for that
        doors()
        timeout *= 2
        parts = client.inspect_stream("doored", X, timeout=timeout, **EXPLAINED).parts()
        with suppress(ca.DeadlineExceeded):
            first = next(parts)
    assert np.array_equal(first.predictions["output"], expected)
    with pytest.raises(ca.DeadlineExceeded):
        next(parts)


def test_a_caller_who_leaves_ends_the_passes(client: ca.Client, doors: Callable[[], None]) -> None:
    """Nothing more is computed for a stream that is closed after its prediction: the next caller gets the model."""
    doors()
    with client.inspect_stream("doored", X, attributions=[ca.KernelShap(n_samples=2000)]) as stream:
        next(stream.parts())

    def next_is_answered() -> bool:
        DOOR.let_more_through(1)
        return asked.done()

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.inspect, "doored", X)
        until(next_is_answered)
    assert DOOR.passes < 2000


@pytest.fixture
def told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "FIRST_S", 0.0)
    monkeypatch.setattr(collect, "EVERY_S", 0.0)


@pytest.mark.usefixtures("told_at_once")
def test_progress_only_grows_to_the_end(client: ca.Client) -> None:
    """Each pass of an explanation counts its examples; an explanation that is done has all of its passes."""
    told: list[ca.Progress] = []
    result = client.inspect("doored", X, progress=told.append, **EXPLAINED)
    alone = client.inspect("doored", X, **EXPLAINED)
    for one, other in zip(result.attributions, alone.attributions, strict=True):
        assert np.array_equal(one.values["x"], other.values["x"])
    rows, path, windows = 2, 4 + 2, 1 + 4 + 2  # the ends too, and of windows none
    assert {each.passes for each in told} == {rows * (path + windows)}
    done = [each.passes_done for each in told]
    assert done == sorted(done)
    assert [each.attribution for each in told] == sorted(each.attribution for each in told)
    assert min(each.passes_done for each in told if each.attribution == 1) > rows * path
    assert told[-1].passes_done <= told[-1].passes
    assert told[-1].attribution == 1
    assert all(each.seconds_left >= 0 for each in told)


@pytest.mark.usefixtures("told_at_once")
def test_progress_of_an_attribution_whose_neighbour_failed(client: ca.Client) -> None:
    """It has the number of the request, not that of those which could be planned."""
    told: list[ca.Progress] = []
    asked: dict[str, Any] = {
        "attributions": [ca.LayerGradCam(layer="nowhere"), ca.Saliency()],
        "attribution_errors_in_place": True,
    }
    result = client.inspect("doored", X, progress=told.append, **asked)
    assert [bool(each.error) for each in result.attributions] == [True, False]
    assert {each.attribution for each in told} == {1}


@pytest.mark.usefixtures("told_at_once")
def test_who_does_not_ask_for_parts_gets_none(served: Served) -> None:
    """A client that does not know them finds what it knows: one header, chunks, and a trailer."""
    request = wire_requests.encode(build_request("doored", X, captures="fc", **EXPLAINED))
    kinds: dict[bool, list[str | None]] = {}
    with grpc.insecure_channel(served.address) as channel:
        ask: Any = inspection_service_pb2_grpc.InspectionServiceStub(channel).InspectStream
        for in_parts in (False, True):
            asked = inspection_service_pb2.InspectStreamRequest(request=request, in_parts=in_parts)
            kinds[in_parts] = [reply.piece.WhichOneof("kind") for reply in ask(asked, timeout=PATIENCE_S)]
    assert kinds[False] == ["header", "chunk", "chunk", "chunk", "chunk", "trailer"]
    assert kinds[True].count("header") == 4
    assert "progress" in kinds[True]
    assert [kind for kind in kinds[True] if kind != "progress"] == [
        *("header", "chunk", "chunk", "header", "chunk", "header", "chunk", "header", "trailer")
    ]


def test_a_part_has_nothing_of_the_parts_before(served: Served) -> None:
    """So that a client in any language may merge them: lists one behind the other, all else where it is."""
    request = wire_requests.encode(build_request("doored", X, captures="fc", attributions=["saliency", "saliency"]))
    asked = inspection_service_pb2.InspectStreamRequest(request=request, in_parts=True)
    merged = inspection_pb2.InspectResponse()
    with grpc.insecure_channel(served.address) as channel:
        stub: Any = inspection_service_pb2_grpc.InspectionServiceStub(channel)
        for reply in stub.InspectStream(asked, timeout=PATIENCE_S):
            merged.MergeFrom(reply.piece.header.response)
        whole = stub.Inspect(request, timeout=PATIENCE_S)
    for message in (merged, whole):
        message.timings.Clear()
        for attribution in message.attributions:
            attribution.attribution_ms = attribution.check_ms = 0
        for tensor in tensors_in(message):
            tensor.data = b""
    assert merged == whole


def test_tensors_of_parts_have_the_names_of_the_whole(client: ca.Client) -> None:
    """Also where two parts have a tensor of the same name."""
    asked: dict[str, Any] = {"captures": "fc", "attributions": ["saliency", "saliency"]}
    whole = by_name(tensors(client.inspect("doored", X, **asked)))
    arrived = dict(client.inspect_stream("doored", X, **asked))
    assert list(arrived) == list(whole)
    assert "attribution:saliency#1:x" in arrived
    for name, array in arrived.items():
        assert np.array_equal(array, whole[name].array)


def test_each_explanation_says_how_long_it_took(client: ca.Client) -> None:
    """Together they are the times of the whole reply."""
    result = client.inspect("doored", X, attributions=[ca.Saliency(), ca.IntegratedGradients(n_steps=8)])
    times = [(each.attribution_ms, each.check_ms) for each in result.attributions]
    assert all(attribution > 0 and check > 0 for attribution, check in times)
    sums = np.sum(times, axis=0)
    assert np.allclose(sums, [result.timings.attribution_ms, result.timings.check_ms])
    unchecked = client.inspect("doored", X, attributions=[ca.Saliency()], check="off")
    assert unchecked.attributions[0].attribution_ms == unchecked.timings.attribution_ms
