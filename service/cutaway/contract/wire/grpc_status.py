"""Translation between errors and gRPC statuses, in both directions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from cutaway.contract.errors import DOMAIN, Code, CutawayError, Reason, error, from_wire
from cutaway.v1 import worker_pb2

DETAILS_KEY = "grpc-status-details-bin"
"""The key of the trailing metadata in which gRPC sends a `google.rpc.Status`."""

_MAX_TEXT_BYTES = 600
"""Most gRPC implementations limit trailers to 8 KiB; names in a request may be longer."""


def encode(failure: CutawayError) -> bytes:
    """Returns ``failure`` as a serialised `google.rpc.Status` with ErrorInfo, with BadRequest where a field is at
    fault, and with RetryInfo where a retry can succeed."""
    status = status_pb2.Status(code=failure.code, message=text(failure))
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=failure.reason, domain=DOMAIN))
    if failure.field:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=_shortened(failure.field), description=_shortened(failure.message)
        )
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if failure.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(round(failure.retry_after_s * 1e9))
        status.details.add().Pack(retry)
    serialised: bytes = status.SerializeToString()
    return serialised


def text(failure: CutawayError) -> str:
    """Returns the message of the status, for people who use a plain gRPC client: the field, then what is wrong."""
    field = f"{_shortened(failure.field)}: " if failure.field else ""
    return field + _shortened(failure.message)


def decode(code: int, details: str, trailers: Iterable[tuple[str, str | bytes]]) -> CutawayError:
    """Returns the exception for a failed call, from its status code, message and trailing metadata."""
    data = dict(trailers).get(DETAILS_KEY)
    if isinstance(data, bytes):
        try:
            failure = _decode_details(status_pb2.Status.FromString(data))
            if failure is not None:
                return failure
        except DecodeError:
            pass  # bytes that a proxy made: only the plain status can be used
    if code == Code.UNAVAILABLE and _REFUSED_STREAM in details:
        return error(Reason.OVERLOADED, "the server refused a call that it did not read: too many at once; try again")
    if code in (Code.UNAVAILABLE, _CANCELLED):
        return error(Reason.SERVER_UNREACHABLE, _why_unreachable(details))
    if code == Code.DEADLINE_EXCEEDED:
        return error(
            Reason.DEADLINE_EXCEEDED,
            "the deadline passed before a reply arrived: give the call more time, or ask for less",
        )
    return from_wire(code, _PLAIN_REASONS.get(code, Reason.INTERNAL), details)


def with_address(failure: CutawayError, address: str) -> CutawayError:
    """Returns ``failure``; one of a server that does not answer with its ``address``."""
    if failure.reason != Reason.SERVER_UNREACHABLE:
        return failure
    return error(Reason.SERVER_UNREACHABLE, f"{failure.message} at {address}")


def from_failure(failure: worker_pb2.Failure) -> CutawayError:
    """Returns the exception for an error inside a worker's reply."""
    return from_wire(failure.code, failure.reason, failure.message, failure.field)


_CANCELLED = 1
"""The gRPC status of a call that a server accepted while it shut down, and never replies to."""

_REFUSED_STREAM = "RST_STREAM with error code 7"
"""gRPC's message for a call beyond the limit of streams of one connection (RFC 9113, REFUSED_STREAM).

A server that is slow to close earlier streams causes it.
"""

_PLAIN_REASONS = {
    int(Code.RESOURCE_EXHAUSTED): Reason.REQUEST_TOO_LARGE,
    int(Code.UNIMPLEMENTED): Reason.NOT_IMPLEMENTED,
    int(Code.INVALID_ARGUMENT): Reason.MALFORMED_REQUEST,
    int(Code.UNAUTHENTICATED): Reason.TOKEN_REQUIRED,
    int(Code.PERMISSION_DENIED): Reason.SCOPE_MISSING,
}
"""The reasons for statuses without details, which come from gRPC itself or from a proxy."""


_TLS_FAILURES = {
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not trusted",
    "Hostname Verification Check failed": "the server's certificate is for another name",
    "WRONG_VERSION_NUMBER": "the server does not speak TLS",
}
"""Parts of gRPC's messages for failed handshakes, and their meanings."""


def _why_unreachable(details: str) -> str:
    for words, meaning in _TLS_FAILURES.items():
        if words in details:
            return meaning
    return f"no server answers ({details.rpartition(': ')[2].rstrip(']')})"


def _decode_details(status: status_pb2.Status) -> CutawayError | None:
    """Returns the exception in a status with error details; None if the details are not from a Cutaway server."""
    info, bad_request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    for detail in status.details:
        for message in (info, bad_request, retry):
            detail.Unpack(message)
    if info.domain != DOMAIN:
        return None
    violation = bad_request.field_violations[0] if bad_request.field_violations else None
    message = violation.description if violation else status.message
    failure = from_wire(status.code, info.reason or Reason.INTERNAL, message, violation.field if violation else "")
    if retry.HasField("retry_delay"):  # of the server, which may be newer and have other reasons
        failure.retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9
    return failure


def _shortened(string: str) -> str:
    data = string.encode(errors="backslashreplace")  # names in a request may be no Unicode
    short = data if len(data) <= _MAX_TEXT_BYTES else data[: _MAX_TEXT_BYTES - 3] + b"..."
    return short.decode(errors="ignore")


# Connect's messages stay bytes: the code that parses those of gRPC parses them too.


class BytesCodec:
    """A codec of connectrpc that takes messages as they are.

    Args:
        name: ``proto`` or ``json``.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def name(self) -> str:
        """Returns the codec's name, which is the end of the content type."""
        return self._name

    def encode(self, message: bytes) -> bytes:
        """Returns the message."""
        return message

    def decode(self, data: bytes | bytearray, message_class: Any) -> bytes:
        """Returns the message."""
        return bytes(data)
