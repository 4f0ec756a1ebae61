"""Which replica sets a supervisor makes for a store that changes; no process is started."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cutaway.contract.results import ModelName
from cutaway.server.lifecycle import supervisor as supervisors
from cutaway.server.lifecycle.replica_set import ReplicaSet
from cutaway.server.lifecycle.supervisor import Supervisor
from cutaway.server.model_store import read_store
from cutaway.server.settings import Settings
from tests.support.serving import package

ADAPTER = "from cutaway.adapters import Adapter\n\nclass Net(Adapter):\n    pass\n"


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    """Of a store with two models, for each of which it has a set."""
    for name in ("a", "b"):
        put(tmp_path, name)
    found = Supervisor(tmp_path, Settings(engine="processes"), None)
    found._current = found._sets_over(wanted(found))
    yield found
    found._keepers.close()
    found._archives.close()


def put(store: Path, name: str, more: str = "", version: str = "1.0") -> None:
    """Put an archive into the store, in place of the one with that name and version."""
    adapter = store / f"{name}_adapter.py"
    adapter.write_text(ADAPTER + more)
    package(store, name, f"{adapter}:Net", version=version)


def wanted(of: Supervisor) -> Any:
    return of._unpack(read_store(of._directory))


def numbers(sets: list[ReplicaSet]) -> dict[str, int]:
    return {f"{name.model} {name.version}": each.first for each in sets for name in each.models}


def test_workers_keep_their_numbers_through_updates(supervisor: Supervisor) -> None:
    """Else all come to lie on one GPU. A version beside another one has a number that is free."""
    assert numbers(supervisor._current) == {"a 1.0": 0, "b 1.0": 1}
    for name in ("a", "b", "a"):
        put(supervisor._directory, name, more=f"# {numbers(supervisor._sets)}")
        sets = supervisor._sets_over(wanted(supervisor))
        assert numbers(sets) == {"a 1.0": 0, "b 1.0": 1}
        supervisor._sets = supervisor._current = sets
    put(supervisor._directory, "b", version="2.0")
    target = wanted(supervisor)
    assert numbers(supervisor._sets_over(target)) == {"a 1.0": 0, "b 1.0": 1, "b 2.0": 2}
    supervisor._sets = [each for each in supervisor._sets if each.first]
    for removed in supervisor._directory.glob("a*.mar"):
        removed.unlink()
    put(supervisor._directory, "c")
    assert numbers(supervisor._sets_over(wanted(supervisor)))["c 1.0"] == 0


def test_two_versions_that_replace_one_share_no_number(supervisor: Supervisor) -> None:
    for removed in supervisor._directory.glob("a*.mar"):
        removed.unlink()
    for version in ("2.0", "3.0"):
        put(supervisor._directory, "a", version=version)
    assert numbers(supervisor._sets_over(wanted(supervisor))) == {"a 3.0": 0, "b 1.0": 1, "a 2.0": 2}


def test_an_archive_that_is_copied_again_is_not_loaded_again(supervisor: Supervisor) -> None:
    """Unless it did not load: what it lacked may be there now."""
    a, b = (supervisor._directory / f"{name}-1.0.mar" for name in ("a", "b"))
    whole = a.read_bytes()

    def put_again(archive: Path) -> None:
        archive.write_bytes(archive.read_bytes())
        os.utime(archive, ns=(0, archive.stat().st_mtime_ns + 1_000_000_000))

    put_again(a)
    assert supervisor._sets_over(wanted(supervisor)) == supervisor._current
    put(supervisor._directory, "a", more="# another")
    changed = supervisor._sets_over(wanted(supervisor))
    assert [each in supervisor._current for each in changed] == [False, True]
    a.write_bytes(whole)
    assert supervisor._sets_over(wanted(supervisor)) == supervisor._current  # the predecessor serves all the while
    failed = wanted(supervisor)[ModelName("b", "1.0")]
    supervisor._failed[failed] = "no room"
    assert failed in wanted(supervisor).values()
    put_again(b)
    assert failed not in wanted(supervisor).values()


def test_a_set_that_was_made_and_never_started_serves_nothing(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one could not be made, for want of a file descriptor; the next try makes both."""
    made: list[ReplicaSet] = []

    def scarce(*arguments: Any, **more: Any) -> ReplicaSet:
        if made:
            raise OSError("too many open files")
        made.append(ReplicaSet(*arguments, **more))
        return made[0]

    async def fail() -> None:
        with pytest.raises(OSError, match="too many"):
            await supervisor._try(wanted(supervisor))
        await asyncio.gather(*supervisor._retiring)

    supervisor._routes.lead_all(supervisors._pools(supervisor._current))
    for name in ("a", "b"):
        put(supervisor._directory, name, more="# another")
    with monkeypatch.context() as patched:
        patched.setattr(supervisors, "ReplicaSet", scarce)
        asyncio.run(fail())
    assert supervisor._sets == supervisor._current
    assert made[0].retired
    assert not {*supervisor._sets_over(wanted(supervisor))} & {*supervisor._current, *made}
