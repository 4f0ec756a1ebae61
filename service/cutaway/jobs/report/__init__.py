"""A job's results as one page of HTML, with its pictures inside and nothing fetched from anywhere."""

from __future__ import annotations

from pathlib import Path

from cutaway.jobs.report.page import Page
from cutaway.jobs.report.pictures import told
from cutaway.jobs.report.results import Results
from cutaway.jobs.shards import no_room

__all__ = ["write_report"]


def write_report(folder: Path) -> Path:
    """Write ``report.html`` into the ``folder`` of a job, and return its path.

    Shards are read twice, a few rows at a time: once without tensors, to find the rows worth showing, and once for
    means, statistics and those rows' tensors. A job that has not ended gives a report of what is there.

    Raises:
        InvalidArgument: ``DATA_UNREADABLE``: no job lies there, or none of its shards is written yet.
        CutawayError: ``JOB_INTERRUPTED``: the page cannot be written.
    """
    results = Results(folder)
    text = _rendered(Page(results))
    path = folder / "report.html"
    try:
        results.folder.write(path, lambda aside: aside.write_text(text, "utf-8"))
    except OSError as failure:
        raise no_room(failure) from None
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
    environment.filters.update(told=told, breaking=_breaking)
    return environment.get_template("page.html.j2").render(page=page)


def _breaking(name: str) -> str:
    """``name``, which a browser may break after each underscore and point."""
    return name.replace("_", "_\u200b").replace(".", ".\u200b")
