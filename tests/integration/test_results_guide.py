"""docs/results.md does what it says: its blocks run in order, and print what it shows."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "results.md"
SECONDS = re.compile(r"\d+\.\d{3} s\b")


def blocks() -> list[tuple[str, str]]:
    """The language and the text of each block, in order."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_every_block_runs_and_prints_what_the_guide_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of text is what the block above it prints, but for the seconds."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "guide"}
    printed, compared = "", 0
    for language, text in blocks():
        if language == "text":
            assert SECONDS.sub("0.000 s", text) == SECONDS.sub("0.000 s", printed)
            compared += 1
        else:
            assert language == "python"
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(text, str(GUIDE), "exec"), names)
            printed = output.getvalue()
    assert compared == 4
    assert (tmp_path / "tumour.png").stat().st_size > 0
    fc1 = names["result"].captures["fc1"]
    np.testing.assert_allclose(names["product"], (fc1.output * fc1.grad_output).sum(axis=1), rtol=1e-5)
    np.testing.assert_array_equal(names["area"], names["result"].attributions[0].values["x"][:, 2])
