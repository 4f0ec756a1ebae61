"""Finds out whether a server that closed a plaintext connection speaks TLS."""

from __future__ import annotations

import socket
import ssl

_TIMEOUT_S = 2.0


def speaks_tls(target: str) -> bool:
    """Whether the server at ``target``, a ``host:port``, answers a TLS handshake; sends it nothing else.

    Its certificate is not verified: nothing that it sends is used.
    """
    host, _, port = target.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        address = (host.removeprefix("[").removesuffix("]"), int(port))
        with socket.create_connection(address, _TIMEOUT_S) as plain, context.wrap_socket(plain, server_hostname=host):
            return True
    except (OSError, ValueError):  # unreachable, or the answer is no TLS; an address in another form
        return False
