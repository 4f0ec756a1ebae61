"""A connection by HTTP/1.1, with limits that uvicorn does not have."""

from __future__ import annotations

import asyncio
import socket

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 << 10
"""The largest head of a request: its line and its headers."""


class Connection(HttpToolsProtocol):
    """One connection. The head of a request may take `receive_timeout_s` to arrive. A caller who reads nothing of
    a reply for `idle_timeout_s` loses the connection, with what was left to send.

    Attributes:
        receive_timeout_s: seconds; a subclass sets it.
        idle_timeout_s: the same.
    """

    receive_timeout_s: float
    idle_timeout_s: float

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Waits for the first request."""
        super().connection_made(transport)
        # asyncio does it only for sockets that name their protocol; else a reply waits 40 ms for an acknowledgement.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head_bytes = 0
        self._overdue: asyncio.TimerHandle | None = self._abort_later()
        self._unread: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        """Reads a part of a request."""
        if self._overdue is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES + len(data):
                self.send_400_response(f"the head of a request has at most {MAX_HEAD_BYTES} bytes")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        if self._overdue is None:
            self._head_bytes = 0
            self._overdue = self._abort_later()

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._forget()
        super().on_headers_complete()

    def pause_writing(self) -> None:
        """The caller reads more slowly than is sent."""
        super().pause_writing()
        self._watch_reader(left=self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """The caller has read most of it."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._forget()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def _watch_reader(self, left: int) -> None:
        """Ends the connection if there are still ``left`` bytes to read when the time is over."""

        def look() -> None:
            now = self.transport.get_write_buffer_size()
            if now >= left:
                self.transport.abort()
            else:
                self._watch_reader(now)

        self._unread = self.loop.call_later(self.idle_timeout_s, look)

    def _abort_later(self) -> asyncio.TimerHandle:
        return self.loop.call_later(self.receive_timeout_s, self.transport.abort)

    def _forget(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
