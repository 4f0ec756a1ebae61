"""The ``cutaway`` command, run as a person or a script runs it, and small models to run it on."""

from __future__ import annotations

import os
import subprocess
import sys

import torch
from torch import Tensor, nn

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
    """Run the command with its output piped, as scripts do, on a screen that is ``columns`` wide."""
    colours = ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE")
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("CUTAWAY_", *colours))}
    return subprocess.run(
        [sys.executable, "-m", "cutaway.console", *map(str, arguments)],
        env={**bare, "COLUMNS": str(columns), **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )


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
from cutaway.console import main
main()
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
