"""The README says what works: its blocks run as they are pasted, its length is kept, the demo's next commands exist."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutaway as ca
from cutaway.gateway import serve
from examples import demo
from examples.digits.data import as_png, held_out
from examples.digits.digits_adapter import Digits
from tests.support.cli import cutaway
from tests.support.digits import WEIGHTS
from tests.support.documents import ROOT, blocks

README = ROOT / "README.md"
PYTHON = [block.text for block in blocks(README) if block.language == "python"]
SHELL = [block.text for block in blocks(README) if re.search("^cutaway ", block.text, re.M)]


def test_it_is_short() -> None:
    assert len(README.read_text("utf-8").splitlines()) <= 120


def test_the_five_lines_work(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(PYTHON[0], "README.md", "exec"), {})
    assert capsys.readouterr().out.rstrip().endswith("AGREES")


def test_what_is_asked_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request to the digits model, pasted into a new interpreter in a clone; only the server's address differs."""
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    with serve({"digits": Digits(weights=WEIGHTS)}) as server:
        exec(compile(PYTHON[1].replace("127.0.0.1:50051", server.address), "README.md", "exec"), names)
    result: ca.Inspection = names["result"]
    assert set(result.captures) == {"conv1", "conv2", "fc1"}
    assert result.targets is not None
    assert result.targets.tolist() == [7]
    assert [each.method for each in result.attributions] == ["Saliency", "IntegratedGradients"]
    assert not np.array_equal(result.predictions["output"], result.unedited["output"])


def test_there_is_no_other_code() -> None:
    assert (len(PYTHON), len(SHELL)) == (2, 2)


def test_the_seven_is_one_that_training_did_not_see() -> None:
    first = held_out().pixels[held_out().labels.tolist().index(7)]
    assert (ROOT / "examples" / "digits" / "seven.png").read_bytes() == as_png(first)


def test_commands_work_as_pasted(tmp_path: Path) -> None:
    """Both terminals of the README, in a clone: the second asks the server that the first one starts. What they leave
    is in build/, which git ignores.

    The line that trains is left out, and TorchServe is: tests of the examples and of the wheel have them.
    """
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "build").mkdir()
    shutil.copy(WEIGHTS, tmp_path / "build" / "digits.safetensors")
    training, *package, serving = SHELL[0].splitlines()
    assert training.startswith("python -m examples.digits.train build/digits.safetensors ")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "CUTAWAY_ENGINE": "embedded", "CUTAWAY_ADDRESS": "127.0.0.1:0"}
    terminal: dict[str, Any] = {"cwd": tmp_path, "text": True}
    subprocess.run(["bash", "-ec", "\n".join(package)], check=True, env=environment, **terminal)
    with subprocess.Popen(
        ["bash", "-c", f"exec {serving}"], env=environment, stdout=subprocess.PIPE, **terminal
    ) as server:
        try:
            assert server.stdout is not None
            address = next(line.split()[1] for line in server.stdout if line.startswith("ready: "))
            subprocess.run(
                ["bash", "-ec", SHELL[1]], check=True, env={**environment, "CUTAWAY_ADDRESS": address}, **terminal
            )
        finally:
            server.terminate()
    assert (tmp_path / "build" / "inside.png").exists()
    assert (tmp_path / "build" / "mine_adapter.py").exists()
    assert {each.name for each in tmp_path.iterdir()} == {"build", "examples"}


@pytest.mark.parametrize("command", demo.NEXT, ids=lambda each: each[:40])
def test_commands_of_the_demo_exist_with_their_options(command: str) -> None:
    """As far as that can be told without running them: `--help` after them shows no complaint about an option."""
    words = shlex.split(command)[1:]
    done = cutaway(*words, "--help")
    assert done.returncode == 0, done.stderr
    for option in re.findall(r"(?<= )--[\w-]+", command):
        assert option in done.stdout, option
