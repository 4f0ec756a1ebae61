"""One caller of large replies, on three ways; each ends with the bytes as one numpy array that is whole."""

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
from bench.questions import wall
from cutaway.routes import TORCHSERVE_PREDICTIONS, prediction, predictions

_OPTIONS = (("grpc.max_receive_message_length", -1),)


def ours(address: str, size: int) -> Any:
    """A capture, through front door and TorchServe."""
    client = ca.Client(address, timeout=300)
    model, inputs, options = wall(size >> 20, stream=True)

    def run() -> None:
        found = client.inspect(model, inputs, **options).captures["wall"].output
        if found.nbytes != size:
            raise RuntimeError(f"{found.nbytes} bytes of {size}")

    return run


def stream(address: str, size: int) -> Any:
    """A bare stream in pieces."""

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
    """One reply of TorchServe."""
    channel = grpc.insecure_channel(address, options=_OPTIONS)
    call: Any = channel.unary_unary(TORCHSERVE_PREDICTIONS)
    request = predictions("peer", "", {"inspect": b""})

    def run() -> None:
        found = np.frombuffer(prediction(call(request, timeout=300)), np.uint8)
        if found.nbytes != size:
            raise RuntimeError(f"{found.nbytes} bytes of {size}")

    return run


def main(way: str, address: str, size: int) -> None:
    run = {"ours": ours, "stream": stream, "unary": unary}[way](address, size)
    answer(lambda what: seconds(run, what["count"]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
