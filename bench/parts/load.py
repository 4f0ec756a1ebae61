"""Load generator: many callers in one process. Requests are serialized beforehand and replies are not decoded, on both
sides of a ratio, so the server is measured and not the caller. An error reply stops the measurement."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc.aio

from bench.pipe import answer

Ask: TypeAlias = Callable[[bytes], Awaitable[bytes]]


def main() -> None:
    loop = asyncio.new_event_loop()
    answer(lambda what: loop.run_until_complete(_answered(**what)))


async def _answered(
    kind: str,
    address: str,
    path: str,
    payloads: list[str],
    callers: int,
    seconds: float,
    each: int = 0,
    pause: float = 0.0,
) -> dict[str, Any]:
    """Runs ``callers`` for ``seconds``, or for ``each`` calls, ``pause`` seconds apart; caller n sends payload n,
    n + ``callers``, and so on."""
    requests = [base64.b64decode(payload) for payload in payloads]
    latencies: list[float] = []
    sizes: set[int] = set()
    until = time.perf_counter() + seconds
    opened = [await {"grpc": _grpc, "http": _http}[kind](address, path) for _ in range(callers)]

    async def caller(number: int, ask: Ask) -> None:
        turn = number
        while not each or turn < number + each * callers:
            start = time.perf_counter()
            reply = await ask(requests[turn % len(requests)])
            end = time.perf_counter()
            if end > until and not each:
                return
            latencies.append(end - start)
            sizes.add(len(reply))
            turn += callers
            if pause:
                await asyncio.sleep(pause)

    began = time.perf_counter()
    await asyncio.gather(*(caller(number, ask) for number, (ask, _) in enumerate(opened)))
    seconds = time.perf_counter() - began if each else seconds
    for _, close in opened:
        await close()
    return {"rate": len(latencies) / seconds, "latencies": latencies, "bytes": max(sizes, default=0)}


Opened: TypeAlias = tuple[Ask, Callable[[], Awaitable[None]]]


async def _grpc(address: str, path: str) -> Opened:
    channel = grpc.aio.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])
    call: Any = channel.unary_unary(path)
    await channel.channel_ready()

    async def ask(request: bytes) -> bytes:
        reply: bytes = await call(request)
        return reply

    return ask, channel.close


async def _http(address: str, path: str) -> Opened:
    """Returns a caller over HTTP/1.1 with keep-alive; ``path`` is the content type, a space, the URL path, and
    then more headers, each after a space."""
    content, where, *further = path.split(" ")
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))

    async def ask(request: bytes) -> bytes:
        head = f"POST {where} HTTP/1.1\r\nHost: {address}\r\nContent-Type: {content}\r\nContent-Length: {len(request)}"
        writer.write("\r\n".join([head, *further, "", ""]).encode() + request)
        status, *fields = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        lengths = [field.partition(":")[2] for field in fields if field.lower().startswith("content-length:")]
        body = await reader.readexactly(int(lengths[0])) if lengths else await _chunked(reader)
        if " 200 " not in f"{status} ":
            raise RuntimeError(f"{status}: {body[:200]!r}")
        return body

    async def close() -> None:
        writer.close()

    return ask, close


async def _chunked(reader: asyncio.StreamReader) -> bytes:
    """Returns a body that comes in chunks, each with its length before it, in hexadecimal."""
    parts = []
    while size := int(await reader.readline(), 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return b"".join(parts)


if __name__ == "__main__":
    main()
