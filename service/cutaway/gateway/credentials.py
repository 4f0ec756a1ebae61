"""TLS of the front door: its certificate, and whose certificates it asks callers for."""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc

from cutaway.errors import CutawayError, Reason, error
from cutaway.settings import Settings
from cutaway.trust import is_loopback


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
    _refuse_unusable(certificate, key, callers)
    return grpc.ssl_server_credentials(
        [(key.read_bytes(), certificate.read_bytes())],
        root_certificates=callers.read_bytes() if callers else None,
        require_client_auth=callers is not None,
    )


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
