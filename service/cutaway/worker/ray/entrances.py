"""The gateway's end of the tunnels: a Unix socket for each replica, among which the gateway looks for workers."""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cutaway.worker.ray.tunnel import HANDSHAKE_S, READ_BYTES, Address, Connection, join, notice_loss
from cutaway.worker_protocol.socket_directory import listening


class _Entrance(NamedTuple):
    """The socket of one replica; the gateway deletes it when the replica does not answer."""

    path: Path
    server: asyncio.Server


class Entrances:
    """The sockets of all replicas.

    Args:
        directory: where the gateway looks for workers.
        accepting: TLS for replicas that connect.
        calling: TLS for connections to replicas.
    """

    def __init__(self, directory: Path, accepting: ssl.SSLContext, calling: ssl.SSLContext) -> None:
        self._directory = directory
        self._accepting = accepting
        self._calling = calling
        self._numbers = itertools.count(1)
        self._entrances: dict[Address, _Entrance] = {}

    async def open(self, host: str) -> Address:
        """Begins to listen for replicas that say where they are; returns the address for that."""
        server = await asyncio.start_server(
            self._announced, host, 0, ssl=self._accepting, ssl_handshake_timeout=HANDSHAKE_S
        )
        return Address(*server.sockets[0].getsockname()[:2])

    async def _announced(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            line = await reader.readline()
            writer.close()
            if line:
                await self._open(Address(*json.loads(line)))

    async def _open(self, address: Address) -> None:
        self._close_deleted()
        if address not in self._entrances:
            path = self._directory / str(next(self._numbers))
            server = await asyncio.start_unix_server(
                partial(self._connect, address), sock=listening(path), limit=READ_BYTES
            )
            self._entrances[address] = _Entrance(path, server)

    def _close_deleted(self) -> None:
        for address, entrance in [*self._entrances.items()]:
            if not entrance.path.exists():
                entrance.server.close()
                del self._entrances[address]

    async def _connect(self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Joins a connection of the gateway to one to the replica; closes it if there is none."""
        try:
            replica = Connection(
                *await asyncio.open_connection(
                    *address, ssl=self._calling, limit=READ_BYTES, ssl_handshake_timeout=HANDSHAKE_S
                )
            )
        except OSError:
            writer.close()
            return
        notice_loss(replica.writer)
        await join(Connection(reader, writer), replica)
