"""Random parameters: found by a second build, refused unless the archive allows them, and nothing else is touched."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from cutaway.contract.errors import FailedPrecondition, Reason
from cutaway.server.archive import reader
from cutaway.server.worker.worker import Worker
from tests.support.serving import package

ADAPTERS = """
import random
from weakref import WeakSet

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from cutaway.adapters import Adapter

BUILT = WeakSet()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        BUILT.add(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class Filled(nn.Module):
    def __init__(self, values) -> None:
        super().__init__()
        self.register_buffer("values", torch.tensor(values))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.values


class Unseeded(Adapter):
    def build(self) -> nn.Module:
        return Net()


class FromNumpy(Adapter):
    def build(self) -> nn.Module:
        return Filled(np.random.standard_normal(3))


class FromPython(Adapter):
    def build(self) -> nn.Module:
        return Filled([random.random()] * 3)


class Restores(Adapter):
    def build(self) -> nn.Module:
        state = random.getstate()
        value = random.random()
        random.setstate(state)
        return Filled([value, *torch.zeros_like(torch.rand(2))])


class BeforeBuild(Adapter):
    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.values = torch.rand(3).tolist()

    def build(self) -> nn.Module:
        return Filled(self.values)


class Once(Adapter):
    def build(self) -> nn.Module:
        if BUILT:
            raise RuntimeError("only one may exist")
        return Net()


class Known(Adapter):
    @staticmethod
    def networks() -> list[nn.Module]:
        return list(BUILT)


class Seeded(Known):
    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return Net()


class FromDisk(Known):
    def load(self, weights) -> nn.Module:
        model = Net()
        model.load_state_dict(load_file(self.directory / "own.safetensors"))
        return model


class WithoutParameters(Adapter):
    def build(self) -> nn.Module:
        return nn.Sequential(nn.Dropout(), nn.ReLU())


class WithoutDraws(Adapter):
    def build(self) -> nn.Module:
        if BUILT:
            raise RuntimeError("a second build is of no use")
        net = Filled([1.0])
        BUILT.add(net)
        return net
"""

AT_IMPORT = """
SHARED = nn.Linear(3, 2)


class AtImport(Adapter):
    def build(self) -> nn.Module:
        return nn.Sequential(SHARED)
"""

Unpack = Callable[..., Path]


@pytest.fixture
def unpack(tmp_path: Path) -> Unpack:
    """Packages an adapter of this file, and unpacks the archive for a worker."""

    def unpack(name: str, *, random_weights: bool = False) -> Path:
        source = ADAPTERS + AT_IMPORT if name == "AtImport" else ADAPTERS
        (tmp_path / "some_adapter.py").write_text(source)
        archive = package(tmp_path, "net", f"{tmp_path / 'some_adapter.py'}:{name}", random_weights=random_weights)
        directory = tmp_path / f"unpacked-{random_weights}"
        reader.unpack(archive, directory)
        own = {"linear.weight": torch.ones(2, 3), "linear.bias": torch.zeros(2)}
        save_file(own, directory / "own.safetensors")
        return directory

    return unpack


@pytest.fixture(autouse=True)
def another_state() -> None:
    """No adapter finds the generators as an earlier load with the same seed has left them."""
    torch.rand(1)


def states() -> tuple[object, ...]:
    """The states of the generators of PyTorch, NumPy and Python."""
    return torch.get_rng_state().tolist(), repr(np.random.get_state()), random.getstate()


def built(worker: Worker) -> list[nn.Module]:
    """The networks of a worker's adapter that exist."""
    adapter: Any = worker._adapter
    return list(adapter.networks())


def parameters(worker: Worker) -> list[float]:
    """All parameters and buffers of a worker's model, in order."""
    return [value for tensor in worker._model.module.state_dict().values() for value in tensor.flatten().tolist()]


@pytest.mark.parametrize(
    ("adapter", "said"),
    [
        ("Unseeded", "the parameters are random: the archive has no weights, and two builds differ"),
        ("FromNumpy", "two builds differ"),
        ("FromPython", "two builds differ"),
        ("Restores", "two builds differ"),
        ("BeforeBuild", "two builds differ"),
        ("AtImport", "both loads return the same modules, which may be random: create them in the adapter's build()"),
        (
            "Once",
            "a second build, to find out whether parameters are random, failed: Once.load raised RuntimeError: only",
        ),
    ],
)
def test_random_parameters_are_refused(unpack: Unpack, adapter: str, said: str) -> None:
    """Whichever generator they come from, and wherever the adapter draws them: the error says what would be right."""
    with pytest.raises(FailedPrecondition) as caught:
        Worker.load(unpack(adapter), device="cpu")
    assert caught.value.reason == Reason.WEIGHTS_MISSING
    assert said in caught.value.message
    assert caught.value.message.endswith(
        "; package it with --weights FILE, load or seed the parameters in the adapter, or allow random ones with "
        "--random-weights"
    )


@pytest.mark.parametrize("adapter", ["Unseeded", "FromNumpy", "FromPython", "BeforeBuild", "AtImport", "Once"])
def test_random_parameters_that_the_archive_allows(unpack: Unpack, adapter: str) -> None:
    """They are built once and served."""
    assert parameters(Worker.load(unpack(adapter, random_weights=True), device="cpu"))


@pytest.mark.parametrize("adapter", ["Seeded", "FromDisk", "WithoutParameters", "WithoutDraws"])
def test_parameters_that_are_not_random(unpack: Unpack, adapter: str) -> None:
    """A seed in the adapter, parameters that it reads, and a model that draws no numbers need nobody's leave."""
    assert Worker.load(unpack(adapter), device="cpu").name.model == "net"


@pytest.mark.parametrize("adapter", ["Seeded", "FromDisk"])
def test_a_second_build_leaves_no_trace(unpack: Unpack, adapter: str) -> None:
    """The first one is served, the second is freed, and the generators continue as after one build: a model that draws
    later draws the same."""
    torch.manual_seed(7)
    once = Worker.load(unpack(adapter, random_weights=True), device="cpu")
    after_one_build = states()
    torch.manual_seed(7)
    worker = Worker.load(unpack(adapter), device="cpu")
    assert states() == after_one_build
    assert parameters(worker) == parameters(once)
    assert built(worker) == [worker._model.module]
