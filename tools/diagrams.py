"""Draws the Mermaid diagrams of the documentation for the site: ``python -m tools.diagrams MERMAID_JS``.

A repository browser draws them itself. On the site, Mermaid would be 3 MB of JavaScript for two pictures; so each
drawing is a file, docs/diagrams/HASH.svg, named by the SHA-256 of its source: a diagram that changed has none.
"""

from __future__ import annotations

import hashlib
import html
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
DRAWINGS = DOCS / "diagrams"
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)

_PAGE = """<!doctype html><meta charset="utf-8"><script src="{script}"></script>{sources}<script>
mermaid.initialize({{startOnLoad: false, theme: "neutral", htmlLabels: false, deterministicIds: true,
                     fontFamily: "sans-serif", suppressErrorRendering: true}});
mermaid.run();
</script>"""
_DRAWING = re.compile(r'<pre class="mermaid"[^>]*>(<svg.*?</svg>)</pre>', re.DOTALL)


def sources() -> Iterator[str]:
    """Yields the source of each diagram of a page of docs/."""
    for page in sorted(DOCS.rglob("*.md")):
        yield from DIAGRAM.findall(page.read_text("utf-8"))


def drawing(source: str) -> Path:
    """Returns the file with the drawing of ``source``."""
    return DRAWINGS / f"{hashlib.sha256(source.encode()).hexdigest()[:12]}.svg"


def draw(script: Path) -> None:
    """Draws all diagrams in Chromium, with the library ``script``, and removes the drawings of earlier ones."""
    diagrams = list(sources())
    shown = "".join(f'<pre class="mermaid">{html.escape(source)}</pre>' for source in diagrams)
    with tempfile.TemporaryDirectory() as directory:
        page = Path(directory, "page.html")
        page.write_text(_PAGE.format(script=script.resolve().as_uri(), sources=shown), "utf-8")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"]
        shell = subprocess.run(["chromium", *options, page.as_uri()], capture_output=True, text=True, check=True)
    drawn = _DRAWING.findall(shell.stdout)
    if len(drawn) != len(diagrams):
        raise SystemExit(f"{len(drawn)} of {len(diagrams)} diagrams could be drawn: is one not Mermaid?")
    for old in DRAWINGS.glob("*.svg"):
        old.unlink()
    for source, svg in zip(diagrams, drawn):
        drawing(source).write_text(svg.replace("<br>", "<br/>") + "\n", "utf-8")


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
