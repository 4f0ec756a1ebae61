"""Faults of an adapter, which ``cutaway package`` refuses in one line, or which are none in the worker either."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cutaway.adapters import Adapter, load_model
from cutaway.contract.errors import CutawayError, Reason
from cutaway.contract.results import InputSpec
from cutaway.server.archive import builder
from cutaway.server.worker.process import load_once
from cutaway.server.worker.worker import Worker


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Sound(Adapter):
    inputs: Any = (InputSpec("x", "float32", (-1, 3)),)
    labels: Any = ("cat", "dog")

    def build(self) -> nn.Module:
        return Linear()


@pytest.mark.parametrize(
    "labels", [["cat", "dog"], ("cat", "dog"), np.array(["cat", "dog"])], ids=lambda each: type(each).__name__
)
def test_labels_are_a_sequence_of_texts(labels: object) -> None:
    """Or an array of them, which becomes one."""
    names = load_model(type("Own", (Sound,), {"labels": labels})(), "cpu").labels
    assert names == ("cat", "dog")
    assert {type(name) for name in names} == {str}


@pytest.mark.parametrize("labels", [(0, 1), np.arange(2), {0: "cat", 1: "dog"}, {"cat": 0}, {"cat"}, "cd", None, 7])
def test_other_labels_are_refused_in_words(labels: object) -> None:
    with pytest.raises(CutawayError, match=r"Own.labels is .*: list texts, in the order of their index") as caught:
        load_model(type("Own", (Sound,), {"labels": labels})(), "cpu")
    assert (caught.value.reason, caught.value.field) == (Reason.ADAPTER_INVALID, "labels")


def raising(_: object) -> object:
    raise RuntimeError("not here")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"labels": property(raising)}, "Own.labels raised RuntimeError: not here"),
        ({"inputs": property(raising)}, "Own.inputs raised RuntimeError: not here"),
        ({"inputs": InputSpec("x")}, "Own.inputs raised TypeError: 'InputSpec' object is not iterable"),
        ({"inputs": ["x"]}, "Own.inputs has 'x', which is no InputSpec"),
        ({"build": lambda _: nn.Linear(3, 2, device="meta")}, "moving the model of Own to cpu raised NotImpl"),
        ({"build": lambda _: Path("words").read_text()}, "'words'; an adapter's files come with --extra, and are in"),
    ],
)
def test_whatever_its_code_raises_is_a_fault_of_the_adapter(members: dict[str, Any], message: str) -> None:
    """Told in words, with its place."""
    with pytest.raises(CutawayError) as caught:
        load_model(type("Own", (Sound,), members)(), "cpu")
    assert caught.value.reason == Reason.ADAPTER_INVALID
    assert message in caught.value.message


@pytest.mark.parametrize("example", [torch.ones(1, 3), {"x": np.ones((1, 3))}, [torch.ones(1, 3)]])
def test_an_example_is_tensors_by_name(example: object) -> None:
    worker = Worker.of(type("Own", (Sound,), {"example": lambda _: example})(), "net")
    with pytest.raises(CutawayError, match=r"Own.example returned .*; return tensors by name") as caught:
        worker.describe()
    assert caught.value.reason == Reason.ADAPTER_INVALID


CODE = """
import os
import sys
from pathlib import Path

import torch
from torch import nn

from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec


class Own(Adapter):
    inputs = (InputSpec("input", "float32", (-1, 3)),)

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        CODE
        return nn.Linear(3, 2)
"""


def packaged(folder: Path, code: str, *extra: Path) -> Path:
    (folder / "own_adapter.py").write_text(CODE.replace("CODE", code))
    return builder.build(
        model="net", adapter=f"{folder / 'own_adapter.py'}:Own", weights=None, options={}, extra_files=extra,
        batch_size=8, max_batch_delay_ms=2, workers=1, response_timeout_s=60, destination=Path("models"),
        check=load_once,
    )  # fmt: skip


def test_relative_paths_are_those_of_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the caller's directory is found if the archive has it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("cat")
    reads = "Path('words.txt').read_text()"
    with pytest.raises(CutawayError, match=r"'words.txt'; an adapter's files come with --extra"):
        packaged(tmp_path, reads)
    assert packaged(tmp_path, reads, tmp_path / "words.txt").is_file()


def test_an_adapter_may_change_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a worker; the caller's stays."""
    monkeypatch.chdir(tmp_path)
    assert packaged(tmp_path, "os.chdir('/')").is_file()
    assert os.getcwd() == str(tmp_path)


def test_standard_output_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the command could not say that it has built the archive."""
    monkeypatch.chdir(tmp_path)
    with open(os.devnull, "w") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        with pytest.raises(CutawayError, match=r"its code closes sys.stdout"):
            packaged(tmp_path, "sys.stdout.close()")
    assert not (tmp_path / "models" / "net-1.0.mar").exists()
