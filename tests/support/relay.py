"""A relay between callers and a server, which cuts connections, or swallows what they send."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Relay:
    """Forwards connections to ``target``, a ``host:port``, until the process ends.

    Attributes:
        address: where it listens.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: dict[socket.socket, socket.socket] = {}
        self._swallowed: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Ends every connection at once, on both sides."""
        for each in [*self._open]:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def swallow(self) -> None:
        """Forwards nothing more of the connections that are open, and tells nobody; new ones are as before."""
        self._swallowed |= {*self._open}

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            try:
                far = socket.create_connection(self._target)
            except OSError:  # no server listens at present
                near.close()
                continue
            self._open |= {near: far, far: near}
            for source in (near, far):
                threading.Thread(target=self._forward, args=(source,), daemon=True).start()

    def _forward(self, source: socket.socket) -> None:
        sink = self._open[source]
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if source not in self._swallowed:
                    sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
        source.close()
        del self._open[source]
        self._swallowed.discard(source)
