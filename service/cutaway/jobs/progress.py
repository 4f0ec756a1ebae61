"""Watchers that show the progress of a job: a bar on a terminal, lines elsewhere, metrics for Prometheus.

Metrics of the drift between two jobs stand beside those of a job.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, write_to_textfile
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
from rich.text import Text

from cutaway.contract.errors import Reason, error
from cutaway.jobs.drift import Drift
from cutaway.jobs.running import Summary, Watcher


def outcome(summary: Summary) -> str:
    """Returns verdicts and bad rows as text: ``saliency 1,797 AGREES; 2 bad rows``."""
    parts = [
        f"{name} {', '.join(f'{count:,} {verdict}' for verdict, count in sorted(counts.items()))}"
        for name, counts in summary.verdicts.items()
        if counts
    ]
    if summary.bad:
        parts.append(f"{summary.bad:,} bad row{'s' if summary.bad > 1 else ''}")
    return "; ".join(parts)


class Bar(Watcher):
    """A bar with the number of rows, rows per second and time left; below it, the outcome so far."""

    def __init__(self, console: Console) -> None:
        self._bar = _WithOutcome(
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(compact=True),
            console=console,
            expand=True,
        )

    def on_start(self, total: int, summary: Summary) -> None:
        """Shows the bar."""
        self._task = self._bar.add_task("", total=total, completed=summary.rows)
        self._bar.outcome = outcome(summary)
        self._bar.start()

    def on_rows(self, count: int) -> None:
        """Advances the bar."""
        self._bar.advance(self._task, count)

    def on_shard(self, summary: Summary) -> None:
        """Updates the outcome."""
        self._bar.outcome = outcome(summary)

    def on_end(self) -> None:
        """Leaves the bar on the terminal, without the outcome, which the summary tells."""
        self._bar.outcome = ""
        self._bar.stop()


class _WithOutcome(Progress):
    """A bar with the outcome in lines of its own, so that a long one takes no place from the bar."""

    outcome = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.outcome:
            yield Text(self.outcome.replace("; ", "\n"), style="dim")


class _Rate(ProgressColumn):
    """A column of a bar with the rows per second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f} rows/s", style="progress.data.speed")


class ProgressLines(Watcher):
    """A watcher that prints a line at the start, at most one every ``every_s`` seconds, and one at the end.

    Args:
        say: prints a line.
        every_s: the shortest time between two lines, in seconds.
    """

    def __init__(self, say: Callable[[str], None], every_s: float = 10.0) -> None:
        self._say = say
        self._every_s = every_s
        self._lock = threading.Lock()

    def on_start(self, total: int, summary: Summary) -> None:
        """Prints the number of rows."""
        self._total, self._kept, self._computed = total, summary.rows, 0
        self._outcome = outcome(summary)
        self._start = self._last = time.monotonic()
        self._say(f"{total:,} rows" + (f", {summary.rows:,} of them already written" if summary.rows else ""))

    def on_rows(self, count: int) -> None:
        """Prints the progress, if the last line is old enough."""
        with self._lock:
            self._computed += count
            if time.monotonic() - self._last >= self._every_s and self._kept + self._computed < self._total:
                self._print()

    def on_shard(self, summary: Summary) -> None:
        """Notes the outcome; prints the last line."""
        with self._lock:
            self._outcome = outcome(summary)
            if summary.rows == self._total:
                self._print()

    def _print(self) -> None:
        self._last = time.monotonic()
        rate = self._computed / max(self._last - self._start, 1e-9)
        done = self._kept + self._computed
        progress = f"{done:,} of {self._total:,} rows, {rate:,.0f} rows/s, {(self._total - done) / rate:,.0f} s left"
        self._say("; ".join(filter(None, (progress, self._outcome))))


class JobMetrics(Watcher):
    """A watcher with counters and gauges in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._total = Gauge("cutaway_job_rows", "Rows of the data set.", registry=self.registry)
        self._computed = Counter("cutaway_job_rows_asked_total", "Rows computed by this run.", registry=self.registry)
        self._written = Gauge("cutaway_job_rows_written", "Rows on disk.", registry=self.registry)
        self._bad = Gauge("cutaway_job_bad_rows", "Bad rows on disk.", registry=self.registry)
        self._verdicts = Gauge(
            "cutaway_job_verdicts", "Rows on disk by verdict.", ("attribution", "verdict"), registry=self.registry
        )

    def on_start(self, total: int, summary: Summary) -> None:
        """Sets the gauges to the rows of earlier runs."""
        self._total.set(total)
        self.on_shard(summary)

    def on_rows(self, count: int) -> None:
        """Counts computed rows."""
        self._computed.inc(count)

    def on_shard(self, summary: Summary) -> None:
        """Sets the gauges to the rows on disk."""
        self._written.set(summary.rows)
        self._bad.set(summary.bad)
        for name, counts in summary.verdicts.items():
            for verdict, count in counts.items():
                self._verdicts.labels(name, verdict).set(count)


def write_metrics(drift: Drift, path: Path) -> None:
    """Writes the measures of ``drift`` as a file for the textfile collector of Prometheus's node exporter.

    Raises:
        InvalidArgument: ``INVALID_VALUE``: the file cannot be written.
    """
    registry = CollectorRegistry()
    names = "before", "after", "column", "measure"
    values = Gauge("cutaway_job_drift", "Drift between the results of two jobs.", names, registry=registry)
    alarms = Gauge("cutaway_job_drift_alarm", "1 for a measure beyond its limit.", names, registry=registry)
    for each in drift.measures:
        labels = str(drift.before), str(drift.after), each.column, each.measure
        values.labels(*labels).set(each.value)
        alarms.labels(*labels).set(each.alarm)
    try:
        write_to_textfile(str(path), registry)
    except OSError as failure:
        raise error(Reason.INVALID_VALUE, f"{path} cannot be written: {failure.strerror}", "--prometheus") from None
