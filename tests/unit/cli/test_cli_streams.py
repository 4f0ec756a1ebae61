"""The command as a process: pipes without a reader, full disks, Ctrl-C, terminals, and completion in shells."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cutaway.cli import console_output
from cutaway.contract.results import Progress
from tests.support.cli import cutaway, said

COMMAND = [sys.executable, "-m", "cutaway.cli"]
NOBODY = "127.0.0.1:1"
PRINTING = [["models", "--json"], ["--help"], pytest.param(["layers", "pets"], marks=pytest.mark.slow)]


def started(arguments: list[str], address: str, *, stdout: int, stderr: int) -> subprocess.Popen[str]:
    """The command as a process, for the server at ``address``."""
    environment = {**os.environ, "CUTAWAY_ADDRESS": address}
    return subprocess.Popen([*COMMAND, *arguments], text=True, env=environment, stdout=stdout, stderr=stderr)


@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_a_reader_that_has_gone_ends_the_command_in_silence(arguments: list[str], address: str) -> None:
    """As with ``head``: nothing on stderr, and the status that a shell reports for SIGPIPE."""
    reader, writer = os.pipe()
    os.close(reader)
    process = started(arguments, address, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (141, "")


@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_a_full_disk_is_one_line(arguments: list[str], address: str) -> None:
    """And status 1, whoever writes: a table, a JSON document or a help page."""
    with open("/dev/full", "w") as full:
        process = started(arguments, address, stdout=full.fileno(), stderr=subprocess.PIPE)
        _, errors = process.communicate()
    assert process.returncode == 1
    (line,) = errors.splitlines()
    assert "No space left on device" in line
    assert line.startswith('{"error": {"reason": "INVALID_VALUE"' if "--json" in arguments else "INVALID_VALUE: ")


def test_an_error_that_cannot_be_printed_keeps_its_status() -> None:
    """With a full disk behind stderr, the status is all that is left."""
    with open("/dev/full", "w") as full:
        process = started(["models"], NOBODY, stdout=subprocess.PIPE, stderr=full.fileno())
        output, _ = process.communicate()
    assert (process.returncode, output) == (5, "")


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_ctrl_c_is_one_line(as_json: bool) -> None:
    """While the command waits for a server: no traceback, and status 130."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        arguments = ["models", *["--json"] * as_json]
        process = started(arguments, address, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with silent.accept()[0]:  # the command is waiting now
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate()
    assert (process.returncode, output) == (130, "")
    if as_json:
        assert json.loads(errors)["error"]["reason"] == "INTERRUPTED"
    else:
        assert errors == "interrupted\n"


def test_ctrl_c_while_the_command_is_loaded_is_one_line() -> None:
    """Imports take most of a second, in which people change their minds."""
    program = """
import sys

class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name == "cutaway.cli.application":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupter())
from cutaway.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_a_long_call_shows_that_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, from the given time on; the line goes away with the call."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        with console_output.waiting("inspecting pets", after_s=0):
            seen = b""
            while b"inspecting pets" not in seen:
                seen += os.read(ours, 1000)
        with console_output.waiting("explaining pets", after_s=3600) as show:
            assert show is not None
            for done in (120, 130):
                show(Progress(done, 256, 12.3, 1))
            while b"attribution 2: 130 of 256 passes, 12 s left" not in seen:
                seen += os.read(ours, 1000)
        with console_output.waiting("a short call", after_s=3600):
            pass
        terminal.write("the end")
    while b"the end" not in seen:
        seen += os.read(ours, 1000)
    os.close(ours)
    assert seen.partition(b"the end")[0].endswith(b"\x1b[2K")  # the line is erased
    assert b"a short call" not in seen
    assert b"explaining pets" not in seen


def test_no_progress_reaches_a_pipe(capfd: pytest.CaptureFixture[str]) -> None:
    """A log or a script gets nothing, however long the call takes."""
    with console_output.waiting("inspecting pets", after_s=0):
        time.sleep(0.2)
    assert capfd.readouterr() == ("", "")


OFFERED = {
    "cutaway ins": "inspect",
    "cutaway inspect pets x.png --attribution LayerGradC": "LayerGradCam",
    "cutaway inspect pets x.png --edit sc": "scale",
    "cutaway inspect pets x.png --check sa": "same_pass",
    "cutaway models --js": "--json",
    "cutaway batch r": "report run",
}


@pytest.mark.parametrize("line", OFFERED)
def test_commands_options_methods_edits_and_choices_are_completed(line: str) -> None:
    """As the script in a shell asks for it; no server is needed."""
    number = str(len(line.split()) - 1)
    done = cutaway(_CUTAWAY_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=number, CUTAWAY_ADDRESS=NOBODY)
    assert sorted(done.stdout.split()) == OFFERED[line].split()


@pytest.mark.slow
def test_bash_completes(tmp_path: Path) -> None:
    """What the commands offer arrives in a shell that has run the script."""
    offered = {line: OFFERED[line] for line in ["cutaway batch r"]}
    script = """
eval "$(cutaway --show-completion bash)"
for line in "$@"; do
    COMP_WORDS=($line)
    COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
    _cutaway_completion cutaway
    echo $(printf '%s\\n' "${COMPREPLY[@]}" | sort)
done
"""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(tmp_path), "CUTAWAY_ADDRESS": NOBODY}
    command = ["bash", "-c", script, "bash", *offered]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.splitlines() == list(offered.values())
    assert not done.stderr


@pytest.mark.parametrize(("shell", "line"), [("zsh", "#compdef cutaway"), ("fish", "complete --command cutaway ")])
def test_other_shells_have_scripts(shell: str, line: str) -> None:
    """--show-completion prints the script for the shell that it names."""
    assert line in said("--show-completion", shell)


def test_completion_is_installed_in_the_home_directory(tmp_path: Path) -> None:
    """--install-completion bash adds to ~/.bashrc what loads the script."""
    text = said("--install-completion", "bash", HOME=str(tmp_path))
    (script,) = tmp_path.glob(".bash_completions/*")
    assert "_cutaway_completion" in script.read_text()
    assert script.name in (tmp_path / ".bashrc").read_text()
    assert script.name in text
