"""A gRPC server that replies what a test wants, in place of the inspection service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from cutaway.client.transport import SERVICE


@contextmanager
def serving_methods(methods: Mapping[str, Any]) -> Iterator[str]:
    """Serves ``methods`` of the service, by name, while the block runs; yields ``host:port``."""
    server = grpc.server(ThreadPoolExecutor(2), [grpc.method_handlers_generic_handler(SERVICE, dict(methods))])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()
