"""How far a job is: a bar on a terminal, lines elsewhere, figures for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from cutaway.errors import Reason, error
from cutaway.jobs.running import Summary, Watcher
from cutaway.jobs.task import Written


def found(so_far: Summary) -> str:
    """Verdicts and bad rows, in words: ``saliency 1,797 AGREES; 2 bad rows``."""
    said = [
        f"{name} {', '.join(f'{count:,} {verdict}' for verdict, count in sorted(counts.items()))}"
        for name, counts in so_far.verdicts.items()
        if counts
    ]
    return "; ".join([*said, *([f"{so_far.bad:,} bad row{'s'[: so_far.bad != 1]}"] if so_far.bad else [])])


class Several:
    """Several watchers, each told everything."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = watchers

    def begins(self, total: int, so_far: Summary) -> None:
        """Tell all."""
        for each in self._watchers:
            each.begins(total, so_far)

    def ticks(self, rows: int) -> None:
        """Tell all."""
        for each in self._watchers:
            each.ticks(rows)

    def wrote(self, shard: Written, so_far: Summary) -> None:
        """Tell all."""
        for each in self._watchers:
            each.wrote(shard, so_far)

    def ends(self) -> None:
        """Tell all."""
        for each in self._watchers:
            each.ends()


class Bar:
    """A bar with rows, rows a second, time left and what was found so far."""

    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[found]}"),
            console=console,
            expand=True,
        )

    def begins(self, total: int, so_far: Summary) -> None:
        """Show the bar."""
        self._task = self._bar.add_task("", total=total, completed=so_far.rows, found=found(so_far))
        self._bar.start()

    def ticks(self, rows: int) -> None:
        """Move on."""
        self._bar.advance(self._task, rows)

    def wrote(self, shard: Written, so_far: Summary) -> None:
        """Say what was found."""
        self._bar.update(self._task, found=found(so_far))

    def ends(self) -> None:
        """Leave the bar where it is."""
        self._bar.stop()


class _Rate(ProgressColumn):
    """Rows a second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f} rows/s", style="progress.data.speed")


class Lines:
    """A line when work begins, and one after a shard where some time has passed since the last.

    Args:
        say: prints one.
        every_s: how long to be silent, in seconds.
    """

    def __init__(self, say: Callable[[str], None], every_s: float = 10.0) -> None:
        self._say = say
        self._every_s = every_s

    def begins(self, total: int, so_far: Summary) -> None:
        """Say how much there is to do."""
        self._total, self._before = total, so_far.rows
        self._start = self._last = time.monotonic()
        there = f", {so_far.rows:,} are there already" if so_far.rows else ""
        self._say(f"{total:,} rows{there}")

    def ticks(self, rows: int) -> None:
        """Nothing: a line tells of shards."""

    def wrote(self, shard: Written, so_far: Summary) -> None:
        """Say how far it is, unless that was said just now."""
        now = time.monotonic()
        if now - self._last < self._every_s and so_far.rows < self._total:
            return
        self._last = now
        rate = (so_far.rows - self._before) / max(now - self._start, 1e-9)
        left = (self._total - so_far.rows) / rate
        self._say(f"{so_far.rows:,} of {self._total:,} rows, {rate:,.0f} rows/s, {left:,.0f} s left; {found(so_far)}")

    def ends(self) -> None:
        """Nothing: the summary is another's."""


class Figures:
    """Counters and gauges, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._total = Gauge("cutaway_job_rows", "Rows of the data set.", registry=self.registry)
        self._asked = Counter("cutaway_job_rows_asked_total", "Rows asked about by this run.", registry=self.registry)
        self._written = Gauge("cutaway_job_rows_written", "Rows on disk.", registry=self.registry)
        self._bad = Gauge("cutaway_job_bad_rows", "Bad rows on disk.", registry=self.registry)
        self._verdicts = Gauge(
            "cutaway_job_verdicts", "Rows by what checks found.", ("attribution", "verdict"), registry=self.registry
        )

    def begins(self, total: int, so_far: Summary) -> None:
        """Set them to what is there already."""
        self._total.set(total)
        self._set(so_far)

    def ticks(self, rows: int) -> None:
        """Count them."""
        self._asked.inc(rows)

    def wrote(self, shard: Written, so_far: Summary) -> None:
        """Set them to what is there now."""
        self._set(so_far)

    def ends(self) -> None:
        """Nothing: the last figures stay to be read."""

    def _set(self, so_far: Summary) -> None:
        self._written.set(so_far.rows)
        self._bad.set(so_far.bad)
        for name, counts in so_far.verdicts.items():
            for verdict, count in counts.items():
                self._verdicts.labels(name, verdict).set(count)


@contextmanager
def published(figures: Figures, address: str) -> Iterator[str]:
    """Prometheus may read ``figures`` over HTTP while the block runs, at the ``HOST:PORT`` that the block is given.

    Raises:
        InvalidArgument: ``INVALID_VALUE``: one cannot listen there.
    """
    host, _, port = address.rpartition(":")
    try:
        server, thread = start_http_server(int(port), host.strip("[]") or "127.0.0.1", registry=figures.registry)
    except (OSError, ValueError, OverflowError) as failure:
        raise error(Reason.INVALID_VALUE, f"cannot listen at {address}: {failure}", "metrics_address") from None
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
