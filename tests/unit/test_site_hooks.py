"""Pages read the same in a repository browser and on the site: links, pipes in tables, diagrams."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from mkdocs.exceptions import PluginError

from tools import site_hooks
from tools.diagrams import DRAWINGS, drawing, sources


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("index.md", "../CONTRIBUTING.md", "source/CONTRIBUTING.md"),
        ("index.md", "checks.md#methods", "checks.md#methods"),
        ("errors.md", "../protos/google/rpc", "source/protos/google/rpc.md"),
        ("decisions/036-ray-places-workers.md", "../security.md#threat-model", "../security.md#threat-model"),
        ("decisions/036-ray-places-workers.md", "../../examples/demo.py", "../source/examples/demo.py.md"),
        ("source/README.md", "docs/errors.md#errors", "../errors.md#errors"),
        ("source/README.md", "docs/decisions", "docs/decisions.md"),
        ("source/README.md", "docs/digit.png", "../digit.png"),
        ("source/protos/google/rpc.md", "rpc/status.proto", "rpc/status.proto.md"),
    ],
)
def test_links_to_files_of_the_repository_are_links_of_the_site(page: str, link: str, expected: str) -> None:
    """From pages of docs/, from files beside them and from the lists of folders."""
    assert site_hooks.relinked(page, f"[it]({link})") == f"[it]({expected})"


@pytest.mark.parametrize("link", ["https://a.example/b", "#here", "no-such-file.md", "mailto:a@b.example"])
def test_other_links_stay(link: str) -> None:
    """A link to a file that does not exist is left to mkdocs, which fails."""
    assert site_hooks.relinked("index.md", f"[it]({link})") == f"[it]({link})"


def test_code_is_not_taken_for_links() -> None:
    code = "table[0](README.md)"
    assert site_hooks.relinked("source/examples/demo.py.md", code) == code
    assert not list(site_hooks.outside_links("source/examples/demo.py.md", code))


def test_files_outside_have_pages() -> None:
    """Code in a fence that it cannot end, a folder as the list of its files, Markdown as it is."""
    script = site_hooks.source_page(PurePosixPath("tools/diagrams.py"))
    assert "\n````python\n" in script
    assert script.endswith("\n````\n")
    assert "- [status.proto](rpc/status.proto)" in site_hooks.source_page(PurePosixPath("protos/google/rpc"))
    assert "# Contributing\n" in site_hooks.source_page(PurePosixPath("CONTRIBUTING.md"))


def test_pipes_in_code_of_tables_need_no_backslash() -> None:
    assert site_hooks.with_pipes("| `a\\|b` | c \\| d |\n`a\\|b`") == "| `a|b` | c \\| d |\n`a\\|b`"


def test_every_diagram_has_its_drawing() -> None:
    """And no drawing is left of a diagram that changed: `make diagrams` draws them."""
    expected = {drawing(source) for source in sources()}
    assert expected == set(DRAWINGS.glob("*.svg"))
    assert expected


def test_a_diagram_is_shown_as_its_drawing() -> None:
    source = next(sources())
    shown = site_hooks.with_drawings("decisions/001.md", f"```mermaid\n{source}```\n")
    assert shown == f"![flowchart](../diagrams/{drawing(source).name})\n"
    with pytest.raises(PluginError, match="make diagrams"):
        site_hooks.with_drawings("a.md", "```mermaid\nflowchart TD\n  new --> diagram\n```\n")
