"""The tunnel between gateway and replica: Unix sockets at both ends, TLS between them.

The frames pass unchanged.
"""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from cutaway.server.worker_protocol import ScratchDirectory

# The keeper and the replicas of one run trust each other's certificates, and no others.

_CLOCKS_DIFFER = datetime.timedelta(days=1)
_LIFE = datetime.timedelta(days=3650)
"""The lifetime of a certificate, longer than any run: its key ends with the processes of the run."""


class Identity(NamedTuple):
    """A private key and its certificate, in PEM format."""

    key: bytes
    certificate: bytes


def new_identity() -> Identity:
    """Returns a new key with a certificate that it signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "cutaway")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + _LIFE)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    unencrypted = serialization.NoEncryption()
    return Identity(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, unencrypted), certificate.public_bytes(pem)
    )


def _context(own: Identity, trusted: bytes, protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the other side must have one certificate: its host name says no more
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=trusted.decode())
    with ScratchDirectory() as directory:  # Python reads keys from files only
        path = Path(directory) / "identity.pem"
        path.write_bytes(own.key + own.certificate)
        context.load_cert_chain(path)
    return context


READ_BYTES = 1 << 20

_HANDSHAKE_S = 10.0
_SILENT_S = 5
_PROBES = 5
_LOST_MS = 10_000


class Address(NamedTuple):
    """The host and the port at which a process listens."""

    host: str
    port: int


class Connection(NamedTuple):
    """The two directions of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


Accept: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class MutualTls:
    """One side of the tunnels: its TLS in both directions, which trusts the other side's certificate only.

    Args:
        own: the key and the certificate of this side.
        trusted: the certificate of the other.

    Attributes:
        accepting: for connections from the other side.
        calling: for connections to it.
    """

    def __init__(self, own: Identity, trusted: bytes) -> None:
        self.accepting = _context(own, trusted, ssl.PROTOCOL_TLS_SERVER)
        self.calling = _context(own, trusted, ssl.PROTOCOL_TLS_CLIENT)

    async def listen(self, host: str, accept: Accept) -> Address:
        """Begins to listen on a free port of ``host``; returns the address."""
        server = await asyncio.start_server(
            accept, host, 0, ssl=self.accepting, limit=READ_BYTES, ssl_handshake_timeout=_HANDSHAKE_S
        )
        return Address(*server.sockets[0].getsockname()[:2])

    async def connect(self, address: Address) -> Connection:
        """Returns a connection to the other side, which listens at ``address``."""
        return Connection(
            *await asyncio.open_connection(
                *address, ssl=self.calling, limit=READ_BYTES, ssl_handshake_timeout=_HANDSHAKE_S
            )
        )


async def join(one: Connection, other: Connection) -> None:
    """Passes bytes between two connections in both directions, until either ends; then closes both."""
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
