"""One caller of large replies over three transports; each ends with one complete numpy array."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import grpc.aio
import numpy as np

import cutaway as ca
from bench.peers.stream import METHOD
from bench.pipe import answer, seconds
from bench.requests import wall
from cutaway.contract.torchserve_messages import PREDICTIONS, decode_reply, encode_call

_OPTIONS = (("grpc.max_receive_message_length", -1),)


def ours(address: str, size: int) -> Any:
    """Receives a capture through gateway and TorchServe."""
    client = ca.Client(address, timeout=300)
    model, inputs, options = wall(size >> 20, stream=True)

    def run() -> None:
        found = client.inspect(model, inputs, **options).captures["wall"].output
        if found.nbytes != size:
            raise RuntimeError(f"{found.nbytes} bytes of {size}")

    return run


def stream(address: str, size: int) -> Any:
    """Receives a bare gRPC stream in chunks."""

    async def take() -> None:
        async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
            whole, end = np.empty(size, np.uint8), 0
            call: Any = channel.unary_stream(METHOD)
            async for piece in call(str(size).encode()):
                whole[end : end + len(piece)] = np.frombuffer(piece, np.uint8)
                end += len(piece)
        if end != size:
            raise RuntimeError(f"{end} bytes of {size}")

    return lambda: asyncio.run(take())


def unary(address: str, size: int) -> Any:
    """Receives one unary reply of TorchServe."""
    channel = grpc.insecure_channel(address, options=_OPTIONS)
    call: Any = channel.unary_unary(PREDICTIONS)
    request = encode_call("peer", "", {"inspect": b""})

    def run() -> None:
        found = np.frombuffer(decode_reply(call(request, timeout=300)), np.uint8)
        if found.nbytes != size:
            raise RuntimeError(f"{found.nbytes} bytes of {size}")

    return run


def main(way: str, address: str, size: int) -> None:
    run = {"ours": ours, "stream": stream, "unary": unary}[way](address, size)
    answer(lambda what: seconds(run, what["count"]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
