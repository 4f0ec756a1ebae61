"""How much memory a process may use, in control groups too."""

from __future__ import annotations

import multiprocessing
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest

from cutaway.server import memory
from cutaway.server.memory import Shares

GIBIBYTE = 1 << 30


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of this process's control group for memory, in an empty tree."""
    if not psutil.LINUX:
        pytest.skip("only Linux has control groups")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path)
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    directories = [tmp_path / kind / path.lstrip("/") for _, kind, path in lines if kind in ("", "memory")]
    directories[0].mkdir(parents=True, exist_ok=True)
    return directories[0]


@pytest.mark.parametrize("name", ["memory.max", "memory.limit_in_bytes"])
def test_the_smallest_limit_of_all_groups_counts(group: Path, tmp_path: Path, name: str) -> None:
    """Of versions 1 and 2, of the process's own group or one around it; "max" is no limit."""
    assert memory.usable_bytes() == psutil.virtual_memory().total
    (group / name).write_text("max\n")
    assert memory.usable_bytes() == psutil.virtual_memory().total
    (group / name).write_text(f"{GIBIBYTE}\n")
    assert memory.usable_bytes() == GIBIBYTE


def test_shares_fit_together(group: Path) -> None:
    """Workers, and requests under way, have less than there is; a small machine leaves a little to each."""
    (group / "memory.max").write_text(str(8 * GIBIBYTE))
    for workers in (1, 2, 4):
        assert workers * (memory.share_of_worker(workers) + (GIBIBYTE >> 1)) <= 0.6 * 8 * GIBIBYTE
        shares = Shares.among(workers, group)
        assert workers * shares.own + shares.pool == workers * memory.share_of_worker(workers)
        assert shares.own <= shares.pool // workers <= shares.own + 1
    assert memory.share_of_worker(1000) == GIBIBYTE >> 2
    assert Shares.among(1000, group) == (1000, GIBIBYTE >> 2, 0, group)
    assert Shares.among(1, group, 2 * GIBIBYTE) < Shares.among(1, group)
    assert memory.share_of_requests(1) == 8 * GIBIBYTE // 24
    assert memory.share_of_requests(GIBIBYTE) == GIBIBYTE


# The pool that workers share.


@pytest.fixture
def pool_file(tmp_path: Path) -> Path:
    if not psutil.LINUX:
        pytest.skip("only Linux limits memory so")
    return tmp_path / "memory"


def _hold(file: Path, size: int, needed: int, held: Connection) -> None:
    """Reserves memory in a process of its own, until it is told to end, or killed."""
    with memory.MemoryPool(file, size).reserved(needed, lambda: None) as got:
        held.send(got)
        held.recv()


@contextmanager
def holding(file: Path, size: int, needed: int) -> Iterator[tuple[Connection, BaseProcess]]:
    """Starts a process that reserves memory."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_hold, args=(file, size, needed, theirs), daemon=True)
    process.start()
    try:
        yield ours, process
    finally:
        process.kill()
        process.join()


class _WaitedEnoughError(Exception):
    pass


def _refuse() -> None:
    raise _WaitedEnoughError


def test_reservations_share_the_pool(pool_file: Path) -> None:
    """What is left can be had at once; more has to wait, and all of it is had when the others are done."""
    pool = memory.MemoryPool(pool_file, GIBIBYTE)
    with holding(pool_file, GIBIBYTE, GIBIBYTE >> 1) as (other, _):
        assert other.recv() == GIBIBYTE >> 1
        with pool.reserved(GIBIBYTE >> 1, _refuse) as got:
            assert got == GIBIBYTE >> 1
        with pytest.raises(_WaitedEnoughError), pool.reserved((GIBIBYTE >> 1) + 1, _refuse):
            pass
        with pool.reserved(GIBIBYTE >> 1, _refuse):  # one that gave up holds nothing
            pass
        told: list[None] = []

        def waiting() -> None:
            if not told:
                other.send("end")
            told.append(None)

        with pool.reserved(4 * GIBIBYTE, waiting) as got:
            assert got == GIBIBYTE
        assert told


def test_a_killed_worker_holds_nothing(pool_file: Path) -> None:
    pool = memory.MemoryPool(pool_file, GIBIBYTE)
    with holding(pool_file, GIBIBYTE, GIBIBYTE) as (other, process):
        other.recv()
        with pool.reserved(GIBIBYTE, process.kill) as got:
            assert got == GIBIBYTE


def test_the_limit_is_that_of_what_is_reserved(pool_file: Path) -> None:
    """A process may take its own part, more in a block that reserves more, and its own part again."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    requests = memory.RequestMemory(1 << 26, memory.MemoryPool(pool_file, GIBIBYTE))
    assert requests.most == (1 << 26) + GIBIBYTE
    try:
        requests.enforce()
        with pytest.raises(MemoryError):
            bytearray(1 << 28)
        with requests.reserved(1 << 29, lambda: None) as allowed:
            assert 1 << 29 <= allowed < 1 << 30
            bytearray(1 << 28)
        with pytest.raises(MemoryError):
            bytearray(1 << 28)
        with requests.reserved(1 << 20, _refuse) as allowed:
            assert allowed == 1 << 26
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def test_a_thread_starts_when_requests_have_taken_all(pool_file: Path) -> None:
    """Its stack counts as memory of the process: without room, no reply would be sent."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    ran: list[int] = []
    thread = threading.Thread(target=ran.append, args=(1,))
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (1, before[1]))
        memory.start(thread)
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == 1
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
    thread.join()
    assert ran == [1]
