"""A service written by hand for the digits network: grpc.aio in one process, hooks, Captum, float32 bytes in and out.

The model runs in the event loop: calls run one after another without a lock, and up to twice as fast as in a thread
beside the loop. Layers, class and number of steps are fixed. Nothing is batched, validated or checked.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import torch
from captum.attr import IntegratedGradients
from torch import Tensor

from bench.nets import digits
from bench.peers.hooks import Array, by_hand
from bench.pipe import announce

LAYERS = ("conv1", "conv2", "fc1")
STEPS = 64
SERVICE = "bench.ByHand"
INSPECT, EXPLAIN = f"/{SERVICE}/Inspect", f"/{SERVICE}/Explain"


class Digits:
    """Answers requests of float32 images [batch, 1, 8, 8] as raw bytes."""

    def __init__(self, directory: Path) -> None:
        self._network = digits(directory)
        self._method = IntegratedGradients(self._network)

    def inspect(self, request: bytes) -> bytes:
        """Returns the outputs of `LAYERS`, the logits, and the gradient of the predicted class."""
        return encode(by_hand(self._network, _images(request), LAYERS, lambda logits: logits.max(1).values).values())

    def explain(self, request: bytes) -> bytes:
        """Returns the logits and the integrated gradients of class 0 from zero."""
        images = _images(request)
        with torch.no_grad():
            logits = self._network(images)
        attribution = self._method.attribute(images, target=0, n_steps=STEPS)
        return encode((logits.numpy(), attribution.detach().numpy()))


def _images(request: bytes) -> Tensor:
    return torch.frombuffer(bytearray(request), dtype=torch.float32).view(-1, 1, 8, 8)


def encode(tensors: Iterable[Array]) -> bytes:
    """Encodes float32 tensors: their number and each one's number of elements as uint32, then their elements."""
    arrays = list(tensors)
    sizes = struct.pack(f"<{len(arrays) + 1}I", len(arrays), *(array.size for array in arrays))
    return b"".join((sizes, *(array.tobytes() for array in arrays)))


def decode(reply: bytes) -> list[Array]:
    """Returns the tensors of a reply, each flat."""
    (count,) = struct.unpack_from("<I", reply)
    sizes = struct.unpack_from(f"<{count}I", reply, 4)
    return np.split(np.frombuffer(reply, np.float32, offset=4 * (count + 1)), np.cumsum(sizes)[:-1])


async def serve(model: Digits) -> None:
    def method(run: Callable[[bytes], bytes]) -> Any:
        async def answer(request: bytes, context: Any) -> bytes:
            return run(request)

        return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    methods = {"Inspect": method(model.inspect), "Explain": method(model.explain)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    announce(f"127.0.0.1:{port}")
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(Digits(Path(sys.argv[1]))))
