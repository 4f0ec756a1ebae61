"""A virtual environment for each peer, created once in ``.bench``, with the same versions of torch and Captum."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from bench.pipe import ROOT, CannotRun

PEERS = {
    "torchserve": ("torch", "captum", "numpy", "torchserve==0.12.0", "pyyaml", "pillow", "psutil"),
    "litserve": ("torch", "captum", "litserve==0.2.19"),
    "nnsight": ("torch", "transformers", "nnsight==0.8.1"),
}
"""Packages of each peer; a name without a version gets the version installed here, so both sides compute the same."""


def python(peer: str) -> Path:
    """Returns the interpreter of ``peer``'s environment; creates the environment if needed.

    Raises:
        CannotRun: the environment cannot be created.
    """
    home = ROOT / ".bench" / peer
    wanted = [each if "==" in each else f"{each}=={version(each).partition('+')[0]}" for each in PEERS[peer]]
    made = home / "bench.stamp"
    found = home / "bin" / "python"
    if not made.exists() or made.read_text() != " ".join(wanted):
        _run(sys.executable, "-m", "venv", "--clear", str(home))
        _run(str(found), "-m", "pip", "install", "--quiet", "--no-input", *wanted)
        made.write_text(" ".join(wanted))
    return found


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotRun(f"the peer's environment cannot be made: {done.stderr.strip()[-300:]}")
