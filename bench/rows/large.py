"""Rows about large replies: throughput, and memory of the gateway."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median

import psutil

from bench import servers
from bench.interleaved import Measure
from bench.pipe import Pipe
from bench.row import Bench, Found
from bench.rows.loads import over

MEBIBYTES = 64
HUGE_MEBIBYTES = 1024

_SAMPLE_S = 0.005


def large(bench: Bench) -> Found:
    """Measures throughput against a bare gRPC stream."""
    with servers.stream() as peer:
        return _beside(bench, "stream", peer)


def unary(bench: Bench) -> Found:
    """Measures throughput against one unary reply of TorchServe."""
    settings = {"replyBytes": MEBIBYTES << 20, "batchSize": 1}
    with servers.torchserve(bench.scratch("unary"), "echo_handler.py", **settings) as peer:
        return _beside(bench, "unary", peer["grpc"])


def _beside(bench: Bench, way: str, peer: str) -> Found:
    size = str(MEBIBYTES << 20)
    with ExitStack() as stack:
        server = stack.enter_context(_wall(bench, MEBIBYTES))
        ours = stack.enter_context(Pipe("bench.parts.large", "ours", server.address, size))
        theirs = stack.enter_context(Pipe("bench.parts.large", way, peer, size))
        return over({"ours": _speed(ours), way: _speed(theirs)}, bench.rounds, "MiB/s")


@contextmanager
def _wall(bench: Bench, mebibytes: int) -> Iterator[servers.Server]:
    with servers.cutaway(bench.store.of("wall", mebibytes=str(mebibytes))) as server:
        yield server


def _speed(pipe: Pipe) -> Measure:
    return lambda: MEBIBYTES / median(pipe.ask({"count": 2}))


def memory(bench: Bench) -> Found:
    """Measures the growth of the gateway's memory in MiB while a reply of 1 GiB passes, after smaller replies."""
    with (
        _wall(bench, MEBIBYTES) as small,
        Pipe("bench.parts.large", "ours", small.address, str(MEBIBYTES << 20)) as first,
    ):
        first.ask({"count": 1})  # says at once where streams are not served
    with (
        _wall(bench, HUGE_MEBIBYTES) as server,
        Pipe("bench.parts.large", "ours", server.address, str(HUGE_MEBIBYTES << 20)) as caller,
    ):
        door = psutil.Process(server.pid)
        before = door.memory_info().rss
        with watched(door) as sizes:
            (took,) = caller.ask({"count": 1})
    return Found([(max(sizes) - before) / (1 << 20)], {"the reply took": f"{took:.3g} s", "samples": str(len(sizes))})


@contextmanager
def watched(process: psutil.Process) -> Iterator[list[int]]:
    """Samples the resident bytes of a process while the block runs."""
    done, sizes = threading.Event(), [process.memory_info().rss]

    def watch() -> None:
        while not done.wait(_SAMPLE_S):
            sizes.append(process.memory_info().rss)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield sizes
    finally:
        done.set()
        thread.join()
