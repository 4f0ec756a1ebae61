"""The tables of docs/checks.md, from those of the code: ``python -m tests.documents`` writes them (`make docs`)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from cutaway.engine.method import Method
from cutaway.engine.methods import TABLE
from cutaway.requests import Attribution
from cutaway.results import Cause

PAGE = Path(__file__).parent.parent / "docs" / "checks.md"
SOURCE = re.compile(r"(?:arXiv|doi):[^\s,;]*[^\s,;.]")


def tables() -> dict[str, str]:
    """Each table of the page, by its name."""
    return {"methods": "\n".join(_methods()), "causes": "\n".join(_causes())}


def _methods() -> Iterator[str]:
    yield "| method | must equal, from raw hooks | passes | tolerance: float64, float32, bfloat16, float16 | source |"
    yield "|---|---|---|---|---|"
    for kind, method in sorted(TABLE.items(), key=lambda row: row[0].__name__):
        tolerance = ", ".join(f"{each:g}" for each in method.tolerances)
        yield f"| {kind.__name__} | {_cell(method)} | {_passes(method)} | {tolerance} | {source(kind)} |"


def _cell(method: Method) -> str:
    return method.identity.replace("|", "\\|")


def _passes(method: Method) -> str:
    return "Captum's or own" if method.own is None else "own"


def source(kind: type[Attribution]) -> str:
    """Where the method comes from, as its own documentation, or that of what it is a kind of, cites it."""
    for each in kind.__mro__:
        found = SOURCE.findall(" ".join((each.__doc__ or "").split()))
        if found:
            return ", ".join(dict.fromkeys(found))
    return ""


def _causes() -> Iterator[str]:
    yield "| cause | what happened |"
    yield "|---|---|"
    text = inspect.getsource(Cause)
    for name, meaning in re.findall(r'^    (\w+) = "\w+"\n    """(.*?)"""', text, re.MULTILINE | re.DOTALL):
        yield f"| `{name}` | {' '.join(meaning.split())} |"


def written(page: str) -> str:
    """``page`` with its tables as they must be."""
    for name, table in tables().items():
        between = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        page = between.sub(lambda match, table=table: f"{match[1]}{table}\n{match[2]}", page)  # type: ignore[misc]
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
