"""Model stores with files that cannot be read, and read by a process that can open none."""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cutaway.contract.results import ArchiveState, ModelName, UnservedArchive
from cutaway.server.archive import reader
from cutaway.server.auth.tokens import Caller, Permissions, Scope
from cutaway.server.model_store import Catalog, read_store
from tests.conftest import ADAPTERS
from tests.support.serving import package

NOBODY = 65534
TINY = f"{ADAPTERS / 'tiny_adapter.py'}:Tiny"


@contextmanager
def no_file_can_be_opened() -> Iterator[None]:
    """Take this process's free file descriptors while the block runs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def not_as_root() -> Iterator[None]:
    """Be nobody while the block runs, where root runs the tests: no file is closed to root."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_an_archive_that_cannot_be_read_harms_no_other() -> None:
    """It is listed with what the system says of it, and the others are served."""
    with tempfile.TemporaryDirectory() as name:  # pytest's own are closed to nobody
        directory = Path(name)
        directory.chmod(0o755)
        package(directory, "tiny", TINY).chmod(0o644)
        package(directory, "secret", TINY).chmod(0)
        with not_as_root():
            store = read_store(directory)
    assert [each.model for each in store.archives] == ["tiny"]
    assert store.faults == ["secret-1.0.mar cannot be read (Permission denied)"]


def test_bytes_are_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is read again reads the archives that are new, or another file than before."""
    paths = [package(tmp_path, "tiny", TINY, version=version) for version in ("1.0", "1.1")]
    read: list[str] = []
    plainly = reader.read_with_digest

    def noting(path: Path) -> tuple[reader.ArchiveManifest, str]:
        read.append(path.name)
        return plainly(path)

    monkeypatch.setattr(reader, "read_with_digest", noting)
    for _ in range(2):
        assert len(read_store(tmp_path).archives) == 2
    assert read == ["tiny-1.0.mar", "tiny-1.1.mar"]
    paths[0].write_bytes(b"no archive")
    package(tmp_path, "tiny", TINY, version="1.2")
    assert [name.version for name in read_store(tmp_path).archives] == ["1.2", "1.1"]
    assert read[2:] == ["tiny-1.0.mar", "tiny-1.2.mar"]


def test_a_process_without_file_descriptors_calls_no_archive_broken(tmp_path: Path) -> None:
    """Otherwise a store that is read again at such a moment would lose its models."""
    package(tmp_path, "tiny", TINY)
    with no_file_can_be_opened(), pytest.raises(OSError, match="Too many open files"):
        read_store(tmp_path)
    assert len(read_store(tmp_path).archives) == 1


def test_callers_see_archives_of_their_models_alone() -> None:
    """By the model, or by the file's name where no model is known; words, which quote code, only who may inspect."""
    state = ArchiveState.FAILED
    catalog = Catalog(
        [ModelName("a", "1")],
        [
            UnservedArchive("a-2.mar", "a", "2", state, "why a"),
            UnservedArchive("b-1.mar", "b", "1", state, "why b"),
            UnservedArchive("c.mar", "", "", ArchiveState.NOT_WHOLE, "why c"),
        ],
    )

    def seen(**scopes: set[Scope]) -> dict[str, str]:
        models = {name.replace("every", "*"): Permissions(frozenset(own)) for name, own in scopes.items()}
        return {item.archive: item.why for item in Caller("one", models).visible_archives(catalog)}

    assert seen(every={Scope.INSPECT}) == {"a-2.mar": "why a", "b-1.mar": "why b", "c.mar": "why c"}
    assert seen(a={Scope.INSPECT}, b={Scope.PREDICT}) == {"a-2.mar": "why a", "b-1.mar": ""}
    assert seen(c={Scope.INSPECT}) == {"c.mar": "why c"}
    assert seen(b=set()) == {}
