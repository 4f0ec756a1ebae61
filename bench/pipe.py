"""Runs a measured process and talks to it in JSON lines over its standard streams.

Imports only the standard library: a peer's environment has this file and no other code of ours.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parent.parent

_GRACE_S = 5.0


class CannotRun(Exception):
    """A prerequisite of a row is missing or failed; the message says which."""


class Pipe:
    """Context manager that runs a Python module as a child process in the repository's root.

    Args:
        module: the module for ``python -m``; it calls `answer` or `announce`.
        arguments: command line arguments.
        python: the interpreter.
        variables: additional environment variables.
    """

    def __init__(
        self, module: str, *arguments: str, python: Path | str = sys.executable, variables: Mapping[str, str] = {}
    ) -> None:
        self._command: Sequence[str] = [str(python), "-m", module, *arguments]
        self._variables = variables

    def __enter__(self) -> Pipe:
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env={**os.environ, **self._variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a group of its own, to be ended with all that it started
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def hear(self) -> Any:
        """Returns the next message of the child.

        Raises:
            CannotRun: the child reported a failure or ended.
        """
        if self._process.stdout is None:
            raise CannotRun("nobody listens")
        for line in self._process.stdout:
            if line.startswith(_MARK):
                said = json.loads(line.removeprefix(_MARK))
                if "failure" in said:
                    raise CannotRun(said["failure"])
                return said["answer"]
        raise CannotRun(f"{' '.join(self._command[1:3])} ended with status {self._process.wait()}")

    def ask(self, what: Any) -> Any:
        """Sends ``what`` and returns the answer."""
        if self._process.stdin is None:
            raise CannotRun("nobody is asked")
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return self.hear()


_MARK = "bench: "
"""Prefix of our lines; libraries print to standard output too."""


def announce(answer: Any) -> None:
    """Called in the child: sends one message without a request."""
    print(f"{_MARK}{json.dumps({'answer': answer})}", flush=True)


def answer(to: Callable[[Any], Any]) -> None:
    """Called in the child: answers requests until standard input closes."""
    for line in sys.stdin:
        try:
            announce(to(json.loads(line)))
        except Exception as failure:  # the row tells it, and the others go on
            print(f"{_MARK}{json.dumps({'failure': f'{type(failure).__name__}: {failure}'})}", flush=True)


def seconds(run: Callable[[], object], count: int) -> list[float]:
    """Returns the durations of ``count`` runs in seconds."""
    found = []
    for _ in range(count):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return found
