"""The log: lines for calls, starts, restarts and reloads, and for unexpected exceptions.

A line has sizes, durations and the outcome; never a tensor, a token or any text from the caller.
"""

from __future__ import annotations

import logging
import sys
import time
from io import StringIO
from typing import Literal, TextIO, TypeAlias

import structlog
from structlog.typing import EventDict, ExcInfo, FilteringBoundLogger, Processor, WrappedLogger

from cutaway.contract.values import printable
from cutaway.server.observability.call_watch import CallRecord, current_call

Format: TypeAlias = Literal["json", "text"]


def default_format(output: TextIO) -> Format:
    """Returns ``text`` for a terminal, otherwise ``json``."""
    return "text" if output.isatty() else "json"


def configure(log_format: Format) -> None:
    """Makes the whole process log to standard error; for the command line, which owns its process."""
    processors = _processors(log_format)
    structlog.configure(processors=processors, logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    # Logs and warnings of libraries, models and Python itself get the same form.
    *shared, renderer = processors
    handler = logging.StreamHandler(sys.stderr)
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[remove_meta, renderer])
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.captureWarnings(True)


class CallLog:
    """A log of calls on standard error: all that failed, and a limited number of others per second.

    Args:
        log_format: the format of the lines.
        most_per_s: the most answered calls in a second; the number left out is logged with the next one.
    """

    def __init__(self, log_format: Format, most_per_s: int) -> None:
        lazy: FilteringBoundLogger = structlog.wrap_logger(
            structlog.PrintLogger(sys.stderr), processors=_processors(log_format)
        )
        self._log = lazy.bind()  # once, not for every line
        self._most_per_s = most_per_s
        self._second, self._logged, self._left_out = 0, 0, 0

    def call_started(self, call: CallRecord) -> None:
        """Does nothing: a call is logged when it ends."""

    def call_ended(self, call: CallRecord) -> None:
        """Logs ``call``, if it failed or if there is room for it."""
        if call.code != "OK" or self._has_room():
            fields = _fields(call)
            if self._left_out:
                fields["left_out_before"], self._left_out = self._left_out, 0
            self._log.info("call", **fields)

    def _has_room(self) -> bool:
        """Counts one more line in the present second; returns whether it may be logged."""
        now = int(time.monotonic())
        if now != self._second:
            self._second, self._logged = now, 0
        self._logged += 1
        has_room = self._logged <= self._most_per_s
        self._left_out += not has_room
        return has_room


def _fields(call: CallRecord) -> dict[str, object]:
    fields: dict[str, object] = {
        "method": call.method,
        "model": call.model.model,
        "version": call.model.version,
        "code": call.code,
        "reason": call.reason,
        "ms": round(call.seconds * 1000, 3),
        "stages_ms": {stage: round(value, 3) for stage, value in call.summary.stages.items()},
        "verdicts": [f"{check.method} {check.verdict}" for check in call.summary.checks],
        "request_bytes": call.request_bytes,
        "reply_bytes": call.reply_bytes,
        "peer": call.peer,
        "traceparent": call.traceparent,
    }
    return {name: value for name, value in fields.items() if value not in ("", {}, [])}


def _add_request_id(_: WrappedLogger, __: str, line: EventDict) -> EventDict:
    """Adds the id of the call during which a line is logged."""
    if request_id := current_call().request_id:
        line["request_id"] = request_id
    return line


def _processors(log_format: Format) -> list[Processor]:
    common: list[Processor] = [
        _add_request_id,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if log_format == "json":
        return [*common, structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    return [
        *common,
        _printable,
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_write_traceback),
    ]


def _printable(_: WrappedLogger, __: str, line: EventDict) -> EventDict:
    """Escapes what others have written: no text may control the terminal that shows the log."""
    return {name: printable(value) if isinstance(value, str) else value for name, value in line.items()}


def _write_traceback(output: TextIO, failure: ExcInfo) -> None:
    """Writes a plain traceback: structlog's default prints local variables, and so requests and tokens."""
    text = StringIO()
    structlog.dev.plain_traceback(text, failure)
    output.write(printable(text.getvalue()))
