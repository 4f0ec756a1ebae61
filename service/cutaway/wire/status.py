"""Errors and gRPC statuses, both ways: the one place where they are translated."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from cutaway.errors import DOMAIN, Code, CutawayError, Reason, error, from_wire
from cutaway.v1 import worker_pb2

DETAILS_KEY = "grpc-status-details-bin"
"""The trailing metadata under which gRPC carries a `google.rpc.Status`."""

_LONGEST_TEXT = 600
"""Trailers are small (8 KiB in most stacks); a name that a caller made up must not burst them."""


def encode(failure: CutawayError) -> bytes:
    """``failure`` as a serialised `google.rpc.Status` with ErrorInfo, for bad input BadRequest, and where a retry helps
    RetryInfo."""
    status = status_pb2.Status(code=failure.code, message=text(failure))
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=failure.reason, domain=DOMAIN))
    if failure.field:
        field = error_details_pb2.BadRequest.FieldViolation(
            field=_short(failure.field), description=_short(failure.message)
        )
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[field]))
    if failure.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(round(failure.retry_after_s * 1e9))
        status.details.add().Pack(retry)
    serialised: bytes = status.SerializeToString()
    return serialised


def text(failure: CutawayError) -> str:
    """What a person reads in a plain gRPC client: the field, then the message."""
    where = f"{_short(failure.field)}: " if failure.field else ""
    return where + _short(failure.message)


def decode(code: int, details: str, trailers: Iterable[tuple[str, str | bytes]]) -> CutawayError:
    """The exception for a failed call, from its status code, text and trailing metadata."""
    carried = dict(trailers).get(DETAILS_KEY)
    if isinstance(carried, bytes):
        try:
            found = _unpacked(status_pb2.Status.FromString(carried))
            if found is not None:
                return found
        except DecodeError:
            pass  # some proxy's own bytes: the plain status is all there is
    if code in (Code.UNAVAILABLE, _CANCELLED):
        return error(Reason.SERVER_UNREACHABLE, f"no server answers ({details.rpartition(': ')[2].rstrip(']')})")
    if code == Code.DEADLINE_EXCEEDED:
        return error(Reason.DEADLINE_EXCEEDED, "the deadline passed before an answer came")
    return from_wire(code, _PLAIN.get(code, Reason.INTERNAL), details)


def from_failure(failure: worker_pb2.Failure) -> CutawayError:
    """The exception for an error that travelled inside a worker's reply."""
    return from_wire(failure.code, failure.reason, failure.message, failure.field)


_CANCELLED = 1
"""What gRPC says of a call that a server took while it ended, and will not answer any more."""

_PLAIN = {
    int(Code.RESOURCE_EXHAUSTED): Reason.REQUEST_TOO_LARGE,
    int(Code.UNIMPLEMENTED): Reason.NOT_IMPLEMENTED,
    int(Code.INVALID_ARGUMENT): Reason.MALFORMED_REQUEST,
    int(Code.UNAUTHENTICATED): Reason.TOKEN_REQUIRED,
    int(Code.PERMISSION_DENIED): Reason.SCOPE_MISSING,
}
"""The reason behind a status without details: gRPC itself made it up, or a proxy on the way."""


def _unpacked(status: status_pb2.Status) -> CutawayError | None:
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    for detail in status.details:
        for each in (info, bad, retry):
            detail.Unpack(each)
    if info.domain != DOMAIN:
        return None
    violation = bad.field_violations[0] if bad.field_violations else None
    message = violation.description if violation else status.message
    failure = from_wire(status.code, info.reason or Reason.INTERNAL, message, violation.field if violation else "")
    if retry.HasField("retry_delay"):  # the server's word, also for a reason that is newer than this client
        failure.retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9
    return failure


def _short(words: str) -> str:
    data = words.encode()
    return words if len(data) <= _LONGEST_TEXT else data[: _LONGEST_TEXT - 3].decode(errors="ignore") + "..."
