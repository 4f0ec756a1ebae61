"""Credentials of a client: TLS, and a bearer token, which is sent to another machine only inside TLS."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from cutaway.contract.errors import Reason, error

Pem: TypeAlias = "str | Path | bytes | None"
"""The path of a file, or its content."""

Metadata: TypeAlias = tuple[tuple[str, str], ...]

AUTHORIZATION = "authorization"
"""The metadata key of a token, whose value is ``Bearer TOKEN``."""


@dataclass(frozen=True)
class Tls:
    """The certificates of a client, as paths of PEM files or as their bytes.

    Args:
        ca: the certificate authorities to trust; None for those of the system.
        certificate: the client's own, for servers that require one.
        key: the private key of ``certificate``.
    """

    ca: Pem = None
    certificate: Pem = None
    key: Pem = field(default=None, repr=False)


@dataclass(frozen=True)
class Trust:
    """The credentials and options of a connection to a server.

    Attributes:
        credentials: for an encrypted connection; None for a plaintext one.
        metadata: sent with every call.
    """

    credentials: grpc.ChannelCredentials | None
    metadata: Metadata

    def channel(self, library: Any, target: str, options: Sequence[tuple[str, Any]]) -> Any:
        """Returns a channel to ``target``; ``library`` is `grpc`, or `grpc.aio` for asyncio."""
        if self.credentials is None:
            return library.insecure_channel(target, options)
        return library.secure_channel(target, self.credentials, options)


def make_trust(target: str, token: str | None, tls: bool | Tls) -> Trust:
    """Returns the credentials and metadata for calls of ``target``.

    Args:
        target: ``host:port``.
        token: of the caller; None for none.
        tls: True trusts the certificates that the system trusts; False is plaintext.

    Raises:
        InvalidArgument: ``TOKEN_EXPOSED``, if the token would be sent in plaintext; ``INVALID_VALUE``.
    """
    credentials = _credentials(Tls() if tls is True else tls) if tls else None
    if token is None:
        return Trust(credentials, ())
    if not re.fullmatch(r"[A-Za-z0-9._~+/-]+=*", token):
        raise error(Reason.INVALID_VALUE, "a token is letters, digits and ._~+/-=, without spaces or newlines", "token")
    if credentials is None and not is_loopback(target):
        raise error(Reason.TOKEN_EXPOSED, "a token is sent to another machine only inside TLS: set tls", "token")
    return Trust(credentials, bearer(token))


def bearer(token: str) -> Metadata:
    """Returns the metadata of a call with ``token``."""
    return ((AUTHORIZATION, f"Bearer {token}"),)


def is_loopback(target: str) -> bool:
    """Returns whether ``target`` is on this machine.

    It is a ``host:port``, a ``unix:`` path, or a list of addresses after ``ipv4:`` or ``ipv6:``. ``localhost`` is the
    only host name that counts as this machine.
    """
    if target.startswith("unix:"):
        return True
    if target.startswith(("ipv4:", "ipv6:")):
        return all(re.match(r"[\[\d]", address) and is_loopback(address) for address in target[5:].split(","))
    host = target.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    if (tls.certificate is None) != (tls.key is None):
        raise error(Reason.INVALID_VALUE, "set both, the certificate and its key, or none", "tls")
    return grpc.ssl_channel_credentials(content_of(tls.ca), content_of(tls.key), content_of(tls.certificate))


def content_of(source: Pem) -> bytes | None:
    """Returns the content of a PEM file."""
    if source is None or isinstance(source, bytes):
        return source
    try:
        return Path(source).read_bytes()
    except OSError as failure:
        raise error(Reason.INVALID_VALUE, f"{source} cannot be read: {failure.strerror}", "tls") from None
