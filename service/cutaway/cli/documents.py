"""The JSON documents of commands that print no object of the Python client."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cutaway.results import ModelName
from cutaway.results.comparison import Comparison


@dataclass(frozen=True)
class Models:
    """What ``cutaway models`` prints.

    Attributes:
        models: every model that is served, by name and version.
    """

    models: tuple[ModelName, ...]


@dataclass(frozen=True)
class Package:
    """What ``cutaway package`` prints.

    Attributes:
        archive: the path of the archive.
        bytes: its size, in bytes.
    """

    archive: Path
    bytes: int


@dataclass(frozen=True)
class Token:
    """What ``cutaway token`` prints.

    Attributes:
        token: the token, which nothing else shows again.
        entry: the lines for the server's token file, TOML.
    """

    token: str
    entry: str


@dataclass(frozen=True)
class Report:
    """What ``cutaway batch report`` prints.

    Attributes:
        report: the path of the page.
    """

    report: Path


@dataclass(frozen=True)
class Verification:
    """What ``cutaway verify`` prints.

    Attributes:
        file: the stored explanation.
        model: the model that was asked.
        comparison: how the answer compares with the stored one; null with ``--offline``.
    """

    file: Path
    model: str
    comparison: Comparison | None
