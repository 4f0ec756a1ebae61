"""How a client and a server come to trust each other: TLS, and a bearer token that travels inside of it alone."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import grpc

from cutaway.errors import Reason, error

Pem: TypeAlias = "str | Path | bytes | None"
"""A file's path, or what would be in it."""

Metadata: TypeAlias = tuple[tuple[str, str], ...]

AUTHORIZATION = "authorization"
"""The metadata key under which a token travels, as ``Bearer TOKEN``."""


@dataclass(frozen=True)
class Tls:
    """What a client trusts, and what it shows of itself; each is the path of a PEM file, or its bytes.

    Args:
        ca: the certificates that the server's is to be signed by; None for those of the system.
        certificate: the client's own, for servers that ask for one.
        key: the private key of ``certificate``.
    """

    ca: Pem = None
    certificate: Pem = None
    key: Pem = field(default=None, repr=False)


@dataclass(frozen=True)
class Trust:
    """What a client needs to reach a server.

    Attributes:
        credentials: for an encrypted connection; None for a plaintext one.
        metadata: sent with every call.
        options: of the channel.
    """

    credentials: grpc.ChannelCredentials | None
    metadata: Metadata
    options: tuple[tuple[str, int], ...]


def trust(where: str, token: str | None, tls: bool | Tls) -> Trust:
    """How to call ``where`` with ``token``.

    Args:
        where: ``host:port``.
        token: the token that says who calls; None for none.
        tls: True trusts whom the system trusts; False is plaintext.

    Raises:
        InvalidArgument: ``TOKEN_EXPOSED``, where others could read the token on its way; ``INVALID_VALUE``.
    """
    credentials = _credentials(Tls() if tls is True else tls) if tls else None
    if token is None:
        return Trust(credentials, (), ())
    if not re.fullmatch(r"[A-Za-z0-9._~+/-]+=*", token):
        raise error(Reason.INVALID_VALUE, "a token is letters, digits and ._~+/-=, without spaces or newlines", "token")
    if credentials is None and not is_loopback(where):
        raise error(Reason.TOKEN_EXPOSED, "a token goes to another machine inside TLS only: set tls", "token")
    # A proxy that the environment names would read what goes to this very machine in plaintext.
    options = (("grpc.enable_http_proxy", 0),) if credentials is None else ()
    return Trust(credentials, bearer(token), options)


def bearer(token: str) -> Metadata:
    """What a call with ``token`` carries."""
    return ((AUTHORIZATION, f"Bearer {token}"),)


def is_loopback(where: str) -> bool:
    """Whether what is sent to ``where``, a ``host:port`` or ``unix:`` path, stays on this machine. No name but
    ``localhost`` is looked up."""
    if where.startswith("unix:"):
        return True
    host = where.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    if (tls.certificate is None) != (tls.key is None):
        raise error(Reason.INVALID_VALUE, "a certificate and its key go together", "tls")
    return grpc.ssl_channel_credentials(_pem(tls.ca), _pem(tls.key), _pem(tls.certificate))


def _pem(given: Pem) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    try:
        return Path(given).read_bytes()
    except OSError as failure:
        raise error(Reason.INVALID_VALUE, f"{given} cannot be read: {failure.strerror}", "tls") from None
