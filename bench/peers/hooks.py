"""Hand-written hooks: captures and the input gradient of one call. Imports only torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy.typing as npt
import torch
from torch import Tensor, nn

Array: TypeAlias = npt.NDArray[Any]


def by_hand(
    network: nn.Module, given: Tensor, layers: Sequence[str], score: Callable[[Tensor], Tensor]
) -> dict[str, Array]:
    """Returns the outputs of ``layers`` by name, ``output``, and ``gradient``: that of the logits' ``score``."""
    seen: dict[str, Array] = {}

    def keep(name: str) -> Any:
        return lambda module, args, output: seen.update({name: _numpy(output)})

    hooks = [network.get_submodule(name).register_forward_hook(keep(name)) for name in layers]
    try:
        given = given.detach().requires_grad_()
        logits = network(given)
        (gradient,) = torch.autograd.grad(score(logits).sum(), given)
    finally:
        for hook in hooks:
            hook.remove()
    return {**seen, "output": _numpy(logits), "gradient": _numpy(gradient)}


def _numpy(tensor: Tensor) -> Array:
    array: Array = tensor.detach().cpu().numpy()
    return array
