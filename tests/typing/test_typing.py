"""What an editor says about a call: wrong ones are marked by both type checkers, and parameters are completed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from inspect import signature
from pathlib import Path

import jedi
import pytest

import cutaway as ca

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WRONG, RIGHT = HERE / "wrong_calls.py", HERE / "right_calls.py"
MARK = re.compile(r"# wrong: (?P<mypy>\S+) (?P<pyright>\S+)$")

Mistakes = set[tuple[str, int, str]]
"""The file's name, the line, and the code of each mistake."""


def expected(checker: str) -> Mistakes:
    """Those that `WRONG` is marked with."""
    return set(_expected(checker))


def _expected(checker: str) -> Iterator[tuple[str, int, str]]:
    for number, line in enumerate(WRONG.read_text("utf-8").splitlines(), 1):
        if mark := MARK.search(line):
            yield from ((WRONG.name, number, code) for code in mark[checker].split(","))


def by_mypy(cache: Path) -> Mistakes:
    command = [sys.executable, "-m", "mypy", f"--cache-dir={cache}", "--strict", "--no-error-summary", "--output=json"]
    found = subprocess.run([*command, str(WRONG), str(RIGHT)], capture_output=True, text=True, cwd=ROOT)
    assert not found.stderr
    return {_of_mypy(json.loads(line)) for line in found.stdout.splitlines()}


def _of_mypy(mistake: dict) -> tuple[str, int, str]:
    return Path(mistake["file"]).name, mistake["line"], mistake["code"]


def by_pyright(folder: Path) -> Mistakes:
    """Basedpyright, which brings its Node.js along, with the rules of pyright."""
    environment = {"venvPath": sys.prefix, "venv": ".", "extraPaths": [str(ROOT / "service")]}
    files = {"include": [str(WRONG), str(RIGHT)]}
    project = folder / "pyrightconfig.json"
    project.write_text(json.dumps({**environment, **files, "typeCheckingMode": "standard", "pythonVersion": "3.10"}))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "-p", str(project)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, cwd=folder).stdout)
    assert found["summary"]["filesAnalyzed"] == 2
    return {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1, each["rule"])
        for each in found["generalDiagnostics"]
    }


def test_the_marks_cover_both_clients_and_both_verbs() -> None:
    """What follows is no empty promise."""
    lines = [line for line in WRONG.read_text("utf-8").splitlines() if MARK.search(line)]
    assert len(lines) >= 30
    wrong = "\n".join(lines)
    for call in (
        "    client.inspect(",
        "    client.inspect_stream(",
        "    await client.inspect(",
        "in client.inspect_str",
    ):
        assert call in wrong


@pytest.mark.slow
@pytest.mark.parametrize(("checker", "check"), [("mypy", by_mypy), ("pyright", by_pyright)])
def test_wrong_calls_are_found_and_right_ones_are_not(checker: str, check, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Each wrong line has the mistakes it is marked with and no other, and the right file has none."""
    assert check(tmp_path) == expected(checker)


def parameters(call: str) -> list[str]:
    """The parameters that jedi, IPython's completion, shows behind the open parenthesis of ``call``."""
    code = f"import cutaway as ca\nclient = ca.Client('localhost:1')\n{call}"
    (shown,) = jedi.Script(code, project=jedi.Project(ROOT)).get_signatures()
    return [parameter.name for parameter in shown.params]


@pytest.mark.parametrize(
    ("call", "names"),
    [
        ("client.inspect(", list(signature(ca.Client.inspect).parameters)[1:]),
        ("client.inspect_stream(", list(signature(ca.Client.inspect_stream).parameters)[1:]),
        ("ca.AsyncClient('').inspect(", list(signature(ca.AsyncClient.inspect).parameters)[1:]),
        ("ca.IntegratedGradients(", [field.name for field in fields(ca.IntegratedGradients) if field.init]),
        ("ca.LayerGradCam(", [field.name for field in fields(ca.LayerGradCam) if field.init]),
    ],
)
def test_editors_show_the_parameters(call: str, names: list[str]) -> None:
    """Every parameter by its name, in order."""
    shown = [name for name in parameters(call) if name != "*"]
    assert sorted(shown) == sorted(names)
    assert len(names) > 2


@pytest.mark.parametrize(
    ("expression", "start", "completed"),
    [
        ("client.inspect('net', x, capt", "", "captures="),
        ("client.inspect('net', x).", "attri", "attributions"),
        ("client.inspect('net', x).", "to_p", "to_pandas"),
        ("client.inspect_stream('net', x).result().", "with_l", "with_labels"),
        ("client.get_model('net').", "lab", "labels"),
        ("ca.IntegratedGradients(n_st", "", "n_steps="),
    ],
)
def test_editors_complete(expression: str, start: str, completed: str) -> None:
    """Arguments of calls, and what a result has."""
    code = f"import cutaway as ca\nclient = ca.Client('localhost:1')\n{expression}{start}"
    names = [completion.name for completion in jedi.Script(code, project=jedi.Project(ROOT)).complete()]
    assert completed in names
