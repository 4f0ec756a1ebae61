"""A bare grpc.aio server that streams a buffer of the requested size in chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from bench.pipe import announce

PIECE = 1 << 20
METHOD = "/bench.Stream/Bytes"


async def serve() -> None:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    kept: dict[int, memoryview] = {}

    async def stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
        size = int(request)
        data = kept.setdefault(size, memoryview(bytes(size)))
        for begin in range(0, size, PIECE):
            yield bytes(data[begin : begin + PIECE])

    handler: Any = grpc.unary_stream_rpc_method_handler(stream)
    service, method = METHOD.removeprefix("/").split("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    announce(f"127.0.0.1:{port}")
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve())
