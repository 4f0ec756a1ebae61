"""The ``cutaway`` command, run as a person or a script runs it, and small models to run it on."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from unittest.mock import patch

import torch
from torch import Tensor, nn

from cutaway import cli
from cutaway.adapters import ImageAdapter


class Net(nn.Module):
    """Has what a tree can show: numbered modules alike, one called twice, one never, one with two names."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.relu = nn.ReLU()
        self.feature_blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(4, 4, 1), nn.Sigmoid()) for _ in range(3))
        self.unused = nn.Linear(3, 3)
        self.twin = self.conv
        self.head = nn.Linear(144, 3)

    def forward(self, image: Tensor) -> Tensor:
        hidden = self.relu(self.conv(image))
        for block in self.feature_blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(self.relu(hidden).flatten(1))
        return logits


class Pets(ImageAdapter):
    """`Net`, reading image files."""

    size, mode, labels = (8, 8), "L", ("cat", "dog", "owl")

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return Net()


class Pair(nn.Module):
    """Two inputs, no classes, no example."""

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"sum[0]": left + right, "ids": torch.full((len(left), 2), 123456)}


def cutaway(*arguments: object, columns: int = 80, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command with its output piped, as scripts do, on a screen that is ``columns`` wide.

    In this process, because another one would take half a second for imports; `without` and the tests of the wheel
    start processes.
    """
    colours = ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE")
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("CUTAWAY_", *colours))}
    words, status = ["cutaway", *map(str, arguments)], 0
    with (
        patch.object(sys, "argv", words),
        patch.dict(os.environ, {**bare, "COLUMNS": str(columns), **variables}, clear=True),
        redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")) as output,
        redirect_stderr(io.TextIOWrapper(io.BytesIO(), "utf-8")) as errors,
    ):
        try:
            cli.main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
    return subprocess.CompletedProcess(words, status, _text(output), _text(errors))


def _text(written: io.TextIOWrapper) -> str:
    written.seek(0)
    return written.read()


def said(*arguments: object, columns: int = 80, **variables: str) -> str:
    """What the command printed; it must have succeeded."""
    done = cutaway(*arguments, columns=columns, **variables)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def squeezed(text: str) -> str:
    """``text`` with every run of spaces and line breaks as one space."""
    return " ".join(text.split())


def without(packages: tuple[str, ...], arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the command where ``packages`` are not installed."""
    program = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
sys.argv = ["cutaway", *{arguments!r}]
from cutaway.cli import main
main()
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
