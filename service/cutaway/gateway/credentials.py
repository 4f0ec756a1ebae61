"""TLS of the front door: its certificate, and whose certificates it asks callers for. Files that have changed are read
again: certificates run out more often than servers are started."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import grpc
import structlog

from cutaway.errors import CutawayError, Reason, error
from cutaway.gateway.looks import Look, look
from cutaway.settings import Settings
from cutaway.trust import is_loopback

log = structlog.get_logger(__name__)


def credentials(settings: Settings) -> grpc.ServerCredentials | None:
    """What the front door shows, and asks for; None where it speaks plaintext.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, with the variable at fault.
    """
    certificate, key, callers = settings.tls_certificate, settings.tls_key, settings.tls_client_ca
    if certificate is None and key is None and callers is None:
        return None
    if certificate is None or key is None:
        missing = "CUTAWAY_TLS_CERTIFICATE" if certificate is None else "CUTAWAY_TLS_KEY"
        raise error(Reason.INVALID_VALUE, "TLS needs a certificate and its key", missing)
    files = _Files(certificate, key, callers)
    renewed: Any = files.renewed  # the stubs do not know that None is no change
    return grpc.dynamic_ssl_server_credentials(files.read(), renewed, callers is not None)


class _Files:
    """PEM files, as they are now.

    Args:
        certificate: the front door's.
        key: its private key.
        callers: whose certificates callers must show one of; None for no need to.
    """

    def __init__(self, certificate: Path, key: Path, callers: Path | None) -> None:
        self._certificate = certificate
        self._key = key
        self._callers = callers
        self._seen = self._looks()

    def read(self) -> grpc.ServerCertificateConfiguration:
        """What is in them.

        Raises:
            InvalidArgument: ``INVALID_VALUE``: it cannot be used.
        """
        _refuse_unusable(self._certificate, self._key, self._callers)
        return grpc.ssl_server_certificate_configuration(
            [(self._key.read_bytes(), self._certificate.read_bytes())],
            root_certificates=self._callers.read_bytes() if self._callers else None,
        )

    def renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """What is in them, if that is something else than before; gRPC asks with every new connection. While new files
        are broken, or only some of them are there yet, what was read before holds."""
        now = self._looks()
        if now == self._seen:
            return None
        self._seen = now
        try:
            found = self.read()
        except (CutawayError, OSError) as failure:
            log.error("the certificate's files are broken: those from before stay", why=str(failure))
            return None
        log.info("read the certificate again")
        return found

    def _looks(self) -> list[Look]:
        return [look(path) for path in (self._certificate, self._key, self._callers) if path]


def _refuse_unusable(certificate: Path, key: Path, callers: Path | None) -> None:
    """GRPC would only say that it cannot bind."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")  # nobody is there to type one
    except (OSError, ValueError) as failure:  # ssl.SSLError is an OSError
        raise _unusable(f"{certificate}, {key}", failure, "CUTAWAY_TLS_CERTIFICATE") from None
    if callers:
        try:
            context.load_verify_locations(callers)
        except OSError as failure:
            raise _unusable(str(callers), failure, "CUTAWAY_TLS_CLIENT_CA") from None


def _unusable(what: str, failure: Exception, variable: str) -> CutawayError:
    return error(Reason.INVALID_VALUE, f"{what}: {getattr(failure, 'strerror', None) or failure}", variable)


def exposure(settings: Settings, address: str) -> str:
    """What an operator should know who listens at ``address``, in one line; empty where all is well."""
    if is_loopback(address):
        return ""
    gaps = []
    if settings.tokens is None and settings.tls_client_ca is None:
        gaps.append("without tokens: whoever reaches it may do everything (set CUTAWAY_TOKENS)")
    if settings.tls_certificate is None:
        gaps.append("without TLS: what passes can be read on its way (set CUTAWAY_TLS_CERTIFICATE and CUTAWAY_TLS_KEY)")
    return f"listening beyond this machine {', and '.join(gaps)}" if gaps else ""
