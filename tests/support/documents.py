"""The code of the documentation: its blocks, and the commands that it names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
"""The pages of docs/, without the decisions."""

_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)
_WRITTEN = re.compile(r"^<!-- commands -->$.*?^<!-- end of commands -->$", re.M | re.S)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        page: the page.
        line: the line of its first fence, from 1.
        language: what follows the fence; empty for commands and output.
        text: its lines.
        reason: why it is not run; empty for one that is.
    """

    page: Path
    line: int
    language: str
    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def by_hand(page: Path) -> str:
    """Returns the text of a page, with empty lines for the commands that `make docs` writes into it."""
    return _WRITTEN.sub(lambda match: "\n" * match[0].count("\n"), page.read_text("utf-8"))


def blocks(page: Path) -> Iterator[Block]:
    """Yields the blocks of a page; ``<!-- not run: REASON -->`` on the line before marks one that is not run."""
    text = by_hand(page)
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        yield Block(page, line, match["language"], match["text"], match["reason"] or "")


def commands(page: Path, program: str) -> Iterator[list[str]]:
    """Yields the words of each command of ``program`` in a page: from blocks without a language, and from the text.

    A command ends where a shell's does, or its comment begins; continued lines are joined.
    """
    for block in blocks(page):
        if not block.language:
            for line in block.text.replace("\\\n", " ").splitlines():
                yield from _of(program, line)
    for span in _SPAN.findall(by_hand(page)):
        yield from _of(program, span)


def _of(program: str, line: str) -> Iterator[list[str]]:
    if not re.search(rf"(^|[|;&] *){program} ", line):
        return
    words = shlex.shlex(line, posix=True, punctuation_chars="|;&<>")
    words.whitespace_split = True
    command: list[str] = []
    for word in (*words, ";"):
        if set(word) <= set("|;&<>"):
            if command[:1] == [program]:
                yield command
            command = []
        else:
            command.append(word)
