"""Hand-written hooks in process for three captures and the input gradient: the peer of row *overhead*."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from bench.pipe import answer, seconds
from bench.requests import STAGES, resnet
from bench.served import ResNet50
from cutaway.schema.tensors import Array


def main(device: str) -> None:
    network = ResNet50().eval().to(device)
    _, inputs, _ = resnet()
    answer(lambda what: seconds(lambda: by_hand(network, inputs["pixel_values"], device), what["count"]))


def by_hand(network: nn.Module, pixels: Array, device: str) -> dict[str, Array]:
    """Returns captures by module name, ``output``, and ``gradient`` of the class 0 score at ``pixels``."""
    seen: dict[str, Array] = {}

    def keep(name: str) -> Any:
        return lambda module, args, output: seen.update({name: _numpy(output)})

    hooks = [network.get_submodule(name).register_forward_hook(keep(name)) for name in STAGES]
    try:
        given = torch.from_numpy(pixels).to(device).requires_grad_()
        logits = network(given)
        (gradient,) = torch.autograd.grad(logits[:, 0].sum(), given)
    finally:
        for hook in hooks:
            hook.remove()
    return {**seen, "output": _numpy(logits), "gradient": _numpy(gradient)}


def _numpy(tensor: Tensor) -> Array:
    array: Array = tensor.detach().cpu().numpy()
    return array


if __name__ == "__main__":
    main(sys.argv[1])
