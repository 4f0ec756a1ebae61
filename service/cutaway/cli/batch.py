"""``cutaway batch``: jobs over whole data sets. A command imports torch and Arrow when it is called."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from cutaway.cli import console_output
from cutaway.cli.console_output import AsJson, argument, option
from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.server.processes import environment
from cutaway.views.tables import empty_table

if TYPE_CHECKING:
    from cutaway.jobs import Drift, Job, Plan, Summary, Watcher

TOO_MANY_BAD_ROWS, BAD_INPUT, INTERRUPTED = 1, 2, 3
"""Exit statuses."""

_STATUS_HELP = """\
Exit status: 0 done; 1 more bad rows than max_bad_rows; 2 an error in the job, the model or the data;
3 interrupted: the same command continues the job.
"""

app = typer.Typer(help="Run jobs over whole data sets.", no_args_is_help=True, rich_markup_mode=None)

Spec = Annotated[Path, argument("JOB.yaml", "The job: model, data, request and output.")]


@app.command(epilog=_STATUS_HELP)
def run(
    spec: Spec,
    metrics_address: Annotated[str, option("HOST:PORT", "Serve metrics for Prometheus there while the job runs.")] = "",
    as_json: AsJson = False,
) -> None:
    """Run a job; files that an earlier run of it has written are kept."""
    environment.wait_briefly(os.environ)  # before torch is loaded
    with console_output.requires_extra("jobs"):
        from cutaway.jobs import Job, progress
        from cutaway.jobs import run as run_job
        from cutaway.server.observability.prometheus import metrics_endpoint
    with _exit_statuses(), ExitStack() as stack:
        job = Job.load(spec)
        console = console_output.new_console(stderr=as_json)
        say = partial(console_output.print_line, to_stderr=as_json)
        watchers: list[Watcher] = [progress.Bar(console) if console.is_terminal else progress.ProgressLines(say)]
        if metrics_address:
            metrics = progress.JobMetrics()
            address = stack.enter_context(metrics_endpoint(metrics.registry, metrics_address))
            say(f"metrics: http://{address}/metrics")
            watchers.append(metrics)
        with console_output.own_stdout(as_json):
            summary = run_job(job, *watchers)
        if as_json:
            console_output.print_json(summary)
            return
        _print_summary(summary, progress.outcome(summary))


@app.command(epilog=_STATUS_HELP)
def plan(spec: Spec, as_json: AsJson = False) -> None:
    """Estimate a job's passes, size and time from a few rows, whose results are discarded."""
    with console_output.requires_extra("jobs"):
        from cutaway.jobs import Job
        from cutaway.jobs import plan as plan_job
    with _exit_statuses():
        job = Job.load(spec)
        with console_output.waiting("computing a few rows"), console_output.own_stdout(as_json):
            estimate = plan_job(job)
        if as_json:
            console_output.print_json(estimate)
            return
        _print_plan(estimate, job)


@app.command()
def report(folder: Annotated[Path, argument("FOLDER", "The output folder of a job.")], as_json: AsJson = False) -> None:
    """Write a job's results as one page, _report.html in its folder."""
    with console_output.requires_extra("jobs"):
        from cutaway.jobs import report as write_report
    with _exit_statuses():
        with console_output.waiting("writing the report"):
            path = write_report(folder)
        if as_json:
            console_output.print_json(console_output.Report(path))
            return
        console_output.print_line(f"written: {path}")


_COMPARED = "Exit status: 0 no alarm; 7 an alarm; 2 a folder or a limit is wrong; 3 interrupted."


@app.command(epilog=_COMPARED)
def compare(
    before: Annotated[Path, argument("BEFORE", "The output folder of a job.")],
    after: Annotated[Path, argument("AFTER", "That of another job: a later model, or later data.")],
    limit: Annotated[str, option("MEASURE=NUMBER,...", "Limits in place of the defaults: ndcg=0.95,psi=0.1.")] = "",
    prometheus: Annotated[
        Path | None, option("FILE.prom", "Write the measures for the textfile collector of Prometheus.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how the results of a job differ from those of another one; an alarm has an exit status of its own."""
    with console_output.requires_extra("jobs"):
        from cutaway.jobs import compare as compare_jobs
        from cutaway.jobs.progress import write_metrics
    with _exit_statuses():
        limits = _limits(limit)
        with console_output.waiting("comparing"):
            drift = compare_jobs(before, after, limits)
        if prometheus is not None:
            write_metrics(drift, prometheus)
        if as_json:
            console_output.print_json(drift)
        else:
            _print_drift(drift)
    if drift.alarm:
        raise typer.Exit(console_output.DIFFERS)


def _limits(text: str) -> dict[str, float]:
    """Returns the limits in ``ndcg=0.95,psi=0.1``."""
    limits = {}
    for part in filter(None, text.split(",")):
        name, _, number = part.partition("=")
        try:
            limits[name.strip()] = float(number)
        except ValueError:
            what = f"{part.strip()!r} is no limit: write MEASURE=NUMBER, such as psi=0.1"
            raise error(Reason.INVALID_VALUE, what, "--limit") from None
    return limits


def _print_drift(drift: Drift) -> None:
    table = empty_table(f"{drift.before} -> {drift.after}", "column", "measure", "value", "limit", "detail",
                        folds=("column", "detail"))  # fmt: skip
    for each in drift.measures:
        shown = "" if each.limit is None else f"{each.limit:.3g}"
        style = "bold red" if each.alarm else ""
        value = Text(f"{each.value:.3g}{' ALARM' if each.alarm else ''}", style=style)
        table.add_row(Text(each.column), Text(each.measure), value, Text(shown), Text(each.detail))
    console_output.print_blocks(table)
    rows = f"{drift.before_rows:,} rows before, {drift.after_rows:,} after; {drift.same_ids:,} with the same id"
    console_output.print_line(rows)
    for column, why in drift.not_compared.items():
        console_output.print_line(f"not compared: {column}: {why}", style="yellow")
    for when, columns in (("before", drift.only_before), ("after", drift.only_after)):
        if columns:
            console_output.print_line(f"only {when}: {', '.join(columns)}", style="yellow")
    for folder in drift.unfinished:
        console_output.print_line(f"the job of {folder} has not ended: only its rows so far", style="yellow")
    alarms = sum(each.alarm for each in drift.measures)
    console_output.print_line(f"{alarms} alarms" if alarms != 1 else "1 alarm", style="bold red" if alarms else "green")


@app.command(epilog="Exit status: 0 done; 2 the folder, the column, the row or the channel is wrong.")
def similar(
    folder: Annotated[Path, argument("FOLDER", "The output folder of a job.")],
    column: Annotated[str, option("COLUMN", "The column by which rows are found: capture:conv2@output.")],
    row: Annotated[str | None, option("ID", "Find the rows that are nearest to this one.")] = None,
    channel: Annotated[int | None, option("N", "Find the rows in which this channel is most active.")] = None,
    k: Annotated[int, option("K", "How many rows.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Find the rows of a job that looked alike to the model, or those that activate a channel most."""
    with console_output.requires_extra("jobs"):
        from cutaway.jobs import read
    with _exit_statuses():
        results = read(folder)
        if row is not None and channel is None:
            found = results.similar(column, row, k)
        elif row is None and channel is not None:
            found = results.top(column, channel, k)
        else:
            raise error(Reason.INVALID_VALUE, "name one of --row and --channel", "--row")
        if as_json:
            console_output.print_json(found)
            return
        table = empty_table(found.column, "row", "id", "prediction", "label", found.value, numbers=1, folds=("id",))
        for each in found.rows:
            cells = str(each.row), each.id, each.prediction, each.label, f"{each.value:.4g}"
            table.add_row(*map(Text, cells))
        console_output.print_blocks(table)


_MOST_ELEMENTS = 20
_STATISTICS = ("count", "mean", "std_dev", "min", "max")


@app.command(epilog="Exit status: 0 done; 2 the folder or a column is wrong.")
def statistics(
    folder: Annotated[Path, argument("FOLDER", "The output folder of a job.")],
    column: Annotated[str, option("COLUMN", "The column that is summarised: attribution:saliency:image.")],
    by: Annotated[str, option("COLUMN", "Summarise the rows of each value of this column: prediction, label.")] = "",
    save: Annotated[Path | None, option("FILE.npz", "Write the arrays of all statistics there.")] = None,
) -> None:
    """Summarise a column of a job over its rows: for each element count, mean, deviation, least and largest."""
    with console_output.requires_extra("jobs"):
        import numpy as np

        from cutaway.jobs import read
    with _exit_statuses():
        results = read(folder)
        found = results.statistics(column, by)
        if save is not None:
            arrays: dict[str, Any] = {
                f"{group}/{name}" if by else name: each for group, of in found.items() for name, each in of.items()
            }
            np.savez(save, **arrays)
        names = results.feature_names(column)
        table = empty_table(column, *([by] if by else []), "element", *_STATISTICS, numbers=len(_STATISTICS))
        for group, of in found.items():
            magnitudes = np.abs(of["mean"]).reshape(-1)
            for place in np.argsort(-magnitudes, kind="stable")[:_MOST_ELEMENTS].tolist():
                index = [int(each) for each in np.unravel_index(place, of["mean"].shape)]
                element = names[index[-1]] if len(index) == 1 and index[-1] < len(names) else str(index)
                values = [f"{of[name].reshape(-1)[place]:.4g}" for name in _STATISTICS]
                table.add_row(*map(Text, [*([group] if by else []), element, *values]))
        console_output.print_blocks(table)


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
    from cutaway.server.child_processes import give_children_default_signals

    previous = signal.signal(signal.SIGTERM, _interrupt)
    give_children_default_signals()
    try:
        yield
    except KeyboardInterrupt:
        failure = error(Reason.JOB_INTERRUPTED, "interrupted; the same command continues the job")
        raise _exit(failure, INTERRUPTED) from None
    except CutawayError as failure:
        raise _exit(failure, _STATUSES.get(failure.reason, BAD_INPUT)) from None
    finally:
        signal.signal(signal.SIGTERM, previous)


def _exit(failure: CutawayError, status: int) -> typer.Exit:
    """Prints ``failure``; returns what ends the command with ``status``."""
    console_output.print_error(str(failure), replace(console_output.of_call(failure), exit_status=status))
    return typer.Exit(status)


_STATUSES: dict[str, int] = {Reason.TOO_MANY_BAD_ROWS: TOO_MANY_BAD_ROWS, Reason.JOB_INTERRUPTED: INTERRUPTED}


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
