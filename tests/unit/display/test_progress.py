"""The bar of a long call: on a terminal and in a notebook, and nowhere else."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from rich.console import Console

from cutaway.contract.results import Progress
from cutaway.views.progress import bar, on_terminal, text


@pytest.mark.parametrize(
    ("seconds", "left"),
    [(0.0, "1 s"), (12.3, "12 s"), (59.7, "1 min 0 s"), (100.0, "1 min 40 s"), (7260.0, "2 h 1 min")],
)
def test_the_time_that_is_left_reads_as_people_say_it(seconds: float, left: str) -> None:
    assert text(Progress(1200, 25600, seconds, 1)) == f"attribution 2: 1,200 of 25,600 passes, {left} left"


def test_a_terminal_shows_the_last_state_and_then_nothing() -> None:
    file = io.StringIO()
    with on_terminal(Console(file=file, force_terminal=True, width=100)) as show:
        show(Progress(1, 256, 30.0, 0))
        show(Progress(120, 256, 12.0, 0))
    _, shown, after = file.getvalue().rpartition("attribution 1: 120 of 256 passes, 12 s left")
    assert shown
    assert after.endswith("\x1b[2K")  # the line is erased


def test_a_short_call_shows_nothing() -> None:
    file = io.StringIO()
    with on_terminal(Console(file=file, force_terminal=True)):
        pass
    assert file.getvalue() == ""


def test_no_bar_reaches_a_pipe(capfd: pytest.CaptureFixture[str]) -> None:
    with bar() as show:
        show(Progress(1, 2, 3.0, 0))
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def notebook() -> Iterator[CapturingDisplayPublisher]:
    """IPython as the kernel of a notebook has it."""
    shell = InteractiveShell.instance()
    shell.kernel = "a kernel"  # type: ignore[attr-defined]
    shell.display_pub = published = CapturingDisplayPublisher()
    yield published
    InteractiveShell.clear_instance()


def test_a_notebook_shows_one_bar_that_changes(notebook: CapturingDisplayPublisher) -> None:
    """It is gone at the end, also after an error."""
    with suppress(KeyboardInterrupt), bar() as show:
        show(Progress(1, 256, 30.0, 0))
        show(Progress(120, 256, 12.0, 0))
        raise KeyboardInterrupt
    first, second, last = notebook.outputs
    assert '<progress value="1" max="256"></progress>' in first["data"]["text/html"]
    assert "120 of 256 passes, 12 s left" in second["data"]["text/html"]
    assert last["data"]["text/html"] == ""
    assert len({each["transient"]["display_id"] for each in (first, second, last)}) == 1
    assert [each.get("update", False) for each in (first, second, last)] == [False, True, True]


def test_a_notebook_shows_nothing_for_a_short_call(notebook: CapturingDisplayPublisher) -> None:
    with bar():
        pass
    assert notebook.outputs == []
