"""Encodes exceptions as failures of the worker's replies."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from cutaway.engine.runtime.oom import is_out_of_memory
from cutaway.errors import CutawayError, Reason, error
from cutaway.v1 import worker_pb2
from cutaway.wire import chunks

log = logging.getLogger(__name__)


def as_failure(failure: BaseException) -> worker_pb2.Failure:
    """Encodes an exception; logs an unexpected one with its traceback."""
    failed = _as_error(failure)
    return worker_pb2.Failure(code=failed.code, reason=failed.reason, message=failed.message, field=failed.field)


def with_failure(pieces: Iterator[chunks.Piece]) -> Iterator[chunks.Piece]:
    """Yields ``pieces``; an exception becomes the last piece."""
    try:
        yield from pieces
    except GeneratorExit:
        raise
    except BaseException as failure:
        yield chunks.worker_piece(worker_pb2.WorkerReply(failure=as_failure(failure)))


@contextmanager
def raising_errors() -> Iterator[None]:
    """Raises any exception of the block, a model's SystemExit too, as the `CutawayError` that a reply would carry."""
    try:
        yield
    except BaseException as failure:
        raise _as_error(failure) from failure


def _as_error(failure: BaseException) -> CutawayError:
    if isinstance(failure, CutawayError):
        return failure
    if is_out_of_memory(failure):
        return error(
            Reason.OUT_OF_MEMORY, "the request needs more memory than is free; send fewer rows or request less"
        )
    log.error("unexpected exception in a request", exc_info=failure)
    return error(Reason.INTERNAL, f"{type(failure).__name__}: {failure}"[:500])
