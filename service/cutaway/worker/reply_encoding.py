"""Encodes what a worker replies to a call, or to a batch of calls."""

from __future__ import annotations

from collections.abc import Sequence

from cutaway.v1 import worker_pb2
from cutaway.worker.failures import as_failure


def encode_reply(outcome: worker_pb2.WorkerReply | BaseException, worker_ms: float) -> bytes:
    """Serialises a reply with the time that the worker had the call; an exception becomes a failure."""
    reply = worker_pb2.WorkerReply(failure=as_failure(outcome)) if isinstance(outcome, BaseException) else outcome
    reply.worker_ms = worker_ms
    return reply.SerializeToString()


def encode_batch_reply(replies: Sequence[bytes], max_bytes: int, worker_ms: float) -> bytes:
    """Encodes the replies of a batch as one; a reply that does not fit is sent empty, but never the first one."""
    size = 0
    sent: list[bytes] = []
    for reply in replies:
        fits = not sent or size + len(reply) <= max_bytes
        sent.append(reply if fits else b"")
        size += len(sent[-1])
    together = worker_pb2.WorkerBatchReply(replies=sent).SerializeToString()
    return encode_reply(worker_pb2.WorkerReply(response=together), worker_ms)
