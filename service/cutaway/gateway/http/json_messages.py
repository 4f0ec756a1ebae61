"""Messages of the contract as JSON, by protobuf's own mapping.

Large ones are converted in a thread. JSON is limited to `MAX_JSON_BYTES`: Python's parser holds all other calls up
while it works.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

from cutaway.errors import Reason, error

MAX_JSON_BYTES = 16 << 20

_LARGE = 1 << 16
"""Bytes from which on a thread converts."""

T = TypeVar("T")


async def as_binary(kind: type[Message], text: bytes) -> bytes:
    """Returns the serialised message of the type ``kind`` that a JSON text holds.

    Raises:
        InvalidArgument: ``MALFORMED_REQUEST`` or ``UNKNOWN_FIELD``; ``REQUEST_TOO_LARGE``.
    """
    _check_size(text)
    return await converted(partial(binary_of, kind), text)


async def as_text(kind: type[Message], data: bytes) -> bytes:
    """Returns the JSON text of a serialised message.

    Raises:
        ResourceExhausted: ``REPLY_TOO_LARGE``.
    """
    return await converted(partial(text_of, kind), data)


async def converted(convert: Callable[[bytes], T], data: bytes) -> T:
    """Returns what ``convert`` makes of ``data``; of much, in a thread."""
    return await asyncio.to_thread(convert, data) if len(data) > _LARGE else convert(data)


def binary_of(kind: type[Message], text: bytes) -> bytes:
    """Returns the serialised message of the type ``kind`` that a JSON text holds.

    Raises:
        InvalidArgument: ``MALFORMED_REQUEST`` or ``UNKNOWN_FIELD``.
    """
    try:
        return json_format.Parse(text, kind()).SerializeToString()
    except json_format.ParseError as failure:
        reason = Reason.UNKNOWN_FIELD if "has no field named" in str(failure) else Reason.MALFORMED_REQUEST
        raise error(
            reason, f"the text is no {kind.DESCRIPTOR.full_name} in JSON: {str(failure).splitlines()[0]}"[:300]
        ) from None
    except (ValueError, TypeError, RecursionError, OverflowError) as failure:  # no UTF-8, numbers of unknown size, ...
        raise error(Reason.MALFORMED_REQUEST, f"the request is no JSON: {failure}"[:300]) from None


def text_of(kind: type[Message], data: bytes) -> bytes:
    """Returns the JSON text of a serialised message.

    Raises:
        ResourceExhausted: ``REPLY_TOO_LARGE``.
    """
    if len(data) > MAX_JSON_BYTES:
        what = f"the reply has {len(data)} bytes, and JSON holds at most {MAX_JSON_BYTES}"
        raise error(Reason.REPLY_TOO_LARGE, f"{what}; ask for application/proto, or for less")
    return json_format.MessageToJson(kind.FromString(data), indent=None).encode()


def mapping_in(text: bytes) -> dict[str, Any]:
    """Returns the object that a JSON text holds.

    Raises:
        InvalidArgument: ``MALFORMED_REQUEST``.
        ResourceExhausted: ``REQUEST_TOO_LARGE``.
    """
    _check_size(text)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as failure:
        raise error(Reason.MALFORMED_REQUEST, f"the request is no JSON: {failure}"[:300]) from None
    if not isinstance(value, dict):
        raise error(Reason.MALFORMED_REQUEST, "the request is no JSON object")
    return value


def _check_size(text: bytes) -> None:
    if len(text) > MAX_JSON_BYTES:
        what = f"a request in JSON has at most {MAX_JSON_BYTES} bytes, this one has {len(text)}"
        raise error(Reason.REQUEST_TOO_LARGE, f"{what}; send it as application/proto, or as NPY")
