"""Encodes what a worker replies to a call, or to a batch of calls."""

from __future__ import annotations

from collections.abc import Sequence

from cutaway.v1 import worker_pb2
from cutaway.worker.failures import as_failure


def encode_reply(outcome: bytes | BaseException, worker_ms: float) -> bytes:
    """Returns a serialised `cutaway.v1.WorkerReply` with a serialised response, or with an error."""
    reply = worker_pb2.WorkerReply(worker_ms=worker_ms)
    if isinstance(outcome, BaseException):
        reply.failure.CopyFrom(as_failure(outcome))
    else:
        reply.response = outcome
    return reply.SerializeToString()


def encode_batch_reply(replies: Sequence[bytes], max_bytes: int, worker_ms: float) -> bytes:
    """Encodes the replies of a batch as one; a reply that does not fit is sent empty, but never the first one."""
    size = 0
    sent: list[bytes] = []
    for reply in replies:
        fits = not sent or size + len(reply) <= max_bytes
        sent.append(reply if fits else b"")
        size += len(sent[-1])
    return encode_reply(worker_pb2.WorkerBatchReply(replies=sent).SerializeToString(), worker_ms)
