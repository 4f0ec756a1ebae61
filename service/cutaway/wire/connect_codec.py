"""Messages of Connect as bytes: they are parsed and serialised elsewhere, by the same code as those of gRPC."""

from __future__ import annotations

from typing import Any


class BytesCodec:
    """A codec of connectrpc that takes messages as they are.

    Args:
        name: ``proto`` or ``json``.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def name(self) -> str:
        """Returns the codec's name, which is the end of the content type."""
        return self._name

    def encode(self, message: bytes) -> bytes:
        """Returns the message."""
        return message

    def decode(self, data: bytes | bytearray, message_class: Any) -> bytes:
        """Returns the message."""
        return bytes(data)
