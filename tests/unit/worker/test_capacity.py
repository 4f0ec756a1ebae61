"""What a worker says of its size: the weights, and how many rows memory allows."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

from cutaway.adapters import TensorAdapter
from cutaway.contract.results import InputSpec
from cutaway.server.memory import RequestMemory
from cutaway.server.worker.worker import Worker

WIDE = 1 << 18


class Wide(nn.Module):
    """A chain of six tensors of a MiB for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1 << 22))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(6):
            x = x.exp()
        return x.sum(1, keepdim=True)


@pytest.mark.parametrize(
    ("memory", "rows", "with_gradients", "advised"), [(1 << 30, 341, 48, False), (4 << 20, 1, 0, True)]
)
def test_rows_that_fit_are_estimated_from_the_example(
    memory: int, rows: int, with_gradients: int, advised: bool
) -> None:
    """By what is alive at one time: the input's copy and two tensors in a plain pass; with a graph, all seven."""
    adapter = TensorAdapter(Wide(), inputs=(InputSpec("x", "float32", (-1, WIDE)),))
    worker = Worker.of(adapter, "wide")
    worker.memory = RequestMemory(memory)
    told = worker.fits()
    assert told.startswith(f"weights of 0.02 GiB; a request may take {memory / 2**30:.2f} GiB: ")
    predicted, explained = (int(each.replace(",", "")) for each in re.findall(r"([\d,]+) (?:rows|with)", told))
    assert (predicted, explained) == (rows, with_gradients)
    assert ("CUTAWAY_MEMORY_BYTES" in told) == advised


def test_a_model_without_an_example_tells_its_weights() -> None:
    worker = Worker.of(Wide(), "wide")
    assert worker.fits() == "weights of 0.02 GiB"
