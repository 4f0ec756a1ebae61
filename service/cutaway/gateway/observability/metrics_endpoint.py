"""The HTTP endpoint that Prometheus reads: of the gateway, and of a batch job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server

from cutaway.errors import Reason, error


@contextmanager
def metrics_endpoint(registry: CollectorRegistry, address: str) -> Iterator[str]:
    """Serves the metrics of ``registry`` over HTTP while the block runs.

    Args:
        registry: the metrics.
        address: ``HOST:PORT`` or ``:PORT``, which is loopback; port 0 picks a free port.

    Yields:
        ``HOST:PORT``, with the port that was picked.

    Raises:
        CutawayError: ``INVALID_VALUE`` if the address is malformed, ``BACKEND_UNAVAILABLE`` if it is in use.
    """
    host, _, port = address.rpartition(":")
    if not (port.isdecimal() and int(port) < 1 << 16):
        raise error(Reason.INVALID_VALUE, f"{address!r} is no HOST:PORT", "metrics_address")
    try:
        server, thread = start_http_server(int(port), host.strip("[]") or "127.0.0.1", registry)
    except OSError as failure:
        what = f"cannot serve metrics at {address}: {failure}"
        raise error(Reason.BACKEND_UNAVAILABLE, what, "metrics_address") from None
    try:
        yield f"{host or '127.0.0.1'}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
