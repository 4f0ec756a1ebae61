"""An adapter's file is a Python module like any other, with the files beside it as its package."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import sys
import typing
from pathlib import Path
from typing import Any

import pytest
import torch

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
