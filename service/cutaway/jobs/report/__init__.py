"""Writes the results of a job as one HTML page, with its pictures inside."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from cutaway.contract.errors import Reason, error
from cutaway.jobs.reading import read
from cutaway.jobs.report.page import Page
from cutaway.jobs.shards import write_error
from cutaway.views.pictures import short_number

__all__ = ["write_report"]


def write_report(folder: Path) -> Path:
    """Writes ``_report.html`` into the ``folder`` of a job, and returns its path.

    Shards are read twice, a few rows at a time: without tensors to select the rows to show, and then for means,
    statistics and the tensors of those rows. A report on a job that has not ended covers the shards on disk.

    Raises:
        InvalidArgument: ``DATA_UNREADABLE``: the folder holds no job, or no shard yet.
        CutawayError: ``JOB_INTERRUPTED``: the page cannot be written.
    """
    results = read(folder)
    if not results.folder.parts():
        raise error(Reason.DATA_UNREADABLE, f"{folder} holds no shard yet: run the job first", "folder")
    text = _rendered(Page(results))
    path = results.folder.report
    try:
        results.folder.write(path, lambda temporary: temporary.write_text(text, "utf-8"))
    except OSError as failure:
        raise write_error(failure) from None
    return path


def _rendered(page: Page) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=short_number, breakable=_breakable)
    script = Path(__file__).with_name("filters.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("page.html.j2").render(page=page, script=script, script_digest=digest)


def _breakable(name: str) -> str:
    """Inserts zero-width spaces after underscores and dots, where a browser may break the line."""
    return name.replace("_", "_\u200b").replace(".", ".\u200b")
