"""An answer in pieces that is lost on its way is asked for once more, unless some of it has been handed on."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import grpc
import numpy as np
import pytest
from torch import nn

import cutaway as ca
from cutaway.client.transport import SERVICE
from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.requests import InspectRequest
from cutaway.contract.results import InspectResult
from cutaway.contract.wire import grpc_status
from cutaway.contract.wire import requests as wire_requests
from cutaway.server.embedded import serve
from cutaway.v1 import inspection_service_pb2
from tests.support.processes import worker
from tests.support.serving import package, serving

X = {"input": np.ones((2, 3), np.float32)}
CODES = {code.value[0]: code for code in grpc.StatusCode}
MEBIBYTE = 1 << 20

Way = Literal["plain", "awaited"]


def recorded() -> list[bytes]:
    """The messages of a real answer."""
    with serve({"net": nn.Linear(3, 2)}) as server, grpc.insecure_channel(server.address) as channel:
        request = inspection_service_pb2.InspectStreamRequest(
            request=wire_requests.encode(InspectRequest("net", X, captures=(ca.Capture("**"),)))
        )
        ask: Any = channel.unary_stream(f"/{SERVICE}/InspectStream")
        return list(ask(request.SerializeToString()))


class Losing:
    """A server that sends some messages of an answer, and then what went wrong; the whole of it where nothing does.

    Attributes:
        asked: how often it was.
        seconds: how much time each question had.
    """

    def __init__(self, answer: Sequence[bytes], attempts: Sequence[tuple[int, CutawayError | None]]) -> None:
        self._answer = answer
        self._attempts = attempts
        self.seconds: list[float] = []

    @property
    def asked(self) -> int:
        return len(self.seconds)

    def stream(self, _: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        count, failure = self._attempts[min(self.asked, len(self._attempts) - 1)]
        self.seconds.append(context.time_remaining() or 0.0)
        yield from self._answer if failure is None else self._answer[:count]
        if failure is not None:
            context.set_trailing_metadata(((grpc_status.DETAILS_KEY, grpc_status.encode(failure)),))
            context.abort(CODES[failure.code], grpc_status.text(failure))


@contextmanager
def losing(*attempts: tuple[int, CutawayError | None]) -> Iterator[tuple[str, Losing]]:
    """Where such a server listens."""
    losing = Losing(recorded(), attempts)
    methods: dict[str, Any] = {"InspectStream": grpc.unary_stream_rpc_method_handler(losing.stream)}
    server = grpc.server(ThreadPoolExecutor(1), [grpc.method_handlers_generic_handler(SERVICE, methods)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}", losing
    finally:
        server.stop(0).wait()


def ask(address: str, way: Way, **more: Any) -> InspectResult:
    """Ask for an answer in pieces, and wait for all of it."""
    if way == "plain":
        with ca.Client(address) as client:
            return client.inspect("net", X, captures=["**"], stream=True, **more)

    async def awaited() -> InspectResult:
        async with ca.AsyncClient(address) as client:
            return await client.inspect("net", X, captures=["**"], stream=True, **more)

    return asyncio.run(awaited())


def by_part(address: str, way: Way) -> list[str]:
    """Ask, and take part by part; the predictions of the first, until something is raised."""
    places: list[str] = []

    async def awaited() -> None:
        async with ca.AsyncClient(address) as client, client.inspect_stream("net", X, captures=["**"]) as stream:
            async for part in stream.parts():
                places.extend(part.predictions)

    if way == "awaited":
        asyncio.run(awaited())
        return places
    with ca.Client(address) as client, client.inspect_stream("net", X, captures=["**"]) as stream:
        for part in stream.parts():
            places.extend(part.predictions)
    return places


def iterate(address: str, way: Way) -> list[str]:
    """Ask, and take tensor by tensor; their places, until something is raised."""
    places: list[str] = []

    async def awaited() -> None:
        async with ca.AsyncClient(address) as client, client.inspect_stream("net", X, captures=["**"]) as stream:
            async for place, _ in stream:
                places.append(place)

    if way == "awaited":
        asyncio.run(awaited())
        return places
    with ca.Client(address) as client, client.inspect_stream("net", X, captures=["**"]) as stream:
        places += [place for place, _ in stream]
    return places


DIED, DIED_SOON_BACK = error(Reason.WORKER_DIED, "gone"), error(Reason.WORKER_DIED, "gone")
DIED_SOON_BACK.retry_after_s = 0.05  # what this server says
WAYS = pytest.mark.parametrize("way", ["plain", "awaited"])


@WAYS
@pytest.mark.parametrize("sent", [0, 1, 2])
def test_an_answer_that_is_lost_is_asked_for_once_more(way: Way, sent: int) -> None:
    """Whoever waits for all of it, and whoever has not been given a tensor yet, gets the whole answer."""
    with losing((sent, DIED_SOON_BACK), (0, None)) as (address, server):
        assert ask(address, way).captures[""].output.shape == (2, 2)
        assert server.asked == 2
    if sent < 2:  # a header completes no tensor
        with losing((sent, DIED_SOON_BACK), (0, None)) as (address, server):
            assert iterate(address, way) == ["output", "capture:@output"]


@WAYS
def test_it_is_asked_for_when_the_server_says_and_within_the_time_of_the_call(way: Way) -> None:
    with losing((1, DIED), (0, None)) as (address, server):
        ask(address, way, timeout=30.0)
        assert server.seconds[1] < server.seconds[0] - (DIED.retry_after_s or 0) / 2


@WAYS
def test_it_is_asked_for_once_more_and_no_third_time(way: Way) -> None:
    """A second loss is the caller's to know."""
    with losing((1, DIED_SOON_BACK)) as (address, server):
        with pytest.raises(ca.Unavailable) as caught:
            ask(address, way)
        assert (caught.value.reason, server.asked) == (Reason.WORKER_DIED, 2)


@WAYS
@pytest.mark.parametrize("take", [iterate, by_part])
def test_what_has_been_handed_on_is_not_taken_back(way: Way, take: Callable[[str, Way], list[str]]) -> None:
    """Once a caller has a tensor or a part of an answer, its loss is an error."""
    with losing((3, DIED), (0, None)) as (address, server):
        with pytest.raises(ca.Unavailable):
            take(address, way)
        assert server.asked == 1


@WAYS
def test_a_part_that_is_lost_amid_is_asked_for_once_more(way: Way) -> None:
    """Nobody has it: it comes whole, and once."""
    with losing((2, DIED_SOON_BACK), (0, None)) as (address, server):
        assert by_part(address, way) == ["output"]
        assert server.asked == 2


@WAYS
@pytest.mark.parametrize(
    ("failure", "timeout"),
    [
        (error(Reason.WORKER_KILLED, "two workers died"), 60.0),
        (error(Reason.INPUT_SHAPE, "wrong"), 60.0),
        (error(Reason.OVERLOADED, "too many"), 60.0),
        (DIED, 0.9),
    ],
    ids=["deadly", "wrong", "overloaded", "no time left"],
)
def test_what_asking_again_does_not_mend_is_not_asked_again(way: Way, failure: CutawayError, timeout: float) -> None:
    """An error of the request's own, a server that has too much to do, and a call whose time would be over."""
    with losing((1, failure), (0, None)) as (address, server):
        with pytest.raises(ca.CutawayError) as caught:
            ask(address, way, timeout=timeout)
        assert (caught.value.reason, server.asked) == (failure.reason, 1)


@WAYS
def test_a_server_that_knows_no_parts_is_asked_for_the_whole(way: Way) -> None:
    """One that is older than the client refuses what it does not know."""
    older = error(Reason.UNKNOWN_FIELD, "InspectStreamRequest has no field number 3")
    with losing((0, older), (0, None)) as (address, server):
        assert iterate(address, way) == ["output", "capture:@output"]
        assert server.asked == 2
    with losing((0, older)) as (address, server), pytest.raises(ca.InvalidArgument):
        iterate(address, way)
    assert server.asked == 2
    of_the_request = error(Reason.UNKNOWN_FIELD, "no such field", "captures[0]")
    with losing((0, of_the_request), (0, None)) as (address, server), pytest.raises(ca.InvalidArgument):
        iterate(address, way)
    assert server.asked == 1


@pytest.mark.slow
def test_a_worker_that_is_killed_amid_an_answer_costs_no_answer(tmp_path: Path) -> None:
    """Through real TorchServe, with a real kill: who waits for all of a large answer gets all of it."""
    adapter = tmp_path / "wide_adapter.py"
    adapter.write_text(
        "import torch\nfrom torch import nn\nfrom cutaway.adapters import Adapter\n"
        "class Wide(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.wide = nn.Identity()\n"
        "    def forward(self, x):\n        return self.wide(torch.arange(32 << 20).reshape(1, -1))[:, :1] + x\n"
        "class Large(Adapter):\n    def build(self):\n        return Wide()\n"
    )
    package(tmp_path / "store", "wide", f"{adapter}:Large")
    with serving(tmp_path / "store", tmp_path / "logs") as server, ca.Client(server.address) as client:
        x = {"x": np.ones((1, 1), np.float32)}
        stream = client.inspect_stream("wide", x, captures=["wide"], timeout=120.0)
        results: list[InspectResult] = []
        waiting = threading.Thread(target=lambda: results.append(stream.result()))
        waiting.start()
        while not stream.reply_bytes:
            time.sleep(0.001)
        os.kill(worker(server, "wide").pid, signal.SIGKILL)
        assert stream.reply_bytes < 256 * MEBIBYTE  # amid the answer
        waiting.join()
        (result,) = results
        assert np.array_equal(result.captures["wide"].output, np.arange(32 << 20).reshape(1, -1))
