"""The way of a reply from a worker to the gateway: all of it, or a word why not; and nobody waits for ever."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

import cutaway as ca
from cutaway.client.request_builder import build_request
from cutaway.client.transport import read_piece
from cutaway.config.settings import Settings
from cutaway.errors import Reason
from cutaway.v1 import inspection_service_pb2
from cutaway.wire import requests as wire_requests
from cutaway.wire.reassembly import ReplyAssembler
from cutaway.worker.worker import Worker
from cutaway.worker_protocol import reply_socket
from cutaway.worker_protocol.reply_socket import ReplyReceiver
from cutaway.worker_protocol.torchserve_messages import decode_worker_reply

MEBIBYTE = 1 << 20


class Wide(nn.Module):
    """As many MiB inside as ``x[0, 0]`` says."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(x[:1, :1].new_full((1, int(x[0, 0]) << 18), 7.0))[:, :1] + x


def row(mebibytes: int, receiver: ReplyReceiver | None, **parts: bytes) -> dict[str, bytes]:
    asked = build_request("wide", {"x": np.full((1, 1), mebibytes, np.float32)}, captures="wide")
    request = inspection_service_pb2.InspectStreamRequest(request=wire_requests.encode(asked))
    pipe = {} if receiver is None else {"pipe": bytes(receiver.path)}
    return {"stream": request.SerializeToString(), **pipe, **parts}


@pytest.fixture(scope="module")
def worker() -> Worker:
    return Worker.of(Wide(), "wide", Settings(max_message_bytes=MEBIBYTE))


@pytest.fixture(autouse=True)
def nobody_is_left() -> Iterator[None]:
    """After every test, no thread that sends or reads goes on."""
    yield
    for thread in threading.enumerate():
        if thread.name.startswith(("cutaway-reply-sender", "cutaway-reply-receiver")):
            thread.join()


async def taken(receiver: ReplyReceiver, until: float | None = None) -> list[bytes]:
    return [message async for message in receiver.messages(time.time() + 60 if until is None else until)]


def result(messages: list[bytes]) -> ca.InspectResult:
    assembler = ReplyAssembler()
    for message in messages:
        assembler.add(read_piece(message))
    return assembler.result()


def asked(worker: Worker, *rows: dict[str, bytes]) -> None:
    for reply in worker.answer(rows):
        assert not decode_worker_reply(reply).response


def test_a_reply_goes_past_its_limit(worker: Worker) -> None:
    """A reply that is larger than any one message arrives whole, and what is answered is that it is on its way."""

    async def run() -> list[bytes]:
        with ReplyReceiver() as receiver:
            asked(worker, row(5, receiver))
            receiver.accept()
            return await taken(receiver)

    assert np.array_equal(result(asyncio.run(run())).captures["wide"].output, np.full((1, 5 << 18), 7.0, np.float32))


def test_the_model_waits_for_no_reader(worker: Worker) -> None:
    """Replies that nobody takes yet keep nobody waiting, those of one batch and later ones; each reaches its own."""

    async def run() -> list[int]:
        with ReplyReceiver() as one, ReplyReceiver() as two, ReplyReceiver() as three:
            asked(worker, row(20, one), row(30, two))
            asked(worker, row(10, three))
            sizes = []
            for receiver in (three, two, one):
                receiver.accept()
                sizes.append(result(await taken(receiver)).captures["wide"].output.nbytes // MEBIBYTE)
            return sizes

    assert asyncio.run(run()) == [10, 30, 20]


def test_a_reader_that_leaves(worker: Worker) -> None:
    """Whoever leaves amid a reply, or before it began, ends it."""

    async def run() -> None:
        with ReplyReceiver() as receiver:
            asked(worker, row(20, receiver))
            receiver.accept()
            async for message in receiver.messages(time.time() + 60):
                assert message
                break
        with ReplyReceiver() as receiver:
            asked(worker, row(20, receiver))

    asyncio.run(run())


def test_the_last_answer_counts(worker: Worker) -> None:
    """A question that had to be asked again is answered by whoever was asked last."""

    async def run() -> list[bytes]:
        with ReplyReceiver() as receiver:
            asked(worker, row(20, receiver))
            asked(worker, row(3, receiver))
            receiver.accept()
            return await taken(receiver)

    assert result(asyncio.run(run())).captures["wide"].output.nbytes == 3 * MEBIBYTE


@pytest.mark.parametrize(
    ("pipe", "reason", "said"),
    [
        (None, Reason.MALFORMED_REQUEST, "pipe is the path"),
        (b"/dev/null", Reason.MALFORMED_REQUEST, "pipe is the path"),
        (b"/run/cutaway-1/control", Reason.MALFORMED_REQUEST, "pipe is the path"),
        (b"/run/elsewhere/pieces", Reason.MALFORMED_REQUEST, "pipe is the path"),
        (b"/nowhere/cutaway-1/pieces", Reason.DEADLINE_EXCEEDED, "the caller has cancelled"),
    ],
    ids=["none", "no socket", "not ours", "not in a place of ours", "gone"],
)
def test_pipes_that_lead_nowhere(worker: Worker, pipe: bytes | None, reason: Reason, said: str) -> None:
    """A worker talks to no socket but a gateway's, and says so where there is none."""
    with pytest.raises(ca.CutawayError, match=said) as caught:
        decode_worker_reply(*worker.answer([row(1, None) | ({} if pipe is None else {"pipe": pipe})]))
    assert caught.value.reason == reason


def test_a_refusal_is_an_answer(worker: Worker) -> None:
    """What cannot be answered is said where every answer is."""
    with ReplyReceiver() as receiver, pytest.raises(ca.DeadlineExceeded):
        decode_worker_reply(*worker.answer([row(1, receiver, deadline=b"1.0")]))


def test_a_reader_that_takes_nothing_is_given_up(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker holds a reply only so long for a reader that takes nothing, who then learns why it ended."""
    monkeypatch.setattr(reply_socket, "PATIENCE_S", 0.05)

    async def run() -> None:
        with ReplyReceiver() as receiver:
            asked(worker, row(60, receiver))
            receiver.accept()
            async for _ in receiver.messages(time.time() + 60):
                await asyncio.sleep(0.2)

    with pytest.raises(ca.DeadlineExceeded, match="nothing of the reply was read"):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("sent", "seconds", "reason"),
    [
        (b"", 60, Reason.WORKER_DIED),
        (b"\1\0", 60, Reason.WORKER_DIED),
        (b"\5\0\0\0four", 60, Reason.WORKER_DIED),
        (b"\4\0\0\0four", 60, Reason.WORKER_DIED),
        (None, 60, Reason.WORKER_DIED),
        (b"\4\0\0\0four", 0.1, Reason.DEADLINE_EXCEEDED),
    ],
    ids=["nothing", "half a size", "half a message", "no end", "no worker", "a worker that stands still"],
)
def test_a_worker_that_breaks_off(sent: bytes | None, seconds: float, reason: Reason) -> None:
    """A worker that dies amid a reply, or stands still, is no end of the reply; nobody waits for it for ever."""

    async def run() -> None:
        with ReplyReceiver() as receiver, socket.socket(socket.AF_UNIX) as dying:
            if sent is not None:
                dying.connect(str(receiver.path))
                dying.sendall(sent)
                if seconds > 1:
                    dying.close()
            receiver.accept()
            await taken(receiver, time.time() + seconds)

    with pytest.raises(ca.CutawayError) as caught:
        asyncio.run(run())
    assert caught.value.reason == reason


def test_a_failure_amid_a_reply(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes wrong after the header is said in a piece, for there is no other place left."""
    from cutaway.wire import chunks

    def spoiled(*_: Any) -> Callable[..., Any]:
        raise MemoryError

    monkeypatch.setattr(chunks, "chunk_piece", spoiled)

    async def run() -> list[bytes]:
        with ReplyReceiver() as receiver:
            asked(worker, row(1, receiver))
            receiver.accept()
            return await taken(receiver)

    with pytest.raises(ca.ResourceExhausted) as caught:
        result(asyncio.run(run()))
    assert caught.value.reason == Reason.OUT_OF_MEMORY
