"""The address of a question in the inspector, the page that ``cutaway serve --http`` has."""

from __future__ import annotations

from urllib.parse import quote

from google.protobuf import json_format

from cutaway.requests import InspectRequest
from cutaway.wire import requests as wire_requests

MAX_CHARS = 100_000
"""A longer address leaves the inputs out: what opens a browser takes no longer argument."""


def permalink(page: str, request: InspectRequest) -> str:
    """Returns the address of ``request`` in the page at ``page``. What is behind ``#`` is never sent to a server."""
    message = wire_requests.encode(request)
    address = _address(page, json_format.MessageToJson(message, indent=None))
    if len(address) <= MAX_CHARS:
        return address
    for name in ("tensors", "raw"):
        message.ClearField(name)
    return _address(page, json_format.MessageToJson(message, indent=None))


def _address(page: str, question: str) -> str:
    return f"{page.rstrip('/')}/#/ask?question={quote(question, safe='')}"
