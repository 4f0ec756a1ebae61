"""What goes wrong in a worker, as its replies carry it."""

from __future__ import annotations

import logging

from cutaway.engine.memory import ran_out
from cutaway.errors import CutawayError, Reason, error
from cutaway.v1 import worker_pb2

log = logging.getLogger(__name__)


def as_failure(failure: BaseException) -> worker_pb2.Failure:
    """``failure`` as it travels in a reply; what is nobody's fault but ours goes to the log with its traceback."""
    if not isinstance(failure, CutawayError):
        failure = _named(failure)
    return worker_pb2.Failure(code=failure.code, reason=failure.reason, message=failure.message, field=failure.field)


def _named(failure: BaseException) -> CutawayError:
    if ran_out(failure):
        return error(Reason.OUT_OF_MEMORY, "the request needs more memory than there is; send fewer rows, ask for less")
    log.error("a request failed in a way that nobody foresaw", exc_info=failure)
    return error(Reason.INTERNAL, f"{type(failure).__name__}: {failure}"[:500])
