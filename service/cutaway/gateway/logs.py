"""What a server writes down: a line for each call, and what nobody foresaw.

No tensor, no token, no text of a caller's: a line says how large, how long and how it ended.
"""

from __future__ import annotations

import sys
from typing import Literal, TextIO, TypeAlias

import structlog
from structlog.contextvars import bind_contextvars, merge_contextvars, unbind_contextvars
from structlog.typing import FilteringBoundLogger, Processor

from cutaway.gateway.watched import Call

Format: TypeAlias = Literal["json", "text"]


def fitting(output: TextIO) -> Format:
    """Text for a person at a terminal, JSON for a program."""
    return "text" if output.isatty() else "json"


def configure(form: Format) -> None:
    """Have this whole process log to standard error as ``form``: for the command line, whose process it is."""
    structlog.configure(processors=_processors(form), logger_factory=structlog.PrintLoggerFactory(sys.stderr))


class CallLog:
    """Writes a line to standard error for each call that ended.

    Args:
        form: how.
    """

    def __init__(self, form: Format) -> None:
        lazy: FilteringBoundLogger = structlog.wrap_logger(
            structlog.PrintLogger(sys.stderr), processors=_processors(form)
        )
        self._log = lazy.bind()  # once, and not anew for each line

    def began(self, call: Call) -> None:
        """From here on, whatever is logged on the way says which call it was."""
        bind_contextvars(request_id=call.request_id)

    def ended(self, call: Call) -> None:
        """Write ``call`` down."""
        self._log.info("call", **_facts(call))
        unbind_contextvars("request_id")


def _facts(call: Call) -> dict[str, object]:
    facts: dict[str, object] = {
        "method": call.method,
        "model": call.model.model,
        "version": call.model.version,
        "code": call.code,
        "reason": call.reason,
        "ms": round(call.seconds * 1000, 3),
        "stages_ms": {stage: round(value, 3) for stage, value in call.seen.stages.items()},
        "verdicts": [f"{found.method} {found.verdict}" for found in call.seen.checks],
        "request_bytes": call.request_bytes,
        "reply_bytes": call.reply_bytes,
        "peer": call.peer,
        "traceparent": call.traceparent,
    }
    return {name: value for name, value in facts.items() if value not in ("", {}, [])}


def _processors(form: Format) -> list[Processor]:
    common: list[Processor] = [
        merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if form == "json":
        return [*common, structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    # A plain traceback: structlog's own choice prints local variables, and so requests and tokens.
    plain = structlog.dev.plain_traceback
    return [*common, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
