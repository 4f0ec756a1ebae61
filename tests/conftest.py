"""What several tests share: real servers over real models, and the promise that no hook survives."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

from tests.serving import Server, package, serving

ADAPTERS = Path(__file__).parent / "adapters"


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store: digits, MiniLM, ResNet-50, and one archive that is damaged."""
    from examples.digits.package import package as package_digits
    from examples.sentences.package import package as package_sentences

    directory = tmp_path_factory.mktemp("store")
    sound = package_digits(directory)
    package_sentences(directory)
    package(directory, "resnet", f"{ADAPTERS / 'resnet_adapter.py'}:ResNet")
    damaged = directory / "damaged.mar"
    shutil.copy(sound, damaged)
    damaged.write_bytes(damaged.read_bytes()[:-200])
    return directory


@pytest.fixture(scope="session")
def server(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The real thing: front door, TorchServe and a worker for each model of the store."""
    with serving(store, tmp_path_factory.mktemp("torchserve") / "logs") as running:
        yield running


HOOK_TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@pytest.fixture(autouse=True)
def no_hook_is_left() -> Iterator[None]:
    """After every test, no module that is alive in this process has a hook."""
    yield
    left = [
        f"{type(module).__name__}.{table}" for module in _modules() for table in HOOK_TABLES if _full(module, table)
    ]
    assert not left, f"hooks left behind: {left}"


def _full(module: nn.Module, table: str) -> bool:
    return bool(module.__dict__.get(table))


def _modules() -> list[nn.Module]:
    # By type and not by isinstance(), which some libraries' lazy modules answer by importing half of themselves.
    kinds: dict[type, bool] = {}
    return [each for each in gc.get_objects() if kinds.setdefault(type(each), issubclass(type(each), nn.Module))]
