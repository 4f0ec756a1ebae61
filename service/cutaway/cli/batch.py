"""``cutaway batch``: jobs over whole data sets. torch and Arrow come in here, and only when a command is called."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from cutaway import threads
from cutaway.cli import screen
from cutaway.errors import CutawayError, Reason, error
from cutaway.tables.cells import heading

if TYPE_CHECKING:
    from cutaway.jobs import Job, Plan, Summary, Watcher

TOO_MANY_BAD_ROWS, BAD_INPUT, INTERRUPTED = 1, 2, 3
"""How a command ends, where not well."""

_ENDS = """\
Exit status: 0 done; 1 more bad rows than max_bad_rows; 2 the job, the model or the data is at fault;
3 interrupted: run the same command again, and it goes on.
"""

app = typer.Typer(help="Explain a whole data set.", no_args_is_help=True, rich_markup_mode=None)

Spec = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="What to ask of which model.", show_default=False)]


@app.command(epilog=_ENDS)
def run(
    spec: Spec,
    metrics_address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where Prometheus may read figures while the job runs.")
    ] = "",
) -> None:
    """Run a job; what an earlier run of it has written is kept."""
    threads.wait_briefly(os.environ)  # before torch is loaded
    with screen.needing("jobs"):
        from cutaway.jobs import Job, progress
        from cutaway.jobs import run as run_job
    with _ending(), ExitStack() as stack:
        job = Job.load(spec)
        watchers: list[Watcher] = [
            progress.Bar(console) if (console := Console()).is_terminal else progress.Lines(screen.say)
        ]
        if metrics_address:
            figures = progress.Figures()
            address = stack.enter_context(progress.published(figures, metrics_address))
            screen.say(f"metrics: http://{address}/metrics")
            watchers.append(figures)
        summary = run_job(job, progress.Several(watchers))
        _summarise(summary, progress.found)


@app.command(epilog=_ENDS)
def plan(spec: Spec) -> None:
    """Say what a job will take, from one batch that is asked about and thrown away."""
    with screen.needing("jobs"):
        from cutaway.jobs import Job
        from cutaway.jobs import plan as plan_job
    with _ending():
        job = Job.load(spec)
        _show(plan_job(job), job)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where a job wrote.", show_default=False)],
) -> None:
    """Write a job's results as one page, report.html in its folder."""
    with screen.needing("jobs"):
        from cutaway.jobs import report as write_report
    with _ending():
        screen.say(f"written: {write_report(folder)}")


def _show(found: Plan, job: Job) -> None:
    table = heading("The job would take", "what", "how much", numbers=1)
    rows = {
        "rows": f"{found.rows:,}",
        "shards": f"{found.shards:,}",
        "batches": f"{found.batches:,}",
        "forward passes": f"{found.forwards:,}",
        "backward passes": f"{found.backwards:,}",
        "bytes": f"about {found.bytes:,}",
        "time": f"about {_duration(found.seconds)}, by one model",
    }
    for name, value in rows.items():
        table.add_row(Text(name), Text(value))
    screen.show(table)
    screen.say(f"into {job.output.folder}; columns: {', '.join(found.columns)}")


def _summarise(summary: Summary, found: Callable[[Summary], str]) -> None:
    screen.say(f"done: {summary.rows:,} rows in {summary.folder}, in {_duration(summary.seconds)}")
    if summary.kept:
        screen.say(f"{summary.kept:,} of {summary.kept + summary.written:,} files were there already")
    if found(summary):
        screen.say(found(summary))
    if summary.bad:
        screen.say("the columns error and error_message say what is wrong with bad rows", style="yellow")


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


@contextmanager
def _ending() -> Iterator[None]:
    """The block's errors become exit statuses; to be asked to stop is to be interrupted."""
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        yield
    except KeyboardInterrupt:
        screen.complain(error(Reason.JOB_INTERRUPTED, "stopped; run the same command again, and it goes on"))
        raise typer.Exit(INTERRUPTED) from None
    except CutawayError as failure:
        screen.complain(failure)
        raise typer.Exit(_STATUSES.get(failure.reason, BAD_INPUT)) from None
    finally:
        signal.signal(signal.SIGTERM, before)


_STATUSES: dict[str, int] = {
    Reason.TOO_MANY_BAD_ROWS: TOO_MANY_BAD_ROWS,
    Reason.JOB_INTERRUPTED: INTERRUPTED,
}


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
