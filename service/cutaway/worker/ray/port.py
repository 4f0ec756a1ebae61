"""A replica's end of the tunnels: a port with mutual TLS, behind which is the worker's Unix socket."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cutaway.worker.ray.tunnel import HANDSHAKE_S, READ_BYTES, Address, Connection, join, notice_loss

_ANNOUNCE_S = 0.5
_ABANDONED_S = 60.0


class ReplicaPort:
    """Listens in a thread of its own. While nobody is connected, it tells the keeper where it is.

    Args:
        worker: the worker's Unix socket.
        host: the address of this machine, on which it listens.
        keeper: where the keeper listens.
        accepting: TLS for connections of the keeper.
        calling: TLS for connections to the keeper.
        wants_calls: returns whether the worker can take calls.
        abandoned: called when the keeper has been out of reach for a minute.

    Attributes:
        connections: how many connections are open.
    """

    def __init__(
        self,
        worker: Path,
        host: str,
        keeper: Address,
        accepting: ssl.SSLContext,
        calling: ssl.SSLContext,
        *,
        wants_calls: Callable[[], bool],
        abandoned: Callable[[], None],
    ) -> None:
        self.connections = 0
        self._worker = worker
        self._host = host
        self._keeper = keeper
        self._accepting = accepting
        self._calling = calling
        self._wants_calls = wants_calls
        self._abandoned = abandoned
        threading.Thread(target=lambda: asyncio.run(self._listen()), name="cutaway-port", daemon=True).start()

    async def _listen(self) -> None:
        server = await asyncio.start_server(
            self._accept, self._host, 0, ssl=self._accepting, limit=READ_BYTES, ssl_handshake_timeout=HANDSHAKE_S
        )
        address = Address(*server.sockets[0].getsockname()[:2])
        reached = time.monotonic()
        while True:
            if self.connections or not self._wants_calls() or await self._announce(address):
                reached = time.monotonic()
            elif time.monotonic() - reached > _ABANDONED_S:
                await asyncio.to_thread(self._abandoned)
            await asyncio.sleep(_ANNOUNCE_S)

    async def _announce(self, address: Address) -> bool:
        """Tells the keeper this port; returns whether it could be reached."""
        try:
            _, writer = await asyncio.open_connection(
                *self._keeper, ssl=self._calling, ssl_handshake_timeout=HANDSHAKE_S
            )
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
                worker = await asyncio.open_unix_connection(self._worker, limit=READ_BYTES)
                await join(Connection(reader, writer), Connection(*worker))
        finally:
            self.connections -= 1
            writer.close()
