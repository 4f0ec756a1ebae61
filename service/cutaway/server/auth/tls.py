"""TLS of the gateway: its certificate, and the authorities for client certificates.

The files are read again after they change: certificates expire more often than servers are started.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from cutaway.client.trust import is_loopback
from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.server.file_watch import ReloadedFiles
from cutaway.server.settings import Settings


class _Files(NamedTuple):
    """The TLS files of the gateway."""

    certificate: Path
    key: Path
    client_ca: Path | None

    def context(self) -> ssl.SSLContext:
        """Returns a context with these files.

        Raises:
            InvalidArgument: ``INVALID_VALUE``, with the environment variable; gRPC's own error says only that it cannot
                bind.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")  # never prompts for a password
        except (OSError, ValueError) as failure:  # ssl.SSLError is an OSError
            raise _unusable(f"{self.certificate}, {self.key}", failure, "CUTAWAY_TLS_CERTIFICATE") from None
        if self.client_ca:
            try:
                context.load_verify_locations(self.client_ca)
            except OSError as failure:
                raise _unusable(str(self.client_ca), failure, "CUTAWAY_TLS_CLIENT_CA") from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _files(settings: Settings) -> _Files | None:
    """Returns the TLS files; None for plaintext."""
    certificate, key, client_ca = settings.tls_certificate, settings.tls_key, settings.tls_client_ca
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        missing = "CUTAWAY_TLS_CERTIFICATE" if certificate is None else "CUTAWAY_TLS_KEY"
        raise error(Reason.INVALID_VALUE, "TLS needs a certificate and its key", missing)
    return _Files(certificate, key, client_ca)


def server_credentials(settings: Settings) -> grpc.ServerCredentials | None:
    """Returns the gateway's TLS credentials; None for plaintext.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, with the environment variable.
    """
    if (files := _files(settings)) is None:
        return None

    def read() -> grpc.ServerCertificateConfiguration:
        files.context()  # checks the files
        return grpc.ssl_server_certificate_configuration(
            [(files.key.read_bytes(), files.certificate.read_bytes())],
            root_certificates=files.client_ca.read_bytes() if files.client_ca else None,
        )

    reloaded = ReloadedFiles("the TLS files", [path for path in files if path], read)
    # gRPC calls this for every new connection; None means unchanged, which the stubs do not know.
    changed: Any = lambda: reloaded.value if reloaded.refresh() else None  # noqa: E731
    return grpc.dynamic_ssl_server_credentials(reloaded.value, changed, files.client_ca is not None)


def ssl_context(settings: Settings) -> ssl.SSLContext | None:
    """Returns the TLS context of the HTTP server; None for plaintext.

    The certificate is read again after it changes; the authority of client certificates is not.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, with the environment variable.
    """
    if (files := _files(settings)) is None:
        return None
    reloaded = ReloadedFiles("the TLS files", [files.certificate, files.key], files.context)

    def renew(connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        reloaded.refresh()
        connection.context = reloaded.value

    context = files.context()
    context.sni_callback = renew  # for every connection
    return context


def _unusable(files: str, failure: Exception, variable: str) -> CutawayError:
    return error(Reason.INVALID_VALUE, f"{files}: {getattr(failure, 'strerror', None) or failure}", variable)


def exposure_warning(settings: Settings, *addresses: str) -> str:
    """Returns a warning for the operator if any of ``addresses`` is reachable from other machines without tokens or
    without TLS; empty otherwise. An empty address is not served."""
    if all(not address or is_loopback(address) for address in addresses):
        return ""
    gaps = []
    if settings.tokens is None and settings.tls_client_ca is None:
        gaps.append("without tokens: every caller may do everything (set CUTAWAY_TOKENS)")
    if settings.tls_certificate is None:
        gaps.append("without TLS: others can read the traffic (set CUTAWAY_TLS_CERTIFICATE and CUTAWAY_TLS_KEY)")
    return f"listening beyond this machine {', and '.join(gaps)}" if gaps else ""


def check_http_exposure(settings: Settings) -> None:
    """Raises ``INVALID_VALUE`` if HTTP is open to callers from other machines without tokens.

    Any page in a browser could then call. Operators who want this set ``CUTAWAY_HTTP_ANONYMOUS``.
    """
    known = settings.tokens is not None or settings.tls_client_ca is not None or settings.http_anonymous
    if settings.http_address and not (known or is_loopback(settings.http_address)):
        what = "HTTP beyond this machine needs tokens: set CUTAWAY_TOKENS, or CUTAWAY_HTTP_ANONYMOUS=true to do without"
        raise error(Reason.INVALID_VALUE, what, "CUTAWAY_HTTP_ADDRESS")
