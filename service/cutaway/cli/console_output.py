"""Output of the command line: tables and lines to stdout, errors and progress to stderr."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NoReturn, Protocol

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from cutaway.contract import errors
from cutaway.contract.errors import CutawayError, Reason
from cutaway.contract.results import ModelName, Progress, UnservedArchive
from cutaway.contract.results.comparison import Comparison
from cutaway.contract.results.document import MAX_VALUES, document
from cutaway.contract.values import printable, url_fault
from cutaway.views.progress import on_terminal

USAGE, PACKAGE_MISSING, INTERRUPTED = "USAGE", "PACKAGE_MISSING", "INTERRUPTED"
"""Reasons of the command line itself; all others are those of `cutaway.contract.errors.Reason`."""

WRONG_COMMAND = 2
EXIT_STATUSES: dict[type[CutawayError], int] = {
    errors.InvalidArgument: 1,
    errors.NotFound: 1,
    errors.Unimplemented: 1,
    errors.FailedPrecondition: 1,
    errors.Unauthenticated: 4,
    errors.PermissionDenied: 4,
    errors.ResourceExhausted: 5,
    errors.DeadlineExceeded: 5,
    errors.Unavailable: 5,
    errors.Internal: 6,
}
"""Exit statuses by class of errors; 2 is a wrong command line, and 3 an interrupted job."""

DIFFERS = 7
"""The exit status for an answer that differs from the stored one, and for results of a job that have drifted."""

STOPPED = 128 + signal.SIGINT
READER_GONE = 128 + 13  # SIGPIPE, which Windows does not have
"""Exit statuses of a program that Ctrl-C ended, and of one that wrote to a pipe without a reader, as shells report."""

USAGE_ERROR: Any = typer.BadParameter.__bases__[0]
"""Click's ``UsageError``: typer exports no name for it."""


class UsageError(Protocol):
    """The members of `USAGE_ERROR` that are used here."""

    message: str

    def format_message(self) -> str:
        """Returns the message, with the name of the option."""

    def show(self) -> None:
        """Prints the usage and the message to stderr."""


@dataclass(frozen=True)
class Failure:
    """The error of a command; with ``--json``, a JSON object with the key ``error`` on stderr.

    Attributes:
        reason: stable, for programs: one of docs/errors.md, or USAGE, PACKAGE_MISSING or INTERRUPTED.
        message: for people: what is wrong, and what would be right.
        field: the field of the request at fault, or the option of the command line; "" if there is none.
        code: the gRPC status; "" for an error that no server could have.
        retryable: whether the same command may succeed later.
        retry_after_s: how long to wait before that, in seconds; null if the server did not say.
        exit_status: the exit status of the command.
    """

    reason: str
    message: str
    field: str = ""
    code: str = ""
    retryable: bool = False
    retry_after_s: float | None = None
    exit_status: int = WRONG_COMMAND


def of_call(failure: CutawayError) -> Failure:
    """Returns the failure for an error of the server, of the client or of a file."""
    known = Reason.__members__.get(failure.reason)
    return Failure(
        failure.reason,
        failure.message,
        failure.field,
        code=errors.Code(failure.code).name if failure.code in list(errors.Code) else str(failure.code),
        retryable=known.retryable if known else isinstance(failure, errors.Unavailable),
        retry_after_s=failure.retry_after_s,
        exit_status=EXIT_STATUSES.get(type(failure), EXIT_STATUSES[errors.Internal]),
    )


def of_usage(failure: UsageError) -> Failure:
    """Returns the failure for an error in the command line."""
    parameter = getattr(failure, "param", None)
    option = parameter.opts[0] if parameter else getattr(failure, "param_hint", None)
    return Failure(USAGE, failure.format_message(), option or "")


_PIPED_WIDTH = 120  # columns; without a terminal rich takes 80, and folds lines that a script reads


class _PrintableConsole(Console):
    """A console on which no text of a server, a file or a model can control the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yields what is printed, with escapes in all texts."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


def new_console(*, stderr: bool = False) -> Console:
    """Returns a console for texts of others; a new one for each use, since tests and callers replace sys.stdout."""
    console = _PrintableConsole(stderr=stderr, markup=False, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPED_WIDTH
    return console


def print_blocks(*blocks: RenderableType) -> None:
    """Prints tables and texts with an empty line between them."""
    console = new_console()
    for index, block in enumerate(blocks):
        if index:
            console.print()
        console.print(block)


def print_line(line: str, style: str = "", *, to_stderr: bool = False) -> None:
    """Prints one line at once and unfolded, for a process that waits for it or copies it."""
    console = new_console(stderr=to_stderr)
    console.print(Text(line, style=style), soft_wrap=True)
    console.file.flush()


def print_error(line: str, failure: Failure) -> None:
    """Prints ``line`` to stderr as one red line; with ``--json``, prints ``failure`` in its place."""
    text = Text(" ".join(line.split()), style="red")
    if is_requested():
        text = Text(json.dumps({"error": asdict(failure)}))
    with suppress(OSError):  # stderr itself cannot be written: the exit status is all that is left
        new_console(stderr=True).print(text, soft_wrap=True)


@contextmanager
def waiting(what: str, after_s: float = 1.0) -> Iterator[Callable[[Progress], None] | None]:
    """Shows ``what`` with the elapsed time on stderr while the block runs, from ``after_s`` seconds on.

    Returns a function that shows a bar instead; None, and shows nothing, if stderr is no terminal.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import Progress as Bars
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    console = new_console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    spinner = Bars(*columns, console=console, transient=True)
    spinner.add_task(what)
    timer = threading.Timer(after_s, spinner.start)
    timer.start()

    def stop() -> None:
        timer.cancel()
        timer.join()
        spinner.stop()

    with on_terminal(console) as bar:

        def show(progress: Progress) -> None:
            stop()
            bar(progress)

        try:
            yield show
        finally:
            stop()


def find_packages(*packages: str) -> None:
    """Checks that ``packages`` are installed, without importing them; for use inside `requires_extra`.

    Raises:
        ModuleNotFoundError: a package is not installed.
    """
    for package in packages:
        if find_spec(package) is None:
            raise ModuleNotFoundError(name=package)


@contextmanager
def requires_extra(extra: str) -> Iterator[None]:
    """Ends the program with status 2 if an import in the block fails, and prints how to install ``extra``."""
    try:
        yield
    except ModuleNotFoundError as failure:
        if (failure.name or "").startswith("cutaway"):
            raise
        message = f"{failure.name} is missing; this needs: pip install 'cutaway[{extra}]'"
        print_error(message, Failure(PACKAGE_MISSING, message))
        raise typer.Exit(WRONG_COMMAND) from None


# Options


def option(metavar: str, help: str, **more: Any) -> Any:
    """Returns an option with a value, or several; ``more`` are arguments of `typer.Option`."""
    return typer.Option(metavar=metavar, help=help, callback=more.pop("callback", _no_url), **more)


def flag(name: str, help: str) -> Any:
    """Returns an option without a value, ``--name``."""
    return typer.Option(f"--{name}", help=help)


def argument(metavar: str, help: str, **more: Any) -> Any:
    """Returns an argument; ``more`` are arguments of `typer.Argument`."""
    return typer.Argument(metavar=metavar, help=help, show_default=False, callback=_no_url, **more)


def _no_url(value: Any) -> Any:
    """Refuses URLs where paths are meant: `Path` makes a folder of them."""
    for each in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(each, Path) and (fault := url_fault(each)):
            raise typer.BadParameter(fault)
    return value


EXISTING_FILE: Any = {"exists": True, "dir_okay": False}

# Results as JSON: the fields of the Python objects, by their names, as one document on one line of stdout.

AsJson = Annotated[bool, flag("json", "Print the result, or the error, as one JSON document: docs/command-line.md.")]


def is_requested() -> bool:
    """Returns whether the command line has ``--json``; an error of the command line itself is JSON, too."""
    return "--json" in sys.argv[1:]


@contextmanager
def own_stdout(as_json: bool) -> Iterator[None]:
    """Sends to stderr what a model prints in the block, with ``as_json``: stdout has the document only."""
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        yield


_left: list[threading.Thread] = []


@contextmanager
def threads_of_models() -> Iterator[None]:
    """Notes the threads that a model starts in the block, so that `end` need not wait for them."""
    before = {*threading.enumerate()}
    try:
        yield
    finally:
        _left.extend(thread for thread in threading.enumerate() if thread not in before and not thread.daemon)


def end(status: int) -> NoReturn:
    """Ends the process; Python would wait for ever for a thread of a model that is no daemon."""
    if any(thread.is_alive() for thread in _left):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    raise SystemExit(status)


def print_json(value: Any, kind: type | None = None, *, max_values: int = MAX_VALUES) -> None:
    """Prints ``value`` as a JSON document.

    Args:
        value: a dataclass, a named tuple or a mapping.
        kind: the dataclass whose fields are printed, if ``value`` is of a subclass.
        max_values: the largest number of elements of a tensor whose values are printed.
    """
    print(json.dumps(document(value, kind, max_values=max_values), allow_nan=False), flush=True)


# The JSON documents of commands that print no object of the Python client.


@dataclass(frozen=True)
class Models:
    """The JSON document of ``cutaway models``.

    Attributes:
        models: every model that is served, by name and version.
        unserved: the archives that are not served.
    """

    models: tuple[ModelName, ...]
    unserved: tuple[UnservedArchive, ...]


@dataclass(frozen=True)
class Package:
    """The JSON document of ``cutaway package``.

    Attributes:
        archive: the path of the archive.
        bytes: its size, in bytes.
    """

    archive: Path
    bytes: int


@dataclass(frozen=True)
class Token:
    """The JSON document of ``cutaway token``.

    Attributes:
        token: the token, which nothing else shows again.
        entry: the lines for the server's token file, TOML.
    """

    token: str
    entry: str


@dataclass(frozen=True)
class Report:
    """The JSON document of ``cutaway batch report``.

    Attributes:
        report: the path of the page.
    """

    report: Path


@dataclass(frozen=True)
class Verification:
    """The JSON document of ``cutaway verify``.

    Attributes:
        file: the stored explanation.
        model: the model of the stored request.
        comparison: how the answer compares with the stored one; null with ``--offline``.
    """

    file: Path
    model: str
    comparison: Comparison | None
