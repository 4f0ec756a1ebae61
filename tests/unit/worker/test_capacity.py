"""What a worker says of its size: the weights, and how many rows memory allows."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

from cutaway.adapters import TensorAdapter
from cutaway.contract.results import InputSpec
from cutaway.server.memory import RequestMemory, size_text
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
    ("memory", "rows", "with_gradients", "advised"),
    [(1 << 34, 5460, 780, False), (1 << 30, 341, 48, False), (4 << 20, 1, 0, True)],
)
def test_rows_that_fit_are_estimated_from_the_example(
    memory: int, rows: int, with_gradients: int, advised: bool
) -> None:
    """By what is alive at one time: the input's copy and two tensors in a plain pass; with a graph, all seven."""
    adapter = TensorAdapter(Wide(), inputs=(InputSpec("x", "float32", (-1, WIDE)),))
    worker = Worker.of(adapter, "wide")
    worker.memory = RequestMemory(memory)
    told = worker.fits()
    assert told.startswith(f"weights of 16.00 MiB; a request may take {size_text(memory)}: ")
    predicted, explained = (int(each.replace(",", "")) for each in re.findall(r"([\d,]+) (?:rows|with)", told))
    assert (predicted, explained) == (rows, with_gradients)
    assert ("CUTAWAY_MEMORY_BYTES" in told) == advised


def test_a_model_without_an_example_tells_its_weights() -> None:
    worker = Worker.of(Wide(), "wide")
    assert worker.fits() == "weights of 16.00 MiB"


def test_sizes_have_the_unit_that_fits() -> None:
    """Small weights are not 0.00 of a large unit."""
    sizes = (0, 100, 22_948, (1 << 20) - 1, 1 << 20, 7_312_000_000, 1 << 52)
    told = ["0.00 KiB", "0.10 KiB", "22.41 KiB", "1024.00 KiB", "1.00 MiB", "6.81 GiB", "4096.00 TiB"]
    assert [*map(size_text, sizes)] == told
