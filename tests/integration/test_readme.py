"""The README says what works: its Python is run, its length kept, the demo's next commands exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutaway as ca
from cutaway.gateway import serve
from examples import demo
from examples.digits.digits_adapter import Digits
from tests.support.cli import cutaway
from tests.support.digits import WEIGHTS

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_the_five_lines_work(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(BLOCKS[0], "README.md", "exec"), {})
    assert capsys.readouterr().out.rstrip().endswith("AGREES")


def test_what_is_asked_is_answered() -> None:
    """The request to the digits model, at the address of a server here."""
    names: dict[str, Any] = {"ca": ca, "image": np.random.default_rng(0).random((1, 1, 8, 8), np.float32)}
    with serve({"digits": Digits(weights=WEIGHTS)}) as server:
        exec(compile(BLOCKS[1].replace("127.0.0.1:50051", server.address), "README.md", "exec"), names)
    result = names["result"]
    assert set(result.captures) == {"conv1", "conv2", "fc1"}
    assert result.targets.tolist() == [7]
    assert [each.method for each in result.attributions] == ["Saliency", "IntegratedGradients"]
    assert not np.array_equal(result.predictions["output"], result.unedited["output"])


def test_there_is_no_other_python() -> None:
    assert len(BLOCKS) == 2


@pytest.mark.parametrize(
    "command",
    [*demo.NEXT, *re.findall(r"^(cutaway .*?)(?:  +#.*)?$", README, re.MULTILINE)],
    ids=lambda each: each[:40],
)
def test_commands_exist_with_their_options(command: str) -> None:
    """As far as that can be told without running them: `--help` after them shows no complaint about an option."""
    words = shlex.split(command)[1:]
    done = cutaway(*words, "--help")
    assert done.returncode == 0, done.stderr
    for option in re.findall(r"(?<= )--[\w-]+", command):
        assert option in done.stdout, option
