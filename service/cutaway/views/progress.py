"""A bar that shows how far the attributions of a request are: on a terminal, or in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cutaway.contract.errors import Reason, error
from cutaway.contract.results import Progress

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def bar() -> Iterator[Callable[[Progress], None]]:
    """Returns what shows progress: in a notebook as HTML, else on stderr if that is a terminal.

    Raises:
        FailedPrecondition: ``PACKAGE_MISSING``, if rich is not installed.
    """
    if _is_notebook():
        with _in_notebook() as show:
            yield show
        return
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        what = "progress=True needs rich, which is not installed: pip install 'cutaway[cli]'"
        raise error(Reason.PACKAGE_MISSING, what, "progress") from None
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda progress: None
        return
    with on_terminal(console) as show:
        yield show


@contextmanager
def on_terminal(console: Console) -> Iterator[Callable[[Progress], None]]:
    """Returns what shows progress on ``console``, where the bar disappears at the end of the block."""
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    bars = Bars(BarColumn(), TextColumn("{task.description}", markup=False), console=console, transient=True)
    task = bars.add_task("", total=None)

    def show(progress: Progress) -> None:
        bars.start()
        bars.update(task, completed=progress.passes_done, total=progress.passes, description=text(progress))

    try:
        yield show
    finally:
        bars.stop()


@contextmanager
def _in_notebook() -> Iterator[Callable[[Progress], None]]:
    import IPython.display

    notebook: Any = IPython.display
    shown: Any = None

    def show(progress: Progress) -> None:
        nonlocal shown
        bar = f'<progress value="{progress.passes_done}" max="{progress.passes}"></progress> {text(progress)}'
        if shown is None:
            shown = notebook.display(notebook.HTML(bar), display_id=True)
        else:
            shown.update(notebook.HTML(bar))

    try:
        yield show
    finally:
        if shown is not None:
            shown.update(notebook.HTML(""))


def text(progress: Progress) -> str:
    """Returns ``attribution 2: 120 of 256 passes, 12 s left``."""
    passes = f"{progress.passes_done:,} of {progress.passes:,} passes"
    return f"attribution {progress.attribution + 1}: {passes}, {_duration(progress.seconds_left)} left"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(max(1, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _is_notebook() -> bool:
    """Returns whether this process is the kernel of a notebook; imports nothing."""
    shell = sys.modules.get("IPython")
    return shell is not None and hasattr(shell.get_ipython(), "kernel")
