"""An adapter's file does on every engine, and in jobs, what any Python module does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import cutaway as ca
from cutaway.jobs import read
from cutaway.server.archive import builder
from tests.support.killed_job import begun, ended
from tests.support.serving import serving

CODE = """
from __future__ import annotations

import copy
import enum
import functools
import inspect
import io
import json
import logging
import multiprocessing
import pickle
import typing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path

import torch
from pydantic import BaseModel, TypeAdapter
from torch import nn

import helpers
from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec
from helpers import NUMBER as number

log = logging.getLogger(__name__)


class Kind(enum.Enum):
    ONE = 1


class Pair(typing.NamedTuple):
    left: int
    right: Kind


@dataclass(frozen=True)
class Config:
    number: int = number
    pairs: list[Pair] = field(default_factory=list)


class Checked(BaseModel):
    config: Config
    next: Checked | None = None


@functools.singledispatch
def doubled(value: object) -> object:
    raise TypeError


@doubled.register
def _(value: int) -> int:
    return 2 * value


class Net(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.tensor(float(config.number)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class Own(Adapter):
    inputs = (InputSpec("x", "float32", (-1, 2)),)

    def build(self) -> nn.Module:
        import later

        here = Path(__file__).parent
        settings = [json.loads((here / f"{n}_Pooling" / "config.json").read_text())["n"] for n in (1, 2)]
        assert settings == [1, 2], settings
        assert json.loads(resources.files(__package__).joinpath("1_Pooling/config.json").read_text()) == {"n": 1}
        assert Path(self.directory, "2_Pooling").is_dir()
        assert later.helpers is helpers
        assert typing.get_type_hints(Pair) == {"left": int, "right": Kind}
        assert set(typing.get_type_hints(Config)) == {"number", "pairs"}
        config = replace(Config(), pairs=[Pair(1, Kind.ONE)])
        assert Checked(config=config, next={"config": {"number": 3}}).next.config.number == 3
        assert TypeAdapter(list[Config]).validate_python([{"number": 4}]) == [Config(4)]
        assert pickle.loads(pickle.dumps(config)) == config == copy.deepcopy(config)
        assert "class Net" in inspect.getsource(Net)
        for pool in (multiprocessing.Pool(1), ProcessPoolExecutor(1)):
            with pool:
                assert [*pool.map(doubled, [3])] == [6]
        saved = io.BytesIO()
        torch.save(copy.deepcopy(Net(config)), saved)
        saved.seek(0)
        log.info("built")
        return torch.load(saved, weights_only=False)
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two archives whose files have the same names."""
    directory = tmp_path_factory.mktemp("modules")
    for number, model in enumerate(("two", "three"), start=2):
        folder = directory / model
        for pooling in (1, 2):
            (folder / f"{pooling}_Pooling").mkdir(parents=True)
            (folder / f"{pooling}_Pooling" / "config.json").write_text(json.dumps({"n": pooling}))
        (folder / "own.py").write_text(CODE)
        (folder / "helpers.py").write_text(f"NUMBER = {number}\n")
        (folder / "later.py").write_text("import helpers\n")
        extra = [folder / name for name in ("helpers.py", "later.py", "1_Pooling", "2_Pooling")]
        builder.build(
            model=model, version="1.0", adapter=f"{folder / 'own.py'}:Own", weights=None, options={}, batch_size=8,
            max_batch_delay_ms=2, workers=1, response_timeout_s=120, destination=directory / "store",
            extra_files=extra,
        )  # fmt: skip
    return directory / "store"


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torchserve", "processes", "embedded", "ray"])
def test_it_does_so_on_every_engine(store: Path, tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Annotations that are texts, copies, pools of processes, saved models and files in folders; two archives with
    files of the same names stay apart."""
    monkeypatch.setenv("CUTAWAY_RAY_CPUS", "0.1")
    x = np.ones((1, 2), np.float32)
    with serving(store, tmp_path / "logs", f"--engine={engine}") as server, ca.Client(server.address) as client:
        for number, model in enumerate(("two", "three"), start=2):
            result = client.inspect(model, {"x": x}, captures=".", attributions=[ca.Saliency()], timeout=600)
            np.testing.assert_array_equal(result.predictions["output"], number * x)
            assert [each.verdict for each in result.attributions[0].checks] == ["AGREES"]


@pytest.mark.slow
def test_it_does_so_in_a_job(store: Path, tmp_path: Path) -> None:
    """As a person runs it."""
    parquet.write_table(pa.table({"x": [[1.0, 2.0]] * 4}), tmp_path / "x.parquet")
    words = {
        "model": {"archive": str(store / "three-1.0.mar")},
        "data": {"path": "x.parquet"},
        "inputs": {"x": {"column": "x"}},
        "request": {},
        "output": {"folder": "out"},
    }
    (tmp_path / "job.yaml").write_text(json.dumps(words))
    status, _, err = ended(begun(tmp_path / "job.yaml"))
    assert status == 0, err
    np.testing.assert_array_equal(read(tmp_path / "out")["output"], [[3.0, 6.0]] * 4)
