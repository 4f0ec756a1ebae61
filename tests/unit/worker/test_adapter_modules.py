"""An adapter's file is a Python module like any other, with the files beside it as its package."""

from __future__ import annotations

import copy
import importlib
import inspect
import io
import pickle
import sys
import typing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from cutaway.adapter_modules import plain_names
from cutaway.adapters import find_adapter
from cutaway.contract.errors import CutawayError, Reason

CODE = """
from __future__ import annotations

import os.path
from dataclasses import dataclass

from pydantic import BaseModel
from torch import nn

import helpers
import parts.inner
from cutaway.adapters import Adapter
from helpers import NAME


@dataclass
class Config:
    width: int = 2


class Checked(BaseModel):
    config: Config | None = None


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(Config().width, 2)


class Own(Adapter):
    def build(self) -> nn.Module:
        import late

        assert (late.NAME, parts.inner.NAME, parts.helpers) == (NAME, NAME, helpers)
        return Net()
"""


def written(folder: Path, name: str) -> Path:
    """An adapter and the files that it imports, some by way of others."""
    (folder / "parts").mkdir(parents=True)
    (folder / "own_adapter.py").write_text(CODE)
    (folder / "helpers.py").write_text(f"NAME = {name!r}\n")
    (folder / "late.py").write_text("from helpers import NAME\n")
    (folder / "parts" / "__init__.py").write_text("import helpers\nfrom . import inner\n")
    (folder / "parts" / "inner.py").write_text("from helpers import NAME\n")
    return folder


def test_two_adapters_with_files_of_the_same_names_stay_apart(tmp_path: Path) -> None:
    """In one process, also where a file is imported later."""
    kinds = [find_adapter("own_adapter.py:Own", written(tmp_path / name, name)) for name in ("one", "two")]
    assert [vars(sys.modules[kind.__module__])["NAME"] for kind in kinds] == ["one", "two"]
    for kind in kinds:
        kind.build(object.__new__(kind))
    assert not {"helpers", "late", "parts"} & sys.modules.keys()


def test_what_it_defines_is_what_other_modules_define(tmp_path: Path) -> None:
    """It can be pickled, copied, saved and looked at, with annotations that are texts."""
    kind: Any = find_adapter("own_adapter.py:Own", written(tmp_path / "one", "one"))
    module, model = sys.modules[kind.__module__], kind.build(object.__new__(kind))
    assert type(pickle.loads(pickle.dumps(model))) is type(copy.deepcopy(model)) is module.Net
    torch.save(model, io.BytesIO())
    assert "class Net" in inspect.getsource(module.Net)
    assert typing.get_type_hints(module.Config) == {"width": int}
    assert module.Checked(config={"width": 3}).config.width == 3


def test_caches_of_imports_can_be_emptied(tmp_path: Path) -> None:
    """By code that writes modules, in any process that has an adapter."""
    find_adapter("own_adapter.py:Own", written(tmp_path / "one", "one"))
    importlib.invalidate_caches()


def test_a_file_that_fails_leaves_no_module(tmp_path: Path) -> None:
    """Nor one of those that it had imported."""
    written(tmp_path / "one", "one")
    (tmp_path / "one" / "own_adapter.py").write_text("import helpers\nimport nowhere_at_all\n")
    before = set(sys.modules)
    with pytest.raises(CutawayError) as caught:
        find_adapter("own_adapter.py:Own", tmp_path / "one")
    assert caught.value.reason == Reason.ADAPTER_INVALID
    assert "nowhere_at_all" in caught.value.message
    assert set(sys.modules) == before


PICKLED = """
import importlib
import io
import pickle

import torch
from torch import nn

import words
from cutaway.adapters import Adapter


class Own(Adapter):
    def build(self) -> nn.Module:
        import late

        saved = (self.directory / "words.pkl").read_bytes()
        read = torch.load(self.directory / "words.pt", weights_only=False)
        others = pickle.loads(saved), pickle._Unpickler(io.BytesIO(saved)).load(), late.made
        named = importlib.import_module("words"), importlib.import_module("parts.inner").words
        assert {type(each) for each in (read, *others)} == {words.Words}
        assert {*named} == {words}
        return nn.Linear(2, len(read.name))
"""

WORDS = """
class Words:
    def __init__(self, name):
        self.name = name


from late import made
"""


def pickled(folder: Path, name: str) -> Path:
    """An adapter that reads pickles of a class in a file beside it; two of the files import each other."""
    (folder / "parts").mkdir(parents=True)
    (folder / "own_adapter.py").write_text(PICKLED)
    (folder / "words.py").write_text(WORDS)
    (folder / "late.py").write_text("import words\n\nmade = words.Words('late')\n")
    (folder / "parts" / "__init__.py").touch()
    (folder / "parts" / "inner.py").write_text("import words\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.delitem(sys.modules, "words", raising=False)
        made = importlib.import_module("words").Words(name)
        (folder / "words.pkl").write_bytes(pickle.dumps(made))
        torch.save(made, folder / "words.pt")
        for module in ("words", "late"):
            del sys.modules[module]
    return folder


def test_a_pickle_finds_the_classes_beside_the_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file is one module for all that imports it, also where a module of that name is imported already; two
    adapters do not see each other's."""
    foreign = ModuleType("words")
    monkeypatch.setitem(sys.modules, "words", foreign)
    for name in ("one", "three"):
        folder = pickled(tmp_path / name, name)
        monkeypatch.setitem(sys.modules, "words", foreign)
        with plain_names(folder):
            kind = find_adapter("own_adapter.py:Own", folder)
            assert kind({}, folder).build().weight.shape == (len(name), 2)
        assert sys.modules["words"] is foreign
    assert not {"late", "parts", "parts.inner", "own_adapter"} & sys.modules.keys()


def test_a_file_that_fails_is_not_imported_by_its_plain_name(tmp_path: Path) -> None:
    """Whoever tries again gets the same error, and no module of half of the file."""
    (tmp_path / "own_adapter.py").write_text("from cutaway.adapters import Adapter\n\n\nclass Own(Adapter): ...\n")
    (tmp_path / "broken.py").write_text("raise ValueError('no')\n")
    with plain_names(tmp_path):
        find_adapter("own_adapter.py:Own", tmp_path)
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                importlib.import_module("broken")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("broken")
