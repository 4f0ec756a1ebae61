"""``cutaway batch``: jobs over whole data sets. A command imports torch and Arrow when it is called."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from cutaway.cli import console_output
from cutaway.config import openmp
from cutaway.errors import CutawayError, Reason, error
from cutaway.tables import empty_table

if TYPE_CHECKING:
    from cutaway.jobs import Job, Plan, Summary, Watcher

TOO_MANY_BAD_ROWS, BAD_INPUT, INTERRUPTED = 1, 2, 3
"""Exit statuses."""

_STATUS_HELP = """\
Exit status: 0 done; 1 more bad rows than max_bad_rows; 2 an error in the job, the model or the data;
3 interrupted: the same command continues the job.
"""

app = typer.Typer(help="Run jobs over whole data sets.", no_args_is_help=True, rich_markup_mode=None)

Spec = Annotated[
    Path, typer.Argument(metavar="JOB.yaml", help="The job: model, data, request and output.", show_default=False)
]


@app.command(epilog=_STATUS_HELP)
def run(
    spec: Spec,
    metrics_address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Serve metrics for Prometheus there while the job runs.")
    ] = "",
) -> None:
    """Run a job; files that an earlier run of it has written are kept."""
    openmp.wait_briefly(os.environ)  # before torch is loaded
    with console_output.requires_extra("jobs"):
        from cutaway.gateway.observability.metrics_endpoint import metrics_endpoint
        from cutaway.jobs import Job, progress
        from cutaway.jobs import run as run_job
    with _exit_statuses(), ExitStack() as stack:
        job = Job.load(spec)
        watchers: list[Watcher] = [
            progress.Bar(console) if (console := Console()).is_terminal else progress.Lines(console_output.print_line)
        ]
        if metrics_address:
            metrics = progress.Metrics()
            address = stack.enter_context(metrics_endpoint(metrics.registry, metrics_address))
            console_output.print_line(f"metrics: http://{address}/metrics")
            watchers.append(metrics)
        summary = run_job(job, *watchers)
        _print_summary(summary, progress.outcome(summary))


@app.command(epilog=_STATUS_HELP)
def plan(spec: Spec) -> None:
    """Estimate a job's passes, size and time from a few rows, whose results are discarded."""
    with console_output.requires_extra("jobs"):
        from cutaway.jobs import Job
        from cutaway.jobs import plan as plan_job
    with _exit_statuses():
        job = Job.load(spec)
        _print_plan(plan_job(job), job)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The output folder of a job.", show_default=False)],
) -> None:
    """Write a job's results as one page, _report.html in its folder."""
    with console_output.requires_extra("jobs"):
        from cutaway.jobs import report as write_report
    with _exit_statuses():
        console_output.print_line(f"written: {write_report(folder)}")


def _print_plan(plan: Plan, job: Job) -> None:
    table = empty_table("The job would take", "resource", "amount", numbers=1)
    rows = {
        "rows": f"{plan.rows:,}",
        "shards": f"{plan.shards:,}",
        "batches": f"{plan.batches:,}",
        "forward passes": f"{plan.forwards:,}",
        "backward passes": f"{plan.backwards:,}",
        "bytes": f"about {plan.bytes:,}",
        "time": f"about {_duration(plan.seconds)}, by one model",
    }
    for name, value in rows.items():
        table.add_row(Text(name), Text(value))
    console_output.print_blocks(table)
    console_output.print_line(f"into {job.output.folder}; columns: {', '.join(plan.columns)}")


def _print_summary(summary: Summary, outcome: str) -> None:
    console_output.print_line(f"done: {summary.rows:,} rows in {summary.folder}, in {_duration(summary.seconds)}")
    if summary.kept:
        console_output.print_line(
            f"{summary.kept:,} of {summary.kept + summary.written:,} files were written by an earlier run"
        )
    if outcome:
        console_output.print_line(outcome)
    if summary.bad:
        console_output.print_line("the columns error and error_message hold the errors of bad rows", style="yellow")


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


@contextmanager
def _exit_statuses() -> Iterator[None]:
    """Turns the block's errors into exit statuses; SIGTERM interrupts it as Ctrl-C does."""
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except KeyboardInterrupt:
        failure = error(Reason.JOB_INTERRUPTED, "interrupted; the same command continues the job")
        console_output.print_error(str(failure))
        raise typer.Exit(INTERRUPTED) from None
    except CutawayError as failure:
        console_output.print_error(str(failure))
        raise typer.Exit(_STATUSES.get(failure.reason, BAD_INPUT)) from None
    finally:
        signal.signal(signal.SIGTERM, previous)


_STATUSES: dict[str, int] = {
    Reason.TOO_MANY_BAD_ROWS: TOO_MANY_BAD_ROWS,
    Reason.JOB_INTERRUPTED: INTERRUPTED,
}


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
