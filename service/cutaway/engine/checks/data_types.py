"""The data types in which a model computes: autocast and casts of its own show in its operators only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from cutaway.engine.passes.pass_recorder import AttributionProblem
from cutaway.engine.runtime.pytree import leaves


class _DataTypes(TorchFunctionMode):
    """Notes the floating data types of all results while the block runs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        results = (returned,) if isinstance(returned, Tensor) else leaves(returned).values()
        self.seen |= {tensor.dtype for tensor in results if tensor.is_floating_point()}
        return returned


def operator_dtypes(problem: AttributionProblem) -> set[torch.dtype]:
    """Returns the floating data types of what operators return in a forward pass; one pass for each kind of inputs."""
    model = problem.model

    def seen() -> set[torch.dtype]:
        with torch.no_grad(), model.passes.uncounted(), model.kept_rng_state(), _DataTypes() as types:
            model.run(problem.inputs)
        found: set[torch.dtype] = types.seen
        return found

    return model.remembered((operator_dtypes, model.kind_of(problem.inputs)), seen)
