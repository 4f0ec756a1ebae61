"""Hooks of mkdocs (mkdocs.yml): links from a page to files outside docs/ work on the site too.

A page links to a file of the repository by its relative path, as a repository browser needs it. The site gets a page
for each such file, below ``source/``: Markdown as it is, a folder as the list of its files, everything else as code.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.diagrams import DIAGRAM, DOCS, drawing

ROOT = Path(__file__).parent.parent
SOURCE = "source/"
"""Where the site has the pages of files outside docs/."""

_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
_FENCE = re.compile(r"`{3,}")
_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
_CODE = re.compile(r"`[^`]+`")
_HIDDEN = re.compile(r"(^|/)(\.|__pycache__|node_modules)|\.binpb$|^testdata$|^gen$")
_LANGUAGES = {".py": "python", ".js": "javascript", ".json": "json", ".proto": "proto", ".yml": "yaml", ".yaml": "yaml"}
_NO_SEARCH = "---\nsearch: {exclude: true}\n---\n\n"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds the decisions to the navigation, in place of their folder."""
    decisions = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    for section in config.nav or []:
        for entry in next(iter(section.values())) if isinstance(section, dict) else ():
            if isinstance(entry, dict) and entry.get("Decisions"):
                entry["Decisions"] = [f"decisions/{path.name}" for path in decisions]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page for each file outside docs/ that a page links to, and for those that these link to."""
    waiting = [(file.src_uri, file.content_string) for file in files.documentation_pages()]
    while waiting:
        uri, text = waiting.pop()
        for path in outside_links(uri, text):
            if files.get_file_from_path(site_path(path)) is None:
                content = source_page(path)
                files.append(File.generated(config, site_path(path), content=content))
                waiting.append((site_path(path), content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Points each link to a file of the repository to that file's page of the site, and shows drawings and pipes."""
    return with_drawings(page.file.src_uri, with_pipes(relinked(page.file.src_uri, markdown)))


def outside_links(uri: str, text: str) -> Iterator[PurePosixPath]:
    """Yields the paths, in the repository, of the files outside docs/ that the page ``uri`` of the site links to."""
    for match in _LINK.finditer(text) if _has_links(uri) else ():
        path = _target(uri, match[1])
        if site_path(path).startswith(SOURCE) and (ROOT / path).exists():
            yield path


def relinked(uri: str, text: str) -> str:
    """Returns ``text`` of the page ``uri`` with its links to files of the repository as links between pages."""

    def replacement(match: re.Match[str]) -> str:
        path = _target(uri, match[1])
        if not (ROOT / path).exists():
            return match[0]  # mkdocs reports it
        return posixpath.relpath(site_path(path), posixpath.dirname(uri) or ".") + (match[2] or "")

    return _LINK.sub(replacement, text) if _has_links(uri) else text


def with_pipes(text: str) -> str:
    """Returns ``text`` with plain pipes in the code of tables; elsewhere a backslash is needed, and here it shows."""
    return _ROW.sub(lambda row: _CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), text)


def with_drawings(uri: str, text: str) -> str:
    """Returns ``text`` of the page ``uri`` with the drawing of each Mermaid diagram in place of its source."""

    def picture(match: re.Match[str]) -> str:
        path = drawing(match[1])
        if not path.exists():
            raise PluginError(f"{uri} has a diagram without a drawing; run: make diagrams")
        return f"![{match[1].split()[0]}]({posixpath.relpath(path.relative_to(DOCS), posixpath.dirname(uri) or '.')})"

    return DIAGRAM.sub(picture, text)


def site_path(path: PurePosixPath) -> str:
    """Returns the path in the site's sources of the page, or picture, of a file of the repository."""
    if path.parts[0] == "docs" and path.suffix:
        return str(path.relative_to("docs"))
    return f"{SOURCE}{path}" if path.suffix == ".md" else f"{SOURCE}{path}.md"


def source_page(path: PurePosixPath) -> str:
    """Returns the Markdown of the page of a file or folder outside docs/, which the site's search leaves out."""
    file = ROOT / path
    if file.is_dir():
        inside = sorted(each.name for each in file.iterdir() if not _HIDDEN.search(each.name))
        return _NO_SEARCH + "\n".join([f"# {path}", "", *(f"- [{name}]({path.name}/{name})" for name in inside), ""])
    text = file.read_text("utf-8")
    if path.suffix == ".md":
        return _NO_SEARCH + text
    fence = "`" * max([3, *(len(run) + 1 for run in _FENCE.findall(text))])
    return f"{_NO_SEARCH}# {path}\n\n{fence}{_LANGUAGES.get(path.suffix, 'text')}\n{text}\n{fence}\n"


def _repository_path(uri: str) -> PurePosixPath:
    """Returns the path in the repository of what the page ``uri`` of the site shows; inverse of `site_path`."""
    if not uri.startswith(SOURCE):
        return PurePosixPath("docs", uri)
    path = uri.removeprefix(SOURCE)
    return PurePosixPath(path if (ROOT / path).exists() else path.removesuffix(".md"))


def _target(uri: str, link: str) -> PurePosixPath:
    return PurePosixPath(posixpath.normpath(posixpath.join(_repository_path(uri).parent, link)))


def _has_links(uri: str) -> bool:
    """Tells Markdown from code, in which ``](`` is no link."""
    path = _repository_path(uri)
    return path.suffix == ".md" or (ROOT / path).is_dir()
