"""What happens on a bad day: each fault ends when its function returns, and the server is to recover from it."""

from __future__ import annotations

import errno
import signal
import socket
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import cutaway as ca
from tests.conftest import ADAPTERS
from tests.support.adapters.fragile_adapter import ENDLESS, HUNGRY
from tests.support.processes import next_leader, worker
from tests.support.serving import Server, package

TOKEN, OTHER = "app", "other"
"""Tokens of the callers, and of somebody else."""

CONNECTIONS = 1_100
"""More than the server has file descriptors."""

WITHHELD, ANNOUNCED_BYTES = 40, 120 << 20
"""Bodies that never come, and the size of each."""

ATTACK_S = 5.0
"""How long silent connections and unread replies last, and a full disk."""

SHORT_S = 3.0


@dataclass(frozen=True)
class Scene:
    """Where faults happen: ``scratch`` is the small disk for temporary files; None if none could be mounted."""

    server: Server
    store: Path
    scratch: Path | None


def memory(scene: Scene) -> None:
    """Two requests need more memory than a worker may have."""
    _refused(scene, "OUT_OF_MEMORY", np.ones((20_000, 3), np.float32), "wide")
    _refused(scene, "OUT_OF_MEMORY", np.full((1, 3), HUNGRY, np.float32))


def wrong_tokens(scene: Scene) -> None:
    """Somebody tries tokens."""
    for number in range(200):
        with ca.Client(scene.server.address, token=f"guess-{number}") as client, suppress(ca.Unavailable):
            try:
                client.list_models()
            except ca.Unauthenticated:
                continue
            raise AssertionError("a wrong token was accepted")


def silent_connections(scene: Scene) -> None:
    """So many connections that say nothing that no file descriptor is left."""
    host, _, port = scene.server.address.rpartition(":")
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            connection = stack.enter_context(socket.socket())
            connection.settimeout(0.1)
            with suppress(OSError):
                connection.connect((host, int(port)))
        time.sleep(ATTACK_S)


def withheld_bodies(scene: Scene) -> None:
    """HTTP requests that announce a large body, and send one byte of it."""
    host, _, port = scene.server.http_address.rpartition(":")
    head = f"POST /v1/models/digits:predict HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {OTHER}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {ANNOUNCED_BYTES}\r\n\r\n{{"
    with ExitStack() as stack:
        for _ in range(WITHHELD):
            with suppress(OSError):
                connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=1.0))
                connection.sendall(head.encode())
        time.sleep(ATTACK_S)


def unread_replies(scene: Scene) -> None:
    """Replies in pieces, of which nobody reads any."""
    asked = {"x": np.ones((40, 3), np.float32)}
    with ca.Client(scene.server.address, token=TOKEN) as client, ExitStack() as stack:
        for _ in range(16):
            stream = client.inspect_stream("fragile", asked, captures=["wide"], timeout=2 * ATTACK_S)
            stack.enter_context(stream)
        time.sleep(ATTACK_S)


def odd_archives(scene: Scene) -> None:
    """Files that are no archives, or odd ones, come into the store, and go again."""
    odd = [scene.store / "noise-1.0.mar", scene.store / "odd-1.0.mar", scene.store / "empty-1.0.mar"]
    odd[0].write_bytes(bytes(range(256)) * 64)
    with zipfile.ZipFile(odd[1], "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", '{"model": {"modelName": "../../odd", "modelVersion": "1.\u00b2"}}')
    odd[2].touch()
    time.sleep(ATTACK_S)
    for path in odd:
        path.unlink()


def full_disk(scene: Scene) -> None:
    """The disk for temporary files is full while a model comes into the store."""
    if scene.scratch is None:
        return
    with _filled(scene.scratch):
        added = package(scene.store, "added", f"{ADAPTERS / 'tiny_adapter.py'}:Tiny")
        time.sleep(ATTACK_S)
    added.unlink()


def restart_on_full_disk(scene: Scene) -> None:
    """TorchServe's JVM dies while the disk for temporary files is full, so that none can be started."""
    if scene.scratch is None:
        return
    with _filled(scene.scratch):
        next_leader(scene.server).kill()
        time.sleep(ATTACK_S)


FAULTS: Mapping[str, Callable[[Scene], object]] = {
    "worker SIGSTOP": lambda scene: worker(scene.server, "digits").send_signal(signal.SIGSTOP),
    "worker kill": lambda scene: worker(scene.server, "digits").kill(),
    "JVM SIGSTOP": lambda scene: next_leader(scene.server).send_signal(signal.SIGSTOP),
    "JVM kill": lambda scene: next_leader(scene.server).kill(),
    "endless loop": lambda scene: _refused(scene, "DEADLINE_EXCEEDED", np.full((1, 3), ENDLESS, np.float32)),
    "memory request": memory,
    # A backtracking matcher would need hours for this pattern.
    "glob bomb": lambda scene: _refused(scene, "MODULE_NOT_FOUND", np.ones((1, 3), np.float32), "**" * 24 + "!"),
    "wrong tokens": wrong_tokens,
    "silent connections": silent_connections,
    "unread streams": unread_replies,
    "withheld bodies": withheld_bodies,
    "odd archives": odd_archives,
    "full scratch disk": full_disk,
    "JVM kill, full disk": restart_on_full_disk,
}
"""Each ends when its function returns; "JVM" is whatever starts the workers: TorchServe's, or the keeper."""


def _refused(scene: Scene, reason: str, x: np.ndarray, capture: str = "linear") -> None:
    with ca.Client(scene.server.address, token=TOKEN) as client:
        try:
            client.inspect("fragile", {"x": x}, captures=[capture], timeout=SHORT_S)
        except ca.CutawayError as failure:
            if failure.reason in (reason, "DEADLINE_EXCEEDED") or failure.retry_after_s is not None:
                return
            raise
    raise AssertionError(f"{reason} was expected")


@contextmanager
def _filled(directory: Path) -> Iterator[None]:
    path = directory / "filler"
    try:
        with path.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))
    except OSError as failure:
        if failure.errno != errno.ENOSPC:
            raise
    try:
        yield
    finally:
        path.unlink()
