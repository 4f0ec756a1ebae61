"""Node.js, with the packages that a folder's package-lock.json pins."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_OFFLINE = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "ENETUNREACH")
"""npm's error codes without a network."""


def install(directory: Path) -> None:
    """Installs the packages of ``directory``, unless that is done; skips the test without Node, npm or network."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    lock, installed = directory / "package-lock.json", directory / "node_modules" / "installed-lock.json"
    if installed.exists() and installed.read_bytes() == lock.read_bytes():
        return
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline", "--fetch-retries=1"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    if any(f"code {code}" in done.stderr for code in _OFFLINE):
        pytest.skip("npm does not reach its registry")
    assert done.returncode == 0, done.stderr
    shutil.copy(lock, installed)


def run(script: Path, text: str) -> str:
    """Runs ``script`` with ``text`` as its standard input, and returns its output."""
    done = subprocess.run(["node", script.name], cwd=script.parent, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
