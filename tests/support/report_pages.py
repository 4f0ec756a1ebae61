"""Reports of jobs, as tests read them: as text, and in a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest


class Tables(HTMLParser):
    """The text of a page's cells: by the id of the section, row by row; and all that it would fetch."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.sections: dict[str, list[list[str]]] = {}
        self.tags: Counter[str] = Counter()
        self.attributes: set[str] = set()
        self.fetched: list[str] = []
        self._section = ""
        self._open = False
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        words = dict(attrs)
        self.tags[tag] += 1
        self.attributes |= words.keys()
        self.fetched += [words[name] or "" for name in ("src", "href", "srcset", "action") if name in words]
        if tag == "section":
            self._section = words["id"] or ""
            self.sections[self._section] = []
        elif tag == "tr":
            self.sections[self._section].append([])
        elif tag in ("td", "th"):
            self._open = True
            self.sections[self._section][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._open = False

    def handle_data(self, data: str) -> None:
        if self._open:
            self.sections[self._section][-1][-1] += data.replace("\u200b", "")


def number(text: str) -> float:
    """What `short_number` wrote."""
    return float(text.split()[0].replace("−", "-").replace(",", ""))


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), "")
in_a_browser = pytest.mark.skipif(not BROWSER, reason="no Chromium here: apt-get install chromium")


POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
"""What a page says may run in it: nothing that a test adds."""


def browse(page: Path, width: int, *options: str) -> str:
    """What the browser says of ``page`` in a window of that width."""
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={page}.d"]
    command += [f"--window-size={width},1200", *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
