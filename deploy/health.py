#!/opt/cutaway/bin/python
"""Exits with status 0 if the gateway in this container reports that it serves, else with 1 and one line that says why.

Asks the standard gRPC health service at ``CUTAWAY_ADDRESS``, over TLS where ``CUTAWAY_TLS_CERTIFICATE`` is set. With
``CUTAWAY_TLS_CLIENT_CA`` it shows the server's own certificate, so that authority must have signed it for clients too.
It imports nothing of Cutaway: it is run every few seconds, and torch takes longer than that to load.
"""

from __future__ import annotations

import os
import socket
import ssl
import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_S = 4.0


def main() -> int:
    """Ask once; the exit status."""
    host, _, port = os.environ.get("CUTAWAY_ADDRESS", "127.0.0.1:50051").rpartition(":")
    address = f"{_reachable(host)}:{port}"
    try:
        with _channel(address) as channel:
            asked = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
    except grpc.RpcError as failure:
        return _unhealthy(address, f"{failure.code().name}: {failure.details()}")
    except OSError as failure:  # no connection, no certificate
        return _unhealthy(address, str(failure))
    if asked.status != health_pb2.HealthCheckResponse.SERVING:
        return _unhealthy(address, health_pb2.HealthCheckResponse.ServingStatus.Name(asked.status))
    return 0


def _reachable(host: str) -> str:
    """Where to call what listens on every address."""
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "[::]": "[::1]"}.get(host, host)


def _unhealthy(address: str, why: str) -> int:
    print(f"not healthy: {address}: {why}", file=sys.stderr)
    return 1


def _channel(address: str) -> grpc.Channel:
    certificate = os.environ.get("CUTAWAY_TLS_CERTIFICATE")
    if not certificate:
        return grpc.insecure_channel(address)
    trusted = Path(certificate).read_bytes()
    pair: tuple[bytes, bytes] | tuple[()] = ()
    if os.environ.get("CUTAWAY_TLS_CLIENT_CA"):
        pair = (Path(os.environ["CUTAWAY_TLS_KEY"]).read_bytes(), trusted)
    # The certificate is for the name that clients know; here we trust this one certificate, and use its own name.
    options = [("grpc.ssl_target_name_override", _name(address, certificate))]
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(trusted, *pair), options)


def _name(address: str, certificate: str) -> str:
    """The first name that the server's certificate is for."""
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it need not have signed itself
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S) as plain,
        context.wrap_socket(plain) as wrapped,
    ):
        found = wrapped.getpeercert() or {}
    names: list[str] = [str(value) for _, value in found.get("subjectAltName", ())]  # type: ignore[misc]
    return names[0] if names else host


if __name__ == "__main__":
    raise SystemExit(main())
