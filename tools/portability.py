"""Runs the tests in several configurations of one machine and compares the outcome of each test.

python -m tools.portability                    in every configuration
python -m tools.portability unset loaded       in these
python -m tools.portability sse41 -- -k lrp    arguments behind -- go to pytest

The exit status is 1 if a test fails, or if a test has another outcome in one configuration than in another.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

CONFIGURATIONS: Mapping[str, Mapping[str, str]] = {
    "unset": {},
    "sse41": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "aten-avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "onednn-avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "one-thread": {"OMP_NUM_THREADS": "1"},
    "two-threads": {"OMP_NUM_THREADS": "2"},
    "loaded": {},
}
"""Environment variables by configuration. They choose the instructions of ATen's kernels (see
`torch.backends.cpu.get_cpu_capability`), those of oneDNN's
(https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html) and the number of threads of an operator.
In ``loaded``, a process without end runs on each core beside the tests."""

VARIABLES = {name for variables in CONFIGURATIONS.values() for name in variables}
PYTEST = (sys.executable, "-m", "pytest", "-n", "auto", "--maxprocesses", "4", "--dist", "loadscope")

Outcomes = Mapping[str, str]
"""``passed``, ``failed`` or ``skipped`` by test."""


class Run(NamedTuple):
    """The tests in one configuration.

    Attributes:
        outcomes: the outcome of each test.
        status: the exit status of pytest.
        seconds: the wall-clock time.
    """

    outcomes: Outcomes
    status: int
    seconds: float


def run(configuration: str, arguments: Sequence[str]) -> Run:
    """Runs the tests in one of `CONFIGURATIONS`, with further ``arguments`` for pytest."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment |= CONFIGURATIONS[configuration]
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as directory, busy_cores(configuration == "loaded"):
        report = Path(directory) / "report.xml"
        status = subprocess.run([*PYTEST, f"--junitxml={report}", *arguments], env=environment).returncode
        outcomes = dict(outcomes_of(report.read_bytes())) if report.exists() else {}
    return Run(outcomes, status, time.monotonic() - start)


def outcomes_of(report: bytes) -> Iterator[tuple[str, str]]:
    """Yields each test of a JUnit report with its outcome; an error in a fixture counts as a failure."""
    for case in ElementTree.fromstring(report).iter("testcase"):
        found = {child.tag for child in case}
        outcome = "failed" if found & {"failure", "error"} else "skipped" if "skipped" in found else "passed"
        yield f"{case.get('classname')}::{case.get('name')}", outcome


@contextmanager
def busy_cores(busy: bool) -> Iterator[None]:
    """A block during which, if ``busy``, each core has another process to run as well."""
    count = (os.cpu_count() or 1) if busy else 0
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def table(runs: Mapping[str, Run]) -> Iterator[str]:
    """Yields the lines of a table: a configuration, its counts and its time."""
    yield f"{'configuration':<14}{'passed':>8}{'failed':>8}{'skipped':>9}{'time':>8}"
    for name, found in runs.items():
        counts = Counter(found.outcomes.values())
        minutes, seconds = divmod(round(found.seconds), 60)
        numbers = f"{counts['passed']:>8}{counts['failed']:>8}{counts['skipped']:>9}"
        yield f"{name:<14}{numbers}{f'{minutes}:{seconds:02}':>8}"


def differences(runs: Mapping[str, Run]) -> Iterator[str]:
    """Yields each test whose outcome is not the same in all configurations, with its outcomes."""
    for test in sorted({test for found in runs.values() for test in found.outcomes}):
        outcomes = {name: found.outcomes.get(test, "not run") for name, found in runs.items()}
        if len(set(outcomes.values())) > 1:
            yield f"{test}: " + ", ".join(f"{name} {outcome}" for name, outcome in outcomes.items())


def main(arguments: Sequence[str]) -> int:
    """Runs the chosen configurations, prints the table and what differs; returns the exit status."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    chosen, further = arguments[:split] or list(CONFIGURATIONS), arguments[split + 1 :]
    if unknown := [name for name in chosen if name not in CONFIGURATIONS]:
        print(f"portability: no configuration {', '.join(unknown)}; there are {', '.join(CONFIGURATIONS)}")
        return 2
    runs = {}
    for name in chosen:
        print(f"portability: {name}", *(f"{key}={value}" for key, value in CONFIGURATIONS[name].items()), flush=True)
        runs[name] = run(name, further)
    different = list(differences(runs))
    print(*table(runs), *different, sep="\n")
    return int(bool(different) or any(found.status for found in runs.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
