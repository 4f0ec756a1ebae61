"""What several tests share: real servers over real models, and the promise that no hook survives."""

from __future__ import annotations

import gc
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

# Tensors are tiny here, and several processes share the cores. Servers that tests start inherit this: what is compared
# bit for bit must be computed alike. make portability sets two threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Or each server of a test would take two minutes of a core for tests of its models.
os.environ.setdefault("CUTAWAY_IDLE_TESTS_S", "0")

from torch import nn

from tests.support import scheduling
from tests.support.serving import Server, package, serving

ADAPTERS = Path(__file__).parent / "support" / "adapters"


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store: digits, MiniLM, ResNet-50, the mirror, and one archive that is damaged."""
    from examples.sentences.package import package as package_sentences
    from tests.support.digits import package_digits

    directory = tmp_path_factory.mktemp("store")
    sound = package_digits(directory)
    package_sentences(directory)
    package(directory, "resnet", f"{ADAPTERS / 'resnet_adapter.py'}:ResNet")
    package(directory, "mirror", f"{ADAPTERS / 'mirror_adapter.py'}:MirrorAdapter")
    damaged = directory / "damaged.mar"
    shutil.copy(sound, damaged)
    damaged.write_bytes(damaged.read_bytes()[:-200])
    return directory


@pytest.fixture(scope="session")
def server(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The real thing: gateway, TorchServe and a worker for each model of the store."""
    with serving(store, tmp_path_factory.mktemp("torchserve") / "logs", "--http", "127.0.0.1:0") as running:
        yield running


def pytest_configure(config: pytest.Config) -> None:
    """Each of xdist's processes reads another part of the tests first: what one has compiled the others then load."""
    whole = Path(config.args[0]).resolve() == Path(__file__).parent
    if hasattr(config, "workerinput") and len(config.args) == 1 and whole:
        number = int(config.workerinput["workerid"].removeprefix("gw"))
        config.args = scheduling.rotated(Path(__file__).parent, number / config.workerinput["workercount"])


@pytest.hookimpl(wrapper=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """One process more than there are cores, up to four: on two cores, two leave a sixth of the time to waiting."""
    return min(4, 1 + (yield))


def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    """The test files that take longest come first."""
    return scheduling.scheduler(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Marks rows slow before pytest selects by marks, and orders what is left: in xdist's processes only, for a person
    who runs one test after another gets them in the order of their names."""
    scheduling.mark_most_rows_slow(items)
    yield
    if hasattr(config, "workerinput"):
        items[:] = scheduling.in_order(items)


def pytest_collection_finish() -> None:
    """Python's collector leaves alone what is there before the first test: a search of torch and of all that tests
    import takes a second, and some tests ask for one after every step."""
    gc.collect()
    gc.freeze()


HOOK_TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
STILL_RUNNING_S = 60.0
"""So long a request may still run that a test has begun and left."""

REGISTER = ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook")


OF_MODELS = ("transformers.utils.output_capturing", "torch.nn.utils.")
"""The modules whose hooks belong to a model: those that collect its states, and weight norm."""


@pytest.fixture(autouse=True)
def no_hook_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After every test, no module that was given a hook in this process still has one that is not the model's own."""
    hooked: list[nn.Module] = []  # held, so that none is gone before it is looked at
    for name in REGISTER:
        monkeypatch.setattr(nn.Module, name, _noting(getattr(nn.Module, name), hooked))
    yield
    end = time.monotonic() + STILL_RUNNING_S
    while (left := _left(hooked)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left, f"hooks left behind: {left}"


def _left(hooked: list[nn.Module]) -> list[str]:
    return [
        f"{type(module).__name__}.{table}"
        for module in hooked
        for table in HOOK_TABLES
        if not all(getattr(hook, "__module__", "").startswith(OF_MODELS) for hook in getattr(module, table).values())
    ]


def _noting(register: Callable[..., Any], hooked: list[nn.Module]) -> Callable[..., Any]:
    def noting(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        hooked.append(module)
        return register(module, *args, **kwargs)

    return noting
