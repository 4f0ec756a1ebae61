"""The tunnel between gateway and replica: a Unix socket at each end, TLS between them. The frames pass as they are."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import NamedTuple

HANDSHAKE_S = 10.0
READ_BYTES = 1 << 20

_SILENT_S = 5
_PROBES = 5
_LOST_MS = 10_000


class Address(NamedTuple):
    """Where a process listens."""

    host: str
    port: int


class Connection(NamedTuple):
    """The two directions of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


async def join(one: Connection, other: Connection) -> None:
    """Passes on what arrives on each of two connections, until either ends; then closes both."""
    await asyncio.gather(_pass_on(one.reader, other.writer), _pass_on(other.reader, one.writer))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # either side is gone
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()


def notice_loss(writer: asyncio.StreamWriter) -> None:
    """Ends the connection when the other machine has not answered for ten seconds: one that loses its power says
    nothing."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _LOST_MS)
