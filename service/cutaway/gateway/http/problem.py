"""Errors as problem details, RFC 9457, with the reason, the field and the time after which to try again."""

from __future__ import annotations

import json
import math
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from cutaway.errors import DOMAIN, Code, CutawayError
from cutaway.gateway.http.http_call import Headers
from cutaway.wire import grpc_status

MEDIA_TYPE = "application/problem+json"

_STATUS = {
    Code.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    Code.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
    Code.NOT_FOUND: HTTPStatus.NOT_FOUND,
    Code.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    Code.RESOURCE_EXHAUSTED: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    Code.FAILED_PRECONDITION: HTTPStatus.CONFLICT,
    Code.UNIMPLEMENTED: HTTPStatus.NOT_IMPLEMENTED,
    Code.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
    Code.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    Code.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
}

_AGAIN = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


def http_status(failure: CutawayError) -> HTTPStatus:
    """Returns the status of ``failure``: 429 for what is only too much at once, 413 for what is too large."""
    if failure.code == Code.RESOURCE_EXHAUSTED and failure.retry_after_s is not None:
        return HTTPStatus.TOO_MANY_REQUESTS
    return _STATUS.get(Code(failure.code), HTTPStatus.INTERNAL_SERVER_ERROR)


def problem(failure: CutawayError, headers: Headers = ()) -> Response:
    """Returns the response for ``failure``, with ``headers``."""
    return _response(failure, headers, MEDIA_TYPE)


def plain_problem(failure: CutawayError, headers: Headers = ()) -> Response:
    """Returns the same as plain JSON: KServe's client reads ``error`` from nothing else."""
    return _response(failure, headers, "application/json")


def _response(failure: CutawayError, headers: Headers, media_type: str) -> Response:
    status = http_status(failure)
    known: dict[str, Any] = {
        "type": f"https://{DOMAIN}/errors/{failure.reason}",
        "title": status.phrase,
        "status": int(status),
        "detail": grpc_status.text(failure),
        "reason": str(failure.reason),
        "error": grpc_status.text(failure),  # where KServe's and Triton's callers look
    }
    if failure.field:
        known["field"] = failure.field
    sent = dict(headers)
    if status in _AGAIN:
        sent["retry-after"] = str(max(1, math.ceil(failure.retry_after_s or 1.0)))
    if status == HTTPStatus.UNAUTHORIZED:
        sent["www-authenticate"] = "Bearer"
    return Response(json.dumps(known), int(status), sent, media_type)
