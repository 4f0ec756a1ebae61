"""More calls than can be answered: who waits, who is refused, and whose turn it is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from torch import Tensor, nn

import cutaway as ca
from cutaway.client.request_builder import build_request
from cutaway.client.transport import SERVICE, GatewayTransport
from cutaway.contract.errors import Reason, error
from cutaway.gateway import serve
from cutaway.server.batching import Answers, Batcher, FairQueue, NotBegun, caller_id
from cutaway.server.settings import Settings
from cutaway.v1.worker_pb2 import WorkerCall
from tests.support.prometheus import waiting_calls
from tests.support.turns import running
from tests.support.waiting import PATIENCE_S, until


class Model:
    """Answers when it is told to, and remembers which calls came together."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.turns: list[list[bytes]] = []

    async def send(self, calls: Sequence[WorkerCall], replied: Answers[bytes]) -> None:
        self.turns.append([call.inspect for call in calls])
        await self.free.wait()
        for position, call in enumerate(calls):
            replied(position, call.inspect)


def turns(model: Model, *, calls: int = 1, waiting: int = 8, size: int = 1 << 20) -> Batcher[bytes]:
    return Batcher(
        running(model.send), workers=lambda: 1, sends_ahead=False, max_calls=calls, max_bytes=size, max_pending=waiting
    )


def asked(queue: Batcher[bytes], name: str, *questions: bytes) -> list[asyncio.Future[bytes]]:
    """Calls of one caller, none of them answered yet."""

    async def ask(question: bytes) -> bytes:
        caller_id.set(name)
        return await queue.call(WorkerCall(inspect=question), len(question), 60.0)

    return [asyncio.ensure_future(ask(each)) for each in questions]


def test_callers_take_turns() -> None:
    """Whoever has six calls waiting is not before a caller who has one, and a caller's own stay in order."""

    async def run() -> list[list[bytes]]:
        model = Model()
        queue = turns(model, waiting=16)
        calls = asked(queue, "greedy", *(b"g%d" % number for number in range(6)))
        await asyncio.sleep(0)
        calls += asked(queue, "modest", b"m0") + asked(queue, "third", b"t0", b"t1")
        await asyncio.sleep(0.01)
        model.free.set()
        await asyncio.gather(*calls)
        return model.turns

    order = [each for turn in asyncio.run(run()) for each in turn]
    assert order == [b"g0", b"g1", b"m0", b"t0", b"g2", b"t1", b"g3", b"g4", b"g5"]


def test_a_turn_holds_calls_of_all_who_wait() -> None:
    """A batch is shared out in the same way, and a call too large to share one keeps nobody else from theirs for
    longer than its own turn."""

    async def run() -> list[list[bytes]]:
        model = Model()
        queue = turns(model, calls=3, waiting=16, size=8)
        calls = asked(queue, "first", b"0")
        await asyncio.sleep(0.01)
        calls += asked(queue, "greedy", b"LARGE_LARGE", b"large_large") + asked(queue, "modest", b"m0", b"m1")
        await asyncio.sleep(0.01)
        model.free.set()
        await asyncio.gather(*calls)
        return model.turns

    assert asyncio.run(run()) == [[b"0"], [b"LARGE_LARGE"], [b"m0"], [b"large_large"], [b"m1"]]


def test_past_the_queue_a_call_is_refused_at_once() -> None:
    """It is told how many wait, and when to try again; whoever leaves makes room."""

    async def run() -> None:
        model = Model()
        queue = turns(model, waiting=2)
        first, second = asked(queue, "one", b"0", b"1")
        await asyncio.sleep(0.01)
        with pytest.raises(ca.ResourceExhausted, match="2 calls are waiting") as refusal:
            await queue.call(WorkerCall(inspect=b"2"), 1, 60.0)
        assert refusal.value.reason == "OVERLOADED"
        assert refusal.value.retry_after_s
        second.cancel()
        await asyncio.sleep(0.01)
        (third,) = asked(queue, "two", b"3")
        await asyncio.sleep(0.01)
        model.free.set()
        assert list(await asyncio.gather(first, third)) == [b"0", b"3"]
        assert model.turns == [[b"0"], [b"3"]]

    asyncio.run(run())


def test_what_was_put_back_comes_first() -> None:
    """Calls that are asked again have waited already; they keep their order."""
    queue: FairQueue[int] = FairQueue()
    for number in range(3):
        queue.put(number)
    queue.put_back([10, 11])
    assert list(queue) == [10, 11, 0, 1, 2]
    assert [queue.pop() for _ in range(5)] == [10, 11, 0, 1, 2]
    assert not queue


def test_calls_of_a_dead_worker_are_asked_before_those_that_came_later() -> None:
    """They have waited already; each is asked by itself, in order."""

    class Dying(Model):
        async def send(self, calls: Sequence[WorkerCall], replied: Answers[bytes]) -> None:
            if len(calls) > 1:
                self.turns.append([call.inspect for call in calls])
                raise error(Reason.WORKER_DIED, "killed")
            await super().send(calls, replied)

    async def run() -> list[list[bytes]]:
        model = Dying()
        queue = turns(model, calls=2)
        calls = asked(queue, "one", b"first")
        await asyncio.sleep(0.01)
        calls += asked(queue, "one", b"0", b"1", b"later")
        await asyncio.sleep(0.01)
        model.free.set()
        await asyncio.gather(*calls)
        return model.turns

    assert asyncio.run(run()) == [[b"first"], [b"0", b"1"], [b"0"], [b"1"], [b"later"]]


def test_a_turn_that_its_worker_never_began_is_sent_again_as_it_was() -> None:
    """No call of it is blamed for the death of the worker, or goes alone."""

    class Gone(Model):
        async def send(self, calls: Sequence[WorkerCall], replied: Answers[bytes]) -> None:
            if len(self.turns) < 3:
                self.turns.append([call.inspect for call in calls])
                raise NotBegun
            await super().send(calls, replied)

    async def run() -> list[list[bytes]]:
        model = Gone()
        model.free.set()
        queue = turns(model, calls=2)
        await asyncio.gather(*asked(queue, "one", b"0", b"1"))
        return model.turns

    assert asyncio.run(run()) == [[b"0"], [b"0", b"1"], [b"0", b"1"], [b"0", b"1"]]


def test_a_batch_that_cannot_be_sent_fails_alone() -> None:
    """Its callers are told so, and the worker is free for the next one."""
    sent: list[bytes] = []

    def send(calls: Sequence[WorkerCall], answers: Answers[bytes], _: int) -> None:
        sent.extend(call.inspect for call in calls)
        if len(sent) == 1:
            raise MemoryError
        answers(0, calls[0].inspect)
        answers.end()

    async def run() -> None:
        queue = Batcher(send, workers=lambda: 1, sends_ahead=False, max_calls=1, max_bytes=1, max_pending=8)
        first, second = asked(queue, "one", b"0", b"1")
        with pytest.raises(ca.Internal, match="MemoryError"):
            await first
        assert await second == b"1"

    asyncio.run(run())


class SetsAside(Model):
    """Takes long for questions that say so, and may die while it has them."""

    def __init__(self) -> None:
        super().__init__()
        self.dies = asyncio.Event()

    async def send(self, calls: Sequence[WorkerCall], replied: Answers[bytes]) -> None:
        """Answers all others at once."""
        self.turns.append([b"alone", calls[0].inspect] if replied.alone else [call.inspect for call in calls])
        for position, call in enumerate(calls):
            if call.inspect.startswith(b"long"):
                replied.set_aside(position)
            else:
                replied(position, call.inspect)
        if any(call.inspect.startswith(b"long") for call in calls):
            if not self.dies.is_set():
                await self.dies.wait()
                raise error(Reason.WORKER_DIED, "killed")
            await self.free.wait()
            for position, call in enumerate(calls):
                replied(position, call.inspect)


def test_a_call_that_was_set_aside_keeps_no_other_from_being_sent() -> None:
    """If the worker dies, each that had begun is asked again alone: nothing runs beside it, and others follow."""

    async def run() -> list[list[bytes]]:
        model = SetsAside()
        queue = turns(model, calls=2)
        long = asked(queue, "one", b"long 1")
        await asyncio.sleep(0.01)
        for question in (b"0", b"1"):
            assert await asked(queue, "two", question)[0] == question
        long += asked(queue, "three", b"long 2")
        await asyncio.sleep(0.01)
        model.dies.set()
        await asyncio.sleep(0.01)
        late = asked(queue, "two", b"2")
        await asyncio.sleep(0.01)
        assert not late[0].done()
        model.free.set()
        await asyncio.gather(*long, *late)
        return model.turns

    first, zero, one, second, *again = asyncio.run(run())
    assert [first, zero, one, second] == [[b"long 1"], [b"0"], [b"1"], [b"long 2"]]
    assert sorted(again[:2]) == [[b"alone", b"long 1"], [b"alone", b"long 2"]]
    assert again[2:] == [[b"2"]]


class Slow(nn.Module):
    """Waits until it is let go, and remembers what it was asked, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.open = threading.Event(), threading.Event()
        self.order: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.order.append(int(x[0, 0]))
        self.entered.set()
        self.open.wait(PATIENCE_S)
        return x


def test_a_connection_is_a_lane() -> None:
    """At a real gateway, whoever has five calls waiting is not before another connection's one."""
    model = Slow()
    own = [("grpc.use_local_subchannel_pool", 1)]  # else all channels of a process share one connection
    with (
        serve({"slow": model}, settings=Settings(max_batch_size=1, metrics_address="127.0.0.1:0")) as server,
        ThreadPoolExecutor(8) as callers,
        grpc.insecure_channel(server.address, options=own) as greedy,
        grpc.insecure_channel(server.address, options=own) as modest,
    ):

        def call(channel: grpc.Channel, number: int) -> None:
            asked = GatewayTransport().inspect(build_request("slow", {"x": np.full((1, 2), number, np.float32)}))
            send: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(asked.path)
            send(asked.payload, timeout=PATIENCE_S)

        calls = [callers.submit(call, greedy, 0)]
        model.entered.wait(PATIENCE_S)
        calls += [callers.submit(call, greedy, number) for number in range(1, 6)]
        until(lambda: waiting_calls(server.metrics_address, "slow") == 5)
        calls.append(callers.submit(call, modest, 100))
        until(lambda: waiting_calls(server.metrics_address, "slow") == 6)
        model.open.set()
        for each in calls:
            each.result()
    order = model.order[2:]  # without two passes that find the axis of the rows
    assert order.index(100) == 2
    assert sorted(order) == [0, 1, 2, 3, 4, 5, 100]


def test_bytes_under_way_are_limited() -> None:
    """In all and of one caller: what is too much is refused, while others are served; and taken when there is room."""
    model = Slow()
    sizes = Settings(max_batch_size=1, max_queue_bytes=3 << 20, metrics_address="127.0.0.1:0")
    with (
        serve({"slow": model}, settings=sizes) as server,
        ThreadPoolExecutor(3) as callers,
        _connection(server.address) as one,
        _connection(server.address) as other,
        _connection(server.address) as third,
    ):
        held = [callers.submit(_send, one, 1 << 20)]
        model.entered.wait(PATIENCE_S)
        assert _refusal(one, 1 << 20) == "OVERLOADED"
        held.append(callers.submit(_send, other, 1 << 20))
        until(lambda: waiting_calls(server.metrics_address, "slow") == 1)
        assert _refusal(other, 1 << 20) == "OVERLOADED"
        assert _refusal(third, 3 << 19) == "OVERLOADED"
        model.open.set()
        for each in held:
            each.result()
        _send(third, 3 << 19)
        _send(third, 7 << 19)


def test_a_request_that_has_no_room_is_not_read() -> None:
    """It is refused by its first bytes, whatever it would have been."""
    model = Slow()
    sizes = Settings(max_batch_size=1, max_queue_bytes=1 << 20)
    with (
        serve({"slow": model}, settings=sizes) as server,
        ThreadPoolExecutor(1) as callers,
        _connection(server.address) as one,
        _connection(server.address) as other,
    ):
        held = callers.submit(_send, one, 1 << 20)
        model.entered.wait(PATIENCE_S)
        ask: grpc.StreamUnaryMultiCallable[bytes, bytes] = other.stream_unary(f"/{SERVICE}/Inspect")
        with pytest.raises(grpc.RpcError) as refused:
            ask(_endless(model.open), timeout=PATIENCE_S)
        assert _reason(refused.value) == "OVERLOADED"
        model.open.set()
        held.result()


def _endless(over: threading.Event) -> Iterator[bytes]:
    """Yields no message before ``over``."""
    over.wait(PATIENCE_S)
    yield b""


@contextmanager
def _connection(address: str) -> Iterator[grpc.Channel]:
    """A connection of its own: else all channels of a process share one."""
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield channel


def _send(channel: grpc.Channel, size: int) -> None:
    asked = GatewayTransport().inspect(build_request("slow", {"x": np.zeros((1, size // 4), np.float32)}))
    send: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(asked.path)
    send(asked.payload, timeout=PATIENCE_S)


def _refusal(channel: grpc.Channel, size: int) -> str:
    with pytest.raises(grpc.RpcError) as refused:
        _send(channel, size)
    return _reason(refused.value)


def _reason(failure: Any) -> str:
    code, _ = failure.code().value
    return str(GatewayTransport().failure(code, failure.details(), failure.trailing_metadata()).reason)


class OneByOne:
    """Answers turn by turn, as it is told to."""

    def __init__(self) -> None:
        self.turns: list[int] = []
        self._ends: list[asyncio.Event] = []

    async def send(self, calls: Sequence[WorkerCall], replied: Answers[bytes]) -> None:
        self.turns.append(len(calls))
        self._ends.append(asyncio.Event())
        await self._ends[-1].wait()
        for position, call in enumerate(calls):
            replied(position, call.inspect)

    async def end(self, turn: int) -> None:
        self._ends[turn].set()
        await asyncio.sleep(0.01)


def test_a_turn_behind_a_busy_worker_is_no_smaller_than_the_one_before_it() -> None:
    """Callers come back one after the other: the first of them does not go alone while the worker has much to do, and
    nobody waits for more to come once it has nothing."""

    async def come(queue: Batcher[bytes], calls: int) -> None:
        for _ in range(calls):
            asked(queue, "x", b"x")
            await asyncio.sleep(0.01)

    async def run() -> None:
        model = OneByOne()
        queue: Batcher[bytes] = Batcher(
            running(model.send), workers=lambda: 1, sends_ahead=True, max_calls=8, max_bytes=1 << 20, max_pending=32
        )
        await come(queue, 7)
        assert model.turns == [1, 1]
        await model.end(0)
        assert model.turns == [1, 1, 5]
        await model.end(1)
        await come(queue, 4)
        assert model.turns == [1, 1, 5]
        await come(queue, 1)
        assert model.turns == [1, 1, 5, 5]
        await model.end(2)
        await come(queue, 3)
        assert model.turns == [1, 1, 5, 5]
        await model.end(3)
        assert model.turns == [1, 1, 5, 5, 3]
        await come(queue, 8)
        assert model.turns == [1, 1, 5, 5, 3, 3]
        await model.end(4)
        await model.end(5)
        assert model.turns == [1, 1, 5, 5, 3, 3, 5]

    asyncio.run(run())


def test_no_call_takes_longer_than_the_operator_allows() -> None:
    """Whatever deadline it has; and it is told so."""
    model = Slow()
    settings = Settings(max_deadline_s=0.2)
    with serve({"slow": model}, settings=settings) as server, ca.Client(server.address, timeout=PATIENCE_S) as client:
        try:
            with pytest.raises(ca.DeadlineExceeded, match=r"a call may take 0\.2 s here"):
                client.inspect("slow", {"x": np.zeros((1, 2))})
        finally:
            model.open.set()
