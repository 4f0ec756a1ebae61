"""Frames between gateway and worker: cut anywhere, of any size, in many parts, read slowly."""

from __future__ import annotations

import random
import socket
import threading
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.server import worker_protocol
from cutaway.server.worker.server import FrameSender
from cutaway.server.worker_protocol import Frame, FrameKind, FrameReader, frame, frame_of
from tests.support.waiting import until

SPACE = worker_protocol._SPACE_BYTES
EDGES = [SPACE - worker_protocol.HEAD.size + more for more in (-1, 0, 1)]


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.one_of(st.integers(0, 40), st.sampled_from(EDGES), st.just(3 * SPACE)), max_size=8),
    seed=st.integers(0, 99),
)
def test_frames_are_cut_out_wherever_they_are_cut(sizes: list[int], seed: int) -> None:
    """Also those as large as the space, and larger, beside small ones; each keeps its bytes when the next arrive."""
    draw = random.Random(seed)
    sent = [Frame(draw.choice([*FrameKind]), number, draw.randbytes(size)) for number, size in enumerate(sizes)]
    stream = memoryview(b"".join(frame(*_arguments(each)) for each in sent))
    reader = FrameReader()
    found: list[Frame] = []
    while stream:
        space = reader.space()
        size = min(len(space), len(stream), draw.choice([1, 12, 13, 14, 5000, SPACE - 1, SPACE, 2 * SPACE]))
        space[:size] = stream[:size]
        found += reader.read(size)
        stream = stream[size:]
    assert [(kind, number, bytes(data)) for kind, number, data in found] == [tuple(each) for each in sent]


def _arguments(each: Frame) -> tuple[FrameKind, bytes, int]:
    return each.kind, bytes(each.data), each.number


@pytest.mark.parametrize(("parts", "size"), [(5000, 3), (3, 4 << 20), (1, 0)])
def test_parts_arrive_in_order(parts: int, size: int) -> None:
    """More than the system takes at once, and more bytes than the connection holds, from several threads."""
    sending, receiving = socket.socketpair()
    numbers, threads = count(1), 4
    with sending, receiving:
        sender = FrameSender(sending)

        def send() -> None:
            number = next(numbers)
            sender.send(*frame_of([bytes([number]) * size] * parts, FrameKind.REPLY, number))

        started = [threading.Thread(target=send) for _ in range(threads)]
        for thread in started:
            thread.start()
        reader = FrameReader()
        found: list[Frame] = []
        while len(found) < threads:
            found += reader.read(receiving.recv_into(reader.space()))
        for thread in started:
            thread.join()
    assert sorted(number for _, number, _ in found) == [*range(1, threads + 1)]
    for _, number, data in found:
        assert data == bytes([number]) * (parts * size)


@pytest.mark.parametrize("is_slow", [False, True])
def test_what_nobody_will_get_is_kept_no_longer(is_slow: bool) -> None:
    """A process that shall end need not wait for it, be it sent at once or by the thread of a slow connection."""
    sending, receiving = socket.socketpair()
    with sending:
        sender = FrameSender(sending)
        if is_slow:
            sender.send(bytes(64 << 20))
            assert sender._waiting
        receiving.close()
        until(lambda: not sender._waiting)
        sender.send(b"more")
        assert not sender._waiting
