"""The networks of `bench.real` by hand: hooks and Captum in process, and a service of them over grpc.aio.

As in `bench.peers.by_hand_service`, the model runs in the event loop, and nothing is batched, validated or checked.

Usage: ``python -m bench.peers.real_service NETWORK`` serves; with a second argument, it answers in process.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from typing import Any

import grpc.aio
import torch
from captum.attr import IntegratedGradients, LayerGradCam, LayerGradientXActivation, LayerIntegratedGradients, Occlusion
from torch import Tensor

from bench.peers.by_hand_service import encode
from bench.peers.hooks import Array
from bench.pipe import announce, answer, seconds
from bench.real import MODELS

STEPS = 32
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SERVICE = "bench.Real"


class ByHand:
    """Answers questions about one network, each as arrays."""

    def __init__(self, network: str) -> None:
        self._of = MODELS[network]
        self._network = self._of.build().to(DEVICE)

    def predict(self, inputs: dict[str, Tensor]) -> list[Array]:
        """Returns the output."""
        with torch.no_grad():
            return [self._network(**inputs).cpu().numpy()]

    def inside(self, inputs: dict[str, Tensor]) -> list[Array]:
        """Returns the outputs of five layers, the output, and a gradient."""
        seen: dict[str, Tensor] = {}
        kept: dict[str, Array] = {}

        def keep(name: str) -> Any:
            def hook(module: Any, args: Any, output: Any) -> None:
                seen[name] = output = output if isinstance(output, Tensor) else output[0]
                kept[name] = output.detach().cpu().numpy().copy()

            return hook

        watched = (*self._of.layers, *([self._of.embedding] if self._of.embedding else []))
        hooks = [self._network.get_submodule(name).register_forward_hook(keep(name)) for name in watched]
        first = self._of.explained
        if not self._of.embedding:
            inputs = {**inputs, first: inputs[first].detach().requires_grad_()}
        try:
            output = self._network(**inputs)
            at = seen[self._of.embedding] if self._of.embedding else inputs[first]
            index = (slice(None), *self._of.target)
            (gradient,) = torch.autograd.grad(output[index].sum(), at)
        finally:
            for hook in hooks:
                hook.remove()
        return [*(kept[name] for name in self._of.layers), output.detach().cpu().numpy(), gradient.cpu().numpy()]

    def ig(self, inputs: dict[str, Tensor]) -> list[Array]:
        """Returns the output and integrated gradients from zero."""
        first, further = self._split(inputs)
        method: Any = IntegratedGradients(self._network)
        if self._of.embedding:
            method = LayerIntegratedGradients(self._network, self._network.get_submodule(self._of.embedding))
        found = method.attribute(first, baselines=0, target=self._target, n_steps=STEPS, **further)
        return [*self.predict(inputs), found.detach().cpu().numpy()]

    ig_checked = ig

    def occlusion(self, inputs: dict[str, Tensor]) -> list[Array]:
        """Returns the output and the occlusion by zeros."""
        first, further = self._split(inputs)
        found = Occlusion(self._network).attribute(
            first, sliding_window_shapes=self._of.window, strides=self._of.window, target=self._target, **further
        )
        return [*self.predict(inputs), found.cpu().numpy()]

    def cam(self, inputs: dict[str, Tensor]) -> list[Array]:
        """Returns the output and Grad-CAM, or gradient times activation."""
        first, further = self._split(inputs)
        method = LayerGradientXActivation if self._of.cam_is_product else LayerGradCam
        found: Any = method(self._network, self._network.get_submodule(self._of.cam)).attribute(
            first, target=self._target, **further
        )
        return [*self.predict(inputs), found.detach().cpu().numpy()]

    def rows(self, request: bytes) -> dict[str, Tensor]:
        """Returns the inputs whose bytes were joined."""
        found, start = {}, 0
        for name, (most, shape) in self._of.inputs.items():
            kind = torch.int64 if most else torch.float32
            count = torch.Size(shape).numel()
            found[name] = torch.frombuffer(bytearray(request), dtype=kind, count=count, offset=start).view(1, *shape)
            start += count * kind.itemsize
        return on_device(found)

    @property
    def _target(self) -> Any:
        return self._of.target if len(self._of.target) > 1 else self._of.target[0]

    def _split(self, inputs: dict[str, Tensor]) -> tuple[Tensor, dict[str, Any]]:
        first, *others = inputs.values()
        return first, {"additional_forward_args": tuple(others)} if others else {}


def on_device(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns inputs where the network is."""
    return {name: tensor.to(DEVICE) for name, tensor in inputs.items()}


def methods(by_hand: ByHand) -> Iterator[tuple[str, Callable[[dict[str, Tensor]], list[Array]]]]:
    """Yields the answers to all questions, by name."""
    for name in ("predict", "inside", "ig", "ig_checked", "occlusion", "cam"):
        yield name, getattr(by_hand, name)


async def serve(by_hand: ByHand) -> None:
    """Serves every question as a method that takes the joined bytes of the inputs."""

    def method(run: Callable[[dict[str, Tensor]], list[Array]]) -> Any:
        async def call(request: bytes, context: Any) -> bytes:
            return encode(run(by_hand.rows(request)))

        return grpc.unary_unary_rpc_method_handler(call)

    # by default, gRPC cancels what waits for more than 30 s; eight explanations of a ResNet-50 take longer
    patient = ("grpc.server_max_unrequested_time_in_server", 3600)
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0), patient])
    handlers = {name: method(run) for name, run in methods(by_hand)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    announce(f"127.0.0.1:{port}")
    await server.wait_for_termination()


def main(network: str, *in_process: str) -> None:
    """Serves, or answers with the seconds of as many runs as asked."""
    by_hand = ByHand(network)
    if not in_process:
        asyncio.run(serve(by_hand))
    inputs, runs = on_device(MODELS[network].rows(0)), dict(methods(by_hand))
    answer(lambda what: seconds(lambda: runs[what["question"]](inputs), what["count"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
