"""A server, a picture and adapters for the tests of the command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import cutaway as ca
from cutaway.gateway import serve
from tests.support.cli import Pair, Pets, said, squeezed

ADAPTERS = """
import torch
from torch import nn

from cutaway.adapters import ImageAdapter


class Unseeded(ImageAdapter):
    size, mode, argument, labels = (8, 8), "L", "input", ("cat", "dog")

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 2))


class Tiny(Unseeded):
    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return super().build()


class Talking(Tiny):
    def build(self) -> nn.Module:
        print("loading the weights")
        return super().build()


class Broken(Unseeded):
    def build(self) -> nn.Module:
        raise FileNotFoundError("the weights went missing")


class Separate(Unseeded):
    labels = ()

    def build(self) -> nn.Module:
        from tiny_layers import network

        return network()


class Leaving(Unseeded):
    def build(self) -> nn.Module:
        raise SystemExit("the license has expired")


class Threaded(Tiny):
    def build(self) -> nn.Module:
        import threading

        threading.Thread(target=threading.Event().wait).start()
        return super().build()


class ThreadedAndBroken(Threaded):
    def build(self) -> nn.Module:
        super().build()
        raise FileNotFoundError("the weights went missing")


class Wide(Tiny):
    size = (9, 9)


class Unready(Tiny):
    def example(self):
        raise FileNotFoundError("no example.png")
"""


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    with serve({"pets": Pets(), "pair": Pair()}) as served:
        yield served.address


@pytest.fixture
def image(tmp_path: Path) -> Path:
    file = tmp_path / "pet.png"
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(file)
    return file


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """The file with the adapters above."""
    (tmp_path / "tiny_pets.py").write_text(ADAPTERS)
    return tmp_path / "tiny_pets.py"


@pytest.fixture
def shown(address: str, image: Path) -> Callable[..., str]:
    """What `inspect` prints about as many pictures, with options."""

    def show(*options: object, pictures: int = 1, columns: int = 80) -> str:
        command = ["inspect", "pets", *[image] * pictures, *options, "--address", address]
        return squeezed(said(*command, columns=columns))

    return show


@pytest.fixture
def found(address: str, image: Path) -> Callable[..., ca.InspectResult]:
    """What the Python client gets for the same."""

    def ask(pictures: int = 1, **request: Any) -> ca.InspectResult:
        with ca.Client(address) as client:
            return client.inspect("pets", [ca.Raw(image.read_bytes(), "image/png")] * pictures, **request)

    return ask
