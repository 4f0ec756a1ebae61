"""The way of calls from the gateway to a worker and back, over a real socket: all of a reply, or a word why not; and
nobody waits for ever."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

import cutaway as ca
from cutaway.client.request_builder import build_request
from cutaway.client.transport import read_piece
from cutaway.contract.errors import Reason
from cutaway.contract.results import ModelName
from cutaway.contract.tensors import Buffer
from cutaway.contract.torchserve_messages import decode_worker_reply
from cutaway.contract.wire import chunks
from cutaway.contract.wire.chunks import Piece, ReplyAssembler, as_message
from cutaway.server.backends.backend import Answer, Backend, Turns
from cutaway.server.backends.remote_worker import RemoteWorker, WorkerPool
from cutaway.server.batching import Answers, NotBegun
from cutaway.server.model_store import Catalog
from cutaway.server.settings import Settings
from cutaway.server.worker import call as worker_call
from cutaway.server.worker import server as worker_server
from cutaway.server.worker.call import PieceQueue, WaitingPieces
from cutaway.server.worker.calls import Calls
from cutaway.server.worker.server import WorkerServer
from cutaway.server.worker.worker import Worker
from cutaway.server.worker_protocol import FrameKind, FrameReader, ScratchDirectory, frame
from cutaway.v1 import worker_pb2
from tests.support.turns import run
from tests.support.waiting import PATIENCE_S, until
from tests.support.worker_calls import message

MEBIBYTE = 1 << 20
NAME = ModelName("wide", "1.0")

pytestmark = pytest.mark.anyio


class Wide(nn.Module):
    """As many MiB inside as ``x[0, 0]`` says; below zero, it waits until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Identity()
        self.entered, self.let_go = threading.Event(), threading.Event()
        self.let_go.set()

    def forward(self, x: Tensor) -> Tensor:
        if x[0, 0] < 0:
            self.entered.set()
            self.let_go.wait(PATIENCE_S)
        return self.wide(x[:1, :1].new_full((1, abs(int(x[0, 0])) << 18), 7.0))[:, :1] + x


@pytest.fixture(scope="module")
def wide() -> Wide:
    return Wide()


@pytest.fixture(scope="module")
def served(wide: Wide) -> Iterator[Path]:
    """The socket of a worker; no reply of more than 64 MiB in one message."""
    with ScratchDirectory() as directory:
        path = Path(directory) / str(os.getpid())
        WorkerServer(Worker.of(wide, "wide", Settings(max_message_bytes=64 * MEBIBYTE)), path)
        yield path


def call(mebibytes: int, **how: Any) -> worker_pb2.WorkerCall:
    return message(build_request("wide", {"x": np.full((1, 1), mebibytes, np.float32)}, captures="wide"), **how)


@asynccontextmanager
async def connected(path: Path) -> AsyncIterator[RemoteWorker]:
    """The worker at ``path``, once it has said which model it has."""
    greeted = asyncio.Event()
    worker = RemoteWorker(path, greeted.set)
    await asyncio.get_running_loop().create_unix_connection(lambda: worker, str(path))
    await greeted.wait()
    try:
        yield worker
    finally:
        worker.close()


@pytest.fixture
async def remote(served: Path) -> AsyncIterator[RemoteWorker]:
    async with connected(served) as worker:
        yield worker


async def replies(worker: RemoteWorker, *calls: worker_pb2.WorkerCall) -> list[Buffer]:
    found: list[Buffer] = [b""] * len(calls)
    await run(worker, calls, found.__setitem__)
    return found


async def streamed(worker: RemoteWorker, mebibytes: int) -> int:
    """The number under which the pieces of a streamed reply wait."""
    (reply,) = await replies(worker, call(mebibytes, stream=True))
    return decode_worker_reply(reply).pieces


async def fetched(worker: RemoteWorker, number: int, pause_s: float = 0.0) -> ca.InspectResult:
    assembler = ReplyAssembler()
    async for piece in worker.pieces(number, time.time() + PATIENCE_S):
        assembler.add(read_piece(piece))
        await asyncio.sleep(pause_s)
    return assembler.result()


async def test_a_worker_says_who_it_is(remote: RemoteWorker) -> None:
    assert (remote.pid, remote.name, remote.late_s) == (os.getpid(), NAME, 0.0)


async def test_large_replies_of_one_turn_arrive_whole(remote: RemoteWorker) -> None:
    """More than the socket holds, and more than one message carries."""
    for reply in await replies(remote, *(call(20) for _ in range(4))):
        assert decode_worker_reply(reply).size > 20 * MEBIBYTE


async def test_the_model_waits_for_no_reader(remote: RemoteWorker) -> None:
    """Streamed replies that nobody takes yet keep nobody waiting; each reaches its own."""
    waiting = await replies(remote, call(20, stream=True), call(30, stream=True))
    numbers = [await streamed(remote, 10), *(decode_worker_reply(reply).pieces for reply in reversed(waiting))]
    found = [await fetched(remote, number) for number in numbers]
    assert [each.captures["wide"].output.nbytes // MEBIBYTE for each in found] == [10, 30, 20]


async def test_the_model_waits_for_no_gateway(served: Path, remote: RemoteWorker) -> None:
    """One that reads nothing of its replies does not hold up the calls of another."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(served))
        turn = worker_pb2.WorkerTurn(calls=[call(30), call(30)])
        silent.sendall(frame(FrameKind.OPEN) + frame(FrameKind.TURN, turn.SerializeToString()))
        assert silent.recv(MEBIBYTE, socket.MSG_WAITALL)  # the model has run for it
        assert await replies(remote, call(1))


async def test_parts_come_while_the_model_runs(remote: RemoteWorker, wide: Wide) -> None:
    """The turn is not over before the model has run: the gateway knows that the worker is busy."""
    below = ca.FeatureAblation(baselines={"x": np.full((1, 1), -1, np.float32)})  # where the model waits
    request = build_request("wide", {"x": np.full((1, 1), 3, np.float32)}, attributions=[below], check="off")
    arrived: asyncio.Queue[Buffer] = asyncio.Queue()
    wide.let_go.clear()
    running = asyncio.ensure_future(
        run(remote, [message(request, parts=True)], lambda _, reply: arrived.put_nowait(reply))
    )
    assembler = ReplyAssembler(in_parts=True)
    pieces = remote.pieces(decode_worker_reply(await arrived.get()).pieces, time.time() + PATIENCE_S)
    while assembler.so_far is None:
        assembler.add(read_piece(await anext(pieces)))
    assert assembler.so_far.predictions["output"].tolist() == [[10.0]]
    assert assembler.so_far.attributions == ()
    assert remote.is_busy
    assert not running.done()
    wide.let_go.set()
    async for piece in pieces:
        assembler.add(read_piece(piece))
    assert [each.method for each in assembler.result().attributions] == ["FeatureAblation"]
    await running
    assert decode_worker_reply(await arrived.get()).pieces  # that of the end


async def test_parts_go_to_their_own_callers(remote: RemoteWorker) -> None:
    """Of two calls of one turn: both are told where their parts are when these begin, and again at the end."""
    asked = [build_request("wide", {"x": np.full((1, 1), x, np.float32)}, attributions=["saliency"]) for x in (3, 5)]
    told: dict[int, list[int]] = {0: [], 1: []}
    await run(
        remote,
        [message(each, parts=True) for each in asked],
        lambda position, reply: told[position].append(decode_worker_reply(reply).pieces),
    )
    for position, output in ((0, 10.0), (1, 12.0)):
        number, again = told[position]
        assert again == number
        assembler = ReplyAssembler(in_parts=True)
        async for piece in remote.pieces(number, time.time() + PATIENCE_S):
            assembler.add(read_piece(piece))
        assert assembler.result().predictions["output"].tolist() == [[output]]


async def test_pieces_are_fetched_once(remote: RemoteWorker) -> None:
    """There is no second reader, and none of a number that nobody has."""
    number = await streamed(remote, 1)
    assert (await fetched(remote, number)).captures
    for wrong in (number, 10**9):
        with pytest.raises(ca.CutawayError):
            await fetched(remote, wrong)


async def test_a_reply_that_nobody_fetches_is_dropped(remote: RemoteWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_call, "PATIENCE_S", -1.0)
    number = await streamed(remote, 1)
    await streamed(remote, 1)  # when one is added, the others are looked at
    with pytest.raises(ca.CutawayError) as caught:
        await fetched(remote, number)
    assert caught.value.reason == Reason.WORKER_DIED


async def test_a_reader_that_takes_nothing_is_given_up(remote: RemoteWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker holds a reply only so long for a reader that takes nothing."""
    monkeypatch.setattr(worker_server, "PATIENCE_S", 0.05)
    number = await streamed(remote, 60)
    with pytest.raises(ca.CutawayError) as caught:
        await fetched(remote, number, pause_s=0.5)
    assert caught.value.reason == Reason.WORKER_DIED


async def test_a_cancelled_call_is_not_begun(remote: RemoteWorker, wide: Wide, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another one runs; a cancellation of what nobody has is nothing."""
    wide.entered.clear()
    wide.let_go.clear()
    waiting, known, cancel = call(1), threading.Event(), Calls.cancel

    def cancelled_now(calls: Calls, number: int) -> None:
        cancel(calls, number)
        if number == waiting.number:
            known.set()

    monkeypatch.setattr(Calls, "cancel", cancelled_now)
    turns = [asyncio.ensure_future(replies(remote, call(-1)))]
    await asyncio.to_thread(wide.entered.wait, PATIENCE_S)  # before, others may run between two passes of this call
    turns.append(asyncio.ensure_future(replies(remote, waiting)))
    await asyncio.sleep(0)  # it is sent before it is cancelled
    remote.cancel(10**9)
    remote.cancel(waiting.number)
    await asyncio.to_thread(known.wait, PATIENCE_S)  # the model waits meanwhile
    wide.let_go.set()
    (answered,), (cancelled,) = await asyncio.gather(*turns)
    assert decode_worker_reply(answered).response
    with pytest.raises(ca.DeadlineExceeded, match="hung up"):
        decode_worker_reply(cancelled)


def is_later(worker: RemoteWorker, told_s: float) -> bool:
    return worker._late_s > told_s


async def late_call(remote: RemoteWorker) -> asyncio.Future[list[Buffer]]:
    """A call that runs beyond its deadline; that is longer each time that it has passed before the model ran."""
    for power in itertools.count():
        turn = asyncio.ensure_future(replies(remote, call(-1, deadline_s=0.1 * 2**power)))
        await asyncio.to_thread(until, lambda turn=turn: remote._late_s > 0 or turn.done())  # type: ignore[misc]
        if not turn.done():
            return turn
    raise AssertionError


async def test_a_late_worker_says_at_once_when_it_is_late_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or health would say until its next heartbeat that its model does not serve, while it answers."""
    model = Wide()
    model.let_go.clear()
    with ScratchDirectory() as directory:
        path = Path(directory) / str(os.getpid())
        WorkerServer(Worker.of(model, "wide"), path)
        async with connected(path) as remote:
            turn = await late_call(remote)
            try:
                monkeypatch.setattr(worker_server, "HEARTBEAT_INTERVAL_S", 2 * PATIENCE_S)
                for _ in range(2):  # the first may have been on its way
                    await asyncio.to_thread(until, partial(is_later, remote, remote._late_s))
            finally:
                model.let_go.set()
            await turn
            await asyncio.to_thread(until, lambda: not remote._late_s)


async def test_calls_of_a_gateway_that_ends_are_cancelled(served: Path, remote: RemoteWorker, wide: Wide) -> None:
    wide.entered.clear()
    wide.let_go.clear()
    async with connected(served) as leaving:
        turns = [asyncio.ensure_future(replies(leaving, asked)) for asked in (call(-1), call(60))]
        await asyncio.to_thread(wide.entered.wait, PATIENCE_S)
        for turn in turns:
            turn.cancel()
    wide.let_go.set()
    assert await replies(remote, call(1))


class Endless:
    """A worker whose streamed replies begin with the number of their call, and have no end."""

    name, late_s = NAME, 0.0

    def __init__(self) -> None:
        self.turns = Turns(self)
        self.turn: list[int] = []
        self.cancelled: list[int] = []

    def send(self, calls: Sequence[worker_pb2.WorkerCall], answers: Answers[Answer], waiting: int) -> None:
        self.turn += [each.number for each in calls]
        for position, number in enumerate(self.turn):
            answers(position, Answer(worker_pb2.WorkerReply(pieces=number).SerializeToString(), self, number))

    def cancel(self, number: int) -> None:
        self.cancelled.append(number)

    async def pieces(self, number: int, until: float) -> AsyncGenerator[bytes, None]:
        yield str(number).encode()
        await asyncio.Event().wait()


class Later:
    """No workers, until there is one."""

    sends_ahead = False

    def __init__(self) -> None:
        self.workers: list[Endless] = []
        self.changed: Callable[[], None] = lambda: None

    def may_come(self, name: ModelName) -> bool:
        return True

    def of(self, name: ModelName) -> list[Endless]:
        return self.workers


async def test_a_caller_who_leaves_cancels_his_own_call() -> None:
    """Whatever other calls its turn has."""
    workers, worker = Later(), Endless()
    backend = Backend(workers, Catalog([NAME]), Settings())
    streams = [backend.stream(NAME, b"", PATIENCE_S) for _ in range(3)]
    first = [asyncio.ensure_future(anext(each)) for each in streams]
    for _ in range(100):
        await asyncio.sleep(0)
    assert backend.batchers[NAME].queue_length == len(streams)
    workers.workers.append(worker)
    workers.changed()
    begun = [int(each) for each in await asyncio.gather(*first)]
    assert sorted(begun) == sorted(worker.turn)
    await streams[1].aclose()
    assert worker.cancelled == [begun[1]]


async def test_a_refusal_is_a_reply(remote: RemoteWorker) -> None:
    """What cannot be answered is said where every answer is."""
    late, nothing, fine = await replies(remote, call(1, deadline_s=-1.0), worker_pb2.WorkerCall(number=10**9), call(1))
    with pytest.raises(ca.DeadlineExceeded):
        decode_worker_reply(late)
    with pytest.raises(ca.InvalidArgument, match="exactly one of the parts"):
        decode_worker_reply(nothing)
    assert decode_worker_reply(fine).response


async def test_a_failure_amid_a_reply(remote: RemoteWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes wrong after the header is said in a piece, for there is no other place left."""

    def spoiled(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(chunks, "chunk_piece", spoiled)
    number = await streamed(remote, 1)
    with pytest.raises(ca.ResourceExhausted) as caught:
        await fetched(remote, number)
    assert caught.value.reason == Reason.OUT_OF_MEMORY


PIECE = as_message(Piece(b"", memoryview(b"x"))).joined()


@pytest.mark.parametrize(
    ("sent", "seconds", "reason"),
    [
        (b"", PATIENCE_S, Reason.WORKER_DIED),
        (frame(FrameKind.PIECE, PIECE)[:5], PATIENCE_S, Reason.WORKER_DIED),
        (frame(FrameKind.PIECE, PIECE)[:-1], PATIENCE_S, Reason.WORKER_DIED),
        (frame(FrameKind.PIECE, PIECE), PATIENCE_S, Reason.WORKER_DIED),
        (frame(FrameKind.PIECE, PIECE), 0.1, Reason.DEADLINE_EXCEEDED),
    ],
    ids=["nothing", "half a head", "half a piece", "no end", "a worker that stands still"],
)
async def test_a_worker_that_breaks_off(sent: bytes, seconds: float, reason: Reason) -> None:
    """A worker that dies amid a reply, or stands still, is no end of the reply; nobody waits for it for ever."""

    async def die(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        if seconds < 1:
            await asyncio.sleep(PATIENCE_S)
        writer.close()

    with ScratchDirectory() as directory:
        path = Path(directory) / "1"
        await asyncio.start_unix_server(die, path)
        with pytest.raises(ca.CutawayError) as caught:
            async for _ in RemoteWorker(path, lambda: None).pieces(1, time.time() + seconds):
                pass
    assert caught.value.reason == reason


async def test_only_the_first_turn_is_blamed_for_a_death() -> None:
    """The worker answers one call of its turn and dies: the turn is lost, and the one behind it was never begun."""
    first, second, third = call(1), call(1), call(1)
    hello = frame(FrameKind.HELLO, worker_pb2.WorkerHello(pid=1, model="wide", version="1.0").SerializeToString())

    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(hello)
        await asyncio.sleep(0.2)
        writer.write(frame(FrameKind.REPLY, b"reply", first.number))
        writer.close()

    found: list[Buffer] = [b"", b""]
    with ScratchDirectory() as directory:
        await asyncio.start_unix_server(die, f"{directory}/1")
        async with connected(Path(directory) / "1") as worker:
            turns = run(worker, [first, second], found.__setitem__), run(worker, [third], lambda *_: None)
            lost, behind = await asyncio.gather(*turns, return_exceptions=True)
    assert found == [b"reply", b""]
    assert isinstance(lost, ca.CutawayError)
    assert lost.reason == Reason.WORKER_DIED
    assert isinstance(behind, NotBegun)


async def test_a_pool_finds_workers_and_forgets_dead_ones(wide: Wide) -> None:
    """Those that listen when it begins to look, and later ones; of a dead worker, not even the socket is left."""
    pool = WorkerPool()
    changed = asyncio.Event()
    seen: list[int] = []

    def note() -> None:
        seen.append(len(pool.of(NAME)))
        changed.set()

    pool.changed = note
    (pool.path / "7").touch()  # what a worker that was killed leaves behind
    pool.open()
    WorkerServer(Worker.of(wide, "wide"), pool.path / str(os.getpid()))
    await changed.wait()
    (worker,) = pool.of(NAME)
    assert not pool.of(ModelName("wide", "2.0"))
    assert not (pool.path / "7").exists()
    changed.clear()
    worker.close()
    await changed.wait()
    assert seen == [1, 0]
    pool.close()


async def test_a_pool_connects_again_to_a_worker_that_lives(wide: Wide) -> None:
    """Its model is served again, although only the connection has ended."""
    pool = WorkerPool()
    pool.open()
    WorkerServer(Worker.of(wide, "wide"), pool.path / str(os.getpid()))
    for _ in range(2):
        await asyncio.wait_for(_greeted(pool), PATIENCE_S)
        (worker,) = pool.of(NAME)
        assert decode_worker_reply((await replies(worker, call(1)))[0]).response
        worker.close()
        await asyncio.sleep(0)
    pool.close()


async def _greeted(pool: WorkerPool) -> None:
    while not pool.of(NAME):
        pool.updated.clear()
        await pool.updated.wait()


async def test_a_default_timeout_of_sockets_ends_no_connection(wide: Wide) -> None:
    """Code of a model sets one before it downloads; the gateway may send nothing for longer."""
    with ScratchDirectory() as directory:
        path = Path(directory) / "1"
        socket.setdefaulttimeout(0.05)
        try:
            WorkerServer(Worker.of(wide, "wide"), path)
            async with connected(path) as worker:
                await asyncio.sleep(0.2)
                assert worker.is_open
                assert decode_worker_reply((await replies(worker, call(1)))[0]).response
        finally:
            socket.setdefaulttimeout(None)


async def test_a_call_waits_for_the_next_worker(wide: Wide) -> None:
    """Its worker ends between the moment at which it is chosen and that at which the call is sent; and a call fails at
    once where no worker can come."""
    pool = WorkerPool()
    backend = Backend(pool, Catalog([NAME]), Settings())
    pool.open()
    WorkerServer(Worker.of(wide, "wide"), pool.path / "1")
    await pool.updated.wait()
    (worker,) = pool.of(NAME)
    asked = asyncio.ensure_future(backend.call(NAME, "inspect", call(1).inspect, PATIENCE_S))
    (pool.path / "1").unlink()
    worker.close()  # the call begins before the connection is lost, and its turn is sent afterwards
    await asyncio.wait([asked], timeout=0.2)
    assert not asked.done()
    WorkerServer(Worker.of(wide, "wide"), pool.path / "2")
    assert decode_worker_reply((await asked).reply).response
    (pool.path / "2").unlink()
    pool.of(NAME)[0].close()
    waiting = asyncio.ensure_future(backend.call(NAME, "inspect", call(1).inspect, PATIENCE_S))
    await asyncio.wait([waiting], timeout=0.2)
    pool.set_available(False)
    for each in (waiting, backend.call(NAME, "inspect", call(1).inspect, PATIENCE_S)):
        with pytest.raises(ca.Unavailable) as caught:
            await each
        assert caught.value.reason == Reason.BACKEND_UNAVAILABLE
    pool.close()


def test_pieces_are_dropped_while_others_come() -> None:
    """The heartbeats' thread looks through what the model's thread adds to."""
    waiting, over = WaitingPieces(), threading.Event()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def look() -> None:
        while not over.is_set():
            waiting.drop_late()

    try:
        with ThreadPoolExecutor(1) as other:
            looking = other.submit(look)
            for _ in range(3000):
                waiting.take(waiting.put(PieceQueue()) - 500)
            over.set()
            looking.result()
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_is_turned_away(wide: Wide) -> None:
    """Also where the directory lets it in: the kernel says who has connected."""
    with ScratchDirectory() as directory, socket.socket(socket.AF_UNIX) as nobody:
        path = Path(directory) / "1"
        WorkerServer(Worker.of(wide, "wide"), path)
        os.chmod(directory, 0o777)
        os.chmod(path, 0o777)
        os.seteuid(65534)
        try:
            nobody.connect(str(path))
        finally:
            os.seteuid(0)
        with suppress(BrokenPipeError, ConnectionResetError):
            nobody.sendall(frame(FrameKind.OPEN))
            assert not nobody.recv(1)


class Tight(socket.socket):
    """A socket whose reader has no memory at first."""

    failures = 2

    def recv_into(self, *arguments: Any) -> int:
        """Fails as often as it shall, and takes nothing then."""
        self.failures -= 1
        if self.failures >= 0:
            raise MemoryError
        return super().recv_into(*arguments)


@pytest.mark.parametrize(("failures", "is_busy"), [(2, False), (worker_server._TRIES * 2, True)])
def test_what_arrives_waits_for_memory(failures: int, is_busy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a call has all that a worker may take, its gateway stays connected."""
    monkeypatch.setattr(worker_server, "_PAUSE_S", 0)
    sending, receiving = socket.socketpair()
    with sending, Tight(fileno=receiving.detach()) as tight:
        tight.failures = failures
        sent, reader = frame(FrameKind.CANCEL, number=7), FrameReader()
        sending.sendall(sent)
        assert [*reader.read(worker_server._received(tight, reader, lambda: is_busy))] == [(FrameKind.CANCEL, 7, b"")]


def test_nobody_waits_for_memory_that_no_call_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """It will not come back."""
    monkeypatch.setattr(worker_server, "_PAUSE_S", 0)
    with Tight() as tight:
        tight.failures = worker_server._TRIES * 2
        with pytest.raises(MemoryError):
            worker_server._received(tight, FrameReader(), lambda: False)


BROKEN = """
import sys, time
from functools import partial
from pathlib import Path
from torch import nn
from cutaway.server.worker import call, server
from tests.support.worker_calls import worker

def broken(*_: object, **__: object) -> None:
    raise MemoryError("within the thread")

WHAT = broken
server.WorkerServer(worker(nn.Linear(2, 2)), Path(sys.argv[1]))
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "sent"),
    [
        ("server.Calls.run", FrameKind.TURN),
        ("server.FrameReader.read", FrameKind.CANCEL),
        ("call.WaitingPieces.drop_late", FrameKind.CANCEL),
    ],
)
def test_a_worker_without_a_thread_that_it_needs_ends(broken: str, sent: FrameKind) -> None:
    """So that another one takes its place: the thread that reads calls, or that sends heartbeats."""
    with ScratchDirectory() as directory:
        path = Path(directory, "7")
        command = [sys.executable, "-c", BROKEN.replace("WHAT", broken), str(path)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            until(lambda: path.exists() or process.poll() is not None)
            with socket.socket(socket.AF_UNIX) as gateway, suppress(OSError):
                gateway.connect(str(path))
                gateway.sendall(frame(FrameKind.OPEN) + frame(sent))
                while gateway.recv(1 << 10):
                    pass
            assert process.wait() == 1
            assert process.stderr
            assert "within the thread" in process.stderr.read()
