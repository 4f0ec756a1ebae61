"""A worker as a replica of a Ray Serve deployment.

Serve starts the replica, checks its health and ends it. Calls do not pass through Serve.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray import serve

from cutaway.contract.results import ModelName
from cutaway.server.archive import reader
from cutaway.server.memory import share_of_worker
from cutaway.server.ray.plan import CALLS, CANNOT_LOAD, WAITING
from cutaway.server.ray.tunnel import READ_BYTES, Address, Connection, Identity, MutualTls, join, notice_loss
from cutaway.server.settings import Settings
from cutaway.server.worker_protocol import ScratchDirectory, delete_abandoned

_ANNOUNCE_S = 0.5
_ABANDONED_S = 60.0


@dataclass(eq=False)
class ReplicaPort:
    """A replica's end of the tunnels: a port with mutual TLS in front of the worker's Unix socket.

    It listens in a thread of its own, and announces its address to the keeper while nobody is connected.

    Args:
        worker: the worker's Unix socket.
        host: the address of this machine, on which it listens.
        keeper: where the keeper listens.
        tls: this side of the tunnels.
        wants_calls: returns whether the worker can take calls.
        abandoned: called when the keeper has been out of reach for a minute.

    Attributes:
        connections: the number of open connections.
    """

    worker: Path
    host: str
    keeper: Address
    tls: MutualTls
    _: KW_ONLY
    wants_calls: Callable[[], bool]
    abandoned: Callable[[], None]
    connections: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        threading.Thread(target=lambda: asyncio.run(self._listen()), name="cutaway-port", daemon=True).start()

    async def _listen(self) -> None:
        """Listens, and announces the address while nobody is connected; calls ``abandoned`` if the keeper is gone."""
        address = await self.tls.listen(self.host, self._accept)
        reached = time.monotonic()
        while True:
            if self.connections or not self.wants_calls() or await self._announce(address):
                reached = time.monotonic()
            elif time.monotonic() - reached > _ABANDONED_S:
                await asyncio.to_thread(self.abandoned)
            await asyncio.sleep(_ANNOUNCE_S)

    async def _announce(self, address: Address) -> bool:
        """Announces this port to the keeper; returns whether the keeper could be reached."""
        try:
            _, writer = await self.tls.connect(self.keeper)
            writer.write(json.dumps(address).encode() + b"\n")
            writer.close()
            await writer.wait_closed()
        except OSError:
            return False
        return True

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            with suppress(OSError):
                notice_loss(writer)
                worker = await asyncio.open_unix_connection(self.worker, limit=READ_BYTES)
                await join(Connection(reader, writer), Connection(*worker))
        finally:
            self.connections -= 1
            writer.close()


_POLL_S = 0.05


@dataclass(frozen=True)
class Assignment:
    """The settings that all replicas of a run have in common.

    Attributes:
        keeper: where the keeper listens.
        identity: the replicas' key and certificate.
        trusted: the keeper's certificate.
        settings: the times and resources of a worker.
    """

    keeper: Address
    identity: Identity = field(repr=False)
    trusted: bytes
    settings: Settings


class Replica:
    """A replica, which runs one copy of one model.

    Args:
        name: the model.
        application: the Serve application that the replicas of the model belong to.
        assignment: what all replicas of a run have in common.
        archive: a reference to the archive's bytes in Ray's object store; in a sequence, so that Ray does not replace
            it.
    """

    def __init__(self, name: ModelName, application: str, assignment: Assignment, archive: Sequence[Any]) -> None:
        from cutaway.server.worker import process, server  # the keeper imports this file, and needs no torch

        self._application = application
        self._settings = settings = assignment.settings
        self._leaving = False
        delete_abandoned()
        self._files = ScratchDirectory()
        files = Path(self._files.name)
        directory = _unpacked(archive[0], files)
        os.chdir(directory)
        sys.path.insert(0, str(directory))  # an adapter may import other files of its archive
        os.environ.setdefault("CUTAWAY_REQUEST_MEMORY_BYTES", str(share_of_worker(_workers_of_node(settings.ray_cpus))))
        try:
            self._worker = process.load(directory, workers=1, gpu=0 if settings.ray_gpus else None)
        except Exception as failure:
            raise RuntimeError(f"{CANNOT_LOAD}{process.load_failure(failure)}") from None
        self._server = server.WorkerServer(self._worker, files / "0")
        self._worker.begin_idle_tests()
        self._port = ReplicaPort(
            files / "0",
            ray.util.get_node_ip_address(),
            assignment.keeper,
            MutualTls(assignment.identity, assignment.trusted),
            wants_calls=self._wants_calls,
            abandoned=self._abandoned,
        )

    def check_health(self) -> None:
        """Raises an error if the worker hangs; Serve ends it then, and starts another."""
        if self._worker.late_s > self._settings.hang_s:
            raise RuntimeError(f"a worker of {self._worker.name} hangs")

    def record_autoscaling_stats(self) -> dict[str, int]:
        """Returns what `workers_wanted` reads."""
        return {CALLS: self._server.calls, WAITING: self._server.waiting}

    def __del__(self) -> None:
        """Takes no new turns, and finishes those that it has; Serve calls this before the replica ends."""
        if hasattr(self, "_port") and not self._leaving:
            self._leaving = True
            self._server.leave()
            until = time.monotonic() + self._settings.grace_s
            while (self._port.connections or self._worker.pieces) and time.monotonic() < until:
                time.sleep(_POLL_S)
            self._files.cleanup()

    def _wants_calls(self) -> bool:
        return not self._leaving and not self._worker.late_s

    def _abandoned(self) -> None:
        """Ends all replicas of the model: the gateway was killed, and Serve would keep them for ever."""
        serve.delete(self._application, _blocking=False)


def _unpacked(archive: Any, files: Path) -> Path:
    """Unpacks the archive behind a reference; its bytes are mapped from the object store, not copied."""
    path, directory = files / "archive.mar", files / "model"
    ray.get(archive).tofile(path)
    reader.unpack(path, directory)
    path.unlink()
    return directory


def _workers_of_node(cpus: float) -> int:
    """Returns how many workers Ray may start on this machine."""
    return max(1, int((os.cpu_count() or 1) / cpus)) if cpus else 1
