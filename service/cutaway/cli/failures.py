"""Why a command failed: as one line for people, as JSON for programs, and as exit status."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any, Protocol

import typer

from cutaway import errors
from cutaway.errors import CutawayError, Reason

USAGE, PACKAGE_MISSING, INTERRUPTED = "USAGE", "PACKAGE_MISSING", "INTERRUPTED"
"""Reasons of the command line itself; all others are those of `cutaway.errors.Reason`."""

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
"""The exit status for each class of errors; 2 is a wrong command line, and 3 an interrupted job."""

STOPPED = 128 + signal.SIGINT
READER_GONE = 128 + 13  # SIGPIPE, which Windows does not have
"""What a shell reports for a program that Ctrl-C ended, or that wrote to a pipe without a reader."""

USAGE_ERROR: Any = typer.BadParameter.__bases__[0]
"""Click's ``UsageError``: typer exports no name for it."""


class UsageError(Protocol):
    """The part of `USAGE_ERROR` that is used here."""

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
