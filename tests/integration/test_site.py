"""The documentation as a site: it builds without a warning, is complete, and loads nothing from elsewhere."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

import cutaway
from tests.support.documents import ROOT

pytestmark = pytest.mark.slow  # the site is built

LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""Elements that load something when a page is shown, and the attribute with its address."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs-site` builds it: a broken link or anchor, or any other warning, fails."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Loaded(HTMLParser):
    """What a page loads, and the ids of its elements."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.ids: set[str] = set()
        self.classes: set[str] = set()
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        words = {name: value or "" for name, value in attrs}
        self.addresses += [words[name] for name in (LOADS.get(tag, ""),) if name in words]
        self.ids.add(words.get("id", ""))
        self.classes |= set(words.get("class", "").split())


def pages(site: Path) -> Iterator[Loaded]:
    for page in site.rglob("*.html"):
        yield Loaded(page)


def test_nothing_comes_from_elsewhere(site: Path) -> None:
    """No script, style, font or picture of another site; and no diagram, for which the theme would load a script."""
    for page in pages(site):
        assert not [address for address in page.addresses if re.match(r"(\w+:)?//", address)]
        assert "mermaid" not in page.classes
    for style in site.rglob("*.css"):
        loaded = re.findall(r"(?:url\(|@import )['\"]?((?:https?:)?//[^'\")]*)", style.read_text("utf-8"))
        assert not loaded, style
    assert len(list(site.rglob("*.html"))) > 60


def test_every_public_name_is_documented(site: Path) -> None:
    """Each class of `cutaway` has a place on a page of the API."""
    documented = {name.rpartition(".")[2] for path in (site / "api").glob("*.html") for name in Loaded(path).ids}
    exported = {name for name, value in vars(cutaway).items() if inspect.isclass(value)}
    assert len(exported) > 80
    assert exported <= documented


def test_files_beside_the_documentation_have_pages(site: Path) -> None:
    """What pages link to: code, folders and other Markdown."""
    for path in ("CONTRIBUTING", "protos", "protos/google/rpc", "tests/integration/node/client.js"):
        assert (site / "source" / f"{path}.html").exists(), path
    assert 'href="source/tests/integration/node/client.js.html"' in (site / "clients.html").read_text("utf-8")
