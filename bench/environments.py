"""The peers' environments: each its own, made once, in ``.bench``, with the torch and the Captum that we run."""

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
"""What each peer needs; a name without a version gets the version that runs here, so that both sides compute alike."""


def python(peer: str) -> Path:
    """The interpreter of ``peer``'s environment; pip finds its packages where it found ours.

    Raises:
        CannotRun: it cannot be made.
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
